"""WebShop: what the lesson pages leave out, and what the original recorded.

The catalogues here are made by hand, with values that web pages and addresses write in their own way."""
import json
import os
import random
import shutil
import sys
from itertools import islice, starmap
from pathlib import Path
from types import SimpleNamespace
import pytest
from skillrl.agent.episode import Episode
from skillrl.worlds.bm25 import BM25, tokens
from skillrl.core.config import EnvConfig
from skillrl.core.store import data_path
from skillrl.core.trajectory import Trajectory
from skillrl.envs.base import world
from skillrl.worlds.webshop.catalogue import _file_names, load_catalogue, read_catalogue
from skillrl.worlds.webshop.engine import Shop, ShopEngine
from skillrl.worlds.webshop.expert import ShopExpert
from skillrl.worlds.webshop.goals import Goals
from skillrl.worlds.webshop.memory import ShopMemory, read_request
from skillrl.worlds.webshop.reward import (
    Kind, _has_attribute, letter_nouns, _matched_options, measure_purchase, _same_words)
from skillrl.worlds.webshop.shop import (buying, conventions, generate_catalogue, DETAIL_PAGES,
                                       ShopPreconditionEngine, PRECONDITIONS, name_sentence)
from skillrl.worlds.webshop.world import ShopSuite
from skillrl.worlds.webshop.teacher import _counted, _memory_at_end, _size_claims, _word_claims
from skillrl.llm.local import word_tokenizer
from skillrl.skills.evidence import replay, precondition_sentence

ROOT = Path(__file__).parents[1]

def odd_item(asin, name, options, pricing='$10.00', **more):
    "A product as the first file of the benchmark has it"
    axes = {axis: [dict(value=value) for value in values] for axis, values in options.items()}
    return dict(asin=asin, category='garden', query='Lamps', product_category='Home › Lamps', name=name,
                full_description='', small_description='glass', pricing=pricing, customization_options=axes,
                images=['x.jpg']) | more

def odd_shop(items, attributes=('glass shade',), **settings):
    "A shop of these items, each with one request"
    asins = [item['asin'] for item in items]
    noted = {asin: dict(attributes=list(attributes), instruction='Find me a lamp',
                        instruction_attributes=list(attributes)) for asin in asins}
    return Shop(read_catalogue(items, noted, {}), nouns=letter_nouns, **settings)

EXAMPLE = data_path('webshop_example')

def visit(shop, commands, form='text', goal=0):
    "Engine after `commands`, and what it said last"
    engine = ShopEngine(shop, shop.goals[goal], form)
    text = engine.reset()
    for command in commands:
        text = engine.step(command)
    return engine, text

@pytest.fixture(scope='module')
def shop():
    return Shop(load_catalogue(EXAMPLE), nouns=letter_nouns)

# ---- words and ranks ----

@pytest.mark.parametrize('text, expected', [
    ("Women's T-Shirts", ['women', 't', 'shirt']), ('1,000.5 m² at 9:30', ['1,000.5', 'm', '9', '30']),
    ('technologies possibly reliably', ['technolog', 'possibl', 'reliabl']), ("it's THE best", ['best']),
    ('co:op U.S.A. e.g', ['co:op', 'u.s.a', 'e.g']), ('_x_ __ a_b', ['_x_', 'a_b']), ('us s is', ['us', 's']),
    ('日本茶 ½', ['日', '本', '茶']), ('soft\u00adware', ['soft\u00adwar'])])
def test_words_are_those_that_lucene_indexes(text, expected):
    assert tokens(text) == expected

def test_texts_without_words_count_for_nothing():
    with_empty, without = BM25(['lamp glass', 'lamp', '', 'the']), BM25(['lamp glass', 'lamp'])
    assert with_empty.search('glass') == without.search('glass')

# ---- the catalogue ----

def test_what_is_read_of_a_product():
    long = odd_item('B1234567890', 'Lamp', {})
    item = odd_item('B1', 'Lamp', {'Color': [' Red/Blue ']}, '$1$2$3', small_description=['glass', 'oak'])
    catalogue = odd_shop([long, item, item | dict(name='Twin')]).catalogue
    assert [product.name for product in catalogue.products] == ['Lamp']
    assert catalogue['B1'].price_tag == '$1.0 to $2.0'
    assert catalogue['B1'].options == {'color': ['red | blue']} and catalogue['B1'].query == 'lamps'
    assert catalogue.search('glass') and not catalogue.search('oak') # Only the first feature is indexed
    assert catalogue.search('color red')

