"Every reader of trajectories, memories and banks against odd, broken and foreign files."
import copy, json, os, random, subprocess, sys
from datetime import datetime
from pathlib import Path
import pytest
from skillrl.cli import main
from skillrl.skills.bank import BankDiff, Mistake, Skill, SkillBank, diff, load_latest, load_version, versions
from skillrl.envs.alfworld.scene import alfworld_category
from skillrl.formats import from_eto, from_krill, load_memories, load_trajectories, save_trajectories
from skillrl.stats import wilson
from skillrl.trajectory import Step, Trajectory, by_category, select, success_rate

REAL = os.environ.get('SKILLRL_REAL_DATA')
real_data = pytest.mark.skipif(not REAL, reason='SKILLRL_REAL_DATA is not set: it should name a folder with the official alfworld/, webshop/ and search/ data')

def episode(i, n=3, **kw):
    steps = [Step(f'Step {j}: the café’s “fridge” {i}.\nIt is closed.', f'open fridge {j}', 0.1*j, '<think>é</think>', j % 2 == 0, ['look', 'inventory'],
                  ['heat_001'], [1, 2, 3], [-0.5, -1.25, -1e-7]) for j in range(n)]
    return Trajectory(f'ep-{i}', 'put a hot egg in garbagecan.', 'heat', steps, i % 2 == 0, 'Done.', 'kitchen-7', i, {'house': 7, 'note': ['a', None]}, **kw)

# --- our own trajectories ---

@pytest.mark.parametrize('name', ['t.jsonl', 't.json'])
@pytest.mark.parametrize('n', [0, 1, 5])
def test_round_trip(tmp_path, name, n):
    ts = [episode(i, n=i) for i in range(n)]
    save_trajectories(ts, tmp_path/'deep'/name)
    assert load_trajectories(tmp_path/'deep'/name) == ts

def test_same_bytes_twice(tmp_path):
    ts = [episode(i) for i in range(3)]
    for name in ('a.jsonl', 'b.jsonl'): save_trajectories(ts, tmp_path/name)
    assert (tmp_path/'a.jsonl').read_bytes() == (tmp_path/'b.jsonl').read_bytes()

def test_unknown_fields_survive(tmp_path):
    d = episode(0).to_dict() | {'license': 'MIT', 'extra': 5}
    d['steps'][1]['thought'] = {'deep': [1]}
    (tmp_path/'t.json').write_text(json.dumps([d]))
    assert load_trajectories(tmp_path/'t.json')[0].to_dict() == d

@pytest.mark.parametrize('name', ['t.jsonl', 't.json', 'one-line.json'])
def test_cut_at_every_byte(tmp_path, name):
    "Whatever the cut, the whole records before it load on request, and without the request a damaged file is refused by name"
    ts, f = [Trajectory(f'ep-{i}', 'é "x"', steps=[Step('a\\b\nc ’', 'look', -0.5, token_ids=[12])], success=True, seed=i) for i in range(3)], tmp_path/name
    save_trajectories(ts, f)
    if name == 'one-line.json': f.write_text(json.dumps([t.to_dict() for t in ts], ensure_ascii=False), encoding='utf-8')
    data, seen = f.read_bytes(), set()
    for n in range(1, len(data)):
        f.write_bytes(data[:n])
        got = load_trajectories(f, drop_torn=True)
        assert got == ts[:len(got)], n
        seen.add(len(got))
        try: assert load_trajectories(f) == got and name.endswith('l') or not data[n:].strip(), n
        except ValueError as e: assert str(f) in str(e) and 'line' in str(e) and 'drop_torn' in str(e), (n, e)
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
    ('{"id": "a", "task": "x", "steps": [{"observation": "o", "action": "a"}, {"observation": "o"}]}', 1, 'step 1: the field `action` is missing'),
    ('{"id": "a", "task": "x", "steps": [{"observation": "o", "action": "a", "reward": NaN}]}', 1, '`reward` should be of type float, not nan'),
    ('{"id": "a", "task": "x", "steps": [{"observation": "o", "action": "a", "reward": "1"}]}', 1, '`reward` should be of type float'),
    ('{"id": "a", "task": "x", "success": "true"}', 1, '`success` should be of type bool'),
    ('{"id": "a", "task": "x", "seed": true}', 1, '`seed` should be of type int'),
    ('{"id": "a", "task": "x", "metadata": []}', 1, '`metadata` should be of type dict'),
    ('[\n' + GOOD + ',\n{"id": "b"}\n]', 3, 'is there; found id'),
    ('[\n' + GOOD + '\n' + GOOD + '\n]', 3, "expecting ',' or ']'"),
    ('[\n{"id": "a",\n "task": x}\n]', 3, 'not JSON'),
    ('[{"conversations": 5}]', 1, '`conversations` should be of type list'),
    ('[{"conversations": [{"from": "robot", "value": "hi"}]}]', 1, 'turn 0 should have'),
    ('[{"conversations": [{"from": "gpt", "value": null}]}]', 1, 'turn 0 should have'),
    ('[{"conversations": [], "reward": "high"}]', 1, '`reward` should be of type float'),
    ('[{"task_description": "x", "steps": [5], "id": "k"}]', 1, 'step 0'),
    ('[{"memory_id": "m"}]', 1, 'load_memories'),
])
def test_refusals_name_file_line_and_fault(tmp_path, text, line, says):
    f = tmp_path/'odd.jsonl'
    f.write_text(text)
    with pytest.raises(ValueError) as e: load_trajectories(f)
    assert f'{f}, line {line}: ' in str(e.value) and says in str(e.value) and '\n' not in str(e.value), str(e.value)

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
    with pytest.raises(ValueError, match='t.jsonl, line 2: this is not UTF-8'): load_trajectories(tmp_path/'t.jsonl')

