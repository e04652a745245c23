"""Does a bank help, does GRPO learn to use it, and is it the bank that does it?

    python benchmarks/learning.py [--seeds 3] [--jobs 2] [--real DIR] [--only main|single|real] [--save FILE]

Main: RL in 24 households, each with the bank distilled from its own trajectories; evaluated in 20 households
never seen, 240 tasks, 12 steps each. The arm without skills gets the same environment steps, those of
collecting included.
Single: one fixed household, where weights can learn the conventions too: by GRPO with the bank, by GRPO
alone, and by SFT on demonstrations whose skills the prompt hides. Real: official games, each once, 50 steps.
Prints the targets and exits 1 when one is missed. `--save data/learning.json` keeps what the front page
draws: for each seed the success of every iteration, with the environment steps so far, and the test games
each condition won.
"""
import argparse, json, re, sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path
from skillrl.builders import build_episodes, build_policy, build_teacher, derive_seed, rollout_limits
from skillrl.config import SkillRLConfig
from skillrl.envs.base import world
from skillrl.evaluate import compare, evaluate, over_seeds, paired_difference
from skillrl.skills.distillation import distill
from skillrl.training.phases import collect_games, demonstrations, draw_groups, fine_tune

@dataclass
class Setting:
    "Suites with a bank each, from their own trajectories"
    config: SkillRLConfig
    train: list
    test: list
    banks: dict     # Name of a suite → its bank
    collected: int  # Environment steps that the banks of the training suites took

def distilled(config, played):
    where = world(config.env.name)
    return distill(played, build_teacher(config), where.categories, where.router)

def prepare(config):
    train, test = world(config.env.name).suites(config.env)
    policy, setting = build_policy(config), Setting(config, train, test, {}, 0)
    for suite in train + test:
        played = collect_games(policy, suite, config)
        setting.banks[suite.name] = distilled(config, played)
        if suite in train:
            setting.collected += sum(map(len, played))
    return setting

def cold_start(s, banks):
    rows = [row for suite in s.train for row in demonstrations(suite, banks.get(suite.name), s.config)]
    return fine_tune(rows, s.config)[0]

def steps_of(log):
    return sum(m['steps'] for m in log)

def grpo(s, policy, banks, budget=None):
    "GRPO for `rl.iterations`, or until `budget` environment steps are used; what each iteration logs"
    from skillrl.training.rl import GRPOTrainer
    trainer, log = GRPOTrainer(policy, s.config.rl), []
    limits = rollout_limits(s.train[0], s.config)
    shown = {suite.name: banks.get(suite.name) for suite in s.train}
    def unfinished():
        return len(log) < s.config.rl.iterations if budget is None else steps_of(log) < budget
    while unfinished():
        groups, _ = draw_groups(s.train, shown, s.config, len(log))
        log.append(trainer.iterate(groups, derive_seed(s.config.seed, 'rl', len(log)), limits=limits))
    return log

def play_tests(s, policy, banks, shift=0):
    "Trajectories of the test games, each household with its own bank, or that of the one `shift` further on"
    episodes = []
    for i, suite in enumerate(s.test):
        owner = s.test[(i + shift) % len(s.test)]
        games = suite.games('test', s.config.env.test_tasks)
        episodes += build_episodes(suite, games, banks.get(owner.name), s.config)
    return evaluate(policy, episodes, seed=derive_seed(s.config.seed, 'judge'))

def one_seed(seed):
    "Trajectories of every condition, and what they cost"
    import torch
    torch.set_num_threads(1)
    s = prepare(SkillRLConfig().merged({'seed': seed}))
    policy, out = cold_start(s, s.banks), {}
    out['before, no bank'] = play_tests(s, policy, {})
    out['before, bank'] = play_tests(s, policy, s.banks)
    out['before, wrong bank'] = play_tests(s, policy, s.banks, shift=2)
    log = grpo(s, policy, s.banks)
    out['GRPO with banks, bank'] = play_tests(s, policy, s.banks)
    out['GRPO with banks, no bank'] = play_tests(s, policy, {})
    out['GRPO with banks, wrong bank'] = play_tests(s, policy, s.banks, shift=2)
    steps, plain = s.collected + steps_of(log), cold_start(s, {})
    without = grpo(s, plain, {}, budget=steps)
    out['GRPO without skills'] = play_tests(s, plain, {})
    curves = {'with banks': curve(log, s.collected), 'without banks': curve(without)}
    return out, dict(collected=s.collected, steps=steps, steps_without=steps_of(without), curves=curves)

def curve(log, before=0):
    "Environment steps at the end of each iteration, those spent `before` included, and its success"
    steps = accumulate((m['steps'] for m in log), initial=before)
    return dict(steps=list(steps)[1:], success=[round(m['success'], 4) for m in log])

def save(path, runs):
    "What the front page draws"
    def won(played):
        return dict(won=sum(t.success for t in played), n=len(played))
    rows = []
    for seed, (out, spent) in enumerate(runs):
        test = {name: won(played) for name, played in out.items()}
        rows.append(dict(seed=seed, collected=spent['collected'], curves=spent['curves'], test=test))
    Path(path).write_text(json.dumps(rows, indent=1) + '\n', encoding='utf-8')

COMPARED = [('before, no bank', 'before, bank'), ('before, no bank', 'before, wrong bank'),
            ('before, bank', 'GRPO with banks, bank'), ('GRPO without skills', 'GRPO with banks, bank')]

def rate(played):
    return sum(t.success for t in played)/len(played)

