"""The whole loop for several seeds, condensed to what its page shows

    python benchmarks/loop.py [--seeds 3] [--jobs 2] [--runs DIR] [--save data/loop.json]

Each seed is one default run, the same as `skillrl train --seed N`. A run that is there already, whole or in
part, is gone on with, so the run folders can be kept. What is saved holds no time and no path: the same
seeds give the same file. One skill is followed from the episode that was lost for want of it to the test
tasks it won.
"""
import argparse, json, re, sys
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from skillrl.builders import build_episodes, build_retriever, derive_seed, play_episodes
from skillrl.config import SkillRLConfig
from skillrl.runfolder import RunFolder
from skillrl.skills.bank import load_version
from skillrl.store import JsonlLog, atomic_write
from skillrl.training.phases import round_games
from skillrl.training.pipeline import MAKES, Pipeline, round_config, train
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
    tests = [row[stage] for row in record['proposals'] for stage in ('gate', 'non_inferiority')]
    pairs = [test['n'] for test in tests if test]
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
    return dict(seed=seed, collecting=won(phases['collect']) | dict(steps=collected), test=test,
                rl=curve(folder, collected), rounds=rounds, banks=bank_sizes(folder))

def lines(t):
    "Steps of an episode as pairs of action and answer"
    answers = [step.observation for step in t.steps[1:]] + [t.final_observation]
    return [[step.action, answer] for step, answer in zip(t.steps, answers)]

def episode(t, shown):
    return dict(id=t.id, task=t.task, won=t.success, steps=len(t), lines=shown)

def whole(t):
    return episode(t, lines(t))

def sight(t, skill):
    "The step of an episode whose answer says most of what a skill says"
    words = set(skill.principle.rstrip('.').split())
    return max(lines(t), key=lambda line: len(words & set(re.findall(r'\w+', line[1]))))

def tests_of(evaluated, skill, suite, best):
    "The test tasks of `suite` that show `skill` under the condition `best`: who won them, and the episodes"
    tests = {name: {t.game: t for t in trajs} for name, trajs in by_condition(evaluated).items()}
    shown = [t for t in tests[best].values()
             if t.game.startswith(f'{suite}/') and skill.id in t.steps[0].skills]
    rows = [dict(game=t.game, task=t.task, won={name: ts[t.game].success for name, ts in tests.items()})
            for t in shown]
    turned = [t for t in shown if t.success and not tests['after, no bank'][t.game].success]
    return rows, turned, tests

def validation(p, record):
    "The validation games of an evolution round, played once more as the round played them"
    suite, number = p.suites[record['suite']], record['round']
    config = round_config(p.config)
    bank = p.bank(suite, record['version_before'])
    games = round_games(suite, config, number, p.collected(suite)).validation
    seed = derive_seed(config.seed, 'evolve', number, suite.name)
    played = play_episodes(p.policy('after'), build_episodes(suite, games, bank, config), suite, config, seed)
    if set(record['failures']) - {t.id for t in played if not t.success}:
        raise ValueError(f'{suite.name}: the validation games did not end as they did in the run')
    return {t.id: t for t in played}

def evolved(p, evaluated):
    "Kept proposals of the test suites: (test tasks turned, skill, its row, its record)"
    tested = {s.name for s in p.test}
    for record in read(p.run.path, 'evolution'):
        for row in record['proposals'] if record['suite'] in tested else ():
            if row['kept']:
                skill = p.bank(p.suites[record['suite']]).get(row['id'])
                turned = tests_of(evaluated, skill, record['suite'], 'after, evolved bank')[1]
                yield len(turned), skill, row, record

def story_of_evolved(p, evaluated, skill, row, record):
    suite = p.suites[record['suite']]
    played, retriever = validation(p, record), build_retriever(p.bank(suite), p.config)
    failures = [played[i] for i in record['failures']]
    source = [t for t in failures if skill.id in retriever.retrieve(t.task).ids][0]
    seen_in = played[row['provenance']['trajectories'][0]]
    seen = episode(seen_in, [sight(seen_in, skill)])
    gate = proposal(row)['gate'] | dict(level=row['gate']['interims'][-1]['level'])
    return story(evaluated, skill, suite.name, 'after, evolved bank', whole(source), seen) | dict(
        found='evolution', round=record['round'], hypothesis=row['hypothesis'], gate=gate)

def distilled(p, collected, evaluated):
    "Skills of the test suites' first banks with a lost episode behind them: (tasks turned, skill, suite, it)"
    lost = {t.id: t for t in collected if not t.success}
    for suite in p.test:
        for skill in p.bank(suite, 0).active():
            sources = [lost[i] for i in skill.provenance.get('trajectories', ()) if i in lost]
            asked = [t for t in sources if t.task in skill.source_tasks]
            if asked and 'looked' in skill.provenance:
                turned = tests_of(evaluated, skill, suite.name, 'after, bank')[1]
                yield len(turned), skill, suite.name, min(asked, key=lambda t: (len(t), t.id))

def story_of_distilled(evaluated, skill, suite, source):
    seen = episode(source, [sight(source, skill)])
    return story(evaluated, skill, suite, 'after, bank', whole(source), seen) | dict(found='distillation')

ABOUT = 'id', 'category', 'title', 'principle', 'when_to_apply', 'provenance'

def story(evaluated, skill, suite, best, source, seen):
    "One skill from the episode that was lost for want of it to the test tasks it won"
    rows, turned, tests = tests_of(evaluated, skill, suite, best)
    won_by = min(turned, key=lambda t: (len(t), t.id))
    about = {k: getattr(skill, k) for k in ABOUT}
    return dict(suite=suite, skill=about, source=source, seen=seen, tests=rows, episode=whole(won_by),
                episode_without=whole(tests['after, no bank'][won_by.game]))

def follow(folders):
    "The kept proposal that turned most test tasks; where none was kept, the distilled skill that did"
    stories = []
    for seed, folder in enumerate(folders):
        with RunFolder(folder, None, True, False, MAKES) as run:
            p, phases = Pipeline(run), played(folder)
            for n, *found in evolved(p, phases['eval']):
                stories.append((n, -seed, story_of_evolved(p, phases['eval'], *found) if n else None))
    best = max(stories, key=lambda s: s[:2], default=(0, 0, None))
    if best[0]:
        return dict(seed=-best[1]) | best[2]
    with RunFolder(folders[0], None, True, False, MAKES) as run:
        p, phases = Pipeline(run), played(folders[0])
        ranked = max(distilled(p, phases['collect'], phases['eval']), key=lambda s: (s[0], s[1].id))
        return dict(seed=0) | story_of_distilled(phases['eval'], *ranked[1:])

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
