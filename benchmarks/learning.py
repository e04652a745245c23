"""Does a bank help, does GRPO learn to use it, and is it the bank that does it?

    python benchmarks/learning.py [--seeds 3] [--jobs 2] [--real DIR] [--only main|single|real]

Main: RL in 24 households, each with the bank distilled from its own trajectories; judged in 20 households never seen,
240 tasks, 12 steps each. The arm without skills gets the same environment steps, the ones spent on collecting included.
Single: one fixed household, where weights can learn the conventions too: by GRPO with the bank, by GRPO alone, and by heart,
imitating demonstrations whose notes the prompt hides. Real: official games, each once, 50 steps.
Prints the targets and exits 1 when one is missed.
"""
import argparse, re, sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from skillrl.config import SkillRLConfig
from skillrl.evaluate import compare, evaluate, over_seeds, paired_difference
from skillrl.envs.alfworld.suites import FolderSuite, suites
from skillrl.envs.alfworld.teacher import alfworld_bank as distill
from skillrl.builders import build_episodes, build_policy, derive_seed, limits
from skillrl.training.pipeline import collect_games, demonstrations, draw_groups, fine_tune

def prepare(cfg):
    "Suites with a bank each, from their own trajectories, and the environment steps that took in the training ones"
    train, test = suites(cfg.env)
    base, banks, spent = build_policy(cfg), {}, 0
    for s in train + test:
        trajs = collect_games(base, s, cfg)
        banks[s.name] = distill(trajs)
        spent += sum(map(len, trajs)) if s in train else 0
    return train, test, banks, spent

def cold_start(cfg, train, banks):
    rows = [r for s in train for r in demonstrations(s, banks.get(s.name), cfg)]
    return fine_tune(rows, cfg)[0]

def grpo(cfg, policy, train, banks, budget=None):
    "GRPO for `rl.iterations`, or until `budget` environment steps are used; the success rate and steps of each iteration"
    from skillrl.training.rl import GRPOTrainer
    trainer, log = GRPOTrainer(policy, cfg.rl), []
    while (len(log) < cfg.rl.iterations) if budget is None else (sum(m['steps'] for m in log) < budget):
        groups, _ = draw_groups(train, {s.name: banks.get(s.name) for s in train}, cfg, len(log))
        log.append(trainer.iterate(groups, derive_seed(cfg.seed, 'rl', len(log)), **limits(train[0], cfg)))
    return log

def judge(cfg, policy, test, banks, shift=0):
    "Trajectories of the test games, each household with its own bank, or with that of the one `shift` further on"
    show = lambda i: banks.get(test[(i+shift) % len(test)].name)
    eps = [e for i,s in enumerate(test) for e in build_episodes(s, s.games('test', cfg.env.test_tasks), show(i), cfg)]
    return evaluate(policy, eps, seed=derive_seed(cfg.seed, 'judge'))

def one_seed(seed):
    import torch
    torch.set_num_threads(1)
    cfg, out = SkillRLConfig().merged({'seed': seed}), {}
    train, test, banks, collected = prepare(cfg)
    policy = cold_start(cfg, train, banks)
    out['before, no bank'], out['before, bank'] = judge(cfg, policy, test, {}), judge(cfg, policy, test, banks)
    out['before, wrong bank'] = judge(cfg, policy, test, banks, shift=2)
    log = grpo(cfg, policy, train, banks)
    out['GRPO with banks, bank'], out['GRPO with banks, no bank'] = judge(cfg, policy, test, banks), judge(cfg, policy, test, {})
    out['GRPO with banks, wrong bank'] = judge(cfg, policy, test, banks, shift=2)
    steps = collected + sum(m['steps'] for m in log)
    plain = cold_start(cfg, train, {})
    without = grpo(cfg, plain, train, {}, budget=steps)
    out['GRPO without skills'] = judge(cfg, plain, test, {})
    return out, dict(collected=collected, steps=steps, steps_without=sum(m['steps'] for m in without))

