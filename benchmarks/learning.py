"""Does a bank help, does it get better by evolution, does GRPO learn to use it, and what does each cost?

    python benchmarks/learning.py [--seeds 3] [--jobs 2] [--runs DIR] [--only main|single|real] [--real DIR]
                                  [--save FILE]

Main: the default `skillrl train` for each seed. It learns in 24 households and is evaluated in 20 it never
saw, on goals that were practised there and, in the headline, on goals that nobody has practised. Then
success against environment steps, always with the trained policy: the bank after each round of evolution,
banks from blind collecting alone, and the first bank as it was. An arm without skills gets the environment
steps of collecting and GRPO. A run that is in DIR already is gone on with.
Single: one fixed household, where weights can learn the conventions too: by GRPO with the bank, and what of
it stays without; by internalising what GRPO won; by GRPO alone; and by SFT on demonstrations whose skills the
prompt hides. Real: official games, each once, 50 steps.
Prints the targets and exits 1 when one is missed. `--save data/learning.json` keeps what the front page
draws: for each seed the success of every iteration, with the environment steps so far, and the test games
each condition won.
"""
import argparse, json, re, sys, time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from skillrl.builders import build_episodes, build_policy, build_teacher, derive_seed, rollout_limits
from skillrl.config import SkillRLConfig
from skillrl.envs.base import world
from skillrl.envs.suite import row_name
from skillrl.evaluate import compare, evaluate, over_seeds, paired_difference
from skillrl.runfolder import RunFolder
from skillrl.skills.bank import load_version, versions
from skillrl.skills.distillation import distill
from skillrl.store import JsonlLog
from skillrl.training.internalise import internalise
from skillrl.training.phases import collect_games, demonstrations, draw_groups, fine_tune
from skillrl.training.pipeline import MAKES, Pipeline, train
from skillrl.trajectory import Trajectory

@dataclass
class Setting:
    "Suites with a bank each, from their own trajectories"
    config: SkillRLConfig
    train: list
    test: list
    banks: dict     # Name of a suite → its bank
    collected: int  # Environment steps that the banks of the training suites took

def distilled(config, played):
    where = world(config.env.name)
    return distill(played, build_teacher(config), where.categories, where.router)

def prepare(config):
    train, test = world(config.env.name).suites(config.env)
    policy, setting = build_policy(config), Setting(config, train, test, {}, 0)
    for suite in train + test:
        played = collect_games(policy, suite, config)
        setting.banks[suite.name] = distilled(config, played)
        if suite in train:
            setting.collected += sum(map(len, played))
    return setting

def cold_start(s, banks):
    rows = [row for suite in s.train for row in demonstrations(suite, banks.get(suite.name), s.config)]
    return fine_tune(rows, s.config)[0]

def steps_of(log):
    return sum(m['steps'] for m in log)

def grpo(s, policy, banks, budget=None, keep=None):
    "GRPO for `rl.iterations`, or until `budget` environment steps are used; what each iteration logs"
    from skillrl.training.rl import GRPOTrainer
    trainer, log = GRPOTrainer(policy, s.config.rl), []
    limits = rollout_limits(s.train[0], s.config)
    shown = {suite.name: banks.get(suite.name) for suite in s.train}
    def unfinished():
        return len(log) < s.config.rl.iterations if budget is None else steps_of(log) < budget
    while unfinished():
        groups, _ = draw_groups(s.train, shown, s.config, len(log))
        log.append(trainer.iterate(groups, derive_seed(s.config.seed, 'rl', len(log)), limits=limits))
        if keep:
            keep([e.trajectory() for group in groups for e in group])
    return log

def play_tests(s, policy, banks, split='new'):
    "Trajectories of the test games of `split`, each household with its own bank"
    episodes = []
    for suite in s.test:
        games = suite.games(split, s.config.env.test_tasks)
        episodes += build_episodes(suite, games, banks.get(suite.name), s.config)
    return evaluate(policy, episodes, seed=derive_seed(s.config.seed, 'judge'))

