"A run that is broken off ends with the same bytes as one that is not, and pays for nothing twice"
import errno, hashlib, json, os, random, resource, shutil, signal, subprocess, sys, threading, time
from collections import Counter
from pathlib import Path
import pytest
from skillrl.skillopt.ruleworld import RuleOptimizer, RuleTarget, RuleWorld
from skillrl.skillopt.settings import SkillOptConfig
from skillrl.skillopt.trainer import SkillOptTrainer
from skillrl.core.store import JsonlLog

WORKERS, CONFIG = 3, dict(num_epochs=3, batch_size=8, minibatch_size=4, edit_budget=6,
                          verbose=False, out_root='run')
KILLS, STOPS = 6, 2 # Points spread over the events of a run
WRITES = {'os.rename', 'os.remove', 'os.mkdir', 'os.rmdir', 'os.truncate', 'shutil.rmtree'}

class Counted:
    "`client`, which takes a moment; `note` hears of each call, and `tick` of its beginning and its end"
    def __init__(self, client, note, tick):
        self.client, self.model = client, client.model
        self.note, self.tick = note, tick
    def chat(self, **kw):
        what = json.dumps([kw.get(k, '') for k in ('stage', 'system', 'user', 'seed')])
        self.note(f'{threading.get_native_id()} {hashlib.sha256(what.encode()).hexdigest()[:16]}')
        self.tick()
        time.sleep(.001)
        out = self.client.chat(**kw)
        self.tick()
        return out

def to_file(line):
    "Note a call beside the run folder, by a single write that a kill cannot tear"
    fd = os.open('calls', os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f'{line}\n'.encode())
    os.close(fd)

def trainer(note=to_file, tick=lambda: None, **kw):
    return SkillOptTrainer(config=SkillOptConfig(**CONFIG | dict(workers=WORKERS) | kw),
                           env=RuleWorld(train=16, val=12, test=8, seed=5),
                           optimizer_client=Counted(RuleOptimizer(quality=.7, seed=2), note, tick),
                           target_client=Counted(RuleTarget(seed=1), note, tick))

def snapshot(d):
    "What the run in `d` has to show for itself: all its files but the times and the lock"
    return {p.relative_to(d).as_posix(): p.read_bytes() for p in sorted((Path(d)/'run').rglob('*'))
            if p.is_file() and p.name not in ('.lock', 'events.jsonl')}

def calls(d):
    return [line.split()
            for line in (Path(d)/'calls').read_text().splitlines()] if (Path(d)/'calls').exists() else []

class Bomb:
    "Sends `how` to this process at event number `at`: a call begins or ends, or a file is changed"
    def __init__(self, at=0, how=signal.SIGKILL):
        self.at, self.how = at, how
        self.n, self.lock = 0, threading.Lock()
    def tick(self):
        with self.lock:
            self.n += 1
        if self.n == self.at:
            os.kill(os.getpid(), self.how)
    def hook(self, event, args):
        if event in WRITES or event == 'open' and isinstance(args[1], str) and args[1][0] in 'wax+':
            self.tick()

def life(folder, at=0, how=signal.SIGKILL, most=None, note=to_file):
    "Exit code (below 0 for a signal) and words of a process that goes on with the run in `folder`"
    read, write = os.pipe()
    if not (pid := os.fork()):
        code, said = 1, ''
        try:
            os.chdir(folder)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if most:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            bomb = Bomb(at, how)
            sys.addaudithook(bomb.hook)
            trainer(note, bomb.tick).train()
            code, said = 0, str(bomb.n)
        except BaseException as e:
            said = f'{type(e).__name__}: {e}'
        finally:
            os.write(write, said.encode())
            os._exit(code)
    os.close(write)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with open(read) as f:
        return code, f.read()

def again(before, lives):
    "Calls made more often than in `before`; and how many of these were not the last of their thread"
    extra = Counter(k for l in lives for _, k in l) - Counter(k for _, k in before)
    return sum(extra.values()), sum((extra - Counter(k for l in lives[:-1]
                                                     for k in dict(l).values())).values())

def broken(calm, wild, *ways):
    "How a run in the folder `wild` ends that is broken off in each of `ways`, and then goes on to its end"
    wild.mkdir()
    lives, ended = [], []
    for way in [*ways, {}]:
        seen = sum(map(len, lives))
        ended.append(life(wild, **way))
        lives.append(calls(wild)[seen:])
    repeated, strange = again(calls(calm), lives)
    return dict(ends=[code for code, _ in ended], said=[said for _, said in ended],
                same=snapshot(wild) == snapshot(calm), repeated=repeated, strange=strange)