def test_missing_file_says_how_to_get_one(tmp_path):
    with pytest.raises(FileNotFoundError, match='skillrl collect'): load_trajectories(tmp_path/'none.json')

def test_null_is_absent():
    t = Trajectory.from_dict({'id': 'a', 'task': 'x', 'category': None, 'steps': None, 'success': None, 'seed': None})
    assert (t.category, t.steps, t.success, t.seed) == ('', [], False, None)

# --- Krill's ---

def krill(**kw):
    return {'id': '5c0e1a2b', 'task_description': 'put two pencil in desk.', 'task_category': 'PickTwo', 'total_reward': 1.0, 'success': True,
            'steps': [{'observation': 'o0', 'action': 'a0', 'reward': 0.0, 'step_index': 0, 'action_log_prob': None, 'ref_log_prob': None},
                      {'observation': 'o1', 'action': 'a1', 'reward': 1.0, 'step_index': 1, 'action_log_prob': -2.5, 'ref_log_prob': -2.0}],
            'metadata': {'environment': 'unknown', 'num_steps': 2, 'total_tokens': 0, 'skills_used': ['s1']}} | kw

def test_krill_file(tmp_path):
    (tmp_path/'k.json').write_text(json.dumps([krill(), krill(id='2', success=False)], indent=2))
    a, b = load_trajectories(tmp_path/'k.json')
    assert (a.id, a.task, a.category, a.success, a.reward, len(a)) == ('5c0e1a2b', 'put two pencil in desk.', 'pick_two', True, 1.0, 2)
    assert a.metadata == {'environment': 'unknown', 'num_steps': 2, 'total_tokens': 0, 'skills_used': ['s1'], 'total_reward': 1.0}
    assert [s.extra for s in a.steps] == [{}, {'action_log_prob': -2.5, 'ref_log_prob': -2.0}] and not b.success

@pytest.mark.parametrize('name, ours', [('Pick', 'pick'), ('Look', 'look'), ('PickTwo', 'pick_two'), ('pick two', 'pick_two'), ('heat', 'heat'),
                                        ('search', 'search'), ('', ''), (None, '')])
def test_krill_categories(name, ours): assert from_krill(krill(task_category=name)).category == ours

def test_krill_survives_our_format(tmp_path):
    t = from_krill(krill())
    save_trajectories([t], tmp_path/'t.jsonl')
    assert load_trajectories(tmp_path/'t.jsonl') == [t]

# --- ETO ---

START = 'Here is your task. You are in the middle of a room. Looking quickly around you, you see a fridge 1.\nYour task is to: put a hot egg in garbagecan.'
def eto(*turns, **kw): return from_eto({'conversations': [{'from': w, 'value': v} for w, v in turns]} | kw)

