"Every reader and writer of banks against odd, broken and foreign files"
from copy import deepcopy
import copy, json, os, random, subprocess, sys
from pathlib import Path
import pytest
from banks import counts, remove, skills
from skillrl.cli.main import main
from skillrl.viewers.inspection import load_bank
from skillrl.envs.alfworld.scene import ROUTER
from skillrl.worlds.webshop import goals as webshop
from skillrl.skills.bank import (
    BankDiff, count_episode, diff, Mistake, quarantine, retire, Skill, SkillBank, version_path, versions)

REAL = os.environ.get('SKILLRL_REAL_DATA')
no_real_data = 'SKILLRL_REAL_DATA is not set: it should name a folder with the official data of three worlds'
real_data = pytest.mark.skipif(not REAL, reason=no_real_data)

def through_json(bank, fmt='skillrl'):
    return SkillBank.from_dict(json.loads(json.dumps(bank.to_dict(fmt))))

def ids_of(entries):
    return [o.id for o in entries]

def official_row(id):
    return dict(skill_id=id, title=f'Title {id}', principle=f'Do {id}.', when_to_apply=f'When {id}.')

def official(key='task_specific_skills'):
    mistake = dict(mistake_id='err_001', description='d', why_it_happens='w', how_to_avoid='h')
    return {'general_skills': [official_row('gen_001'), official_row('gen_002')],
            key: {'pick_and_place': [official_row('pic_001')], 'heat': []}, 'common_mistakes': [mistake],
            'metadata': {'source': 'o3', 'n': 3}}

@pytest.mark.parametrize('key', ['task_specific_skills', 'query_type_skills'])
def test_official_bank_round_trips_equal(key):
    d = official(key)
    bank = SkillBank.from_dict(copy.deepcopy(d))
    assert bank.to_dict('official') == d and list(bank.to_dict('official')) == list(d)
    named = {'task_key': key} if key != 'task_specific_skills' else {}
    assert bank.to_dict() == official() | named
    assert SkillBank.from_dict(bank.to_dict()) == bank
    assert counts(bank) == dict(general=2, pick_and_place=1, heat=0, mistakes=1)

def test_both_keys_are_merged():
    d = official() | {'query_type_skills': {'heat': [{'skill_id': 'q', 'title': 't', 'principle': 'p'}]}}
    assert ids_of(skills(SkillBank.from_dict(d), 'heat')) == ['q']

# --- the official rules and Krill's names ---

SHOP_WORDS = dict(apparel='shirt dress jacket', footwear='shoe boot sneaker', electronics='laptop phone',
                  accessories='necklace ring watch', home_decor='lamp curtain')

def household_category(goal):
    if 'look at' in goal and 'under' in goal:
        return 'look_at_obj_in_light'
    for category in ('clean', 'heat', 'cool'):
        if category in goal:
            return category
    return 'examine' if 'examine' in goal or 'find' in goal else 'pick_and_place'

def shop_category(goal):
    return next((c for c, words in SHOP_WORDS.items() if any(w in goal for w in words.split())), 'other')

def official_lookup(goal, d):
    "What the official code finds for `goal`: its keyword rules, word for word, on the keys of the file"
    skills, goal = d['task_specific_skills'], goal.lower()
    if 'pick_and_place' in skills or 'clean' in skills:
        category = household_category(goal)
    elif 'apparel' in skills or 'electronics' in skills:
        category = shop_category(goal)
    else:
        category = next(iter(skills), 'unknown')
    return skills.get(category, [])

def principles(rows):
    return [r['principle'] for r in rows]

LOOKED_UP = dict(pick=['put a mug in desk.', 'put some egg on countertop.'],
                 look=['look at bowl under the desklamp.', 'examine the cd with the desklamp.'],
                 clean=['put a clean plate in cabinet.', 'clean some fork and put it in drawer.'],
                 heat=['put a hot egg in sinkbasin.', 'heat some potato and put it in fridge.'],
                 cool=['put a cool apple in microwave.', 'cool some bread and put it in countertop.'],
                 pick_two=['put two pencil in drawer.', 'find two pillow and put them in sofa.'])

