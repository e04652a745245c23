"""Does a bank help, does it get better by evolution, does GRPO learn to use it, and what does each cost?

    python benchmarks/learning.py [--env alfworld] [--seeds 3] [--jobs 2] [--runs DIR]
                                  [--only main|single|real] [--real DIR] [--save FILE] [--smoke]

Main: the default `skillrl train` for each seed, in any world that makes its own suites. It learns in 24 of
them and is evaluated in 20 that it never saw, others for each seed, on goals that nobody has practised and,
where the world has such, on goals that were practised there. Two arms have no bank. One is GRPO with as many
environment steps in the training suites. The other goes on from there by GRPO in the test suites, on goals
that may be practised, with as many steps there as collecting and evolution took. In ALFWorld also success
against environment steps, with the trained policy: the bank after each round of evolution, and banks from
blind collecting alone.
Single: one fixed household, where weights can learn the conventions too: by GRPO with the bank, and what of
it stays without; by GRPO alone; and by SFT on demonstrations whose skills the
prompt hides. Real: official games, each once, 50 steps.
Prints the targets and exits 1 when one is missed. DIR keeps `ENV/SEED` for each run and a file for each arm
that is done, so what was stopped goes on there. `--save FILE` keeps what the pages draw, with commit and
versions and without times. `--smoke` plays every arm with few and short episodes.
"""
import argparse, json, platform, re, shutil, subprocess, sys, time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from skillrl.training.builders import build_episodes, build_policy, build_teacher, derive_seed, rollout_limits
from skillrl.core.config import SkillRLConfig
from skillrl.envs.base import world
from skillrl.core.tables import row_name
from skillrl.training.evaluate import compare, evaluate
from skillrl.core.runfolder import RunFolder
from skillrl.skills.bank import SkillBank, version_path, versions
from skillrl.skills.distillation import distill
from skillrl.core.stats import clustered_gain, clustered_rate
from skillrl.core.store import JsonlLog, atomic_write, read_json
from skillrl.training.phases import collect_games, demonstrations, draw_groups, fine_tune, play_trials
from skillrl.training.pipeline import _MAKES, Pipeline, train
from skillrl.core.trajectory import Trajectory

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

def grpo(s, policy, banks, budget=None, suites=None):
    "GRPO for `rl.iterations`, or until `budget` environment steps are used; what each iteration logs"
    from skillrl.training.rl import GRPOTrainer
    suites = suites or s.train
    trainer, log = GRPOTrainer(policy, s.config.rl), []
    limits = rollout_limits(suites[0], s.config)
    shown = {suite.name: banks.get(suite.name) for suite in suites}
    def unfinished():
        return len(log) < s.config.rl.iterations if budget is None else steps_of(log) < budget
    while unfinished():
        groups, _ = draw_groups(suites, shown, s.config, len(log))
        log.append(trainer.iterate(groups, derive_seed(s.config.seed, 'rl', len(log)), limits=limits))
    return log

def headline(test):
    "The split of goals that nobody has practised"
    return test[0].tests[-1]

def play_tests(s, policy, banks):
    "Trajectories of the test games that nobody has practised, each suite with its own bank"
    episodes, homes = [], []
    for suite in s.test:
        games = suite.games(headline(s.test), s.config.env.test_tasks)
        episodes += build_episodes(suite, games, banks.get(suite.name), s.config)
        homes += [suite.name]*len(games)
    played = evaluate(policy, episodes, seed=derive_seed(s.config.seed, 'judge'))
    for t, name in zip(played, homes):
        t.metadata['suite'] = name
    return played

def by_suite(played):
    "Name of a suite → its games in order, 1 for one that was won"
    out = {}
    for t in played:
        name = t.metadata['suite']
        out[name] = out.get(name, '') + str(int(t.success))
    return out

def rate(played):
    return sum(t.success for t in played)/len(played)

SMOKE = {'env.train_suites': 2, 'env.test_suites': 3, 'env.episodes': 4, 'env.test_tasks': 2, 'sft.games': 4,
         'sft.steps': 4, 'rl.iterations': 2, 'rl.tasks_per_iteration': 2, 'rl.group_size': 2,
         'evolution.validation_interval': 1}

def config_of(name, seed, smoke):
    return SkillRLConfig().merged({'seed': seed, 'env.name': name} | (SMOKE if smoke else {}))

def made():
    "Of what code and libraries figures come; a commit ends in + where files were changed since"
    def git(*args):
        return subprocess.run(['git', *args], capture_output=True, text=True, check=True,
                              cwd=Path(__file__).parent).stdout.strip()
    changed = git('status', '--porcelain', '--untracked-files=no', '--', '../skillrl', '../benchmarks')
    libraries = {name: version(name) for name in ('torch', 'transformers')}
    return dict(commit=git('rev-parse', '--short', 'HEAD') + '+'*bool(changed),
                python=platform.python_version(), **libraries)

