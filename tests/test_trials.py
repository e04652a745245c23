"What is active has proved itself: forty hostile sentences beside useful ones, and goals nobody practised"
import random
import sys
from pathlib import Path
from types import SimpleNamespace
import pytest
from skillrl.core.config import EvolutionConfig
from skillrl.envs.alfworld.households import household
from skillrl.envs.alfworld.scene import ROUTER
from skillrl.envs.alfworld.scene import CATEGORIES
from skillrl.skills.bank import Proposal, shown_entries, Skill, SkillBank
from skillrl.skills.evolution import Experience, evolve
from skillrl.skills.retrieval import Retrieved, Retriever, advice
from skillrl.skills.trials import (
    _Effect, choose_games, consider, draw_trials, effects_by_form, games_on_trial, _estimate, on_trial,
    put_on_probation, Round, settle_trials, with_counts)
from skillrl.core.trajectory import Step, Trajectory

sys.path.append(str(Path(__file__).parents[1]/'benchmarks'))
from hostile_teacher import HOSTILE, hostile_entries
from trials import CASES, outcome, within
from skillrl.skills.consolidation import normal

class Reader:
    def room(self, t):
        return t.metadata['room']

class Nothing:
    def retrieve(self, task):
        return Retrieved(task, '', [], [], [])

def test_every_second_game_is_played_in_the_room_where_least_was_played():
    tasks = [('heat egg', 'kitchen')]*5 + [('find book', 'bedroom')]*2
    played = [Trajectory(f'{i}', task, 'any', [Step('', 'look')], True, metadata=dict(room=room))
              for i, (task, room) in enumerate(tasks)]
    games = [SimpleNamespace(task=task, category='any')
             for task in ('heat egg', 'never met', *['heat egg']*5, *['find book']*3)]
    first, rest = choose_games(games, 6, Nothing(), Reader(), played)
    assert (first, [g.task for g in rest[1::2]]) == ([], ['find book']*3)
    assert [g.task for g in rest[::2]] == ['heat egg', 'never met', 'heat egg'] # These are checked in order

def is_hostile(o):
    return normal(advice(o)) in HOSTILE

def bank_of(house):
    "True sentences on what the goals of a household need, and the hostile ones"
    bank = SkillBank()
    for category, goals in house.goals.items():
        for thing in dict.fromkeys(goal.thing for goal, _ in goals):
            bank = Proposal('add', Skill('', 'Where', house.hint(thing), category=category)).apply(bank)[0]
    for o in hostile_entries():
        bank = Proposal('add', o).apply(bank)[0]
    return put_on_probation(bank)

def won(shown, thing, effects, rng):
    "A coin that lands better with the place of `thing`, and as `effects` says with a hostile sentence"
    chance = .25 + .5*any(f'for {thing} in' in advice(o) for o in shown)
    chance += sum(effects for o in shown if is_hostile(o))
    return rng.random() < chance

def play(bank, house, number, effects, groups=15, size=8):
    "What GRPO would have played in one household between two rounds"
    retriever = Retriever(on_trial(bank), router=ROUTER, top_k_general=1, top_k_mistakes=1)
    rng, out = random.Random(f'{house.name}/{number}'), []
    categories = [c for c in CATEGORIES if house.goals[c]]
    for k in range(groups):
        game = house.game('train', rng.randrange(10**6), rng.choice(categories))
        found = retriever.retrieve(game.task)
        hidden, tried = draw_trials(map(bank.get, found.ids), size, .1, f'{number}/{k}')
        for i, without in enumerate(hidden):
            shown = [o for o in found.items() if o.id not in without]
            t = Trajectory(f'{game.id}#{i}', game.task, game.category, game=game.id,
                           success=won(shown, game.goal.thing, effects, rng))
            t.metadata |= dict(tried=tried, hidden=sorted(without), group=f'{number}/{k}')
            out.append(t)
    return out

class Silent:
    def propose(self, *args):
        return []

def after_rounds(effects, rounds=3, households=8):
    houses = [household(f'train-{i}') for i in range(households)]
    banks = {h.name: bank_of(h) for h in houses}
    for number in range(rounds):
        seen = {h.name: play(banks[h.name], h, number, effects) for h in houses}
        measured = {name: effects_by_form([bank], ROUTER) for name, bank in banks.items()}
        for name in banks:
            elsewhere = {}
            for found in (m for other, m in measured.items() if other != name):
                for form, those in found.items():
                    elsewhere.setdefault(form, []).extend(those)
            experience = Experience(seen[name], elsewhere=elsewhere)
            banks[name], _ = evolve(banks[name], experience, Silent(), EvolutionConfig(), ROUTER)
            banks[name] = SkillBank.from_dict(banks[name].to_dict())
    return [o for bank in banks.values() for o in bank.items()]