# ---- goals ----

def test_goals_of_one_seed_are_the_same_and_chance_is_drawn_in_the_order_of_the_original():
    catalogue = load_catalogue(EXAMPLE)
    rng = random.Random(7)
    price = rng.uniform(19.5, 27.5) # The only range is drawn first, then a cap for each product
    caps = []
    for product in catalogue.products:
        asked = price if product.asin == 'B0STEELMUG' else product.prices[0]
        caps.append(max(rng.sample([10.*i for i in range(1, 100) if 10.*i > asked][:4], 2)))
    goals = Goals(catalogue, seed=7)
    assert goals.prices['B0STEELMUG'] == price
    drawn = {product.asin: cap for product, cap, _ in goals.order}
    assert [drawn[product.asin] for product in catalogue.products] == caps

# ---- the reward ----

@pytest.mark.parametrize('bought, wanted, n', [
    ({'color': 'titanium'}, ['tan'], 1), ({'color': 'covered'}, ['red'], 1),
    ({'color': 'blue'}, {'color': 'royal blue'}, 1), ({'color': 'blue'}, {'color': 'black'}, 0),
    ({'size': 'size'}, {'size': 'medium'}, 1), ({'size': 'medium'}, {'size': 'small'}, 0),
    ({}, {'size': 'small'}, 0), ({'size': 'x large'}, ['x-large', 'X LARGE'], 2)])
def test_options_match_as_the_original_matches_them(bought, wanted, n):
    assert _matched_options(bought, wanted) == n

@pytest.mark.parametrize('a, b, same', [
    ('abcdefghij', 'abcdefghiz', True), ('abcdefg', 'abcdefz', True), ('abcdef', 'abcdez', False),
    ('aéé', 'a', True), ('', '', False), ('a_b', 'a b', False),
    ('abcdefghijklmnopqrst', 'abcdefghijklmnopqxyz', False), ('bab caaaccc', 'bab caacdcc', False)])
def test_more_than_85_per_cent_of_letters_are_the_same(a, b, same):
    assert _same_words(a, b) is same

def test_the_kind_decides_before_everything_else():
    lamp = SimpleNamespace(name='Glass Lamp', query='lamps', path='Home › Lamps', attributes=['a'], title='',
                           bullets=[], description='', options={}, price_upper=20.)
    lamp.product = lamp
    other = SimpleNamespace(**vars(lamp) | dict(name='Blue Kettle'))
    assert measure_purchase(lamp, {}, 20., lamp).reward == 1
    assert measure_purchase(lamp, {}, 20.01, lamp).reward == .5
    assert measure_purchase(other, {}, 5., lamp).reward == 0
    apart = SimpleNamespace(**vars(lamp) | dict(name='Lamp of a b c d e f g', query='x', path='Home › Home'))
    apart.product = apart
    assert measure_purchase(lamp, {}, 5., apart).reward == .5

@pytest.mark.parametrize('score, match, factor', [
    (0., True, 0.), (.09, True, .1), (.1, False, .5), (.1, True, 1.), (.2, False, .5), (.21, False, 1.)])
def test_shares_of_a_tenth_and_a_fifth_of_the_nouns_part_the_factors(score, match, factor):
    assert [Kind(match, False, score).factor, Kind(False, match, score).factor] == [factor]*2

def test_wishes_are_not_put_in_lower_case():
    lamp = SimpleNamespace(attributes=[], title='OAK Lamp', bullets=['Glass shade'], description='Warm light')
    wishes = 'oak', 'glass', 'warm', 'Warm', 'shade warm'
    assert [_has_attribute(lamp, wish) for wish in wishes] == [True]*3 + [False]*2

# ---- pages and clicks ----

def test_a_quoted_word_in_the_search_shows_an_option_as_chosen():
    shop = odd_shop([odd_item('B1', 'Lamp', {'color': ['navy', 'red']})])
    _, text = visit(shop, ['search["navy" lamp]', 'click[b1]'], 'text_rich')
    assert '[clicked button] navy [clicked button_]' in text

