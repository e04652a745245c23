"""What a tiny policy reaches on official ALFWorld games, and whether it still reads.

    python benchmarks/real_games.py --real DIR [--seeds 3] [--steps 7000] [--out DIR]
        [--save FILE]

DIR holds one folder for each official split. The shipped base policy, which has met no official game, goes on
to learn from `train` (or `valid_train`) only, from the rows of `tools/mixture.py`: half are demonstrations in
generated households, so that it goes on reading notes; the other half are states that it got into itself,
there and in all training games, labelled by the expert.
In half of the rounds the prompts of training games show what the bank distilled from them says.
Every other split is then judged, each game once, 50 steps: freely at temperature 0.8, and greedily through
the admissible commands, without and with the no-repeat guard. Then with 8, 12, 20 and 50 steps: no bank, the
bank, and a bank whose places were exchanged; and the two banks after trials in training games, through which
a default run sends every sentence before it is shown. What places could be worth at all is counted first:
steps to the first thing of a goal, by the expert's guess, by the true rates of the training games, and when
one knows. And in generated households, before any RL: own bank, none, another's.
Saves each seed's policy and bank below `--out`, and with `--save` what was won, for the page of the world.
Prints the targets and exits 1 when one is missed.
"""
from copy import deepcopy
import argparse, random, sys, time
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp
sys.path.insert(0, str(Path(__file__).parents[1]/'tools'))
from mixture import Mixture
from skillrl.training.builders import build_episodes, play_episodes, rollout_limits
from skillrl.core.config import SkillRLConfig
from skillrl.envs.alfworld.households import likelihood
from skillrl.envs.alfworld.memory import kind, read_goal
from skillrl.envs.alfworld.scene import ROUTER
from skillrl.envs.alfworld.world import FolderSuite
from skillrl.envs.alfworld.teacher import AlfworldTeacher
from skillrl.skills.distillation import distill
from skillrl.envs.base import world
from skillrl.training.evaluate import evaluate
from skillrl.llm.local import Policy
from skillrl.llm.placement import threads
from skillrl.skills.trials import put_on_probation, settle_trials, with_counts
from skillrl.core.store import data_path, write_json
from skillrl.training.phases import collect_games, _Trials, trial_trajectory
from skillrl.training.sft import FullOptions, full_sft
from skillrl.core.trajectory import rate_of_tries, success_rate

LEARNT = 'collect', 'train', 'val', 'gate', 'report' # Shares of the training games; all are learnt from here
MODES = {'free': {}, 'admissible': {'agent.decode': 'admissible'},
         'admissible, no repeat': {'agent.decode': 'no_repeat'}}
STEPS = 8, 12, 20, 50
BANKS = 'no bank', 'bank', 'shuffled bank', 'bank after trials', 'shuffled bank after trials'
TRUST = .9 # Share of notes that are believed
TRIAL_ROUNDS = 4 # Each plays every training game twice
TEMPERATURE = .8 # Of free play; of 0, .2, ... 1 the best in training games: .99 of 600, .96 at 0

def training_games(suite):
    return [g for split in LEARNT if suite.splits.get(split) for g in suite.games(split, None)]

def bank_of(policy, suite, games, config):
    "What the offline teacher writes after one blind episode of each of `games`"
    episodes = build_episodes(suite, games, None, config)
    return distill(evaluate(policy, episodes, temperature=1.), AlfworldTeacher())

def exchanged(bank, rng):
    "`bank` with the places of its sentences shuffled"
    new = deepcopy(bank)
    named = [o for o in new.items() if getattr(o, 'principle', '').startswith('Look for ')]
    places = [o.principle.partition(' in ')[2] for o in named]
    rng.shuffle(places)
    for o, place in zip(named, places):
        o.principle = f'{o.principle.partition(" in ")[0]} in {place}'
    return new

def after_trials(bank, policy, suite, games, config):
    "`bank` with what paired tries in `games` say of its entries: only what helped is active"
    config = config.merged({'env.max_steps': 12})
    bank = put_on_probation(bank)
    for number in range(TRIAL_ROUNDS):
        trials = _Trials(suite, bank, config)
        groups = [trials.group(g, 2, f'{number}.{k}') for k, g in enumerate(games)]
        episodes = [e for group in groups for e in group]
        play_episodes(policy, episodes, suite, config, number)
        bank = with_counts(bank, map(trial_trajectory, episodes))
        bank, _ = settle_trials(bank, router=ROUTER)
    return bank