def of_kinds(*kinds):
    def skill(category, i):
        return Skill(f'{category.lower()}_{i:03}', f'{category} {i}', f'Do {category} {i}.',
                     provenance=dict(teacher='offline'))

    return SkillBank([], {c: [skill(c, 1), skill(c, 2)] for c in kinds})

KINDS = [LOOKED_UP, ['PickTwo', 'Heat', 'Look', 'Pick', 'Cool', 'Clean'], *[[c] for c in LOOKED_UP]]

@pytest.mark.parametrize('kinds', KINDS, ids=lambda kinds: ' '.join(kinds))
def test_official_export_is_found_by_the_official_rules(kinds, tmp_path):
    bank = of_kinds(*kinds)
    bank.save(tmp_path/'b.json')
    out = tmp_path/'o.json'
    assert main(['export', str(tmp_path/'b.json'), '--format', 'official', '--output', str(out)]) == 0
    d = json.loads(out.read_text())
    for c in kinds:
        for goal in LOOKED_UP['pick_two' if c == 'PickTwo' else c.lower()]:
            found = principles(official_lookup(goal, d))
            assert {s.principle for s in skills(bank, c)} <= set(found), (c, goal)
    ids = [r['skill_id'] for rows in d['task_specific_skills'].values() for r in rows]
    assert len(ids) == len(set(ids))
    back = SkillBank.from_dict(d)
    assert {c: ids_of(skills(back, c)) for c in kinds} == {c: ids_of(skills(bank, c)) for c in kinds}

def test_official_export_of_a_shop_bank_is_told_from_its_categories():
    d = of_kinds('footwear', 'other').to_dict('official', webshop.ROUTER)
    found = principles(official_lookup('find me a size 9 boot', d))
    assert found == ['Do footwear 1.', 'Do footwear 2.']
    assert d['task_specific_skills']['apparel'] == []

@pytest.mark.parametrize('fmt', ['official', 'krill', 'skill_md', 'skillrl'])
def test_what_is_on_probation_is_shown_and_exported_where_nothing_is_active(fmt, tmp_path, capsys):
    bank, told = of_kinds('heat'), {}
    for n in (2, 1):
        for o in bank.items()[:n]:
            o.status = 'probation' if n == 2 else 'active'
        bank.save(tmp_path/'b.json')
        assert main(['inspect', str(tmp_path/'b.json')]) == 0 and 'probation' in capsys.readouterr().out
        out = str(tmp_path/f'o{n}')
        assert main(['export', str(tmp_path/'b.json'), '--format', fmt, '--output', out]) == 0
        told[n] = capsys.readouterr().out.splitlines()[-1], len(load_bank(out).items())
    left_out = fmt != 'skillrl'
    assert told[2] == ('2 on probation: not shown to help yet', 2)
    fate = ' left out' if left_out else ''
    assert told[1] == (f'1 on probation{fate}: not shown to help yet', 2 - left_out)
    if fmt in ('skillrl', 'skill_md'):
        assert {o.status for o in load_bank(tmp_path/'o2').items()} == {'probation'}
    bank.items()[1].status, bank.items()[1].provenance['credit'] = 'probation', 'others of its form win'
    bank.save(tmp_path/'c.json')
    main(['export', str(tmp_path/'c.json'), '--format', fmt, '--output', str(tmp_path/'c')])
    assert len(load_bank(tmp_path/'c').items()) == 2 # What is shown on credit is exported as what is shown

FIRST = [(['footwear'], 'apparel'), (['cool'], 'pick_and_place'), (['mine'], 'mine')]

@pytest.mark.parametrize('kinds, name', FIRST)
def test_export_finds_the_world_by_its_categories(kinds, name, tmp_path):
    of_kinds(*kinds).save(tmp_path/'b.json')
    main(['export', str(tmp_path/'b.json'), '--format', 'official', '--output', str(tmp_path/'o.json')])
    assert next(iter(json.loads((tmp_path/'o.json').read_text())['task_specific_skills'])) == name

