"""Is a proof right, and cheap? Thousands of simulated agents of known effect, about 5 minutes on one core.

    python benchmarks/proofs.py [--proofs 600] [--seed 0] [--only TEXT]

`helps` and `harms` are shares of proofs whose verdict says so: by both claims, by these evals alone
(`panel`), and by two other rules on the same agents: random signs, as before (are gains symmetric?), and
Student's t on all rounds. `covers` is the share of intervals that hold the effect on these evals. Every part
ends with its targets; errors may pass theirs by three standard errors of the simulation, and figures that are
to be reached may miss theirs by as much. Exits 1 where a target is missed.
"""
import argparse, math, sys, time
from dataclasses import replace
from functools import lru_cache
import numpy as np
from skillrl.core.stats import t_quantile
from skillrl.proof import claims
from skillrl.proof.claims import ProofPlan, analyse, holm, losses_test, proof_alpha, runs_needed

ERROR = .025       # `helps`, and `harms`, where it is not so: at most
COVERED = .95      # Intervals: at least
INTERVALS = 25     # Proofs of a setting whose interval is looked at: one costs as much as ten verdicts
PLAN = ProofPlan()

# ---- agents

def chances_of(rng, effects):
    "The chance to pass each eval, with the skill and without"
    chance = rng.beta(1.2, 1.2, len(effects))*(1 - abs(effects)) + np.maximum(0, -effects)
    return np.stack([chance + effects, chance])[:, None].clip(0, 1)

def passed(rng, effects, rounds):
    "Scores of 0 and 1 by arm, shape (2, rounds, evals)"
    return (rng.random((2, rounds, len(effects))) < chances_of(rng, effects)).astype(float)

def even(effect, sd=0.):
    "Agents whose effect is the same on each eval, or normal"
    def play(rng, evals, rounds):
        effects = np.clip(effect + sd*rng.standard_normal(evals), -.9, .9)
        return passed(rng, effects, rounds), effects.mean()
    return play

def unequal(rng, evals, rounds):
    "Half of the evals gain what the others lose"
    effects = .4*np.where(np.arange(evals) % 2, 1., -1.)
    effects[-1] *= evals % 2 == 0
    return passed(rng, effects, rounds), 0.

def rare(usual, seldom, chance):
    "Gains of two sizes, each run for itself"
    def play(rng, evals, rounds):
        gains = np.where(rng.random((rounds, evals)) < chance, seldom, usual)
        return np.stack([gains, 0*gains]), 0.
    return play

def one_eval(rng, evals, rounds):
    "All disasters are in one eval"
    gains = np.full((rounds, evals), .04)
    gains[:, 0] = np.where(rng.random(rounds) < .04*(evals - 1), -1., 0.)
    return np.stack([gains, 0*gains]), 0.

def smooth(rng, evals, rounds):
    "Scores of any size: the same mean, another shape"
    return np.stack([rng.beta(.8, .2, (rounds, evals)), rng.beta(8, 2, (rounds, evals))]), 0.

def timed_out(rng, evals, rounds):
    "A fifth of the runs are cut off in either arm, and score 0"
    scores, _ = even(0)(rng, evals, rounds)
    return scores*(rng.random(scores.shape) > .2), 0.

def missing(rng, evals, rounds):
    "A fifth of the pairs is missing"
    scores, _ = even(0)(rng, evals, rounds)
    scores[:, rng.random((rounds, evals)) < .2] = np.nan
    return scores, 0.

def cut_off(rng, evals, rounds):
    "The budget ends anywhere within a round"
    scores, _ = even(0)(rng, evals, rounds)
    at = rng.integers(1, rounds)
    scores[:, at, rng.random(evals) < rng.random()] = np.nan
    return scores[:, :at + 1], 0.

def reworded(share, redrawn=0.):
    "An agent that does the same each time: a rewording helps and harms equally many evals, drawn at random"
    def play(rng, evals, rounds):
        odds = [share, 1 - 2*share, share]
        gains = np.tile(rng.choice([-1., 0., 1.], evals, p=odds), (rounds, 1))
        anew = rng.random(gains.shape) < redrawn
        truth = (1 - redrawn)*gains[0].mean()
        gains[anew] = rng.choice([-1., 0., 1.], np.count_nonzero(anew), p=odds)
        without = np.where(gains, (gains < 0).astype(float), np.tile(rng.random(evals) < .5, (rounds, 1)))
        return np.stack([without + gains, without]), truth
    return play