@pytest.mark.parametrize('said, action, ok', [
    ('Thought: cold.\nAction: go to fridge 1', 'go to fridge 1', True),
    ('thought: cold.\naction: go to fridge 1', 'go to fridge 1', True),
    ('ACTION: go to fridge 1', 'go to fridge 1', True),
    ('**Action:** go to fridge 1', 'go to fridge 1', True),
    ('**Action: go to fridge 1**', 'go to fridge 1', True),
    ('Action : go to fridge 1  ', 'go to fridge 1', True),
    ('Action:\ngo to fridge 1', 'go to fridge 1', True),
    ('Thought: the action: go away\nAction: go to fridge 1', 'go to fridge 1', True),
    ('Thought: eggs keep cold. Action: go to fridge 1', 'go to fridge 1', True),
    ('My reaction: none', 'My reaction: none', False),
    ('I am not sure what to do.', 'I am not sure what to do.', False),
    ('Action:', 'Action:', False),
    ('', '', False)])
def test_eto_actions(said, action, ok):
    t = eto(('human', START), ('gpt', said))
    assert [(s.action, s.ok, s.reply) for s in t.steps] == [(action, ok, said)]
    assert t.steps[0].observation.startswith('You are in the middle') and t.steps[0].reward == 1.0

def test_eto_keeps_every_step():
    "However observations and lower-case actions are strewn in, each agent turn is one step, in order"
    rng = random.Random(0)
    for _ in range(200):
        n, turns = rng.randint(1, 8), [('human', 'Interact with a household.'), ('gpt', 'OK'), ('human', START)]
        for i in range(n):
            turns.append(('gpt', f'{rng.choice(["Action", "action", "Thought: x" + chr(10) + "Action"])}: step {i}'))
            turns += [('human', f'{rng.choice(["Observation: ", ""])}seen {i}')]*rng.randint(0, 1)
        t = eto(*turns)
        assert [s.action for s in t.steps] == [f'step {i}' for i in range(n)]
        assert [s.reward for s in t.steps] == [0.0]*(n-1) + [1.0] and t.success
        for i, s in enumerate(t.steps[1:]): assert s.observation in ('', f'seen {i}')
        assert t.final_observation in ('', f'seen {n-1}')

def test_eto_two_observations_in_a_row_are_both_kept():
    t = eto(('human', START), ('human', 'Observation: the room is dark.'), ('gpt', 'Action: look'))
    assert 'garbagecan' in t.steps[0].observation and t.steps[0].observation.endswith('the room is dark.')

@pytest.mark.parametrize('game, category', [
    ('pick_and_place_simple-Mug-None-Shelf-1/trial_T1/game.tw-pddl', 'pick'), ('/data/two/train/pick_clean_then_place_in_recep-Mug-None-Shelf-1/trial_T1/game.tw-pddl', 'clean'),
    ('train/pick_two_obj_and_place-CD-None-Safe-3/trial_T1', 'pick_two'), ('look_at_obj_in_light-CD-None-DeskLamp-3', 'look'), ('', 'heat'), (None, 'heat')])
def test_eto_category(game, category): assert eto(('human', START), ('gpt', 'Action: look'), game_file=game).category == category

def test_eto_webshop_shape():
    t = eto(('human', 'You are web shopping.'), ('gpt', 'Ok.'), ('human', 'Observation:\nWebShop [SEP] Instruction: [SEP] i need a red mug [SEP] Search'),
            ('gpt', 'Thought: search.\nAction: search[red mug]'), ('human', 'Observation: Results'), reward=0.5, id=7)
    assert (t.id, t.task, t.category, t.success, t.reward, t.final_observation) == ('7', 'i need a red mug', '', False, 0.5, 'Results')

def test_eto_ids_come_from_the_file(tmp_path):
    (tmp_path/'eto.json').write_text(json.dumps([{'conversations': [{'from': 'human', 'value': START}, {'from': 'gpt', 'value': 'Action: look'}]}]*2))
    assert [t.id for t in load_trajectories(tmp_path/'eto.json')] == ['eto-00000', 'eto-00001']

def test_eto_empty_conversation():
    t = eto()
    assert (len(t), t.success, t.task) == (0, False, '')

# --- kinds of task, rates ---

@pytest.mark.parametrize('name, category', [
    ('pick_and_place_simple', 'pick'), ('pick_and_place', 'pick'), ('look_at_obj_in_light', 'look'), ('pick_clean_then_place_in_recep', 'clean'),
    ('pick_heat_then_place_in_recep', 'heat'), ('pick_cool_then_place_in_recep', 'cool'), ('pick_two_obj_and_place', 'pick_two'), ('pick_two_obj', 'pick_two'),
    ('Place a chilled lettuce in the sink.', 'cool'), ('Put a warm mug on the table', 'heat'), ('put the washed fork in a drawer', 'clean'),
    ('put some scooter on hotel.', 'pick'), ('put a wheat bag in cleaner cabinet.', 'pick'), ('put some network card on cooler.', 'pick'),
    ('EXAMINE the CD with the desklamp', 'look'), ('', 'pick')])
