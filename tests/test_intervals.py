"Intervals: how often they hold the truth, by listing every outcome"
import math, random
import pytest
from skillrl.training import evaluate
from skillrl.skillopt import trainer as report
from skillrl.core.stats import interval, paired_interval
from skillrl.core.trajectory import Trajectory

def played(won):
    return [
        Trajectory(f't{i}', 'put some mug on shelf.', 'pick', success=bool(w), game=f'g{i}')
        for i, w in enumerate(won)
    ]


def difference(wins, losses, n):
    "What a report says where so many pairs turned"
    same = n - wins - losses
    r = evaluate.paired_difference(played([0] * wins + [1] * losses + [0] * same),
                                   played([1] * wins + [0] * losses + [0] * same))
    return r.low, r.high

def coverage(spans, n, steps=40):
    "Chance of each true pair of shares on a grid that the interval holds their difference"
    ways = {(w, l): math.comb(n, w)*math.comb(n - w, l) for w, l in spans}
    def held(up, down):
        return sum(
            ways[w, l] * up**w * down**l * (1 - up - down) ** (n - w - l)
            for (w, l), (low, high) in spans.items()
            if low <= up - down <= high
        )

    return [held(i/steps, j/steps) for i in range(1, steps) for j in range(1, steps - i)]

@pytest.mark.parametrize('n', [5, 8, 12, 20])
def test_a_paired_difference_of_few_games_holds_the_truth(n):
    chances = coverage({(w, l): difference(w, l, n) for w in range(n + 1) for l in range(n + 1 - w)}, n)
    assert min(chances) >= .95 and sum(chances)/len(chances) >= .95

def least(f, low, high):
    "Where `f`, which falls and then rises, is least"
    for _ in range(80):
        third = (high - low)/3
        if f(low + third) < f(high - third):
            high -= third
        else:
            low += third
    return (low + high)/2

def by_search(wins, losses, n, z):
    "Tango's lower bound, from the chances of a pair that make the outcome likeliest"
    def deviation(d):
        def unlikely(q):
            chances = (wins, q + d), (losses, q), (n - wins - losses, 1 - 2*q - d)
            return -sum(count*math.log(max(p, 1e-300)) for count, p in chances)
        q = least(unlikely, max(0, -d), (1 - d)/2)
        return (wins - losses - 1 - n*d)/math.sqrt(n*(2*q + d*(1 - d)))
    return max((i/500 for i in range(-498, 480)), key=lambda d: -abs(deviation(d) - z))

@pytest.mark.parametrize('wins, losses, n', [(12, 3, 40), (3, 12, 40), (20, 14, 60), (9, 1, 10)])
def test_a_paired_interval_is_that_of_the_score_test(wins, losses, n):
    low, high = paired_interval(wins, losses, n)
    assert low == pytest.approx(by_search(wins, losses, n, 1.96), abs=.005)
    assert high == pytest.approx(-by_search(losses, wins, n, 1.96), abs=.005)

def test_an_interval_of_shares_lies_within_its_range_and_turns_with_them():
    scores = [.2, .9, .5, 1, .7, .4]
    low, high = interval(scores)
    assert 0 <= low < sum(scores)/6 < high <= 1
    assert interval([1 - x for x in scores]) == pytest.approx((1 - high, 1 - low), abs=1e-3)

def test_a_paired_difference_never_claims_to_be_certain():
    for n in (1, 2, 12, 134):
        for wins, losses in ((0, 0), (n, 0), (0, n)):
            low, high = difference(wins, losses, n)
            assert -1 <= low < high <= 1 and low <= (wins - losses)/n <= high

def test_every_report_tells_the_same_paired_interval():
    "An evaluation of games and a SkillOpt run that saw the same wins and losses"
    for wins, losses, n in ((0, 0, 12), (5, 1, 12), (12, 0, 12), (3, 9, 30)):
        same = [0]*(n - wins - losses)
        gain = report._gain(dict(items=[0] * wins + [1] * losses + same),
                           dict(items=[1] * wins + [0] * losses + same))
        assert tuple(gain['interval']) == difference(wins, losses, n) == paired_interval(wins, losses, n)

@pytest.mark.parametrize('n', [5, 12])
def test_the_gain_of_fractional_scores_holds_the_truth(n):
    "Scores such as F1, where a few items collapse"
    rng, spans = random.Random(0), []
    for _ in range(200):
        before = [rng.choice([.3, .5, .7]) for _ in range(n)]
        after = [b + .3 if rng.random() < .9 else 0. for b in before] # The mean gain is .9*.3 - .1*.5 = .22
        spans.append(report._gain(dict(items=before), dict(items=after))['interval'])
    assert sum(low <= .22 <= high for low, high in spans)/200 >= .95

T = {1: 12.7062, 2: 4.3027, 4: 2.7764, 9: 2.2622, 10: 2.2281, 11: 2.2010, 14: 2.1448, 19: 2.0930,
     29: 2.0452, 59: 2.0010, 120: 1.9799}


@pytest.mark.parametrize('df', T)
def test_the_t_quantile_is_right_for_any_number_of_seeds(df):
    values = [0, 2]*((df + 1)//2) + [1]*((df + 1) % 2)
    r, spread = evaluate.over_seeds(values), math.sqrt(sum((v - 1)**2 for v in values)/df/(df + 1))
    assert (r.high - r.mean)/spread == pytest.approx(T[df], abs=1e-4)