def drifting(sd, one_arm):
    "Graded scores, and a judge whose mood changes between rounds, for both arms or for one"
    def play(rng, evals, rounds):
        scores = rng.binomial(5, chances_of(rng, np.zeros(evals)), (2, rounds, evals))/5
        mood = sd*rng.standard_normal((rounds, 1))
        scores[0] += mood
        scores[1] += 0 if one_arm else mood
        return scores.clip(0, 1), 0.
    return play

# ---- rules

def outcome(plan, runs, chances, panel):
    "Verdict and round of a proof, without its interval: ten times as fast as `analyse`"
    these, like = chances
    both = len(runs.gains[0]) >= claims._FEWEST or any(runs.agree(k) for k in range(3, len(runs.gains) + 1))
    decisive = like if both and not panel else these
    if plan.margin is not None:
        decisive = decisive | {'no worse': these['no worse']}
    verdict, settled = claims._verdict(plan, decisive)
    stopped, _ = claims._stop(plan, runs, settled)
    stopped = stopped or len(runs.gains)
    return verdict if 0 < settled <= stopped else 'not enough evidence', stopped

def prove(plan, scores, earlier=()):
    "(verdict, round) by both claims and by these evals alone"
    gains = scores[0] - scores[1]
    runs = claims._as_runs(plan, gains, scores[1], earlier)
    agreeing = [k for k in range(1, len(gains) + 1) if runs.agree(k)]
    if agreeing: # The plan ends there, and what it says depends on that
        runs = claims._as_runs(plan, gains[:agreeing[0]], scores[1][:agreeing[0]], earlier)
    chances = claims._chances(plan, runs)
    return [outcome(plan, runs, chances, panel) for panel in (False, True)]

@lru_cache(maxsize=8)
def signs(rounds, evals):
    return np.random.default_rng(0).choice(np.float32([-1, 1]), (1000, rounds, evals))

def by_signs(gains):
    "What this page said before: are gains symmetric, judged at the same levels?"
    known = np.nan_to_num(gains)
    drawn = np.einsum('cre,re->cr', signs(*gains.shape), np.float32(known)).cumsum(1)
    sums = known.sum(1).cumsum()
    for k in range(len(gains)):
        level = claims._levels(PLAN.rounds, ERROR)[k]
        for verdict, sign in (('helps', 1), ('harms', -1)):
            if (1 + np.count_nonzero(sign*drawn[:, k] >= sign*sums[k] - 1e-4))/1001 <= level:
                return verdict
    return ''

quantile = lru_cache(maxsize=None)(t_quantile)

def by_t(gains):
    "Student's t on all pairs of all rounds"
    known = gains[~np.isnan(gains)]
    error = known.std(ddof=1)/math.sqrt(len(known)) if len(known) > 1 else 0
    t = known.mean()/error if error > 1e-12 else 0.
    return ('helps' if t > 0 else 'harms') if abs(t) > quantile(len(known) - 1) else ''

# ---- lines and targets

MISSED = []

def target(name, value, bound, least=False, n=0):
    "Print whether `value` meets `bound`, give or take three standard errors of `n` proofs"
    spare = 3*math.sqrt(bound*(1 - bound)/n) if n else 0
    met = value >= bound - spare if least else value <= bound + spare
    print(f'{"ok    " if met else "MISSED"} {name}: {value:.3f} (at {"least" if least else "most"} {bound:g}'
          f'{f", give or take {spare:.3f}" if n else ""})', flush=True)
    if not met:
        MISSED.append(name)

def share(words, word):
    return float(np.mean([w == word for w in words]))

def measure(rng, play, evals, proofs, plan=PLAN, others=False):
    "Figures of a setting"
    rows, covered = [], []
    old, student = [], []
    for i in range(proofs):
        scores, truth = play(rng, evals, plan.rounds)
        rows.append([x for pair in prove(plan, scores) for x in pair])
        if i < INTERVALS:
            stopped = rows[-1][1]
            gains = scores[0] - scores[1]
            effect = analyse(plan, gains[:stopped], scores[1][:stopped]).claims[0].effect
            covered.append(effect.low - 1e-9 <= truth <= effect.high + 1e-9)
        if others:
            old.append(by_signs(scores[0] - scores[1]))
            student.append(by_t(scores[0] - scores[1]))
    both, these = [[row[k] for row in rows] for k in (0, 2)]
    runs, panel_runs = [2*evals*np.mean([row[k] for row in rows]) for k in (1, 3)]
    return dict(both=both, these=these, runs=runs, panel_runs=panel_runs,
                covered=covered, old=old, student=student)

