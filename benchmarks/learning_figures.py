"""What `learning.py` makes of its games: rates and gains by way, shares of steps, targets"""
import random
from itertools import product
from skillrl.core.stats import Rate, clustered_gain, clustered_rate
from skillrl.core.tables import Table, counted, row_name

# Conditions

NO_BANK, ALSO_IN_TEST = 'GRPO without skills', 'GRPO without skills, also in the test suites'
POLICIES = {'before': 'after SFT', NO_BANK: 'RL without banks', 'after': 'RL with banks'}
BANKS = {'no bank': 'none', 'wrong evolved bank': "another's", 'placebo bank': 'placebo', 'bank': 'first',
         'evolved bank': 'evolved'}

def cell(policy, what):
    "A condition, by the name that a run or the pages have for it"
    return NO_BANK if (policy, what) == (NO_BANK, 'no bank') else f'{policy}, {what}'

CHANGED = {'before': 'evolved bank, before the change', 'static': 'evolved bank, after the change',
           'evolving': 'evolved again, after the change', 'none': 'no bank, after the change',
           'blind': 'blind bank, after the change'}
BLIND_BANK = 'after, blind bank'

# Figures

def rate(won):
    "Success in games by suite, 1 for one that was won"
    games = ''.join(won.values())
    return games.count('1')/len(games)

WHICH = {'with a way': '1', 'without': '0', 'all': '01'} # Which games → their marks

def clusters(rows, name, marks='01'):
    "The games of each suite under a condition, 1 for one that was won; only those with one of `marks`"
    name = row_name(name, rows[0]['split'])
    return [[int(won) for won, mark in zip(games, row['ways'][suite], strict=True) if mark in marks]
            for row in rows for suite, games in row['test'][name].items()]

def rate_of(rows, name, marks='01'):
    return clustered_rate(clusters(rows, name, marks))

def gain(rows, a, b, marks='01'):
    "Game by game, what condition `b` wins more than `a`"
    pairs = zip(clusters(rows, a, marks), clusters(rows, b, marks), strict=True)
    return clustered_gain([[y - x for x, y in zip(*pair, strict=True)] for pair in pairs])

EVOLVED = 'after, evolved bank'
CONTRASTS = {
    'a placebo over no bank': ('after, no bank', 'after, placebo bank'),
    "another's bank over no bank": ('after, no bank', 'after, wrong evolved bank'),
    'evolution over the first bank': ('after, bank', EVOLVED),
    'evolution over blind collecting, equal steps': (BLIND_BANK, EVOLVED),
    'RL with banks over SFT, evolved banks': ('before, evolved bank', EVOLVED),
    'RL with banks over RL without, evolved banks': (cell(NO_BANK, 'evolved bank'), EVOLVED),
    'RL with banks over SFT, no bank: what the weights keep': ('before, no bank', 'after, no bank'),
    'banks over RL in the test suites': (ALSO_IN_TEST, EVOLVED)}
AFTER_CHANGE = {
    'evolved again over before the change': (CHANGED['before'], CHANGED['evolving']),
    'evolved again over the old bank': (CHANGED['static'], CHANGED['evolving']),
    'evolved again over blind collecting, equal steps': (CHANGED['blind'], CHANGED['evolving'])}

def conditions_told(rows):
    "Name in the table → condition"
    told = {f'{policy}, {bank}': cell(when, what)
            for (when, policy), (what, bank) in product(POLICIES.items(), BANKS.items())}
    told |= {'RL without banks, also in the test suites': ALSO_IN_TEST,
             'RL with banks, blind, equal steps': BLIND_BANK}
    if 'change' in rows[0]['arms']:
        told |= {f'RL with banks, {name}': name for name in CHANGED.values()}
    return told

def contrasts_told(rows):
    return CONTRASTS | (AFTER_CHANGE if 'change' in rows[0]['arms'] else {})

def figures(rows, told, measure):
    "A table of what `measure` says of each row of `told`, of games with a way, without and of all"
    def shown(names, marks):
        some = any(clusters(rows, names[0], marks))
        return measure(rows, *names, marks) if some else '–'
    return Table(['', *WHICH], [[name, *(shown(names, marks) for marks in WHICH.values())]
                                for name, names in told.items()])

# Steps

def steps_until(points, level):
    "Steps at which a curve of pairs of steps and success reaches `level`; None if it does not"
    for (before, low), (after, high) in zip(points, points[1:]):
        if low < level <= high:
            return before + (level - low)/(high - low)*(after - before)
    return points[0][0] if points[0][1] >= level else None

def mean_curve(curves):
    "Pairs of mean steps and success of `curves`, one a suite, of pairs of steps and games"
    points = []
    for same in zip(*curves, strict=True):
        games = ''.join(won for _, won in same)
        points.append((sum(steps for steps, _ in same)/len(same), games.count('1')/len(games)))
    return points

