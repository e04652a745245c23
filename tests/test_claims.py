"""What a proof may say of a skill, and when it must keep silent"""
import math
from itertools import product
import numpy as np
import pytest
from skillrl.core.stats import sign_test
from skillrl.proof import claims
from skillrl.proof.claims import ProofPlan, analyse, holm, losses_test, proof_alpha, runs_needed

PANEL = ProofPlan(panel=True)

def drawn(seed, evals=12, effect=0., rounds=8, missing=0., graded=False, sd=0.):
    rng = np.random.default_rng(seed)
    effects = np.clip(effect + sd*rng.standard_normal(evals), -.9, .9)
    chance = rng.beta(1.2, 1.2, evals)*(1 - abs(effects)) + np.maximum(0, -effects)
    chances = np.stack([chance + effects, chance])[:, None]
    scores = rng.binomial(4 if graded else 1, chances, (2, rounds, evals))/(4 if graded else 1)
    gains = scores[0] - scores[1]
    gains[rng.random(gains.shape) < missing] = np.nan
    return gains

def rare(seed, usual, seldom, chance, evals, rounds=8):
    rng = np.random.default_rng(seed)
    return np.where(rng.random((rounds, evals)) < chance, seldom, usual)

def verdicts(plan, all_gains):
    "Of these evals, of evals like these: all rounds, so that a stop for lack of hope cannot hide an error"
    rows = []
    for gains in all_gains:
        runs = claims._as_runs(plan, gains, None, ())
        rows.append([claims._verdict(plan, chances)[0] for chances in claims._chances(plan, runs)])
    return np.array(rows)

NULLS = {
    'symmetric': lambda s: drawn(s), 'three evals': lambda s: drawn(s, 3),
    'missing': lambda s: drawn(s, missing=.2), 'graded': lambda s: drawn(s, graded=True),
    'disaster': lambda s: rare(s, .05, -.45, .1, 12),
    'three with disasters': lambda s: rare(s, .1, -.9, .1, 3),
    'miracle': lambda s: rare(s, -.05, .45, .1, 6)}

@pytest.mark.parametrize('null', NULLS)
def test_nothing_is_found_where_the_mean_is_0(null):
    found = verdicts(ProofPlan(), map(NULLS[null], range(300)))
    for verdict in ('helps', 'harms'):
        assert (found == verdict).mean(0).max() <= .025 + 3*math.sqrt(.025*.975/300)

def test_effects_that_vary_between_evals_are_no_proof_for_others():
    found = verdicts(ProofPlan(), (drawn(s, sd=.5) for s in range(200)))
    assert np.mean(found[:, 0] == 'helps') > .08 # It may well help on these
    assert np.mean(found[:, 1] == 'helps') <= .025 + 3*math.sqrt(.025*.975/200)

@pytest.mark.parametrize('panel', [False, True])
def test_an_effect_is_found_and_its_interval_holds_it(panel):
    plan = ProofPlan(8, .3, panel=panel)
    held = rounds = 0
    for seed in range(40):
        gains = drawn(seed, 20, .3)
        stopped = analyse(plan, gains).stopped
        found = analyse(plan, gains[:stopped])
        assert found.verdict == 'helps'
        held += all(claim.effect.low <= .3 <= claim.effect.high for claim in found.claims)
        rounds += stopped
    assert held >= 38 and rounds/40 < 4.5

def test_power_and_runs_are_those_of_the_page():
    stops = [analyse(PANEL, drawn(seed, effect=.2)) for seed in range(150)]
    assert np.mean([a.verdict == 'helps' and a.claims[0].settled == a.stopped for a in stops]) >= .67
    assert np.mean([24*a.stopped for a in stops]) <= 145

def test_a_proof_that_was_interrupted_goes_on_as_if_it_had_not_been():
    for seed in range(5):
        gains = drawn(seed, effect=.2, missing=.1)
        whole = analyse(ProofPlan(), gains)
        claims._choices.cache_clear()
        stops = [analyse(ProofPlan(), gains[:k].tolist()).stopped for k in range(1, 9)]
        assert set(stops[:whole.stopped - 1]) <= {0} and set(stops[whole.stopped - 1:]) == {whole.stopped}
        assert repr(analyse(ProofPlan(), gains)) == repr(whole)

def test_what_is_settled_stays_settled():
    gains = np.vstack([np.ones((4, 6)), -np.ones((4, 6))])
    claim = analyse(PANEL, gains).claims[0]
    assert claim.verdict == 'helps' and claim.settled == 2 and claim.effect.low <= claim.effect.mean

def test_five_pairs_prove_nothing_and_six_do():
    found = [analyse(ProofPlan(1), np.ones((1, n))).verdict for n in (5, 6)]
    assert found == ['not enough evidence', 'helps']