def test_alfworld_category(name, category): assert alfworld_category(name) == category

def test_wilson_covers_and_is_symmetric():
    for n in (1, 7, 50):
        for k in range(n+1):
            r, m = wilson(k, n), wilson(n-k, n)
            assert 0 <= r.low <= r.mean <= r.high <= 1 and abs(r.low - (1 - m.high)) < 1e-12
    assert wilson(0, 0).n == 0 and wilson(0, 0).mean != wilson(0, 0).mean

def test_select_and_group():
    ts = [Trajectory(str(i), 'x', c, success=i % 2 == 0) for i, c in enumerate(['heat', 'pick', 'heat', ''])]
    assert [t.id for t in select(ts, success=True, category='heat')] == ['0', '2'] and list(by_category(ts)) == ['', 'heat', 'pick']
    assert success_rate(iter(ts)).n == 4 and success_rate([]).n == 0

# --- memories ---

def test_memory_refusals(tmp_path):
    for d, says in [({}, "a memory's `content` should be an object, not None"), ({'memory_id': 'm', 'content': {}}, '`goal` is missing'), ([], 'a memory should be an object'),
                    ({'content': {'task_meta': {'original_goal': 'x'}}}, '`id` is missing'),
                    ({'memory_id': 'm', 'content': {'task_meta': {'original_goal': 'x'}, 'refined_trajectory': 'none'}}, '`steps` should be of type list')]:
        (tmp_path/'m.json').write_text('[\n\n' + json.dumps(d) + ']')
        with pytest.raises(ValueError) as e: load_memories(tmp_path/'m.json')
        assert 'm.json, line 3: ' in str(e.value) and says in str(e.value)

@real_data
@pytest.mark.parametrize('name, counts', [
    ('alfworld/generated_memories_alfworld_total.json', (223, 113, 471, 669)), ('webshop/generated_memories_webshop_100.json', (100, 50, 121, 247)),
    ('webshop/generated_memories_webshop_101-200.json', (100, 70, 55, 339)), ('search/generated_memories_search.json', (196, 132, 65, 207))])
def test_real_memories(name, counts):
    ms = load_memories(Path(REAL)/name)
    assert (len(ms), len(select(ms, success=True)), sum(len(m.mistakes) for m in ms), sum(len(m.steps) for m in ms)) == counts
    assert len({m.id for m in ms}) == len(ms) and {m.env for m in ms} == {name.split('/')[0]}
    assert all(m.goal and m.description and m.origin for m in ms) and all(bool(m.planning_pattern) == m.success for m in ms)
    assert all({'action', 'critical_observation', 'reasoning', 'step_index'} == set(s) for m in ms for s in m.steps)
    assert all({'trigger_condition', 'bad_action'} == set(s) for m in ms for s in m.mistakes) and all(m.data_source for m in ms if m.env == 'search')

@real_data
def test_real_router():
    ms = load_memories(Path(REAL)/'alfworld/generated_memories_alfworld_total.json')
    assert sum(alfworld_category(m.goal) == m.category for m in ms) >= 222
    won = {c: (len(select(g, True)), len(select(g, False))) for c, g in by_category(ms).items()}
    assert won == dict(pick=(32, 6), pick_two=(9, 29), look=(20, 14), clean=(17, 19), heat=(16, 26), cool=(19, 16))

# --- banks ---

def official(key='task_specific_skills'):
    row = lambda i: {'skill_id': i, 'title': f'Title {i}', 'principle': f'Do {i}.', 'when_to_apply': f'When {i}.'}
    return {'general_skills': [row('gen_001'), row('gen_002')], key: {'pick_and_place': [row('pic_001')], 'heat': []},
            'common_mistakes': [{'mistake_id': 'err_001', 'description': 'd', 'why_it_happens': 'w', 'how_to_avoid': 'h'}], 'metadata': {'source': 'o3', 'n': 3}}

