"""Do the tests notice when the core is wrong? One line is changed at a time, and the tests that should notice are run on the copy.

    python benchmarks/mutations.py [--only WORD] [--jobs 2]

Prints each mutation with `killed` or `SURVIVED`; exits 1 when fewer than 97 of 100 are killed, or when a line to change is no longer there."""
import argparse, os, shutil, subprocess, sys, tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
TARGET = .97
PARTS = 'skillrl', 'tests', 'data', 'configs', 'benchmarks', 'nbs', 'tools', 'pyproject.toml', 'settings.ini', 'setup.py', 'README.md', 'MANIFEST.in'

@dataclass(frozen=True)
class Mutation:
    "One wrong line"
    name: str
    module: str  # Below skillrl/, such as `training/grpo.py`
    old: str     # Text that stands there once
    new: str     # What it is replaced by
    tests: str   # Arguments of pytest

MUTATIONS = []

def place(m): return ROOT/'skillrl'/m.module

def missing(m):
    "Is the line to change not there, or there more than once?"
    return place(m).read_text(encoding='utf-8').count(m.old) != 1

def copy_tree(to):
    for part in PARTS:
        source = ROOT/part
        if source.is_dir(): shutil.copytree(source, to/part, ignore=shutil.ignore_patterns('__pycache__', '.ipynb_checkpoints'))
        elif source.exists(): shutil.copy(source, to/part)

def passes(tree, tests):
    "Do `tests` pass in the copy `tree`? RuntimeError if they could not run"
    env = os.environ | dict(PYTHONPATH=str(tree), OMP_NUM_THREADS='1', PYTHONDONTWRITEBYTECODE='1')
    command = [sys.executable, '-m', 'pytest', '-q', '-x', '-n0', '-p', 'no:cacheprovider', *tests.split()]
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=900)
    if done.returncode in (0, 1): return done.returncode == 0
    if done.returncode == 2 and 'error' in done.stdout.lower(): return False  # The module could not even be imported
    raise RuntimeError(f'pytest {tests} could not run: {done.stdout[-500:]}{done.stderr[-500:]}')

def survives(m):
    "Do the tests of `m` pass although its line is wrong?"
    with tempfile.TemporaryDirectory() as d:
        tree = Path(d)
        copy_tree(tree)
        if m.old != m.new:
            file = tree/'skillrl'/m.module
            file.write_text(file.read_text(encoding='utf-8').replace(m.old, m.new), encoding='utf-8')
        return passes(tree, m.tests)

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--only', default='', metavar='WORD', help='only mutations whose name holds this word')
    p.add_argument('--jobs', type=int, default=2)
    args = p.parse_args()
    chosen = [m for m in MUTATIONS if args.only in m.name]
    gone = [m.name for m in chosen if missing(m)]
    if gone: sys.exit(f'the line to change is gone, or there twice: {"; ".join(gone)}')
    with ThreadPoolExecutor(args.jobs) as pool: alive = list(tqdm(pool.map(survives, chosen), total=len(chosen)))
    for m, left in zip(chosen, alive): print(f'{"SURVIVED" if left else "killed  "} {m.name} ({m.module})')
    killed = alive.count(False)
    print(f'{killed} of {len(chosen)} killed')
    sys.exit(killed < TARGET*len(chosen))

if __name__ == '__main__': main()
