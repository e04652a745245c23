"Every reader of trajectories and memories against odd, broken and foreign files"
import json, os, re
from pathlib import Path
import pytest
from skillrl.envs.alfworld.scene import ROUTER
from skillrl.envs.alfworld.scene import alfworld_category
from skillrl.core.formats import _krill_trajectory, load_memories, load_trajectories, save_trajectories
from skillrl.core.trajectory import Step, Trajectory, by_category, select

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
