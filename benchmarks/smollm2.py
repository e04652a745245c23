"""What a language model of 135 M parameters learns from banks, beside the policy that ships.

    python benchmarks/smollm2.py --runs DIR [--seeds 3] [--iterations 12] [--save data/smollm2.json] [--smoke]

`--reader` holds what `tools/make_smollm2.py` made of smollm2, `data/smollm2` unless it is given. For each
seed this is `skillrl train --policy READER --config configs/smollm2_households.yaml --seed SEED`, and goes on
from what is there. Then the evolved banks are shown to the policy from before RL, on the same games. `--jobs`
runs so many seeds side by side, and `--only SEED` one of them. RL takes `--iterations`. `--smoke` plays few
and short episodes.

    python benchmarks/smollm2.py --read RUN... --reader DIR [--save data/smollm2_banks.json]

The reader, as it is, with the banks of each RUN, which a policy of another size has made: what
`skillrl train --seed SEED --output RUN` has left. What that policy, the maker, won is kept too. Written after
each condition, and gone on with.

    python benchmarks/smollm2.py --learn RUN... --reader DIR --out DIR [--save data/smollm2_rl.json]

GRPO of the reader in the training households of the first RUN, with the banks that the other policy left
there and that now stay as they are; `--out` keeps its iterations. Then the reader before and after it plays
the test households of every RUN. What is kept or saved is not done again.

    python benchmarks/smollm2.py --teach RUN [--save data/smollm2_teacher.json]

What smollm2 without its adapter answers as the teacher of the first two test households of RUN.

    python benchmarks/smollm2.py --desk RUN... [--save data/smollm2_desk.json]

Each RUN is what `skillrl train --env benchmarks/desk.py:Owners --policy smollm2 --config
configs/smollm2_desk.yaml --seed SEED --output RUN` has left. Banks are held against what the world knows.
"""
import argparse, json, resource, subprocess, sys, time
from collections import defaultdict
from itertools import product
from pathlib import Path
from desk import usual
from learning import as_won, curve, read_run, SMOKE, split_of, total
from skillrl.core.config import load_config, settings_in
from skillrl.core.runfolder import RunFolder
from skillrl.core.stats import clustered_gain, clustered_rate
from skillrl.core.store import JsonlLog, atomic_write, read_json, write_json
from skillrl.core.tables import row_name
from skillrl.core.trajectory import Trajectory
from skillrl.envs.base import world
from skillrl.llm.chat import ScriptedChat
from skillrl.llm.local import Policy
from skillrl.llm.models import find_model
from skillrl.skills.bank import SkillBank, version_path, versions
from skillrl.skills.teachers import LLMTeacher, queries
from skillrl.training.builders import build_local_policy, build_rl_policy
from skillrl.training.phases import rl_iterations
from skillrl.training.pipeline import _MAKES, Pipeline, _play_condition, train
from skillrl.training.rl import GRPOTrainer

CONFIG = Path(__file__).parents[1]/'configs'/'smollm2_households.yaml'
WITHOUT_RL = 'before, evolved bank'
PAIRS = [('after, no bank', 'after, evolved bank'), ('after, no bank', 'after, bank'),
         ('after, bank', 'after, evolved bank'), (WITHOUT_RL, 'after, evolved bank'),
         ('after, wrong evolved bank', 'after, evolved bank'), ('before, bank', 'after, bank')]
DESK_PAIRS = [pair for pair in PAIRS if WITHOUT_RL not in pair]

def play_seed(folder, reader, seed, iterations, smoke):
    "One run, and the evolved banks with the weights from before RL"
    spent = JsonlLog(folder.parent/f'{seed}.spent.jsonl') # Of every piece of a run that was cut short
    begun = time.time()
    def step(phase, done, total):
        nonlocal begun
        now = time.time()
        spent.append([dict(phase=phase, done=done, seconds=round(now - begun))])
        begun = now
        print(f'seed {seed}: {phase} {done} of {total}', flush=True)
    own = {'seed': seed, 'model.checkpoint': reader, 'rl.iterations': iterations}
    config = load_config(CONFIG).merged(own | (SMOKE | {'env.max_steps': 4} if smoke else {}))
    if not (folder/'report.md').exists():
        train(config, folder, folder.exists(), step)
    file = folder.parent/f'{seed}.json'
    if file.exists():
        return
    with RunFolder(folder, config.to_dict(), True, False, _MAKES) as run:
        p = Pipeline(run, config=config)
        found = {split: as_won((t.metadata['suite'], t.success)
                               for t in _play_condition(p, *WITHOUT_RL.split(', '), split))
                 for split in p.test[0].tests}
    step(WITHOUT_RL, 1, 1)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss*1024 # Linux counts KiB
    hours = sum(row['seconds'] for row in spent.read())/3600
    write_json(file, dict(found=found, hours=hours, gigabytes=memory/1e9))