NULLS = [
    *[('symmetric', even(0), m) for m in (3, 12, 30)],
    *[('very unequal evals', unequal, m) for m in (6, 12)],
    *[('disaster +.05/-.45', rare(.05, -.45, .1), m) for m in (6, 12)],
    ('disaster +.1/-.9', rare(.1, -.9, .1), 3), ('disaster +.05/-.95', rare(.05, -.95, .05), 20),
    *[('miracle -.05/+.45', rare(-.05, .45, .1), m) for m in (6, 12)],
    ('miracle -.1/+.9', rare(-.1, .9, .1), 3), ('all disasters in one eval', one_eval, 12),
    *[('continuous, other shape', smooth, m) for m in (3, 12)],
    *[('time-outs score 0', timed_out, m) for m in (3, 12)],
    *[('a fifth of pairs missing', missing, m) for m in (3, 12)], ('ended by the budget', cut_off, 12)]
RANDOM_EVALS = [
    *[(f'the same each time, {2*s:.0%}', reworded(s), m)
      for s, m in ((.25, 3), (.25, 6), (.15, 12), (.25, 30))],
    *[('30 % drawn anew', reworded(.25, .3), m) for m in (6, 12, 24)],
    *[('effects vary, sd .3', even(0, .3), m) for m in (6, 12, 24)]]

def nulls(rng, proofs):
    "Errors where nothing is gained"
    print(f'{"no effect, 8 rounds":29}evals  both claims    these alone    random signs   t, fixed'
          '      covers runs')
    worst, covered = {}, []
    for on_these, settings in ((True, NULLS), (False, RANDOM_EVALS)):
        for name, play, evals in settings:
            got = measure(rng, play, evals, proofs, others=True)
            rules = ('both', 'these', 'old', 'student')
            cells = [[share(got[rule], v) for v in ('helps', 'harms')] for rule in rules]
            print(f'{name:29}{evals:5}  ' + '   '.join(f'{a:.3f} {b:.3f}' for a, b in cells)
                  + f'   {np.mean(got["covered"]):.2f} {got["runs"]:5.0f}', flush=True)
            covered += got['covered']
            for i, verdict in enumerate(('helps', 'harms')):
                for rule in (('both', 0), ('these', 1)) if on_these else (('both', 0),):
                    key = f'{verdict} by {rule[0]}, worst setting'
                    worst[key] = max(worst.get(key, 0), cells[rule[1]][i])
    for key, value in worst.items():
        target(key, value, ERROR, n=proofs)
    target(f'coverage of {len(covered)} intervals', np.mean(covered), COVERED, least=True)

