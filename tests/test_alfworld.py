"""The ALFWorld engine, rule by rule; expected texts are written by hand from the rules

Longer comparisons run where the material is: `$SKILLRL_CONFORMANCE` holds `alfworld/*.jsonl.gz` with recorded
games, `$ALFWORLD_DATA` the official games."""
import json, os, random, sys
from dataclasses import replace
from pathlib import Path
import pytest
from alfworld_pddl import pddl_problem
from skillrl.envs.alfworld.engine import AlfworldEnv, Engine
from skillrl.envs.alfworld.expert import play_expert
from skillrl.envs.alfworld.world import load_game
from skillrl.envs.alfworld.scene import Game, Goal, build_scene

ROOT = Path(__file__).parents[1]
NOTHING = 'Nothing happens.'

def house(things=(), **kw):
    "A house with a door of every kind, and shelves 1 to 3 plus drawer 2 at location 7"
    receptacles = [
        ('countertop', 1, 0), ('cabinet', 2, 1), ('cabinet', 3, 0), ('sinkbasin', 4, 0),
        ('bathtubbasin', 5, 0), ('microwave', 6, 1), ('shelf', 7, 0), ('shelf', 7, 0), ('shelf', 7, 0),
        ('drawer', 8, 1), ('drawer', 7, 1), ('fridge', 9, 1), ('sidetable', 10, 0), ('safe', 11, 1)]
    return build_scene(receptacles, things, **kw)

def world(things, goal=('pick', 'vase', 'safe'), style='move', change=None):
    scene = house(things)
    w = Engine(Game('test/game', change(scene) if change else scene, Goal(*goal)), style)
    w.reset()
    return w

def edit(name, **kw):
    "Change of a scene: fields of one thing"
    return lambda s: replace(s, things=tuple(replace(t, **kw) if t.name == name else t for t in s.things))

def says(w, script):
    "A line that begins with > is a command; the line below it is what the engine must answer"
    lines = [line.strip() for line in script.strip().splitlines()]
    for command, expected in zip(lines[::2], lines[1::2], strict=True):
        command = command.removeprefix('> ')
        assert (command, w.step(command)) == (command, expected)

def run(game, *commands):
    "What the last of `commands` brings; `game` is an engine or an environment"
    return [game.step(command) for command in commands][-1]

# ---- the room ----

def test_the_room_is_listed_by_type_and_from_the_highest_number_down():
    task = 'find two mug and put them in cabinet'
    w = Engine(Game('g', house(), Goal('pick_two', 'mug', 'cabinet'), task=task))
    assert w.reset() == (
        '-= Welcome to TextWorld, ALFRED! =-\n\n'
        'You are in the middle of a room. Looking quickly around you, you see a bathtubbasin 1, '
        'a cabinet 2, a cabinet 1, a countertop 1, a drawer 2, a drawer 1, a fridge 1, '
        'a microwave 1, a safe 1, a shelf 3, a shelf 2, a shelf 1, a sidetable 1, and a sinkbasin 1.\n\n'
        'Your task is to: find two mug and put them in cabinet.')

def test_a_start_beside_a_receptacle_faces_it():
    w = Engine(Game('g', house([], start=4), Goal('pick', 'mug', 'cabinet')))
    assert 'You are facing the sinkbasin 1. Next to it, you see nothing.' in w.reset()
    says(w, '''
        > go to sinkbasin 1
        Nothing happens.
        > examine sinkbasin 1
        On the sinkbasin 1, you see nothing.''')

# ---- refusals ----

REFUSED = ['', '   ', 'LOOK', 'look around', 'go to', 'go to safe 2', 'go to Safe 1', 'go  to safe 1',
           'open safe 1', 'open cabinet 2', 'take egg 1 from countertop 1', 'take egg 1', 'examine egg 1',
           'use desklamp 1', 'move egg 1 to safe 1', 'put egg 1 in/on safe 1', 'slice egg 1 with knife 1',
           'heat egg 1 with microwave 1', 'go to safe 1\ngo to cabinet 1', '\x00']

@pytest.mark.parametrize('command', REFUSED)
def test_refused(command):
    w = world([('egg', 'countertop 1'), ('knife', 'countertop 1'), ('desklamp', 'sidetable 1')])
    before = w.admissible()
    assert w.step(command) == NOTHING
    assert w.admissible() == before

@pytest.mark.parametrize('command', [' look', 'look ', '\tlook\n', '  look  '])
def test_blanks_around_a_command_do_not_count(command):
    assert world([]).step(command).startswith('You are in the middle')

