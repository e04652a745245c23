"""What a language model of 135 M parameters learns from 200 official ALFWorld games, on a CPU.

    python benchmarks/real_model.py --real DIR [--policy smollm2] [--reply action] [--epochs 3]
        [--iterations N] [--games N] [--threads 1] [--out DIR] [--save FILE]

DIR holds one folder for each official split. The expert plays each game of `train` (or `valid_train`) once,
and the model learns with all its weights to write what it wrote, in replies of the form that `--reply`
names: `think+action` or `action`. Every game of the other splits is played once, 50 steps, at temperature
0.4. Ten of these games are also played by the model as it came. With `--iterations`, an adapter then learns
by RL in the training games, 4 games of 4 episodes at a time, and every game is played freely before and
after it. Models and what was judged go below `--out`, and the command goes on from what is there. `--games`
judges the first N games of a split only, for a trial. `--save` adds what is below `--out` to FILE, one entry
for each reply form, with RL and without. Some 100 CPU-minutes of training with 135 M parameters, and 14 GB.
"""
import argparse, random, time
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple
from real_games import training_games
from skillrl.agent.episode import demonstrate
from skillrl.training.builders import build_episodes, rollout_limits
from skillrl.core.config import SkillRLConfig
from skillrl.envs.alfworld.world import FolderSuite
from skillrl.envs.base import world
from skillrl.training.evaluate import evaluate
from skillrl.llm.adapter import load_policy, new_adapter
from skillrl.llm.local import Policy
from skillrl.llm.placement import Placement, threads
from skillrl.llm.models import find_model
from skillrl.core.store import read_json, write_json
from skillrl.training.phases import train_in_suite
from skillrl.training.sft import FullOptions, encode_rows, full_sft
from skillrl.core.trajectory import success_rate

PLACE = Placement('cpu', 'bfloat16') # The weights themselves have 32 bits
BATCH = 8
RATE = 2e-4   # Peak
UNTRAINED = 10 # Games of the model as it came
RL = {'model.adapter': 'lora', 'rl.learning_rate': 1e-4,
      'rl.tasks_per_iteration': 4, 'rl.group_size': 4, 'rl.minibatch': 64,
      'rl.algorithm': 'dapo', 'evolution.validation_interval': 0}

def demonstrated(policy, suite, config, seed):
    "One demonstration of every training game, as rows for `policy`"
    rng, rows = random.Random(seed), []
    for e in build_episodes(suite, training_games(suite), None, config):
        expert = world('alfworld').expert(e.start().task, rng)
        rows += demonstrate(e, expert)[1]
    return encode_rows(rows, policy)

def told(step, loss):
    if step % 20 == 0:
        print(f'update {step}: loss {loss:.4f}, {time.process_time()/60:.0f} CPU-minutes', flush=True)

