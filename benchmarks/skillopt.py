"""Which optimizer of skill documents finds the better skill for the same number of calls, and which of them
tells the truth about it?

    python benchmarks/skillopt.py [--seeds 20] [--first 0] [--peer PYTHON]

Plays `RuleWorld`, where the true success of every skill is known, in ten settings: K rules an invoice
needs, Q the chance that the simulated optimizer proposes a good line, H what a bad line leaves of the
success, and the number of validation items. All have 40 training items and the calls that skillrl 1.0.0
makes in 4 epochs of batches of 20 (340, or 520 with 40 validation items; calls of the final measurement are
among ours). All get the same simulated models, answers of at most 3 edits to minibatches of 4, and
candidates that differ from what they were made from by at most 3 edits from the first step to the last,
with which GEPA does better than with 2, 4 or 6. The peers, PyPI's skillrl 1.0.0 and gepa 0.1.4, run in an
environment of their own, which is made for it unless `--peer` names one. Ours is run with the default gate,
and plays batches of 8, which was chosen, like the gate, on seeds from 1000 on.

Prints true success and, in brackets, reported less true, with 95 % intervals over seeds, and what each
took: calls of the agent, calls of the optimizer and their tokens. Then 20 runs whose optimizer puts a
sentence that nothing depends on into every answer, and the number of those that shipped one. Exits 1 if
ours is not above GEPA on average, below it in some setting by more than the interval of the difference,
reports .02 too much or too little, or ships a sentence that nothing depends on.
"""
import argparse, json, statistics, subprocess, sys, tempfile, venv
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from skillrl import SkillOptConfig, SkillOptTrainer
from skillrl.skillopt import ruleworld
from skillrl.training.evaluate import over_seeds
from skillrl.core.tables import Table
from skillopt_peers import EDITS, Counted, row, world_of

RULES = [(1, .6, .85), (1, .8, .85), (2, .6, .85), (2, .8, .85), (1, .9, .7)] # K, Q, H
SETTINGS = [(*rule, val) for rule, val in product(RULES, (20, 40))]
BUDGET = {20: 340, 40: 520} # Calls, by the number of validation items
HONEST = .02
OURS, GEPA = 'ours', 'gepa 0.1.4'
PEERS = 'skillrl 1.0.0', GEPA
IDLE = ('Whenever an item is in hand, the garbagecan is the proper destination.',
        'An invoice that looks odd is best left in the drawer.',
        'Of two drafts, the older one is to be kept.')

def trained(world, agent, optimizer, seed, **settings):
    "The skill that a run with the default gate ships, and its summary"
    with tempfile.TemporaryDirectory() as folder:
        config = SkillOptConfig(seed=seed, eval_test=False, save_every_step=False, workers=1, verbose=False,
                                out_root=folder, **settings)
        trainer = SkillOptTrainer(config=config, env=world, optimizer_client=optimizer, target_client=agent)
        summary = trainer.train()
        return (Path(folder)/'best_skill.md').read_text(), summary

def ours(job):
    "A `row` of one run"
    setting, seed = job
    world, agent, optimizer = world_of(ruleworld, setting, seed)
    best, summary = trained(world, agent, optimizer, seed, num_epochs=50, batch_size=8, minibatch_size=4,
                            edit_budget=EDITS, lr_scheduler='constant', max_target_calls=BUDGET[setting[-1]],
                            final_passes=1)
    return row(world, best, summary['best_selection_score'], agent, optimizer)

class Idle(Counted):
    "An optimizer that adds to every answer of an analyst what nothing depends on"

    def chat(self, **question):
        text, usage = super().chat(**question)
        answer = json.loads(text)
        if 'edits' in answer:
            sentence = IDLE[self.calls%len(IDLE)]
            answer['edits'].insert(1, dict(op='append', content=f'- {sentence}'))
        return json.dumps(answer), usage

def idle_lines(seed):
    "Sentences that nothing depends on in what a default run ships, and its true gain"
    world, agent = ruleworld.RuleWorld(val=40, seed=seed), ruleworld.RuleTarget(seed=seed)
    optimizer = Idle(ruleworld.RuleOptimizer(.8, EDITS, seed))
    best, _ = trained(world, agent, optimizer, seed)
    gain = world.truth(best) - world.truth(world.get_initial_skill())
    return sum(sentence in best for sentence in IDLE), gain