def default_run(seed, folder):
    "The run of one seed, and the seconds it took; 0 where it was there already"
    begun, resume = time.monotonic(), folder.exists()
    if not (folder/'report.md').exists():
        train(SkillRLConfig().merged({'seed': seed}), folder, resume=resume)
    return 0. if resume else time.monotonic() - begun

def conditions_of(folder):
    "(condition, split) → its trajectories"
    out = {}
    for d in JsonlLog(folder/'trajectories.jsonl').read():
        about = d['metadata']
        if about['phase'] == 'eval':
            out.setdefault((about['condition'], about['split']), []).append(Trajectory.from_dict(d))
    return out

def spent_on(folder):
    "Environment steps by phase and half of the suites, such as ('collect', 'test')"
    spent = {}
    for d in JsonlLog(folder/'trajectories.jsonl').read():
        about = d['metadata']
        if about['phase'] != 'eval':
            key = about['phase'], about['suite'].split('-')[0]
            spent[key] = spent.get(key, 0) + len(d['steps'])
    return spent

BLIND = 8, 16, 24 # Episodes in each household, where nothing else adds to a bank

def blind_points(s, policy):
    "Success on new goals with banks from blind collecting alone, and what these cost in the test households"
    config = s.config.merged({'env.episodes': max(BLIND)})
    base = build_policy(config)
    played = {suite.name: collect_games(base, suite, config) for suite in s.test}
    points = []
    for n in BLIND:
        banks = {name: distilled(config, ts[:n]) for name, ts in played.items()}
        steps = sum(len(t) for ts in played.values() for t in ts[:n])
        points.append(dict(steps=steps, success=rate(play_tests(s, policy, banks))))
    return points

def evolution_points(s, policy, folder):
    "Success on new goals with the banks after each round, and what these cost in the test households"
    records = JsonlLog(folder/'evolution.jsonl').read()
    names = {suite.name for suite in s.test}
    steps, points = s.collected, []
    last = min(len(versions(folder/'bank'/name)) for name in names)
    rounds = sorted({r['round'] for r in records if r['suite'] in names})
    for n in (0, *range(2, last)): # Version 1 is the first bank, all on probation
        if n:
            steps += sum(r['steps'] for r in records if r['suite'] in names and r['round'] == rounds[n - 2])
        banks = {name: load_version(folder/'bank'/name, n) for name in names}
        points.append(dict(steps=steps, success=rate(play_tests(s, policy, banks))))
    return points

def one_seed(seed, runs):
    "Trajectories of every condition, and what they cost"
    import torch
    torch.set_num_threads(1)
    folder = Path(runs)/f'{seed}'
    seconds = default_run(seed, folder)
    out, spent = conditions_of(folder), spent_on(folder)
    log = [m for m in JsonlLog(folder/'metrics.jsonl').read() if m['phase'] == 'rl']
    with RunFolder(folder, None, True, False, MAKES) as run:
        p = Pipeline(run)
        s = Setting(p.config, p.train, p.test, {}, spent['collect', 'test'])
        policy = p.policy('after')
        arms = dict(evolution=evolution_points(s, policy, folder), blind=blind_points(s, policy))
    collected = spent['collect', 'train']
    plain = cold_start(s, {})
    without = grpo(s, plain, {}, budget=collected + steps_of(log))
    out['GRPO without skills', 'new'] = play_tests(s, plain, {})
    curves = {'with banks': curve(log, collected), 'without banks': curve(without)}
    by_phase = {' '.join(k): n for k, n in spent.items()}
    return out, dict(collected=collected, steps=sum(spent.values()), spent=by_phase, seconds=seconds,
                     steps_without=steps_of(without), curves=curves, arms=arms)

def curve(log, before=0):
    "Environment steps at the end of each iteration, those spent `before` included, and its success"
    steps = accumulate((m['steps'] for m in log), initial=before)
    return dict(steps=list(steps)[1:], success=[round(m['success'], 4) for m in log])

