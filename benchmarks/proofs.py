"""Is a proof right, and cheap? Thousands of simulated agents of known effect, about 2 minutes on one core.

    python benchmarks/proofs.py [--agents 400] [--only TEXT]

Each line is a setting: evals × rounds, the true effect and how it is spread over evals, the scores, the share
of pairs that are missing, and the claim. `fixed`: rounds that a design without interim analyses takes for the
same power. `enough`: how often the proof says that it was large enough; `found`: in which share of these it
found the effect. `3 runs`: how often the first three rounds are better with the skill on average, and better
by more than a standard deviation. Exits 1 where a target is missed.
"""
import argparse, sys
from dataclasses import dataclass
import numpy as np
from skillrl.proof.claims import ProofPlan, analyse, runs_needed

FALSE_HELPS, COVERED = .05, .93 # Share of proofs: at most, at least
FOUND, SAVED = .80, .25         # Share of proofs, share of rounds: at least
SPARE = 1.5    # Rounds that a fixed design may take, for one of the plan
COINS = 2_000  # Worlds of the fixed design

@dataclass
class Setting:
    "Agents, and the plan by which they are tried"
    evals: int
    rounds: int
    effect: float
    spread: str = 'even' # Or `few`: on a quarter of the evals; `mixed`: normal; `lopsided`: two values
    scores: str = '0/1'  # Or `graded`: shares of five assertions; `smooth`: any number
    missing: float = 0.  # Share of pairs
    beyond: bool = False

    def __str__(self):
        claim = 'like these' if self.beyond else 'these'
        return (f'{self.evals:3} × {self.rounds:<2} {self.effect:+.1f} {self.spread:8} {self.scores:6} '
                f'{self.missing:4.0%}  {claim:10}')

SETTINGS = [
    *[Setting(m, r, 0) for m, r in ((3, 3), (3, 12), (6, 8), (12, 8), (30, 4))],
    *[Setting(12, 8, 0, spread=s) for s in ('mixed', 'lopsided')],
    *[Setting(12, 6, 0, scores=s, missing=.15) for s in ('0/1', 'graded', 'smooth')],
    *[Setting(m, 6, 0, beyond=True) for m in (6, 12, 25)],
    *[Setting(12, 6, 0, 'mixed', s, .15, True) for s in ('0/1', 'graded')],
    *[Setting(20, 6, 0, 'lopsided', '0/1', beyond=True)],
    *[Setting(12, 10, e) for e in (.2, -.2)],
    *[Setting(12, 6, .3), Setting(12, 6, -.3), Setting(6, 12, .3), Setting(30, 5, .2)],
    *[Setting(50, 9, .1), Setting(30, 8, .1, scores='graded')],
    *[Setting(12, 10, .2, missing=.15), Setting(12, 5, .2, scores='graded'), Setting(20, 10, .2, 'few')],
    *[Setting(30, 6, .2, beyond=True), Setting(20, 6, .3, beyond=True)],
    *[Setting(30, 6, .2, scores='graded', beyond=True), Setting(40, 8, .2, 'few', beyond=True)],
    *[Setting(30, 8, .2, 'mixed', missing=.15, beyond=True)],
]

def effects_of(s, rng):
    "The effect on each eval"
    shapes = {
        'even': np.full(s.evals, s.effect),
        'few': np.where(rng.random(s.evals) < .25, 4*s.effect, 0.),
        'mixed': s.effect + .2*rng.standard_normal(s.evals),
        'lopsided': s.effect + np.where(rng.random(s.evals) < 1/3, -.3, .15),
    }
    effects = np.clip(shapes[s.spread], -.9, .9)
    return effects if s.beyond or s.effect else effects - effects.mean() # On these evals there is none

def play(s, rng):
    "Scores, shape (2, rounds, evals), with the skill and without; and the true effect"
    effects = effects_of(s, rng)
    chance = rng.beta(1.2, 1.2, s.evals)*(1 - abs(effects)) + np.maximum(0, -effects)
    chances = np.stack([chance + effects, chance])[:, None].clip(1e-6, 1 - 1e-6)
    size = 2, int(SPARE*s.rounds), s.evals
    scores = {'0/1': lambda: rng.random(size) < chances,
              'graded': lambda: rng.binomial(5, chances, size)/5,
              'smooth': lambda: rng.beta(8*chances, 8 - 8*chances, size)}[s.scores]().astype(float)
    scores[:, rng.random(size[1:]) < s.missing] = np.nan
    return scores, s.effect if s.beyond else effects.mean()

