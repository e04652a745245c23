"Ranking, caps and budgets of retrieval over many goals, words and orders of the bank."
from copy import deepcopy
import itertools, os, random
from collections import Counter
from pathlib import Path
import numpy as np
import pytest
import skillrl.envs.alfworld.scene as alfworld
from skillrl.envs.alfworld.scene import ROUTER, canonical
import skillrl.worlds.search.engine as search
import skillrl.worlds.webshop.goals as webshop
from skillrl.skills import retrieval
from skillrl.skills.bank import Mistake, Skill, SkillBank
from skillrl.skills.embedding import stem, terms
from skillrl.skills.retrieval import _COUNTING, _sought, advice, _official_block, render
from skillrl.envs.alfworld.scene import CATEGORIES
from skillrl.core.formats import load_memories

WORLDS = dict(alfworld=alfworld, webshop=webshop, search=search)
PROCEDURE = _COUNTING | {stem(w) for w in ROUTER.procedure}

def Retriever(bank, mode='lexical', *, router=ROUTER, **kw):
    return retrieval.Retriever(bank, mode, router=router, **kw)

REAL = os.environ.get('SKILLRL_REAL_DATA')
real_data = pytest.mark.skipif(
    not REAL, reason='set SKILLRL_REAL_DATA to a folder with the official alfworld/, webshop/ and search/')

ASK = dict(pick='put some {} on {}.', look='look at {} under the desklamp.', clean='put a clean {} in {}.',
           heat='heat some {} and put it in {}.', cool='cool some {} and put it in {}.',
           pick_two='find two {} and put them in {}.')
THINGS = ['egg', 'apple', 'mug', 'butterknife', 'soapbar', 'cellphone']

def about(n, category, i, how):
    "A skill on the thing `n`, in its principle, its condition, or the goals it came from only"
    if how == 'principle':
        return Skill(f'{category}_{i:03d}', 'Where it is', f'The {n} is in the cabinet 3.',
                     'You look for it.', category)
    if how == 'plural':
        return Skill(f'{category}_{i:03d}', 'Where they are', f'{n.title()}s are kept in the cabinet 3.',
                     '', category)
    if how == 'when':
        return Skill(f'{category}_{i:03d}', 'Where it is', 'Go to cabinet 3 first.',
                     f'The goal names the {n}.', category)
    return Skill(f'{category}_{i:03d}', 'Where it is', 'Go to cabinet 3 first.', 'You look for it.',
                 category, [ASK[category].format(n, 'garbagecan')])

def bank_of(skills):
    out = {}
    for s in skills:
        out.setdefault(s.category, []).append(s)
    return SkillBank(task_specific_skills=out)

@pytest.mark.parametrize('how', ['principle', 'plural', 'when', 'goals'])
@pytest.mark.parametrize('asked', CATEGORIES)
def test_the_thing_asked_for_comes_first(how, asked):
    "Whichever category the skill on the egg is in, and whichever the one on the apple, the egg comes first"
    for a, b in itertools.product(CATEGORIES, repeat=2):
        for n, other in [('egg', 'apple'), ('apple', 'egg'), ('butterknife', 'mug')]:
            skills = [about(other, b, 1, how), about(n, a, 2, how)]
            for order in (skills, skills[::-1]):
                found = Retriever(bank_of(order)).retrieve(ASK[asked].format(n, 'garbagecan'))
                assert found.ids[0] == skills[1].id, (n, a, b, found)

def test_the_issue_example():
    bank = bank_of([about('apple', 'heat', 1, 'principle'), about('egg', 'cool', 1, 'principle')])
    assert Retriever(bank).retrieve('put a hot egg in garbagecan.').ids == ['cool_001']

def test_general_skills_are_ranked_too():
    general = [
        Skill(f'gen_{i:03d}', n, f'The {n} is in the cabinet {i}.', source_tasks=[f'put some {n} on desk.'])
        for i, n in enumerate(THINGS)
    ]
    r = Retriever(SkillBank(general), top_k_general=1)
    for g in general:
        for goal in ASK.values():
            assert r.retrieve(goal.format(g.title, 'shelf')).ids == [g.id]

def test_compounds_meet():
    bank = bank_of([Skill('look_001', 'x', 'The desk lamp is on the sidetable.', category='look'),
                   Skill('pick_001', 'x', 'Butter knives are in drawer 2.', category='pick')])
    assert Retriever(bank).retrieve('put some butterknife on diningtable.').ids[0] == 'pick_001'
    assert Retriever(bank).retrieve('look at book under the desklamp.').ids[0] == 'look_001'