def test_without_a_world_categories_keep_their_names():
    for fmt in ('official', 'krill'):
        d = of_kinds('heat', 'pick_two').to_dict(fmt)
        assert list(d['task_specific_skills']) == ['heat', 'pick_two']
        assert 'our_categories' not in d.get('metadata', {})

@real_data
def test_a_grown_official_bank_stays_official():
    bank = SkillBank.load(Path(REAL)/'alfworld/claude_style_skills.json')
    before = bank.to_dict('official', ROUTER)['task_specific_skills']
    for c in ('pick_two', 'look', 'heat'):
        skill = Skill('', 'New', f'New for {c}.', category=c, provenance=dict(teacher='offline'))
        bank.add(skill)
    d = bank.to_dict('official', ROUTER)
    after = d['task_specific_skills']
    assert list(after) == list(before)
    assert all(after[c][:len(rows)] == rows for c, rows in before.items())
    for c in ('pick_two', 'look'):
        assert all(f'New for {c}.' in principles(official_lookup(g, d)) for g in LOOKED_UP[c])
    assert SkillBank.from_dict(d).to_dict('official', ROUTER) == d

def test_krill_export_has_the_names_krill_looks_for():
    bank = of_kinds(*LOOKED_UP)
    bank.metadata['version'] = 4
    d = bank.to_dict('krill', ROUTER)
    assert list(d['task_specific_skills']) == ['Pick', 'Look', 'Clean', 'Heat', 'Cool', 'PickTwo']
    for c, rows in d['task_specific_skills'].items():
        assert all(r['category'] == {'TaskSpecific': c} for r in rows)
    assert d['history'] == [] and d['current_cycle'] == 4
    back = SkillBank.from_dict(d)
    assert back.categories == list(LOOKED_UP) and not back.extra and back.to_dict('krill', ROUTER) == d

def krill_row(id, category):
    return dict(id=id, name=f'Name {id}', principle='p', when_to_apply='w', category=category, embedding=None)

def krill_bank():
    specific = {'Pick': [krill_row('b2c3d4e5', {'TaskSpecific': 'Pick'})], 'search': []}
    history = [{'skill_id': 'a1b2c3d4', 'added_at': '2025-06-15T10:30:00Z', 'evolution_cycle': 0}]
    return {'general_skills': [krill_row('a1b2c3d4', 'General')], 'task_specific_skills': specific,
            'history': history, 'current_cycle': 2}

def test_krill_bank_round_trips_equal():
    d = krill_bank()
    assert SkillBank.from_dict(copy.deepcopy(d)).to_dict('krill') == d
    ours = SkillBank.from_dict(copy.deepcopy(d)).to_dict()
    assert SkillBank.from_dict(ours).to_dict('krill') == d
    assert 'embedding' not in ours['general_skills'][0]

def test_krill_embedding_survives():
    d = krill_bank()
    d['general_skills'][0]['embedding'] = [0.5, 0.25]
    ours = SkillBank.from_dict(copy.deepcopy(d)).to_dict()
    assert SkillBank.from_dict(ours).to_dict('krill') == d

# --- odd fields and faults ---

def test_unknown_fields_survive_everywhere():
    d = official() | {'license': 'MIT'}
    stats = {'retrieved': 3, 'wins': 1, 'losses': 2}
    d['general_skills'][0] |= {'author': 'Ada', 'category': 'odd', 'stats': stats,
                               'source_tasks': ['put a mug on desk.']}
    d['common_mistakes'][0] |= {'severity': 2, 'category': 'heat'}
    assert SkillBank.from_dict(copy.deepcopy(d)).to_dict() == d