@pytest.mark.parametrize('evals', [6, 7])
def test_as_few_as_six_evals_can_speak_for_others(evals):
    gains = np.ones((8, evals))
    assert analyse(ProofPlan(), gains).verdict == 'helps'
    gains[:, 0] = 0
    assert analyse(ProofPlan(), gains).verdict == ('helps' if evals == 7 else 'not enough evidence')

def test_the_verdict_follows_both_claims_and_a_panel_the_first():
    gains = np.zeros((8, 6))
    gains[:, 0] = 1
    both, panel = analyse(ProofPlan(), gains), analyse(PANEL, gains)
    for these, others in (both.claims, panel.claims):
        assert these.verdict == 'helps' and others.verdict == 'not enough evidence'
        assert these.effect.mean == others.effect.mean and others.effect.low <= 0 < these.effect.low
    assert both.verdict == 'not enough evidence' and panel.verdict == 'helps'
    assert both.p > .05 >= panel.p
    assert analyse(ProofPlan(), gains[:, :5]).verdict == 'helps' # Of five evals there is one claim

def test_levels_spend_the_square_of_the_share_of_rounds():
    walks = np.random.default_rng(0).standard_normal((200_000, 8)).cumsum(1)
    levels = claims._levels(8, .05)
    bounds = [-claims._NORMAL.inv_cdf(level)*math.sqrt(k) for k, level in enumerate(levels, 1)]
    crossed = np.logical_or.accumulate(walks > bounds, axis=1).mean(0)
    np.testing.assert_allclose(crossed, .05*(np.arange(1, 9)/8)**2, atol=.002)
    late = claims._levels(8, .05, first=7)
    assert late[:6] == [0]*6 and late[6] > claims._levels(8, .05)[6]
    assert claims._levels(1, .025) == pytest.approx([.025], rel=1e-3)

def test_p_is_the_least_alpha_that_would_have_been_enough():
    for seed in range(20):
        gains = drawn(seed, effect=.2)
        p = analyse(PANEL, gains).p
        if p < .9:
            for alpha, enough in ((1.03*p, True), (.97*p, False)):
                verdict = analyse(ProofPlan(alpha=alpha, panel=True), gains).verdict
                assert (verdict != 'not enough evidence') == enough

def test_leaving_evals_out_is_turning_their_sign():
    "Each choice of evals is a row of signs: what is left out outweighs what is not"
    means = drawn(3, effect=.2)[:, :7].mean(0)
    signs = np.array([*product([1, -1], repeat=7)])
    expected = np.mean(signs @ means >= means.sum() - 1e-9)
    assert claims._luck_of_evals(ProofPlan(), np.tile(means, (8, 1)), 0) == pytest.approx(expected)

def test_for_many_evals_choices_are_drawn():
    p = claims._luck_of_evals(ProofPlan(), np.ones((2, 30)), 0)
    assert p == 2**-14 # The empty choice alone
    gains = drawn(1, 14, .2)
    ps = [claims._luck_of_evals(ProofPlan(seed=s), gains, 0) for s in (0, 1)]
    assert ps[0] == pytest.approx(ps[1], abs=.01) and ps[0] != ps[1]

def test_an_eval_with_fewer_pairs_counts_the_same():
    gains = np.ones((8, 6))
    gains[1:, 0] = np.nan
    gains[:, 0] *= -1
    found = analyse(ProofPlan(), gains)
    assert found.claims[0].effect.mean == pytest.approx(4/6)
    values, least = claims._pooled(gains)
    assert min(values) == least == pytest.approx(-41/6) # One pair stands for a sixth of all
    assert found.claims[0].effect.n == 41

@pytest.mark.parametrize('gain', [-1, 0, .02, .5, 1])
def test_equal_gains_do_not_make_it_certain(gain):
    for k in range(1, 9):
        for claim in analyse(ProofPlan(), np.full((k, 6), gain)).claims:
            e = claim.effect
            assert -1 <= e.low < e.high <= 1 and e.low <= gain <= e.high

def test_an_interval_on_evals_like_these_is_wider_where_evals_differ():
    gains = np.tile([1., 1, 1, 1, 1, 1, 1, 1, -1, -1, 0, 0], (8, 1))
    these, others = (claim.effect for claim in analyse(ProofPlan(), gains).claims)
    assert others.low <= 0 < these.low and others.high > these.high

def test_a_hopeless_proof_stops_early_but_not_one_that_may_still_find_something():
    stops = [analyse(ProofPlan(10), drawn(seed, rounds=10)) for seed in range(40)]
    assert np.mean([a.stopped for a in stops]) < 8
    assert analyse(ProofPlan(10), drawn(0, effect=.3, rounds=10)[:2]).stopped == 0
    idle = analyse(ProofPlan(10), np.zeros((9, 12)))
    assert 'hardly' in idle.reason and idle.stopped == 9
    assert analyse(ProofPlan(1), np.zeros((1, 12))).reason == 'all rounds are done'

