"The power goes while a run writes: what was not synced is gone, and with it at most the last step"
import os, shutil
from itertools import count
from pathlib import Path
import pytest
from disk import Disk
from skillrl.core.runfolder import RunFolder
from skillrl.core.store import JsonlLog, atomic_folder, atomic_write, read_json, write_json

pytestmark = pytest.mark.skipif(not os.path.exists('/proc/self/fd'),
                                reason='asks the kernel which file a descriptor belongs to')
STEPS = 4

def files(d):
    return {
        p.relative_to(d).as_posix(): p.read_bytes()
        for p in sorted(Path(d).rglob('*'))
        if p.is_file() and p.name != '.lock'
    }


def go(folder, done=lambda step: None):
    "A run of a few steps that writes everything a run can write, or the rest of one"
    with RunFolder(folder, {'seed': 7}, resume=(Path(folder)/'config.json').exists()) as run:
        state = run.state or dict(step=0, x=7)
        while state['step'] < STEPS:
            state = dict(step=state['step'] + 1, x=state['x']*16807 % 2147483647)
            run.log('metrics').append([state])
            if state['step'] % 2:
                run.log('evolution').append([state]*3)
            write_json(run.path/'bank'/'kitchen'/f"v{state['step']:04}.json", state)
            for name in ['policy'] + ['reference']*(state['step'] == 2):
                with run.folder(name) as p:
                    (p/'weights').write_text(str(state['x'])*100)
                    (p/'tokenizer').mkdir()
                    (p/'tokenizer'/'vocab.json').write_text('{}')
            if state['step'] == STEPS:
                atomic_write(run.path/'report.md', '# Report')
            run.commit(state)
            done(state['step'])

@pytest.fixture
def calm(tmp_path):
    go(tmp_path/'calm')
    return files(tmp_path/'calm')

def test_a_commit_syncs_files_then_folders_then_the_state(tmp_path):
    seen = []
    with Disk(tmp_path, lambda *event: seen.append(event)), RunFolder(tmp_path/'run', {}) as run:
        run.log('metrics').append([dict(step=1)])
        with run.folder('policy') as p:
            for name in ('weights', 'config'):
                (p/name).write_text(name)
        run.commit({})
    def at(what, path):
        return max(i for i, (w, p) in enumerate(seen) if w == what and p.startswith(f'run/{path}'))
    made = [at('fsync', f'policy/.0001.tmp/{name}') for name in ('weights', 'config')]
    order = [max(made), seen.index(('fsync', 'run/policy/.0001.tmp')), at('replace', 'policy/0001'),
             seen.index(('fsync', 'run/policy'), at('replace', 'policy/0001')),
             at('fsync', '.state.json.tmp'), at('replace', 'state.json'), len(seen) - 1]
    assert order == sorted(order) and seen[-1] == ('fsync', 'run') and seen.index(('fsync', '.')) < min(made)

@pytest.mark.parametrize('names', ['kept', 'undone'])
def test_power_cut_at_every_moment_costs_the_last_step_at_most(tmp_path, calm, names):
    images, done = [], [0]
    def cut(what='commit', path='state.json'):
        if done[0] == 2 or path.endswith('state.json'):
            images.append((done[0], disk.image(tmp_path/f'{len(images)}', names)/'run'))
    with Disk(tmp_path/'disk', cut) as disk:
        def commit(step):
            done[0] = step
            cut()
        go(tmp_path/'disk'/'run', commit)
    assert len(images) > 20  # Every moment of the third step, and of the other steps those about the commit
    for step, image in images:
        if step:
            with RunFolder(image, resume=True) as run:
                assert run.state['step'] in (step, step + 1)
        go(image)
        assert files(image) == calm

def test_a_damaged_version_is_refused_and_the_one_before_it_offered(tmp_path, calm):
    go(tmp_path/'run')
    (tmp_path/'run'/'policy'/'0004'/'weights').write_bytes(b'')
    for _ in range(2):
        with pytest.raises(
            ValueError,
            match='policy/0004/weights is not what was committed.*'
            'copy .*state.previous.json over .*state.json',
        ) as e:
            go(tmp_path/'run')
    assert '\n' not in str(e.value)
    shutil.copy(tmp_path/'run'/'state.previous.json', tmp_path/'run'/'state.json')
    go(tmp_path/'run')
    assert files(tmp_path/'run') == calm

