"""Does evolution repair a bank that knows too little? Weights stay as they are.

    python benchmarks/evolution.py [--policy DIR] [--households 6] [--looks 4]

Each household's first bank is distilled from its pick and heat episodes only. After some looks at validation games, with
the gate on, the same unseen test games are played with the first bank and the last. Prints success by category and what
each look kept and refused; exits 1 if the four missing categories together did not rise.
"""
import argparse, sys
from skillrl.config import SkillRLConfig
from skillrl.envs.alfworld.suites import suites
from skillrl.evaluate import compare, evaluate, paired_difference
from skillrl.envs.alfworld.teacher import AlfworldTeacher, alfworld_bank as distill
from skillrl.builders import build_episodes, build_policy, derive_seed
from skillrl.training.pipeline import collect_games, evolve_bank

KNOWN = 'pick', 'heat'

def evolved(suite, policy, cfg, looks):
    "The first bank, the last, and the records between"
    evidence = [t for t in collect_games(policy, suite, cfg) if t.category in KNOWN]
    first = bank = distill(evidence)
    records = []
    for n in range(looks):
        bank, record = evolve_bank(bank, suite, policy, cfg, AlfworldTeacher(), n, cfg.evolution.val_tasks, evidence)
        records.append(record)
    return first, bank, records

def main(policy, households, looks, seed):
    import torch
    torch.set_num_threads(1)
    cfg = SkillRLConfig().merged({'seed': seed, 'env.test_households': households, 'evolution.val_tasks': 24, **({'model.checkpoint': policy} if policy else {})})
    policy, results = build_policy(cfg), {'first bank': [], 'evolved bank': []}
    for suite in suites(cfg.env)[1]:
        first, last, records = evolved(suite, policy, cfg, looks)
        print(f'{suite.name}: {len(first)} entries → {len(last)}')
        for n,r in enumerate(records):
            print(f'  look {n}: weak {r["weak"]}, kept {len(r["kept"])}, refused {len(r["refused"])}')
            for p in r['proposals']: print(f'    {"kept   " if p["kept"] else "refused"} {p["principle"]}  ({p.get("reason") or p["gate"]})'[:150])
        for name, bank in zip(results, (first, last)):
            eps = build_episodes(suite, suite.games('test', 24), bank, cfg)
            results[name] += evaluate(policy, eps, seed=derive_seed(seed, 'evolution', suite.name))
    print(compare(results))
    gain = paired_difference(*([t for t in ts if t.category not in KNOWN] for ts in results.values()))
    print(f'missing categories: {gain} (paired difference, 95 % interval)')
    return gain.low > 0

if __name__=='__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--policy', metavar='DIR')
    p.add_argument('--households', type=int, default=6)
    p.add_argument('--looks', type=int, default=4)
    p.add_argument('--seed', type=int, default=0)
    sys.exit(not main(**vars(p.parse_args())))