@pytest.mark.parametrize('key', ['task_specific_skills', 'query_type_skills'])
def test_official_bank_round_trips_equal(key):
    d = official(key)
    bank = SkillBank.from_dict(copy.deepcopy(d))
    assert bank.to_dict('official') == d and list(bank.to_dict('official')) == list(d)
    ours = {{'query_type_skills': 'task_specific_skills'}.get(k, k): v for k, v in d.items()}
    assert bank.to_dict() == ours | ({'task_key': key} if key != 'task_specific_skills' else {})
    assert SkillBank.from_dict(bank.to_dict()) == bank and bank.counts() == dict(general=2, pick_and_place=1, heat=0, mistakes=1)

def test_both_keys_are_merged():
    d = official() | {'query_type_skills': {'heat': [{'skill_id': 'q', 'title': 't', 'principle': 'p'}]}}
    assert [s.id for s in SkillBank.from_dict(d).skills('heat')] == ['q']

def official_lookup(goal, d):
    "The shelf and skills that the official code finds for `goal`: its keyword rules, word for word, on the keys of the file"
    shelves, goal = d['task_specific_skills'], goal.lower()
    if 'pick_and_place' in shelves or 'clean' in shelves:
        if 'look at' in goal and 'under' in goal: c = 'look_at_obj_in_light'
        else: c = next((k for k in ('clean', 'heat', 'cool') if k in goal), 'examine' if 'examine' in goal or 'find' in goal else 'pick_and_place')
    elif 'apparel' in shelves or 'electronics' in shelves:
        words = dict(apparel='shirt dress jacket', footwear='shoe boot sneaker', electronics='laptop phone', accessories='necklace ring watch', home_decor='lamp curtain')
        c = next((k for k, ws in words.items() if any(w in goal for w in ws.split())), 'other')
    else: c = next(iter(shelves), 'unknown')
    return shelves.get(c, [])

LOOKED_UP = dict(pick=['put a mug in desk.', 'put some egg on countertop.'], look=['look at bowl under the desklamp.', 'examine the cd with the desklamp.'],
                 clean=['put a clean plate in cabinet.', 'clean some fork and put it in drawer.'], heat=['put a hot egg in sinkbasin.', 'heat some potato and put it in fridge.'],
                 cool=['put a cool apple in microwave.', 'cool some bread and put it in countertop.'], pick_two=['put two pencil in drawer.', 'find two pillow and put them in sofa.'])

def of_kinds(*kinds): return SkillBank([], {c: [Skill(f'{c.lower()}_{i:03}', f'{c} {i}', f'Do {c} {i}.', provenance=dict(teacher='offline')) for i in (1, 2)] for c in kinds})

@pytest.mark.parametrize('kinds', [LOOKED_UP, ['PickTwo', 'Heat', 'Look', 'Pick', 'Cool', 'Clean'], *[[c] for c in LOOKED_UP]], ids=lambda ks: ' '.join(ks))
def test_official_export_is_found_by_the_official_rules(kinds, tmp_path):
    bank = of_kinds(*kinds)
    bank.save(tmp_path/'b.json')
    assert main(['export', str(tmp_path/'b.json'), '--format', 'official', '--output', str(tmp_path/'o.json')]) == 0
    d = json.loads((tmp_path/'o.json').read_text())
    for c in kinds:
        for goal in LOOKED_UP['pick_two' if c == 'PickTwo' else c.lower()]:
            assert {s.principle for s in bank.skills(c)} <= {r['principle'] for r in official_lookup(goal, d)}, (c, goal)
    ids = [r['skill_id'] for rows in d['task_specific_skills'].values() for r in rows]
    assert len(ids) == len(set(ids)) and {c: [s.id for s in SkillBank.from_dict(d).skills(c)] for c in kinds} == {c: [s.id for s in bank.skills(c)] for c in kinds}

def test_official_export_of_a_shop_bank_is_told_from_its_shelves():
    d = of_kinds('footwear', 'other').to_dict('official')
    assert [r['principle'] for r in official_lookup('find me a size 9 boot', d)] == ['Do footwear 1.', 'Do footwear 2.'] and d['task_specific_skills']['apparel'] == []

@real_data
def test_a_grown_official_bank_stays_official():
    bank = SkillBank.load(Path(REAL)/'alfworld/claude_style_skills.json')
    before = bank.to_dict('official')['task_specific_skills']
    for c in ('pick_two', 'look', 'heat'): bank.add(Skill(bank.new_id(c), 'New', f'New for {c}.', category=c, provenance=dict(teacher='offline')))
    d = bank.to_dict('official')
    assert list(d['task_specific_skills']) == list(before) and all(d['task_specific_skills'][c][:len(v)] == v for c, v in before.items())
    for c in ('pick_two', 'look'): assert all(f'New for {c}.' in [r['principle'] for r in official_lookup(g, d)] for g in LOOKED_UP[c])
    assert SkillBank.from_dict(d).to_dict('official') == d

