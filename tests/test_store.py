"Faults that a lesson has no room for: disks that fill up at every point, processes killed at random moments"
import errno, os, random, re, shutil, signal, subprocess, sys, time
from pathlib import Path
import pytest
from skillrl.core import store
from skillrl.core.runfolder import RunFolder
from skillrl.core.runfolder import _FolderLock
from skillrl.core.store import JsonlLog, atomic_folder, atomic_write, read_json, write_json

@pytest.fixture
def full_disk(monkeypatch):
    def refuse(*a):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill(call):
        monkeypatch.setattr(os, call, refuse)

    return fill

def snapshot(d):
    return {p.relative_to(d).as_posix(): p.read_bytes() for p in sorted(Path(d).rglob('*')) if p.is_file()}


@pytest.mark.parametrize('call', ['fsync', 'replace'])
def test_a_full_disk_leaves_the_old_file(tmp_path, full_disk, call):
    write_json(tmp_path/'bank.json', ['old'])
    full_disk(call)
    with pytest.raises(OSError, match='No space left.*free some space') as e:
        write_json(tmp_path/'bank.json', ['new'])
    assert e.value.errno==errno.ENOSPC and '\n' not in str(e.value)
    assert snapshot(tmp_path)=={'bank.json': b'[\n "old"\n]\n'}

def test_a_log_cut_anywhere_keeps_its_whole_rows(tmp_path):
    for cut in range(1, 40):
        log = JsonlLog(tmp_path/f'{cut}.jsonl')
        log.append([{'i': i, 'a': 'mug é'} for i in range(3)])
        os.truncate(log.path, log.size - cut)
        kept = log.read()
        assert [r['i'] for r in kept]==list(range(len(kept))), cut
        assert len(kept) >= 3 - (cut + 21) // 22, cut
        log.append([{'i': 'next'}])
        assert log.read()==kept + [{'i': 'next'}], cut

@pytest.mark.parametrize('junk', [b'\xff\xfe\x00', b'\x00' * 50, b'[1, 2', b'12'])
def test_a_torn_tail_of_any_kind_is_passed_over(tmp_path, junk):
    log = JsonlLog(tmp_path/'log.jsonl')
    log.append([{'i': 1}])
    with open(log.path, 'ab') as f:
        f.write(junk)
    assert log.read()==[{'i': 1}]
    log.append([{'i': 2}])
    assert log.read()==[{'i': 1}, {'i': 2}]

@pytest.mark.parametrize('line', ['[]', '3', '{"a": }', 'null', '{"a": 1}{'])
def test_a_broken_line_is_named(tmp_path, line):
    (tmp_path/'log.jsonl').write_text(f'{{"i": 1}}\n\n{line}\n{{"i": 2}}\n')
    with pytest.raises(ValueError, match='line 3 is not a JSON object'):
        JsonlLog(tmp_path/'log.jsonl').read()

@pytest.mark.parametrize('txt', [b'', b'{', b'\xff', b'{"a": 1,}', b'nope'])
def test_a_broken_file_is_named(tmp_path, txt):
    (tmp_path/'bank.json').write_bytes(txt)
    with pytest.raises(ValueError, match='bank.json is not .*: ') as e:
        read_json(tmp_path/'bank.json')
    assert '\n' not in str(e.value)

def test_a_folder_abandoned_between_its_two_renames_comes_back(tmp_path):
    (tmp_path/'.policy.old').mkdir()
    (tmp_path/'.policy.old'/'weights').write_text('old')
    with pytest.raises(RuntimeError):
        with atomic_folder(tmp_path/'policy'):
            raise RuntimeError
    assert snapshot(tmp_path)=={'policy/weights': b'old'}

def test_a_failed_start_gives_the_lock_back(tmp_path):
    with RunFolder(tmp_path/'run', {'seed': 1}) as run:
        run.commit({'step': 1})
    for _ in range(2):
        with pytest.raises(ValueError, match='seed was 1 and is now 2'):
            RunFolder(tmp_path/'run', {'seed': 2}, resume=True)

def test_a_start_that_was_killed_can_start_again(tmp_path):
    (tmp_path/'run').mkdir()
    (tmp_path/'run'/'.config.json.tmp0123456789abcdef').write_text('{"se')
    with RunFolder(tmp_path/'run', {'seed': 1}) as run:
        run.commit({})
    assert sorted(snapshot(tmp_path/'run'))==['.lock', 'config.json', 'state.json']