def default_run(config, folder):
    "The run of one seed, which goes on where it was stopped"
    def step(phase, done, total):
        if done == total or done % 10 == 0:
            print(f'{folder.parent.name} seed {folder.name}: {phase} {done} of {total}', flush=True)
    if not (folder/'report.md').exists():
        train(config, folder, folder.exists(), step)
    return dict(steps=sum(spent_on(folder).values()))

def conditions_of(folder):
    "Name of a condition and split → its trajectories"
    out = {}
    for d in JsonlLog(folder/'trajectories.jsonl').read():
        about = d['metadata']
        if about['phase'] == 'eval':
            name = row_name(about['condition'], about['split'])
            out.setdefault(name, []).append(Trajectory.from_dict(d))
    return out

def spent_on(folder):
    "Environment steps by phase and half of the suites, such as 'collect test'"
    spent = {}
    for d in JsonlLog(folder/'trajectories.jsonl').read():
        about = d['metadata']
        if about['phase'] != 'eval':
            key = f"{about['phase']} {about['suite'].split('-')[0]}"
            spent[key] = spent.get(key, 0) + len(d['steps'])
    return spent

BLIND = 8, 16, 24 # Episodes in each suite, where nothing else adds to a bank

def blind_points(s, policy, folder):
    "Success on new goals with banks from blind collecting alone, and what these cost in the test suites"
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
    "Success on new goals with the banks after each round, and what these cost in the test suites"
    records = JsonlLog(folder/'evolution.jsonl').read()
    names = {suite.name for suite in s.test}
    steps, points = s.collected, []
    last = min(len(versions(folder/'bank'/name)) for name in names)
    rounds = sorted({r['round'] for r in records if r['suite'] in names})
    for n in (0, *range(2, last)): # Version 1 is the first bank, all on probation
        if n:
            steps += sum(r['steps'] for r in records if r['suite'] in names and r['round'] == rounds[n - 2])
        banks = {name: SkillBank.load(version_path(folder/'bank'/name, n)) for name in names}
        points.append(dict(steps=steps, success=rate(play_tests(s, policy, banks))))
    return points

def anew(s, policy, steps):
    "Success on new goals with banks from blind collecting alone, in at most so many steps of all suites"
    banks, base = {}, build_policy(s.config)
    for suite in s.test:
        played = collect_games(base, suite, s.config.merged({'env.episodes': 40}))
        left = steps/len(s.test)
        kept = [t for t, spent in zip(played, accumulate(map(len, played))) if spent <= left]
        banks[suite.name] = distilled(s.config, kept)
    return rate(play_tests(s, policy, banks))

def change_points(s, policy, folder):
    "Success on new goals when every test household has changed: old banks, banks that go on evolving, new ones"
    with TemporaryDirectory() as tmp:
        copy = shutil.copytree(folder, Path(tmp)/'run')
        with RunFolder(copy, None, True, False, _MAKES) as run:
            return points_after_change(s, policy, Pipeline(run))

ROUNDS = 6 # After the change, as many as before

def points_after_change(s, policy, p):
    "What `change_points` says, for the pipeline `p` in a copy of the run"
    before = rate(play_tests(s, policy, {suite.name: p.bank(suite) for suite in p.test}))
    for suite in p.test:
        suite.house = suite.house.change()
    s.test = p.test
    def now():
        return rate(play_tests(s, policy, {suite.name: p.bank(suite) for suite in p.test}))
    steps, points = 0, [dict(steps=0, success=now())]
    first = 1 + max(record['round'] for record in p.run.log('evolution').read())
    for number in range(first, first + ROUNDS):
        banks, measured = {suite.name: p.bank(suite) for suite in p.test}, p.measured()
        seen = play_trials(policy, p.test, banks, p.config, number, 1, p.played)
        for suite in p.test:
            p.keep(seen[suite.name], phase='evolve', suite=suite.name)
            p.evolve_suite(suite, policy, number, seen[suite.name], measured)
        steps += sum(len(t) for played in seen.values() for t in played)
        points.append(dict(steps=steps, success=now()))
    nobody = rate(play_tests(s, policy, {}))
    return dict(before=before, evolving=points, static=points[0]['success'], none=nobody,
                anew=anew(s, policy, steps))

NO_BANK, ALSO_IN_TEST = 'GRPO without skills', 'GRPO without skills, also in the test suites'