def test_options_named_like_buttons():
    options = {'show': ['features', 'search', 'buy now', 'size'], 'type': ['size']}
    shop = odd_shop([odd_item('B1', 'Lamp', options)])
    engine, _ = visit(shop, ['search[lamp]', 'click[b1]', 'click[search]', 'click[size]'])
    assert engine.chosen == {'type': 'size'} # Of two values alike the last counts; `search` cannot be clicked
    shown = 'back to search', '< prev', 'description', 'features', 'reviews', 'buy now', 'search', 'size'
    assert tuple(engine.clickables) == shown
    assert visit(shop, ['search[lamp]', 'click[b1]', 'click[features]'])[1].endswith('< Prev [SEP] glass')
    assert visit(shop, ['search[lamp]', 'click[b1]', 'click[buy now]'])[0].done

def test_blank_texts_are_read_as_html_reads_them():
    blank = dict(small_description=['', '\n'], full_description=' ')
    shop = odd_shop([odd_item('B1', 'Lamp', {'': ['', 'red']}, **blank)])
    engine, text = visit(shop, ['search[lamp]', 'click[b1]'])
    assert '< Prev [SEP] red [SEP] Lamp' in text and '' in engine.clickables
    assert engine.step('click[features]').endswith('< Prev [SEP] ')
    assert visit(shop, ['search[lamp]', 'click[b1]', 'click[description]'])[1].endswith('< Prev [SEP] ')

def test_pages_go_on_after_the_last():
    shop = odd_shop([odd_item(f'B{n:02d}', 'Lamp', {}) for n in range(12)])
    engine, text = visit(shop, ['search[lamp]', 'click[next >]'])
    assert text.endswith('Next > [SEP] B10 [SEP] Lamp [SEP] $10.0 [SEP] B11 [SEP] Lamp [SEP] $10.0')
    assert 'Page 3 (Total results: 12) [SEP] < Prev [SEP] Next >' in engine.step('click[next >]')
    assert 'Page 1 ' in visit(shop, ['search[lamp]', 'click[next >]', 'search[lamp]'])[1]

@pytest.mark.parametrize('command', [
    'search[]', 'search', 'SEARCH[lamp]', 'click[lamp]', 'buy', 'click[search]', '', 'search[a\nb]'])
def test_commands_that_mean_nothing_change_nothing(shop, command):
    engine = ShopEngine(shop, shop.goals[0])
    before = engine.reset()
    assert engine.step(command) == before

# ---- generated shops ----

@pytest.mark.parametrize('human', [False, True])
def test_every_goal_of_a_generated_shop_can_be_reached(human):
    goals = Goals(generate_catalogue('elm'), human=human)
    assert len(goals) > 500
    for i, goal in enumerate(goals):
        product = goal.product
        chosen = {axis: value for axis, values in product.options.items() for value in values
                  if value in (goal.options if human else goal.options.values())}
        assert measure_purchase(product, chosen, goals.prices[product.asin], goal).reward == 1
        assert i % 50 or read_request(goal.task) is not None

def test_hints_are_believed_with_the_given_chance():
    task = 'i am looking for rugs that are non slip in large'
    hints = ['Rugs = bomatu.', 'Size large = fit 9.']
    said = [ShopExpert(task, seed, trust=.5).act([], ShopMemory(''), hints)[1] for seed in range(200)]
    assert .35 < sum('bomatu' in command for command in said)/200 < .65
    assert ShopExpert(task, 0, trust=0.).act([], ShopMemory(''), hints)[1] == 'search[non slip]'
    with pytest.raises(ValueError, match='the expert cannot read it'):
        ShopExpert('put a mug in the fridge', 0)

# ---- suites ----

def test_the_original_files_make_one_suite(tmp_path):
    for name, source in zip(_file_names(small=False), _file_names()):
        shutil.copy(EXAMPLE/source, tmp_path/name)
    config = EnvConfig(name='webshop', games=str(tmp_path))
    learn, held_out = world('webshop').suites(config)
    assert learn == held_out and len(learn[0]) == 13 + 5
    goal = learn[0].games('train', 1)[0]
    env = learn[0].env(goal, 5)
    assert goal.task in env.reset()[0]
    assert world('webshop').memory(env.reset()[0]) is None # The expert reads generated requests only

# ---- what the original recorded ----

def test_recorded_cases():
    folder = Path(os.environ.get('SKILLRL_CONFORMANCE', ''), 'webshop')
    if not (folder/'episodes.json').is_file():
        pytest.skip('SKILLRL_CONFORMANCE names no folder with webshop/episodes.json')
    sys.path.insert(0, str(ROOT/'benchmarks'))
    import conformance
    assert conformance.webshop([folder]) == 0