train = '''
import sys, time
from pathlib import Path
from skillrl.core.runfolder import RunFolder
from skillrl.core.store import write_json
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
    rng = random.Random(0)
    calm, wild = tmp_path/'calm', tmp_path/'wild'
    for d in (calm, wild):
        d.mkdir()
    subprocess.run([sys.executable, '-c', train], cwd=calm, check=True)
    log, seen = JsonlLog(wild/'run'/'metrics.jsonl'), []
    for _ in range(10):
        p = subprocess.Popen([sys.executable, '-c', train], cwd=wild)
        goal = len(log.read()) + rng.randint(1, 2)
        while len(log.read()) < goal and p.poll() is None:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.03))
        assert p.poll() is None, 'the run was over before it could be killed'
        p.kill()
        p.wait()
        seen.append(len(log.read()))
    subprocess.run([sys.executable, '-c', train], cwd=wild, check=True)
    assert snapshot(calm)==snapshot(wild)
    assert len(log.read())==120 > seen[-1] > seen[0]

def committed(folder, **also):
    "A run of one commit in `folder`, with what `also` says in its state"
    with RunFolder(folder, {'seed': 7, 'rl': {'group_size': 8, 'lr': 1e-4}}) as run:
        run.log('metrics').append([{'step': 1}])
        with run.folder('policy') as p:
            (p/'weights').write_text('one')
        run.commit({'step': 1})
    if also:
        write_json(folder/'state.json', read_json(folder/'state.json') | also)
    return folder

def refused(folder, match, error=ValueError, **kw):
    "Resuming the run in `folder` is refused with one sentence, and everything around it stays as it was"

    def look():
        return {
            p.relative_to(folder.parent): p.read_bytes() if p.is_file() else os.path.islink(p)
            for p in folder.parent.rglob('*')
        }

    before = look()
    with pytest.raises(error, match=match) as e:
        RunFolder(folder, resume=True, **kw)
    assert '\n' not in str(e.value) and look() == before

PLACES = ['/absolute', '../thesis', 'policy/../../thesis', 'policy/../../thesis/0001', '..', '', 'thesis',
          'thesis/0001', 'policy', 'policy/1', 'policy/0001/x', 'policy/0001\n', 7, None, ['policy/0001'],
          {}]


@pytest.mark.parametrize('place', PLACES, ids=repr)
def test_a_state_that_names_other_folders_touches_nothing(tmp_path, place):
    (tmp_path/'thesis'/'0001').mkdir(parents=True)
    (tmp_path/'thesis'/'0001'/'chapter').write_text('years of work')
    if place == '/absolute':
        place = str(tmp_path/'thesis')
    refused(committed(tmp_path / 'run', folders={'policy': place}),
            'state.json has .* in `folders`, no folder of this run')


@pytest.mark.parametrize('name', ['../thesis', '/etc', '..', '.', '', '.ssh', 'a/b', 'state.json'])
def test_a_state_with_names_of_other_files_touches_nothing(tmp_path, name):
    refused(committed(tmp_path/'run', writes={name: 'folder'}), 'state.json has .* in `writes`')

@pytest.mark.parametrize(
    'logs',
    [{'../thesis.jsonl': 0}, {'notes.jsonl': 0}, {'metrics.jsonl': -1}, {'metrics.jsonl': '3'},
     {'metrics.jsonl': True}, {'metrics.jsonl': None}, []],
    ids=repr,
)
def test_a_state_with_other_logs_touches_nothing(tmp_path, logs):
    (tmp_path/'thesis.jsonl').write_text('{}\n')
    (committed(tmp_path/'run', logs=logs)/'notes.jsonl').write_text('{}\n')
    refused(tmp_path/'run', 'state.json has .*`logs`')

PARTS = ['fingerprint', 'config', 'writes', 'logs', 'folders', 'checksums', 'state']

@pytest.mark.parametrize('value', [..., 5, 'x', [1]], ids=repr)
def test_a_state_without_a_part_or_with_another_kind_is_one_sentence(tmp_path, value):
    for key in PARTS:
        folder = committed(tmp_path/key)
        state = {k: v for k, v in read_json(folder/'state.json').items() if k != key}
        write_json(folder/'state.json', state | ({} if value is ... else {key: value}))
        refused(folder, f'state.json has .*`{key}`')

@pytest.mark.parametrize(
    'text', ['{}', '[]', '5', 'null', '', '{"a"', '[' * 100_000, '{"state": 1e999}'], ids=lambda t: t[:20]
)
def test_a_state_that_is_none_is_one_sentence(tmp_path, text):
    (committed(tmp_path/'run')/'state.json').write_text(text)
    refused(tmp_path/'run', 'state.json .*(restore|mend)')

@pytest.mark.parametrize(
    'name',
    ['policy', 'policy/0001', 'policy/0001/weights', 'metrics.jsonl', 'state.json', 'config.json', '.lock'])
def test_a_link_where_a_run_writes_is_not_followed(tmp_path, name):
    place, target = committed(tmp_path/'run')/name, tmp_path/'elsewhere'
    shutil.move(place, target)
    place.symlink_to(target)
    refused(tmp_path/'run', 'is a symbolic link')

def test_a_foreign_log_is_left_alone_by_a_resume(tmp_path):
    folder = committed(tmp_path/'run')
    (tmp_path/'diary.jsonl').write_text('{"day": 1}\n')
    (folder/'notes.jsonl').write_text('{"idea": 1}\n')
    (folder/'linked.jsonl').symlink_to(tmp_path/'diary.jsonl')
    for _ in range(2):
        with RunFolder(folder, resume=True) as run:
            run.commit({'step': 2})
    assert (folder / 'notes.jsonl').read_text() == '{"idea": 1}\n' and (
        tmp_path / 'diary.jsonl').read_text() == '{"day": 1}\n'


def test_a_log_that_a_kill_left_before_the_first_commit_begins_again(tmp_path):
    with RunFolder(tmp_path/'run', {}) as run:
        run.log('metrics').append([{'step': 1}])
    with RunFolder(tmp_path/'run', resume=True) as run:
        assert run.log('metrics').read() == []

@pytest.mark.parametrize('name', ['evolution.jsonl', 'reference', 'report.md'])
def test_a_foreign_file_where_a_run_wants_to_write_is_not_overwritten(tmp_path, name):
    folder = committed(tmp_path/'run')
    (folder/name).write_text('mine')
    with RunFolder(folder, resume=True) as run:
        with pytest.raises(FileExistsError, match='was not made by this run: move it away'):
            run.log('evolution')
            with run.folder('reference'):
                pass
            run.file('report.md')
    assert (folder/name).read_text() == 'mine'

def test_strays_among_the_versions_end_neither_a_resume_nor_a_commit(tmp_path):
    folder = committed(tmp_path/'run')
    for name in ('.DS_Store', 'notes.txt', '0001.bak', '.swp.tmp'):
        (folder/'policy'/name).write_text('mine')
    for name in ('old', '0001 copy', '0099', '.cache'):
        (folder/'policy'/name).mkdir()
    (folder/'policy'/'0001'/'.DS_Store').write_text('mine')
    for name in ('.notes.tmp', '.draft.tmp12', '.~lock.tmp#'):
        (folder/name).write_text('mine')
    mine = {k: v for k, v in snapshot(folder).items() if v == b'mine' and '0001/' not in k}
    for step in (2, 3, 4):
        with RunFolder(folder, resume=True) as run:
            with run.folder('policy') as p:
                (p/'weights').write_text(str(step))
            run.commit({'step': step})
    assert len(mine) == 7 and mine.items() <= snapshot(folder).items()
    assert sorted(p.name for p in (folder / 'policy').iterdir() if p.is_dir()) == [
        '.cache', '0001 copy', '0003', '0004', '0099', 'old']


def test_what_a_kill_leaves_half_written_is_swept_from_every_place(tmp_path):
    folder = committed(tmp_path/'run')
    before = snapshot(folder)
    for name in ('.state.json.tmp0123456789abcdef', 'policy/.0002.tmp/weights',
                 'policy/..0002.tmp.tmp/weights', 'policy/.0001.old/weights', 'policy/0002/weights',
                 'bank/.v1.json.tmp0123456789abcdef'):
        (folder/name).parent.mkdir(exist_ok=True)
        (folder/name).write_text('half')
    RunFolder(folder, resume=True).close()
    assert snapshot(folder) == before

def test_a_config_edited_between_two_runs_is_told_setting_by_setting(tmp_path):
    folder = committed(tmp_path/'run')
    write_json(folder/'config.json', {'seed': 8, 'rl': {'group_size': 4, 'lr': 1e-4}})
    refused(folder, 'seed was 7 and is now 8; rl.group_size was 8 and is now 4.*--accept-changes')


def test_accepted_changes_are_recorded(tmp_path):
    folder, cfg = committed(tmp_path/'run'), {'seed': 8, 'rl': {'group_size': 4, 'lr': 1e-4}}
    refused(folder, 'seed was 7 and is now 8', config=cfg)
    with RunFolder(folder, cfg, resume=True, accept_changes=True) as run:
        assert run.config == cfg and run.state == {'step': 1}
    assert read_json(folder/'config.json') == cfg
    with RunFolder(folder, resume=True) as run:
        assert run.config == cfg
    write_json(folder/'config.json', {'seed': 9})
    with RunFolder(folder, resume=True, accept_changes=True) as run:
        run.commit({'step': 2})
    with RunFolder(folder, {'seed': 9}, resume=True) as run:
        assert run.config == {'seed': 9}

def test_a_file_keeps_its_mode_and_a_new_one_follows_the_umask(tmp_path):
    old, new = tmp_path/'key.json', tmp_path/'new.json'
    old.write_text('1')
    old.chmod(0o600)
    for sync in (True, False):
        assert atomic_write(old, '2', sync=sync).stat().st_mode & 0o777 == 0o600
    mask = os.umask(0o027)
    try:
        assert atomic_write(new, '1').stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(mask)

def test_a_link_is_written_through(tmp_path):
    (tmp_path/'far').mkdir()
    for target, link in (('far/bank.json', 'bank.json'), ('far/new.json', 'new.json')):
        (tmp_path/link).symlink_to(target)
    (tmp_path/'far'/'bank.json').write_text('old')
    for link in ('bank.json', 'new.json'):
        atomic_write(tmp_path/link, 'new')
        assert (tmp_path/link).is_symlink() and (tmp_path/'far'/link).read_text() == 'new'
    (tmp_path/'policy').symlink_to('far')
    with atomic_folder(tmp_path/'policy') as p:
        (p/'weights').write_text('new')
    assert ((tmp_path / 'policy').is_symlink()
    and snapshot(tmp_path / 'far') == {'weights': b'new'}
    and sorted(os.listdir(tmp_path)) == ['bank.json', 'far', 'new.json', 'policy'])


FORKED = '''
import os, time
from skillrl.core.runfolder import _FolderLock
lock = _FolderLock('run')
if not os.fork():
    lock.close()
    print(os.getpid(), flush=True)
    time.sleep(60)