def no_bank(s, policy, folder):
    "Two policies without skills: as many steps in the training suites, then as many in the test suites"
    spent = spent_on(folder)
    plain, split = cold_start(s, {}), headline(s.test)
    log = grpo(s, plain, {}, budget=spent['collect train'] + spent['rl train'])
    test = {row_name(NO_BANK, split): by_suite(play_tests(s, plain, {}))}
    there = grpo(s, plain, {}, budget=spent['collect test'] + spent['evolve test'], suites=s.test)
    test[row_name(ALSO_IN_TEST, split)] = by_suite(play_tests(s, plain, {}))
    return dict(test=test, curve=curve(log), steps=dict(train=steps_of(log), test=steps_of(there)))

ARMS = {'no bank': no_bank, 'evolution': evolution_points, 'blind': blind_points, 'change': change_points}

def arms_of(name):
    return list(ARMS) if name == 'alfworld' else ['no bank']

def play_arm(arm, folder):
    "What an arm found with the trained policy of a run"
    with RunFolder(folder, None, True, False, _MAKES) as run:
        p = Pipeline(run)
        s = Setting(p.config, p.train, p.test, {}, spent_on(folder)['collect test'])
        return ARMS[arm](s, p.policy('after'), folder)

def play_seed(runs, name, smoke, code, seed):
    "A run and its arms, one after the other, for a run folder has one process at a time"
    import torch
    torch.set_num_threads(1)
    for arm in ('run', *arms_of(name)):
        part(Path(runs)/name/str(seed), arm, config_of(name, seed, smoke), code)

def part(folder, arm, config, code):
    "One run or one arm of it, unless it is there already"
    kept = folder.parent/f'{folder.name}.{arm.replace(" ", "_")}.json'
    if kept.exists():
        return
    begun = time.process_time()
    found = default_run(config, folder) if arm == 'run' else play_arm(arm, folder)
    seconds = time.process_time() - begun
    atomic_write(kept, json.dumps(dict(made=code, seconds=seconds, found=found)))
    print(f'{folder.parent.name} seed {folder.name}: {arm} took {seconds:.0f} CPU seconds', flush=True)

def curve(log, before=0):
    "Environment steps at the end of each iteration, those spent `before` included, and its success"
    steps = accumulate((m['steps'] for m in log), initial=before)
    return dict(steps=list(steps)[1:], success=[round(m['success'], 4) for m in log])

def seed_row(folder):
    "What one seed won in each condition and arm, and what that took"
    arms = {arm: read_json(folder.parent/f'{folder.name}.{arm.replace(" ", "_")}.json')['found']
            for arm in arms_of(folder.parent.name)}
    spent, bare = spent_on(folder), arms.pop('no bank')
    log = [m for m in JsonlLog(folder/'metrics.jsonl').read() if m['phase'] == 'rl']
    test = {name: by_suite(played) for name, played in conditions_of(folder).items()}
    curves = {'with banks': curve(log, spent['collect train']), 'without banks': bare['curve']}
    return dict(seed=int(folder.name), test=test | bare['test'], spent=spent, steps=sum(spent.values()),
                collected=spent['collect train'], without=bare['steps'], curves=curves, arms=arms)

def data_of(folder, seeds):
    "What the pages draw; ValueError if its parts were made by different code"
    kinds = [read_json(path)['made'] for path in sorted(folder.glob('*.json'))]
    if any(kind != kinds[0] for kind in kinds):
        commits = ', '.join(sorted({kind['commit'] for kind in kinds}))
        raise ValueError(f'{folder} was made by {commits}: remove the parts that are not of one commit')
    return dict(made=kinds[0], env=folder.name, seeds=[seed_row(folder/str(seed)) for seed in range(seeds)])

BEFORE_EVOLUTION = 54_800 # Environment steps of a default run that collected 24 episodes in each household

def clusters(rows, name):
    "The games of each suite under a condition, 1 for one that was won"
    return [[int(c) for c in games] for row in rows for games in row['test'][name].values()]

def gains(rows, a, b):
    "Game by game, what `b` wins more than `a`"
    pairs = zip(clusters(rows, a), clusters(rows, b), strict=True)
    return [[y - x for x, y in zip(*pair, strict=True)] for pair in pairs]

def compared(rows):
    "Pairs of conditions on goals that nobody has practised"
    last = ', new' if 'after, bank, new' in rows[0]['test'] else ''
    pairs = [('before, no bank', 'before, bank'), ('after, no bank', 'after, wrong evolved bank'),
             ('before, bank', 'after, bank'), ('after, bank', 'after, evolved bank'),
             (NO_BANK, 'after, evolved bank'), (ALSO_IN_TEST, 'after, evolved bank')]
    return [(a + last, b + last) for a, b in pairs]