def fine_tune(base, folder, suite, config, epochs, seed):
    "Train the model in `base` for so many epochs, each with a schedule of its own, from the last in `folder`"
    there = [n for n in range(1, epochs + 1) if (folder/f'epoch{n}').exists()]
    done = max(there, default=0)
    if done >= epochs:
        return
    policy = Policy.load(folder/f'epoch{done}' if done else base, PLACE)
    rows = demonstrated(policy, suite, config, seed)
    for epoch in range(done + 1, epochs + 1):
        losses = full_sft(rows, policy, FullOptions(len(rows)//BATCH, RATE, BATCH, seed + epoch), told)
        write_json(folder/f'losses{epoch}.json', losses)
        policy.save(folder/f'epoch{epoch}')

def train_by_rl(base, folder, suite, config, iterations):
    "Train an adapter beside the model in `base` by RL in training games, kept after each iteration"
    if (folder/f'rl{iterations}').exists():
        return
    config = config.merged(RL | {'rl.iterations': iterations})
    policy = new_adapter(base, config.model.adapter_rank, seed=config.seed, placement=PLACE)
    def keep(done, of):
        policy.save(folder/f'rl{done}')
        print(f'{done} of {of} iterations, {time.process_time()/60:.0f} CPU-minutes', flush=True)
    train_in_suite(policy, suite, None, config, keep)

class Condition(NamedTuple):
    what:str       # Its name
    model:Path     # Folder of a model or an adapter
    games:int|None # Of each split; None for all

def conditions(a, base, folder):
    "What is judged: with RL, the model before and after it"
    trained = Condition('written freely', folder/f'epoch{a.epochs}', a.games)
    if a.iterations:
        return [trained, Condition('written freely after RL', folder/f'rl{a.iterations}', a.games)]
    return [trained, Condition('written freely, untrained', base, UNTRAINED)]

def play(condition, suite, split, config):
    "Trajectories of games of `split`"
    policy = load_policy(condition.model, PLACE)
    episodes = build_episodes(suite, suite.games(split)[:condition.games], None, config, 50)
    return evaluate(policy, episodes, temperature=.4, limits=rollout_limits(suite, config))

def judged(played):
    "What was won of `played`, as it is kept"
    steps = [step.ok for t in played for step in t.steps]
    rate = success_rate(played)
    first = dict(task=played[0].task, replies=[step.reply for step in played[0].steps])
    return dict(won=sum(t.success for t in played), n=len(played), low=rate.low, high=rate.high,
                refused=1 - sum(steps)/len(steps), first=first)

def results_file(a, folder):
    return folder/f'played-{a.epochs}-{a.iterations}.json' # Other epochs are another model

def play_missing(wanted, path, suite, config):
    "Play what the file does not hold yet"
    results = read_json(path) if path.exists() else []
    known = {(r['what'], r['split']) for r in results}
    for split in suite.tests:
        for condition in wanted:
            if (condition.what, split) in known:
                continue
            played = play(condition, suite, split, config)
            results.append(dict(what=condition.what, split=split) | judged(played))
            write_json(path, results)
            print(f'{split}, {condition.what}: {success_rate(played)}, {results[-1]["refused"]:.3f} refused',
                  flush=True)

def save(a, folder):
    "Put what `folder` holds into the file that `--save` names, beside what is there of the other reply form"
    kept = read_json(a.save) if Path(a.save).exists() else {}
    losses = [read_json(folder/f'losses{n}.json') for n in range(1, a.epochs + 1)]
    played = read_json(results_file(a, folder))
    found = dict(policy=Path(a.policy).name, seed=a.seed, losses=losses, played=played)
    name = f'{a.reply}, RL' if a.iterations else a.reply
    if a.iterations:
        found['iterations'] = a.iterations
    write_json(a.save, kept | {name: found})

def main(a):
    suite = FolderSuite(a.real)
    config = SkillRLConfig().merged({'seed': a.seed, 'env.games': a.real, 'env.max_steps': 50,
                                     'agent.reply': a.reply, 'model.checkpoint': find_model(a.policy)})
    folder, base = Path(a.out or mkdtemp())/a.reply, config.model.checkpoint
    with threads(a.threads):
        fine_tune(base, folder, suite, config, a.epochs, a.seed)
        if a.iterations:
            train_by_rl(folder/f'epoch{a.epochs}', folder, suite, config, a.iterations)
        play_missing(conditions(a, base, folder), results_file(a, folder), suite, config)
    if a.save:
        save(a, folder)
    print(f'{time.process_time()/60:.0f} CPU-minutes; the models are in {folder}')

if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--real', required=True, help='folder with one folder for each official split')
    p.add_argument('--policy', default='smollm2', help='folder of a model, or one that was fetched')
    p.add_argument('--reply', default='action', choices=('think+action', 'action'))
    p.add_argument('--epochs', type=int, default=3)
    p.add_argument('--iterations', type=int, default=0, help='of RL')
    p.add_argument('--games', type=int, help='of each split; all if left out')
    p.add_argument('--threads', type=int, default=1)
    p.add_argument('--seed', type=int, default=0)
    p.add_argument('--out', help='where the models go; a temporary folder if left out')
    p.add_argument('--save', help='JSON file for what was won')
    main(p.parse_args())
