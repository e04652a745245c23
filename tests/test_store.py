"Faults that a lesson has no room for: disks that fill up at every point, processes killed at random moments"
import errno, json, os, random, subprocess, sys, time
from pathlib import Path
import pytest
from skillrl import store
from skillrl.store import JsonlLog, RunFolder, atomic_folder, atomic_write, read_json, to_json, write_json

@pytest.fixture
def full_disk(monkeypatch):
    def refuse(*a): raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    def fill(call): monkeypatch.setattr(os, call, refuse)
    return fill

def snapshot(d): return {p.relative_to(d).as_posix(): p.read_bytes() for p in sorted(Path(d).rglob('*')) if p.is_file()}

@pytest.mark.parametrize('call', ['fsync', 'replace'])
def test_a_full_disk_leaves_the_old_file(tmp_path, full_disk, call):
    write_json(tmp_path/'bank.json', ['old'])
    full_disk(call)
    with pytest.raises(OSError, match='No space left.*free some space') as e: write_json(tmp_path/'bank.json', ['new'])
    assert e.value.errno==errno.ENOSPC and '\n' not in str(e.value)
    assert snapshot(tmp_path)=={'bank.json': b'[\n "old"\n]\n'}

def test_a_full_disk_takes_the_append_back(tmp_path, full_disk):
    log = JsonlLog(tmp_path/'log.jsonl')
    log.append([{'i': 1}])
    full_disk('fsync')
    with pytest.raises(OSError, match='could not write'): log.append([{'i': 2}, {'i': 3}])
    assert log.read()==[{'i': 1}]

def test_a_full_disk_leaves_the_last_commit(tmp_path, monkeypatch):
    with RunFolder(tmp_path/'run', {'seed': 1}) as run:
        run.log('metrics').append([{'step': 1}])
        run.commit({'step': 1})
        with monkeypatch.context() as m:
            m.setattr(os, 'fsync', lambda *a: (_ for _ in ()).throw(OSError(errno.ENOSPC, 'No space left on device')))
            with pytest.raises(OSError): run.log('metrics').append([{'step': 2}])
            with pytest.raises(OSError): run.commit({'step': 2})
    with RunFolder(tmp_path/'run', resume=True) as run:
        assert run.state=={'step': 1} and run.log('metrics').read()==[{'step': 1}]

@pytest.mark.parametrize('cut', range(1, 40))
def test_a_log_cut_anywhere_keeps_its_whole_rows(tmp_path, cut):
    log = JsonlLog(tmp_path/'log.jsonl')
    log.append([{'i': i, 'a': 'mug é'} for i in range(3)])
    os.truncate(log.path, log.size - cut)
    kept = log.read()
    assert [r['i'] for r in kept]==list(range(len(kept))) and len(kept) >= 3 - (cut + 21) // 22
    log.append([{'i': 'next'}])
    assert log.read()==kept + [{'i': 'next'}]

@pytest.mark.parametrize('junk', [b'\xff\xfe\x00', b'\x00' * 50, b'[1, 2', b'12'])
def test_a_torn_tail_of_any_kind_is_passed_over(tmp_path, junk):
    log = JsonlLog(tmp_path/'log.jsonl')
    log.append([{'i': 1}])
    with open(log.path, 'ab') as f: f.write(junk)
    assert log.read()==[{'i': 1}]
    log.append([{'i': 2}])
    assert log.read()==[{'i': 1}, {'i': 2}]

@pytest.mark.parametrize('line', ['[]', '3', '{"a": }', 'null', '{"a": 1}{'])
def test_a_broken_line_is_named(tmp_path, line):
    (tmp_path/'log.jsonl').write_text(f'{{"i": 1}}\n\n{line}\n{{"i": 2}}\n')
    with pytest.raises(ValueError, match='line 3 is not a JSON object'): JsonlLog(tmp_path/'log.jsonl').read()

@pytest.mark.parametrize('txt', [b'', b'{', b'\xff', b'{"a": 1,}', b'nope'])
def test_a_broken_file_is_named(tmp_path, txt):
    (tmp_path/'bank.json').write_bytes(txt)
    with pytest.raises(ValueError, match='bank.json is not .*: ') as e: read_json(tmp_path/'bank.json')
    assert '\n' not in str(e.value)