def seed_row(folder):
    "What one seed won in each condition, and what that took"
    run = read_run(folder)
    test = run['test']
    own = read_json(folder.parent/f'{folder.name}.json')
    for split, found in own.pop('found').items():
        test[row_name(WITHOUT_RL, split)] = found
    log = [m for m in JsonlLog(folder/'metrics.jsonl').read() if m['phase'] == 'rl']
    return dict(seed=int(folder.name), **own, **run, curve=curve(log, total(run, 'collect', 'train')))

def games_of(rows, name):
    "The games of each suite under a condition, 1 for one that was won"
    return [list(map(int, games)) for row in rows for games in row['test'][name].values()]

def gain(rows, a, b):
    "Game by game, what condition `b` wins more than `a`"
    pairs = zip(games_of(rows, a), games_of(rows, b), strict=True)
    return clustered_gain([[y - x for x, y in zip(*pair, strict=True)] for pair in pairs])

def told(rows, pairs):
    "Rates under each condition, and differences of `pairs`"
    for name in rows[0]['test']:
        print(f'{name}: {clustered_rate(games_of(rows, name))}')
    for a, b in pairs:
        print(f'{b} minus {a}: {gain(rows, a, b)}')

def save_rows(file, rows):
    "Write `rows` to `file`, if there is to be one"
    if file:
        atomic_write(Path(file), json.dumps(dict(seeds=rows), indent=1) + '\n')

def saved_rows(file):
    "The rows that `file` holds, if there is one"
    return read_json(Path(file))['seeds'] if file and Path(file).exists() else []

REPLY_TOKENS = 300 # Where an answer of `teach` is cut off
READ = ['no bank', 'bank', 'evolved bank', 'wrong evolved bank']
READ_PAIRS = [('no bank', 'evolved bank'), ('bank', 'evolved bank'), ('no bank', 'bank'),
              ('no bank', 'wrong evolved bank')]

def reading(folder, reader):
    "The finished run in `folder`, with a config by which the model in `reader` acts and learns"
    own = load_config(folder/'config.json')
    acts = {path: value for path, value in settings_in(CONFIG).items()
            if path.startswith(('agent', 'model', 'retrieval', 'rl'))}
    config = own.merged(acts | {'model.checkpoint': reader, 'evolution.validation_interval': 0})
    with RunFolder(folder, None, True, False, _MAKES) as run:
        return Pipeline(run, config=config)

def played(p, when, what):
    "What the policy of `when` wins of goals that nobody has practised"
    begun = time.time()
    found = _play_condition(p, when, what, split_of(p))
    print(f'{when}, {what}: {time.time() - begun:.0f} s', flush=True)
    return as_won((t.metadata['suite'], t.success) for t in found)

def read_row(folder, reader, row):
    "The test households under one condition after the other; after each"
    p = reading(folder, reader)
    p.policy = {'after': build_local_policy(p.config)}.get
    own = read_run(folder)['test']
    row['maker'] = {what: own[row_name(f'after, {what}', split_of(p))] for what in READ}
    for what in READ:
        if what not in row['test']:
            row['test'][what] = played(p, 'after', what)
            yield

def read(a):
    "What the model wins with banks that another policy has made, over seeds"
    rows = {row['seed']: row for row in saved_rows(a.save)}
    for folder in map(Path, a.read):
        seed = load_config(folder/'config.json').seed
        row = rows.setdefault(seed, dict(seed=seed, test={}))
        for _ in read_row(folder, a.reader, row):
            save_rows(a.save, list(rows.values()))
    told(list(rows.values()), READ_PAIRS)

LEARNT = ['evolved bank', 'bank', 'no bank']

def games_played(log, iterations):
    "What was played in each household in the first `iterations`"
    past = defaultdict(list)
    for row in log.read():
        t = Trajectory.from_dict(row)
        if t.metadata['iteration'] < iterations:
            past[t.metadata['suite']].append(t)
    return past

def taught(p, out):
    "GRPO in the training households of `p`, whose banks stay; what each iteration logged, and its policy"
    log, games = JsonlLog(out/'log.jsonl'), JsonlLog(out/'games.jsonl')
    done, n = len(log.read()), p.config.rl.iterations
    past = games_played(games, done)
    trainer = GRPOTrainer(build_rl_policy(p.config), p.config.rl)
    if done:
        trainer.restore(out/str(done - 1))
    for it in rl_iterations(trainer, p.train, p.bank, p.config, range(done, n), lambda s: past[s.name]):
        for suite, t in it.played:
            t.metadata |= dict(suite=suite.name, iteration=it.number)
            past[suite.name].append(t)
        games.append(t.to_dict() for _, t in it.played)
        trainer.save(out/str(it.number))
        log.append([it.log])
        print(f'iteration {it.number}: {it.log}', flush=True)
    return log.read(), out/str(n - 1)