def test_what_is_accepted_is_what_is_listed():
    things = [('mug', 'cabinet 1'), ('knife', 'countertop 1'), ('bread', 'countertop 1')]
    w = world([*things, ('desklamp', 'sidetable 1')])
    rng, seen = random.Random(0), set()
    for _ in range(400):
        seen |= set(w.admissible())
        w.step(rng.choice(w.admissible()))
        for c in sorted(seen - set(w.admissible())):
            assert w.step(c) == NOTHING
        assert w.admissible() == sorted(set(w.admissible()))

# ---- doors, hands, shared locations ----

def test_doors():
    w = world([('mug', 'cabinet 1'), ('plate', 'countertop 1')])
    says(w, '''
        > go to cabinet 1
        You arrive at cabinet 1. The cabinet 1 is closed.
        > take mug 1 from cabinet 1
        Nothing happens.
        > examine cabinet 1
        The cabinet 1 is closed.
        > close cabinet 1
        Nothing happens.
        > open cabinet 1
        You open the cabinet 1. The cabinet 1 is open. In it, you see a mug 1.
        > open cabinet 1
        Nothing happens.
        > take mug 1 from cabinet 1
        You pick up the mug 1 from the cabinet 1.
        > close cabinet 1
        You close the cabinet 1.
        > move mug 1 to cabinet 1
        Nothing happens.
        > open cabinet 1
        You open the cabinet 1. The cabinet 1 is open. In it, you see nothing.
        > go to countertop 1
        You arrive at countertop 1. On the countertop 1, you see a plate 1.
        > go to cabinet 1
        You arrive at cabinet 1. The cabinet 1 is open. In it, you see nothing.''')

def test_one_thing_at_a_time():
    w = world([('mug', 'countertop 1'), ('egg', 'countertop 1')])
    says(w, '''
        > inventory
        You are not carrying anything.
        > go to countertop 1
        You arrive at countertop 1. On the countertop 1, you see a egg 1, and a mug 1.
        > take egg 1 from countertop 1
        You pick up the egg 1 from the countertop 1.
        > take mug 1 from countertop 1
        Nothing happens.
        > inventory
        You are carrying: a egg 1.
        > move egg 1 to countertop 1
        You move the egg 1 to the countertop 1.
        > take mug 1 from countertop 1
        You pick up the mug 1 from the countertop 1.
        > examine egg 1
        Nothing happens.''')

def test_what_may_be_put_where():
    w = world([('egg', 'countertop 1'), ('laptop', 'cabinet 2')])
    says(w, '''
        > go to countertop 1
        You arrive at countertop 1. On the countertop 1, you see a egg 1.
        > take egg 1 from countertop 1
        You pick up the egg 1 from the countertop 1.
        > go to cabinet 2
        You arrive at cabinet 2. On the cabinet 2, you see a laptop 1.
        > move egg 1 to cabinet 2
        Nothing happens.
        > go to sinkbasin 1
        You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing.
        > move egg 1 to sinkbasin 1
        You move the egg 1 to the sinkbasin 1.
        > go to cabinet 2
        You arrive at cabinet 2. On the cabinet 2, you see a laptop 1.
        > take laptop 1 from cabinet 2
        You pick up the laptop 1 from the cabinet 2.
        > move laptop 1 to cabinet 2
        Nothing happens.''')

def test_shared_location():
    facing = 'You are facing the drawer 2, shelf 3, shelf 2, and shelf 1.'
    w = world([('vase', 'shelf 2'), ('pen', 'drawer 2')])
    says(w, f'''
        > go to shelf 1
        You arrive at shelf 1. On the shelf 1, you see nothing.
        > go to shelf 2
        Nothing happens.
        > go to drawer 2
        Nothing happens.
        > look
        {facing} Next to it, you see nothing.
        > examine shelf 2
        On the shelf 2, you see a vase 1.
        > open drawer 2
        You open the drawer 2. The drawer 2 is open. In it, you see a pen 1.
        > take vase 1 from shelf 2
        You pick up the vase 1 from the shelf 2.
        > move vase 1 to shelf 3
        You move the vase 1 to the shelf 3.
        > look
        {facing} Next to it, you see a vase 1.
        > take vase 1 from shelf 3
        You pick up the vase 1 from the shelf 3.
        > look
        {facing} Next to it, you see nothing.
        > move vase 1 to shelf 1
        You move the vase 1 to the shelf 1.
        > look
        {facing} Next to it, you see a vase 1, and a vase 1.
        > take vase 1 from shelf 1
        You pick up the vase 1 from the shelf 1.
        > move vase 1 to shelf 2
        You move the vase 1 to the shelf 2.
        > look
        {facing} Next to it, you see a vase 1, and a vase 1.''')