def test_order_of_the_bank_breaks_ties():
    skills = [Skill(f'heat_{i:03d}', 'Heat', 'Use the microwave.', category='heat') for i in range(9)]
    random.Random(0).shuffle(skills)
    found = Retriever(bank_of(skills), top_k=4).retrieve('heat some egg and put it in fridge.')
    assert found.ids == [s.id for s in skills[:4]]

def random_bank(rng, n=40):
    def pick():
        goal, thing = rng.choice(list(ASK.values())), rng.choice(THINGS)
        return goal.format(thing, rng.choice(['shelf', 'desk', 'garbagecan']))

    cats = [rng.choice(['general', *CATEGORIES]) for _ in range(n)]
    skills = [
        Skill(f's{i}', 'Title',
              ' '.join(rng.choices(THINGS + ['open', 'shelf', 'heat', 'fridge'], k=rng.randint(1, 9))), '',
              c, [pick() for _ in range(rng.randint(0, 3))],
              status=rng.choice(['active', 'active', 'retired']))
        for i, c in enumerate(cats)
    ]
    bank = bank_of([s for s in skills if s.category != 'general'])
    bank.general_skills = [s for s in skills if s.category == 'general']
    bank.common_mistakes = [Mistake(f'm{i}', 'Looped.', '', 'Do not loop.') for i in range(7)]
    return bank

@pytest.mark.parametrize('mode', ['lexical', 'template', 'embedding'])
@pytest.mark.parametrize('seed', range(4))
def test_caps_budget_and_books(mode, seed):
    rng = random.Random(seed)
    bank = random_bank(rng)
    active = {o.id for o in bank.items('active')}
    for _ in range(20):
        k, g, m, chars = (rng.choice([None, 0, 1, 3, 6]) for _ in range(4))
        chars = None if chars is None else chars*40
        settings = dict(top_k=k, top_k_general=g, top_k_mistakes=m, threshold=rng.choice([0.0, 0.2]),
                        prompt_chars=chars)
        r = Retriever(bank, mode, **settings)
        goal = rng.choice(list(ASK.values())).format(rng.choice(THINGS), 'shelf')
        found = r.retrieve(goal)
        cap = 6 if k is None and mode != 'template' else k
        assert all(
            c is None or len(l) <= c
            for c, l in [(cap, found.task_specific), (g, found.general), (m, found.mistakes)]
        )
        assert chars is None or sum(len(l) + 1 for l in render(found)) <= chars
        assert {*found.ids} <= active
        assert len(set(found.ids)) == len(found.ids)
        assert Retriever(deepcopy(bank), mode, **settings).retrieve(goal).ids == found.ids

def test_template_is_the_file_order():
    bank = random_bank(random.Random(3))
    found = Retriever(bank, 'template').retrieve('heat some egg and put it in fridge.')
    active = [o for o in bank.items('active')]
    assert found.general == [o for o in active if o.category == 'general' and isinstance(o, Skill)][:6]
    assert found.task_specific == [o for o in active if o.category == 'heat']
    assert found.mistakes == bank.common_mistakes[:5]

@pytest.mark.parametrize(
    'keys',
    [list(CATEGORIES)[:5], ['pick_and_place', 'look_at_obj_in_light', 'clean', 'heat', 'cool', 'examine'],
     ['Pick', 'Clean', 'search', 'Heat']],
)
def test_spellings_of_categories(keys):
    bank = bank_of([Skill(f's_{k}', 'x', 'y z', category=k) for k in keys])
    for mode in ('lexical', 'template'):
        r = Retriever(bank, mode)
        for c, goal in ASK.items():
            want = {f's_{k}' for k in keys if canonical(k) == ('pick' if c == 'pick_two' else c)}
            assert {o.id for o in r.retrieve(goal.format('egg', 'shelf')).task_specific} == want
            assert (
                r.retrieve('anything', c).ids == r.retrieve(goal.format('egg', 'shelf')).ids
                or mode == 'lexical'
            )

def test_a_given_category_wins_over_the_goal():
    bank = bank_of([about('egg', 'heat', 1, 'principle'), about('egg', 'cool', 1, 'principle')])
    assert Retriever(bank, 'template').retrieve('put a hot egg in fridge.',
                                                'pick_cool_then_place_in_recep').ids == ['cool_001']

