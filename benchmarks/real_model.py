"""What a language model of 135 M parameters learns from 200 official ALFWorld games, on a CPU.

    python benchmarks/real_model.py --real DIR [--policy smollm2] [--reply action] [--epochs 3] [--games N]
        [--threads 1] [--out DIR] [--save FILE]

DIR holds one folder for each official split. The expert plays each game of `train` (or `valid_train`) once,
and the model learns with all its weights to write what it wrote, in replies of the form that `--reply` names:
`think+action` or `action`. Then it plays every game of the other splits once, 50 steps: freely at temperature
0.4, and a model of actions alone by choosing among the admissible commands by score as well. Ten of these
games are also played by the model as it came.
The model goes below `--out` after every epoch, and training goes on from what is there. `--games` judges the
first N games of a split only, for a trial. `--save` adds what was won to FILE, one entry for each reply form.
Some 100 CPU-minutes of training with 135 M parameters, and 11 GB; whatever was judged is saved at once.
"""
import argparse, random, time
from pathlib import Path
from tempfile import mkdtemp
from real_games import training_games
from skillrl.agent import demonstrate
from skillrl.builders import build_episodes, rollout_limits
from skillrl.config import SkillRLConfig
from skillrl.envs.alfworld.suites import FolderSuite
from skillrl.envs.base import world
from skillrl.evaluate import evaluate
from skillrl.llm.local import Policy
from skillrl.llm.placement import Placement, threads
from skillrl.models import find_model
from skillrl.store import read_json, write_json
from skillrl.training.sft import FullOptions, encode_rows, full_sft
from skillrl.trajectory import success_rate

PLACE = Placement('cpu', 'bfloat16') # The weights themselves have 32 bits
BATCH = 8
RATE = 2e-4   # Peak
UNTRAINED = 10 # Games of the model as it came

def demonstrated(policy, suite, config, seed):
    "One demonstration of every training game, as rows for `policy`"
    rng, rows = random.Random(seed), []
    for e in build_episodes(suite, training_games(suite), None, config):
        expert = world('alfworld').expert(e.start().task, rng)
        rows += demonstrate(e, expert, rng)[1]
    return encode_rows(rows, policy)

def told(step, loss):
    if step % 20 == 0:
        print(f'update {step}: loss {loss:.4f}, {time.process_time()/60:.0f} CPU-minutes', flush=True)

def fine_tuned(base, folder, suite, config, epochs, seed):
    "The model in `base` after so many epochs, each with a schedule of its own; the last in `folder` is kept"
    there = [n for n in range(1, epochs + 1) if (folder/f'epoch{n}').exists()]
    done = max(there, default=0)
    policy = Policy.load(folder/f'epoch{done}' if done else base, PLACE)
    rows = demonstrated(policy, suite, config, seed) if done < epochs else []
    for epoch in range(done + 1, epochs + 1):
        losses = full_sft(rows, policy, FullOptions(len(rows)//BATCH, RATE, BATCH, seed + epoch), told)
        write_json(folder/f'losses{epoch}.json', losses)
        policy.save(folder/f'epoch{epoch}')
    return policy

def ways(reply):
    "What is judged: name and settings"
    found = {'written freely': {}}
    if reply == 'action':
        found['chosen by score'] = {'model.decode': 'score'}
    return found

def play(policy, suite, split, n, config, settings):
    "Trajectories of the first `n` games of `split`"
    c = config.merged(settings)
    episodes = build_episodes(suite, suite.games(split, n), None, c, 50)
    temperature = 0. if settings else .4
    return evaluate(policy, episodes, temperature=temperature, limits=rollout_limits(suite, c))

def judged(played):
    "What was won of `played`, as it is kept"
    steps = [step.ok for t in played for step in t.steps]
    rate = success_rate(played)
    first = dict(task=played[0].task, replies=[step.reply for step in played[0].steps])
    return dict(won=sum(t.success for t in played), n=len(played), low=rate.low, high=rate.high,
                refused=1 - sum(steps)/len(steps), first=first)

def report(what, split, played):
    found = judged(played)
    print(f'{split}, {what}: {success_rate(played)}, {found["refused"]:.3f} refused', flush=True)
    return dict(what=what, split=split) | found

def save(a, folder, results):
    "Put `results` into the file that `--save` names, beside those of the other reply form"
    if not a.save:
        return
    kept = read_json(a.save) if Path(a.save).exists() else {}
    losses = [read_json(folder/f'losses{n}.json') for n in range(1, a.epochs + 1)]
    found = dict(policy=Path(a.policy).name, seed=a.seed, losses=losses, played=results)
    write_json(a.save, kept | {a.reply: found})

def main(a):
    suite = FolderSuite(a.real)
    config = SkillRLConfig().merged({'env.games': a.real, 'env.max_steps': 50, 'agent.reply': a.reply})
    folder, base = Path(a.out or mkdtemp())/a.reply, find_model(a.policy)
    results = []
    with threads(a.threads):
        model = fine_tuned(base, folder, suite, config, a.epochs, a.seed)
        untrained = Policy.load(base, PLACE)
        for split in suite.tests:
            for what, settings in ways(a.reply).items():
                results.append(report(what, split, play(model, suite, split, a.games, config, settings)))
                save(a, folder, results)
            results.append(report('untrained', split, play(untrained, suite, split, UNTRAINED, config, {})))
            save(a, folder, results)
    print(f'{time.process_time()/60:.0f} CPU-minutes; the model is in {folder}')

if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--real', required=True, help='folder with one folder for each official split')
    p.add_argument('--policy', default='smollm2', help='folder of a model, or one that was fetched')
    p.add_argument('--reply', default='action', choices=('think+action', 'action'))
    p.add_argument('--epochs', type=int, default=3)
    p.add_argument('--games', type=int, help='of each split; all if left out')
    p.add_argument('--threads', type=int, default=1)
    p.add_argument('--seed', type=int, default=0)
    p.add_argument('--out', help='where the models go; a temporary folder if left out')
    p.add_argument('--save', help='JSON file for what was won')
    main(p.parse_args())
