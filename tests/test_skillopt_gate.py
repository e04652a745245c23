"The edit budget and the gate of SkillOpt: what skillrl 1.0.0 computes, and how often each rule is wrong"

import itertools, json, math, random
import pytest
from skillrl.skillopt.gate import compute_score, decide, gate_score
from skillrl.skillopt.settings import edits_of_step
from skillrl.core.stats import interval, lower_bound, sign_test, weighed_below
from skillrl.skillopt.types import RolloutResult

# Recorded from 1.0.0; the last four of 'linear' hold budgets that end in a half, which may round either way
SEQUENCES = [
    ('constant', 4, 2, 3, [4, 4, 4]),
    ('linear', 4, 2, 8, [4, 4, 3, 3, 3, 2, 2, 2]),
    ('linear', 5, 1, 3, [4, 2, 1]),
    ('linear', 5, 1, 1, [5]),
    ('linear', 8, 1, 14, [8, 7, 6, 6, 6, 5, 4, 4, 4, 3, 2, 2, 2, 1]),
    ('linear', 11, 2, 6, [10, 8, 6, 5, 4, 2]),
    ('linear', 11, 2, 12, [10, 10, 9, 8, 7, 6, 6, 5, 4, 4, 3, 2]),
    ('linear', 11, 2, 18, [10, 10, 10, 9, 8, 8, 8, 7, 6, 6, 6, 5, 4, 4, 4, 3, 2, 2]),
    ('cosine', 4, 2, 8, [4, 4, 3, 3, 3, 2, 2, 2]),
    ('cosine', 16, 4, 10, [16, 15, 14, 12, 10, 8, 6, 5, 4, 4]),
]

@pytest.mark.parametrize('mode,high,low,n,budgets', SEQUENCES)
def test_schedules_of_1_0_0(mode, high, low, n, budgets):
    assert [edits_of_step(mode, high, low, i, n) for i in range(1, n + 1)]==budgets
    assert edits_of_step(mode, high, low, n + 2, n)==budgets[-1], 'beyond the end it stays'

@pytest.mark.parametrize('mode', ['constant', 'linear', 'cosine'])
def test_budgets_stay_within_bounds_and_never_rise(mode):
    for high, low, n in itertools.product(range(0, 20), range(0, 20), (1, 2, 3, 7, 8, 40)):
        if low > high:
            continue
        budgets = [edits_of_step(mode, high, low, i, n) for i in range(1, n + 3)]
        assert all(type(b) is int and low <= b <= high for b in budgets) and budgets == sorted(
            budgets, reverse=True
        )


lost = RolloutResult('item-1', 0, 0, fail_reason='rollout_error: Outage: 503', status='infra_error')

def test_scores_are_means():
    assert compute_score([RolloutResult('a', 1, .5), RolloutResult('b', 0, .25)])==(.5, .375)
    assert gate_score(RolloutResult('b', .5, 1.), 'mixed')==.75, 'fractions are kept'

def test_E1_a_lost_rollout_is_no_zero():
    assert compute_score([RolloutResult('item-0', 1, 1), lost])==(1., 1.)
    with pytest.raises(ValueError, match='none of 1 results has a score'):
        compute_score([lost])

def test_C11_nothing_to_decide_on_is_an_error():
    for empty in (lambda: compute_score([]), lambda: decide([])):
        with pytest.raises(ValueError, match='none of 0 results|no pair of scores'):
            empty()

@pytest.mark.parametrize('bad', [5, -.1, math.nan, math.inf])
def test_D7_scores_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match="hard of item 'item-3'"):
        compute_score([RolloutResult('item-3', bad)])


# --- bounds

def test_weights_agree_with_the_binomial():
    "With scores of 0 or 1 and one imaginary 0: at most t as often as a binomial has so many successes"
    for n, k, t in itertools.product((1, 5, 40), (0, 1, 3, 30), (.05, .3, .5, .9)):
        if k > n:
            continue
        tail = sum(math.comb(n, i)*t**i*(1 - t)**(n - i) for i in range(k, n + 1))
        assert weighed_below([0]*(n - k + 1) + [1]*k, t)==pytest.approx(tail, abs=1e-12)

def test_weights_agree_with_drawing_them():
    rng = random.Random(0)
    for xs in ([.1, .1, .4, .9], [0, .3, .30001, .31, 1], [rng.random() for _ in range(12)]):
        draws = [[rng.expovariate(1) for _ in xs] for _ in range(20000)]
        means = [sum(w*x for w, x in zip(ws, xs))/sum(ws) for ws in draws]
        for t in (.2, .35, .5, .7):
            assert weighed_below(xs, t)==pytest.approx(sum(m <= t for m in means)/20000, abs=.015)

def test_the_bound_of_wins_and_losses_is_the_sign_test():
    for w, l, ties in itertools.product(range(0, 12), range(0, 12), (0, 1, 20)):
        assert weighed_below([-1]*(l + 1) + [0]*ties + [1]*w, 0)==pytest.approx(sign_test(w, l), abs=1e-12)