def test_a_bank_with_categories_of_its_own():
    bank = bank_of([Skill('k', 'x', 'Wipe the stove.', category='kitchen'),
                   Skill('g', 'x', 'Water the roses.', category='garden')])
    r = retrieval.Retriever(bank)
    assert r.retrieve('tidy the garden').ids[0] == 'g' and r.retrieve('xyzzy').ids == []
    assert r.retrieve('wipe everything').ids == ['k']

@pytest.mark.parametrize(
    'goal, category',
    [('find me string lights', 'home_decor'),
     ('Find me non slip, easy clean computer armoires with pu leather', 'home_decor'),
     ("women's work & safety footwear with high heel", 'footwear'), ('low carb, dairy free granola', 'other'),
     ('heavy duty hdmi cables', 'electronics'), ('watches for men', 'accessories'),
     ('hair loss products', 'beauty_health'), ('', 'other')],
)
def test_shop(goal, category):
    assert webshop.shop_category(goal) == category == webshop.ROUTER(goal)

@pytest.mark.parametrize(
    'goal, category',
    [('Are both Rutgers and Carnegie Mellon located in America?', 'comparison'),
     ('Who was born first, Ada or Bob?', 'comparison'),
     ('When did the father of Ada Lovelace die?', 'multi_hop_reasoning'),
     ("What is Michael Arad's occupation?", 'entity_attribute_lookup'),
     ('who got the first nobel prize in physics?', 'direct_retrieval'), ('', 'direct_retrieval')],
)
def test_questions(goal, category):
    assert search.question_category(goal) == category == search.ROUTER(goal)

@pytest.mark.parametrize(
    'goal, word',
    [('put a hot egg in garbagecan.', 'egg'), ('find two cellphone and put them in bed.', 'cellphon'),
     ('examine the alarmclock with the desklamp', 'alarmclock'),
     ('clean some ladle and put it in drawer.', 'ladl'), ('Place a cooked egg in the sink', 'egg'),
     ('put two slices of bread', 'bread'), ('put', None), ('', None)],
)
def test_thing(goal, word):
    assert word in _sought(goal, PROCEDURE) if word else not _sought(goal, PROCEDURE)

def test_terms_of_odd_text():
    for t in ('', '   ', '123 !!', 'the of and', 'É'):
        assert all(v > 0 for v in terms(t).values())
    bank = SkillBank([Skill('gen_001', '', '')], {'heat': [Skill('heat_001', '', '', category='heat')]},
                     [Mistake('err_001', '')])
    found = Retriever(bank).retrieve('')
    assert render(found) == [advice(o) for o in found.items()] and 'gen_001' in found.ids

@pytest.mark.parametrize(
    'kw, says',
    [(dict(mode='x'), 'mode should be one of lexical, template, official, embedding'),
     (dict(show='x'), 'show should be one of principle, full, official')],
)
def test_settings_are_checked(kw, says):
    with pytest.raises(ValueError, match=says):
        Retriever(SkillBank(), **kw)

# --- the official rules, told once more in other words

SHOP = [
    ('beauty_health', 'cream|lotion|shampoo|conditioner|moisturizer|serum|makeup|beauty|vitamin|supplement'),
    ('home_decor', 'furniture|lamp|curtain|pillow|bedding|decor|candle|vase|rug'),
    ('accessories', 'necklace|ring|bracelet|earring|watch|jewelry|bag|purse|wallet'),
    ('electronics', 'laptop|phone|computer|tablet|charger|cable|headphone|speaker|camera|electronic'),
    ('footwear', 'shoe|boot|sneaker|sandal|heel|slipper|footwear'),
    ('apparel', 'shirt|dress|jacket|pant|coat|sweater|blouse|clothing|clothes|t-shirt'),
]

def restated_house(g):
    "The official category of a household task"
    kind = 'pick_and_place'
    if 'examine' in g or 'find' in g:
        kind = 'examine'
    for word in ('cool', 'heat', 'clean'):
        if word in g:
            kind = word
    return 'look_at_obj_in_light' if g.count('look at') and g.count('under') else kind

def restated_shop(g):
    "The official category of a shopping task; the last to match is the first in the official order"
    matching = [name for name, words in SHOP if any(g.find(w) >= 0 for w in words.split('|'))]
    return matching[-1] if matching else 'other'

