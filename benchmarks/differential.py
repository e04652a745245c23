"""Do our ALFWorld engine and the original one say the same on games that neither has seen?

    python benchmarks/differential.py [--steps 2000] [--games 24] [--seed 0]

Generates games in new households, in every room and of every category, writes each as the original engine
reads it, and plays it in both: first random commands, among them some that are refused, then from the start
again what the expert would do. After each reset and each step the observation, the list of admissible
commands and whether the game is won must be equal. Prints the steps, what they did, and every mismatch;
exits with 1 if there is one, or if the original engine is not installed (`.ci/differential` does that)."""
import argparse, random, sys, time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT/'tools')]
from original_engine import OriginalEngine
from skillrl.envs.alfworld.engine import Engine
from skillrl.envs.alfworld.expert import AlfworldExpert
from skillrl.envs.alfworld.households import ROOMS, Household
from skillrl.envs.alfworld.memory import AlfworldMemory
from skillrl.envs.alfworld.scene import CATEGORIES, TOOLS

MOST = 50 # Steps of the expert in one game
ODD = ['', 'LOOK', ' look ', 'look around', 'go to', 'take all', 'open door 1', 'examine nothing 1']
SHOWN = 10 # Mismatches that are printed in full
# How often a verb is tried where it is possible: what is rarely possible is done when it is
WEIGHTS = dict(look=.2, inventory=.1, help=.05, examine=1, go=2, move=.5, close=.5, open=3, take=5, use=8,
               clean=12, heat=12, cool=12, slice=12)
TOOL_TRIPS = .5 # Share of journeys that end where things are treated

def new_games(n, seed):
    "`n` games, each in a household of its own; rooms and categories take turns"
    kinds = [(room, category) for category in CATEGORIES for room in ROOMS if category in ROOMS[room]]
    games = []
    number = 0
    while len(games) < n:
        room, category = kinds[number % len(kinds)]
        house = Household(f'differential-{seed}-{number}', (room,), strength=.95*(number % 2))
        if house.goals[category]:
            games.append(house.game('test', number, category))
        number += 1
    return games

def random_command(rng, admissible, heard):
    "Mostly one that is possible; some that were possible before, or never"
    kind = rng.random()
    if kind < .02:
        return rng.choice(ODD)
    if kind < .1 and heard:
        return rng.choice(sorted(heard))
    by_verb = {}
    for command in admissible:
        by_verb.setdefault(command.split()[0], []).append(command)
    verbs = list(by_verb)
    verb, = rng.choices(verbs, [WEIGHTS[v] for v in verbs])
    tools = [command for command in by_verb[verb] if verb == 'go' and command.split()[2] in TOOLS.values()]
    if tools and rng.random() < TOOL_TRIPS:
        return rng.choice(tools)
    return rng.choice(by_verb[verb])

class Pair:
    "Our engine and the original with one game, and what they disagreed on"
    def __init__(self, game):
        self.game = game
        self.engines = dict(ours=Engine(game), original=OriginalEngine(game))
        self.ours = self.engines['ours']
        self.wrong, self.did = [], Counter()
        self.steps = 0

    def compare(self, command, texts):
        "Remember what differs between the two after `command`"
        ours, original = [(texts[name], engine.admissible(), engine.won)
                          for name, engine in self.engines.items()]
        if ours != original:
            self.wrong.append((command, ours, original))

    def reset(self):
        texts = {name: engine.reset() for name, engine in self.engines.items()}
        self.compare('(the start)', texts)
        return texts['ours']

    def step(self, command):
        texts = {name: engine.step(command) for name, engine in self.engines.items()}
        self.steps += 1
        refused = texts['ours'] == 'Nothing happens.'
        self.did['refused' if refused else command.split()[0]] += 1
        self.compare(command, texts)
        return texts['ours']

def play_at_random(pair, rng, steps):
    pair.reset()
    heard = set()
    for _ in range(steps):
        admissible = pair.ours.admissible()
        pair.step(random_command(rng, admissible, heard))
        heard.update(admissible)

def play_as_expert(pair, rng):
    memory = AlfworldMemory(pair.reset())
    expert = AlfworldExpert(pair.game.task, rng, 1.)
    for _ in range(MOST):
        _, command = expert.act(pair.ours.admissible(), memory)
        memory.see(command, pair.step(command))
        if pair.ours.won:
            return

def show(pair):
    for command, ours, original in pair.wrong[:SHOWN]:
        print(f'{pair.game.id}: {command!r}')
        for what, a, b in zip(('observation', 'admissible', 'won'), ours, original):
            if a != b:
                print(f'  {what}: ours     {a!r}\n  {what}: original {b!r}')

def main(steps, games, seed):
    "Play; was there no mismatch?"
    rng, begun = random.Random(seed), time.process_time()
    did = Counter()
    at_random = by_expert = wrong = won = 0
    each = -(-steps//games)
    for game in new_games(games, seed):
        pair = Pair(game)
        play_at_random(pair, rng, each)
        at_random += pair.steps
        play_as_expert(pair, rng)
        by_expert += pair.steps - each
        won += pair.ours.won
        wrong += len(pair.wrong)
        did += pair.did
        show(pair)
        print(f'{game.id}: {pair.steps} steps, {len(pair.wrong)} mismatches', flush=True)
    print('commands:', ', '.join(f'{n} {verb}' for verb, n in did.most_common()))
    print(f'{games} games ({won} won by the expert), {at_random + by_expert} steps ({at_random} random, '
          f'{by_expert} of the expert), {wrong} mismatches, {time.process_time() - begun:.0f} CPU-seconds')
    return wrong == 0

if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--steps', type=int, default=2000, help='random steps in all; the expert plays on top')
    p.add_argument('--games', type=int, default=24)
    p.add_argument('--seed', type=int, default=0)
    sys.exit(not main(**vars(p.parse_args())))
