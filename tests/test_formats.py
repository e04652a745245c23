"Every reader of trajectories and memories against odd, broken and foreign files"
import json, os, re
from pathlib import Path
import pytest
from skillrl.cli.main import main
from skillrl.envs.alfworld.scene import ROUTER
from skillrl.envs.alfworld.scene import alfworld_category
from skillrl.core.formats import _krill_trajectory, load_memories, load_trajectories, save_trajectories
from skillrl.core.trajectory import Step, Trajectory, by_category, select
from skillrl.skills.bank import SkillBank

REAL = os.environ.get('SKILLRL_REAL_DATA')
no_real_data = 'SKILLRL_REAL_DATA is not set: it should name a folder with the official data of three worlds'
real_data = pytest.mark.skipif(not REAL, reason=no_real_data)

def step(i, j):
    return Step(f'Step {j}: the café’s “fridge” {i}.\nIt is closed.', f'open fridge {j}', 0.1*j,
                '<think>é</think>', j % 2 == 0, ['look', 'inventory'], ['heat_001'], [1, 2, 3],
                [-0.5, -1.25, -1e-7])

def episode(i, n=3):
    steps = [step(i, j) for j in range(n)]
    return Trajectory(f'ep-{i}', 'put a hot egg in garbagecan.', 'heat', steps, i % 2 == 0, 'Done.',
                      'kitchen-7', i, {'house': 7, 'note': ['a', None]})

# --- our own trajectories ---

@pytest.mark.parametrize('name', ['t.jsonl', 't.json'])
@pytest.mark.parametrize('n', [0, 1, 5])
def test_round_trip(tmp_path, name, n):
    ts = [episode(i, n=i) for i in range(n)]
    save_trajectories(ts, tmp_path/'deep'/name)
    assert load_trajectories(tmp_path/'deep'/name) == ts

def test_unknown_fields_survive(tmp_path):
    d = episode(0).to_dict() | {'license': 'MIT', 'extra': 5}
    d['steps'][1]['thought'] = {'deep': [1]}
    (tmp_path/'t.json').write_text(json.dumps([d]))
    assert load_trajectories(tmp_path/'t.json')[0].to_dict() == d

def small(i):
    step = Step('a\\b\nc ’', 'look', -0.5, token_ids=[12])
    return Trajectory(f'ep-{i}', 'é "x"', steps=[step], success=True, seed=i)

def is_refused_or_whole(path, got, rest):
    "Without a list for the rest, all of it is there, or the error names the file, the line and the remedy"
    try:
        same = load_trajectories(path) == got
    except ValueError as e:
        return all(word in str(e) for word in (str(path), 'line', 'repair'))
    if same and path.suffix == '.jsonl':
        return True
    return not rest.strip()

def test_cut_at_every_byte(tmp_path):
    "Whatever the cut, the whole records before it load on request"
    ts, f = [small(i) for i in range(3)], tmp_path/'t.jsonl'
    save_trajectories(ts, f)
    data, seen = f.read_bytes(), set()
    for n in range(1, len(data)):
        f.write_bytes(data[:n])
        got = load_trajectories(f, bad=[])
        assert got == ts[:len(got)], n
        seen.add(len(got))
        assert is_refused_or_whole(f, got, data[n:]), n
    assert seen >= {0, 1, 2}

