"""What a proof may say of a skill, and when it must keep silent"""
import numpy as np
import pytest
from skillrl.proof import claims
from skillrl.proof.claims import ProofPlan, analyse, runs_needed

def drawn(seed, evals=12, effect=0., rounds=8, missing=0., graded=False):
    rng = np.random.default_rng(seed)
    chance = rng.beta(1.2, 1.2, evals)*(1 - abs(effect)) + max(0, -effect)
    chances = np.stack([chance + effect, chance])[:, None]
    scores = rng.binomial(4 if graded else 1, chances, (2, rounds, evals))/(4 if graded else 1)
    gains = scores[0] - scores[1]
    gains[rng.random(gains.shape) < missing] = np.nan
    return gains

@pytest.mark.parametrize('how', [dict(evals=3, rounds=12), dict(missing=.2), dict(graded=True, rounds=5)])
def test_nothing_is_found_where_there_is_nothing(how):
    found = []
    for seed in range(150):
        gains = drawn(seed, **how)
        plan = ProofPlan(len(gains))
        claim = analyse(plan, gains).claims[0] # All rounds: a stop for lack of hope cannot hide an error
        found.append(claim.verdict)
        beside_zero = max(claim.effect.low, -claim.effect.high) >= 0
        assert beside_zero == bool(claim.settled)
    assert found.count('helps') <= 10 and found.count('harms') <= 10

@pytest.mark.parametrize('beyond', [False, True])
def test_an_effect_is_found_and_its_interval_holds_it(beyond):
    plan = ProofPlan(8, .3, beyond=beyond)
    held = rounds = 0
    for seed in range(60):
        gains = drawn(seed, 20, .3)
        stopped = analyse(plan, gains).stopped
        claim = analyse(plan, gains[:stopped]).claims[beyond]
        assert claim.verdict == 'helps'
        held += claim.effect.low <= .3 <= claim.effect.high
        rounds += stopped
    assert held >= 56 and rounds/60 < 4

def test_a_proof_that_was_interrupted_goes_on_as_if_it_had_not_been():
    for seed in range(5):
        gains = drawn(seed, effect=.2, missing=.1)
        whole = analyse(ProofPlan(), gains)
        claims._coins.cache_clear()
        stops = [analyse(ProofPlan(), gains[:k].tolist()).stopped for k in range(1, 9)]
        assert set(stops[:whole.stopped - 1]) <= {0} and set(stops[whole.stopped - 1:]) == {whole.stopped}
        assert repr(analyse(ProofPlan(), gains)) == repr(whole)

def test_what_is_settled_stays_settled():
    gains = np.vstack([np.ones((4, 6)), -np.ones((4, 6))])
    claim = analyse(ProofPlan(), gains).claims[0]
    assert claim.verdict == 'helps' and claim.settled <= 4 and claim.effect.low <= claim.effect.mean

def test_five_coins_prove_nothing_and_six_do():
    verdicts = [analyse(ProofPlan(1), np.ones((1, n))).claims[0].verdict for n in (5, 6)]
    assert verdicts == ['not enough evidence', 'helps']

def test_many_runs_of_one_eval_say_nothing_of_other_evals():
    gains = np.zeros((8, 6))
    gains[:, 0] = 1
    these, others = analyse(ProofPlan(), gains).claims
    assert these.verdict == 'helps' and others.verdict == 'not enough evidence'
    assert these.effect.mean == others.effect.mean and others.effect.low <= 0 < these.effect.low

@pytest.mark.parametrize('gain', [-1, 0, .02, .5, 1])
def test_equal_gains_do_not_make_it_certain(gain):
    for k in range(1, 9):
        for claim in analyse(ProofPlan(), np.full((k, 6), gain)).claims:
            e = claim.effect
            assert -1 <= e.low < e.high <= 1 and e.low <= gain <= e.high

def test_a_hopeless_proof_stops_early_but_not_one_that_may_still_find_something():
    stops = [analyse(ProofPlan(10), drawn(seed, rounds=10)) for seed in range(40)]
    assert np.mean([a.stopped for a in stops]) < 8
    assert analyse(ProofPlan(10), drawn(0, effect=.3, rounds=10)[:2]).stopped == 0
    assert 'below 0.3' in analyse(ProofPlan(10), np.zeros((9, 12))).reason
    assert analyse(ProofPlan(1), np.zeros((1, 12))).reason == 'all rounds are done'

def test_needed_grows_with_noise_with_what_is_missing_and_for_small_effects():
    gains = drawn(0)
    small, middle, large = runs_needed(ProofPlan(), gains)
    rounds = middle['rounds']
    assert 3 < small['rounds']/rounds < 5 and rounds > large['rounds'] and small['evals'] > large['evals']
    gains[::2, 6:] = np.nan
    assert runs_needed(ProofPlan(), gains)[1]['rounds'] > rounds
    assert runs_needed(ProofPlan(16), drawn(0))[1]['evals'] < middle['evals']

@pytest.mark.parametrize('gains', [[1, 0], np.zeros((9, 3)), np.zeros((0, 3)), np.zeros((2, 0))])
def test_gains_that_do_not_fit_are_refused(gains):
    for ask in (analyse, runs_needed):
        with pytest.raises(ValueError, match='give 1 to 8 rounds'):
            ask(ProofPlan(), gains)

def test_few_evals_say_nothing_of_others():
    with pytest.raises(ValueError, match='of 6 evals or more'):
        analyse(ProofPlan(beyond=True), np.zeros((1, 5)))
    assert len(analyse(ProofPlan(), np.zeros((1, 5))).claims) == 1
