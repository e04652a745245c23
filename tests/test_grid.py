"What the grid of benchmarks/learning.py rests on: banks that say nothing true, games with a way, equal steps"
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
import pytest
from skillrl.core.config import SkillRLConfig
from skillrl.core.trajectory import Step, Trajectory
from skillrl.envs.base import seeded, world
from skillrl.skills.bank import Mistake, Skill, SkillBank
from skillrl.skills.facts import fact_of
from skillrl.skills.retrieval import advice

sys.path.append(str(Path(__file__).parents[1]/'benchmarks'))
from learning import recovered, until
from learning_figures import (
    clusters, curves_by_suite, drawn_share, gain, rate_of, share_of_steps, steps_until)
from placebo import backwards, facts_of, has_way, placebo, placebos, taken_apart, true_sentences

WORLDS = 'alfworld', 'webshop', 'search'
FALSE = 'Look for mug in moon 1.' # What a bank may hold as well

def suites_of(name):
    return world(name).suites(SkillRLConfig().merged({'env.name': name, 'env.test_suites': 3}).env)[1]

def fact_as_dict(text):
    fact = fact_of(text)
    return asdict(fact) if fact else {}

def bank_of(name, suite):
    "Half of what is true of a suite, something false, and what is true everywhere"
    method = f'To put: take, wait {suite.name}, move.'
    said = [*sorted(true_sentences(name, suite))[::2], FALSE, method, 'Open what is closed.']
    statuses = 'active', 'probation', 'retired'
    skills = [Skill(f's{i}', 'Where', text, category='pick', status=statuses[i % 3], fact=fact_as_dict(text))
              for i, text in enumerate(said)]
    return SkillBank(task_specific_skills=dict(pick=skills),
                     common_mistakes=[Mistake('err_1', 'Going', '', 'To go, choose among the actions.')])

@pytest.mark.parametrize('name', WORLDS)
def test_a_placebo_has_the_form_of_a_bank_and_says_nothing_true(name):
    suites = suites_of(name)
    banks = {suite.name: bank_of(name, suite) for suite in suites}
    for suite in suites:
        bank, false = (some[suite.name].items() for some in (banks, placebos(name, suites, banks)))
        methods = {text for some in banks.values() for text in map(advice, some.items()) if 'To put' in text}
        assert [(o.id, o.category, o.status, o.title) for o in false] == [
            (o.id, o.category, o.status, o.title) for o in bank]
        assert not {advice(o) for o in false} & {*true_sentences(name, suite), *map(advice, bank), *methods}
        assert not {advice(o, 'fact') for o in false} & true_sentences(name, suite) # What a policy reads
        pairs = [(advice(a), advice(b)) for a, b in zip(bank, false)]
        assert all(taken_apart(a)[:2] == taken_apart(b)[:2] for a, b in pairs if b != backwards(a))
        assert sum(b == backwards(a) for a, b in pairs) <= 4 # They have no form, or nobody else's fact
        assert sum(map(len, dict(pairs).values())) == pytest.approx(sum(map(len, dict(pairs))), rel=.05)
    assert advice(banks[suites[0].name].items()[0]) in true_sentences(name, suites[0]) # None was changed

def test_each_page_of_an_encyclopedia_that_tells_the_truth_is_a_true_sentence():
    suite = suites_of('search')[0]
    true = true_sentences('search', suite)
    for (kind, name), facts in suite.book.truth.items():
        for page, text in suite.book.pages(kind, name).items():
            honest = all(value in text for value in facts.values())
            assert (f'Look for {kind} in {page}.' in true) == honest

def test_a_placebo_exchanges_what_a_bank_says_and_takes_from_others_what_it_lacks():
    said = ['Look for mug in shelf 1.', 'Look for pan in drawer 2.', 'Before heat: look.']
    skills = [Skill(f's{i}', '', text) for i, text in enumerate(said)]
    bank = SkillBank(task_specific_skills=dict(heat=skills))
    def told(true, elsewhere):
        return [advice(o) for o in placebo(bank, true, elsewhere, seeded(0)).items()]
    others = facts_of([Skill('o', '', 'Before cool: open fridge 1.')])
    assert told(set(), others) == ['Look for mug in drawer 2.', 'Look for pan in shelf 1.',
                                   'Before heat: open fridge 1.']
    assert told({'Look for mug in drawer 2.'}, {})[::2] == ['1. shelf in mug for Look', 'look. heat: Before']