def contents(game):
    "Receptacle of `game` to the types of things in it, and the steps to look into it"
    scene = game.scene
    held = zip(scene.receptacles, scene.contents)
    return {r.name: ({kind(scene.things[o].name) for o in things}, 1 + r.openable) for r, things in held}

def place_rates(games):
    "Function of thing and receptacle: share of such receptacles that held one, in games that have one"
    seen, looked = Counter(), Counter()
    for houses in map(contents, games):
        for thing in set().union(*(things for things, _ in houses.values())):
            for r, (things, _) in houses.items():
                looked[thing, kind(r)] += 1
                seen[thing, kind(r)] += thing in things
    return lambda thing, r: seen[thing, kind(r)]/max(1, looked[thing, kind(r)])

def search_steps(games, guess):
    "Mean steps to the first thing of a goal for one who looks where `guess` is best for the steps it takes"
    rng, steps = random.Random(0), []
    for game in games:
        houses = contents(game)
        category, thing, target = read_goal(game.task)
        order = rng.sample(sorted(houses), len(houses))
        order.sort(key=lambda r: -guess(game, thing, r)/houses[r][1])
        there = [r for r in order if category != 'look' and kind(r) == target] # Nothing to fetch from it
        hits = [i for i, r in enumerate(order) if thing in houses[r][0] and r not in there]
        if hits: # Else it lies in another thing
            steps.append(sum(houses[r][1] for r in order[:hits[0] + 1]))
    return sum(steps)/len(steps)

def worth_of_places(suite, games):
    "Split to the steps to the first thing of a goal, by what the searcher goes by"
    rates = place_rates(games)
    guesses = {"by the expert's guess": lambda game, thing, r: likelihood(kind(r), thing),
               'by the true rates of the training games': lambda game, thing, r: rates(thing, r),
               'when one knows': lambda game, thing, r: float(thing in contents(game)[r][0])}
    return {split: {what: search_steps(suite.games(split), guess) for what, guess in guesses.items()}
            for split in suite.tests}

def learn(seed, suite, games, config, steps):
    "The base policy, trained on `games` while it goes on reading; and its bank"
    policy = Policy.load(data_path('base'))
    bank = bank_of(policy, suite, games, config)
    def practised(number):
        with_bank = number//2 % 2 == 0
        return build_episodes(suite, games, bank if with_bank else None, config)
    full_sft(Mixture(policy, seed, practised, TRUST), policy, FullOptions(steps, lr=2.5e-3, seed=seed))
    return policy, bank

def play_split(policy, suite, split, bank, config, settings, steps=50):
    "Trajectories of the games of `split`"
    c = config.merged(settings | {'env.max_steps': steps})
    episodes = build_episodes(suite, suite.games(split), bank, c, steps)
    temperature = 0. if settings else TEMPERATURE
    return evaluate(policy, episodes, temperature=temperature, limits=rollout_limits(suite, c))

def read_households(policy):
    "Success in generated households before RL, with own bank, none and another's"
    config = SkillRLConfig().merged({'env.episodes': 24})
    suites = world('alfworld').suites(config.env)[1]
    base, rates = Policy.load(data_path('base')), {}
    banks = [distill(collect_games(base, s, config), AlfworldTeacher()) for s in suites]
    for what, shift in (('own bank', 0), ('no bank', None), ("another's", 2)):
        episodes = []
        for i, s in enumerate(suites):
            bank = None if shift is None else banks[(i + shift) % len(suites)]
            episodes += build_episodes(s, s.games('test', config.env.test_tasks), bank, config)
        rates[what] = success_rate(evaluate(policy, episodes, seed=1))
    return rates

def one_seed(seed, suite, config, steps, out):
    "Everything that is judged of one seed: pairs of (what, split) and trajectories or a rate"
    begun, games = time.process_time(), training_games(suite)
    policy, bank = learn(seed, suite, games, config, steps)
    print(f'seed {seed}: {(time.process_time() - begun)/60:.1f} CPU-minutes of training', flush=True)
    policy.save(out/f'seed{seed}')
    bank.save(out/f'seed{seed}-bank.json')
    tell_temperatures(seed, policy, suite, games, config)
    shuffled = exchanged(bank, random.Random(seed))
    tried = [after_trials(b, policy, suite, games, config) for b in (bank, shuffled)]
    active, own, of_shuffled = (len(b.items('active')) for b in (bank, *tried))
    print(f'seed {seed}: of {active} entries {own} are active after trials, '
          f'of the shuffled bank {of_shuffled}', flush=True)
    shown = dict(zip(BANKS, (None, bank, shuffled, *tried)))
    results = {}
    for split in suite.tests:
        for mode, settings in MODES.items():
            results[mode, split] = play_split(policy, suite, split, None, config, settings)
        for n in STEPS:
            for what, b in shown.items():
                results[f'{n} steps, {what}', split] = play_split(policy, suite, split, b, config, {}, n)
    return results, read_households(policy)