os.wait()
'''

@pytest.mark.skipif(not hasattr(os, 'fork'), reason='Windows does not fork')
def test_a_forked_child_neither_lets_go_of_a_folder_nor_holds_it(tmp_path):
    owner = subprocess.Popen([sys.executable, '-c', FORKED], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    child = int(owner.stdout.readline())
    try:
        with pytest.raises(BlockingIOError, match=f'in use by process {owner.pid}:'):
            _FolderLock(tmp_path/'run')
        owner.kill()
        owner.wait()
        _FolderLock(tmp_path/'run').close()
    finally:
        os.kill(child, signal.SIGKILL)
        owner.stdout.close()

SAVE = '''
import resource
from skillrl.core.config import RLConfig
from skillrl.llm.local import Policy
from skillrl.core.runfolder import RunFolder
from skillrl.core.store import data_path
from skillrl.training.rl import GRPOTrainer
size, no_limit = (data_path('base')/'model.safetensors').stat().st_size, resource.RLIM_INFINITY
trainer = GRPOTrainer(Policy.load(data_path('base')), RLConfig())
sum(p.sum() for p in trainer.policy.model.parameters()).backward()
trainer._step()
with RunFolder('run', {}) as run:
    with run.folder('policy') as p: trainer.save(p)
    run.commit({'step': 1})
    for room in (size//2, size + size//2):
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, no_limit))
        try:
            with run.folder('policy') as p: trainer.save(p)
        except OSError as e: print(e)