@pytest.mark.parametrize('effects', [0., -.15])
def test_after_three_rounds_no_hostile_sentence_is_active_and_no_useful_one_is_gone(effects):
    entries = after_rounds(effects)
    assert not [advice(o) for o in entries if is_hostile(o) and o.status == 'active']
    assert not [advice(o) for o in entries if is_hostile(o) and 'credit' in o.provenance]
    useful = [o for o in entries if not is_hostile(o)]
    assert not [o for o in useful if o.status == 'retired']
    assert sum(o.status == 'active' for o in useful) > .8*len(useful)
    assert all(o.status == 'active' or 'credit' in o.provenance for o in useful if not o.stats.get('groups'))

def tried(status='probation', **counts):
    category = 'cool'
    o = Skill('a', 'Where', 'Look for plate in cabinet 1.', category=category, status=status)
    o.stats |= counts
    return SkillBank([], {category: [o]})

def status_of(bank):
    return settle_trials(bank, {}, ROUTER)[0].items()[0].status

def test_what_helps_becomes_active_and_what_does_not_is_retired_and_the_sign_matters():
    helps = dict(tries_with=60, wins_with=50, tries_without=60, wins_without=10)
    loses = dict(tries_with=60, wins_with=10, tries_without=60, wins_without=50)
    assert status_of(tried(**helps)) == 'active'
    assert status_of(tried(**loses)) == 'retired'
    assert status_of(tried(status='active', **loses)) == 'retired'
    kept, record = evolve(tried(**loses), Experience([]), Silent(), EvolutionConfig(gate='none'), ROUTER)
    assert kept.items()[0].status == 'probation' and record['verdicts'] == []

def test_a_verdict_says_what_it_rests_on():
    even = dict(tries_with=24, wins_with=9, tries_without=24, wins_without=9)
    assert settle_trials(tried(groups=23, **even), {}, ROUTER)[1] == []
    _, (row,) = settle_trials(tried(groups=24, **even), {}, ROUTER)
    assert row['groups'] == 24 and row['reason'] == '24 groups did not show that it helps'
    assert (row['before'], row['status'], row['effect']) == ('probation', 'retired', 0)
    assert row['low'] == -row['high'] < 0

def test_a_general_sentence_needs_two_categories_and_several_games():
    counts = dict(tries_with=60, wins_with=60, tries_without=60, wins_without=6)
    def status(*places):
        o = Skill('a', 'Doors', 'Open what is closed.', status='probation')
        o.provenance['tried_in'] = list(places)
        o.stats |= counts
        return status_of(SkillBank([o]))
    assert status(['cool', 'a'], ['cool', 'b'], ['cool', 'c']) == 'probation'
    assert status(['cool', 'a'], ['heat', 'b']) == 'probation'
    assert status(['cool', 'a'], ['heat', 'b'], ['heat', 'c']) == 'active'

def test_nothing_becomes_active_that_was_never_tried_and_a_form_of_which_some_harm_gives_no_credit():
    helps, loses = _Effect(.6, .01), _Effect(-.3, .01)
    fresh = tried()
    for credit, others in (1, [helps]*60), (0, [helps]*60 + [loses]*60), (0, []):
        settled, rows = settle_trials(fresh, dict(place=others), ROUTER)
        assert (len(shown_entries(settled.items())), len(settled.items('active')), rows) == (credit, 0, [])
        found = Retriever(settled, router=ROUTER).retrieve('cool some plate and put it in cabinet.')
        assert len(found.ids) == credit

def test_a_try_of_its_own_makes_active_what_had_credit():
    once = dict(tries_with=1, wins_with=1, tries_without=1, wins_without=1, groups=1)
    settled, (row,) = settle_trials(tried(**once), dict(place=[_Effect(.6, .01)]*9), ROUTER)
    assert (row['status'], row['groups']) == ('active', 1)
    assert settled.items()[0].provenance == dict(proved='trials')

