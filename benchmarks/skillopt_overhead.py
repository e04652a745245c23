"""What a step of SkillOpt costs beside its calls: whole runs with models that answer at once, of this library
and of skillrl 1.0.0.

    python benchmarks/skillopt_overhead.py [--peer PYTHON] [--times 5]

Both do 40 steps at the defaults of 1.0.0: 400 items to train on, 100 to judge by and 100 to test, 4 epochs,
batches of 40, minibatches of 8, 8 workers. Ours screens patches and measures skills once more, so it plays
more rollouts. A run is a process of its own in a fresh folder, and the libraries take turns; shown is the
fastest run of each, since whatever else the machine does only adds. All folders stay until the end: ext4
makes files slowly where many were just deleted. `ms/step` is the wall clock of `train()` over its steps, with
the first and last measurements, and with what models and environment take themselves; `cpu` is processor
time.

`--peer` names a Python that has skillrl 1.0.0; without it, an environment is made for the occasion and
thrown away. Exits 1 if ours takes more than 10 ms a step.
"""
import argparse, json, subprocess, sys, time
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from zlib import crc32

TARGET = 10 # Milliseconds a step
SPLITS = dict(train=400, val=100, test=100)
PEER = 'skillrl 1.0.0'
LIBRARIES = PEER, 'ours'

class Env:
    "Items that are right or wrong by a checksum"
    name, task_types = 'checksums', []

    def __init__(self, result):
        self.result, self.played = result, 0

    def get_items(self, split):
        return [dict(id=f'{split}-{i}', question=f'Question {i}?') for i in range(SPLITS[split])]

    def get_initial_skill(self):
        return 'Be brief.\n'

    def get_task_types(self):
        return []

    def rollout_one(self, *, item, skill, target_client):
        self.played += 1
        text, _ = target_client.chat(system=skill, user=item['question'], stage='rollout')
        right = crc32(f'{item["id"]} {len(skill)}'.encode()) & 1
        reason = '' if right else 'not the reference'
        return self.result(id=item['id'], hard=right, soft=float(right), n_turns=1, question=item['question'],
                           predicted_answer=text, reference_text='yes', fail_reason=reason)

class Target:
    "A model that is always wrong"
    model = 'at-once'

    def chat(self, **kw):
        return 'no', dict(prompt_tokens=9, completion_tokens=1, total_tokens=10, calls=1)

class Editor:
    "A model with three edits for every question"
    model, asked = 'at-once-too', 0

    def chat(self, *, stage='', **kw):
        self.asked += 1
        rules = [f'Rule {self.asked}.{i}: look twice.' for i in range(3)]
        answer = dict(reasoning='simulated', edits=[dict(op='append', content=rule) for rule in rules])
        if stage == 'ranking':
            answer = dict(selected_indices=[0, 1, 2, 3])
        usage = dict(prompt_tokens=99, completion_tokens=30, total_tokens=129, calls=1)
        return json.dumps(answer), usage

def work():
    "One run in this process, in the folder it is in; what it took"
    from skillrl import RolloutResult, SkillOptConfig, SkillOptTrainer
    env = Env(RolloutResult)
    config = SkillOptConfig(out_root='run', verbose=False)
    trainer = SkillOptTrainer(config=config, env=env, optimizer_client=Editor(), target_client=Target())
    began, cpu_before = time.perf_counter(), time.process_time()
    steps = trainer.train()['total_steps']
    took = time.perf_counter() - began
    cpu = time.process_time() - cpu_before
    files = [p for p in Path('run').rglob('*') if p.is_file()]
    megabytes = sum(p.stat().st_size for p in files)/1e6
    return dict(steps=steps, ms=1e3*took/steps, cpu=1e3*cpu/steps, rollouts=env.played, files=len(files),
                mb=megabytes)

def measured(python, folder):
    done = subprocess.run([python, str(Path(__file__).resolve()), '--work'],
                          cwd=mkdtemp(dir=folder), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f'the run with {python} failed: {done.stderr.strip().splitlines()[-1]}')
    return json.loads(done.stdout)

def all_runs(times, peer):
    "Name → what each of its runs took"
    runs = {name: [] for name in LIBRARIES}
    with TemporaryDirectory() as folder:
        peer = peer or environment(folder)
        for _ in range(times):
            for name in LIBRARIES:
                python = peer if name == PEER else sys.executable
                runs[name].append(measured(python, folder))
    return runs

def environment(folder):
    "A Python with skillrl 1.0.0 in `folder`"
    subprocess.run([sys.executable, '-m', 'venv', folder], check=True)
    python = str(Path(folder)/('Scripts' if sys.platform == 'win32' else 'bin')/'python')
    subprocess.run([python, '-m', 'pip', 'install', '-q', 'skillrl==1.0.0'], check=True)
    return python

def show(runs):
    "Print the table; the modes of ours that miss the target"
    best = {name: min(rows, key=lambda r: r['ms']) for name, rows in runs.items()}
    theirs = best[PEER]['ms']
    print(f'{"":16}  steps  rollouts  ms/step  cpu ms/step  of 1.0.0  files    MB')
    for name, r in best.items():
        cpu = min(o['cpu'] for o in runs[name])
        print(f'{name:16}  {r["steps"]:5}  {r["rollouts"]:8}  {r["ms"]:7.1f}  {cpu:11.1f}  '
              f'{r["ms"]/theirs:7.2f}×  {r["files"]:5}  {r["mb"]:4.1f}')
    return [name for name, r in best.items() if name != PEER and r['ms'] > TARGET]

if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--peer')
    parser.add_argument('--times', type=int, default=5)
    parser.add_argument('--work', action='store_true', help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        print(json.dumps(work()))
        sys.exit()
    missed = show(all_runs(args.times, args.peer))
    verdict = f'MISSED by {", ".join(missed)}' if missed else 'ok'
    print(f'target for ours: {TARGET} ms/step, {verdict}')
    sys.exit(bool(missed))
