"A world in which observations deny: which of five teams owns a product, and asking tells"
import random
from collections import namedtuple
import pytest
from banks import skills
from skillrl.envs.base import TextEnv, World, seeded
from skillrl.envs.base import GameSuite
from skillrl.skills.distillation import OfflineTeacher, distill
from skillrl.skills.evidence import EpisodeReader, claims, visits_of
from skillrl.core.trajectory import Step, Trajectory

TEAMS = [f'team {color}' for color in ('red', 'blue', 'green', 'amber', 'violet')]
PRODUCTS = 'router laptop phone printer camera scanner monitor keyboard'.split()
OWNER = {product: seeded('owner', product).choice(TEAMS) for product in PRODUCTS}
Ticket = namedtuple('Ticket', 'id task category product')

class Desk:
    "Engine of one ticket; with `named` the winning command names the product too"
    def __init__(self, ticket, way):
        self.ticket, self.way = ticket, way
        self.won = self.over = False

    def reset(self):
        return f'A ticket lies before you. Your task: {self.ticket.task}'

    def handing(self, team):
        return f'hand {self.ticket.product} to {team}' if self.way == 'named' else f'assign {team}'

    def admissible(self):
        asking = [f'ask {team}' for team in TEAMS]
        return asking if self.way == 'asking' else asking + [self.handing(team) for team in TEAMS]

    def step(self, action):
        product, owner = self.ticket.product, OWNER[self.ticket.product]
        team = next((team for team in TEAMS if team in action), '')
        if action.startswith('ask'):
            self.won = self.way == 'asking' and team == owner
            return f'{team} says: {product} is {"ours" if team == owner else "not ours"}.'
        self.won, self.over = team == owner, True
        return 'The ticket is closed.' if self.won else 'The ticket comes back.'

class TicketEnv(TextEnv):
    way = 'assign'
    def start(self, game):
        return Desk(game, self.way)
    def over(self):
        return self.engine.won or self.engine.over

class Tickets(World):
    categories = 'general',
    def suites(self, config):
        tickets = [Ticket(f'{i}', f'route the {PRODUCTS[i % 8]} to its owner', 'general', PRODUCTS[i % 8])
                   for i in range(320)]
        return [GameSuite('desk', tickets, TicketEnv)], []

def episode(ticket, way, how, rng, steps=6):
    "A careful agent asks until a team says yes, a hasty one asks once and guesses, one that is lost asks on"
    desk, rows = Desk(ticket, way), []
    answer = ''
    seen = desk.reset()
    order = rng.sample(TEAMS, len(TEAMS))
    for team in order + order[:1]:
        found = 'is ours' in answer
        action = f'ask {team}'
        if way != 'asking' and how != 'lost' and (found or how == 'hasty' and rows):
            last = rows[-1].action.removeprefix('ask ')
            action = desk.handing(last if found else rng.choice([t for t in TEAMS if t != last]))
        rows.append(Step(seen, action, admissible=desk.admissible()))
        seen = answer = desk.step(action)
        if desk.won or desk.over or len(rows) == steps:
            break
    return Trajectory(f'{way}-{how}-{ticket.id}-{rng.random()}', ticket.task, 'general', rows, desk.won, seen,
                      ticket.id)

def played(way, hows, n, seed=0):
    suite, = Tickets().suites(None)[0]
    rng = random.Random(seed)
    return [episode(game, way, rng.choice(hows), rng) for game in suite.games('train', n)]

def sentences(trajs):
    said = OfflineTeacher().distill(trajs)
    return [o.principle for o in said if getattr(o, 'title', '').startswith('Where')]

TRUE = {f'Look for {product} in {team}.' for product, team in OWNER.items()}

@pytest.mark.parametrize('seed', range(4))
@pytest.mark.parametrize('way', ['assign', 'named', 'asking'])
@pytest.mark.parametrize('hows', [['careful'], ['careful', 'hasty'], ['careful', 'hasty', 'lost']])
def test_from_denials_nothing_false_is_written_and_most_of_what_is_true(way, hows, seed):
    said = sentences(played(way, hows, 96, seed))
    assert set(said) <= TRUE and len(said) >= 6

@pytest.mark.parametrize('hows', [['hasty'], ['lost']])
def test_where_no_win_says_where_a_thing_is_nothing_is_written(hows):
    assert set(sentences(played('assign', hows, 64))) <= TRUE
    assert not sentences([t for t in played('assign', hows, 64) if not t.success])

def test_where_answers_tell_places_apart_lost_episodes_tell_too():
    def looked(i, drawers, there):
        steps = [Step('A desk.', f'open drawer {n}') for n in drawers]
        for step, n in zip(steps[1:], drawers):
            step.observation = f'You see: {"watch" if n == there else "nothing"}.'
        return Trajectory(f'{i}', 'find watch', 'general', steps, False, 'You see: nothing.', f'{i}')
    lost = [looked(i, [1, 2, 6, 3], 6) for i in range(4)] + [looked(9, [1, 2, 3, 4], 0)]
    assert sentences(lost) == ['Look for watch in drawer 6.']

def test_what_tells_no_tasks_apart_is_not_written():
    def seen(product):
        steps = [Step('A desk.', 'ask team red', admissible=['ask team red'])]
        task, answer = f'route the {product}', f'{product} is ours.'
        return Trajectory(product, task, 'general', steps, True, answer, product)
    trajs = [seen(product) for product in PRODUCTS]
    assert sentences(trajs) == [] and len(sentences(trajs[:2])) == 2
    needs = {word for v in visits_of(trajs, EpisodeReader()) for word in v.needs}
    assert needs == set(PRODUCTS)

def test_the_distilled_bank_of_the_desk_is_true():
    bank = distill(played('assign', ['careful', 'hasty'], 96), categories=Tickets.categories)
    where = [s.principle for s in skills(bank) if s.title.startswith('Where')]
    assert len(where) >= 6 and set(where) <= TRUE and claims([]) == []
