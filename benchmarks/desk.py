from typing import NamedTuple
from skillrl.envs.base import GameSuite, TextEnv, World, seeded

PEOPLE = 'Ada Ben Cleo Dan Eve Finn Gus Hana Ivo Jill Kurt Lena'.split()
PRODUCTS = 'invoices search checkout payroll newsletter billing login maps wiki printing'.split()

class Question(NamedTuple):
    id:str
    task:str
    category:str
    owners:dict # Product → who owns it on that day

class Day:
    won = False
    def __init__(self, question):
        self.question, self.product = question, question.task.split()[-1]

    def reset(self):
        return f'You are at the desk. Your task: {self.question.task}.'

    def admissible(self):
        return [f'ask {name}' for name in PEOPLE]

    def step(self, action):
        name = action.partition(' ')[2]
        own = [product for product, owner in self.question.owners.items() if owner == name]
        self.won = self.product in own
        return f'{name} owns: {", ".join(own) or "nothing"}.'

class Desk(TextEnv):
    def start(self, game):
        return Day(game)

def usual(name):
    return {product: seeded(name, product).choice(PEOPLE) for product in PRODUCTS}

def team(name):
    def question(i):
        day = seeded(name, i)
        owners = {p: day.choice(PEOPLE) if day.random() < .05 else who for p, who in usual(name).items()}
        return Question(f'{name}-{i}', f'find the owner of {day.choice(PRODUCTS)}', 'general', owners)
    return GameSuite(name, [question(i) for i in range(200)], Desk)

class Owners(World):
    name, categories = 'owners', ('general',)
    def suites(self, config):
        train = [team(f'train-{i}') for i in range(config.train_suites)]
        return train, [team(f'test-{i}') for i in config.test_numbers]

    def expert(self, task, rng, trust=1.):
        return Clerk(task.split()[-1], rng.random() < trust, rng)

class Clerk:
    def __init__(self, product, believes, rng):
        self.product, self.believes = product, believes
        self.left = rng.sample(PEOPLE, len(PEOPLE))

    def act(self, admissible, memory, skill_lines=()):
        told = ' '.join(skill_lines) if self.believes else ''
        self.left.sort(key=lambda name: f'{self.product} in {name}.' not in told)
        name = self.left.pop(0)
        return f'ask {name}', f'ask {name}'