def restated(bank, goal, top_k=6, specific_k=None):
    "What the official template mode shows of the bank file `bank`, a dict"
    sections, g = bank.get('task_specific_skills', {}), goal.lower()
    kind = next(iter(sections), 'unknown')
    if 'pick_and_place' in sections or 'clean' in sections:
        kind = restated_house(g)
    elif 'apparel' in sections or 'electronics' in sections:
        kind = restated_shop(g)
    new = [s for s in bank['general_skills'] if s['skill_id'][:4] == 'dyn_']
    old = [s for s in bank['general_skills'] if s['skill_id'][:4] != 'dyn_']
    room = top_k - len(new)
    general = new + (old[:room] if room > 0 else [])
    return kind, general, sections.get(kind, [])[:specific_k], bank['common_mistakes'][:5]

def restated_length(kind, general, specific, mistakes):
    "How many characters the official block has"
    n = sum(len(f"- **{s['title']}**: {s['principle']}") + 1 for s in general) + len('### General Principles')
    if specific:
        n += 2 + len(f"### {' '.join(w.capitalize() for w in kind.split('_'))} Skills")
        n += sum(
            len(f"\n- **{s['title']}**: {s['principle']}\n  _Apply when: {s['when_to_apply']}_")
            for s in specific
        )
    return (
        n
        + 2
        + len('### Mistakes to Avoid')
        + sum(len(f"\n- **Don't**: {m['description']}\n  **Instead**: {m['how_to_avoid']}") for m in mistakes)
    )

BANKS = ['alfworld/claude_style_skills.json', 'webshop/claude_style_skills.json',
         'search/claude_style_skills_search.json']

def looked_up(world, goal, sections):
    return WORLDS[world].ROUTER.sections['official'].section(goal, sections)

def memories(world):
    return [m for f in sorted((Path(REAL)/world).glob('generated_memories_*.json')) for m in load_memories(f)]
def all_goals():
    return [m.goal for world in ('alfworld', 'webshop', 'search') for m in memories(world)]

@real_data
@pytest.mark.parametrize('dynamic', [0, 3, 9])
@pytest.mark.parametrize('name', BANKS)
def test_official_mode_is_the_official_choice(name, dynamic):
    from skillrl.core.store import read_json
    file, goals = read_json(Path(REAL)/name), all_goals()
    for i in range(dynamic):
        file['general_skills'].insert(
            i * 2,
            dict(skill_id=f'dyn_{i + 1:03d}', title=f'New {i}', principle='Look again.',
                 when_to_apply='Always.'),
        )
    bank = SkillBank.from_dict(file)
    assert len(goals) == 619
    for top_k, specific_k in ((6, None), (6, 3), (0, None), (12, 1)):
        r = Retriever(bank, 'official', router=WORLDS[name.split('/')[0]].ROUTER, top_k=specific_k,
                      top_k_general=top_k)
        for g in goals:
            found, (kind, *pools) = r.retrieve(g), restated(file, g, top_k, specific_k)
            want = [[s.get('skill_id', s.get('mistake_id')) for s in p] for p in pools]
            assert [
                found.category,
                *([o.id for o in p] for p in (found.general, found.task_specific, found.mistakes)),
            ] == [kind, *want], g
            if found.general:
                assert len(_official_block(found)) == restated_length(kind, *pools)
            assert r.retrieve(g, 'heat').ids == found.ids
    nine = Retriever(bank, 'official').retrieve(goals[0])
    assert Counter(o.id[:4] for o in nine.general) == Counter({'dyn_': dynamic, 'gen_': max(0, 6 - dynamic)})

@pytest.mark.parametrize(
    'goal, sections, category',
    [('Look at it UNDER the lamp', ['clean'], 'look_at_obj_in_light'),
     ('clean and heat', ['pick_and_place'], 'clean'), ('put some wheat in cabinet', ['clean'], 'heat'),
     ('put a hot egg in fridge', ['pick_and_place'], 'pick_and_place'),
     ('find two cd', ['clean'], 'examine'), ('x', ['kitchen', 'clean_up'], 'kitchen'), ('x', [], 'unknown'),
     ('a watch to look at under water', ['clean', 'apparel'], 'look_at_obj_in_light')],
)
def test_official_category_in_the_house(goal, sections, category):
    assert looked_up('alfworld', goal, sections) == category

