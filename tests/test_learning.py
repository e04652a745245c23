"What figures claim: intervals by suite, suites of each seed, and pages that say what data files say"
import json, random, re
from dataclasses import replace
from pathlib import Path
import pytest
from skillrl.core.config import SkillRLConfig
from skillrl.envs.base import world
from skillrl.training.evaluate import paired_difference, recorded
from skillrl.core.stats import clustered_gain, clustered_rate, wilson
from skillrl.core.store import data_path
from skillrl.training.pipeline import _CONDITIONS
from skillrl.core.trajectory import Trajectory, rate_of_tries, success_rate

ROOT = Path(__file__).parent.parent
_FILES = dict(alfworld='learning.json', webshop='learning_webshop.json', search='learning_search.json')

def played(won, suite='test-000', tag=''):
    "Games of one suite"
    about = dict(category='pick', metadata=dict(suite=suite))
    games = [f'{suite}/{i}' for i in range(len(won))]
    return [Trajectory(game, 'put some mug on shelf.', success=bool(w), game=tag + game, **about)
            for game, w in zip(games, won)]

def test_an_interval_by_household_is_as_wide_as_households_differ():
    apart = [[1]*8]*17 + [[0]*8]*3
    assert clustered_rate(apart).n == 160
    # By hand: a household is one value, 17 ones and 3 zeros
    alone, together = .85*.15/159, .85*.15/19
    effective = 160/(together/alone)
    assert clustered_rate(apart).low == pytest.approx(wilson(.85*effective, effective, 2.0930).low, abs=1e-4)
    assert clustered_rate([[1]*7 + [0]]*20).high < clustered_rate(apart).high
    assert clustered_gain(apart).low < clustered_gain([[1]*7 + [0]]*20).low

def test_the_interval_by_household_holds_the_truth_as_often_as_it_says():
    held = 0
    for seed in range(400):
        rng = random.Random(seed)
        rates = [rng.betavariate(1.4, .6) for _ in range(20)]
        r = clustered_rate([[int(rng.random() < rate) for _ in range(8)] for rate in rates])
        held += r.low <= .7 <= r.high
    assert held/400 > .92

def test_rates_and_differences_refuse_games_that_are_there_twice_however_tagged():
    once, again = played([1, 0, 1], tag='0:'), played([1, 0, 1], tag='1:')
    for twice in (once + once, once + again, [replace(t, metadata={}) for t in once + again]):
        with pytest.raises(ValueError, match='is there twice'):
            success_rate(twice)
    with pytest.raises(ValueError, match='is there twice'):
        paired_difference(once + again, once + again)
    assert rate_of_tries(once*5).n == 15
    assert rate_of_tries(once*5).high - rate_of_tries(once*5).low > .9*(wilson(2, 3).high - wilson(2, 3).low)

def test_suites_are_the_draws_of_a_rate_and_of_a_difference():
    lost, won = ([t for i in range(6) for t in played([w]*8, f'test-{i:03}')] for w in (0, 1))
    mixed = won[:40] + lost[40:]
    assert vars(success_rate(mixed)) == vars(clustered_rate([[1]*8]*5 + [[0]*8]))
    assert vars(paired_difference(lost, mixed)) == vars(clustered_gain([[1]*8]*5 + [[0]*8]))

@pytest.mark.parametrize('name', _FILES)
def test_each_seed_is_judged_in_suites_of_its_own_that_nobody_learnt_in(name):
    judged, learnt = set(), set()
    for seed in range(5):
        config = SkillRLConfig().merged({'seed': seed, 'env.name': name})
        learn, held_out = ([s.name for s in some] for some in world(name).suites(config.env))
        assert len(held_out) == 20 and not judged & set(held_out)
        judged |= set(held_out)
        learnt |= set(learn)
    # Bases learnt in suites called base-…, mixture-… and dagger-…
    assert not judged & learnt and all(s.startswith('test-') for s in judged)
    assert world(name).suite(config.env, 'test-000').name == 'test-000'

def read(name):
    return json.loads(data_path(_FILES[name]).read_text())

@pytest.mark.parametrize('name', _FILES)
def test_data_files_name_their_code_and_every_arm(name):
    data = read(name)
    assert re.fullmatch(r'[0-9a-f]{7,40}', data['made']['commit']) and data['env'] == name
    assert {'python', 'torch', 'transformers'} <= data['made'].keys()
    split = ', new' if name == 'alfworld' else ''
    wanted = [', '.join(c) for c in _CONDITIONS]
    wanted += ['GRPO without skills', 'GRPO without skills, also in the test suites']
    suites = [suite for row in data['seeds'] for suite in row['test'][f'after, bank{split}']]
    assert len(suites) == len(set(suites))
    for row in data['seeds']:
        assert {w + split for w in wanted} <= row['test'].keys()
        there = row['spent']['collect test'] + row['spent']['evolve test']
        assert row['without']['test'] >= there and row['without']['train'] >= row['spent']['rl train']
    assert not re.search(r'seconds|/work|/tmp|/home', json.dumps(data))

def test_readme_and_pages_say_what_the_data_files_say():
    readme = (ROOT/'README.md').read_text(encoding='utf-8')
    rows = read('alfworld')['seeds']
    first, best = (recorded(rows, f'after, {bank}, new') for bank in ('bank', 'evolved bank'))
    assert f'from {first.mean:.2f} to {best.mean:.2f} [{best.low:.2f}, {best.high:.2f}]' in readme
    assert f'{best.n} games in' in readme
    for name, page in (('webshop', 'worlds/webshop/09_world'), ('search', 'worlds/search/08_world')):
        rows = read(name)['seeds']
        rates = [recorded(rows, f'after, {bank}') for bank in ('no bank', 'bank', 'evolved bank')]
        no, first, best = (f'{r.mean:.2f}' for r in rates)
        assert f'raises success from {no} to {first}, and evolution to {best}' in readme
        text = (ROOT/'nbs'/f'{page}.ipynb').read_text(encoding='utf-8')
        assert f'{rates[2].mean:.2f} [{rates[2].low:.2f}, {rates[2].high:.2f}]' in text