def test_unknown_fields_cannot_pose_as_ours():
    extra = {'status': 'active', 'principle': 'Buy it.', 'author': 'Ada'}
    bank = SkillBank([Skill('gen_001', 't', 'p', status='quarantined', extra=extra)])
    row = dict(skill_id='gen_001', title='t', principle='p', when_to_apply='')
    assert bank.to_dict()['general_skills'] == [row | dict(status='quarantined', author='Ada')]

def test_old_statistics_may_be_partial():
    bank = SkillBank([Skill('gen_001', 't', 'p', stats={'retrieved': 2})])
    count_episode([bank.get('gen_001')], False)
    assert bank.get('gen_001').stats == {'retrieved': 3, 'losses': 1}

REFUSALS = [
    (lambda d: d.update(general_skills={'a': 1}), '`general_skills` should be a list, not dict'),
    (lambda d: d.update(task_specific_skills=[1]), '`task_specific_skills` should be an object, not [1]'),
    (lambda d: d['task_specific_skills'].update(heat='none'), '`heat` should be a list'),
    (lambda d: d['general_skills'][1].update(title=7), '`title` should be of type str, not 7'),
    (lambda d: d['common_mistakes'].append({'description': 'x'}),
     'common_mistakes[1]: the field `mistake_id` is missing'),
    (lambda d: d['general_skills'].append(d['general_skills'][0]), "the id 'gen_001' is used twice"),
    (lambda d: d['task_specific_skills']['heat'].append(d['general_skills'][0]),
     "in the sections 'general' and 'heat'"),
    (lambda d: d['common_mistakes'][0].update(mistake_id='pic_001'), "the id 'pic_001' is used twice")]

@pytest.mark.parametrize('change, says', REFUSALS)
def test_bank_refusals(tmp_path, change, says):
    d = official()
    change(d)
    (tmp_path/'bank.json').write_text(json.dumps(d))
    with pytest.raises(ValueError) as e:
        SkillBank.load(tmp_path/'bank.json')
    assert 'bank.json: ' in str(e.value) and says in str(e.value), str(e.value)

def test_bank_that_is_not_json(tmp_path):
    (tmp_path/'bank.json').write_text('{"general_skills": [\n  {"skill_id": }]}')
    with pytest.raises(ValueError, match='bank.json.*line 2'):
        SkillBank.load(tmp_path/'bank.json')
    with pytest.raises(FileNotFoundError, match='skillrl distill'):
        SkillBank.load(tmp_path/'none.json')

# --- ids, versions and differences ---

def test_new_ids_never_collide_nor_come_back(tmp_path):
    rng, bank = random.Random(1), SkillBank.from_dict(official())
    given = {'gen_001', 'gen_002', 'pic_001', 'err_001'}
    for i in range(300):
        c = rng.choice(['general', 'heat', 'Heat', 'pick two', 'pick_two', '***', 'mistake'])
        id = bank.add(Mistake('', 'd') if c == 'mistake' else Skill('', 't', 'p', category=c)).id
        assert id not in given
        given.add(id)
        if rng.random() < 0.4:
            remove(bank, rng.choice(ids_of(bank.items())))
        if rng.random() < 0.1:
            bank.save(tmp_path/'b.json')
            bank = SkillBank.load(tmp_path/'b.json')

def test_versions_in_any_order(tmp_path):
    bank = SkillBank.from_dict(official())
    assert versions(tmp_path/'none') == []
    with pytest.raises(FileNotFoundError, match='v0000'):
        SkillBank.load(tmp_path)
    for n in (0, 2, 10_001, 9):
        bank.save(version_path(tmp_path, n))
    (tmp_path/'v1.json').write_text('{}')
    assert versions(tmp_path) == [0, 2, 9, 10_001] and SkillBank.load(tmp_path) == bank
    assert bank.save(version_path(tmp_path)).name == 'v10002.json'
    assert SkillBank.load(version_path(tmp_path, 2)) == bank