def fixed_finds(s, gains, coins):
    "Would a test after all rounds find something, for each number of rounds?"
    if s.beyond:
        means = np.nan_to_num(gains).cumsum(0)/np.maximum(1, (~np.isnan(gains)).cumsum(0))
        sums, drawn = means.sum(1), coins[:, 0] @ means.T
    else:
        sums = np.nan_to_num(gains).sum(1).cumsum()
        drawn = np.einsum('crm,rm->cr', coins, np.float32(np.nan_to_num(gains))).cumsum(1)
    sign = 1 if s.effect >= 0 else -1
    return (1 + (sign*drawn >= sign*sums - 1e-4).sum(0))/(1 + COINS) <= .025

def three_runs(scores):
    "Is the mean of three rounds better with the skill; and by more than a standard deviation?"
    rates = np.nanmean(scores[:, :3], axis=2)
    gain = rates[0].mean() - rates[1].mean()
    return gain > 0, gain > rates[0].std(ddof=1)

def prove(s, rng, coins):
    "One agent: what its proof says and takes, and what a fixed design finds"
    scores, truth = play(s, rng)
    gains = scores[0] - scores[1]
    plan = ProofPlan(s.rounds, abs(s.effect) or .2, beyond=s.beyond)
    stopped = analyse(plan, gains[:s.rounds]).stopped
    claim = analyse(plan, gains[:stopped]).claims[s.beyond]
    need = runs_needed(plan, gains[:stopped], [plan.effect])[0]
    enough = need['evals'] <= s.evals if s.beyond else need['rounds'] <= s.rounds
    covered = claim.effect.low <= truth <= claim.effect.high
    row = [claim.verdict == 'helps', claim.verdict == 'harms', covered, stopped, enough, *three_runs(scores)]
    return row, fixed_finds(s, gains, coins)

def rounds_of_fixed(power, finds):
    "Rounds of a fixed design with this power; NaN where that is hardly to be told from certainty"
    curve = [0, *np.maximum.accumulate(finds.mean(0))]
    return float(np.interp(power, curve, range(len(curve)))) if power < min(.985, curve[-1]) else np.nan

def measure(s, agents):
    "Print the line of a setting; its figures"
    rng = np.random.default_rng(SETTINGS.index(s))
    coins = rng.choice(np.float32([-1, 1]), (COINS, int(SPARE*s.rounds), s.evals))
    rows, finds = map(np.array, zip(*[prove(s, rng, coins) for _ in range(agents)]))
    helps, hurts, covered, rounds, enough, better, surely = rows.mean(0)
    found = rows[:, 0] if s.effect > 0 else rows[:, 1]
    fixed = rounds_of_fixed(found.mean(), finds) if s.effect else np.nan
    cases = found[rows[:, 4] == 1] if s.effect else found[:0]
    share = cases.mean() if len(cases) else np.nan
    print(f'{s} {helps:6.3f} {hurts:6.3f} {covered:6.3f} {rounds:7.1f} {fixed:5.1f} {enough:6.0%} '
          f'{share:6.2f}   {better:4.2f} {surely:4.2f}', flush=True)
    return dict(s=s, helps=helps, covered=covered, power=found.mean(), ratio=rounds/fixed, cases=cases)

def report(name, value, target, least=True):
    "Print whether `value` meets its target"
    met = value >= target if least else value <= target
    print(f'{"ok    " if met else "MISSED"} {name}: {value:.3f} (at {"least" if least else "most"} {target})')
    return met

def all_met(lines):
    "Were the targets met?"
    null, real = [[x for x in lines if bool(x['s'].effect) == some] for some in (False, True)]
    met = [report('coverage of the worst setting', min(x['covered'] for x in lines), COVERED)]
    if null:
        met.append(report('`helps` without effect', max(x['helps'] for x in null), FALSE_HELPS, least=False))
    saved = [1 - x['ratio'] for x in real if x['power'] >= FOUND and x['ratio'] == x['ratio']]
    if saved:
        met.append(report('runs saved where there is power, mean', np.mean(saved), SAVED))
        met.append(report('runs saved, least', min(saved), SAVED))
    for effect in (.1, .2, .3):
        cases = [case for x in real if abs(x['s'].effect) == effect for case in x['cases']]
        if cases:
            met.append(report(f'±{effect} found by {len(cases)} proofs said enough', np.mean(cases), FOUND))
    return all(met)

def main(agents, only):
    "Measure the settings; 0 if every target was met"
    print(f'{"evals × rounds, effect":45}   helps  harms covers  rounds fixed enough  found   3 runs')
    return 0 if all_met([measure(s, agents) for s in SETTINGS if only in str(s)]) else 1

if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--agents', type=int, default=400)
    p.add_argument('--only', default='', help='settings whose line holds this')
    sys.exit(main(**vars(p.parse_args())))