def curves_by_suite(rows):
    "For each test suite the curve of evolution and that of blind collecting, which begin with the same bank"
    pairs = []
    for row in rows:
        evolved = row['arms']['evolution']
        both = evolved, [evolved[0], *row['arms']['blind']]
        for name in row['ways']:
            pairs.append([[(p['spent'][name], p['test'][name]) for p in points] for points in both])
    return pairs

LEVEL, DRAWS = .8, 1000

def share_of_steps(pairs):
    "Steps of the first curve of `pairs` to `LEVEL`, of those of the second, or of all that it has"
    first, second = (mean_curve(curves) for curves in zip(*pairs))
    steps = steps_until(first, LEVEL)
    return float('inf') if steps is None else steps/(steps_until(second, LEVEL) or second[-1][0])

def drawn_share(pairs):
    "`share_of_steps` with its 95 % interval, from draws of suites"
    rng = random.Random(0)
    drawn = sorted(share_of_steps(rng.choices(pairs, k=len(pairs))) for _ in range(DRAWS))
    cut = round(DRAWS*.025)
    return Rate(share_of_steps(pairs), drawn[cut], drawn[-1 - cut], len(pairs))

def curve_told(points):
    "Success against steps, and when it reaches `LEVEL`"
    steps = steps_until([(p['steps'], p['success']) for p in points], LEVEL)
    reached = 'not reached' if steps is None else f'{steps:,.0f}'
    told = ', '.join(f"{p['steps']:,}: {p['success']:.2f}" for p in points)
    return f'{told}; to {LEVEL}: {reached}'

# Targets, of households

def targets(rows):
    "Target → what was measured, and is it met?"
    pairs, way = contrasts_told(rows), WHICH['with a way']
    none, free, evolved = (rate_of(rows, name, way) for name in ('after, no bank', BLIND_BANK, EVOLVED))
    final, share = rate_of(rows, EVOLVED), drawn_share(curves_by_suite(rows))
    placebo = gain(rows, *pairs['a placebo over no bank'], way)
    others = gain(rows, *pairs["another's bank over no bank"], way)
    rl = gain(rows, *pairs['RL with banks over SFT, evolved banks'])
    back = gain(rows, *pairs['evolved again over before the change'])
    static = gain(rows, *pairs['evolved again over the old bank'])
    return {
        'with a way, no bank wins 0.15 at most': (none, none.mean <= .15),
        'with a way, blind collecting wins 0.40 at most in equal steps': (free, free.mean <= .4),
        'with a way, the evolved bank wins 0.80': (evolved, evolved.mean >= .8),
        'with a way, a placebo is within 0.05 of no bank': (placebo, abs(placebo.mean) <= .05),
        "with a way, another's bank is no better than none": (others, others.low <= 0),
        'the evolved bank wins 0.88 of all': (final, final.mean >= .88),
        f'evolution reaches {LEVEL} in half of the steps of blind collecting': (share, share.mean <= .5),
        'after the change it is back within 0.05, in as many steps as before': (back, back.mean >= -.05),
        'and 0.20 above the old bank': (static, static.mean >= .2),
        'RL adds 0.10 with evolved banks': (rl, rl.mean >= .1)}

def cost_targets(costs):
    "Target → the most that a run took, and is it met?"
    seconds, gigabytes = (max(cost[unit] for cost in costs) for unit in ('seconds', 'gigabytes'))
    return {'a run takes 300 CPU seconds at most': (f'{seconds:.0f}', seconds <= 300),
            'a run takes 2 GB at most': (f'{gigabytes:.1f}', gigabytes <= 2)}

def print_result(data, costs):
    "Print what was found, and what runs cost that were not stopped; were all targets met?"
    rows = data['seeds']
    for row in rows:
        print(f"seed {row['seed']}: {row['steps']:,} steps {row['spent']}, without banks {row['without']}")
        for arm, points in row['arms'].items():
            print(f'  {arm:9} {curve_told(points)}')
    judged = f"{counted(len(rows), 'seed')}, {sum(len(row['ways']) for row in rows)} suites"
    print(f"\n{data['env']}, {judged}: mean [95 % interval by suite] of games")
    print(figures(rows, {name: [condition] for name, condition in conditions_told(rows).items()}, rate_of))
    print('\nGains, game by game')
    print(figures(rows, contrasts_told(rows), gain))
    print(f'\nSteps of evolution to {LEVEL}, as a share of those of blind collecting, at most:',
          drawn_share(curves_by_suite(rows)))
    if data['env'] != 'alfworld':
        return True
    checks = targets(rows) | (cost_targets(costs) if costs else {})
    for what, (measured, ok) in checks.items():
        print('ok    ' if ok else 'MISSED', f'{what}: {measured}')
    return all(ok for _, ok in checks.values())