def test_things_on_the_floor_are_never_shown():
    on_floor = edit('egg 1', spots=(1,))
    w = world([('egg', None), ('knife', 'countertop 1')], change=on_floor)
    says(w, '''
        > go to countertop 1
        You arrive at countertop 1. On the countertop 1, you see a knife 1.
        > look
        You are facing the countertop 1. Next to it, you see nothing.
        > take knife 1 from countertop 1
        You pick up the knife 1 from the countertop 1.
        > slice egg 1 with knife 1
        You sliced the egg 1 with the knife 1.''')

def test_a_thing_in_two_receptacles_is_taken_from_one():
    w = world([('mug', 'countertop 1')], change=edit('mug 1', places=('countertop 1', 'cabinet 2')))
    says(w, '''
        > go to countertop 1
        You arrive at countertop 1. On the countertop 1, you see a mug 1.
        > take mug 1 from countertop 1
        You pick up the mug 1 from the countertop 1.
        > go to cabinet 2
        You arrive at cabinet 2. On the cabinet 2, you see a mug 1.
        > move mug 1 to cabinet 2
        You move the mug 1 to the cabinet 2.
        > examine cabinet 2
        On the cabinet 2, you see a mug 1.''')

# ---- tools ----

def holding(thing, **kw):
    w = world([(thing, 'countertop 1')], **kw)
    w.step('go to countertop 1')
    assert w.step(f'take {thing} 1 from countertop 1').startswith('You pick up')
    return w

STATES = [
    ((), "There's nothing special about {}."), (('heat',), 'This is a hot {}.'),
    (('cool',), 'This is a cold {}.'), (('clean',), 'This is a clean {}.'),
    (('heat', 'clean'), 'This is a hot and clean {}.'),
    (('clean', 'cool'), 'This is a cool and clean {}.'), (('heat', 'cool'), 'This is a cold {}.'),
    (('cool', 'heat'), 'This is a hot {}.'), (('cool', 'clean', 'heat'), 'This is a hot and clean {}.')]
AT = dict(clean='sinkbasin 1', heat='microwave 1', cool='fridge 1')

@pytest.mark.parametrize('verbs,text', STATES)
def test_examining_what_is_held(verbs, text):
    w = holding('apple')
    for v in verbs:
        w.step(f'go to {AT[v]}')
        assert w.step(f'{v} apple 1 with {AT[v]}') == f'You {v} the apple 1 using the {AT[v]}.'
    assert w.step('examine apple 1') == text.format('apple 1')

SLICED = {"There's nothing special about {}.": 'This is a sliced {}.'}

@pytest.mark.parametrize('verbs,text', STATES)
def test_examining_what_is_sliced(verbs, text):
    w = holding('apple', change=edit('apple 1', state=frozenset({'sliced'})))
    for v in verbs:
        w.step(f'go to {AT[v]}')
        w.step(f'{v} apple 1 with {AT[v]}')
    sliced = SLICED.get(text, text.replace('cold', 'cool').replace(' {}', ' sliced {}'))
    assert w.step('examine apple 1') == sliced.format('apple 1')

@pytest.mark.parametrize('thing', ['bowl', 'box', 'cup', 'mug', 'pan', 'plate', 'pot'])
def test_what_can_hold_things_is_normal(thing):
    full = edit(f'{thing} 1', state=frozenset({'hot', 'clean'}), inside=('egg 2', 'egg 1'))
    w = holding(thing, change=full)
    says(w, f'''
        > examine {thing} 1
        This is a normal {thing} 1. In it, you see a egg 2, and a egg 1.''')

@pytest.mark.parametrize('thing,verb', [('egg', 'clean'), ('bread', 'heat'), ('winebottle', 'cool')])
def test_tools_work_with_the_door_shut(thing, verb):
    w = holding(thing)
    w.step(f'go to {AT[verb]}')
    says(w, f'''
        > {verb} {thing} 1 with {AT[verb]}
        You {verb} the {thing} 1 using the {AT[verb]}.
        > inventory
        You are carrying: a {thing} 1.''')

