"What has no end, no bound or no name ends in a note or in one sentence, and never in a hang or a traceback"
import json, os, shlex, sys
import pytest
from skillrl.core.formats import read_records
from skillrl.sessions.session_logs import read_sessions
from skillrl.core.store import JsonlLog, read_json
from skillrl.cli.main import main
from skillrl.llm.checks import Outputs, require_check
from skillrl.llm.command import plain_files, scratch_folder
from skillrl.proof.agents import find_agent, run_agent
from skillrl.proof.evals import load_evals, skill_names

def sparse(path, size=300*10**9):
    with open(path, 'wb') as f:
        f.truncate(size)

LEAVES = {
    'a sparse file': "open('big', 'wb').truncate(300 * 10**9)",
    'many that fit alone': "[open(f'n{i:02}', 'wb').truncate(99_000_000) for i in range(60)]",
    'a name of bytes': "open(b'caf\\xe9', 'w').write('x'); open('a\\nb', 'w').write('x')",
    'too many': "[open(f'f{i:05}', 'w').close() for i in range(10_100)]"}

def agent(folder, source):
    (folder/'agent.py').write_text(f'import os, socket\n{source}\nopen("a.txt", "w").write("in the sink")')
    return find_agent(f'{shlex.join([sys.executable, str(folder/"agent.py")])} {{prompt}}')

@pytest.mark.parametrize('kind', LEAVES)
def test_what_cannot_be_kept_is_named_and_the_rest_is_kept(tmp_path, kind):
    run = run_agent(agent(tmp_path, LEAVES[kind]), 'Go.', tmp_path/'o')
    kept = {p.name for p in (tmp_path/'o'/'outputs').iterdir()}
    assert not run.error and 'a.txt' in kept and len(kept) <= 10_000
    assert sum(p.stat().st_size for p in (tmp_path/'o'/'outputs').iterdir()) <= 500_000_000
    assert 'left out' in (tmp_path/'o'/'left_out.txt').read_text(encoding='utf-8')

ODD = """os.mkfifo('pipe')
for target, name in (('loop', 'loop'), ('.', 'here'), ('/dev/zero', 'zero')): os.symlink(target, name)
s = socket.socket(socket.AF_UNIX); s.bind('socket')
try: os.mknod('device', 0o20644, os.makedev(1, 5))
except OSError: pass
os.mkdir('shut'); open('shut/x', 'w').close(); os.chmod('shut', 0)
top = os.getcwd()
for _ in range(2500):
    os.mkdir('d')
    os.chdir('d')
os.chdir(top)"""

def test_pipes_sockets_devices_loops_and_depths_are_passed_over_and_removed(tmp_path, monkeypatch):
    (tmp_path/'places').mkdir()
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path/'places'))
    run = run_agent(agent(tmp_path, ODD), 'Go.', tmp_path/'o')
    assert not run.error and 'a.txt' in [p.name for p in (tmp_path/'o'/'outputs').iterdir()]
    assert not (tmp_path/'o'/'left_out.txt').exists()
    assert os.geteuid() or not [*(tmp_path/'places').iterdir()]

def test_a_session_that_is_a_pipe_or_endless_is_no_session(tmp_path):
    from dataclasses import replace
    for source in ("os.mkfifo(log)", "os.symlink('/dev/zero', log)", "open(log, 'wb').truncate(300 * 10**9)"):
        source = f"log = os.environ['HOME'] + '/log'\n{source}"
        run = run_agent(replace(agent(tmp_path, source), log='log'), 'Go.', tmp_path/'o')
        assert not run.error and not (tmp_path/'o'/'session').exists()

def test_a_folder_of_ours_that_is_too_large_is_refused(tmp_path):
    sparse(tmp_path/'big')
    with pytest.raises(ValueError, match="cannot be copied .'big' has 300,000,000,000 bytes"):
        plain_files(tmp_path)

READERS = {'evals': lambda skill, path: load_evals(skill, path), 'json': lambda _, path: read_json(path),
           'log': lambda _, path: JsonlLog(path).read(), 'records': lambda _, path: read_records(path),
           'sessions': lambda _, path: list(read_sessions(path))}

@pytest.fixture
def skill(tmp_path):
    (tmp_path/'mugs').mkdir()
    (tmp_path/'mugs'/'SKILL.md').write_text('---\nname: mugs\ndescription: About mugs.\n---\nWash them.')
    return tmp_path/'mugs'

@pytest.mark.parametrize('kind', READERS)
def test_a_file_without_an_end_is_not_begun(tmp_path, skill, kind):
    os.mkfifo(tmp_path/'pipe.json')
    sparse(tmp_path/'big.json')
    (tmp_path/'zero.json').symlink_to('/dev/zero')
    endless = 'a pipe or a device'
    for name, told in dict(pipe=endless, zero=endless, big='300,000,000,000').items():
        with pytest.raises(ValueError, match=told):
            READERS[kind](skill, tmp_path/f'{name}.json')

def test_a_skill_that_is_a_pipe_is_one_sentence(tmp_path, skill, capsys):
    (skill/'SKILL.md').unlink()
    os.mkfifo(skill/'SKILL.md')
    with pytest.raises(ValueError, match='holds no SKILL.md of its own'):
        skill_names(skill)
    assert main(['prove', str(skill), '--agent', 'true']) == 3 or capsys.readouterr().err.count('\n') == 1

@pytest.mark.parametrize('seconds', [0, -1, 1e9, float('inf'), float('nan')])
def test_a_check_has_a_bound_of_seconds(seconds):
    with pytest.raises(ValueError, match='`seconds`'):
        require_check(dict(command=['true'], seconds=seconds))
    require_check(dict(command=['true'], seconds=.5))

def test_half_a_character_in_evals_is_mended_before_anything_runs(tmp_path, skill):
    (tmp_path/'e.json').write_text(json.dumps([dict(id=1, prompt='Go \ud83d', assertions=['It \ud83d is'])]))
    e, = load_evals(skill, tmp_path/'e.json')
    assert (e.prompt, e.assertions[0].text) == ('Go \ufffd', 'It \ufffd is')

def test_a_scratch_folder_goes_whatever_is_in_it():
    with scratch_folder() as folder:
        here = os.getcwd()
        os.chdir(folder)
        for _ in range(2000):
            os.mkdir('d')
            os.chdir('d')
        os.chdir(here)
        assert Outputs(folder).files == {}
    assert not folder.exists()