'''
def test_a_disk_full_while_policy_or_optimizer_are_saved_is_one_sentence(tmp_path):
    "The optimizer keeps two numbers for each weight: its file does not fit into 1.5 times that of the policy"
    done = subprocess.run([sys.executable, '-c', SAVE], cwd=tmp_path, capture_output=True, text=True)
    said = done.stdout.splitlines()
    assert done.returncode == 0 and len(said) == 2, done.stderr
    for line in said:
        assert re.search('could not write run/policy/0002 .*File too large.*free some space', line)
    assert sorted(os.listdir(tmp_path/'run'/'policy')) == ['0001']
    with RunFolder(tmp_path/'run', resume=True) as run:
        assert run.state == {'step': 1}

def test_a_rename_that_fails_brings_the_folder_back(tmp_path, monkeypatch):
    with atomic_folder(tmp_path/'policy') as p:
        (p/'weights').write_text('old')
    real, n = os.replace, []
    def replace(*a):
        n.append(a)
        if len(n) == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*a)
    monkeypatch.setattr(os, 'replace', replace)
    with pytest.raises(OSError, match='could not write'):
        with atomic_folder(tmp_path/'policy') as p:
            (p/'weights').write_text('new')
    assert snapshot(tmp_path) == {'policy/weights': b'old'}

@pytest.mark.parametrize(
    'code', ["from skillrl.core.store import data_path", "from skillrl.skillrl.core.store import data_path"]
)
def test_data_is_found_beside_a_clone_named_skillrl(tmp_path, code):
    clone = tmp_path/'skillrl'
    for name in ('skillrl', 'data'):
        shutil.copytree(Path(store.__file__).parents[2]/name, clone/name)
    code += "; print(data_path('README.md').read_text()[:1], end='')"
    env = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    done = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ('#', 0), done.stderr