def steps_until(points, level):
    "Environment steps at which a curve reaches `level`, between its points; None if it does not"
    for a, b in zip(points, points[1:]):
        if a['success'] < level <= b['success']:
            share = (level - a['success'])/(b['success'] - a['success'])
            return round(a['steps'] + share*(b['steps'] - a['steps']))
    return points[0]['steps'] if points[0]['success'] >= level else None

def print_arms(rows):
    "Success on new goals against the environment steps that banks of the test suites took"
    for row in rows:
        for arm, points in row['arms'].items():
            told = ', '.join(f"{p['steps']}: {p['success']:.2f}" for p in points)
            print(f"seed {row['seed']} {arm:9} {told}; to 0.8: {steps_until(points, .8) or 'not reached'}")

def main_result(data, seconds):
    "Print rates and targets; were all of them met?"
    rows = data['seeds']
    for row in rows:
        print(f"seed {row['seed']}: {row['steps']} steps {row['spent']}, without skills {row['without']}")
    print_arms(rows)
    print(f"\n{data['env']}, {len(rows)} seeds: mean [95 % interval by suite] of games")
    for name in rows[0]['test']:
        print(f'{name}: {clustered_rate(clusters(rows, name))}')
    for a, b in compared(rows):
        print(f'{b} minus {a}: {clustered_gain(gains(rows, a, b))}')
    if data['env'] != 'alfworld':
        return True
    first, evolved = 'after, bank, new', 'after, evolved bank, new'
    added = clustered_gain(gains(rows, first, evolved))
    bare = clustered_rate(clusters(rows, 'after, no bank, new'))
    checks = {'evolution adds 0.15 on goals nobody practised': added.mean >= .15,
              'and its interval is above 0': added.low > 0,
              'the evolved bank reaches 0.88 there': clustered_rate(clusters(rows, evolved)).mean >= .88,
              'no bank stays at 0.35 or below': bare.mean <= .35,
              'no more steps than without evolution': max(row['steps'] for row in rows) <= BEFORE_EVOLUTION,
              'and 300 CPU seconds a run': max(seconds) <= 300}
    for what, ok in checks.items():
        print('ok    ' if ok else 'MISSED', what)
    return all(checks.values())

def play_all(a, runs):
    "All seeds, and what the pages draw; were the targets met?"
    play, seeds = partial(play_seed, runs, a.env, a.smoke, made()), range(a.seeds)
    with ProcessPoolExecutor(a.jobs, get_context('spawn')) as pool:
        list(pool.map(play, seeds))
    folder = Path(runs)/a.env
    data = data_of(folder, a.seeds)
    if a.save:
        atomic_write(Path(a.save), json.dumps(data, indent=1) + '\n')
    return main_result(data, [read_json(folder/f'{seed}.run.json')['seconds'] for seed in seeds])

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
        policy = cold_start(s, banks)
        log = grpo(s, policy, banks)
        out[name] = played(policy, banks.get(house.name)), steps_to(log), s.collected if banks else 0
    out['bank, played without'] = played(policy, None), None, 0
    policy, spent = by_heart(s.config, house)
    out['by heart'] = played(policy, None), None, spent
    return out

def by_heart(config, house):
    "A policy fine-tuned on 96 episodes without their skills, and the environment steps these took"
    more = {'env.episodes': 96, 'sft.games': 96, 'sft.steps': 400,
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
    p.add_argument('--env', default='alfworld', choices=('alfworld', 'webshop', 'search'))
    p.add_argument('--seeds', type=int, default=3)
    p.add_argument('--jobs', type=int, default=2)
    p.add_argument('--runs', metavar='DIR', help='keep runs and arms here, and go on with what is there')
    p.add_argument('--real', metavar='DIR')
    p.add_argument('--policy', metavar='DIR', help='for --real: another policy than the shipped one')
    p.add_argument('--only', choices=('main', 'single', 'real'))
    p.add_argument('--save', metavar='FILE', help='keep the curves and games of the main result')
    p.add_argument('--smoke', action='store_true', help='few and short episodes')
    return p.parse_args()

def main(a):
    ok = True
    if a.only in (None, 'main'):
        with TemporaryDirectory() as tmp:
            ok = play_all(a, a.runs or tmp)
    if a.only == 'single':
        with ProcessPoolExecutor(a.jobs, get_context('spawn')) as pool:
            single_result(list(pool.map(single, range(a.seeds))))
    if a.real:
        real(a.real, a.policy)
    return not ok

if __name__=='__main__':
    sys.exit(main(arguments()))