def save(path, runs):
    "What the front page draws"
    def won(played):
        return dict(won=sum(t.success for t in played), n=len(played))
    rows = []
    for seed, (out, spent) in enumerate(runs):
        test = {row_name(name, split): won(played) for (name, split), played in out.items()}
        kept = {k: spent[k] for k in ('collected', 'steps', 'curves', 'arms', 'spent')}
        rows.append(dict(seed=seed, test=test) | kept)
    Path(path).write_text(json.dumps(rows, indent=1) + '\n', encoding='utf-8')

BEFORE_EVOLUTION = 54_800 # Environment steps of a default run that collected 24 episodes in each household
EVOLVED, FIRST = ('after, evolved bank', 'new'), ('after, bank', 'new')
COMPARED = [(('before, no bank', 'new'), ('before, bank', 'new')),
            (('after, no bank', 'new'), ('after, wrong bank', 'new')),
            (('before, bank', 'new'), FIRST),
            (FIRST, EVOLVED),
            (('GRPO without skills', 'new'), EVOLVED),
            (('after, bank', 'test'), ('after, evolved bank', 'test'))]

def rate(played):
    return sum(t.success for t in played)/len(played)

def gain(runs, a, b):
    "What condition `b` wins more than `a`, over seeds"
    return over_seeds([rate(out[b]) - rate(out[a]) for out, _ in runs])

def pooled(runs, a, b):
    "The paired difference of `a` and `b` over the games of all seeds"
    def tagged(name):
        return [replace(t, game=f'{i}:{t.game}') for i, (out, _) in enumerate(runs) for t in out[name]]
    return paired_difference(tagged(a), tagged(b))

def steps_until(points, level):
    "Environment steps at which a curve reaches `level`, between its points; None if it does not"
    for a, b in zip(points, points[1:]):
        if a['success'] < level <= b['success']:
            share = (level - a['success'])/(b['success'] - a['success'])
            return round(a['steps'] + share*(b['steps'] - a['steps']))
    return points[0]['steps'] if points[0]['success'] >= level else None

def print_arms(runs):
    "Success on new goals against the environment steps that banks of the test households took"
    print('\nsuccess on new goals against environment steps in the test households')
    for seed, (_, spent) in enumerate(runs):
        for arm, points in spent['arms'].items():
            told = ', '.join(f"{p['steps']}: {p['success']:.2f}" for p in points)
            print(f'seed {seed} {arm:9} {told}; to 0.8: {steps_until(points, .8) or "not reached"}')

def main_result(runs):
    "Print rates and targets; were all of them met?"
    for seed, (out, spent) in enumerate(runs):
        print(f'\nseed {seed}: {spent["steps"]} environment steps {spent["spent"]}, {spent["seconds"]:.0f} s')
        print(compare({row_name(*key): played for key, played in out.items()}))
    print_arms(runs)
    print(f'\nover {len(runs)} seeds: mean [95 % interval] (paired difference over all games)')
    for a, b in COMPARED:
        print(f'{row_name(*b)} minus {row_name(*a)}: {gain(runs, a, b)}  ({pooled(runs, a, b)})')
    final, bare = (over_seeds([rate(out[key]) for out, _ in runs])
                   for key in (EVOLVED, ('after, no bank', 'new')))
    print(f'evolved bank on new goals: {final}, no bank: {bare}')
    evolved, steps = gain(runs, FIRST, EVOLVED), max(spent['steps'] for _, spent in runs)
    checks = {'evolution adds 0.15 on goals nobody practised': evolved.mean >= .15,
              'and its interval is above 0': pooled(runs, FIRST, EVOLVED).low > 0,
              'the evolved bank reaches 0.88 there': final.mean >= .88,
              'no bank stays at 0.35 or below': bare.mean <= .35,
              'no more steps than without evolution': steps <= BEFORE_EVOLUTION,
              'and 300 seconds a run': max(spent['seconds'] for _, spent in runs) <= 300}
    for what, ok in checks.items():
        print('ok    ' if ok else 'MISSED', what)
    return all(checks.values())