def test_official_mode_knows_no_query_types():
    rows = dict(direct_retrieval=[dict(skill_id='d', title='t', principle='p')])
    unread, read = ('query_type_skills', 'unknown', []), ('task_specific_skills', 'direct_retrieval', ['d'])
    for key, kind, ids in (unread, read):
        found = Retriever(SkillBank.from_dict(dict(general_skills=[], common_mistakes=[]) | {key: rows}),
                          'official', router=search.ROUTER).retrieve('who wrote emma?')
        assert (found.category, found.ids) == (kind, ids)

def test_official_mode_within_a_budget_and_without_the_retired():
    dyn = [
        Skill(f'dyn_{i:03d}', 'New', 'Look again, and then once more.',
              status='retired' if i == 2 else 'active')
        for i in range(4)
    ]
    bank = SkillBank([Skill('gen_001', 'Old', 'Look.'), *dyn], {},
                     [Mistake('err_001', 'Looped.', '', 'Stop.')])
    assert [o.id for o in Retriever(bank, 'official', top_k_general=2).retrieve('x').general] == [
        'dyn_000', 'dyn_001', 'dyn_003']
    assert [o.id for o in Retriever(bank, 'official', top_k_general=None).retrieve('x').general] == [
        'dyn_000', 'dyn_001', 'dyn_003', 'gen_001']
    short = Retriever(bank, 'official', prompt_chars=50).retrieve('x')
    assert short.ids == ['dyn_000', 'gen_001', 'err_001']
    assert 'Mistakes to Avoid\n- **Don' in _official_block(short)

# --- embedding mode

class Known:
    "An encoder that looks texts up; a text it does not know is a row of zeros"
    def __init__(self, **rows):
        self.rows, self.d = rows, len(next(iter(rows.values()), ()))
    def encode(self, texts):
        return np.array([self.rows.get(t, [0]*self.d) for t in texts], np.float32).reshape(len(texts), self.d)

def at(*cosines):
    return {f'g{i}': [c, (1 - c*c)**.5] for i, c in enumerate(cosines)}

def heated(n, category='heat', **kw):
    return [
        Skill(f'{category}_{i:03d}', 'x', f'p{i}', category=category, source_tasks=[f'g{i}'], **kw)
        for i in range(n)
    ]

def test_best_passage_above_delta_best_first():
    bank = bank_of(heated(5) + heated(1, 'cool'))
    enc = Known(heat_up=[1, 0], **at(.3, .9, .5, .7, .1))

    def ids(**kw):
        found = Retriever(bank, 'embedding', encoder=enc, **kw).retrieve('heat_up')
        return [o.id for o in found.task_specific]

    assert ids() == ['heat_001', 'heat_003', 'heat_002', 'heat_000', 'heat_004']
    assert ids(threshold=.4) == ['heat_001', 'heat_003', 'heat_002']
    assert ids(threshold=.5) == ['heat_001', 'heat_003']
    assert ids(threshold=.95) == []
    assert ids(top_k=1) == ['heat_001']
    assert ids(top_k=99) == ids()
    own = Skill('heat_900', 'x', 'y', category='heat', source_tasks=['far', 'heat_up'])
    near = Retriever(bank_of([*bank.items(), own]), 'embedding', encoder=enc).retrieve('heat_up')
    assert near.ids[0] == 'heat_900'
    assert near.scores['heat_900'] == 1
    assert 'cool_000' not in near.ids

def test_the_category_is_part_of_the_text():
    asked = []
    class Spy(Known):
        def encode(self, texts):
            asked.extend(texts)
            return super().encode(texts)
    two = Skill('p', 'Two', 'One by one.', 'Always.', source_tasks=['find two cd'])
    bank = SkillBank([Skill('gen_001', 'Look', 'Look well.')], {'pick_two': [two]}, [Mistake('e', 'Looped.')])
    Retriever(bank, 'embedding', encoder=Spy(x=[1]))
    assert asked == ['Look. Look well.', 'pick two: Two. One by one. Always.', 'find two cd', 'Looped.']