def gain(runs, a, b):
    "What condition `b` wins more than `a`, over seeds"
    return over_seeds([rate(out[b]) - rate(out[a]) for out, _ in runs])

def pooled(runs, a, b):
    "The paired difference of `a` and `b` over the games of all seeds"
    def tagged(name):
        return [replace(t, game=f'{i}:{t.game}') for i, (out, _) in enumerate(runs) for t in out[name]]
    return paired_difference(tagged(a), tagged(b))

def main_result(runs):
    "Print rates and targets; were all of them met?"
    for seed, (out, spent) in enumerate(runs):
        collecting = f'{spent["collected"]} of them collecting'
        with_banks = f'{spent["steps"]} environment steps with banks ({collecting})'
        print(f'\nseed {seed}: {with_banks}, {spent["steps_without"]} without')
        print(compare(out))
    about = 'mean [95 % interval]; in brackets the paired difference over all games'
    print(f'\nover {len(runs)} seeds ({about})')
    for a, b in COMPARED:
        print(f'{b} minus {a}: {gain(runs, a, b)}  ({pooled(runs, a, b)})')
    final = over_seeds([rate(out['GRPO with banks, bank']) for out, _ in runs])
    print(f'GRPO with banks, bank: {final}')
    bank, wrong, _, rl = (gain(runs, a, b).mean for a, b in COMPARED)
    checks = {'bank beats none before RL by 0.20': bank >= .20, 'a wrong bank does not help': wrong <= .03,
              'GRPO with banks reaches 0.80': final.mean >= .80,
              'and ends 0.20 above GRPO without skills': rl >= .20}
    for what, ok in checks.items():
        print('ok    ' if ok else 'MISSED', what)
    return all(checks.values())

def single(seed):
    "One household: GRPO with its bank, GRPO without, and its conventions learned by SFT"
    import torch
    torch.set_num_threads(1)
    one = {'seed': seed, 'env.train_suites': 1, 'env.test_suites': 1, 'rl.iterations': 40}
    s = prepare(SkillRLConfig().merged(one))
    house, = s.train
    def played(policy, bank):
        return evaluate(policy, build_episodes(house, house.games('test', 60), bank, s.config), seed=seed)
    out = {}
    for name, banks in {'bank': s.banks, 'no bank': {}}.items():
        policy = cold_start(s, banks)
        log = grpo(s, policy, banks)
        out[name] = played(policy, banks.get(house.name)), steps_to(log), s.collected if banks else 0
    policy, spent = by_heart(s.config, house)
    out['by heart'] = played(policy, None), None, spent
    return out

def by_heart(config, house):
    "A policy fine-tuned on 96 episodes without their skills, and the environment steps these took"
    more = {'env.episodes': 96, 'sft.trust': 1., 'sft.steps': 400, 'sft.learning_rate': 1e-3}
    config = config.merged(more)
    played = collect_games(build_policy(config), house, config)
    rows = demonstrations(house, distilled(config, played), config)
    for message in (m for row in rows for m in row['prompt']):
        message['content'] = re.sub(r'^Skill: .*\n', '', message['content'], flags=re.M)
    return fine_tune(rows, config)[0], sum(map(len, played))

def steps_to(log, level=.8, width=3):
    "Environment steps until the moving average of success is `level`, or None"
    for i in range(width, len(log) + 1):
        if sum(m['success'] for m in log[i-width:i])/width >= level:
            return steps_of(log[:i])

def single_result(runs):
    print('\none fixed household, 60 test games; GRPO for 40 iterations')
    for seed, out in enumerate(runs):
        print(f'\nseed {seed}')
        print(compare({name: played for name, (played, *_) in out.items()}))
        for name, (_, reached, extra) in out.items():
            print(f'{name}: {cost(name, reached, extra)}')

def cost(name, reached, extra):
    if name == 'by heart':
        return f'{extra} environment steps for collecting'
    told = f'environment steps to 0.8: {reached or "not reached"}'
    return f'{told} after {extra} for collecting' if name == 'bank' else told

def real(folder, policy=None):
    "Every official test game once, 50 steps"
    settings = {'env.games': folder, 'env.max_steps': 50}
    if policy:
        settings['model.checkpoint'] = policy
    config = SkillRLConfig().merged(settings)
    suite = world(config.env.name).suites(config.env)[1][0]
    played = {}
    for split in suite.tests:
        episodes = build_episodes(suite, suite.games(split), None, config)
        played[split] = evaluate(build_policy(config), episodes)
    print(f'\n{sum(map(len, played.values()))} official games, each once, 50 steps, no bank')
    print(compare({f'{policy or "shipped base policy"}, {split}': trajs for split, trajs in played.items()}))

def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--seeds', type=int, default=3)
    p.add_argument('--jobs', type=int, default=2)
    p.add_argument('--real', metavar='DIR')
    p.add_argument('--policy', metavar='DIR', help='for --real: another policy than the shipped one')
    p.add_argument('--only', choices=('main', 'single', 'real'))
    p.add_argument('--save', metavar='FILE', help='keep the curves and rates of the main result')
    return p.parse_args()

def main(a):
    ok = True
    with ProcessPoolExecutor(a.jobs, get_context('spawn')) as pool:
        if a.only in (None, 'main'):
            runs = list(pool.map(one_seed, range(a.seeds)))
            ok = main_result(runs)
            if a.save:
                save(a.save, runs)
        if a.only in (None, 'single'):
            single_result(list(pool.map(single, range(a.seeds))))
    if a.real:
        real(a.real, a.policy)
    return not ok

if __name__=='__main__':
    sys.exit(main(arguments()))
