"""Make the base policy that ships in `data/base`.

    python tools/make_base.py [--out data/base] [--steps 20000] [--mixture 10000]

46 CPU-minutes on one core. It plays the part of a language model's pre-training: over thousands of random
households it learns to act by what its prompt says, notes included. The demonstrator believes a note six
times in ten. After `--steps` updates on demonstrations alone come `--mixture` updates on the rows of
`tools/mixture.py`, half of which are states that the policy got into itself. Which household keeps what
where, no weight can know; no household made here is met again in training or tests.
"""
import argparse, random, re
from pretraining import Stage, demonstrated, fresh_rows, pretrain
from skillrl.agent.episode import Episode
from skillrl.envs.alfworld.scene import CATEGORIES
from skillrl.envs.alfworld.expert import AlfworldExpert
from skillrl.envs.alfworld.households import _RECEPTACLES, _THINGS, Household
from skillrl.envs.alfworld.preconditions import decided_at, DECISIVE, draw_precondition, HouseholdEnv
from skillrl.llm.local import Policy, tiny_model, word_tokenizer

# The most that official games have of a receptacle; 2 of the others
COUNT = dict(cabinet=27, drawer=27, shelf=14, countertop=5, stoveburner=6, sidetable=5, handtowelholder=4,
             armchair=3, diningtable=3, desk=3, coffeetable=3, sinkbasin=2, towelholder=3)
WORDS = '''task skill searched new go to actions seen holding did now nothing happens look find for in on
under with put some clean heat cool hot two them it examine use take from move open close using turn pick up
are is arrive at see room middle drop <think> </think> <action> </action> : first not no when your facing
next keep help inventory do search place where what closed each once twice every thing slice before'''
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
TRUST = .6 # Share of notes that the demonstrator believes
ROOMS = [('kitchen', 'bedroom'), ('kitchen', 'living'), ('kitchen', 'bathroom'), ('living', 'bedroom')]

def vocabulary():
    "All names of things and places with their numbers, and the other words of the game"
    places, things = ({t for room in table.values() for t in room} for table in (_RECEPTACLES, _THINGS))
    numbered_places = [f'{t} {i}' for t in places for i in range(1, COUNT.get(t, 2) + 1)]
    numbered_things = [f'{t} {i}' for t in things for i in range(1, 6)]
    return [*numbered_places, *numbered_things, *sorted(places | things), *WORDS.split()]

def ways(house, category, rng):
    "What a bank might say of ways: those of the house, and some that are none"
    verb = DECISIVE.get(category)
    out = [house.precondition(v) for v in house.preconditions if rng.random() < (.8 if v == verb else .3)]
    if verb in decided_at(house):
        tried = [draw_precondition(house, verb, rng) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
        out += [f'Before {verb}: {step}.' for step in tried]
    return list(dict.fromkeys(out))

def notes(house, goal, rng):
    "What a bank might show for `goal`: usually the place of the thing, among others and general advice"
    need = [goal.thing]
    if goal.category == 'look':
        need.append('desklamp')
    others = [t for t in house.homes if t not in need]
    out = [house.hint(t) for t in need if rng.random() < .85]
    out += [house.hint(t) for t in rng.sample(others, rng.randint(0, 4))]
    if rng.random() < .5:
        out.append(ORDERS[goal.category])
    out += ways(house, goal.category, rng)
    rng.shuffle(out)
    return out + rng.sample(HABITS, rng.choice((0, 0, 1, 2)))

def share(thought, action):
    "Share of rows kept: blind search is most of an episode and teaches little"
    if thought == 'search':
        return .1
    if thought in DECISIVE.values(): # Which is refused
        return .3
    if 'find' not in thought or ' in ' in thought:
        return 1.
    return .25 if action.startswith('go') else .4

def episodes(rng):
    "Unplayed episodes of household after household; three in ten are scattered, as official games are"
    n = 0
    while True:
        scattered = rng.random() < .3
        house = Household(f'base-0-{n}', rng.choice(ROOMS), 0 if scattered else .95)
        n += 1
        for category in filter(house.goals.get, CATEGORIES):
            game = house.game('base', rng.randrange(4), category)
            shown = notes(house, game.goal, rng) if not scattered and rng.random() < .8 else ()
            yield Episode(HouseholdEnv([game], max_steps=40), game, skills=shown)

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

def rows(rng, unplayed=None, trust=TRUST):
    "Demonstration rows of `unplayed` episodes, with strays that the policy learns to get out of"
    def strays(action, admissible):
        return stray_moves(action, admissible, rng)
    def kept(thought, action):
        return rng.random() < share(thought, action)
    for e in unplayed or episodes(rng):
        yield from demonstrated(e, AlfworldExpert(e.start().task, rng, trust), strays, kept)

def main(out, steps, mixture, ways):
    from mixture import Mixture
    tokenizer = word_tokenizer(vocabulary())
    policy = Policy(tiny_model(len(tokenizer)), tokenizer)
    shown = fresh_rows(rows(random.Random(0)), policy)
    stages = [Stage(shown, steps, 4e-3), Stage(Mixture(policy, 0), mixture, 2.5e-3),
              Stage(Mixture(policy, 1).practises_ways(), ways, 2e-3)]
    pretrain(policy, stages, out)

if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--out', default='data/base')
    p.add_argument('--steps', type=int, default=20000, help='updates on demonstrations')
    p.add_argument('--mixture', type=int, default=10000, help='updates on the mixture after that')
    p.add_argument('--ways', type=int, default=6000, help='updates on what households want first, at the end')
    main(**vars(p.parse_args()))
