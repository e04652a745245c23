"""RL in official ALFWorld games from reward alone: no demonstration of any of them.

    python benchmarks/real_rl.py --real DIR --out DIR [--seeds 3] [--iterations 20] [--test DIR]
                                [--save FILE]

DIR of `--real` holds one folder for each official split. The shipped base policy, which has met no official
game, learns by GRPO in `train` (or `valid_train`), in episodes of 30 steps; what it is told is whether an
episode was won and which commands were refused, which costs the paper's .1. Every iteration is kept below
`--out` with its log, and the command goes on from there: for each iteration what was won, in how many groups
there were both wins and losses, in how many there was no win, and the CPU-minutes so far.
Then every test split of `--test` (that of `--real` if left out) is played by the base and by the policy of
each seed, each game once for each seed, 50 steps, written freely, at three temperatures. Prints what each
won, the paired difference with intervals by game and over seeds, and what is still lost. Exits 1 if the
gain at the temperature of all tests of this library is less than .03, or its interval reaches 0. `--save`
keeps what the page of ALFWorld as a world shows.

`--held-out` leaves the games of the split `gate`, a fifth, out of training, and plays these instead of a
test: so settings are chosen.
"""
import argparse, sys, time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from real_games import LEARNT
from skillrl.core.config import SkillRLConfig
from skillrl.core.stats import clustered_gain
from skillrl.core.store import data_path, JsonlLog, write_json
from skillrl.core.trajectory import rate_of_tries
from skillrl.envs.alfworld.world import FolderSuite
from skillrl.llm.local import Policy
from skillrl.llm.placement import threads
from skillrl.training.builders import build_episodes, play_episodes
from skillrl.training.evaluate import over_seeds, TEST_TEMPERATURE
from skillrl.training.phases import rl_iterations
from skillrl.training.rl import GRPOTrainer

SETTINGS = {'rl.tasks_per_iteration': 32, 'rl.group_size': 8, 'rl.minibatch': 512,
            'rl.invalid_action_penalty': .1, 'rl.kl_coeff': .1, 'env.max_steps': 30,
            'evolution.validation_interval': 0}
STEPS = 50 # Of an episode that counts
TEMPERATURES = 0., TEST_TEMPERATURE, .8 # The last is the best of the base in training games

def open_suite(real, held_out):
    "All training games as the split `train`, without those held out"
    suite = FolderSuite(real)
    shares = [split for split in LEARNT if not (held_out and split == 'gate')]
    suite.splits['train'] = [file for split in shares for file in suite.splits[split]]
    if held_out:
        suite.tests = 'gate',
    return suite

def config_of(real, seed, iterations):
    "The config of one seed's training"
    return SkillRLConfig().merged(SETTINGS | {'seed': seed, 'env.games': real, 'rl.iterations': iterations})

def spread_of(played, size):
    "Of groups of `size`: how many hold wins and losses, and how many no win"
    won = [sum(bool(t.success) for _, t in played[i:i + size]) for i in range(0, len(played), size)]
    return sum(0 < n < size for n in won), won.count(0)

def row_of(it, size, begun):
    "What is kept of an iteration"
    spread, lost = spread_of(it.played, size)
    tries = [[t.game, bool(t.success)] for _, t in it.played]
    return it.log | dict(number=it.number, spread=spread, lost=lost, tries=tries,
                         cpu_minutes=(time.process_time() - begun)/60)

def tell(seed, row, minutes):
    print(f'seed {seed}, iteration {row["number"]}: won {row["success"]:.3f}, wins and losses in '
          f'{row["spread"]} of {row["groups"]} groups, no win in {row["lost"]}, {row["invalid"]:.3f} of '
          f'{row["steps"]} steps refused, {row["rows"]} learnt from, KL {row["kl"]:.3f}, entropy '
          f'{row["entropy"]:.2f}, {minutes:.1f} CPU-minutes', flush=True)

