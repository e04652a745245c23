"""What do banks, their evolution and RL add in houses, shops or encyclopedias where nobody has learnt?

    python benchmarks/learning.py [--env alfworld|webshop|search|all] [--seeds 3] [--jobs 2] [--runs DIR]
                                  [--save FILE] [--smoke]

For each seed the default `skillrl train`: it learns in 24 suites, and is judged in 20 that it never saw,
others for each seed, on goals that nobody has practised. Then, on the same games:

- RL without banks: GRPO that never sees a skill, with as many environment steps in the training suites; it
  goes on in the test suites, on goals that may be practised, with as many as collecting and evolution took.
- The grid: three policies (after SFT, RL without banks, RL with banks), each with no bank, another suite's,
  a placebo (`placebo.py`), the first and the evolved one.
- Evolution: the trained policy with the banks as they were after each round.
- Blind: the same policy with banks distilled from free play alone, from half as many environment steps in
  each suite as evolution spent there, as many, and twice as many.
- Change: every test household moves things and takes another way. Banks stay, or evolve again.

Games whose suite wants a step before the decisive one, its way, are reported apart. Intervals are of 95 %, by
suite (`learning_figures.py`). Prints the targets, which are those of households, and exits 1 when one is
missed. DIR keeps `ENV/SEED` for each run and a file for each arm that is done, so what was stopped goes on
there. `--save FILE` keeps what the pages draw, with commit and versions and without times; of several worlds
the first is in FILE, and others beside it in FILE with their name. `--smoke` plays few and short episodes.
"""
import argparse, json, platform, resource, shutil, subprocess, sys, time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from itertools import accumulate, count, product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from learning_figures import (
    ALSO_IN_TEST, BANKS, BLIND_BANK, CHANGED, NO_BANK, POLICIES, cell, print_result, rate)
from placebo import has_way, placebos
from skillrl.core.config import SkillRLConfig
from skillrl.core.runfolder import RunFolder
from skillrl.core.store import JsonlLog, atomic_write, read_json
from skillrl.core.tables import row_name
from skillrl.envs.base import world
from skillrl.skills.bank import versions
from skillrl.skills.distillation import distill
from skillrl.training.builders import (
    build_episodes, build_local_policy, build_policy, build_teacher, derive_seed, play_episodes)
from skillrl.training.evaluate import TEST_TEMPERATURE
from skillrl.training.phases import demonstrations, fine_tune, play_trials, rl_iterations
from skillrl.training.pipeline import _MAKES, Pipeline, _bank_shown, conditions, train