def test_a_cover_is_exchanged_without_the_kind_it_belongs_to():
    assert taken_apart('Before film: search film index.')[1:] == ('Before film: search film ', 'index')
    assert taken_apart('Before heat: look.')[1:] == ('Before heat: ', 'look')

def test_a_household_wants_a_way_in_games_of_its_decisive_commands():
    suite = suites_of('alfworld')[0]
    games = suite.games('new', 12)
    wanting, others = ({game.category for game in games if has_way('alfworld', suite, game) == way}
                       for way in (True, False))
    decided = {{'use': 'look'}.get(verb, verb) for verb in suite.house.preconditions}
    assert wanting and others and wanting <= decided and not others & decided

def test_a_shop_wants_a_way_where_its_product_cannot_be_bought_at_once():
    suite, marks = suites_of('webshop')[0], set()
    for game in suite.games('test', 12):
        engine = suite.env(game, 20).start(game)
        engine.keywords = ['anything']
        engine.to_product(SimpleNamespace(kind='product', text=game.product.asin))
        offered = 'click[buy now]' in engine.admissible()
        assert has_way('webshop', suite, game) == (not offered)
        marks.add(offered)
    assert marks == {True, False}

def test_an_encyclopedia_wants_a_way_where_a_page_does_not_tell_at_once():
    suite, marks = suites_of('search')[0], set()
    for game in suite.games('test', 40):
        env = suite.env(game, 20)
        env.reset()
        told = [env.step(f'<search>{hop.name} {hop.page}</search>')[0] for hop in game.hops]
        hidden = any(hop.value not in text for hop, text in zip(game.hops, told))
        assert has_way('search', suite, game) == hidden
        marks.add(hidden)
    assert marks == {True, False}

def played(*lengths):
    return [Trajectory(f't{i}', '', steps=[Step('', '')]*n) for i, n in enumerate(lengths)]

def test_blind_collecting_uses_at_least_the_steps_of_evolution_and_no_whole_episode_more():
    some = played(5, 5, 5, 5)
    assert [len(until(some, budget)) for budget in (0, 1, 5, 6, 10, 11, 99)] == [0, 1, 1, 2, 2, 3, 4]

def test_recovery_counts_points_within_the_budget_only():
    points = [dict(steps=steps) for steps in (0, 40, 90)]
    assert [recovered(points, budget)['steps'] for budget in (39, 40, 89, 1000)] == [0, 40, 40, 90]

def row(**more):
    return dict(split='new', ways={'a': '1100', 'b': '0000', 'c': '0011'}) | more

def test_games_with_a_way_are_told_apart_household_by_household():
    rows = [row(test={'x, new': {'a': '1011', 'b': '1111', 'c': '1100'},
                      'y, new': {'a': '1111', 'b': '0111', 'c': '1111'}})]*2
    assert clusters(rows, 'x', '1') == [[1, 0], [], [0, 0]]*2
    assert (rate_of(rows, 'x', '1').mean, rate_of(rows, 'x', '1').n) == (.25, 8)
    assert rate_of(rows, 'x', '0').mean == 1 and rate_of(rows, 'x').mean == .75
    assert (gain(rows, 'x', 'y', '1').mean, gain(rows, 'x', 'y', '0').mean) == (.75, -1/8)

def curve(*points):
    return [dict(spent={'a': steps, 'b': steps, 'c': steps}, test={'a': won, 'b': won, 'c': won})
            for steps, won in points]

def test_a_share_of_steps_is_read_off_both_curves_and_is_at_most_that_where_one_ends_below():
    assert steps_until([(10, .2), (20, .6), (40, 1.)], .8) == 30
    assert steps_until([(10, .9)], .8) == 10 and steps_until([(10, .2), (20, .7)], .8) is None
    evolved = curve((10, '00000'), (20, '11110'))
    fast = curve((60, '11111'))
    slow, never = curve((50, '11000'), (90, '11111')), curve((50, '11000'))
    for blind, share in ((fast, 20/(10 + 50*.8)), (slow, 20/(50 + 40*2/3)), (never, 20/50)):
        pairs = curves_by_suite([row(arms=dict(evolution=evolved, blind=blind))])
        assert share_of_steps(pairs) == pytest.approx(share)
        assert drawn_share(pairs).low == pytest.approx(share) == drawn_share(pairs).high
    assert share_of_steps(curves_by_suite([row(arms=dict(evolution=never, blind=slow))])) == float('inf')