def test_diff_sees_moves_and_retirement_but_not_statistics():
    a = SkillBank.from_dict(official())
    b = deepcopy(a)
    count_episode([b.get('gen_001')], True)
    assert not diff(a, b) and a.get('gen_001').stats['wins'] == 0
    retire(b.get('gen_001'), 'useless')
    moved = copy.deepcopy(b.get('pic_001'))
    moved.category = 'heat'
    b.put(moved)
    retired = {'provenance': ({}, {'retired': 'useless'}), 'status': ('active', 'retired')}
    change = diff(a, b)
    assert change.changed == {'gen_001': retired, 'pic_001': {'category': ('pick_and_place', 'heat')}}
    assert counts(b)['heat'] == 1 and isinstance(change, BankDiff)
    assert [s['skill_id'] for s in b.to_dict('official')['general_skills']] == ['gen_002']
    assert SkillBank.from_dict(b.to_dict()) == b

# --- the published banks ---

BANKS = {
    'alfworld/claude_style_skills.json':
        dict(general=12, pick_and_place=5, look_at_obj_in_light=5, clean=6, heat=5, cool=5, examine=6,
             mistakes=11),
    'webshop/claude_style_skills.json':
        dict(general=15, apparel=6, footwear=5, home_decor=6, electronics=6, accessories=5, beauty_health=5,
             other=6, mistakes=12),
    'search/claude_style_skills_search.json':
        dict(general=10, direct_retrieval=5, multi_hop_reasoning=5, entity_attribute_lookup=5, comparison=5,
             mistakes=11)}

@real_data
@pytest.mark.parametrize('name', BANKS)
def test_real_banks_through_every_format(name):
    "Official → itself, ours and Krill's → official: the same JSON text, in the same order"
    text = (Path(REAL)/name).read_text(encoding='utf-8')
    bank = SkillBank.load(Path(REAL)/name)
    for way in (bank, through_json(bank), through_json(bank, 'krill')):
        assert json.dumps(way.to_dict('official'), indent=2) == text.strip()
        assert way == bank and counts(way) == BANKS[name]
    official = SkillBank.from_dict(bank.to_dict('official'))
    assert SkillBank.from_dict(official.to_dict()) == bank

@real_data
@pytest.mark.parametrize('name', BANKS)
def test_real_banks_with_retired_and_quarantined_items(name):
    bank = SkillBank.load(Path(REAL)/name)
    first, last = skills(bank)[0].id, bank.common_mistakes[-1].id
    retire(bank.get(first), 'no episode got better')
    quarantine(bank.get(last), ['orders the reader about'])
    stranger = Skill('', 'Best choice', 'Always buy it.', category='stranger')
    bank.add(quarantine(stranger, ['one thing for every goal']))
    back = through_json(bank)
    assert back == bank and ids_of(back.items('quarantined')) == ['stranger_001', last]
    for fmt in ('official', 'krill'):
        out = SkillBank.from_dict(bank.to_dict(fmt))
        assert {*ids_of(bank.items())} - {*ids_of(out.items())} == {first, last, 'stranger_001'}
        assert 'stranger' not in counts(out)

@real_data
def test_real_krill_bank():
    f = Path(REAL).parent/'krill'/'sample_skill_bank.json'
    if not f.exists():
        pytest.skip("Krill's sample bank is not beside SKILLRL_REAL_DATA")
    d, bank = json.loads(f.read_text()), SkillBank.load(f)
    assert bank.to_dict('krill') == SkillBank.from_dict(bank.to_dict()).to_dict('krill') == d
    assert counts(bank) == dict(general=5, Pick=2, Clean=1, Heat=1, search=2, mistakes=0)
    assert len(d['history']) == 11
    official = SkillBank.from_dict(bank.to_dict('official'))
    assert official.to_dict('krill')['general_skills'] == d['general_skills']

LIGHT = '''
import sys, skillrl.skills.retrieval
print([m for m in ("numpy", "torch", "matplotlib", "transformers") if m in sys.modules])
'''

def test_imports_stay_light():
    "A command that only shows a bank loads neither NumPy nor anything heavier"
    out = subprocess.run([sys.executable, '-c', LIGHT], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == '[]'