def test_reruns_that_agree_end_the_proof_and_every_eval_counts_once():
    signs = np.array([1., 1, 1, 1, 1, -1, -1, 0, 0, 0, 0, 0])
    gains, without = np.tile(signs, (3, 1)), np.tile(signs < 0, (3, 1)).astype(float)
    found = analyse(ProofPlan(), gains, without)
    assert found.stopped == 3 and found.verdict == 'not enough evidence'
    assert found.reason == 'all reruns agree: 5 of 12 evals gain, 2 lose'
    assert [claim.p for claim in found.claims] == [None, None] and 'p ' not in repr(found.claims[0])
    assert found.p == pytest.approx(2*sign_test(5, 2), rel=1e-6)
    assert analyse(ProofPlan(), gains[:2], without[:2]).stopped == 0
    assert analyse(ProofPlan(), gains, np.random.default_rng(0).random((3, 12))).stopped != 3
    assert analyse(ProofPlan(), np.ones((3, 6)), np.zeros((3, 6))).verdict == 'helps'
    assert analyse(ProofPlan(), -np.ones((3, 6)), np.ones((3, 6))).verdict == 'harms'

def test_agreement_of_few_evals_is_no_verdict():
    "By luck, or because only three evals were written"
    gains, without = np.ones((3, 3)), np.zeros((3, 3))
    found = analyse(ProofPlan(), gains, without)
    assert found.stopped == 3 and len(found.claims) == 2 and found.verdict == 'not enough evidence'
    assert analyse(PANEL, gains, without).verdict == 'helps'
    gains[1] = np.nan
    assert analyse(ProofPlan(), gains, without).reason != 'all reruns agree: 3 of 3 evals gain, 0 lose'

def test_rewordings_are_no_proof():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(300):
        gains = np.tile(rng.choice([-1., 0., 1.], 12, p=[.25, .5, .25]), (3, 1))
        found.append(analyse(ProofPlan(), gains, np.tile(gains[0] < 0, (3, 1))).verdict)
    assert found.count('helps') <= 12 and found.count('harms') <= 12

def test_no_worse_needs_a_margin_and_is_wrong_seldom():
    plan, gains = ProofPlan(margin=.2), drawn(9)
    assert analyse(plan, gains).verdict == 'no worse' and analyse(ProofPlan(), gains).verdict != 'no worse'
    wrong = verdicts(plan, (drawn(s, effect=-.2) for s in range(200)))[:, 0]
    assert np.mean(wrong == 'no worse') <= .05 + 3*math.sqrt(.05*.95/200)
    right = verdicts(plan, (drawn(s) for s in range(100)))[:, 0]
    assert np.mean(right == 'no worse') >= .8
    harmed = analyse(plan, drawn(1, effect=-.6))
    assert harmed.verdict == 'harms'

def test_all_of_the_error_of_no_worse_is_on_one_side():
    plan, chances = ProofPlan(margin=.15), []
    for seed in range(40):
        gains = drawn(seed, effect=-.05)
        runs = claims._as_runs(plan, gains, None, ())
        chances.append(claims._chances(plan, runs)[0]['no worse'][-1])
        assert (analyse(plan, gains).claims[0].verdict == 'no worse') == (chances[-1] <= .05)
    assert any(.025 < chance <= .05 for chance in chances) and any(.05 < chance < .1 for chance in chances)

def test_no_worse_is_said_of_these_evals():
    gains = np.zeros((8, 6))
    gains[:, 0] = -.5
    found = analyse(ProofPlan(margin=.2), gains)
    assert found.verdict == 'no worse' == found.claims[0].verdict
    assert found.claims[1].verdict == 'not enough evidence'

def test_needed_grows_with_noise_with_what_is_missing_and_for_small_effects():
    gains = drawn(0)
    small, middle, large = runs_needed(ProofPlan(), gains)
    rounds = middle['rounds']
    assert 3 < small['rounds']/rounds < 5 and rounds > large['rounds'] and small['evals'] > large['evals']
    gains[::2, 6:] = np.nan
    assert runs_needed(ProofPlan(), gains)[1]['rounds'] > rounds
    assert runs_needed(ProofPlan(16), drawn(0))[1]['evals'] < middle['evals']
    assert runs_needed(ProofPlan(alpha=.001), drawn(0))[1]['rounds'] > rounds
    steady = runs_needed(ProofPlan(), np.full((8, 12), .05), [.01])[0] # ln(1/level)/ln(1.01) pairs at least
    assert steady['rounds'] >= -math.log(claims._levels(8, .025)[-1])/math.log(1.01)/12
    lone = runs_needed(ProofPlan(), np.zeros((8, 1)), [.1])[0] # Of one eval, .04 is assumed between evals
    assert lone['evals'] == 73