def test_a_mistake_in_a_recorded_case_is_seen(tmp_path, capsys):
    "The check itself: what was never said by the original counts as a mismatch"
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    index = load_catalogue(tmp_path).index
    hits = [['B0STEELMUG', score] for _, score in index.search('steel', 50)]
    recorded = dict(analyzer=[['mugs', ['mug']]], searches=[dict(query='steel', hits=hits)])
    (tmp_path/'search.json').write_text(json.dumps(recorded), 'utf-8')
    sys.path.insert(0, str(ROOT/'benchmarks'))
    import conformance
    assert conformance.webshop([tmp_path]) == 0
    hits[0][1] += .001
    (tmp_path/'search.json').write_text(json.dumps(recorded), 'utf-8')
    assert conformance.webshop([tmp_path]) == 1
    assert 'mismatches' in capsys.readouterr().out

def test_goals_of_two_shops_have_names_of_their_own():
    first, second = (ShopSuite(name, n=60) for name in ('test-000', 'test-001'))
    names = [{g.id for split in suite.splits for g in suite.games(split, 9)} for suite in (first, second)]
    assert all(name.startswith('test-000/') for name in names[0]) and not names[0] & names[1]

# ---- what a tiny policy reads, and who teaches ----

def played(suite, goal, commands):
    "Trajectory of `commands`, the last of which ends the episode"
    e = Episode(suite.env(goal, len(commands)), goal)
    for command in commands:
        e.act(command)
    return e.trajectory()

def test_the_teacher_counts_what_pages_tell_and_what_purchases_were_worth():
    suite = ShopSuite('elm', (True,), n=150, preconditions=False)
    goal = next(g for g in suite.games('train', 500) if g.task.split(',')[0].endswith(' in large'))
    true, asin = conventions('elm'), goal.product.asin.lower()
    said = goal.product.query
    word = true.words[said]
    bought = [f'search[{goal.product.name}]', f'click[{asin}]', f'click[{true.sizes["large"]}]',
              'click[buy now]']
    won = played(suite, goal, bought)
    assert won.success
    read = [(won, _memory_at_end(won))]
    assert {key: r.support for key, r in _counted(starmap(_word_claims, read)).items()} == {(said, word): 1}
    assert list(_counted(starmap(_size_claims, read))) == [('large', true.sizes['large'])]
    other = next(p for p in suite.shop.catalogue.products if p.query not in (said, 'display stands'))
    wrong = played(suite, goal, [f'search[{other.name}]', f'click[{other.asin.lower()}]', 'click[buy now]'])
    assert wrong.reward == 0
    records = _counted([_word_claims(wrong, _memory_at_end(wrong))])
    assert [record.support for record in records.values()] == [-1]
    looked = played(suite, goal, [f'search[{other.name}]', f'click[{other.asin.lower()}]', 'click[features]'])
    skills = world('webshop').teacher().distill([won, wrong, looked])
    told = {skill.principle for skill in skills if hasattr(skill, 'principle')}
    assert name_sentence(other.query, true.words[other.query]) in told and told <= set(true.sentences())
    assert name_sentence('size large', true.sizes['large']) in told

# ---- what has to be looked at before a purchase ----

def opened(suite):
    "Goal of a category with a way, commands that lead to its product with all chosen, and the two pages"
    wanted = [g for g in suite.games('train', 500) if g.category in suite.preconditions]
    goal = next(g for g in wanted if isinstance(g.options, dict))
    clicks = [goal.product.asin.lower(), *goal.options.values()]
    pages = [page.removeprefix('see ') for page in suite.preconditions[goal.category].split(', ')]
    return goal, [f'search[{goal.product.name}]', *[f'click[{text}]' for text in clicks]], pages

def looks(pages):
    "Commands of somebody who looks at `pages`"
    return [command for page in pages for command in (f'click[{page}]', 'click[< prev]')]

def test_a_shop_sells_once_its_pages_were_looked_at():
    suite = ShopSuite('elm', n=150)
    goal, commands, pages = opened(suite)
    buy = ['click[buy now]']
    assert not played(suite, goal, commands + buy).success
    assert not played(suite, goal, commands + looks(reversed(pages)) + buy).success
    assert not played(suite, goal, looks(pages) + commands + buy).success
    assert played(suite, goal, commands + looks(pages) + buy).success
    leaves = ['click[< prev]', f'click[{goal.product.asin.lower()}]']
    again = [*commands, *looks(pages), *leaves, *commands[2:], *buy]
    assert not played(suite, goal, again).success # Another visit begins anew
    assert played(ShopSuite('elm', n=150, preconditions=False), goal, commands + buy).success

