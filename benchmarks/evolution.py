"""Does evolution repair a bank that knows too little? Weights stay as they are.

    python benchmarks/evolution.py [--policy DIR] [--households 6] [--rounds 4]

Each household's first bank is distilled from its pick and heat episodes only. After some evolution rounds
the same unseen test games are played with the first bank and the last. Prints success by
category and what each round kept and refused; exits 1 if the four missing categories together did not rise.
"""
import argparse, sys
from skillrl.training.builders import build_episodes, build_policy, derive_seed
from skillrl.core.config import SkillRLConfig
from skillrl.envs.alfworld.teacher import AlfworldTeacher
from skillrl.skills.distillation import distill
from skillrl.envs.base import world
from skillrl.training.evaluate import compare, evaluate, paired_difference
from skillrl.training.phases import evolve_bank
from skillrl.training.phases import collect_games

KNOWN = 'pick', 'heat'

def evolved(suite, policy, config, rounds):
    "The first bank, the last, and the records between"
    evidence = [t for t in collect_games(policy, suite, config) if t.category in KNOWN]
    first = bank = distill(evidence, AlfworldTeacher())
    records = []
    for i in range(rounds):
        bank, record = evolve_bank(policy, suite, bank, config, AlfworldTeacher(), i, evidence)
        records.append(record)
    return first, bank, records

def describe(suite, first, last, records):
    "Print what each round kept and refused"
    print(f'{suite.name}: {len(first.items())} entries → {len(last.items())}')
    for i, record in enumerate(records):
        kept, refused = len(record['kept']), len(record['refused'])
        print(f'  round {i}: weak {record["weak"]}, kept {kept}, refused {refused}')
        for p in record['proposals']:
            decision = 'kept   ' if p['kept'] else 'refused'
            print(f'    {decision} {p["principle"]}  ({p.get("reason")})'[:150])

def main(policy, households, rounds, seed):
    import torch
    torch.set_num_threads(1)
    changes = {'seed': seed, 'env.test_suites': households, 'env.episodes': 24, 'env.test_tasks': 24}
    if policy:
        changes['model.checkpoint'] = policy
    config = SkillRLConfig().merged(changes)
    policy, results = build_policy(config), {'first bank': [], 'evolved bank': []}
    for suite in world('alfworld').suites(config.env)[1]:
        first, last, records = evolved(suite, policy, config, rounds)
        describe(suite, first, last, records)
        for name, bank in zip(results, (first, last)):
            episodes = build_episodes(suite, suite.games('test', 24), bank, config)
            results[name] += evaluate(policy, episodes, seed=derive_seed(seed, 'evolution', suite.name))
    print(compare(results))
    missing = [[t for t in ts if t.category not in KNOWN] for ts in results.values()]
    gain = paired_difference(*missing)
    print(f'missing categories: {gain} (paired difference, 95 % interval)')
    return gain.low > 0

if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--policy', metavar='DIR')
    p.add_argument('--households', type=int, default=6)
    p.add_argument('--rounds', type=int, default=4)
    p.add_argument('--seed', type=int, default=0)
    sys.exit(not main(**vars(p.parse_args())))