def test_a_folder_abandoned_between_its_two_renames_comes_back(tmp_path):
    (tmp_path/'.policy.old').mkdir()
    (tmp_path/'.policy.old'/'weights').write_text('old')
    with pytest.raises(RuntimeError):
        with atomic_folder(tmp_path/'policy'): raise RuntimeError
    assert snapshot(tmp_path)=={'policy/weights': b'old'}

def test_a_failed_start_gives_the_lock_back(tmp_path):
    with RunFolder(tmp_path/'run', {'seed': 1}) as run: run.commit({'step': 1})
    for _ in range(2):
        with pytest.raises(ValueError, match='seed was 1 and is now 2'): RunFolder(tmp_path/'run', {'seed': 2}, resume=True)

def test_a_folder_with_other_things_in_it_is_not_taken(tmp_path):
    (tmp_path/'thesis.jsonl').write_text('{}\n')
    with pytest.raises(FileExistsError): RunFolder(tmp_path, {})
    with pytest.raises(FileNotFoundError): RunFolder(tmp_path, resume=True)
    assert snapshot(tmp_path)=={'thesis.jsonl': b'{}\n'}

def test_a_start_that_was_killed_can_start_again(tmp_path):
    (tmp_path/'run').mkdir()
    (tmp_path/'run'/'.config.json.tmp4711').write_text('{"se')
    with RunFolder(tmp_path/'run', {'seed': 1}) as run: run.commit({})
    assert sorted(snapshot(tmp_path/'run'))==['.lock', 'config.json', 'state.json']

train = '''
import sys, time
from pathlib import Path
from skillrl.store import RunFolder, write_json
resume = Path('run/config.json').exists()
with RunFolder('run', {'seed': 7}, resume) as run:
    state = run.state or {'step': 0, 'x': 7}
    while state['step'] < 120:
        state = {'step': state['step'] + 1, 'x': state['x'] * 16807 % 2147483647}
        time.sleep(0.005)
        run.log('metrics').append([state])
        if state['step'] % 3 == 0: run.log('evolution').append([state] * 3)
        with run.folder('policy') as p: (p/'weights').write_text(str(state['x']) * 2000)
        write_json(run.path/'bank'/f"v{state['step']:04}.json", [state] * 50)
        run.commit(state)
'''
def test_killed_at_random_moments_to_the_same_bytes(tmp_path):
    rng, calm, wild = random.Random(0), tmp_path/'calm', tmp_path/'wild'
    for d in (calm, wild): d.mkdir()
    subprocess.run([sys.executable, '-c', train], cwd=calm, check=True)
    log, seen = JsonlLog(wild/'run'/'metrics.jsonl'), []
    for _ in range(10):
        p, goal = subprocess.Popen([sys.executable, '-c', train], cwd=wild), len(log.read()) + rng.randint(1, 2)
        while len(log.read()) < goal and p.poll() is None: time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.03))
        assert p.poll() is None, 'the run was over before it could be killed'
        p.kill()
        p.wait()
        seen.append(len(log.read()))
    subprocess.run([sys.executable, '-c', train], cwd=wild, check=True)
    assert snapshot(calm)==snapshot(wild)
    assert len(log.read())==120 > seen[-1] > seen[0]

@pytest.mark.parametrize('obj', ['x', 'é"\n', 3, -0.0, 1e300, True, None, [], {}, [[1, [2.5, {'a': None, '': [False]}]], 'ü'], {1: 'a', 2.5: 'b', None: 'c', True: 'd'}, (1, (2,)),
                                 {'deep': [[[[[[{'x': [1, 2, 3]}]]]]]]}], ids=repr)
def test_json_is_that_of_the_standard_library(obj):
    assert to_json(obj)==json.dumps(obj, ensure_ascii=False) and to_json(obj, 1)==json.dumps(obj, ensure_ascii=False, indent=1)

def test_json_of_what_holds_itself_is_refused():
    loop = dict(name='loop')
    loop['again'] = [loop]
    for indent in (None, 1):
        with pytest.raises(ValueError, match='Circular'): to_json(loop, indent)
    assert to_json([loop['name']]*2)=='["loop", "loop"]'  # The same object twice is no circle

def test_json_by_many_threads():
    from concurrent.futures import ThreadPoolExecutor
    rows = [{f'k{i}': [i, str(i), {'n': i/7}]} for i in range(500)]
    with ThreadPoolExecutor(8) as pool: assert list(pool.map(to_json, rows*4))==[json.dumps(r) for r in rows]*4