def test_what_was_retired_counts_for_its_form():
    loses = dict(tries_with=60, wins_with=6, tries_without=60, wins_without=54)
    things = 'mug', 'bowl', 'cup'
    retired = [Skill(thing, 'Where', f'Look for {thing} in cabinet 1.', category='cool', status='retired',
                     stats=dict(loses)) for thing in things]
    helps = dict(place=[_Effect(.6, .01)]*9)
    fresh = tried().items()
    shown = [shown_entries(settle_trials(SkillBank([], dict(cool=fresh + those)), helps, ROUTER)[0].items())
             for those in ([], retired)]
    assert list(map(len, shown)) == [1, 0]

def test_probation_is_not_shown():
    bank = tried()
    shown = [Retriever(b, router=ROUTER).retrieve('cool some plate and put it in cabinet.').ids
             for b in (bank, on_trial(bank))]
    assert shown == [[], ['a']]

def test_nobody_practises_the_goals_of_the_new_split():
    for i in range(6):
        house = household(f'test-{i}')
        splits = 'collect', 'train', 'val', 'gate', 'report', 'test'
        goals = {split: {g.goal for g in house.games(split, 12)} for split in splits}
        new = {g.goal for g in house.games('new', 12)}
        assert len(new) >= 12 and not new & set.union(*goals.values())