WORLDS = 'alfworld', 'webshop', 'search'
SMOKE = {'env.train_suites': 2, 'env.test_suites': 3, 'env.episodes': 4, 'env.test_tasks': 4, 'sft.games': 4,
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

# What was played: name of a suite → its games in order, 1 for one that was won

def as_won(pairs):
    "`pairs` of a suite's name and whether a game of it was won"
    out = defaultdict(str)
    for name, success in pairs:
        out[name] += str(int(success))
    return dict(out)

def split_of(p):
    "The split of goals that nobody has practised"
    return p.test[0].tests[-1]

def test_games(p, suite):
    return suite.games(split_of(p), p.config.env.test_tasks)

def play_tests(p, policy, banks):
    "The test games, each suite with its own of `banks`, as evaluation in a run plays them"
    episodes = [episode for suite in p.test
                for episode in build_episodes(suite, test_games(p, suite), banks.get(suite.name), p.config)]
    names = [suite.name for suite in p.test for _ in test_games(p, suite)]
    played = play_episodes(policy, episodes, p.test[0], p.config, derive_seed(p.config.seed, 'eval'),
                           temperature=TEST_TEMPERATURE)
    return as_won(zip(names, [t.success for t in played], strict=True))

def point(p, policy, banks, spent):
    "A point of a curve: success with `banks`, which took `spent` environment steps in each test suite"
    won = play_tests(p, policy, banks)
    return dict(steps=sum(spent.values()), success=rate(won), spent=dict(spent), test=won)

def banks_now(p):
    return {suite.name: p.bank(suite) for suite in p.test}

# The run

def read_run(folder):
    "What the run in `folder` won in each condition and split, and its environment steps by phase and suite"
    won, spent = defaultdict(list), defaultdict(lambda: defaultdict(int))
    for d in JsonlLog(folder/'trajectories.jsonl').read():
        about = d['metadata']
        if about['phase'] == 'eval':
            won[row_name(about['condition'], about['split'])].append((about['suite'], d['success']))
        else:
            spent[about['phase']][about['suite']] += len(d['steps'])
    return dict(test={name: as_won(pairs) for name, pairs in won.items()}, spent=spent)

def curve(log, before=0):
    "Environment steps at the end of each iteration, those spent `before` included, and its success"
    steps = accumulate((m['steps'] for m in log), initial=before)
    return dict(steps=list(steps)[1:], success=[round(m['success'], 4) for m in log])

def play_run(folder, config):
    "The run of one seed, which goes on where it was stopped; what it cost if it was not"
    def step(phase, done, total):
        if done == total or done % 10 == 0:
            print(f'{folder.parent.name} seed {folder.name}: {phase} {done} of {total}', flush=True)
    resumed, begun = folder.exists(), time.process_time()
    if not (folder/'report.md').exists():
        train(config, folder, resumed, step)
    cost = dict(seconds=time.process_time() - begun,
                gigabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/2**20)
    found = read_run(folder)
    log = [m for m in JsonlLog(folder/'metrics.jsonl').read() if m['phase'] == 'rl']
    collected = total(found, 'collect', 'train')
    return found | dict(curve=curve(log, collected), cost=None if resumed else cost)

def total(run, phase, half):
    "Environment steps of a phase in the suites of one half, `train` or `test`"
    return sum(n for name, n in run['spent'].get(phase, {}).items() if name.startswith(half))

def spent_in_test(p, run, *phases):
    return {suite.name: sum(run['spent'][phase][suite.name] for phase in phases) for suite in p.test}

# RL without banks

def cold_start(p):
    rows = [row for suite in p.train for row in demonstrations(suite, None, p.config)]
    return fine_tune(rows, p.config)[0]

def steps_of(log):
    return sum(m['steps'] for m in log)

def grpo(config, policy, suites, budget):
    "GRPO without banks until `budget` environment steps are used; what each iteration logs"
    from skillrl.training.rl import GRPOTrainer
    played, log = defaultdict(list), []
    most = config.rl.tasks_per_iteration*config.rl.group_size*config.env.max_steps # Steps at once
    config = config.merged({'rl.iterations': -(-budget//most)}) # As its learning rate falls
    iterations = rl_iterations(GRPOTrainer(policy, config.rl), suites, lambda suite: None, config, count(),
                               lambda suite: played[suite.name])
    while steps_of(log) < budget:
        it = next(iterations)
        log.append(it.log)
        for suite, t in it.played:
            played[suite.name].append(t)
    return log

def weights_of(folder):
    "Where the policy of RL without banks is kept"
    return folder.parent/f'{folder.name}.without_banks'

def without_banks(p, run):
    "A policy that never saw a skill: as many steps in the training suites, then as many in the test suites"
    policy = cold_start(p)
    log = grpo(p.config, policy, p.train, total(run, 'collect', 'train') + total(run, 'rl', 'train'))
    policy.save(weights_of(p.run.path))
    there = grpo(p.config, policy, p.test, total(run, 'collect', 'test') + total(run, 'evolve', 'test'))
    won = play_tests(p, policy, {})
    return dict(test={row_name(ALSO_IN_TEST, split_of(p)): won}, curve=curve(log),
                steps=dict(train=steps_of(log), test=steps_of(there)))

# The grid

def banks_shown(p, what):
    "Name of a test suite → its bank in one column of the grid"
    if what == 'placebo bank':
        return placebos(p.config.env.name, p.test, banks_now(p))
    return {suite.name: _bank_shown(p, what, i) for i, suite in enumerate(p.test)}

def grid(p, run):
    "The conditions that the run itself did not play, and which of the games want a way"
    policies = {'before': p.policy('before'), 'after': p.policy('after'),
                NO_BANK: build_local_policy(p.config, weights_of(p.run.path))}
    known = {', '.join(condition) for condition in conditions(len(p.test), p.config)}
    found = {row_name(cell(policy, what), split_of(p)): play_tests(p, policies[policy], banks_shown(p, what))
             for policy, what in product(POLICIES, BANKS) if cell(policy, what) not in known}
    ways = as_won((suite.name, has_way(p.config.env.name, suite, game))
                  for suite in p.test for game in test_games(p, suite))
    return dict(test=found, ways=ways, split=split_of(p))

# Banks against environment steps

def evolution(p, run):
    "Success with the banks after each round, and what these took in the test suites"
    names = {suite.name for suite in p.test}
    records = [r for r in p.run.log('evolution').read() if r['suite'] in names]
    rounds = sorted({r['round'] for r in records})
    spent, points = spent_in_test(p, run, 'collect'), []
    last = min(len(versions(p.run.path/'bank'/name)) for name in names)
    for n in (0, *range(2, last)): # Version 1 is the first bank, all on probation
        for record in records:
            if n and record['round'] == rounds[n - 2]:
                spent[record['suite']] += record['steps']
        banks = {suite.name: p.bank(suite, n) for suite in p.test}
        points.append(point(p, p.policy('after'), banks, spent))
    return points

def until(played, budget):
    "The first of `played`, until `budget` environment steps are used"
    before = accumulate(map(len, played), initial=0)
    return [t for t, steps in zip(played, before) if steps < budget]

PLAYED_AT_ONCE = 8 # Episodes in each suite

def free_play(p, played, budgets):
    "`played` in each test suite, and what the base policy plays there until the budget of steps is used"
    base, played = build_policy(p.config), {name: list(some) for name, some in played.items()}
    def unfinished():
        return [suite for suite in p.test if sum(map(len, played[suite.name])) < budgets[suite.name]]
    suites = unfinished()
    while suites:
        episodes, names = [], []
        for suite in suites:
            first = len(played[suite.name])
            games = [suite.game('collect', i) for i in range(first, first + PLAYED_AT_ONCE)]
            episodes += build_episodes(suite, games, None, p.config, p.config.env.collect_steps)
            names += [suite.name]*len(games)
        seed = derive_seed(p.config.seed, 'blind', episodes[0].game.id)
        for name, t in zip(names, play_episodes(base, episodes, suites[0], p.config, seed), strict=True):
            played[name].append(t)
        suites = unfinished()
    return played

def blind_point(p, played, budgets):
    "Success with banks distilled from the first of `played`, until the budget of each suite is used"
    of, teacher = world(p.config.env.name), build_teacher(p.config)
    kept = {name: until(some, budgets[name]) for name, some in played.items()}
    banks = {name: distill(some, teacher, of.categories, of.router) for name, some in kept.items()}
    return point(p, p.policy('after'), banks, {name: sum(map(len, some)) for name, some in kept.items()})

BLIND = .5, 1, 2 # Budgets, as shares of what evolution spent

def blind(p, run):
    "Success with banks from free play alone, which begins with what was collected, for each budget"
    spent = spent_in_test(p, run, 'collect', 'evolve')
    budgets = [{name: share*n for name, n in spent.items()} for share in BLIND]
    played = free_play(p, {suite.name: p.played(suite, 'collect') for suite in p.test}, budgets[-1])
    return [blind_point(p, played, budget) for budget in budgets]

def change(p, run):
    "Every test household has changed: its old bank, no bank, a bank that evolves again, one from free play"
    policy, spent = p.policy('after'), {suite.name: 0 for suite in p.test}
    before = play_tests(p, policy, banks_now(p))
    for suite in p.test:
        suite.house = suite.house.change()
    points = [point(p, policy, banks_now(p), spent)]
    first = 1 + max(record['round'] for record in p.run.log('evolution').read())
    for number in range(first, first + p.config.evolution.test_rounds(p.config.rl.iterations)):
        measured = p.measured()
        seen = play_trials(policy, p.test, banks_now(p), p.config, number, 1, p.played)
        for suite in p.test:
            p.keep(seen[suite.name], phase='evolve', suite=suite.name)
            p.evolve_suite(suite, policy, number, seen[suite.name], measured)
            spent[suite.name] += sum(map(len, seen[suite.name]))
        points.append(point(p, policy, banks_now(p), spent))
    anew = blind_point(p, free_play(p, {name: [] for name in spent}, spent), spent)
    return dict(before=before, points=points, none=play_tests(p, policy, {}), blind=anew)

# Parts, each in a file of its own

ARMS = {'without banks': without_banks, 'grid': grid, 'evolution': evolution, 'blind': blind,
        'change': change}

def arms_of(name):
    return [arm for arm in ARMS if arm != 'change' or name == 'alfworld']

def part_path(folder, arm):
    return folder.parent/f'{folder.name}.{arm.replace(" ", "_")}.json'

@contextmanager
def opened(folder):
    with RunFolder(folder, None, True, False, _MAKES) as run:
        yield Pipeline(run)

@contextmanager
def copied(folder):
    with TemporaryDirectory() as tmp, opened(shutil.copytree(folder, Path(tmp)/'run')) as p:
        yield p

def play_arm(arm, folder, run):
    "What an arm found, for the run in `folder` of which `run` is known; after the change in a copy of it"
    with (copied if arm == 'change' else opened)(folder) as p:
        return ARMS[arm](p, run)

def part(folder, arm, code, play):
    "What `play` finds, unless that is there already"
    kept = part_path(folder, arm)
    if not kept.exists():
        begun = time.process_time()
        found = play()
        atomic_write(kept, json.dumps(dict(made=code, found=found)))
        seconds = time.process_time() - begun
        print(f'{folder.parent.name} seed {folder.name}: {arm} took {seconds:.0f} CPU seconds', flush=True)
    return read_json(kept)['found']

def play_seed(runs, smoke, code, name, seed):
    "A run and its arms, one after the other, for a run folder has one process at a time"
    import torch
    torch.set_num_threads(1)
    folder = Path(runs)/name/str(seed)
    run = part(folder, 'run', code, partial(play_run, folder, config_of(name, seed, smoke)))
    for arm in arms_of(name):
        part(folder, arm, code, partial(play_arm, arm, folder, run))

# What the pages draw

def recovered(points, budget):
    "The last of `points` after at most `budget` steps"
    return [point for point in points if point['steps'] <= budget][-1]

def after_change(found, budget):
    "Condition → what was won before and after the change of houses"
    rows = dict(before=found['before'], none=found['none'], static=found['points'][0]['test'],
                evolving=recovered(found['points'], budget)['test'], blind=found['blind']['test'])
    return {CHANGED[name]: won for name, won in rows.items()}

def seed_row(folder):
    "What one seed won in each condition and arm, and what that took"
    name = folder.parent.name
    run, *found = (read_json(part_path(folder, arm))['found'] for arm in ('run', *arms_of(name)))
    arms = dict(zip(arms_of(name), found))
    bare, cells, changed = (arms.pop(arm, None) for arm in ('without banks', 'grid', 'change'))
    halves = product(run['spent'], ('train', 'test'))
    spent = {f'{phase} {half}': total(run, phase, half) for phase, half in halves}
    more = {BLIND_BANK: arms['blind'][BLIND.index(1)]['test']}
    if changed:
        more |= after_change(changed, spent['collect test'] + spent['evolve test'])
        arms['change'] = changed['points']
    more = {row_name(condition, cells['split']): won for condition, won in more.items()}
    return dict(seed=int(folder.name), test=run['test'] | bare['test'] | cells['test'] | more,
                ways=cells['ways'], split=cells['split'], arms=arms, without=bare['steps'],
                spent={what: n for what, n in spent.items() if n}, steps=sum(spent.values()),
                collected=spent['collect train'],
                curves={'with banks': run['curve'], 'without banks': bare['curve']})

def data_of(folder, seeds):
    "What the pages draw; ValueError if its parts were made by different code"
    kinds = [read_json(path)['made'] for path in sorted(folder.glob('*.json'))]
    if any(kind != kinds[0] for kind in kinds):
        commits = ', '.join(sorted({kind['commit'] for kind in kinds}))
        raise ValueError(f'{folder} was made by {commits}: remove the parts that are not of one commit')
    return dict(made=kinds[0], env=folder.name, seeds=[seed_row(folder/str(seed)) for seed in range(seeds)])

def result(a, runs, name):
    "What was found in one world, kept where the pages find it; were the targets met?"
    folder = Path(runs)/name
    data = data_of(folder, a.seeds)
    if a.save:
        own = Path(a.save) if name == a.env[0] else Path(a.save).with_stem(f'{Path(a.save).stem}_{name}')
        atomic_write(own, json.dumps(data, indent=1) + '\n')
    costs = [read_json(part_path(folder/str(seed), 'run'))['found']['cost'] for seed in range(a.seeds)]
    return print_result(data, list(filter(None, costs)))

def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--env', default='alfworld', choices=(*WORLDS, 'all'))
    p.add_argument('--seeds', type=int, default=3)
    p.add_argument('--jobs', type=int, default=2)
    p.add_argument('--runs', metavar='DIR', help='keep runs and arms here, and go on with what is there')
    p.add_argument('--save', metavar='FILE', help='keep what the pages draw')
    p.add_argument('--smoke', action='store_true', help='few and short episodes; no target counts')
    a = p.parse_args()
    a.env = WORLDS if a.env == 'all' else (a.env,)
    return a

def main(a):
    with TemporaryDirectory() as tmp:
        runs = a.runs or tmp
        todo = list(zip(*product(a.env, range(a.seeds))))
        # A new process for each, for the most memory that it ever held is that of the run
        with ProcessPoolExecutor(a.jobs, get_context('spawn'), max_tasks_per_child=1) as pool:
            list(pool.map(partial(play_seed, runs, a.smoke, made()), *todo))
        met = [result(a, runs, name) for name in a.env]
    return not all(met) and not a.smoke

if __name__=='__main__':
    sys.exit(main(arguments()))