@pytest.mark.parametrize('thing,verb', [
    ('bread', 'clean'), ('knife', 'heat'), ('bowl', 'heat'), ('knife', 'cool'), ('book', 'clean')])
def test_tools_refuse_what_they_cannot_treat(thing, verb):
    w = holding(thing)
    w.step(f'go to {AT[verb]}')
    says(w, f'''
        > {verb} {thing} 1 with {AT[verb]}
        Nothing happens.''')

def test_a_lamp_stays_on():
    w = world([('desklamp', 'sidetable 1'), ('floorlamp', None)])
    says(w, '''
        > use desklamp 1
        Nothing happens.
        > go to sidetable 1
        You arrive at sidetable 1. On the sidetable 1, you see a desklamp 1.
        > use desklamp 1
        You turn on the desklamp 1.
        > use desklamp 1
        You turn on the desklamp 1.
        > use floorlamp 1
        Nothing happens.''')

def test_a_lamp_works_behind_a_door():
    w = world([('desklamp', 'safe 1')])
    says(w, '''
        > go to safe 1
        You arrive at safe 1. The safe 1 is closed.
        > use desklamp 1
        You turn on the desklamp 1.''')

def test_a_lamp_that_can_be_carried():
    lit = edit('desklamp 1', can=frozenset({'take', 'use'}), state=frozenset({'on'}))
    w = holding('desklamp', change=lit)
    says(w, '''
        > examine desklamp 1
        This desklamp 1 is on.
        > use desklamp 1
        Nothing happens.''')

@pytest.mark.parametrize('knife', ['knife', 'butterknife'])
def test_slicing(knife):
    things = [(knife, 'countertop 1'), ('bread', 'countertop 1'), ('bread', 'safe 1'), ('potato', 'fridge 1')]
    w = world(things)
    says(w, f'''
        > slice bread 1 with {knife} 1
        Nothing happens.
        > go to countertop 1
        You arrive at countertop 1. On the countertop 1, you see a bread 1, and a {knife} 1.
        > slice bread 1 with {knife} 1
        Nothing happens.
        > take {knife} 1 from countertop 1
        You pick up the {knife} 1 from the countertop 1.''')
    for _ in range(2):
        says(w, f'''
            > slice bread 1 with {knife} 1
            You sliced the bread 1 with the {knife} 1.''')
    says(w, f'''
        > slice bread 2 with {knife} 1
        Nothing happens.
        > go to fridge 1
        You arrive at fridge 1. The fridge 1 is closed.
        > slice potato 1 with {knife} 1
        You sliced the potato 1 with the {knife} 1.''')

# ---- both styles ----

def test_the_older_style():
    w = world([('egg', 'countertop 1')], style='put')
    says(w, '''
        > help
        Nothing happens.
        > go to countertop 1
        You arrive at loc 1. On the countertop 1, you see a egg 1.
        > take egg 1 from countertop 1
        You pick up the egg 1 from the countertop 1.
        > move egg 1 to countertop 1
        Nothing happens.
        > put egg 1 in/on countertop 1
        You put the egg 1 in/on the countertop 1.
        > go to fridge 1
        You arrive at loc 9. The fridge 1 is closed.''')
    assert 'help' not in w.admissible()

def test_help():
    text = world([]).step('help')
    assert text.startswith('Available commands:\n  look:  ') and text.endswith('sharp object\n')
    assert len(text.splitlines()) == 14

# ---- winning ----

THINGS = [('mug', 'countertop 1'), ('mug', 'safe 1'), ('egg', 'fridge 1'), ('desklamp', 'sidetable 1')]
GOALS = [('pick', 'egg', 'countertop'), ('look', 'mug', 'desklamp'), ('clean', 'mug', 'cabinet'),
         ('heat', 'mug', 'shelf'), ('cool', 'mug', 'sidetable'), ('cool', 'egg', 'microwave'),
         ('pick_two', 'mug', 'shelf')]

def plan(game, style='move'):
    "Commands that win `game`"
    return [s.action for s in play_expert(game, verb_style=style).steps]

@pytest.mark.parametrize('kind,wrong', [('clean', 'heat'), ('heat', 'cool'), ('cool', 'clean')])
def test_the_wrong_treatment_does_not_win(kind, wrong):
    game = Game('g', house(THINGS), Goal(kind, 'mug', 'countertop'))
    env = AlfworldEnv([game])
    env.reset()
    def round_trip(verb):
        return ['take mug 1 from countertop 1', f'go to {AT[verb]}', f'{verb} mug 1 with {AT[verb]}',
                'go to countertop 1', 'move mug 1 to countertop 1']
    result = run(env, 'go to countertop 1', *round_trip(wrong))
    assert result[0].startswith('You move') and not result[2]
    *before, last = [env.step(c) for c in round_trip(kind)]
    assert not any(result[2] for result in before)
    assert last[1:3] == (1., True)