def test_a_version_outlives_the_commit_that_replaces_it(tmp_path):
    kept = []
    go(tmp_path/'run', lambda step: kept.append(sorted(os.listdir(tmp_path/'run'/'policy'))))
    assert kept == [['0001'], ['0001', '0002'], ['0002', '0003'], ['0003', '0004']]

@pytest.mark.parametrize('damage', ['', '{}', '[]', '{"fol', None])
def test_a_lost_state_is_said_and_the_one_before_it_offered(tmp_path, calm, damage):
    go(tmp_path/'run')
    state = tmp_path/'run'/'state.json'
    if damage is None:
        state.unlink()
    else:
        state.write_text(damage)
    with pytest.raises(ValueError, match=r'state\.json.*') as e:
        go(tmp_path/'run')
    assert '\n' not in str(e.value)
    shutil.copy(tmp_path/'run'/'state.previous.json', state)
    go(tmp_path/'run')
    assert files(tmp_path/'run') == calm

@pytest.mark.parametrize('names', ['kept', 'undone'])
@pytest.mark.parametrize(
    'write',
    [
        lambda p: atomic_write(p / 'a' / 'b' / 'bank.json', 'x'),
        lambda p: JsonlLog(p / 'a' / 'log.jsonl').append([dict(a=1)]),
    ],
    ids=['file', 'log'],
)
def test_a_file_that_was_written_outlasts_a_power_cut(tmp_path, write, names):
    with Disk(tmp_path/'disk') as disk:
        write(tmp_path/'disk')
        assert files(disk.image(tmp_path/'image', names)) == files(tmp_path/'disk') != {}

@pytest.mark.parametrize('names', ['kept', 'undone'])
def test_a_folder_that_was_written_outlasts_a_power_cut(tmp_path, names):
    with Disk(tmp_path/'disk') as disk:
        for text in ('first', 'second'):
            with atomic_folder(tmp_path/'disk'/'policy') as p:
                (p/'weights').write_text(text)
        assert files(disk.image(tmp_path/'image', names))['policy/weights'] == b'second'

def test_power_cut_at_every_commit_of_an_optimisation_costs_its_step_at_most(tmp_path, monkeypatch):
    from test_skillopt_kill import snapshot, trainer
    images, number = {}, count()
    def steps(folder):
        state = read_json(folder/'run'/'state.json')['state']
        return -1 if state is None else state['step']
    def cut(what, path):
        if what != 'replace' or path not in ('run/state.json', 'run/runtime_state.json'):
            return
        done = steps(tmp_path/'disk') - (path == 'run/state.json') # Under way until its folder is synced
        for names in ('kept', 'undone'):
            left = disk.image(tmp_path/f'image-{next(number)}', names)
            images[str(files(left))] = done, left
    def train(folder):
        monkeypatch.chdir(folder)
        trainer(note=len, num_epochs=1).train()
        return snapshot(folder)
    with Disk(tmp_path/'disk', cut) as disk:
        calm = train(tmp_path/'disk')
    assert len(images) >= 6
    for done, left in images.values():
        assert done < 0 or steps(left) >= done
        assert train(left) == calm

def test_a_link_where_an_optimisation_writes_is_not_followed(tmp_path):
    from test_skillopt_kill import trainer
    def opened():
        return trainer(note=len, out_root=tmp_path/'run').session.open()
    with opened() as run:
        run.begin(1).put('mug', 1)
    (tmp_path/'elsewhere'/'step_0001').mkdir(parents=True)
    for name in ('steps', 'best_skill.md', 'journal_0001.jsonl', 'events.jsonl', '.lock'):
        (tmp_path/'run'/name).unlink(missing_ok=True)
        (tmp_path/'run'/name).symlink_to(tmp_path/'elsewhere')
        before = files(tmp_path)
        with pytest.raises(ValueError, match=f'{name} is a symbolic link'):
            opened()
        assert files(tmp_path) == before and (tmp_path/'elsewhere'/'step_0001').exists()
        (tmp_path/'run'/name).unlink()