GOOD = json.dumps(episode(0).to_dict())
@pytest.mark.parametrize('text, line, says', [
    (GOOD + '\n{"id": 1\n' + GOOD + '\n', 2, 'not JSON'),
    (GOOD + '\n\n\nnot json at all\n' + GOOD, 4, 'not JSON'),
    (GOOD + '\n[1, 2]\n', 2, 'should be an object'),
    (GOOD + '\nnull\n', 2, 'should be an object'),
    (GOOD + '\n{}\n', 2, 'found nothing'),
    (GOOD + '\n{"goal": "x"}\n', 2, 'found goal'),
    ('{"task": "x"}', 1, 'the field `id` is missing'),
    ('{"id": 3, "task": "x"}', 1, '`id` should be of type str, not 3'),
    ('{"id": "a", "task": ["x"]}', 1, '`task` should be of type str'),
    ('{"id": "a", "task": "x", "steps": "none"}', 1, '`steps` should be of type list'),
    ('{"id": "a", "task": "x", "steps": [[]]}', 1, 'step 0: a step should be an object'),
    ('{"id": "a", "task": "x", "steps": [{"observation": "o", "action": "a"}, {"observation": "o"}]}', 1,
     'step 1: the field `action` is missing'),
    ('{"id": "a", "task": "x", "steps": [{"observation": "o", "action": "a", "reward": NaN}]}', 1,
     '`reward` should be of type float, not nan'),
    ('{"id": "a", "task": "x", "steps": [{"observation": "o", "action": "a", "reward": "1"}]}', 1,
     '`reward` should be of type float'),
    ('{"id": "a", "task": "x", "success": "true"}', 1, '`success` should be of type bool'),
    ('{"id": "a", "task": "x", "seed": true}', 1, '`seed` should be of type int'),
    ('{"id": "a", "task": "x", "metadata": []}', 1, '`metadata` should be of type dict'),
    ('[\n' + GOOD + ',\n{"id": "b"}\n]', 'record 2', 'is there; found id'),
    ('[\n' + GOOD + '\n' + GOOD + '\n]', 3, "expecting ',' delimiter"),
    ('[\n{"id": "a",\n "task": x}\n]', 3, 'not JSON'),
    ('[{"task_description": "x", "steps": [5], "id": "k"}]', 'record 1', 'step 0'),
    ('[{"memory_id": "m"}]', 'record 1', 'load_memories'),
    ('[{"conversations": 5}]', 'record 1', '`conversations` should be of type list'),
    ('[{"conversations": [{"from": "robot", "value": "hi"}]}]', 'record 1', 'turn 0 should have'),
    ('[{"conversations": [{"from": "gpt", "value": null}]}]', 'record 1', 'turn 0 should have'),
    ('[{"conversations": [{"from": "gpt", "value": "Action: look"}]}]', 'record 1', 'should set a task'),
])
def test_refusals_name_file_line_and_fault(tmp_path, text, line, says):
    f = tmp_path/'odd.jsonl'
    f.write_text(text)
    with pytest.raises(ValueError) as e:
        load_trajectories(f)
    text = str(e.value)
    place = line if isinstance(line, str) else f'line {line}'
    assert f'{f}, {place}: ' in text and says in text and '\n' not in text, text

@pytest.mark.parametrize('text', ['', '\n\n', '[]', ' [ ] \n'])
def test_nothing_is_no_fault(tmp_path, text):
    (tmp_path/'t.json').write_text(text)
    assert load_trajectories(tmp_path/'t.json') == []

@pytest.mark.parametrize('prefix', [b'\xef\xbb\xbf', b'\n \n', b'\r\n'])
def test_byte_order_mark_and_blank_lines(tmp_path, prefix):
    (tmp_path/'t.jsonl').write_bytes(prefix + GOOD.encode() + b'\r\n\r\n' + GOOD.encode())
    assert len(load_trajectories(tmp_path/'t.jsonl')) == 2

def test_wrong_encoding_is_named_by_line(tmp_path):
    (tmp_path/'t.jsonl').write_bytes(GOOD.encode() + b'\n{"id": "caf\xe9"}\n' + GOOD.encode())
    with pytest.raises(ValueError, match='t.jsonl, line 2: this is not JSON .*utf-8'):
        load_trajectories(tmp_path/'t.jsonl')

# --- Krill's ---

KRILL_METADATA = {'environment': 'unknown', 'num_steps': 2, 'total_tokens': 0, 'skills_used': ['s1']}

def krill(**kw):
    steps = [{'observation': 'o0', 'action': 'a0', 'reward': 0.0, 'step_index': 0,
              'action_log_prob': None, 'ref_log_prob': None},
             {'observation': 'o1', 'action': 'a1', 'reward': 1.0, 'step_index': 1,
              'action_log_prob': -2.5, 'ref_log_prob': -2.0}]
    return {'id': '5c0e1a2b', 'task_description': 'put two pencil in desk.', 'task_category': 'PickTwo',
            'total_reward': 1.0, 'success': True, 'steps': steps, 'metadata': dict(KRILL_METADATA)} | kw