def test_krill_export_has_the_names_krill_looks_for_and_a_history_it_can_read():
    bank = of_kinds(*LOOKED_UP)
    bank.skills('heat')[0].provenance['version'] = 3
    bank.metadata['version'] = 4
    d = bank.to_dict('krill')
    assert list(d['task_specific_skills']) == ['Pick', 'Look', 'Clean', 'Heat', 'Cool', 'PickTwo'] and d['current_cycle'] == 4
    assert all(r['category'] == {'TaskSpecific': c} for c, rows in d['task_specific_skills'].items() for r in rows)
    assert [r['skill_id'] for r in d['history']] == [s.id for s in bank.skills()] and {r['evolution_cycle'] for r in d['history']} == {0, 3}
    assert all(datetime.fromisoformat(r['added_at'].replace('Z', '+00:00')).tzinfo and list(r) == ['skill_id', 'added_at', 'evolution_cycle'] for r in d['history'])
    back = SkillBank.from_dict(d)
    assert back.categories == list(LOOKED_UP) and not back.extra and back.to_dict('krill') == d
    grown = SkillBank.from_dict(krill_bank())
    grown.add(Skill('heat_001', 'New', 'Heat it.', category='Heat', provenance=dict(teacher='offline', version=5)))
    assert grown.to_dict('krill')['history'][1:] == [dict(skill_id='heat_001', added_at='1970-01-01T00:00:00Z', evolution_cycle=5)] and grown.to_dict('krill')['current_cycle'] == 5

def krill_bank():
    row = lambda i, cat: {'id': i, 'name': f'Name {i}', 'principle': 'p', 'when_to_apply': 'w', 'category': cat, 'embedding': None}
    return {'general_skills': [row('a1b2c3d4', 'General')], 'task_specific_skills': {'Pick': [row('b2c3d4e5', {'TaskSpecific': 'Pick'})], 'search': []},
            'history': [{'skill_id': 'a1b2c3d4', 'added_at': '2025-06-15T10:30:00Z', 'evolution_cycle': 0}], 'current_cycle': 2}

def test_krill_bank_round_trips_equal():
    d = krill_bank()
    assert SkillBank.from_dict(copy.deepcopy(d)).to_dict('krill') == d
    ours = SkillBank.from_dict(copy.deepcopy(d)).to_dict()
    assert SkillBank.from_dict(ours).to_dict('krill') == d and 'embedding' not in ours['general_skills'][0]

def test_krill_embedding_survives():
    d = krill_bank()
    d['general_skills'][0]['embedding'] = [0.5, 0.25]
    assert SkillBank.from_dict(SkillBank.from_dict(copy.deepcopy(d)).to_dict()).to_dict('krill') == d

def test_unknown_fields_survive_everywhere():
    d = official() | {'license': 'MIT'}
    d['general_skills'][0] |= {'author': 'Ada', 'category': 'odd', 'stats': {'retrieved': 3, 'wins': 1, 'losses': 2}, 'source_tasks': ['put a mug on desk.']}
    d['common_mistakes'][0] |= {'severity': 2, 'category': 'heat'}
    assert SkillBank.from_dict(copy.deepcopy(d)).to_dict() == d

@pytest.mark.parametrize('change, says', [
    (lambda d: d.clear(), 'not a skill bank'),
    (lambda d: d.update(general_skills={}) or d['general_skills'].update(a=1), '`general_skills` should be a list, not dict'),
    (lambda d: d.update(task_specific_skills=[1]), '`task_specific_skills` should be an object, not [1]'),
    (lambda d: d['task_specific_skills'].update(heat='none'), '`heat` should be a list'),
    (lambda d: d['general_skills'].append('open'), 'general_skills[2]: a skill should be an object'),
    (lambda d: d['general_skills'][1].pop('principle'), 'general_skills[1]: the field `principle` is missing'),
    (lambda d: d['general_skills'][1].update(title=7), '`title` should be of type str, not 7'),
    (lambda d: d['common_mistakes'].append({'description': 'x'}), 'common_mistakes[1]: the field `mistake_id` is missing'),
    (lambda d: d['general_skills'].append(d['general_skills'][0]), "the id 'gen_001' is used twice"),
    (lambda d: d['task_specific_skills']['heat'].append(d['general_skills'][0]), "in the sections 'general' and 'heat'"),
    (lambda d: d['common_mistakes'][0].update(mistake_id='pic_001'), "the id 'pic_001' is used twice"),
    (lambda d: d.update(metadata=[1]), '`metadata` should be an object')])
