"""What a tiny policy reaches on official ALFWorld games, and whether it still reads.

    python benchmarks/real_games.py --real DIR [--seeds 3] [--steps 7000] [--out DIR]

DIR holds one folder for each official split. The shipped base policy, which has met no official game, goes on
to learn from `train` (or `valid_train`) only, from the rows of `tools/mixture.py`: half are demonstrations in
generated households, so that it goes on reading notes; the other half are states that it got into itself,
there and in all training games, labelled by the expert.
In half of the rounds the prompts of training games show what the bank distilled from them says.
Every other split is then judged, each game once, 50 steps: freely at temperature 0.4, and greedily through
the admissible commands, without and with the no-repeat guard. Then with 8, 12, 20 and 50 steps: no bank, the
bank, and a bank whose places were exchanged. And in generated households, before any RL: own bank, none,
another's. Saves each seed's policy and bank below `--out`. Prints the targets and exits 1 when one is missed.
"""
import argparse, random, sys, time
from pathlib import Path
from tempfile import mkdtemp
sys.path.insert(0, str(Path(__file__).parents[1]/'tools'))
from mixture import Mixture
from skillrl.builders import build_episodes, rollout_limits
from skillrl.config import SkillRLConfig
from skillrl.envs.alfworld.suites import FolderSuite
from skillrl.envs.alfworld.teacher import alfworld_bank
from skillrl.envs.base import world
from skillrl.evaluate import evaluate
from skillrl.llm.local import Policy
from skillrl.llm.placement import threads
from skillrl.store import data_path
from skillrl.training.phases import collect_games
from skillrl.training.sft import full_sft
from skillrl.trajectory import success_rate

LEARNT = 'collect', 'train', 'val', 'gate', 'report' # Shares of the training games; all are learnt from here
MODES = {'free': {}, 'admissible': {'model.decode': 'admissible'},
         'admissible, no repeat': {'model.decode': 'admissible', 'agent.no_repeat': True}}
STEPS = 8, 12, 20, 50

def training_games(suite):
    return [g for split in LEARNT if suite.files.get(split) for g in suite.games(split, None)]

def bank_of(policy, suite, games, config):
    "What the offline teacher writes after one blind episode of each of `games`"
    episodes = build_episodes(suite, games, None, config)
    return alfworld_bank(evaluate(policy, episodes, temperature=1.))

def exchanged(bank, rng):
    "`bank` with the places of its sentences shuffled"
    new = bank.copy()
    named = [o for o in new.skills() if o.principle.startswith('Look for ')]
    places = [o.principle.partition(' in ')[2] for o in named]
    rng.shuffle(places)
    for o, place in zip(named, places):
        o.principle = f'{o.principle.partition(" in ")[0]} in {place}'
    return new

def learn(seed, suite, games, config, steps):
    "The base policy, trained on `games` while it goes on reading; and its bank"
    policy = Policy.load(data_path('base'))
    bank = bank_of(policy, suite, games, config)
    def practised(number):
        with_bank = number//2 % 2 == 0
        return build_episodes(suite, games, bank if with_bank else None, config)
    full_sft(Mixture(policy, seed, practised), policy, steps, lr=2.5e-3, seed=seed)
    return policy, bank

def play_split(policy, suite, split, bank, config, settings, steps=50):
    "Trajectories of the games of `split`"
    c = config.merged(settings | {'env.max_steps': steps})
    episodes = build_episodes(suite, suite.games(split), bank, c, steps)
    temperature = 0. if settings else .4
    return evaluate(policy, episodes, temperature=temperature, limits=rollout_limits(suite, c))

def read_households(policy):
    "Success in generated households before RL, with own bank, none and another's"
    config = SkillRLConfig().merged({'env.episodes': 24})
    suites = world('alfworld').suites(config.env)[1]
    base, rates = Policy.load(data_path('base')), {}
    banks = [alfworld_bank(collect_games(base, s, config)) for s in suites]
    for what, shift in (('own bank', 0), ('no bank', None), ("another's", 2)):
        episodes = []
        for i, s in enumerate(suites):
            bank = None if shift is None else banks[(i + shift) % len(suites)]
            episodes += build_episodes(s, s.games('test', config.env.test_tasks), bank, config)
        rates[what] = success_rate(evaluate(policy, episodes, seed=1))
    return rates

def one_seed(seed, suite, config, steps, out):
    "Everything that is judged of one seed: pairs of (what, split) and trajectories or a rate"
    begun = time.process_time()
    policy, bank = learn(seed, suite, training_games(suite), config, steps)
    print(f'seed {seed}: {(time.process_time() - begun)/60:.1f} CPU-minutes of training', flush=True)
    policy.save(out/f'seed{seed}')
    bank.save(out/f'seed{seed}-bank.json')
    results = {}
    for split in suite.tests:
        for mode, settings in MODES.items():
            results[mode, split] = play_split(policy, suite, split, None, config, settings)
        shuffled = exchanged(bank, random.Random(seed))
        for n in STEPS:
            for what, shown in (('no bank', None), ('bank', bank), ('shuffled bank', shuffled)):
                results[f'{n} steps, {what}', split] = play_split(policy, suite, split, shown, config, {}, n)
    return results, read_households(policy)

def told(played):
    won = [len(t) for t in played if t.success]
    refused = sum(not step.ok for t in played for step in t.steps)/sum(map(len, played))
    return f'{success_rate(played)}, {sum(won)/max(1, len(won)):.1f} steps a win, {refused:.3f} refused'

def main(real, seeds, steps, out):
    suite, out = FolderSuite(real), Path(out or mkdtemp())
    config = SkillRLConfig().merged({'env.games': real, 'env.max_steps': 50})
    runs, households = [], []
    with threads(1):
        for seed in range(seeds):
            results, rates = one_seed(seed, suite, config, steps, out)
            runs.append(results)
            households.append(rates)
            for (what, split), played in results.items():
                print(f'seed {seed}: {split}, {what}: {told(played)}', flush=True)
            for what, rate in rates.items():
                print(f'seed {seed}: households before RL, {what}: {rate}', flush=True)
    return met(suite, runs, households, out)

def met(suite, runs, households, out):
    "Print pooled rates and targets; were all met?"
    def pooled(what, split):
        return success_rate([t for run in runs for t in run[what, split]])
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
            none, bank, bad = (pooled(f'{n} steps, {what}', split).mean
                               for what in ('no bank', 'bank', 'shuffled bank'))
            helps = bank > none if n <= 12 else bank >= none - .01
            checks[f'{split}, {n} steps: bank {bank:.3f} against none {none:.3f}'] = helps
            cost = none - bad
            checks[f'{split}, {n} steps: a shuffled bank costs {cost:.3f}, less than .05'] = cost < .05
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
    sys.exit(not main(**vars(p.parse_args())))