def test_krill_file(tmp_path):
    (tmp_path/'k.json').write_text(json.dumps([krill(), krill(id='2', success=False)], indent=2))
    a, b = load_trajectories(tmp_path/'k.json', router=ROUTER)
    assert (a.id, a.task, a.category) == ('5c0e1a2b', 'put two pencil in desk.', 'pick_two')
    assert (a.success, a.reward, len(a)) == (True, 1.0, 2) and not b.success
    assert a.metadata == KRILL_METADATA | {'total_reward': 1.0}
    assert [s.extra for s in a.steps] == [{}, {'action_log_prob': -2.5, 'ref_log_prob': -2.0}]

@pytest.mark.parametrize('name, ours', [
    ('Pick', 'pick'), ('Look', 'look'), ('PickTwo', 'pick_two'), ('pick two', 'pick_two'), ('heat', 'heat'),
    ('search', 'search'), ('', ''), (None, '')])
def test_krill_categories(name, ours):
    assert _krill_trajectory(krill(task_category=name), ROUTER).category == ours
    assert _krill_trajectory(krill(task_category=name)).category == (name or '')

# --- kinds of task, rates ---

@pytest.mark.parametrize('name, category', [
    ('pick_and_place_simple', 'pick'), ('pick_and_place', 'pick'), ('look_at_obj_in_light', 'look'),
    ('pick_clean_then_place_in_recep', 'clean'), ('pick_heat_then_place_in_recep', 'heat'),
    ('pick_cool_then_place_in_recep', 'cool'), ('pick_two_obj_and_place', 'pick_two'),
    ('pick_two_obj', 'pick_two'),
    ('Place a chilled lettuce in the sink.', 'cool'), ('Put a warm mug on the table', 'heat'),
    ('put the washed fork in a drawer', 'clean'), ('put some scooter on hotel.', 'pick'),
    ('put a wheat bag in cleaner cabinet.', 'pick'), ('put some network card on cooler.', 'pick'),
    ('EXAMINE the CD with the desklamp', 'look'), ('', 'pick')])
def test_alfworld_category(name, category):
    assert alfworld_category(name) == category

# --- memories ---

GOAL = {'task_meta': {'original_goal': 'x'}}

@pytest.mark.parametrize('d, says', [
    ({}, "a memory's `content` should be an object, not None"),
    ({'memory_id': 'm', 'content': {}}, '`goal` is missing'),
    ([], 'a memory should be an object'),
    ({'content': GOAL}, '`id` is missing'),
    ({'memory_id': 'm', 'content': GOAL | {'refined_trajectory': 'none'}}, '`steps` should be of type list')])
def test_memory_refusals(tmp_path, d, says):
    (tmp_path/'m.json').write_text('[\n\n' + json.dumps(d) + ']')
    with pytest.raises(ValueError) as e:
        load_memories(tmp_path/'m.json')
    assert 'm.json, record 1: ' in str(e.value) and says in str(e.value)

@real_data
def test_real_router():
    ms = load_memories(Path(REAL)/'alfworld/generated_memories_alfworld_total.json')
    for m in ms:
        m.category = alfworld_category(re.search(r'classified as\W*(\w+)', m.description)[1])
    assert sum(alfworld_category(m.goal) == m.category for m in ms) >= 222
    won = {c: (len(select(g, True)), len(select(g, False))) for c, g in by_category(ms).items()}
    assert won == dict(pick=(32, 6), pick_two=(9, 29), look=(20, 14), clean=(17, 19), heat=(16, 26),
                       cool=(19, 16))

# --- conversations of ETO ---

ROOM = ('Here is your task. You are in the middle of a room. Looking quickly around you, '
        'you see a fridge 1.\nYour task is to: {}')

def chat(*turns, task='put a hot egg in garbagecan.', names=('human', 'gpt'), **fields):
    said = [('human', 'Interact with a household.'), ('gpt', 'OK'), ('human', ROOM.format(task)), *turns]
    named = dict(zip(('human', 'gpt'), names))
    role, text = ('from', 'value') if names[0] == 'human' else ('role', 'content')
    return {'conversations': [{role: named[who], text: words} for who, words in said]} | fields

def loaded(tmp_path, *records):
    (tmp_path/'raw.json').write_text(json.dumps(records))
    return load_trajectories(tmp_path/'raw.json', router=ROUTER)