@pytest.mark.parametrize('effect,evals', [(.2, 16), (.3, 8)])
def test_what_is_called_enough_is_enough(effect, evals):
    "Four times in five; even odds would not do"
    rows = []
    for seed in range(150):
        gains = drawn(seed, evals, effect)
        need = runs_needed(ProofPlan(panel=True), gains, [effect])[0]
        plan = ProofPlan(min(need['rounds'], 20), effect, panel=True)
        again = drawn(1000 + seed, evals, effect, plan.rounds)
        rows.append(analyse(plan, again).verdict == 'helps')
    assert np.mean(rows) >= .8

@pytest.mark.parametrize('gains', [[1, 0], np.zeros((9, 3)), np.zeros((0, 3)), np.zeros((2, 0))])
def test_gains_that_do_not_fit_are_refused(gains):
    for ask in (analyse, runs_needed):
        with pytest.raises(ValueError, match='give 1 to 8 rounds'):
            ask(ProofPlan(), gains)

def test_no_pair_at_all_is_no_evidence():
    found = analyse(ProofPlan(), np.full((3, 12), np.nan), np.full((3, 12), np.nan))
    assert found.verdict == 'not enough evidence' and found.claims[0].effect.n == 0 and found.p == 1

def test_holm_goes_on_to_the_first_that_does_not_stand():
    assert holm([.04, .01, .02]) == [True, True, True]
    assert holm([.04, .03, .01]) == [False, False, True]
    assert holm([.2, .025, .025]) == [False, False, False] and holm([.2, .01, .01]) == [False, True, True]
    assert holm([]) == [] and holm([.05]) == [True] and holm([.05], .04) == [False]

def test_forty_useless_skills_have_no_false_verdict():
    plan = ProofPlan(alpha=.05/40)
    ps = [analyse(plan, drawn(seed, 12)).p for seed in range(40)]
    assert not any(holm(ps))
    ps[7] = analyse(plan, drawn(0, 24, .4)).p
    assert holm(ps) == [i == 7 for i in range(40)]

def test_later_proofs_pool_what_earlier_ones_saw():
    assert proof_alpha(1) == .05 and proof_alpha(2) == proof_alpha(5) == pytest.approx(.01)
    gains = drawn(4, effect=.2, rounds=16)
    plan = ProofPlan(alpha=proof_alpha(2), panel=True)
    found = analyse(plan, gains[8:], earlier=gains[:8])
    assert found.claims[0].effect.n == 16*12 and found.claims[0].effect.mean == pytest.approx(gains.mean())
    wealth = max(claims._wealth(gains[:8 + k], 0) for k in range(1, 9))
    assert found.p == pytest.approx(2/wealth) and (found.verdict == 'helps') == (wealth >= 200)
    alone = analyse(plan, gains[8:])
    assert alone.p != found.p

def test_wealth_is_a_fair_bet():
    "Over all ways in which twelve fair gains can fall, what is won is what was put in"
    ways = [claims._wealth(np.array([way]), 0.) for way in product([-1., 1.], repeat=8)]
    assert np.mean(ways) == pytest.approx(1)
    shifted = [claims._wealth(np.array([way]), -.2) for way in product([-1., .6], repeat=6)]
    assert np.mean(shifted) == pytest.approx(1) # The mean of -1 and .6 is -.2

def test_proofs_of_a_useless_skill_stay_useless():
    helped = 0
    for seed in range(40):
        gains = drawn(seed, rounds=40)
        for number in range(1, 6):
            plan = ProofPlan(alpha=proof_alpha(number), panel=True)
            begin = 8*(number - 1)
            helped += analyse(plan, gains[begin:begin + 8], earlier=gains[:begin]).verdict == 'helps'
    assert helped <= 4

@pytest.mark.parametrize('lost,runs,p', [
    ((3, 0), (3, 3), .1), ((1, 9), (48, 48), .015433), ((0, 0), (5, 5), 1), ((5, 5), (48, 48), 1),
    ((2, 0), (2, 5), 1/21)])
def test_losses_are_compared_by_fishers_exact_test(lost, runs, p):
    assert losses_test(lost, runs) == pytest.approx(p, rel=1e-3)
    assert losses_test(lost[::-1], runs[::-1]) == pytest.approx(p, rel=1e-3)

def test_reruns_of_an_earlier_proof_that_agree_are_no_more_evidence_than_in_one():
    plan, ones = ProofPlan(alpha=proof_alpha(2)), np.ones((3, 3))
    once = analyse(ProofPlan(), ones, 0*ones)
    again = analyse(plan, ones[:1], 0*ones[:1], earlier=ones)
    assert once.verdict == again.verdict == 'not enough evidence' and again.claims[0].p is None
    assert again.stopped == 1 and again.reason == once.reason