def learn_row(runs, out, row):
    "GRPO in the first of `runs`, and the test households of all before and after it; after each of these"
    row['log'], after = taught(runs[0], out)
    c = runs[0].config
    policy = dict(before=build_local_policy(c), after=build_local_policy(c, after)).get
    for what, when, p in product(LEARNT, ('before', 'after'), runs):
        found = row['test'].setdefault(f'{when}, {what}', {})
        if p.test[0].name not in found:
            p.policy = policy
            found |= played(p, when, what)
            yield

def learn(a):
    "What GRPO adds, with banks that another policy has made"
    runs = [reading(Path(run), a.reader) for run in a.learn]
    row, = saved_rows(a.save) or [dict(seed=runs[0].config.seed, test={})]
    for _ in learn_row(runs, Path(a.out), row):
        save_rows(a.save, [row])
    told([row], [(f'before, {what}', f'after, {what}') for what in LEARNT])

def teach(a):
    "What the model answers to a teacher's questions about a run, and how much of it a bank could take"
    with RunFolder(Path(a.teach), None, True, False, _MAKES) as run:
        p = Pipeline(run)
    model = Policy.load(find_model('smollm2'))
    replies = []
    def answer(messages):
        reply, = model.generate([model.encode(messages)], temperature=0, max_new_tokens=REPLY_TOKENS)
        replies.append(reply.text)
        print(f'{len(replies)}: {reply.text[:80]!r}', flush=True)
        return reply.text
    w = world(p.config.env.name)
    teacher = LLMTeacher(ScriptedChat(answer, parallel=1), router=w.router, reader=w.teacher().reader)
    for suite in p.test[:2]:
        teacher.ask(queries(teacher.cases(p.played(suite, 'collect'))))
    used = sum(len(x.items) for x in teacher.exchanges)
    print(f'{len(replies)} replies, {used} sentences that a bank could take')
    if a.save:
        write_json(Path(a.save), dict(used=used, replies=replies))

def sentences(bank, name):
    "What a desk's `bank` says now of owners, and how much of it is so on most days"
    said = [o.principle for o in bank.items('active') if o.title.startswith('Where')]
    so = {f'Look for {product} in {owner}.' for product, owner in usual(name).items()}
    return dict(said=len(said), true=sum(line in so for line in said), products=len(so))

def desk_row(run):
    "Rates of a run at the desk, and what its banks say at the end"
    told = {}
    for path in sorted(run.glob('bank/*')):
        bank = SkillBank.load(version_path(path, max(versions(path))))
        told[path.name] = sentences(bank, path.name)
    return dict(seed=load_config(run/'config.json').seed, test=read_run(run)['test'], banks=told)

def desk(runs, save):
    "What runs at the desk have won, over seeds, and how much of what they say is so"
    rows = [desk_row(Path(run)) for run in runs]
    save_rows(save, rows)
    told(rows, DESK_PAIRS)
    for row in rows:
        said, true = (sum(found[what] for found in row['banks'].values()) for what in ('said', 'true'))
        print(f'seed {row["seed"]}: {true} of {said} sentences are so')

def main(a):
    if a.desk:
        return desk(a.desk, a.save)
    if a.read:
        return read(a)
    if a.learn:
        return learn(a)
    if a.teach:
        return teach(a)
    runs = Path(a.runs)
    if a.only is not None:
        return play_seed(runs/str(a.only), a.reader, a.only, a.iterations, a.smoke)
    todo, at_work = list(range(a.seeds)), []
    for seed in todo:
        while len(at_work) >= a.jobs:
            at_work.pop(0).wait()
        at_work.append(subprocess.Popen([sys.executable, __file__, *sys.argv[1:], '--only', str(seed)]))
    for process in at_work:
        process.wait()
    rows = [seed_row(runs/str(seed)) for seed in todo if (runs/f'{seed}.json').exists()]
    if a.save:
        atomic_write(Path(a.save), json.dumps(dict(env='alfworld', seeds=rows), indent=1) + '\n')
    told(rows, [(f'{a}, new', f'{b}, new') for a, b in PAIRS])

if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--desk', metavar='RUN', nargs='+')
    p.add_argument('--read', metavar='RUN', nargs='+')
    p.add_argument('--learn', metavar='RUN', nargs='+')
    p.add_argument('--teach', metavar='RUN')
    p.add_argument('--out', metavar='DIR', help='keep the iterations of GRPO here')
    p.add_argument('--reader', metavar='DIR', default='data/smollm2')
    p.add_argument('--runs', metavar='DIR', help='keep runs here, and go on from there')
    p.add_argument('--seeds', type=int, default=3)
    p.add_argument('--iterations', type=int, default=12)
    p.add_argument('--jobs', type=int, default=1)
    p.add_argument('--only', type=int, metavar='SEED')
    p.add_argument('--save', metavar='FILE')
    p.add_argument('--smoke', action='store_true', help='few and short episodes')
    main(p.parse_args())