def test_bank_refusals(tmp_path, change, says):
    d = copy.deepcopy(official())
    change(d)
    (tmp_path/'bank.json').write_text(json.dumps(d))
    with pytest.raises(ValueError) as e: SkillBank.load(tmp_path/'bank.json')
    assert 'bank.json: ' in str(e.value) and says in str(e.value), str(e.value)

def test_bank_that_is_not_json(tmp_path):
    (tmp_path/'bank.json').write_text('{"general_skills": [\n  {"skill_id": }]}')
    with pytest.raises(ValueError, match='bank.json.*line 2'): SkillBank.load(tmp_path/'bank.json')
    with pytest.raises(FileNotFoundError, match='skillrl distill'): SkillBank.load(tmp_path/'none.json')

def test_new_ids_never_collide_nor_come_back(tmp_path):
    rng, bank, given = random.Random(1), SkillBank.from_dict(official()), {'gen_001', 'gen_002', 'pic_001', 'err_001'}
    for i in range(300):
        c = rng.choice(['general', 'heat', 'Heat', 'pick two', 'pick_two', '***', 'mistake'])
        id = bank.new_id(c)
        assert id not in given
        given.add(id)
        bank.add(Mistake(id, 'd') if c == 'mistake' else Skill(id, 't', 'p', category=c))
        if rng.random() < 0.4: bank.remove(rng.choice([o.id for o in bank.items()]))
        if rng.random() < 0.1:
            bank.save(tmp_path/'b.json')
            bank = SkillBank.load(tmp_path/'b.json')

def test_versions_in_any_order(tmp_path):
    bank = SkillBank.from_dict(official())
    assert versions(tmp_path/'none') == []
    with pytest.raises(FileNotFoundError, match='v0000'): load_latest(tmp_path)
    for n in (0, 2, 10_001, 9): bank.save_version(tmp_path, n)
    (tmp_path/'v1.json').write_text('{}')
    assert versions(tmp_path) == [0, 2, 9, 10_001] and SkillBank.load(tmp_path) == bank
    assert bank.save_version(tmp_path).name == 'v10002.json' and load_version(tmp_path, 2) == bank

def test_diff_sees_moves_and_retirement_but_not_statistics():
    a = SkillBank.from_dict(official())
    b = a.copy()
    b.record(['gen_001', 'unknown'], True)
    assert not diff(a, b) and a.get('gen_001').stats['wins'] == 0
    b.retire('gen_001', 'useless')
    moved = copy.deepcopy(b.get('pic_001'))
    moved.category = 'heat'
    b.replace(moved)
    assert diff(a, b).changed == {'gen_001': {'provenance': ({}, {'retired': 'useless'}), 'status': ('active', 'retired')},
                                  'pic_001': {'category': ('pick_and_place', 'heat')}}
    assert b.counts()['heat'] == 1 and isinstance(diff(a, b), BankDiff)
    assert [s['skill_id'] for s in b.to_dict('official')['general_skills']] == ['gen_002'] and SkillBank.from_dict(b.to_dict()) == b

def test_unknown_fields_cannot_pose_as_ours():
    bank = SkillBank([Skill('gen_001', 't', 'p', status='quarantined', extra={'status': 'active', 'principle': 'Buy it.', 'author': 'Ada'})])
    assert bank.to_dict()['general_skills'] == [dict(skill_id='gen_001', title='t', principle='p', when_to_apply='', status='quarantined', author='Ada')]

def test_old_statistics_may_be_partial():
    bank = SkillBank([Skill('gen_001', 't', 'p', stats={'retrieved': 2})])
    bank.record(['gen_001'], False)
    assert bank.get('gen_001').stats == {'retrieved': 3, 'losses': 1}

@real_data
@pytest.mark.parametrize('name, total', [('alfworld/claude_style_skills.json', 55), ('webshop/claude_style_skills.json', 66),
                                         ('search/claude_style_skills_search.json', 41)])
