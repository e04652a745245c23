from typing import NamedTuple
from skillrl.envs.base import GameSuite, TextEnv, World, seeded

DRAWERS = [f'drawer {n}' for n in range(1, 9)]
CATEGORY = (dict.fromkeys(['watch', 'keychain', 'cellphone', 'creditcard', 'cd', 'laptop'], 'find_valuables')
            | dict.fromkeys(['book', 'newspaper', 'pen', 'pencil', 'box', 'candle'], 'find_papers'))

class Request(NamedTuple):
    id:str
    task:str
    category:str
    kept:dict # Thing → the drawer it is in on that day

class Counter:
    def __init__(self, request):
        self.request = request
        self.won, self.opened = False, ''

    def reset(self):
        return f'You are at the lost property office. Your task: {self.request.task}.'

    def inside(self):
        return [thing for thing, drawer in self.request.kept.items() if drawer == self.opened]

    def admissible(self):
        return [f'take {thing}' for thing in self.inside()] + [f'open {drawer}' for drawer in DRAWERS]

    def step(self, action):
        verb, _, name = action.partition(' ')
        if action not in self.admissible():
            return 'Nothing happens.'
        if verb == 'take':
            self.won = self.request.task.endswith(f' {name}')
            return f'You take {name}.'
        self.opened = name
        return f'You open {name}. You see: {", ".join(self.inside()) or "nothing"}.'

class Office(TextEnv):
    def start(self, game):
        return Counter(game)

def request(name, i, home):
    day = seeded(name, i)
    thing = day.choice(list(CATEGORY))
    kept = {t: day.choice(DRAWERS) if day.random() < .1 else drawer for t, drawer in home.items()}
    return Request(f'{name}-{i}', f'find {thing}', CATEGORY[thing], kept)

def office(name):
    home = {thing: seeded(name, thing).choice(DRAWERS) for thing in CATEGORY}
    return GameSuite(name, [request(name, i, home) for i in range(200)], Office)

class LostProperty(World):
    name, categories = 'lost_property', ('find_valuables', 'find_papers')

    def route(self, task):
        return CATEGORY.get(task.split()[-1], 'general')

    def suites(self, config):
        train = [office(f'train-{i}') for i in range(config.train_suites)]
        return train, [office(f'test-{i}') for i in config.test_numbers]

    def expert(self, task, rng, trust=1.):
        return Clerk(task.split()[-1], rng.random() < trust)

class Clerk:
    def __init__(self, thing, believes):
        self.thing, self.believes = thing, believes
        self.left = list(DRAWERS)

    def act(self, admissible, memory, skill_lines=()):
        if f'take {self.thing}' in admissible:
            return 'here it is', f'take {self.thing}'
        self.left.sort(key=lambda d: self.believes and f'{self.thing} in {d}.' not in ' '.join(skill_lines))
        drawer = self.left.pop(0)
        return f'look for {self.thing} in {drawer}', f'open {drawer}'