@pytest.mark.parametrize('said, action, ok', [
    ('Thought: cold.\nAction: go to fridge 1', 'go to fridge 1', True),
    ('thought: cold.\naction: go to fridge 1', 'go to fridge 1', True),
    ('**Action:** go to fridge 1', 'go to fridge 1', True),
    ('**Action: go to fridge 1**', 'go to fridge 1', True),
    ('ACTION : go to fridge 1  ', 'go to fridge 1', True),
    ('Action:\ngo to fridge 1', 'go to fridge 1', True),
    ('Thought: the action: go away\nAction: go to fridge 1', 'go to fridge 1', True),
    ('Thought: eggs keep cold. Action: go to fridge 1', 'go to fridge 1', True),
    ('My reaction: none', 'My reaction: none', False), ('Action:', 'Action:', False)])
@pytest.mark.parametrize('names', [('human', 'gpt'), ('user', 'assistant')])
def test_a_reply_of_a_conversation_is_a_step(tmp_path, said, action, ok, names):
    t, = loaded(tmp_path, chat(('gpt', said), names=names))
    assert [(s.action, s.ok, s.reply, s.reward) for s in t.steps] == [(action, ok, said, 1)]
    assert t.steps[0].observation.startswith('You are in the middle') and t.task.startswith('put a hot egg')

def test_what_has_no_observation_is_kept_and_counted(tmp_path):
    "Krill's converter drops such a step, and one whose *action* is in lower case, and moves the reward"
    won = chat(('gpt', 'Action: go to fridge 1'), ('gpt', 'action: open fridge 1'),
               ('human', 'Observation: You open the fridge 1.'), ('gpt', 'Action: look'), ('human', 'Done.'))
    with pytest.warns(UserWarning, match='raw.json: 2 steps without an observation'):
        t, again = loaded(tmp_path, won, won | {'id': 'egg'})
    assert [s.observation for s in t.steps][1:] == ['', 'You open the fridge 1.']
    assert [s.reward for s in t.steps] == [0, 0, 1] and t.success and t.final_observation == 'Done.'
    assert (again.id, len(t.id)) == ('egg', 12) and t.id == loaded(tmp_path, won)[0].id

@pytest.mark.parametrize('game, category', [
    ('pick_and_place_simple-Mug-None-Shelf-1/trial_T1/game.tw-pddl', 'pick'),
    ('/data/two/train/pick_clean_then_place_in_recep-Mug-None-Shelf-1/trial_T1/game.tw-pddl', 'clean'),
    ('train/pick_two_obj_and_place-CD-None-Safe-3/trial_T1', 'pick_two'), ('', 'heat'), (None, 'heat')])
def test_the_router_sorts_a_conversation_by_its_game_or_its_task(tmp_path, game, category):
    assert loaded(tmp_path, chat(('gpt', 'Action: look'), game_file=game))[0].category == category

def test_distill_and_inspect_read_the_file_that_krill_converts(tmp_path, capsys):
    "`convert_eto_trajectories.py` and its `distill` are one command of ours"
    def found(thing):
        return chat(('gpt', 'Thought: It may be cold.\nAction: go to fridge 1'),
                    ('human', f'Observation: On the fridge 1, you see a {thing} 1.'),
                    ('gpt', f'Thought: There.\nAction: take {thing} 1 from fridge 1'),
                    ('human', f'Observation: You pick up the {thing} 1 from the fridge 1.'),
                    ('gpt', f'Thought: Now heat.\nAction: heat {thing} 1 with microwave 1'),
                    task=f'put a hot {thing} in garbagecan.', game_file='pick_heat_then_place_in_recep-1')
    raw, bank = tmp_path/'raw.json', tmp_path/'bank.json'
    raw.write_text(json.dumps([found(thing) for thing in ('egg', 'mug')]))
    assert main(['inspect', str(raw)]) == 0 and '2 episodes' in capsys.readouterr().out
    assert main(['distill', '--trajectories', str(raw), '--output', str(bank)]) == 0
    said = [o.principle for o in SkillBank.load(bank).items('active')]
    assert {'Look for egg in fridge 1.', 'Look for mug in fridge 1.'} <= {*said}, said
