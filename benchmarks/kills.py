"""Runs that are killed at random moments, or lose power at any commit, and end with the bytes of one that
nobody disturbed.

    python benchmarks/kills.py [--times 200] [--seed 0]

Three quarters of the kills hit runs of the size of `skillrl train --smoke`; the others hit runs whose RL
phase has the groups of the defaults (12 tasks, 8 episodes each) and whose other phases are small. Each
kill is a SIGKILL after a random time; the run is resumed at once, and killed again, until it ends. Then
all its files are compared byte by byte with those of the run that nobody killed. A life of a run is a
fork of this process, which has imported the library once.

The power goes twice at each commit of a third, smaller run: when `state.json` has its new name, and when
the commit is done. What was not synced by then is emptied (tests/disk.py), names that were not synced are
kept in one image and undone in another. Each image is resumed to its end and compared as above, and it
may not have lost more than the step under way.

Exits 1 unless all are identical.
"""
import argparse, os, random, signal, sys, time
from hashlib import sha256
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parent.parent/'tests'))
from disk import Disk

SMOKE = {
    'env.train_suites': 2,
    'env.test_suites': 3,
    'env.episodes': 6,
    'env.test_tasks': 6,
    'sft.games': 6,
    'sft.steps': 5,
    'rl.iterations': 2,
    'rl.tasks_per_iteration': 3,
    'rl.group_size': 4,
    'evolution.validation_interval': 2,
}
TINY = SMOKE | {
    'env.train_suites': 1,
    'env.test_suites': 1,
    'env.episodes': 2,
    'env.test_tasks': 1,
    'sft.games': 2,
    'sft.steps': 2,
    'rl.tasks_per_iteration': 2,
    'rl.group_size': 2,
}
DEFAULT_RL = TINY | {'rl.iterations': 3, 'rl.tasks_per_iteration': 12, 'rl.group_size': 8}

def files(folder):
    return {
        p.relative_to(folder).as_posix(): sha256(p.read_bytes()).hexdigest()
        for p in sorted(Path(folder).rglob('*'))
        if p.is_file() and p.name != '.lock'
    }

def run(settings, folder, step=None):
    "The whole loop in `folder`, or what is left of it"
    from skillrl.core.config import SkillRLConfig
    from skillrl.training.pipeline import train
    resume = (Path(folder)/'config.json').exists()
    train(None if resume else SkillRLConfig().merged(settings), folder, resume, step)

def life(settings, folder, seconds=None):
    "A process that goes on with the run and is killed after so many seconds; did it reach the end?"
    pid = os.fork()
    if not pid:
        try:
            run(settings, folder)
            os._exit(0)
        except BaseException as e:
            print(f'{folder}: {e!r}', file=sys.stderr, flush=True)
        finally:
            os._exit(1)
    end = time.monotonic() + (seconds or 1e9)
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return ended(status)
        time.sleep(.005)
    os.kill(pid, signal.SIGKILL)
    return ended(os.waitpid(pid, 0)[1])

def ended(status):
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, -signal.SIGKILL):
        raise SystemExit('a run ended with an error')
    return code == 0

def killed(settings, times, root, rng):
    "How many kills of `times` were in runs that ended with the right bytes"
    began = time.monotonic()
    assert life(settings, root/'calm')
    took = time.monotonic() - began
    whole = files(root/'calm')
    n = right = 0
    while n < times:
        folder, cuts = root/f'run-{n:03}', 0
        while not life(settings, folder, rng.uniform(.01, .14)*took if n + cuts < times else None):
            cuts += 1
        n += cuts
        if files(folder) == whole:
            right += cuts
        print(f'  {right} of {n} kills identical, after {time.monotonic() - began:.0f} s', flush=True)
    return right, n

def images(settings, root):
    "The files of a run, its commits, and what power cuts at each leave: (commits done, folder)"
    from skillrl.core.store import read_json
    cuts, number = {}, count()
    done, seen = [0], [None]

    def cut(what, path):
        if (what, path) != ('replace', 'run/state.json'):
            return
        state = read_json(root/'disk'/path)['state']
        if state == seen[0] is None:
            return  # No commit yet
        seen[0] = state
        for names in ('kept', 'undone'):
            left = disk.image(root/f'image-{next(number)}', names)/'run'
            cuts.setdefault(str(files(left)), (done[0], left))  # What is left is often the same

    def commit(*args):
        done[0] += 1
        cut('replace', 'run/state.json')
    with Disk(root/'disk', cut) as disk:
        run(settings, root/'disk'/'run', commit)
    return files(root/'disk'/'run'), done[0], [*cuts.values()]

def do_not_sync(fd):
    pass

def powerless(settings, root):
    "How many images of a power cut end with the right bytes, having lost the last step at most"
    pid = os.fork()
    if not pid:
        code = 1
        try:
            whole, commits, cuts = images(settings, root)
            os.fsync = do_not_sync
            right = 0
            for done, folder in cuts:
                steps = []
                run(settings, folder, lambda *args: steps.append(args))
                right += files(folder) == whole and len(steps) <= commits - done
                print(f'  {right} identical', flush=True)
            print(
                f'power cuts at {commits} commits: {right} of {len(cuts)} states of the disk end identical, '
                'with nothing lost but the step under way',
                flush=True,
            )
            code = int(right < len(cuts))
        except BaseException as e:
            print(repr(e), file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0

if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--times', type=int, default=200, help='kills (%(default)s)')
    parser.add_argument('--seed', type=int, default=0, help='of the random moments (%(default)s)')
    args = parser.parse_args()
    os.environ.setdefault('OMP_NUM_THREADS', '1')
    rng, share = random.Random(args.seed), args.times//4
    with TemporaryDirectory() as d:
        root = Path(d)
        right = n = 0
        sound = powerless(TINY, root)
        sizes = [('default RL', DEFAULT_RL, share), ('smoke', SMOKE, args.times - share)]
        for name, settings, times in sizes:
            print(f'{name}:', flush=True)
            (root/name).mkdir()
            good, of = killed(settings, times, root/name, rng)
            right, n = right + good, n + of
    print(f'kills: {right} of {n} identical')
    sys.exit(not sound or right < n)