def train(seed, suite, config, folder):
    "Do the iterations that `folder` does not hold yet"
    log = JsonlLog(folder/'log.jsonl')
    rows = log.read()
    tries = [SimpleNamespace(game=game, success=won) for row in rows for game, won in row['tries']]
    trainer = GRPOTrainer(Policy.load(data_path('base')), config.rl)
    if rows:
        trainer.restore(folder/f'{len(rows)}')
    numbers = range(len(rows), config.rl.iterations)
    begun, minutes = time.process_time(), sum(row['cpu_minutes'] for row in rows)
    for it in rl_iterations(trainer, [suite], lambda suite: None, config, numbers, lambda suite: tries):
        row = row_of(it, config.rl.group_size, begun)
        begun, minutes = time.process_time(), minutes + row['cpu_minutes']
        tries += [t for _, t in it.played]
        trainer.save(folder/f'{it.number + 1}')
        log.append([row])
        tell(seed, row, minutes)

def play(policy, suite, split, config, seed, temperature):
    "Every game of `split` once"
    episodes = build_episodes(suite, suite.games(split, None), None, config, STEPS)
    return play_episodes(policy, episodes, suite, config, seed, temperature=temperature)

def gains(before, after):
    "Of lists of trajectories, one for each seed: game → what `after` won more, a number for each seed"
    return {t.game: [bool(a[i].success) - bool(b[i].success) for b, a in zip(before, after)]
            for i, t in enumerate(before[0])}

def told(played):
    every = [t for ts in played for t in ts]
    wins = [len(t) for t in every if t.success]
    refused = [not step.ok for t in every for step in t.steps]
    return (f'{rate_of_tries(every)} ({len(wins)} of {len(every)}), {sum(wins)/len(wins):.1f} steps a win, '
            f'{sum(refused)/len(refused):.3f} refused')

def gained(what, before, after):
    "Print what was won, and return what of it is kept"
    by_game = gains(before, after)
    gain = clustered_gain(by_game.values())
    seeds = over_seeds([sum(values)/len(values) for values in zip(*by_game.values())])
    print(f'\n{what}\n  base: {told(before)}\n  after RL: {told(after)}')
    print(f'  gain {gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}] by game, over {seeds.n} seeds '
          f'[{seeds.low:+.3f}, {seeds.high:+.3f}]')
    for name, played in (('base', before), ('after RL', after)):
        lost = [t for ts in played for t in ts if not t.success]
        print(f'  {name} loses {dict(Counter(t.category for t in lost))}')
    always = [t.task for i, t in enumerate(after[0]) if not any(ts[i].success for ts in after)]
    print(f'  lost by every seed after RL: {always}', flush=True)
    rates = {name: vars(rate_of_tries([t for ts in played for t in ts]))
             for name, played in (('before', before), ('after', after))}
    return rates | dict(gain=vars(gain))

def main(a):
    suite = open_suite(a.real, a.held_out)
    ok, configs = True, [config_of(a.real, seed, a.iterations) for seed in range(a.seeds)]
    folders = [Path(a.out)/f'seed{seed}' for seed in range(a.seeds)]
    for seed, (config, folder) in enumerate(zip(configs, folders)):
        with threads(1):
            train(seed, suite, config, folder)
    base = Policy.load(data_path('base'))
    learnt = [Policy.load(folder/f'{a.iterations}') for folder in folders]
    played = FolderSuite(a.test) if a.test else suite
    kept = []
    for split in played.tests:
        for temperature in TEMPERATURES:
            before, after = ([play(policy, played, split, config, seed, temperature)
                              for seed, (policy, config) in enumerate(zip(policies, configs))]
                             for policies in ([base]*a.seeds, learnt))
            row = gained(f'{split}, temperature {temperature}', before, after)
            kept.append(row | dict(split=split, temperature=temperature))
            met = row['gain']['mean'] >= .03 and row['gain']['low'] > 0
            ok = ok and (met or temperature != TEST_TEMPERATURE)
    if a.save:
        write_json(a.save, dict(seeds=a.seeds, iterations=a.iterations, settings=SETTINGS, played=kept))
    print(f'policies: {", ".join(str(folder/str(a.iterations)) for folder in folders)}')
    return ok

if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--real', required=True, help='folder with one folder for each official split')
    p.add_argument('--out', required=True, help='where policies and logs go, and from which it goes on')
    p.add_argument('--seeds', type=int, default=3)
    p.add_argument('--iterations', type=int, default=20)
    p.add_argument('--save', help='a JSON file')
    p.add_argument('--test', help='folder whose test splits are played, if not that of --real')
    p.add_argument('--held-out', action='store_true', help='leave a fifth of the training games for judging')
    sys.exit(not main(p.parse_args()))