def tell_temperatures(seed, policy, suite, games, config):
    "Print success in training games, from which `TEMPERATURE` was chosen"
    for temperature in (0., .2, .4, .6, .8, 1.):
        episodes = build_episodes(suite, games, None, config, 50)
        played = evaluate(policy, episodes, temperature=temperature, limits=rollout_limits(suite, config))
        print(f'seed {seed}: training games at temperature {temperature}: {told(played)}', flush=True)

def counts(played):
    "What was won of `played`, and how"
    won = [len(t) for t in played if t.success]
    steps = [step.ok for t in played for step in t.steps]
    return dict(won=len(won), n=len(played), steps_a_win=sum(won)/max(1, len(won)),
                refused=1 - sum(steps)/len(steps))

def told(played):
    c = counts(played)
    return f'{success_rate(played)}, {c["steps_a_win"]:.1f} steps a win, {c["refused"]:.3f} refused'

def write(file, worth, runs, households):
    "Keep in `file` what was counted"
    def played(run):
        return [dict(what=what, split=split) | counts(trajs) for (what, split), trajs in run.items()]
    rows = [dict(played=played(run), households={what: rate.mean for what, rate in rates.items()})
            for run, rates in zip(runs, households)]
    write_json(file, dict(steps_to_the_thing=worth, seeds=rows))

def main(real, seeds, steps, out, save):
    suite, out = FolderSuite(real), Path(out or mkdtemp())
    config = SkillRLConfig().merged({'env.games': real, 'env.max_steps': 50})
    runs, households = [], []
    worth = worth_of_places(suite, training_games(suite))
    for split, by in worth.items():
        words = [f'{what} {n:.2f}' for what, n in by.items()]
        print(f'{split}, steps to the first thing of a goal: {", ".join(words)}', flush=True)
    with threads(1):
        for seed in range(seeds):
            results, rates = one_seed(seed, suite, config, steps, out)
            runs.append(results)
            households.append(rates)
            for (what, split), played in results.items():
                print(f'seed {seed}: {split}, {what}: {told(played)}', flush=True)
            for what, rate in rates.items():
                print(f'seed {seed}: households before RL, {what}: {rate}', flush=True)
    if save:
        write(save, worth, runs, households)
    return met(suite, runs, households, out)

def met(suite, runs, households, out):
    "Print pooled rates and targets; were all met?"
    def pooled(what, split):
        return rate_of_tries([t for run in runs for t in run[what, split]])
    own = sum(rates['own bank'].mean for rates in households)/len(households)
    checks = {f'own bank in households before RL {own:.3f}, at least .80': own >= .8}
    for split in suite.tests:
        print(f'\n{split}, {len(runs)} seeds')
        for what in dict.fromkeys(what for what, where in runs[0] if where == split):
            print(f'  {what}: {pooled(what, split)}')
        least = .94 if 'unseen' in split else .96
        free, guarded = (pooled(mode, split).mean for mode in ('free', 'admissible, no repeat'))
        checks[f'{split}: free {free:.3f}, at least {least}'] = free >= least
        checks[f'{split}: admissible without repeats {guarded:.3f}, at least .99'] = guarded >= .99
        for n in STEPS:
            none, _, _, bank, bad = (pooled(f'{n} steps, {what}', split).mean for what in BANKS)
            helps = bank > none if n <= 12 else bank >= none - .01
            checks[f'{split}, {n} steps: bank after trials {bank:.3f} against none {none:.3f}'] = helps
            told = f'{split}, {n} steps: a shuffled bank costs {none - bad:.3f} after trials, less than .05'
            checks[told] = none - bad < .05
    for what, ok in checks.items():
        print('ok    ' if ok else 'MISSED', what)
    print(f'policies and banks: {out}')
    return all(checks.values())

if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--real', required=True, help='folder with one folder for each official split')
    p.add_argument('--seeds', type=int, default=3)
    p.add_argument('--steps', type=int, default=7000, help='updates of one seed')
    p.add_argument('--out', help='where the policies go; a temporary folder if left out')
    p.add_argument('--save', help='JSON file for what was won')
    sys.exit(not main(**vars(p.parse_args())))
