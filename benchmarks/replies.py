"""Three forms of reply, played by a policy of 0.1 M weights on the same games.

    python benchmarks/replies.py [--steps 500] [--games 12] [--seed 0] [--save data/replies.json]

The shipped policy writes thought and action. A second policy begins from its weights and imitates the expert
in replies without a thought, in 60 households (some 35 CPU-seconds); it plays freely, constrained to the
admissible commands, and choosing among them by score, by the sum and by the mean of log-probs. All play the
same test games of eight other households, each with the skill that its game needs. Prints a table with 95 %
intervals; exits 1 if choosing by score does not win more games than writing freely does."""
import argparse, json, random, sys, time
import torch
from skillrl.agent import Episode, Limits, demonstrate, rollout
from skillrl.config import AgentConfig
from skillrl.envs.alfworld.households import Household
from skillrl.envs.alfworld.suites import HouseholdSuite
from skillrl.envs.base import world
from skillrl.evaluate import paired_difference
from skillrl.llm.local import Policy
from skillrl.llm.placement import threads
from skillrl.store import atomic_write, data_path
from skillrl.trajectory import success_rate
from skillrl.training.sft import FullOptions, encode_rows, full_sft

WAYS = {'thought and action': ('think+action', Limits()),
        'thought and action, admissible': ('think+action', Limits(decode='admissible')),
        'action': ('action', Limits()),
        'action, admissible': ('action', Limits(decode='admissible')),
        'action, by score': ('action', Limits(decode='score')),
        'action, by mean score': ('action', Limits(decode='score', length_norm=True))}

def episodes(split, n, names, form, max_steps):
    "Games of some households, each with the skill that it needs"
    out = []
    for name in names:
        suite = HouseholdSuite(Household(name, ('kitchen', 'living')))
        for game in suite.games(split, n):
            skills = [suite.house.hint(game.goal.thing)]
            agent = AgentConfig(reply=form)
            out.append(Episode(suite.env(game, max_steps), game, skills=skills, agent=agent))
    return out

def without_thoughts(steps, seed):
    "The shipped policy after imitating actions alone"
    policy, rng = Policy.load(data_path('base')), random.Random(seed)
    rows = []
    for e in episodes('train', 6, [f'train-{i:03}' for i in range(60)], 'action', 30):
        rows += demonstrate(e, world('alfworld').expert(e.start().task, rng), rng)[1]
    full_sft(encode_rows(rows, policy), policy, FullOptions(steps, lr=2e-3, seed=seed))
    return policy

def play(policy, form, limits, games, seed):
    live = episodes('test', games, [f'test-{i:03}' for i in range(8)], form, 15)
    return rollout(live, policy, .4, torch.Generator().manual_seed(seed), limits=limits)

def row(name, trajs, seconds):
    rate = success_rate(trajs)
    refused = sum(not step.ok for t in trajs for step in t.steps)
    return dict(reply=name, mean=rate.mean, low=rate.low, high=rate.high, n=rate.n, refused=refused,
                steps=sum(map(len, trajs)), seconds=round(seconds, 1))

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--steps', type=int, default=500, help='updates of fine-tuning')
    p.add_argument('--games', type=int, default=12, help='test games of each household')
    p.add_argument('--seed', type=int, default=0)
    p.add_argument('--save', help='file for the table')
    a = p.parse_args()
    with threads(1):
        shipped = Policy.load(data_path('base'))
        policies = {'think+action': shipped, 'action': without_thoughts(a.steps, a.seed)}
        rows, played = [], {}
        for name, (form, limits) in WAYS.items():
            start = time.process_time()
            played[name] = play(policies[form], form, limits, a.games, a.seed)
            rows.append(row(name, played[name], time.process_time() - start))
            print(rows[-1], flush=True)
    gain = paired_difference(played['action'], played['action, by score'])
    print('by score less written freely:', gain)
    if a.save:
        found = dict(rows=rows, gain=[gain.mean, gain.low, gain.high, gain.n])
        atomic_write(a.save, json.dumps(found, indent=1) + '\n')
    return int(gain.mean <= 0)

if __name__ == '__main__':
    sys.exit(main())