def test_bounds_in_any_order_and_at_the_edges():
    xs = [.1, .5, .9, .4, .4, 1., 0.]
    assert lower_bound(xs)==lower_bound(xs[::-1]) < sum(xs)/7
    assert lower_bound([1.]*9, alpha=1.)==1 - 2**-14 # The last step of the grid
    assert lower_bound([], floor=-1)==-1 and lower_bound([0.]*5)==0 and lower_bound([1.]*400) > .99
    assert lower_bound([x/2 - .5 for x in xs], floor=-.5)==pytest.approx(lower_bound(xs)/2 - .5, abs=2e-4)
    lows = [lower_bound(xs, a) for a in (.01, .05, .1, .3, .5)]
    assert lows==sorted(lows)

def multinomial(n, ps):
    "(chance, counts) of every outcome of `n` draws"
    if len(ps)==1:
        yield 1., (n,)
        return
    for k in range(n + 1):
        p = ps[0]
        for q, rest in multinomial(
            n - k, [x / (1 - p) for x in ps[1:]] if p < 1 else [1.0] + [0.0] * (len(ps) - 2)
        ):
            yield math.comb(n, k)*p**k*(1 - p)**(n - k)*q, (k, *rest)

@pytest.mark.parametrize('n', [1, 4, 8, 20, 40])
def test_bound_holds_for_any_two_values(n):
    "A gain of `a` mostly and a loss of `b` sometimes, nothing on the whole: every outcome listed"
    for a, b in itertools.product([.02, .05, .1, .2, .3, .5, .7, 1.], repeat=2):
        p = b/(a + b)
        wrong = sum(
            math.comb(n, k) * p**k * (1 - p) ** (n - k)
            for k in range(n + 1)
            if weighed_below([-1] + [-b] * (n - k) + [a] * k, 0) <= 0.1
        )
        assert wrong <= .1, (a, b)

@pytest.mark.parametrize('n', [4, 8, 14])
def test_bound_holds_for_three_values(n):
    for b, a, q in itertools.product(
        (0.1, 0.4, 1.0), (0.1, 0.3, 1.0), (0.1, 0.4, 0.8)
    ):  # `q` unchanged, the rest loses `b` or gains `a`
        ps = [(1 - q)*a/(a + b), q, (1 - q)*b/(a + b)]
        wrong = sum(
            chance
            for chance, (l, e, w) in multinomial(n, ps)
            if weighed_below([-1] + [-b] * l + [0] * e + [a] * w, 0) <= 0.1
        )
        assert wrong <= .1, (a, b, q)

@pytest.mark.parametrize('n', [5, 12, 25, 60])
def test_interval_of_wins_covers(n):
    "Wilson's, exact: 95 % on average over the true share, and nowhere far less"
    spans = [interval([1]*k + [0]*(n - k)) for k in range(n + 1)]
    covers = [
        sum(
            math.comb(n, k) * p**k * (1 - p) ** (n - k)
            for k, (low, high) in enumerate(spans)
            if low <= p <= high
        )
        for p in [i / 200 for i in range(20, 181)]
    ]
    assert min(covers) > .88 and .94 < sum(covers)/len(covers) < .97

@pytest.mark.parametrize(
    'draw,mean',
    [
        (lambda r: r.betavariate(2, 1), 2 / 3),
        (lambda r: r.choice([0, 0.25, 0.5, 1]), 0.4375),
        (lambda r: 0.98 if r.random() < 0.95 else 0.0, 0.931),
    ],
)
def test_interval_of_fractions_covers(draw, mean):
    rng = random.Random(0)
    for n in (5, 12, 25):
        spans = [interval([draw(rng) for _ in range(n)]) for _ in range(300)]
        assert sum(low <= mean <= high for low, high in spans)/300 >= .94

# --- how often each rule is wrong


def coin(old, new, rng, n):
    return [(float(rng.random() < old), float(rng.random() < new)) for _ in range(n)]

def test_equal_sums_in_another_order_are_a_tie():
    d = decide([(.3, .1), (.1, .2), (.2, .3)])
    assert not d.keep and d.gain == pytest.approx(0)

@pytest.mark.parametrize('share', [.1, .5])
def test_a_candidate_that_changes_nothing_is_accepted_no_more_often_than_alpha(share):
    rng = random.Random(0)
    accepts = sum(decide(coin(share, share, rng, 40)).keep for _ in range(800))
    assert accepts/800 <= .3 + 2*math.sqrt(.21/800)


def test_D9_pure_noise_is_seen_as_noise():
    "True accuracy one half, 20 items, 8 steps: few accepts, and the final document is worth one half"
    accepts, final = 0, []
    for seed in range(150):
        rng = random.Random(seed)
        accepts += sum(decide(coin(.5, .5, rng, 20)).keep for _ in range(8))
        final.append(sum(after for _, after in coin(.5, .5, rng, 20))/20)
    assert accepts/150/8 <= .3 and abs(sum(final)/150 - .5) <= .03

def test_a_decision_is_plain_data():
    d = decide([(0., 1.)]*5 + [(.5, .5)]*3)
    assert json.loads(json.dumps(vars(d)))==vars(d)
    assert (d.keep, d.reason, d.n, d.wins, d.losses)==(True, '', 8, 5, 0)
    assert (d.before, d.after, d.gain) == pytest.approx((1.5/8, 6.5/8, 5/8))
    assert 0 < d.low < d.gain
    worse = decide([(1., 0.)]*4)
    assert not worse.keep and '0 items got better and 4 worse' in worse.reason
    assert decide([(1., 1.)]*4).reason == 'changed the score of none of 4 items'
