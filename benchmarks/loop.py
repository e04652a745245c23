"""The whole loop for several seeds, condensed to what its page shows

    python benchmarks/loop.py [--seeds 3] [--jobs 2] [--runs DIR] [--save data/loop.json]

Each seed is one default run, the same as `skillrl train --seed N`. A run that is there already, whole or in part, is
gone on with, so the run folders can be kept. What is saved holds no time and no path: the same seeds give the same file.
"""
import argparse, json, sys
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from skillrl.config import SkillRLConfig
from skillrl.skills.bank import load_version
from skillrl.skills.retrieval import advice
from skillrl.store import JsonlLog, atomic_write
from skillrl.training.pipeline import train
from skillrl.trajectory import Trajectory

def run(seed, folder):
    "One default run"
    import torch
    torch.set_num_threads(1)
    if not (folder/'report.md').exists():
        train(SkillRLConfig().merged({'seed': seed}), folder, resume=folder.exists())
    return folder

def read(folder, name):
    return JsonlLog(folder/f'{name}.jsonl').read()

def played(folder):
    "The trajectories of a run by phase"
    out = defaultdict(list)
    for d in read(folder, 'trajectories'):
        out[d['metadata']['phase']].append(Trajectory.from_dict(d))
    return out

def won(trajs):
    return dict(won=sum(t.success for t in trajs), n=len(trajs))

def condition(t):
    return t.metadata['condition']

def by_condition(evaluated):
    out = defaultdict(list)
    for t in evaluated:
        out[condition(t)].append(t)
    return out

def curve(folder, collected):
    "Environment steps so far at each iteration, beginning with those of collecting, and its success"
    log = [m for m in read(folder, 'metrics') if m['phase'] == 'rl']
    steps = list(accumulate((m['steps'] for m in log), initial=collected))[1:]
    return dict(steps=steps, success=[round(m['success'], 4) for m in log])

GATE = 'n', 'before', 'after', 'wins', 'losses', 'p', 'keep'

def gate_numbers(row, stage):
    verdict = row[stage]
    return verdict and {k: verdict[k] for k in GATE}

def proposal(row):
    "What was proposed, and what fresh games said"
    kept = {k: row[k] for k in ('kind', 'category', 'principle', 'kept', 'reason')}
    return kept | {stage: gate_numbers(row, stage) for stage in ('gate', 'non_inferiority')}

def evolution_round(record):
    before, after = (record[k] and record[k]['all'] for k in ('rates_before', 'rates_after'))
    rates = dict(validation=before and before['mean'], report=after and after['mean'])
    return {k: record[k] for k in ('round', 'suite', 'weak')} | rates | dict(
        episodes=evolution_episodes(record), proposals=[proposal(row) for row in record['proposals']])

def evolution_episodes(record):
    "Episodes that one round played: validation, two of each gate pair, report"
    rates = [record['rates_before'], record['rates_after']]
    pairs = [row[stage]['n'] for row in record['proposals'] for stage in ('gate', 'non_inferiority') if row[stage]]
    return sum(r['all']['n'] for r in rates if r) + 2*sum(pairs)

def bank_sizes(folder):
    "Name of a suite → active entries of each version of its bank"
    out = {}
    for place in sorted((folder/'bank').iterdir()):
        versions = len(list(place.glob('v*.json')))
        out[place.name] = [len(load_version(place, n).active()) for n in range(versions)]
    return out

def condense(seed, folder):
    "What one run showed, in numbers"
    phases = played(folder)
    collected = sum(len(t) for t in phases['collect'] if t.metadata['suite'].startswith('train'))
    test = {name: won(trajs) for name, trajs in by_condition(phases['eval']).items()}
    rounds = [evolution_round(record) for record in read(folder, 'evolution')]
    return dict(seed=seed, collecting=won(phases['collect']) | dict(steps=collected), rl=curve(folder, collected),
                test=test, rounds=rounds, banks=bank_sizes(folder))

def lines(t, first=0, last=None):
    "Steps of an episode as pairs of action and answer"
    answers = [step.observation for step in t.steps[1:]] + [t.final_observation]
    return [[step.action, answer] for step, answer in zip(t.steps, answers)][first:last]

def episode(t):
    return dict(id=t.id, task=t.task, won=t.success, steps=len(t))

def candidates(folder, phases):
    "Skills of the first banks of the test suites that come from a lost episode: (suite, skill, the episode)"
    lost = {t.id: t for t in phases['collect'] if not t.success}
    for suite in dict.fromkeys(t.game.split('/')[0] for t in phases['eval']):
        for skill in load_version(folder/'bank'/suite, 0).active():
            sources = [lost[i] for i in skill.provenance.get('trajectories', ()) if i in lost]
            asked = [t for t in sources if t.task in skill.source_tasks]
            if asked and 'looked' in skill.provenance:
                yield suite, skill, min(asked, key=lambda t: (len(t), t.id))

def turned(phases, suite, skill):
    "Test tasks of `suite` won with the skill shown and lost without any bank, after RL"
    tests = by_condition(phases['eval'])
    without = {t.game: t for t in tests['after, no bank']}
    shown = [t for t in tests['after, bank'] if t.game.startswith(f'{suite}/') and skill.id in t.steps[0].skills]
    return shown, [t for t in shown if t.success and not without[t.game].success], without

def follow(folder):
    "The skill from a lost episode that turned most test tasks, from that episode to the tasks it won"
    phases = played(folder)
    def gain(candidate):
        suite, skill, source = candidate
        shown, its, _ = turned(phases, suite, skill)
        return len(its), -len(shown), suite, skill.id
    suite, skill, source = max(candidates(folder, phases), key=gain)
    shown, its, without = turned(phases, suite, skill)
    best = min(its, key=lambda t: (len(t), t.id))
    tasks = [dict(game=t.game, task=t.task, won=t.success, steps=len(t),
                  won_without=without[t.game].success, steps_without=len(without[t.game])) for t in shown]
    return dict(
        suite=suite, id=skill.id, title=skill.title, principle=skill.principle, advice=advice(skill),
        when_to_apply=skill.when_to_apply, provenance=skill.provenance,
        source=episode(source) | dict(first=lines(source, 0, 4), last=lines(source, -4)),
        tests=tasks, episode=episode(best) | dict(lines=lines(best)),
        episode_without=episode(without[best.game]) | dict(lines=lines(without[best.game])))

def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--seeds', type=int, default=3)
    p.add_argument('--jobs', type=int, default=2)
    p.add_argument('--runs', metavar='DIR', help='where the run folders are kept; a temporary place if left out')
    p.add_argument('--save', metavar='FILE', help='keep what the page shows')
    return p.parse_args()

def result(a, runs):
    with ProcessPoolExecutor(a.jobs, get_context('spawn')) as pool:
        folders = list(pool.map(run, range(a.seeds), [runs/f'{seed}' for seed in range(a.seeds)]))
    seeds = [condense(seed, folder) for seed, folder in enumerate(folders)]
    return dict(seeds=seeds, skill=dict(seed=0) | follow(folders[0]))

def main(a):
    with TemporaryDirectory() as tmp:
        found = result(a, Path(a.runs or tmp))
    text = json.dumps(found, indent=1) + '\n'
    if a.save:
        atomic_write(a.save, text)
    for row in found['seeds']:
        print(row['seed'], {name: f'{r["won"]}/{r["n"]}' for name, r in row['test'].items()})

if __name__=='__main__':
    sys.exit(main(arguments()))