def attempts(root, what):
    "All kinds of broken runs beside one that is not"
    calm, rng = root/'calm', random.Random(0)
    calm.mkdir()
    code, events = life(calm)
    n = int(events)
    def points(times):
        return [1 + int((i + rng.random())*(n - 2)/times) for i in range(times)]
    told = dict(killed=lambda: [[dict(at=at)] for at in points(KILLS)],
                stopped=lambda: [[dict(at=at, how=signal.SIGINT)] for at in points(STOPS)],
                restless=lambda: [[dict(at=at)]*(2*n//at) for at in (100,)],
                full=lambda: [[dict(most=most, note=len)] for most in (600, 4000, 9000)])
    rows = [broken(calm, root/f'{what}{i}', *ways) for i, ways in enumerate(told[what]())]
    history, closing = (json.loads((calm/'run'/name).read_text())
                        for name in ('history.json', 'final_document/summary.json'))
    return rows, history, closing['gone']

if __name__ == '__main__':
    print(json.dumps(attempts(Path(sys.argv[1]), sys.argv[2])))

def tried(folder, what):
    "`attempts` in a process of their own, which is forked for each life of a run"
    done = subprocess.run([sys.executable, __file__, folder, what], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)

def test_killed_at_points_all_over_a_run_to_the_same_bytes(tmp_path):
    rows, history, gone = tried(tmp_path, 'killed')
    assert {r['action'] for r in history} == {'accept', 'accept_new_best', 'reject', 'skip_no_patches'}
    assert len(history) == 6 and gone
    assert [r['ends'] for r in rows] == [[-signal.SIGKILL, 0]]*KILLS
    assert [r['same'] for r in rows] == [True]*KILLS
    assert max(r['repeated'] for r in rows) <= WORKERS and sum(r['strange'] for r in rows) == 0

def test_killed_again_and_again_to_the_same_bytes(tmp_path):
    rows, *_ = tried(tmp_path, 'restless')
    for r in rows:
        assert r['ends'][-1] == 0 and r['ends'].count(-signal.SIGKILL) > 4 and r['same']
        assert r['repeated'] <= WORKERS*r['ends'].count(-signal.SIGKILL) and r['strange'] == 0

def test_stopped_by_hand_to_the_same_bytes(tmp_path):
    rows, *_ = tried(tmp_path, 'stopped')
    assert [r['said'][0] for r in rows] == ['KeyboardInterrupt: ']*STOPS
    assert [(r['ends'][1], r['same'], r['strange']) for r in rows] == [(0, True, 0)]*STOPS
    assert max(r['repeated'] for r in rows) <= WORKERS

def test_a_disk_that_is_full_stops_the_run_and_costs_nothing(tmp_path):
    rows, *_ = tried(tmp_path, 'full')
    for r in rows:
        said = r['said'][0]
        assert said.startswith('OSError: ') and 'could not write run' in said, said
        assert 'free some space' in said, said
        assert (r['ends'], r['same'], r['strange']) == ([1, 0], True, 0)
        assert r['repeated'] <= WORKERS

class Room:
    "A folder to run in, and the calls that were made"
    def __init__(self, path, monkeypatch):
        self.path, self.calls = path, []
        path.mkdir()
        monkeypatch.chdir(path)
    def trainer(self, tick=lambda: None, **kw):
        return trainer(self.calls.append, tick, **kw)
    def keys(self):
        return Counter(c.split()[1] for c in self.calls)

@pytest.fixture
def room(tmp_path, monkeypatch):
    return Room(tmp_path/'here', monkeypatch)

@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    "A run that nothing happens to: its files and its calls"
    with pytest.MonkeyPatch.context() as m:
        calm = Room(tmp_path_factory.mktemp('calm')/'here', m)
        calm.trainer().train()
        return snapshot(calm.path), calm.keys()

def cut_short(room, at):
    "Begin a run in `room` that ends with its call number `at`"
    def tick():
        if len(room.calls) >= at:
            raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        room.trainer(tick, workers=1).train()
    return len(room.calls)

def test_after_ctrl_c_nothing_more_is_called_and_the_folder_is_free(room, whole):
    bomb = Bomb(120, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        room.trainer(bomb.tick).train()
    made = len(room.calls)
    time.sleep(.1)
    assert len(room.calls) <= made + WORKERS - 1
    room.trainer().train()
    assert snapshot(room.path) == whole[0]
    assert sum((room.keys() - whole[1]).values()) <= WORKERS

@pytest.mark.parametrize('call', ['fsync', 'replace', 'mkdir'])
@pytest.mark.parametrize('at', [1, 4, 7, 12])
def test_a_disk_full_at_any_point(room, whole, monkeypatch, call, at):
    real, n = getattr(os, call), []
    def refuse(*a, **kw):
        n.append(call)
        if len(n) >= at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(a[0]))
        return real(*a, **kw)
    with monkeypatch.context() as m:
        m.setattr(os, call, refuse)
        with pytest.raises(OSError, match='No space left') as e:
            room.trainer().train()
    assert e.value.errno == errno.ENOSPC
    room.trainer().train()
    assert snapshot(room.path) == whole[0] and room.keys() == whole[1]

def test_a_disk_full_while_the_optimizer_answers_is_no_lost_call(room, whole, monkeypatch):
    from skillrl.core.concurrency import Journal
    put = Journal.put
    def full(self, key, value):
        if key[1] == 'analyst':
            raise OSError(errno.ENOSPC, 'could not write the journal (No space left on device)')
        return put(self, key, value)
    with monkeypatch.context() as m:
        m.setattr(Journal, 'put', full)
        with pytest.raises(OSError, match='No space left'):
            room.trainer().train()
    room.trainer().train()
    assert snapshot(room.path) == whole[0] and sum((room.keys() - whole[1]).values()) <= WORKERS

def test_two_trainers_do_not_share_a_folder(room, whole):
    "D10: the second is told who holds it, in this process and in another, and the first is not disturbed"
    told = []
    def tick():
        if len(room.calls) != 50:
            return
        with pytest.raises(BlockingIOError,
                           match=f'is in use by process {os.getpid()}: wait until it ends or choose') as e:
            room.trainer().train()
        told.append(e)
        here = str(Path(__file__).parent)
        code = (f'import sys; sys.path.insert(0, {here!r}); '
                'from test_skillopt_kill import trainer; trainer().train()')
        other = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, cwd=room.path)
        assert other.returncode == 1
        assert f'is in use by process {os.getpid()}' in other.stderr.splitlines()[-1]
        told.append(other)
    room.trainer(tick, workers=1).train()
    assert len(told) >= 2 and calls(room.path) == []
    room.calls.clear()
    room.trainer().train()
    assert room.calls == []

@pytest.mark.parametrize('torn', [1, 2, 30, 200])
def test_a_torn_journal_line_costs_one_call(room, whole, torn):
    cut_short(room, 100)
    journal, = (room.path/'run').glob('journal_*.jsonl')
    lines = len(JsonlLog(journal).read())
    os.truncate(journal, journal.stat().st_size - torn)
    assert len(JsonlLog(journal).read()) == lines - (torn > 1)
    room.trainer().train()
    assert snapshot(room.path) == whole[0]
    assert sum((room.keys() - whole[1]).values()) <= 1 + (torn > 1)

@pytest.mark.parametrize('tail', [b'{"step": 3, "st', b'\0\0\0', b'\xff\xfe'])
def test_a_torn_line_of_events_is_cut_off(room, whole, tail):
    cut_short(room, 100)
    with open('run/events.jsonl', 'ab') as f:
        f.write(tail)
    room.trainer().train()
    assert snapshot(room.path) == whole[0] and all(JsonlLog('run/events.jsonl').read())

def test_a_damaged_state_goes_back_to_the_commit_before(room, whole):
    room.trainer().train()
    state = room.path/'run'/'state.json'
    state.write_text('{}')
    with pytest.raises(ValueError, match='copy .*state.previous.json over .*state.json'):
        room.trainer().train()
    shutil.copy(room.path/'run'/'state.previous.json', state)
    room.trainer().train()
    assert snapshot(room.path) == whole[0]

def test_a_kill_between_the_two_tests_of_one_skill(tmp_path):
    "Where no candidate was any good, the first skill is also the best: it is played and counted once"
    class Poor(RuleOptimizer):
        def chat(self, **kw):
            return '{"edits": []}', dict(prompt_tokens=9, completion_tokens=3, calls=1)
    folders = [tmp_path/k for k in ('calm', 'wild')]
    def run(folder, die=lambda e, a: None):
        if not (pid := os.fork()):
            try:
                os.chdir(folder)
                sys.addaudithook(die)
                t = trainer(num_epochs=1)
                t.optimizer.client = Counted(Poor(), to_file, lambda: None)
                t.train()
                os._exit(0)
            finally:
                os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for f in folders:
        f.mkdir()
    def die(event, args):
        if event == 'os.mkdir' and '.test_eval_best' in str(args[0]):
            os.kill(os.getpid(), signal.SIGKILL)
    assert [run(folders[0]), run(folders[1], die), run(folders[1])] == [0, -signal.SIGKILL, 0]
    assert snapshot(folders[0]) == snapshot(folders[1]) and len(calls(folders[0])) == len(calls(folders[1]))
    said = json.loads((folders[0]/'run/summary.json').read_text())
    assert said['best_step'] == 0
    assert said['test_hard'] == said['baseline_test_hard'] is not None
    assert len(set(k for _, k in calls(folders[0]))) == len(calls(folders[0]))
