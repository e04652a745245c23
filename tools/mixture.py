"""Rows that teach a policy to copy what it sees while it goes on reading notes.

Half of each pass are demonstrations: in households where every thing has its place, in some where it has
kinds of places, drawn anew for each household, and in some where things lie as in the official games and
nothing is told. The other half are states that the policy got into itself, labelled by the expert (DAgger).
Numbers are exchanged in half of the demonstrations and in seven tenths of the rest, so that they are copied
from the prompt and not remembered.
"""
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from make_base import ROOMS, TRUST, notes, rows
from pretraining import PASS # Rows of each half in a pass
from skillrl.agent.episode import Episode
from skillrl.envs.alfworld.expert import AlfworldExpert
from skillrl.envs.alfworld.households import Household
from skillrl.envs.alfworld.memory import kind
from skillrl.envs.alfworld.scene import CATEGORIES
from skillrl.envs.alfworld.preconditions import DECISIVE, HouseholdEnv
from skillrl.llm.local import Policy
from dagger import RelabelOptions, numbered_words, relabel, renumber
from skillrl.training.sft import encode_rows

SHOWN = dict(home=.6, kinds=.3, scattered=.1)       # Households of the demonstrations
PRACTISED = dict(home=.25, kinds=.25, scattered=.5) # Households in which the policy plays
MAX_STEPS = 40
PLAYED = 400 # Generated episodes in one round of DAgger
EVERY = 62   # Passes between rounds: 2,000 updates of 32 rows

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
        self.preconditions.pop('use', None) # Which is about the home of the lamp

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

def episodes(shares, name, rng):
    "Unplayed episodes of household after household, in sorts by `shares`"
    n = 0
    while True:
        sort = rng.choices(list(shares), shares.values())[0]
        house = furnished(sort, f'{name}-{n}', rng)
        n += 1
        for category in filter(house.goals.get, CATEGORIES):
            game = house.game('base', rng.randrange(4), category)
            shown = notes(house, game.goal, rng) if sort != 'scattered' and rng.random() < .85 else ()
            yield Episode(HouseholdEnv([game], max_steps=MAX_STEPS), game, skills=shown)

def way_episodes(name, rng):
    "Unplayed episodes of household after household, two in three about what a house may want a step before"
    n = 0
    while True:
        house = Household(f'{name}-{n}', rng.choice(ROOMS))
        n += 1
        for category in filter(house.goals.get, CATEGORIES):
            if category not in DECISIVE and rng.random() < .5:
                continue
            game = house.game('base', rng.randrange(4), category)
            shown = notes(house, game.goal, rng) if rng.random() < .9 else ()
            yield Episode(HouseholdEnv([game], max_steps=MAX_STEPS), game, skills=shown)

class FirstOfEquals(random.Random):
    "Chance that settles ties by order, so that equal states are labelled alike"
    def choice(self, seq):
        return seq[0]

@dataclass
class Mixture:
    "Fresh rows for each pass of `full_sft`"
    policy:Policy
    seed:int
    more:Callable|None = None # Number of a round → further unplayed episodes
    trust:float = TRUST # Share of notes that demonstrators believe
    pool:list = field(default_factory=list) # Encoded rows of DAgger
    done:int = 0 # Passes

    def __post_init__(self):
        self.rng = random.Random(self.seed)
        rng = random.Random(self.seed + 1000)
        self.shown = rows(rng, episodes(SHOWN, f'mixture-{self.seed}', rng), self.trust)
        self.played = episodes(PRACTISED, f'dagger-{self.seed}', random.Random(self.seed + 2000))
        self.alike = numbered_words(self.policy.tokenizer)

    def practises_ways(self)->'Mixture':
        "Itself, but for rows about ways"
        rng = random.Random(self.seed + 3000)
        self.shown = rows(rng, way_episodes(f'ways-{self.seed}', rng), self.trust)
        self.played = way_episodes(f'ways-dagger-{self.seed}', random.Random(self.seed + 4000))
        return self

    def decided_expert(self, task, rng):
        "The expert that labels: it always searches the first of equals"
        return AlfworldExpert(task, FirstOfEquals(rng.random()), self.trust)

    def practise(self, number):
        "Let the policy play; in the first round the expert plays instead"
        unplayed = [next(self.played) for _ in range(PLAYED)]
        if self.more:
            unplayed += self.more(number)
        how = RelabelOptions(temperature=(.4, 1.)[number % 2], helped=.1 if number else 1.)
        new = relabel(unplayed, self.policy, self.decided_expert, self.seed + number, how)
        self.pool += encode_rows(new, self.policy)
        won = sum(e.won for e in unplayed)/len(unplayed)
        print(f'round {number}: {len(new)} rows of {len(unplayed)} episodes, {won:.2f} won', flush=True)

    def renumbered(self, encoded, portion):
        return [renumber(r, self.alike, self.rng) if self.rng.random() < portion else r for r in encoded]

    def __call__(self)->list: # Of `StepRow`
        if self.done % EVERY == 0:
            self.practise(self.done//EVERY)
        self.done += 1
        shown = encode_rows([next(self.shown) for _ in range(PASS)], self.policy)
        own = self.rng.sample(self.pool, PASS)
        return self.renumbered(shown, .5) + self.renumbered(own, .7)