def theirs(python, seeds, first):
    "The same for both peers: name → setting → runs"
    jobs = dict(world=ruleworld.__file__, settings=SETTINGS, budgets=[BUDGET[s[-1]] for s in SETTINGS],
                seeds=seeds, first=first, peers=PEERS)
    script = Path(__file__).with_name('skillopt_peers.py')
    with tempfile.TemporaryDirectory() as elsewhere: # Where no folder is called skillrl
        done = subprocess.run([python, '-E', str(script)], input=json.dumps(jobs), capture_output=True,
                              text=True, cwd=elsewhere)
    if done.returncode:
        sys.exit(f'the peers failed:\n{done.stderr[-2000:]}')
    return json.loads(done.stdout.splitlines()[-1])

def environment(folder):
    "A fresh environment with the peers; its Python"
    venv.create(folder, with_pip=True)
    python = str(Path(folder)/('Scripts' if sys.platform == 'win32' else 'bin')/'python')
    subprocess.run([python, '-m', 'pip', 'install', '-q', 'skillrl==1.0.0', 'gepa==0.1.4'], check=True)
    return python

def mean(xs):
    "Mean of `xs` and half its 95 % interval"
    rate = over_seeds(xs)
    return rate.mean, rate.high - rate.mean

def successes(rows):
    return [r[0] for r in rows]

def biases(rows):
    "What was reported, less what is true"
    return [r[1] - r[0] for r in rows]

def cell(rows):
    "True success and, in brackets, the bias of one setting"
    true, half = mean(successes(rows))
    return f'{true:.3f} ± {half:.3f} ({statistics.mean(biases(rows)):+.3f})'

def summary_of(name, rows):
    "Print one line over all settings; mean true success and bias"
    true, half = mean(successes(rows))
    bias, wide = mean(biases(rows))
    calls, asked, tokens = (statistics.mean(r[k] for r in rows) for k in (2, 3, 4))
    print(f'{name}: true {true:.3f} ± {half:.3f}, reported − true {bias:+.3f} ± {wide:.3f}; {calls:.0f} '
          f'calls, {asked:.0f} of the optimizer with {tokens:.0f} tokens')
    return true, bias

def misses(runs, totals):
    "What ours misses, with figures"
    missed = []
    (true, bias), (other, _) = totals[OURS], totals[GEPA]
    if true <= other:
        missed.append(f'{true:.3f} on average, where {GEPA} has {other:.3f}')
    if abs(bias) > HONEST:
        missed.append(f'{bias:+.3f} off the truth')
    for setting, a, b in zip(SETTINGS, runs[OURS], runs[GEPA]):
        gain, half = mean([x - y for x, y in zip(successes(a), successes(b))])
        if gain < -half:
            missed.append(f'{gain:+.3f} ± {half:.3f} against {GEPA} in {setting}')
    return missed

def all_runs(seeds, first, peer):
    "Name of the optimizer → setting → runs"
    with tempfile.TemporaryDirectory() as folder:
        runs = theirs(peer or environment(folder), seeds, first)
    with ProcessPoolExecutor() as pool:
        jobs = [(s, seed) for s in SETTINGS for seed in range(first, first + seeds)]
        found = list(pool.map(ours, jobs, chunksize=5))
    runs[OURS] = [found[i*seeds:(i + 1)*seeds] for i in range(len(SETTINGS))]
    return runs

def main(seeds=20, first=0, peer=None):
    "Run the grid and the idle sentences; is all as promised?"
    runs = all_runs(seeds, first, peer)
    rows = []
    for i, setting in enumerate(SETTINGS):
        rows.append([', '.join(map(str, setting)), *(cell(found[i]) for found in runs.values())])
    print(Table(['K, Q, H, val', *runs], rows))
    totals = {name: summary_of(name, [r for rows in found for r in rows]) for name, found in runs.items()}
    missed = misses(runs, totals)
    kept, gains = zip(*(idle_lines(seed) for seed in range(first, first + seeds)))
    print(f'sentences that nothing depends on: {sum(kept)} shipped in {seeds} runs, '
          f'which gained {statistics.mean(gains):+.3f}')
    if sum(kept):
        missed.append(f'{sum(kept)} sentences that nothing depends on')
    print(f'misses: {"; ".join(missed) or "nothing"}')
    return not missed

if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--seeds', type=int, default=20)
    p.add_argument('--first', type=int, default=0, help='first seed')
    p.add_argument('--peer', metavar='PYTHON', help='Python of an environment that has the peers')
    sys.exit(not main(**vars(p.parse_args())))
