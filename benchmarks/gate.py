"""How often does evolution's gate err? A player whose chances are known, no policy.

    python benchmarks/gate.py [--times 1000] [--seed 0]

Each proposal is tried by `consider` in a bank of its own, on 64 games of each of six categories that no
other proposal has been tried on. The gain may be sought in as many pairs as the configuration allows by
default, and in 64. Prints the share accepted with its 95 % interval: of useless and adversarial additions,
which may be accepted no more often than alpha; of useful ones (three games in ten more are won), which
should be accepted nine times in ten with 64 pairs, and 85 in a hundred with fewer; of general ones that
help in one category of six; of retirements. A loss on balance that is smaller than the margin (ten games in
a hundred) is shown without a promise. Then whole evolution rounds are played with `evolve`, and the success
reported for the chosen bank is compared with the true one. Exits 1 if a promise is broken.
"""
import argparse, random, sys
from types import SimpleNamespace
from skillrl.config import EvolutionConfig
from skillrl.envs.alfworld.scene import CATEGORIES
from skillrl.evaluate import over_seeds
from skillrl.stats import wilson
from skillrl.skills.bank import Proposal, Skill, SkillBank
from skillrl.skills.evolution import RoundGames, evolve, try_all
from skillrl.skills.proposals import Trial, consider
from skillrl.skills.retrieval import Retrieved
from skillrl.tables import Table
from skillrl.trajectory import Step, Trajectory

DEFAULT, MARGIN = EvolutionConfig(), .1
ALPHA, LIMITS = DEFAULT.alpha, sorted({DEFAULT.gate_tasks, 64})

class Shelf:
    "A retriever that shows every skill where it belongs, and a `wide` one everywhere, where it fits worse"

    def __init__(self, bank):
        self.skills = [s for s in bank.skills() if s.status == 'active']

    def retrieve(self, task, category):
        found = [s for s in self.skills if category==s.category or s.title=='wide']
        return Retrieved(
            task,
            category,
            [],
            found,
            [],
            scores={s.id: 1.0 if s.category == category else 0.2 for s in found},
        )


def games(name, per_category, seed):
    "Games that are won between one time in ten and six in ten"
    rng = random.Random(f'{name}/{seed}')
    return [
        SimpleNamespace(id=f'{name}/{seed}/{c}/{i}', task=f'{c} {i}', category=c, base=rng.uniform(0.1, 0.6))
        for c in CATEGORIES
        for i in range(per_category)
    ]

def shown(bank):
    "What `bank` shows in each category"
    shelf = Shelf(bank)
    return {c: shelf.retrieve('', c) for c in CATEGORIES}

def chance(g, found, effects):
    "The true chance to win `g` with what is `shown`"
    return min(1., max(0., g.base + sum(effects[s.principle](g) for s in found[g.category].task_specific)))

def player(effects, seed):
    "A player with these true effects of each sentence"
    rng = random.Random(seed)
    def play(bank, games):
        found = shown(bank)
        steps = {c: [Step('', '', skills=f.ids)] for c,f in found.items()}
        return [
            Trajectory(
                g.id,
                g.task,
                g.category,
                steps[g.category],
                rng.random() < chance(g, found, effects),
                game=g.id,
            )
            for g in games
        ]

    return play

def kinds(seed):
    "Sort of addition → (true effect in a game, is it shown in every category?, what is promised)"
    def lot(g, *gains):
        return random.Random(f'{seed}/{g.id}').choice(gains)
    return dict(
        useless=(lambda g: 0.0, False, 'rare'),
        harmful=(lambda g: -0.1, False, 'rare'),
        memoriser=(
            lambda g: 0.6 if g.id.startswith('val/') else -0.02,
            False,
            'rare',
        ),  # Knows the games it was made from
        gambler=(lambda g: lot(g, 0.6, -1.0) * g.base, False, 'rare'),  # Turns many games, both ways
        poacher=(
            lambda g: 0.3 if g.category == 'cool' else -0.2,
            True,
            'rare',
        ),  # Good at home, harmful abroad
        trespasser=(
            lambda g: 0.3 if g.category == 'cool' else -0.1,
            True,
            '',
        ),  # The same, but it loses less than the margin: nothing is promised
        useful=(lambda g: 0.3, False, 'often'),
        local=(lambda g: 0.4 if g.category == 'cool' else 0.0, True, ''),  # Good at home, shown everywhere
        general=(lambda g: 0.3 if g.category == 'cool' else 0.0, True, ''),
    )  # Filed for all, good in one


def added(sort, rule, limit, seed):
    "Is one addition of this sort accepted, after how many pairs, and what is it worth where it is shown?"
    effect, wide, _ = kinds(seed)[sort]
    about = (
        dict(category='general', provenance=dict(trajectories=['a', 'b']))
        if sort == 'general'
        else dict(category='cool')
    )
    p = Proposal('add', Skill('', 'wide' if wide else 'narrow', 'the new one', **about), hypothesis=sort)
    effects, used = {'the new one': effect}, [g.id for g in games('val', 8, seed)]
    pool = [g for g in games('gate', 64, seed) if wide or g.category=='cool']
    play, bank = player(effects, f'{sort}/{rule}/{limit}/{seed}'), SkillBank()
    config = EvolutionConfig(gate=rule, gate_tasks=limit)
    weak = ['cool', 'heat'] if sort=='general' else ['cool']
    row = consider(bank, p, Trial(play, pool, weak, config, dict(a='cool', b='heat'), used, seed, Shelf))[1]
    after = shown(bank.apply(p)[0])
    worth = sum(chance(g, after, effects) - g.base for g in pool)/len(pool)
    return row['kept'], sum(row[k]['n'] for k in ('gate', 'non_inferiority') if row[k]), worth