def test_two_pages_open_a_purchase_and_no_others_do():
    suite = ShopSuite('elm', n=150)
    goal, commands, _ = opened(suite)
    for way, other in [(way, other) for way in PRECONDITIONS for other in PRECONDITIONS]:
        engine = ShopPreconditionEngine(suite.shop, goal, {goal.category: way})
        for command in [*commands, *looks([page.removeprefix('see ') for page in other.split(', ')])]:
            engine.step(command)
        assert ('click[buy now]' in engine.admissible()) == (way == other)

def test_ways_change_nothing_but_the_button():
    suite, rng = ShopSuite('elm', n=150), random.Random(0)
    for goal in suite.games('train', 20):
        plain, shop = ShopEngine(suite.shop, goal), suite.env(goal, 99).start(goal)
        for _ in range(40):
            seen = [text for text in plain.admissible() if text != 'click[buy now]']
            assert [text for text in shop.admissible() if text != 'click[buy now]'] == seen
            command = rng.choice(seen).replace('<your query>', goal.product.name)
            texts = [engine.step(command).replace(' [SEP] Buy Now', '') for engine in (plain, shop)]
            assert texts[0] == texts[1]

def test_files_of_ones_own_have_no_ways():
    assert ShopSuite('elm', catalogue=generate_catalogue('elm', 20)).preconditions == {}

def test_the_teacher_reads_off_what_opened_the_door_and_forgets_what_does_not():
    suite, reader = ShopSuite('elm', n=150), world('webshop').teacher().reader
    goal, commands, pages = opened(suite)
    lost = played(suite, goal, [*commands, 'click[buy now]'])
    assert reader.preconditions([lost]) == [] and reader.attempts(lost)[0].shut
    told = world('webshop').experimenter([lost])(Episode(suite.env(goal, 9), goal).start())
    possible = {precondition_sentence(buying(goal.category), pages) for pages in PRECONDITIONS}
    assert len(told) == 3 and set(told) <= possible
    others = [page for page in DETAIL_PAGES if page not in pages]
    won = played(suite, goal, [*commands, *looks([*others, *pages]), 'click[buy now]'])
    [skill] = reader.preconditions([lost, won])
    assert skill.principle in conventions('elm').sentences() and skill.category == goal.category
    suite.preconditions = dict.fromkeys(suite.preconditions, 'see reviews, see reviews')
    again = played(suite, goal, [*commands, *looks(pages), 'click[buy now]'])
    assert reader.preconditions([lost, won, again]) == []
    assert reader.attempts(Trajectory('a', 'put a mug in the fridge')) == []

def test_a_click_on_an_option_is_not_refused():
    suite = ShopSuite('elm', n=150)
    goal = next(g for g in suite.games('train', 50) if g.options)
    value = next(iter(goal.options.values()))
    opened = [f'search[{goal.product.name}]', f'click[{goal.product.asin.lower()}]', f'click[{value}]']
    t = played(suite, goal, [*opened, 'click[no such thing]'])
    reader = world('webshop').teacher().reader
    assert [reader.refused(step, after) for step, after, _ in replay(t)] == [False, False, False, True]

def test_the_vocabulary_of_the_base_policy_has_all_that_the_expert_says():
    sys.path.insert(0, str(ROOT/'tools'))
    from make_webshop_base import rows, vocabulary
    tokenizer = word_tokenizer(vocabulary())
    for row in islice(rows(random.Random(0)), 120):
        ids = tokenizer(row['completion'])['input_ids']
        assert tokenizer.decode(ids, skip_special_tokens=True) == row['completion']
        assert len(tokenizer(row['prompt'][1]['content'])['input_ids']) < 150

def test_the_tokenizer_of_the_first_world_is_as_it_was(tmp_path):
    sys.path.insert(0, str(ROOT/'tools'))
    from make_base import vocabulary
    word_tokenizer(vocabulary()).save_pretrained(tmp_path)
    assert (tmp_path/'tokenizer.json').read_bytes() == (data_path('base')/'tokenizer.json').read_bytes()