def laws(rng, proofs):
    "Gains of two sizes whose mean is 0, of every skew: the worst of them"
    worst = 0
    sizes, cases = (.02, .05, .1, .2, .35, .5, .7, .9, 1.), []
    for up in sizes:
        for down in sizes:
            cases += [(up, down, m) for m in (3, 12)]
    times = max(60, proofs//6)
    for up, down, evals in cases:
        draws = np.where(rng.random((times, 8, evals)) < up/(up + down), -down, up)
        crossed = 0
        for gains in draws:
            ps = [claims._luck(gains[:k], 0) for k in range(1, 9)]
            crossed += claims._sequential(PLAN, ps)[-1] <= ERROR
        worst = max(worst, crossed/times)
    target(f'helps by these, worst of {len(cases)} laws of two sizes', worst, ERROR, n=times)

def power(rng, proofs):
    "What is found, and for how many runs"
    print(f'\n{"effect":22}evals  both: found runs   these: found runs   t, fixed: found runs')
    for evals in (6, 12, 24):
        for effect, sd in ((0., 0.), (.1, 0.), (.2, 0.), (.3, 0.), (.2, .2)):
            got = measure(rng, even(effect, sd), evals, proofs, others=True)
            found = {rule: share(got[rule], 'helps') for rule in ('both', 'these', 'student')}
            name = f'+{effect}' + (f', sd {sd} between' if sd else '')
            print(f'{name:22}{evals:5}        {found["both"]:.2f} {got["runs"]:5.0f}          '
                  f'{found["these"]:.2f} {got["panel_runs"]:5.0f}             '
                  f'{found["student"]:.2f} {16*evals:5}', flush=True)
            if evals == 12 and not sd and effect > .1:
                least, most = (.77, 140) if effect == .2 else (.97, 105)
                target(f'+{effect} found by these', found['these'], least, least=True, n=proofs)
                target(f'runs for +{effect}', got['panel_runs'], most)

def no_worse(rng, proofs):
    "An honest shortening, and one that is worse by the margin"
    print(f'\n{"margin":8}evals  equal: shown runs   worse by it: wrong   one eval of five worse: wrong'
          '   better by .1')
    for evals in (12, 24):
        for margin in (.1, .15, .2):
            plan = replace(PLAN, margin=margin)
            def one_of_five(rng, evals, rounds):
                effects = np.where(np.arange(evals) < evals//5, -margin*evals/(evals//5), 0.)
                return passed(rng, effects.clip(-1, 1), rounds), effects.mean()
            plays = (even(0), even(-margin), one_of_five, even(.1))
            lines = [measure(rng, play, evals, proofs, plan) for play in plays]
            good = [share(x['both'], 'no worse') + share(x['both'], 'helps') for x in lines]
            print(f'{margin:<8}{evals:5}         {good[0]:.2f} {lines[0]["runs"]:5.0f}   {good[1]:18.3f}   '
                  f'{good[2]:29.3f}   {good[3]:12.2f}', flush=True)
            target(f'wrong `no worse` by {margin}', good[1], .05, n=proofs)
            if margin*evals/(evals//5) <= 1:
                target(f'wrong `no worse` by {margin}, one eval of five', good[2], .05, n=proofs)
            if evals == 12 and margin > .1:
                least = {.15: .68, .2: .90}[margin]
                target(f'an equal skill shown by {margin}', good[0], least, least=True, n=proofs)

def many(rng, proofs):
    "Forty skills in one table, all useless or a quarter of them useful"
    print('\nforty skills, 24 evals each, planned at .05/40 and corrected by Holm')
    times = max(5, proofs//30)
    plan, alone = replace(PLAN, alpha=.05/40), []
    for useful, effect in ((0, 0), (10, .2), (10, .3)):
        false, right = 0, []
        runs = []
        for _ in range(times):
            ps = []
            for i in range(40):
                scores, _ = even(effect if i < useful else 0)(rng, 24, 8)
                record = claims._as_runs(plan, scores[0] - scores[1], None, ())
                chances = claims._chances(plan, record)
                verdict, stopped = outcome(plan, record, chances, False)
                rows = {k: v[:stopped] for k, v in chances[1].items()}
                ps.append(claims._smallest_p(plan, rows))
                runs.append(48*stopped)
                if not useful:
                    own = claims._chances(PLAN, record)
                    alone.append(outcome(PLAN, record, own, False)[0] != 'not enough evidence')
            holds = holm(ps)
            false += any(holds[useful:])
            right += holds[:useful]
        print(f'{useful:2} useful by {effect}: some false verdict in {false/times:.3f} of {times} tables, '
              f'found {np.mean(right) if right else 0:.2f}, {np.mean(runs):.0f} runs a skill', flush=True)
        target(f'a false verdict among forty, {useful} useful by {effect}', false/times, .05, n=times)
    each = np.mean(alone)
    some = 1 - (1 - each)**40
    print(f'each alone at .05: {each:.3f} of useless skills, so some of forty in {some:.2f} of tables')

def again(rng, proofs):
    "Up to five proofs of one skill, by these evals"
    print('\nfive proofs of one skill, 12 evals: the first at .05, the later ones pool all gains at .01')
    times = max(40, proofs//3)
    for effect in (0, .2):
        first, naive = np.zeros(5), 0
        for _ in range(times):
            earlier, done = np.zeros((0, 12)), False
            for j in range(1, 6):
                plan = replace(PLAN, alpha=proof_alpha(j), panel=True)
                scores, _ = even(effect)(rng, 12, 8)
                verdict, stopped = prove(plan, scores, earlier)[1]
                naive += effect == 0 and prove(PLAN, scores)[1][0] == 'helps'
                earlier = np.vstack([earlier, (scores[0] - scores[1])[:stopped]])
                if verdict == 'helps' and not done:
                    first[j - 1:] += 1
                    done = True
        found = first/times
        print(f'effect {effect}: helps by proof 1 to 5 {found.round(3)}', flush=True)
        if effect:
            target('found by the third proof', found[2], .9, least=True, n=times)
        else:
            print(f'each alone: {naive/times:.3f} false ones in five proofs')
            target('helps in any of five proofs', found[-1], ERROR, n=times)

def losses(rng, proofs):
    "Wrong runs of the arm with the skill are lost"
    print('\nwrong runs with the skill lost with chance   dropped after three tries   and first tries guarded'
          '   scored 0')
    for chance in (0, .05, .1, .2, .4, .8):
        rows = []
        for _ in range(proofs):
            odds = chances_of(rng, np.zeros(12))
            tries = rng.random((3, 2, 8, 12)) < odds
            lost = ~tries & (rng.random(tries.shape) < chance)
            lost[:, 1] = False
            kept = (~lost).argmax(0)
            scores = np.take_along_axis(tries, kept[None], 0)[0].astype(float)
            zero = np.where(lost[0], 0., tries[0])
            scores[lost.all(0)] = np.nan
            verdict, stopped = prove(PLAN, scores)[1]
            counts = [int(lost[0, arm, :stopped].sum()) for arm in (0, 1)]
            guarded = verdict if losses_test(counts, (12*stopped, 12*stopped)) >= .05 else ''
            rows.append([verdict == 'helps', guarded == 'helps', prove(PLAN, zero)[1][0] == 'helps'])
        dropped, guarded, scored = np.mean(rows, 0)
        print(f'{chance:<45}{dropped:<28.3f}{guarded:<26.3f}{scored:.3f}', flush=True)
        target(f'helps, {chance} lost and scored 0', scored, ERROR, n=proofs)
        target(f'helps, {chance} lost of unknown cause, guarded', guarded, .03, n=proofs)

def drift(rng, proofs):
    "A judge that changes between rounds"
    print('\na judge that drifts between rounds, 12 evals      helps harms (by these)')
    for one_arm in (False, True):
        for sd in (.1, .2):
            got = measure(rng, drifting(sd, one_arm), 12, proofs)
            pair = [share(got['these'], v) for v in ('helps', 'harms')]
            arms = 'one arm' if one_arm else 'both arms alike'
            print(f'sd {sd}, {arms:42}{pair[0]:.3f} {pair[1]:.3f}', flush=True)
            if not one_arm:
                target(f'helps, a judge drifts by {sd} in both arms', pair[0], ERROR, n=proofs)
                target(f'harms, a judge drifts by {sd} in both arms', pair[1], ERROR, n=proofs)

def enough(rng, proofs):
    "Is what `runs_needed` calls enough enough?"
    print('\nwhat is called enough                        found')
    settings = ((.1, 45, 0.), (.2, 16, 0.), (.2, 32, 0.), (.2, 36, .2), (.3, 8, 0.), (.3, 18, 0.))
    for effect, evals, sd in settings:
        words = []
        for _ in range(proofs//3):
            scores, _ = even(effect, sd)(rng, evals, 8)
            runs = claims._as_runs(PLAN, scores[0] - scores[1], None, ())
            chances = claims._chances(PLAN, runs)
            verdicts = [outcome(PLAN, runs, chances, panel)[0] for panel in (False, True)]
            need = runs_needed(PLAN, runs.gains, [effect])[0]
            words.append([need['evals'] <= evals, need['rounds'] <= 8, *[v == 'helps' for v in verdicts]])
        by_evals, by_rounds, both, these = np.array(words).T
        for name, said, found in (('both claims', by_evals, both), ('these', by_rounds, these)):
            if said.sum() >= 30:
                right = found[said].mean()
                print(f'+{effect} of {evals} evals, sd {sd}, {name}: said in {said.mean():.2f}', flush=True)
                target(f'+{effect} with {evals} evals, {name}', right, .8, least=True, n=int(said.sum()))

PARTS = dict(nulls=nulls, laws=laws, power=power, worse=no_worse, many=many, again=again, losses=losses,
             drift=drift, enough=enough)

def main(proofs, seed, only):
    "Measure all parts; 0 if every target was met"
    for i, (name, part) in enumerate(PARTS.items()):
        if only in name:
            began = time.perf_counter()
            part(np.random.default_rng([seed, i]), proofs)
            print(f'({name}: {time.perf_counter() - began:.0f} s)', flush=True)
    print(f'\n{len(MISSED)} targets missed', *MISSED, sep='\n')
    return 1 if MISSED else 0

if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--proofs', type=int, default=600, help='of each setting')
    p.add_argument('--seed', type=int, default=0)
    p.add_argument('--only', default='', help=f'parts whose name holds this: {", ".join(PARTS)}')
    sys.exit(main(**vars(p.parse_args())))
