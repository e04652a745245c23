"""Make the base policy that ships in `data/base`.

    python tools/make_base.py [--out data/base] [--steps 22000] [--seed 0]

About 35 CPU-minutes on one core. It plays the part of a language model's pre-training: over thousands of
random households it learns to act by what its prompt says, notes included. In some households every thing has
its place, in some its kinds of places, which are drawn anew for each household, and in some things lie where
they do in the official games, and nothing is told. So where things are must be read or searched for, never
remembered. Half of each pass are demonstrations; the other half are states that the policy got into itself,
labelled by the expert (DAgger), half of them in households where nothing is told. The demonstrator believes a
note six times in ten, and a note in ten is false. Numbers are exchanged in half of the demonstrations and in
seven tenths of the rest, so that they are copied from the prompt. No household made here is met again in
training or tests.
"""
import argparse, random, re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from skillrl.agent import Episode
from skillrl.contract import write_reply
from skillrl.envs.alfworld.engine import AlfworldEnv
from skillrl.envs.alfworld.expert import AlfworldExpert
from skillrl.envs.alfworld.households import RECEPTACLES, THINGS, Household
from skillrl.envs.alfworld.notes import kind
from skillrl.envs.alfworld.scene import CATEGORIES, Game
from skillrl.llm.local import Policy
from skillrl.llm.tiny import tiny_model, word_tokenizer
from skillrl.training.dagger import RelabelOptions, numbered_words, relabel, renumber
from skillrl.training.sft import encode_rows, full_sft

# The most that official games have of a receptacle; 2 of the others
COUNT = dict(cabinet=27, drawer=27, shelf=14, countertop=5, stoveburner=6, sidetable=5, handtowelholder=4,
             armchair=3, diningtable=3, desk=3, coffeetable=3, sinkbasin=2, towelholder=3)
WORDS = '''task skill searched new go to actions seen holding did now nothing happens look find for in on
under with put some clean heat cool hot two them it examine use take from move open close using turn pick up
are is arrive at see room middle drop <think> </think> <action> </action> : first not no when your facing
next keep help inventory do search place where what closed each once twice every thing slice then'''
ORDERS = dict(
    pick='To put: take, move.',
    look='To look: take, use desklamp.',
    clean='To clean: take, clean, move.',
    heat='To heat: take, heat, move.',
    cool='To cool: take, cool, move.',
    pick_two='To find two: take, move, take, move.',
)
HABITS = ['Open what is closed.', 'Search each place once.', 'Take it when you see it.',
          'Do not go where you are.', 'Do not search a place twice.']
ROOMS = [('kitchen', 'bedroom'), ('kitchen', 'living'), ('kitchen', 'bathroom'), ('living', 'bedroom')]
SHOWN = dict(home=.6, kinds=.3, scattered=.1)     # Households of the demonstrations
PRACTISED = dict(home=.25, kinds=.25, scattered=.5) # Households in which the policy plays
TRUST, FALSE = .6, .1 # Share of notes that the expert believes; share of prompts whose notes are false
MAX_STEPS = 40
PASS = 512            # Rows of each half in a pass
PLAYED = 400          # Episodes of one round of DAgger
EVERY = 2000          # Updates between rounds

def vocabulary():
    "All names of things and places with their numbers, and the other words of the game"
    places, things = ({t for room in table.values() for t in room} for table in (RECEPTACLES, THINGS))
    numbered_places = [f'{t} {i}' for t in places for i in range(1, COUNT.get(t, 2) + 1)]
    numbered_things = [f'{t} {i}' for t in things for i in range(1, 6)]
    return [*numbered_places, *numbered_things, *sorted(places | things), *WORDS.split()]

class KindsOfPlaces(Household):
    "A household in which every thing has up to three kinds of places, drawn at random, the likeliest first"
    CHANCES = .65, .25, .1

    def __init__(self, name:str, rooms:tuple[str, ...]):
        super().__init__(name, rooms)
        rng = random.Random(f'kinds of places in {name}')
        self.kinds = {}
        for thing, (room, _) in self.homes.items():
            types = list(dict.fromkeys(map(kind, self.places[room])))
            self.kinds[thing] = rng.sample(types, min(3, len(types)))
            self.homes[thing] = room, '' # None of its own

    def hint(self, thing:str)->str:
        "The true sentence about where this household keeps a thing"
        return f'Look for {thing} in {", then ".join(self.kinds[thing])}.'

    def _place_for(self, thing, room, goal, rng):
        if self.homes[thing][0] != room:
            return rng.choice(self.places[room])
        types = self.kinds[thing]
        wanted = rng.choices(types, self.CHANCES[:len(types)])[0]
        if (thing, wanted) == (goal.thing, goal.target):
            wanted = next(t for t in types if t != wanted)
        return rng.choice([p for p in self.places[room] if kind(p) == wanted])

def furnished(sort, name, rng):
    "A household of one of three sorts"
    rooms = rng.choice(ROOMS)
    if sort == 'kinds':
        return KindsOfPlaces(name, rooms)
    return Household(name, rooms, 0 if sort == 'scattered' else .95)

def notes(house, goal, rng):
    "What a bank might show for `goal`: usually the place of the thing, among others and general advice"
    need = [goal.thing]
    if goal.category == 'look':
        need.append('desklamp')
    others = [t for t in house.homes if t not in need]
    false, out = rng.random() < FALSE, []
    for thing in need:
        line = house.hint(thing)
        if false: # With the place of another thing
            line = f'{line.partition(" in ")[0]} in {house.hint(rng.choice(others)).partition(" in ")[2]}'
        if rng.random() < .85:
            out.append(line)
    out += [house.hint(t) for t in rng.sample(others, rng.randint(0, 4))]
    if rng.random() < .5:
        out.append(ORDERS[goal.category])
    rng.shuffle(out)
    return out + rng.sample(HABITS, rng.choice((0, 0, 1, 2)))