def single(seed):
    "One household: GRPO with its bank, GRPO without, and its conventions learned by SFT"
    import torch
    torch.set_num_threads(1)
    one = {'seed': seed, 'env.train_suites': 1, 'env.test_suites': 1, 'rl.iterations': 40}
    s = prepare(SkillRLConfig().merged(one))
    house, = s.train
    def played(policy, bank):
        return evaluate(policy, build_episodes(house, house.games('test', 60), bank, s.config), seed=seed)
    out = {}
    for name, banks in {'no bank': {}, 'bank': s.banks}.items():
        policy, tries = cold_start(s, banks), []
        log = grpo(s, policy, banks, keep=tries.extend)
        out[name] = played(policy, banks.get(house.name)), steps_to(log), s.collected if banks else 0
    out['bank, played without'] = played(policy, None), None, 0
    internalise(policy, tries[-len(tries)//4:], s.config)
    out['bank, internalised, played without'] = played(policy, None), None, 0
    policy, spent = by_heart(s.config, house)
    out['by heart'] = played(policy, None), None, spent
    return out

def by_heart(config, house):
    "A policy fine-tuned on 96 episodes without their skills, and the environment steps these took"
    more = {'env.episodes': 96, 'sft.games': 96, 'sft.trust': 1., 'sft.steps': 400,
            'sft.learning_rate': 1e-3}
    config = config.merged(more)
    played = collect_games(build_policy(config), house, config)
    rows = demonstrations(house, distilled(config, played), config)
    for message in (m for row in rows for m in row['prompt']):
        message['content'] = re.sub(r'^Skill: .*\n', '', message['content'], flags=re.M)
    return fine_tune(rows, config)[0], sum(map(len, played))

def steps_to(log, level=.8, width=3):
    "Environment steps until the moving average of success is `level`, or None"
    for i in range(width, len(log) + 1):
        if sum(m['success'] for m in log[i-width:i])/width >= level:
            return steps_of(log[:i])

def single_result(runs):
    print('\none fixed household, 60 test games; GRPO for 40 iterations')
    for seed, out in enumerate(runs):
        print(f'\nseed {seed}')
        print(compare({name: played for name, (played, *_) in out.items()}))
        for name, (_, reached, extra) in out.items():
            print(f'{name}: {cost(name, reached, extra)}')

def cost(name, reached, extra):
    if name == 'by heart':
        return f'{extra} environment steps for collecting'
    if 'without' in name:
        return 'no environment steps of its own'
    told = f'environment steps to 0.8: {reached or "not reached"}'
    return f'{told} after {extra} for collecting' if name == 'bank' else told

def real(folder, policy=None):
    "Every official test game once, 50 steps"
    settings = {'env.games': folder, 'env.max_steps': 50}
    if policy:
        settings['model.checkpoint'] = policy
    config = SkillRLConfig().merged(settings)
    suite = world(config.env.name).suites(config.env)[1][0]
    played = {}
    for split in suite.tests:
        episodes = build_episodes(suite, suite.games(split), None, config)
        played[split] = evaluate(build_policy(config), episodes)
    print(f'\n{sum(map(len, played.values()))} official games, each once, 50 steps, no bank')
    print(compare({f'{policy or "shipped base policy"}, {split}': trajs for split, trajs in played.items()}))

def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--seeds', type=int, default=3)
    p.add_argument('--jobs', type=int, default=2)
    p.add_argument('--runs', metavar='DIR', help='keep the run folders here')
    p.add_argument('--real', metavar='DIR')
    p.add_argument('--policy', metavar='DIR', help='for --real: another policy than the shipped one')
    p.add_argument('--only', choices=('main', 'single', 'real'))
    p.add_argument('--save', metavar='FILE', help='keep the curves and rates of the main result')
    return p.parse_args()

def main(a):
    ok = True
    with ProcessPoolExecutor(a.jobs, get_context('spawn')) as pool:
        if a.only in (None, 'main'):
            with TemporaryDirectory() as tmp:
                runs = list(pool.map(one_seed, range(a.seeds), [a.runs or tmp]*a.seeds))
            ok = main_result(runs)
            if a.save:
                save(a.save, runs)
        if a.only in (None, 'single'):
            single_result(list(pool.map(single, range(a.seeds))))
    if a.real:
        real(a.real, a.policy)
    return not ok

if __name__=='__main__':
    sys.exit(main(arguments()))