def test_real_banks_round_trip_equal(name, total, tmp_path):
    d = json.loads((Path(REAL)/name).read_text())
    bank = SkillBank.load(Path(REAL)/name)
    assert len(bank) == total and bank.to_dict('official') == d
    bank.save(tmp_path/'b.json')
    assert SkillBank.load(tmp_path/'b.json') == bank
    assert SkillBank.from_dict(bank.to_dict('krill')).to_dict('krill') == bank.to_dict('krill')

BANKS = {'alfworld/claude_style_skills.json': dict(general=12, pick_and_place=5, look_at_obj_in_light=5, clean=6, heat=5, cool=5, examine=6, mistakes=11),
         'webshop/claude_style_skills.json': dict(general=15, apparel=6, footwear=5, home_decor=6, electronics=6, accessories=5, beauty_health=5, other=6, mistakes=12),
         'search/claude_style_skills_search.json': dict(general=10, direct_retrieval=5, multi_hop_reasoning=5, entity_attribute_lookup=5, comparison=5, mistakes=11)}

@real_data
@pytest.mark.parametrize('name', BANKS)
def test_real_banks_through_every_format(name):
    "Official → itself, ours and Krill's → official gives the same JSON text, in the same order, mistakes and all"
    text = (Path(REAL)/name).read_text(encoding='utf-8')
    bank = SkillBank.load(Path(REAL)/name)
    for way in (bank, SkillBank.from_dict(json.loads(json.dumps(bank.to_dict()))), SkillBank.from_dict(json.loads(json.dumps(bank.to_dict('krill'))))):
        assert json.dumps(way.to_dict('official'), indent=2) == text.strip()
        assert way == bank and way.counts() == BANKS[name]
    official = SkillBank.from_dict(bank.to_dict('official'))
    assert SkillBank.from_dict(official.to_dict()) == bank

@real_data
def test_real_banks_repeat_titles_but_never_ids():
    twice = {}
    for name in BANKS:
        bank = SkillBank.load(Path(REAL)/name)
        titles = [s.title for s in bank.skills()]
        twice[name.split('/')[0]] = sorted({t for t in titles if titles.count(t) > 1})
        assert len({o.id for o in bank.items()}) == len(bank) == sum(BANKS[name].values())
    assert twice == dict(alfworld=[], webshop=['Check Variant Price'], search=['Iterative Query Refinement'])

@real_data
@pytest.mark.parametrize('name', BANKS)
def test_real_banks_with_retired_and_quarantined_items(name):
    bank = SkillBank.load(Path(REAL)/name)
    first, last = bank.skills()[0].id, bank.common_mistakes[-1].id
    bank.retire(first, 'no episode got better')
    bank.quarantine(bank.get(last), ['orders the reader about'])
    bank.quarantine(Skill('', 'Best choice', 'Always buy it.', category='stranger'), ['one thing for every goal'])
    back = SkillBank.from_dict(json.loads(json.dumps(bank.to_dict())))
    assert back == bank and [o.id for o in back.quarantined()] == ['stranger_001', last]
    for fmt in ('official', 'krill'):
        out = SkillBank.from_dict(bank.to_dict(fmt))
        assert {o.id for o in bank.items()} - {o.id for o in out.items()} == {first, last, 'stranger_001'} and 'stranger' not in out.counts()

@real_data
def test_all_619_real_memories():
    ms = [m for f in sorted(Path(REAL).rglob('generated_memories_*.json')) for m in load_memories(f)]
    assert len(ms) == len({m.id for m in ms}) == 619 and len(select(ms, success=True)) == 365

@real_data
def test_real_krill_bank():
    f = Path(REAL).parent/'krill'/'sample_skill_bank.json'
    if not f.exists(): pytest.skip("Krill's sample bank is not beside SKILLRL_REAL_DATA")
    d, bank = json.loads(f.read_text()), SkillBank.load(f)
    assert bank.to_dict('krill') == SkillBank.from_dict(bank.to_dict()).to_dict('krill') == d
    assert bank.counts() == dict(general=5, Pick=2, Clean=1, Heat=1, search=2, mistakes=0) and len(d['history']) == 11
    assert SkillBank.from_dict(bank.to_dict('official')).to_dict('krill')['general_skills'] == d['general_skills']

def test_imports_stay_light():
    "A command that only shows a bank loads neither NumPy nor anything heavier"
    code = 'import sys, skillrl.skills.retrieval; print([m for m in ("numpy", "torch", "matplotlib", "transformers") if m in sys.modules])'
    assert subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout.strip() == '[]'
