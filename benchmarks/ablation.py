"""What is each part of the loop worth? The whole loop without it, on the same test games.

    python benchmarks/ablation.py [--arms full,no_rl] [--seeds 1] [--jobs 1] [--runs runs/ablation]
                                  [--save FILE]

Every arm is a full run with one setting changed. Runs that are in the folder are resumed or read. The first
arm is what the others are compared with, game by game. `--save` keeps what the page of the ablation draws.
"""
import argparse
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from skillrl.core.config import SkillRLConfig
from skillrl.training.evaluate import _gains
from skillrl.core.stats import paired_interval, wilson
from skillrl.core.store import JsonlLog, write_json
from skillrl.training.pipeline import train
from skillrl.core.trajectory import Trajectory

ARMS = {'full': {},
        'no hierarchy': {'retrieval.top_k_general': 0},
        'raw trajectories': {'retrieval.mode': 'trajectories'},
        'no SFT': {'sft.epochs': 0},
        'no evolution': {'evolution.validation_interval': 0},
        'no gate': {'evolution.gate': 'none'},
        'no RL': {'rl.iterations': 0}}
FOLDERS = {arm.lower().replace(' ', '_'): arm for arm in ARMS}

def run(config, path):
    train(config, path, (path/'config.json').exists())

def last_evaluation(path):
    "What the trained policy of the run at `path` played with the best bank it has"
    log = [d for d in JsonlLog(path/'trajectories.jsonl').read() if d['metadata']['phase'] == 'eval']
    played = [d['metadata']['condition'] for d in log]
    best = [c for c in played if c in ('after, bank', 'after, evolved bank')][-1]
    return [Trajectory.from_dict(d) for d in log if d['metadata']['condition'] == best]

def steps_spent(path):
    "Environment steps of all that was played before evaluation"
    played, rounds = (JsonlLog(path/name).read() for name in ('trajectories.jsonl', 'evolution.jsonl'))
    logged = sum(len(d['steps']) for d in played if d['metadata']['phase'] != 'eval')
    return logged + sum(r['steps'] for r in rounds if r['rule'] != 'probation')

def counts(whole, part, split):
    "What `part` won of its games of `split`, and those that only `part` won or only `whole`"
    a, b = ([t for t in played if t.metadata.get('split', 'test') == split] for played in (whole, part))
    gains = [gain for some in _gains(a, b).values() for gain in some]
    gained, lost = gains.count(1), gains.count(-1)
    return dict(won=sum(t.success for t in b), n=len(b), gained=gained, lost=lost)

def row(arm, seed, path, first):
    "What the run at `path` won, beside that at `first`; ValueError if the games differ"
    whole, part = last_evaluation(first), last_evaluation(path)
    splits = dict.fromkeys(t.metadata.get('split', 'test') for t in whole)
    return dict(arm=arm, seed=seed, steps=steps_spent(path), test={s: counts(whole, part, s) for s in splits})

def told(rows, split):
    "A line for each arm: success, what it gained or lost over the games of all seeds, steps"
    for arm in dict.fromkeys(r['arm'] for r in rows):
        its = [r for r in rows if r['arm'] == arm]
        kinds = 'won', 'n', 'gained', 'lost'
        won, n, gained, lost = (sum(r['test'][split][kind] for r in its) for kind in kinds)
        low, high = paired_interval(gained, lost, n)
        steps = sum(r['steps'] for r in its)/len(its)
        gain = f'{(gained - lost)/n:+.2f} [{low:+.2f}, {high:+.2f}]'
        print(f'{split}, {arm}: {wilson(won, n)}, {gain}, {steps:.0f} steps')

def ablate(config, folder, arms, seeds=1, jobs=1):
    "Rows of all runs, seed after seed"
    at = {(arm, seed): folder/arm.lower().replace(' ', '_')/str(seed)
          for seed in range(config.seed, config.seed + seeds) for arm in arms}
    configs = [config.merged(ARMS[arm] | {'seed': seed}) for arm, seed in at]
    with ProcessPoolExecutor(jobs, get_context('spawn')) as pool:
        list(pool.map(run, configs, at.values()))
    return [row(arm, seed, path, at[arms[0], seed]) for (arm, seed), path in at.items()]

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--arms', default=','.join(FOLDERS))
    p.add_argument('--seeds', type=int, default=1)
    p.add_argument('--jobs', type=int, default=1)
    p.add_argument('--runs', type=Path, default=Path('runs/ablation'))
    p.add_argument('--save', type=Path)
    a = p.parse_args()
    rows = ablate(SkillRLConfig(), a.runs, [FOLDERS[name] for name in a.arms.split(',')], a.seeds, a.jobs)
    for split in rows[0]['test']:
        told(rows, split)
    if a.save:
        write_json(a.save, rows)

if __name__ == '__main__':
    main()
