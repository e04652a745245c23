"""Does a small consolidated bank serve as well as all the proposals it was made of?

    python benchmarks/consolidation.py [--households 20] [--games 24] [--policy DIR] [--seed 0]

In each household the shipped policy plays 100 games without skills, in the mix of categories of Krill's
demo. The offline teacher distils each trajectory by itself, and all its proposals are consolidated. The
same unseen test games are then played with the bank of all proposals as they came, with the consolidated
bank, with the bank distilled from the 100 trajectories at once, and with none. Who plays is the shipped
policy; with --policy, the one in DIR (`skillrl train` leaves it in the run's folder). Exits 1 if a
consolidated bank has more than 60 entries or two that are more alike than 0.9, if consolidating again
changes it, if held-out success falls (95 % interval of consolidated minus raw reaching below -0.05), or if
reading 100 trajectories at once takes over 2 s."""
from copy import deepcopy
import argparse, sys, time
import numpy as np
from skillrl.core.config import SkillRLConfig
from skillrl.training.evaluate import compare, evaluate, paired_difference
from skillrl.skills.bank import SkillBank, with_id
from skillrl.envs.alfworld.scene import CATEGORIES, ROUTER
from skillrl.envs.alfworld.teacher import AlfworldTeacher
from skillrl.skills.distillation import distill
from skillrl.envs.base import world
from skillrl.skills.consolidation import _bag_of_words, consolidate
from skillrl.skills.embedding import TfidfEncoder
from skillrl.skills.retrieval import advice
from skillrl.training.builders import build_policy, build_episodes, play_episodes, derive_seed

MIX = dict(pick=32, pick_two=19, clean=13, cool=13, heat=13, look=10)

def collect(policy, suite, cfg):
    "100 trajectories without skills"
    games = [suite.house.game('collect', i, c) for c, n in MIX.items() for i in range(n)]
    episodes = build_episodes(suite, games, None, cfg, cfg.env.collect_steps)
    return play_episodes(policy, episodes, suite, cfg, derive_seed(cfg.seed, 'collect', suite.name))

def unconsolidated(items):
    "A bank of every proposal as it came"
    bank = SkillBank()
    for o in items:
        bank.add(with_id(o, ''))
    return bank

def closest(bank):
    "The largest cosine between two active entries, by `TfidfEncoder` and by shared words, of advice and text"
    out = []
    for text in (advice, lambda o: o.text):
        said = [text(o) for o in bank.items('active')]
        for rows in (TfidfEncoder(said).encode(said), _bag_of_words(said, said)):
            out.append(float((rows @ rows.T - np.eye(len(rows))).max()))
    return out

def timed(f, *args, **kw):
    start = time.perf_counter()
    return f(*args, **kw), time.perf_counter() - start

def one_household(suite, collector, policy, cfg, games):
    "Trajectories of the four conditions, and what was measured of the banks"
    trajs, teacher = collect(collector, suite, cfg), AlfworldTeacher(min_count=1)
    raw = [o for t in trajs for o in teacher.distill([t])]
    bank = SkillBank()
    _, spent = timed(consolidate, bank, raw, router=ROUTER)
    again = deepcopy(bank)
    stable = consolidate(again, raw, router=ROUTER) == [] and again == bank
    whole, reading = timed(distill, trajs, AlfworldTeacher(), tuple(CATEGORIES), ROUTER)
    banks = {'none': None, 'raw': unconsolidated(raw), 'consolidated': bank, 'at once': whole}
    seed = derive_seed(cfg.seed, 'consolidation', suite.name)
    played = {}
    for name, shown in banks.items():
        episodes = build_episodes(suite, suite.games('test', games), shown, cfg)
        played[name] = evaluate(policy, episodes, seed=seed)
    return played, dict(
        won=sum(t.success for t in trajs),
        raw=len(raw),
        final=len(bank.items('active')),
        at_once=len(whole.items()),
        closest=closest(bank),
        seconds=spent,
        reading=reading,
        stable=stable,
    )

def main(households, games, policy, seed):
    import torch
    torch.set_num_threads(1)
    cfg = SkillRLConfig().merged({'seed': seed, 'env.test_suites': households})
    results, seen = {}, []
    collector = build_policy(cfg)
    tested = build_policy(cfg.merged({'model.checkpoint': policy})) if policy else collector
    for suite in world('alfworld').suites(cfg.env)[1]:
        played, m = one_household(suite, collector, tested, cfg, games)
        for k, ts in played.items():
            results.setdefault(k, []).extend(ts)
        seen.append(m)
        print(
            f"{suite.name}: {m['won']} of 100 won; "
            f"{m['raw']} proposals → {m['final']} entries in {m['seconds']:.2f} s "
            f"(at once: {m['at_once']} in {m['reading']:.2f} s); "
            f"closest pair: {', '.join(f'{c:.2f}' for c in m['closest'])}"
        )
    print(f'\n{compare(results)}\n')
    gains = {}
    for other in ('raw', 'at once', 'none'):
        gains[other] = paired_difference(results[other], results['consolidated'])
        print(f'consolidated minus {other}: {gains[other]} (paired difference, 95 % interval)')
    checks = {'at most 60 entries': max(m['final'] for m in seen) <= 60,
              'no two entries more alike than 0.9': max(max(m['closest']) for m in seen) <= .9,
              'consolidating again changes nothing': all(m['stable'] for m in seen),
              'no loss of held-out success beyond 0.05': gains['raw'].low >= -.05,
              '100 trajectories read within 2 s': max(m['reading'] for m in seen) <= 2}
    for what, ok in checks.items():
        print('ok    ' if ok else 'MISSED', what)
    return all(checks.values())

if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--households', type=int, default=20)
    p.add_argument('--games', type=int, default=24)
    p.add_argument('--policy', metavar='DIR')
    p.add_argument('--seed', type=int, default=0)
    sys.exit(not main(**vars(p.parse_args())))