def episodes(shares, name, rng)->Iterator[Episode]:
    "Unplayed episodes of household after household, in sorts by `shares`"
    n = 0
    while True:
        sort = rng.choices(list(shares), shares.values())[0]
        house = furnished(sort, f'{name}-{n}', rng)
        n += 1
        for category in filter(house.goals.get, CATEGORIES):
            game = house.game('base', rng.randrange(4), category)
            shown = notes(house, game.goal, rng) if sort != 'scattered' and rng.random() < .85 else ()
            yield episode(game, shown)

def episode(game:Game, shown=()):
    return Episode(AlfworldEnv([game], max_steps=MAX_STEPS), game, skills=shown)

def share(thought, action):
    "Share of rows kept: blind search is most of an episode and teaches little"
    if 'find' not in thought or ' in ' in thought:
        return 1.
    return .25 if action.startswith('go') else .4

def slips(action, rng):
    "A command with a wrong number in it, once or again and again, as a young policy sends it"
    numbers = list(re.finditer(r'\d+', action))
    if not numbers:
        return []
    m = rng.choice(numbers)
    wrong = f'{action[:m.start()]}{rng.randint(1, 9)}{action[m.end():]}'
    return [wrong] * rng.choice((1, 1, 2, 3))

def stray_moves(action, admissible, rng):
    "Moves made but not taught: a random one in eleven times, a slip in another"
    stray = rng.random()
    if stray < .09:
        return [rng.choice(admissible)]
    return slips(action, rng) if stray < .18 else []

def rows(rng, name='base')->Iterator[dict]:
    "Demonstration rows without end, with strays between them that the policy learns to get out of"
    for e in episodes(SHOWN, name, rng):
        expert = AlfworldExpert(e.start().task, rng, TRUST)
        while not e.done:
            prompt = e.messages()
            thought, action = expert.act(e.admissible, e.notes, e.skills)
            moves = stray_moves(action, e.admissible, rng)
            if not moves and rng.random() < share(thought, action):
                yield dict(prompt=prompt, completion=write_reply(thought, action))
            for move in moves or [action]:
                if not e.done:
                    e.act(move)

class FirstOfEquals(random.Random):
    "Chance that settles ties by order, so that equal states are labelled alike"
    def choice(self, seq):
        return seq[0]

def decided_expert(task, rng):
    "The expert that labels: it believes as often as any, and always searches the first of equals"
    return AlfworldExpert(task, FirstOfEquals(rng.random()), TRUST)

@dataclass
class Mixture:
    "Fresh rows for each pass: half demonstrations, half states that the policy got into, as known so far"
    policy:Policy
    seed:int
    passes_a_round:int = EVERY*32//(2*PASS)
    more:Callable|None = None # Number of a round → further unplayed episodes
    pool:list = field(default_factory=list) # Encoded rows of DAgger
    done:int = 0       # Passes

    def __post_init__(self):
        self.rng = random.Random(self.seed)
        self.shown = rows(random.Random(self.seed + 1000), f'base-{self.seed}')
        self.played = episodes(PRACTISED, f'dagger-{self.seed}', random.Random(self.seed + 2000))
        self.alike = numbered_words(self.policy.tokenizer)

    def practise(self, number):
        "Let the policy play; in the first round, which knows nothing yet, the expert plays instead"
        unplayed = [next(self.played) for _ in range(PLAYED)]
        if self.more:
            unplayed += self.more(number)
        how = RelabelOptions(temperature=(.4, 1.)[number % 2], helped=.1 if number else 1.)
        new = relabel(unplayed, self.policy, decided_expert, self.seed + number, how)
        self.pool += encode_rows(new, self.policy)
        won = sum(e.won for e in unplayed)/len(unplayed)
        print(f'round {number}: {len(new)} rows of {len(unplayed)} episodes, {won:.2f} won', flush=True)

    def renumbered(self, encoded, portion):
        return [renumber(r, self.alike, self.rng) if self.rng.random() < portion else r for r in encoded]

    def __call__(self)->list:
        if self.done % self.passes_a_round == 0:
            self.practise(self.done//self.passes_a_round)
        self.done += 1
        shown = encode_rows([next(self.shown) for _ in range(PASS)], self.policy)
        own = self.rng.sample(self.pool, PASS)
        return self.renumbered(shown, .5) + self.renumbered(own, .7)

def main(out, steps, seed):
    import torch
    from tqdm import tqdm
    torch.set_num_threads(1)
    tokenizer = word_tokenizer(vocabulary())
    policy = Policy(tiny_model(len(tokenizer), seed=seed), tokenizer)
    with tqdm(total=steps, mininterval=10) as bar:
        def show(step, loss):
            bar.update()
            if step % 100 == 99:
                bar.set_postfix(loss=f'{loss:.3f}')
        losses = full_sft(Mixture(policy, seed), policy, steps, lr=4e-3, seed=seed, progress=show)
    last = losses[-500:]
    print(f'{policy}: loss {sum(last)/len(last):.3f}, saved in {policy.save(out)}')

if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--out', default='data/base')
    p.add_argument('--steps', type=int, default=22000)
    p.add_argument('--seed', type=int, default=0)
    main(**vars(p.parse_args()))