def insisted(times, seed):
    "Is a useless addition ever accepted, if it is proposed again and again?"
    p, bank, pairs = Proposal('add', Skill('', 'narrow', 'the new one', category='cool')), SkillBank(), 0
    for i in range(times):
        play = player({'the new one': lambda g: 0.}, f'again/{seed}/{i}')
        bank, rows = try_all(
            bank,
            [p],
            Trial(
                play,
                games(f'gate{i}', 64, seed),
                ['cool'],
                EvolutionConfig(gate_tasks=64),
                seed=i,
                build_retriever=Shelf,
            ),
        )
        pairs += sum(r['gate']['n'] for r in rows if r['gate'])
        if rows[0]['kept']:
            return True, pairs, 0.
    return False, pairs, 0.

def retired(gain, seed):
    "Is the retirement of a skill with this true effect accepted?"
    bank = SkillBank(
        task_specific_skills={'cool': [Skill('cool_001', 'narrow', 'the old one', category='cool')]}
    )
    play = player({'the old one': lambda g: gain}, f'retire/{gain}/{seed}')
    pool = [g for g in games('gate', 128, seed) if g.category=='cool']
    row = consider(
        bank,
        Proposal('retire', ids=('cool_001',)),
        Trial(play, pool, ['cool'], EvolutionConfig(gate_tasks=64), seed=seed, build_retriever=Shelf),
    )[1]
    return row['kept'], row['non_inferiority']['n'], -gain

def measured(tries):
    "Share accepted, mean number of pairs, mean worth"
    kept, pairs, worth = zip(*tries)
    return wilson(sum(kept), len(kept)), sum(pairs)/len(pairs), sum(worth)/len(worth)

class Dreamer:
    "A teacher with one good idea and two that do nothing"
    def propose(self, bank, failures, evidence, categories, limit):
        return [Proposal('add', Skill('', 'narrow', f'idea {i}', category='cool')) for i in range(3)]

def reported(rule, times):
    "Errors of the figure on report games and of the gate's own, over many looks"
    effects, fair, flattering = (
        {'idea 0': lambda g: 0.15, 'idea 1': lambda g: 0.0, 'idea 2': lambda g: 0.0},
        [],
        [],
    )
    for seed in range(times):
        val, gate, report = (games(name, n, seed) for name,n in (('val', 8), ('gate', 64), ('report', 16)))
        bank, record = evolve(SkillBank(), player(effects, seed), RoundGames(val, gate, report), Dreamer(),
                              EvolutionConfig(evolution_threshold=1., gate=rule, gate_tasks=64), seed, Shelf)
        found = shown(bank)
        fair.append(
            record['rates_after']['all']['mean']
            - sum(chance(g, found, effects) for g in report) / len(report)
        )
        known = {g.id: g for g in gate}
        for p in (p for p in record['proposals'] if p['kept']):
            played, gain = [known[g] for g in p['gate']['games']], effects[p['principle']](None)
            flattering.append((p['gate']['after'] - p['gate']['before'])/len(played) - gain)
    return fair, flattering

def mean(xs):
    "Mean with its 95 % interval"
    r = over_seeds(xs)
    return r.mean, r.high - r.mean, f'{r.mean:+.3f} [{r.low:+.3f}, {r.high:+.3f}] over {r.n}'

def main(times, seed):
    rows, broken, numbers = [], [], lambda n: range(seed*10**6, seed*10**6 + n)
    def row(name, tries, promised, limit=ALPHA):
        rate, pairs, worth = measured(tries)
        ok = {'rare': rate.low <= limit, 'often': rate.mean >= limit}.get(
            promised
        )  # More than alpha by more than chance?
        if ok is False:
            broken.append(name)
        said = {'rare': f'at most {limit:g}', 'often': f'at least {limit:g}'}.get(promised, '')
        rows.append(
            [name, f'{worth:+.2f}', rate, f'{pairs:.0f}', said, {True: 'kept', False: 'BROKEN'}.get(ok, '')]
        )

    for rule, limit in [
        *((r, n) for n in LIMITS for r in ('sign', 'bound')),
        ('strict', LIMITS[0]),
        ('none', LIMITS[0]),
    ]:
        for sort, (*_, promised) in kinds(0).items():
            tested, often = rule in ('sign', 'bound'), .9 if limit >= 64 else .85
            row(
                f'{rule} {limit}: {sort}',
                (added(sort, rule, limit, i) for i in numbers(times if tested else times // 10)),
                promised if tested else '',
                often if promised == 'often' else ALPHA,
            )
    row('sign: useless, five times', (insisted(5, i) for i in numbers(times//2)), 'rare', 2*ALPHA)
    for gain, name in ((.3, 'useful'), (MARGIN, 'worth the margin'), (0., 'useless'), (-.2, 'harmful')):
        row(f'retire: {name}', (retired(gain, i) for i in numbers(times//2)), 'rare' if gain > 0 else '')
    print(Table(['proposal', 'worth', 'accepted', 'pairs', 'promised', ''], rows))
    for rule in ('sign', 'strict'):
        fair, flattering = reported(rule, times//5)
        m, half, text = mean(fair)
        if abs(m) > .03 + half:
            broken.append(f'{rule}: reported')
        print(
            f'\n{rule}: reported success of the chosen bank, less the true one: {text}; promised within 0.03'
        )
        print(
            f"{rule}: what was kept gained more in the gate's own games than it is worth: "
            f"{mean(flattering)[2]}"
        )
    print(f'\nbroken: {", ".join(broken) or "none"}')
    return not broken

if __name__=='__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--times', type=int, default=1000)
    p.add_argument('--seed', type=int, default=0)
    sys.exit(not main(**vars(p.parse_args())))