def test_the_lamp_may_come_first_and_must_be_near():
    w = world(THINGS, goal=('look', 'mug', 'desklamp'))
    won = []
    commands = ['go to sidetable 1', 'use desklamp 1', 'go to countertop 1', 'take mug 1 from countertop 1',
                'go to safe 1', 'go to sidetable 1', 'go to safe 1']
    for c in commands:
        w.step(c)
        won.append(w.won)
    assert won == [False]*5 + [True, False]

def test_a_thing_that_starts_cold_need_not_be_cooled():
    cold = edit('egg 1', state=frozenset({'cool'}))
    game = Game('g', cold(house(THINGS)), Goal('cool', 'egg', 'sidetable'))
    w = Engine(game)
    w.reset()
    run(w, 'go to fridge 1', 'open fridge 1', 'take egg 1 from fridge 1', 'go to sidetable 1',
        'move egg 1 to sidetable 1')
    assert w.won

def test_a_goal_reached_before_the_start_is_won_by_any_command():
    game = Game('g', house(THINGS), Goal('pick', 'mug', 'countertop'))
    env = AlfworldEnv([game])
    assert env.reset()[1]['won']
    assert env.step('nonsense')[:3] == (NOTHING, 1., True)

# ---- the episode ----

def test_winning_at_the_fiftieth_step_is_winning():
    game = Game('g', house(THINGS), Goal('pick', 'egg', 'countertop'))
    env, commands = AlfworldEnv([game]), plan(game)
    env.reset()
    for c in ['look']*(50 - len(commands)) + commands:
        result = env.step(c)
    assert result[1:4] == (1., True, False)

def test_a_reset_undoes_everything():
    games = [Game(f'g{i}', house(THINGS), Goal(*g)) for i, g in enumerate(GOALS)]
    env, rng = AlfworldEnv(games), random.Random(1)
    first = [env.reset(options={'game': g}) for g in games]
    for g in games:
        _, info = env.reset(options={'game': g})
        for _ in range(50):
            info = env.step(rng.choice(info['admissible_commands']))[4]
    assert [env.reset(options={'game': g}) for g in games] == first

def test_changing_the_list_one_gets_changes_nothing():
    env = AlfworldEnv([Game('g', house(THINGS), Goal(*GOALS[0]))])
    _, info = env.reset()
    info['admissible_commands'].clear()
    assert env.step('look')[4]['admissible_commands']

def test_engines_of_one_scene_do_not_meddle():
    scene = house(THINGS)
    a, b = (Engine(Game('g', scene, Goal(*GOALS[0])), style) for style in ('move', 'put'))
    a.reset(), b.reset()
    for c in ('go to fridge 1', 'open fridge 1', 'take egg 1 from fridge 1'):
        a.step(c)
    assert b.step('go to fridge 1') == 'You arrive at loc 9. The fridge 1 is closed.' and b.held is None

# ---- files ----

BED = dict(pddl_problem=pddl_problem(Game('g', house(THINGS), Goal('pick', 'egg', 'bed'))))

@pytest.mark.parametrize('text,match', [
    ('{"id": ', 'game.tw-pddl'), ('{}', "'pddl_problem' is missing"), (json.dumps(BED), 'cannot be won'),
    (json.dumps({'pddl_problem': None}), 'not a game this engine can read')])
def test_bad_files(tmp_path, text, match):
    (tmp_path/'game.tw-pddl').write_text(text)
    with pytest.raises(ValueError, match=match) as e:
        load_game(tmp_path/'game.tw-pddl')
    assert 'game.tw-pddl' in str(e.value) and '\n' not in str(e.value)

# ---- where the material is ----

def test_recorded_games():
    folder = os.environ.get('SKILLRL_CONFORMANCE')
    files = sorted(Path(folder).glob('alfworld/*.jsonl.gz')) if folder else []
    if not files:
        pytest.skip('SKILLRL_CONFORMANCE names no folder with alfworld/*.jsonl.gz')
    sys.path.insert(0, str(ROOT/'benchmarks'))
    import conformance
    assert conformance.alfworld(files) == 0
