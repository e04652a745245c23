"A folder from somebody else has no authority: what it names counts only when the user names it too"

import re, shlex, signal, time
from dataclasses import fields
from pathlib import Path
import pytest
from skillrl.cli.main import main
from skillrl.core.config import SkillRLConfig
from skillrl.core.runfolder import RunFolder
from skillrl.skillopt.settings import SkillOptConfig
from skillrl.core.store import write_json
from skillrl.training.pipeline import train

KEYS = 'POLICY', 'TEACHER', 'EMBEDDING', 'ENGINE'
SMALL = {'env.train_suites': 1, 'env.test_suites': 1, 'env.episodes': 1,
         'env.max_steps': 2, 'env.test_tasks': 1, 'sft.games': 1, 'sft.steps': 1,
         'rl.iterations': 1, 'rl.tasks_per_iteration': 1, 'rl.group_size': 2}

@pytest.fixture(autouse=True)
def keys(tmp_path, monkeypatch):
    "Keys within reach, an empty folder to stand in, and no wait before a silent address is tried again"
    monkeypatch.setattr('skillrl.llm.service._retry_wait', lambda *_: 0)
    monkeypatch.delenv('OPENAI_BASE_URL', raising=False)
    for who in KEYS:
        monkeypatch.setenv(f'SKILLRL_{who}_API_KEY', 'k'*20)
    monkeypatch.chdir(tmp_path)

def sentence(capsys, *words):
    "The one line that the command ends with, which fails"
    capsys.readouterr()
    assert main([*map(str, words)]) == 1
    return capsys.readouterr().err.strip().splitlines()[-1]

def value_of(f):
    "Something that a foreign folder may write into the field `f`"
    return 'http://evil.example/v1' if f.metadata['bare'] else 'far/away.py:Thing'

CONFIG = [(path, f) for path, _, f in SkillRLConfig().settings() if f.metadata['authority'] is not None]

def test_the_table_holds_what_names_code_commands_addresses_and_paths():
    "Each text setting is in it, but for those with a list of values, and names of models and protocols"
    free = {'env.url'}
    for path, _, f in SkillRLConfig().settings():
        named_only = f.metadata['choices'] or path.endswith('_model_id')
        if f.type is str and not named_only and path not in free:
            assert f.metadata['authority'] is not None, path
    texts = {f.name for f in fields(SkillOptConfig) if f.type is str and not f.metadata['choices']}
    assert texts == {'out_root', 'selection_split'} # --resume says the first

@pytest.mark.parametrize('path, f', CONFIG, ids=[path for path, _ in CONFIG])
def test_each_setting_with_authority_of_a_stored_config_has_to_be_said_again(path, f, tmp_path):
    "In the table of the config: refused; taken when it is named; the default needs no name"
    value = value_of(f)
    d = {path: value} | ({'retrieval.mode': 'embedding'} if path == 'retrieval.encoder' else {})
    stored = SkillRLConfig().merged(d)
    with pytest.raises(ValueError) as e:
        stored.opened()
    assert path in str(e.value) and value in str(e.value) and '\n' not in str(e.value)
    with pytest.raises(ValueError):
        stored.opened(['something else'])
    assert stored.opened([value]) is stored
    RunFolder(tmp_path/'run', SkillRLConfig().merged(d).to_dict()).close()
    with pytest.raises(ValueError, match=re.escape(value)):
        train(None, tmp_path/'run', resume=True)
    SkillRLConfig().opened()

EVIL = '''from pathlib import Path
Path({mark!r}).write_text('ran')
class World:
    def suites(self, config):
        raise ValueError('it ran')
'''

@pytest.fixture(params=['beside the run', 'absolute', 'in the working folder', 'in the run'])
def planted(request, tmp_path):
    "A run that names a program in one of four places, and the file that it writes when it runs"
    mark, shared = tmp_path/'mark', tmp_path/'shared'
    places = {'beside the run': (shared/'worlds.py', 'shared/worlds.py:World'),
              'absolute': (shared/'away.py', f'{shared}/away.py:World'),
              'in the working folder': (tmp_path/'near.py', 'near:World'),
              'in the run': (shared/'run'/'inner.py', 'shared/run/inner.py:World')}
    file, name = places[request.param]
    RunFolder(shared/'run', SkillRLConfig().merged(SMALL | {'env.name': name}).to_dict()).close()
    file.write_text(EVIL.format(mark=str(mark)))
    return shared/'run', name, mark

def test_a_run_folder_does_not_run_the_program_that_it_names(planted, capsys):
    "`train --resume` and the Python API; it runs when the user says its name"
    run, name, mark = planted
    refusal = sentence(capsys, 'train', '--resume', run)
    assert name in refusal
    assert '--set env.name=' in refusal
    with pytest.raises(ValueError, match=re.escape(name)):
        train(None, run, resume=True)
    assert not mark.exists()
    sentence(capsys, 'train', '--resume', run, '--env', name)
    assert mark.exists()

def again(err):
    "The words that a stopped command tells to go on with"
    told = [line for line in err.splitlines() if line.startswith('Stopped: ')]
    return shlex.split(told[-1].split('go on with: ', 1)[1])[1:]

def stopped(lives, run, *words):
    "What `train` says on Ctrl-C, which comes when the first phase of `run` is under way"
    lives.start('train', *words, '--output', run, err='said.txt')
    state, deadline = Path(run)/'state.json', time.monotonic() + 120
    while not (state.exists() and '"phase"' in state.read_text()):
        assert time.monotonic() < deadline
        time.sleep(.01)
    lives.send(signal.SIGINT)
    assert lives.end() == 130
    return Path('said.txt').read_text()

WORLD = '''from skillrl.envs.alfworld.world import Alfworld
class World(Alfworld):
    pass
'''

def test_the_owner_goes_on_with_the_command_that_is_told(lives, tmp_path, capsys):
    "A world of one's own, named on the line or in a file with prices; pasted, the command goes on"
    name = 'my worlds/own.py:World'
    (tmp_path/'my worlds').mkdir()
    (tmp_path/'my worlds'/'own.py').write_text(WORLD)
    write_json(tmp_path/'usd.json', {})
    write_json(tmp_path/'c.json', SMALL | {'env.episodes': 2, 'model.prices': 'usd.json'})
    write_json(tmp_path/'d.json', SMALL)
    for run, given in dict(one=['--config', 'd.json'], two=['--config', 'c.json', '--episodes', '1']).items():
        words = again(stopped(lives, run, *given, '--env', name))
        assert words == ['train', '--resume', run, *given, '--env', name]
        told = sentence(capsys, *words[:3])
        assert name in told or 'usd.json' in told
        assert main(words) == 0