def drawn(status, share, size=8, seeds=400):
    "How often one entry is on trial"
    bank = tried(status)
    groups = [draw_trials([bank.get('a')], size, share, seed) for seed in range(seeds)]
    assert {sum('a' in h for h in hidden) for hidden, on in groups if on} <= {size//2}
    return sum(on == ['a'] for _, on in groups)

def test_the_proven_are_tried_again_in_a_share_of_groups_and_the_new_in_all():
    assert [drawn('active', share) for share in (0., 1.)] == [0, 400]
    assert 20 < drawn('active', .1) < 60
    assert drawn('probation', 0.) == drawn('probation', 0., size=5) == 400
    assert drawn('probation', 1., size=1) == 0

@pytest.mark.parametrize('n', range(8))
def test_each_other_of_its_form_says_a_little_and_none_is_the_one_that_counts(n):
    """Before anything is known: nothing, give or take .3. Each other adds less than the one before it"""
    def likely(n):
        return _estimate(None, [_Effect(.5, .04)]*n).effect
    assert (likely(0).mean, likely(0).var**.5) == (0, pytest.approx(.3))
    steps = [likely(k + 1).mean - likely(k).mean for k in range(n + 1)]
    assert all(step > 0 for step in steps) and steps == sorted(steps, reverse=True)

@pytest.mark.parametrize('mean, is_sure', [(.5, False), (.515, True)])
def test_a_form_vouches_beyond_doubt(mean, is_sure):
    "Three of the variance .03, and .045 between them: the mean has .127², 2.58 of which are below"
    pooled = mean*3/.075/(1/.045 + 3/.075)
    assert (pooled > 2.576*(1/(1/.045 + 3/.075))**.5) is is_sure
    assert _estimate(None, [_Effect(mean, .03)]*3).is_sure is is_sure

def test_what_is_as_uncertain_as_what_was_expected_counts_half():
    known = _estimate(_Effect(.2, .3**2), [])
    assert (known.effect.mean, known.effect.var) == pytest.approx((.1, .3**2/2))

@pytest.mark.parametrize('groups, won, status', [
    (23, 9, 'probation'), (24, 9, 'retired'), (24, 12, 'probation'), (23, 15, 'probation'),
    (24, 15, 'active')])
def test_after_24_groups_little_is_too_little_and_much_is_enough(groups, won, status):
    counts = dict(tries_with=24, wins_with=won, tries_without=24, wins_without=9)
    assert status_of(tried(groups=groups, **counts)) == status

@pytest.mark.parametrize('mean, credit', [(.15, 0), (.2, 1)])
def test_a_form_that_is_vouched_for_has_to_help_the_next_in_two_of_three_cases(mean, credit):
    "Where effects lie .4 from their mean the next has the deviation .4, and a third lies .43*.4 below"
    others = [_Effect(mean + .4, 1e-6), _Effect(mean - .4, 1e-6)]*20
    settled, _ = settle_trials(tried(), dict(place=others), ROUTER)
    assert len(shown_entries(settled.items())) == credit

def test_of_rivals_one_is_tried_at_a_time_the_least_tried_first():
    entries = [Skill(f'cool_{n}', 'Way', f'Before cool: open drawer {n}.', category='cool',
                     status='probation', stats=dict(groups=n)) for n in (3, 1, 2)]
    other = Skill('cool_9', 'Where', 'Look for egg in fridge 1.', category='cool', status='probation')
    hidden, on = draw_trials([*entries, other], 4, 0., 'a group')
    assert on == ['cool_1', 'cool_9']
    assert all({'cool_2', 'cool_3'} <= h for h in hidden) and sum('cool_1' in h for h in hidden) == 2
    assert draw_trials(entries, 1, 0., 'a single try') == ([set()], [])
    entries[0].stats |= dict(tries_with=1, wins_with=1, tries_without=1, wins_without=0)
    assert draw_trials(entries, 4, 0., 'a group')[1] == ['cool_3'] # It has helped so far

@pytest.mark.parametrize('name', ['helps', 'helps a little', 'does nothing for the middling', 'harms'])
def test_the_rule_finds_what_it_promises(name):
    "In pairs, looked at after each; the figures of benchmarks/trials.py"
    found = outcome(name, runs=150, seed=1)
    assert within(found['active'], CASES[name].active, 150)
    assert within(found['retired'], CASES[name].retired, 150)

HELPS = dict(place=[_Effect(.6, .01)]*9)

def retired_by_word(gate='probation', **counts):
    "The bank after a teacher would retire its only entry, which is active"
    now = Round([], EvolutionConfig(gate=gate), router=ROUTER)
    proposal = Proposal('retire', ids=('a',), hypothesis='Nobody found it there.')
    return consider(proposal, tried('active', **counts), now)[0]

def test_what_nobody_has_tried_goes_on_trial_instead_of_being_retired_and_has_no_credit():
    doubted = retired_by_word()
    o, = doubted.items()
    assert (o.status, o.provenance['doubted']) == ('probation', 'Nobody found it there.')
    assert shown_entries(settle_trials(doubted, HELPS, ROUTER)[0].items()) == []
    o.stats |= dict(tries_with=1, wins_with=1, tries_without=1, wins_without=0, groups=1)
    assert status_of_others(doubted) == 'active'

def status_of_others(bank):
    return settle_trials(bank, HELPS, ROUTER)[0].items()[0].status

@pytest.mark.parametrize('gate, wins, status', [
    ('none', None, 'retired'), ('probation', (0, 1), 'retired'), ('probation', (1, 0), 'active')])
def test_a_word_retires_what_trials_do_not_speak_for(gate, wins, status):
    tries = dict(tries_with=1, tries_without=1)
    counts = {} if wins is None else tries | dict(zip(('wins_with', 'wins_without'), wins))
    assert retired_by_word(gate, **counts).items()[0].status == status

@pytest.mark.parametrize('told, groups', [(['Before heat: look.'], 0), ([], 1)])
def test_a_try_that_was_told_what_to_try_is_no_trial(told, groups):
    tries = [Trajectory(f'{k}', 'cool some plate', 'cool', [Step('', 'look')], True,
                        metadata=dict(tried=['a'], hidden=hidden, group='g', told=told))
             for k, hidden in enumerate(([], ['a']))]
    assert with_counts(tried(), tries).items()[0].stats.get('groups', 0) == groups

def places(*groups):
    "Rival places of one thing and a place of another, tried in so many groups"
    return [Skill(f'cool_{n}', 'Where', f'Look for {thing} in drawer {n}.', category='cool',
                  status='probation', stats=dict(groups=groups[n]))
            for n, thing in enumerate(('plate', 'plate', 'mug'))]

def test_of_rivals_one_has_credit():
    settled, _ = settle_trials(SkillBank([], dict(cool=places(0, 0, 0))), HELPS, ROUTER)
    assert [o.id for o in shown_entries(settled.items())] == ['cool_0', 'cool_2']

def test_more_games_are_played_where_more_is_on_trial_the_least_tried_first():
    games = [SimpleNamespace(task=f'cool some {thing} and put it in cabinet.')
             for thing in ('plate', 'plate', 'mug', 'mug', 'egg')]
    bank = SkillBank([], dict(cool=places(3, 3, 2)))
    retriever = Retriever(on_trial(bank), router=ROUTER)
    chosen = [[g.task.split()[2] for g in games_on_trial(games, n, retriever, bank)] for n in (1, 3, 9)]
    assert chosen == [['mug'], ['mug', 'plate', 'mug'], ['mug', 'plate', 'mug']]