def main_result(runs):
    for seed,(out, spent) in enumerate(runs):
        print(f'\nseed {seed}: {spent["steps"]} environment steps with banks ({spent["collected"]} of them collecting), {spent["steps_without"]} without')
        print(compare(out))
    mean = lambda ts: sum(t.success for t in ts)/len(ts)
    gain = lambda a, b: over_seeds([mean(out[b]) - mean(out[a]) for out,_ in runs])
    pooled = lambda a, b: paired_difference(*([_tagged(t, i) for i,(out,_) in enumerate(runs) for t in out[k]] for k in (a, b)))
    print(f'\nover {len(runs)} seeds (mean [95 % interval]); in brackets the paired difference over all games')
    for a, b in [('before, no bank', 'before, bank'), ('before, no bank', 'before, wrong bank'), ('before, bank', 'GRPO with banks, bank'),
                 ('GRPO without skills', 'GRPO with banks, bank')]: print(f'{b} minus {a}: {gain(a, b)}  ({pooled(a, b)})')
    final = over_seeds([mean(out['GRPO with banks, bank']) for out,_ in runs])
    print(f'GRPO with banks, bank: {final}')
    checks = {'bank beats none before RL by 0.20': gain('before, no bank', 'before, bank').mean >= .20,
              'a wrong bank does not help': gain('before, no bank', 'before, wrong bank').mean <= .03,
              'GRPO with banks reaches 0.80': final.mean >= .80,
              'and ends 0.20 above GRPO without skills': gain('GRPO without skills', 'GRPO with banks, bank').mean >= .20}
    for what, ok in checks.items(): print('ok    ' if ok else 'MISSED', what)
    return all(checks.values())

def _tagged(t, i):
    from dataclasses import replace
    return replace(t, game=f'{i}:{t.game}')

def single(seed):
    "One household: GRPO with its bank, GRPO without, and its conventions learned by heart"
    import torch
    torch.set_num_threads(1)
    cfg = SkillRLConfig().merged({'seed': seed, 'env.train_households': 1, 'env.test_households': 1, 'rl.iterations': 40})
    (house,), _, banks, collected = prepare(cfg)
    out = {}
    for name, b in {'bank': banks, 'no bank': {}}.items():
        policy = cold_start(cfg, [house], b)
        log = grpo(cfg, policy, [house], b)
        trajs = evaluate(policy, build_episodes(house, house.games('test', 60), b.get(house.name), cfg), seed=seed)
        out[name] = trajs, _reached(log), collected if b else 0
    policy, spent = by_heart(cfg, house)
    out['by heart'] = evaluate(policy, build_episodes(house, house.games('test', 60), None, cfg), seed=seed), None, spent
    return out

def by_heart(cfg, house):
    "A policy that imitated 96 episodes of an expert with notes, without seeing them, and the environment steps of the notes"
    cfg = cfg.merged({'env.episodes': 96, 'sft.trust': 1., 'sft.steps': 400, 'sft.learning_rate': 1e-3})
    trajs = collect_games(build_policy(cfg), house, cfg)
    rows = demonstrations(house, distill(trajs), cfg)
    for m in (m for r in rows for m in r['prompt']): m['content'] = re.sub(r'^Skill: .*\n', '', m['content'], flags=re.M)
    return fine_tune(rows, cfg)[0], sum(map(len, trajs))

def _reached(log, level=.8, width=3):
    "Environment steps until the moving average of success is `level`, or None"
    for i in range(width-1, len(log)):
        if sum(m['success'] for m in log[i-width+1:i+1])/width >= level: return sum(m['steps'] for m in log[:i+1])

def single_result(runs):
    print('\none fixed household, 60 test games; GRPO for 40 iterations')
    for seed, out in enumerate(runs):
        print(f'\nseed {seed}')
        print(compare({k: v[0] for k,v in out.items()}))
        for k,(_, reached, extra) in out.items():
            how = f'{extra} environment steps for collecting' if k=='by heart' else f'environment steps to 0.8: {reached or "not reached"}'
            print(f'{k}: {how}' + (f' after {extra} for collecting' if k=='bank' else ''))

def real(folder, policy=None):
    "Every official test game once, 50 steps"
    cfg = SkillRLConfig().merged({'env.games': folder, 'env.max_steps': 50, **({'model.checkpoint': policy} if policy else {})})
    suite = FolderSuite(folder)
    played = {split: evaluate(build_policy(cfg), build_episodes(suite, suite.games(split), None, cfg)) for split in suite.tests}
    print(f'\n{sum(map(len, played.values()))} official games, each once, 50 steps, no bank')
    print(compare({f'{policy or "shipped base policy"}, {split}': trajs for split, trajs in played.items()}))

if __name__=='__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--seeds', type=int, default=3)
    p.add_argument('--jobs', type=int, default=2)
    p.add_argument('--real', metavar='DIR')
    p.add_argument('--policy', metavar='DIR', help='for --real: another policy than the shipped one')
    p.add_argument('--only', choices=('main', 'single', 'real'))
    a, ok = p.parse_args(), True
    with ProcessPoolExecutor(a.jobs, get_context('spawn')) as pool:
        if a.only in (None, 'main'): ok = main_result(list(pool.map(one_seed, range(a.seeds))))
        if a.only in (None, 'single'): single_result(list(pool.map(single, range(a.seeds))))
    if a.real: real(a.real, a.policy)
    sys.exit(not ok)