def test_general_skills_and_mistakes_are_ranked_apart_and_without_delta():
    general = [Skill(f'gen_{i:03d}', 'x', 'y', source_tasks=[f'g{i}']) for i in range(3)]
    wrong = [Mistake(f'err_{i:03d}', 'x', source_tasks=[f'g{i}']) for i in range(3)]
    found = Retriever(SkillBank(general, {'heat': heated(3)}, wrong), 'embedding', top_k=1, top_k_general=2,
                      threshold=0.8, encoder=Known(heat=[1, 0], **at(0.2, 0.9, 0.5))).retrieve('heat')
    assert found.ids == ['heat_001', 'gen_001', 'gen_002', 'err_001', 'err_002', 'err_000']

def test_nothing_alike_falls_back_to_the_category():
    bank = bank_of(heated(3) + heated(2, 'cool'))
    enc = Known(other=[1, 0], **at(.3, .9, .5))
    for threshold in (0, .7):
        found = Retriever(bank, 'embedding', threshold=threshold, top_k=2, encoder=enc).retrieve(
            'heat some egg')
        assert found.ids == ['heat_000', 'heat_001']
        assert set(found.scores.values()) == {0}

def test_a_goal_of_no_category_searches_all():
    bank = bank_of([Skill('k', 'x', 'Wipe the stove.', category='kitchen'),
                    Skill('g', 'x', 'Water the roses.', category='garden')])
    r = Retriever(bank, 'embedding', router=None)
    assert r.retrieve('water').category == ''
    assert r.retrieve('water').ids[0] == 'g'
    assert r.retrieve('stove').ids[0] == 'k'

def test_ties_keep_the_order_of_the_bank():
    skills = heated(9)
    random.Random(1).shuffle(skills)
    enc = Known(heat=[3, 4], **{f'g{i}': [3, 4] for i in range(9)})
    assert Retriever(bank_of(skills), 'embedding', top_k=4, encoder=enc).retrieve('heat').ids == [
        s.id for s in skills[:4]
    ]

def test_an_empty_bank_and_a_bank_of_empty_texts():
    for enc in (None, Known(x=[1, 0])):
        assert Retriever(SkillBank(), 'embedding', encoder=enc).retrieve('heat some egg').ids == []
    bank = SkillBank([Skill('gen_001', '', '')], {'heat': [Skill('heat_001', '', '', category='heat')]},
                     [Mistake('err_001', '')])
    assert Retriever(bank, 'embedding').retrieve('').ids == ['gen_001', 'err_001']
    assert Retriever(bank, 'embedding').retrieve('heat it').ids == ['heat_001', 'gen_001', 'err_001']

def test_nearest_source_goal_wins_with_counted_words():
    bank = bank_of([about(n, c, i, 'goals') for c in CATEGORIES for i, n in enumerate(THINGS)])
    r = Retriever(bank, 'embedding')
    for c in CATEGORIES:
        for i, n in enumerate(THINGS):
            assert r.retrieve(ASK[c].format(n, 'shelf')).ids[0] == f'{c}_{i:03d}'

# --- a router

def test_a_plain_function_is_a_router_and_general_is_no_category():
    bank = bank_of([Skill('k', 'x', 'Wipe the stove.', category='kitchen'),
                    Skill('g', 'x', 'Water the roses.', category='garden')])
    r = retrieval.Retriever(bank, 'embedding', router=lambda task: 'garden' if 'rose' in task else 'general')
    assert r.retrieve('prune the rose').ids == ['g'] and {*r.retrieve('wipe the stove').ids} == {'k', 'g'}
    assert r.retrieve('wipe the stove').category == ''

def test_a_world_without_a_procedure_seeks_no_thing():
    bank = bank_of([about('apple', 'heat', 1, 'goals'), about('egg', 'cool', 1, 'principle')])
    task = 'put a hot egg in garbagecan.'
    assert Retriever(bank).retrieve(task).ids == ['cool_001', 'heat_001']
    assert retrieval.Retriever(bank, router=ROUTER.route).retrieve(task).ids == ['heat_001', 'cool_001']

def test_where_one_thing_is_stays_hidden_from_tasks_about_another():
    "Also in worlds that name no things"
    said = [Skill(f'gen_{i}', f'Where {what} is kept', f'Look for {what} in {who}.')
            for i, (what, who) in enumerate(dict(wiki='Ada', maps='Ben').items())]
    retriever = retrieval.Retriever(SkillBank(said))
    shown = {what: retriever.retrieve(f'find the owner of {what}').ids for what in ('wiki', 'maps', 'login')}
    assert shown == dict(wiki=['gen_0'], maps=['gen_1'], login=[])
