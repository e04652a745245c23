"""The whole loop for several seeds, condensed to what its page shows

    python benchmarks/loop.py [--seeds 3] [--jobs 2] [--runs DIR] [--save data/loop.json]

Each seed is one default run, the same as `skillrl train --seed N`. A run that is there already, whole or in
part, is gone on with, so the run folders can be kept. What is saved holds no time and no path: the same
seeds give the same file. One skill is followed from the episode that was lost for want of it to the test
tasks it won.
"""
import argparse, json, re, sys
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from skillrl.training.builders import build_retriever
from skillrl.core.config import SkillRLConfig
from skillrl.core.tables import row_name
from skillrl.skills.bank import SkillBank, version_path
from skillrl.core.runfolder import RunFolder
from skillrl.core.store import JsonlLog, atomic_write
from skillrl.training.pipeline import _CONDITIONS, _MAKES, Pipeline, train
from skillrl.core.trajectory import Trajectory

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
    return row_name(t.metadata['condition'], t.metadata['split'])

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

def half(suite):
    return suite.split('-')[0]

def evolution_round(records):
    "One round in one half of the suites: what it saw, how much it proposed and what trials decided"
    changed = Counter(f"{v['before']} to {v['status']}" for r in records for v in r['verdicts'])
    seen = [r['rates_before']['all'] for r in records]
    def total(key):
        return sum(len(r[key]) for r in records)
    return dict(round=records[0]['round'], half=half(records[0]['suite']), suites=len(records),
                steps=sum(r['steps'] for r in records), episodes=sum(rate['n'] for rate in seen),
                won=sum(round(rate['mean']*rate['n']) for rate in seen), proposals=total('proposals'),
                kept=total('kept'), changed=dict(sorted(changed.items())))

def evolution_rounds(folder):
    by_round = defaultdict(list)
    for record in read(folder, 'evolution'):
        by_round[record['round'], half(record['suite'])].append(record)
    return [evolution_round(records) for records in by_round.values()]

def bank_sizes(folder):
    "Name of a suite → active entries of its first bank and of its last"
    out = {}
    for place in sorted((folder/'bank').iterdir()):
        last = len(list(place.glob('v*.json'))) - 1
        out[place.name] = [len(SkillBank.load(version_path(place, n)).items('active')) for n in (0, last)]
    return out

def condense(seed, folder):
    "What one run showed, in numbers"
    phases = played(folder)
    collected = sum(len(t) for t in phases['collect'] if t.metadata['suite'].startswith('train'))
    spent = {phase: sum(map(len, trajs)) for phase, trajs in phases.items() if phase != 'eval'}
    test = {name: won(trajs) for name, trajs in by_condition(phases['eval']).items()}
    return dict(seed=seed, collecting=won(phases['collect']) | dict(steps=collected), test=test,
                rl=curve(folder, collected), rounds=evolution_rounds(folder), banks=bank_sizes(folder),
                spent=spent)

def lines(t):
    "Steps of an episode as pairs of action and answer"
    answers = [step.observation for step in t.steps[1:]] + [t.final_observation]
    return [[step.action, answer] for step, answer in zip(t.steps, answers)]

def episode(t, shown):
    return dict(id=t.id, task=t.task, won=t.success, steps=len(t), lines=shown)

def whole(t):
    return episode(t, lines(t))

def sight(t, skill):
    "The step of an episode that says most of what a skill says"
    words = set(re.findall(r'\w+', skill.principle))
    return max(lines(t), key=lambda line: len(words & set(re.findall(r'\w+', ' '.join(line)))))

BEST = 'after, evolved bank'

def tests_of(evaluated, skill, suite, split):
    "The test tasks of `suite` and the category of `skill` that show it: who won them, and the episodes"
    names = {row_name(', '.join(c), split): ', '.join(c) for c in _CONDITIONS}
    tests = {names[row]: {t.game: t for t in trajs}
             for row, trajs in by_condition(evaluated).items() if row in names}
    shown = [t for t in tests[BEST].values()
             if t.game.startswith(f'{suite}/') and skill.id in t.steps[0].skills
             and t.category == skill.category]
    rows = [dict(game=t.game, task=t.task, won={name: ts[t.game].success for name, ts in tests.items()})
            for t in shown]
    winners = {row['game']: [name for name, won in row['won'].items() if won] for row in rows}
    turned = [t for t in shown if winners[t.game] == [BEST]]
    return rows, turned, tests

def proposed(p):
    """What was proposed in a test suite, would be shown in a game that was lost there, and became active:
    the skill, that game, the one it was seen in, and the row and record of the proposal"""
    for record in read(p.run.path, 'evolution'):
        suite = p.suites[record['suite']]
        if suite not in p.test:
            continue
        bank, seen = p.bank(suite), {t.id: t for t in p.played(suite)}
        retriever = build_retriever(bank, p.config)
        shown_in = [(seen[i], retriever.retrieve(seen[i].task).ids) for i in record['failures']]
        for row in record['proposals']:
            skill = bank.get(row.get('id', ''))
            failures = [t for t, ids in shown_in if skill and skill.id in ids]
            sources = [seen[i] for i in row['provenance'].get('trajectories', ()) if i in seen]
            if row['kept'] and skill and skill.status == 'active' and failures and sources:
                yield skill, failures[0], sources[0], row, record

def verdict_of(p, skill, suite):
    "What made `skill` active, the last time that something did"
    rows = [v | dict(round=r['round']) for r in read(p.run.path, 'evolution') if r['suite'] == suite
            for v in r['verdicts'] if v['id'] == skill.id and v['status'] == 'active']
    return {k: rows[-1][k] for k in ('round', 'effect', 'groups')}

ABOUT = 'id', 'category', 'title', 'principle', 'when_to_apply', 'provenance'

def story(p, evaluated, found):
    "One skill from the episode that was lost for want of it to the test tasks it won"
    skill, failure, source, row, record = found
    rows, turned, tests = tests_of(evaluated, skill, record['suite'], p.test[0].tests[-1])
    won_by = min(turned, key=lambda t: (len(t), t.id))
    return dict(suite=record['suite'], round=record['round'], skill={k: getattr(skill, k) for k in ABOUT},
                hypothesis=row['hypothesis'], verdict=verdict_of(p, skill, record['suite']),
                source=whole(failure), seen=episode(source, [sight(source, skill)]), tests=rows,
                episode=whole(won_by), episode_without=whole(tests['after, bank'][won_by.game]))

def follow(folders):
    "The proposal that turned most test tasks which no other condition won, over all runs"
    best, told = 0, None
    for seed, folder in enumerate(folders):
        with RunFolder(folder, None, True, False, _MAKES) as run:
            p, evaluated = Pipeline(run), played(folder)['eval']
            for found in proposed(p):
                turned = tests_of(evaluated, found[0], found[-1]['suite'], p.test[0].tests[-1])[1]
                if len(turned) > best:
                    best, told = len(turned), dict(seed=seed) | story(p, evaluated, found)
    return told

def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--seeds', type=int, default=3)
    p.add_argument('--jobs', type=int, default=2)
    p.add_argument('--runs', metavar='DIR', help='keep the run folders here')
    p.add_argument('--save', metavar='FILE', help='keep what the page shows')
    return p.parse_args()

def result(a, runs):
    with ProcessPoolExecutor(a.jobs, get_context('spawn')) as pool:
        folders = list(pool.map(run, range(a.seeds), [runs/f'{seed}' for seed in range(a.seeds)]))
    seeds = [condense(seed, folder) for seed, folder in enumerate(folders)]
    return dict(seeds=seeds, skill=follow(folders))

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
