"""Agent programs and checks in a sandbox: what they cannot read, change or leave behind.

With `bwrap` itself; where it does not work, the tests that need it are skipped."""
import json, os, shlex, subprocess, sys, time
from dataclasses import replace
from pathlib import Path
import pytest
from skillrl.llm.checks import Outputs, holds
from skillrl.llm.command import Sandbox, _beside, _bwrap, _private, run_program, safe_env, use_sandbox
from skillrl.proof.agents import find_agent, run_agent
from skillrl.proof.prove import prove, ProofConfig

KEY = 'Zq7-mug-and-spoon_0451'

@pytest.fixture
def box():
    why = _bwrap()[1]
    if why:
        pytest.skip(f'no sandbox can be made: {why}')
    use_sandbox('on')
    yield Sandbox
    use_sandbox('off')

@pytest.fixture
def home(tmp_path, monkeypatch):
    "A home with logins, and a skill beside it"
    for name, text in {'.codex/auth.json': KEY, '.config/mug/key': KEY, '.ssh/id_ed25519': KEY}.items():
        (tmp_path/'home'/name).parent.mkdir(parents=True)
        (tmp_path/'home'/name).write_text(text)
    skill = tmp_path/'shop'/'skills'/'mugs'
    (skill/'evals').mkdir(parents=True)
    (tmp_path/'shop'/'.git').mkdir()
    (tmp_path/'shop'/'.git'/'packed').write_text('THE ANSWERS')
    (skill/'SKILL.md').write_text('---\nname: mugs\ndescription: About mugs.\n---\n\nWash them.')
    evals = [dict(id=1, prompt='Go.', assertions=[dict(text='It is', check=dict(file='out.txt'))])]
    (skill/'evals'/'evals.json').write_text(json.dumps(evals))
    monkeypatch.setenv('HOME', str(tmp_path/'home'))
    monkeypatch.setenv('OPENAI_API_KEY', KEY)
    return tmp_path/'home'

@pytest.fixture
def script(tmp_path):
    def make(source, more=''):
        (tmp_path/'bin').mkdir(exist_ok=True)
        path = tmp_path/'bin'/f'agent{len(list((tmp_path/"bin").iterdir()))}.py'
        path.write_text(f'import json, os, subprocess, sys, time\nfrom pathlib import Path\n{source}')
        return find_agent(f'{shlex.join([sys.executable, str(path)])} {{prompt}} {more}')
    return make

LOOK = """
def texts(paths):
    for path in paths:
        try: yield str(path), path.read_bytes().decode(errors='replace')
        except OSError: pass
found = dict(texts(p for p in Path('/proc').glob('[0-9]*/environ')))
mine = f'/proc/{os.getpid()}/environ'
print(json.dumps(dict(
    keys=[p for p, text in found.items() if 'Zq7' in text and p not in (mine, '/proc/1/environ')],
    answers=[p for top in sys.argv[2:] for p, text in texts(Path(top).rglob('*'))
             if 'Zq7' in text or 'ANSWERS' in text or 'evals' in p],
    listed=[p for top in sys.argv[2:] for p in os.listdir(top)] )))
"""

def test_no_key_no_answer_and_no_neighbour_can_be_read(box, home, script, tmp_path):
    other = subprocess.Popen(['sleep', '60'], env=dict(K=KEY))
    places = [home, home.parent/'shop']
    agent = replace(script(LOOK, shlex.join(map(str, places))), hide=(home.parent/'shop',))
    try:
        run = run_agent(agent, 'Go.', tmp_path/'o', skill=home.parent/'shop'/'skills'/'mugs')
    finally:
        other.kill()
    assert not run.error and json.loads(run.text) == dict(keys=[], answers=[], listed=[])

def test_a_login_can_be_used_and_not_changed_and_is_never_copied(box, home, script, tmp_path):
    agent = script(f"""
login = Path.home()/'.codex'/'auth.json'
told = [login.read_text()]
for change in (lambda: login.write_text('stolen'), login.unlink,
               lambda: Path({str(home)!r}, '.codex', 'auth.json').write_text('stolen')):
    try: told.append(change())
    except OSError as e: told.append(type(e).__name__)
Path('out.txt').write_text(Path.home().as_posix())
print(json.dumps(told))""")
    run = run_agent(replace(agent, config='.codex/auth.json'), 'Go.', tmp_path/'o')
    told = json.loads(run.text.replace('[redacted]', KEY))
    assert told[0] == KEY and told[1:] == ['OSError', 'OSError', 'FileNotFoundError']
    assert (home/'.codex'/'auth.json').read_text() == KEY

ENDLESS = """
(Path.home()/'ready').write_text(str(os.getpid()))
subprocess.Popen(['sleep', '3600'], start_new_session=True)
time.sleep(3600)"""

def left_of(marker):
    "Processes whose command holds `marker`"
    out = []
    for path in Path('/proc').glob('[0-9]*/cmdline'):
        try:
            out += [path] if marker in path.read_text(errors='replace') else []
        except OSError:
            pass
    return out

def test_killed_by_a_signal_that_nobody_catches_it_leaves_no_key_and_no_process(box, home, script, tmp_path):
    marker = f'mug-marker-{os.getpid()}'
    agent = script(ENDLESS, marker)
    place = tmp_path/'places'
    place.mkdir()
    source = f"""
from dataclasses import replace
from skillrl.proof.agents import find_agent, run_agent
run_agent(replace(find_agent({agent.command!r}), config='.codex/auth.json'), 'Go.', {str(tmp_path/"o")!r})"""
    env = os.environ | dict(SKILLRL_SANDBOX='on', TMPDIR=str(place))
    p = subprocess.Popen([sys.executable, '-c', source], env=env)
    try:
        while not [*place.glob('*/home/ready')]:
            assert p.poll() is None
            time.sleep(.02)
    finally:
        p.kill()
        p.wait()
    kept = [f.read_text(errors='replace') for f in place.rglob('*') if f.is_file()]
    assert kept and not [text for text in kept if KEY in text]
    for _ in range(400):
        if not left_of(marker):
            break
        time.sleep(.05)
    assert not left_of(marker)

def test_what_a_program_leaves_behind_ends_with_it(box, script, tmp_path):
    begin = "subprocess.Popen(['sleep', '{}'], start_new_session=True)\nprint('left')"
    marker = f'3600.{os.getpid()}'
    assert run_agent(script(begin.format(marker)), 'Go.', tmp_path/'o').text == 'left'
    assert not left_of(marker)

CHECK = """import os, socket, sys
try: socket.create_connection(('127.0.0.1', {port}), 2); sys.exit('a network')
except OSError: pass
if any(b'Zq7' in open(f'/proc/{{p}}/environ', 'rb').read() for p in os.listdir('/proc') if p.isdigit()):
    sys.exit('a key')
if os.path.exists({home!r} + '/.ssh'): sys.exit('a home')
try: open({skill!r} + '/SKILL.md', 'w'); sys.exit('written')
except OSError: pass
assert sys.stdin.read() == 'The answer.' and os.path.exists('mug.txt')
"""

def test_a_check_has_its_skill_and_the_outputs_and_nothing_else(box, home, tmp_path):
    import socket
    skill, out = home.parent/'shop'/'skills'/'mugs', tmp_path/'outputs'
    out.mkdir()
    (out/'mug.txt').write_text('white')
    with socket.create_server(('127.0.0.1', 0)) as server:
        source = CHECK.format(port=server.getsockname()[1], home=str(home), skill=str(skill))
        (skill/'check.py').write_text(source)
        check = dict(command=[sys.executable, '{skill}/check.py'])
        assert holds(check, Outputs(out, 'The answer.'), skill) == (True, f'{sys.executable} ended with 0')
        use_sandbox('off')
        assert holds(check, Outputs(out, 'The answer.'), skill)[0] is False
    assert (skill/'SKILL.md').read_text().endswith('Wash them.')

@pytest.mark.parametrize('named', ['.ssh/id_ed25519', '.config/mug/key'])
def test_a_check_gets_no_file_by_naming_it(box, home, tmp_path, named):
    (home/named).chmod(0o755)
    run = Outputs(tmp_path/'none')
    for command in ([str(home/named)], ['cat', str(home/named)]):
        try:
            said = holds(dict(command=command), run, home.parent/'shop'/'skills'/'mugs')
        except OSError as e:
            said = False, str(e)
        assert not said[0] and 'Zq7' not in said[1] and 'No such file' in said[1]

def test_a_program_below_the_home_starts_and_no_login_comes_with_it(box, home, script, tmp_path, monkeypatch):
    "As nvm, pipx and cargo lay them out: links, scripts, and logins beside them"
    files = {'.nvm/v20/lib/tool/cli.py': '#!/usr/bin/env mugpython\nimport os, sys\nfor top in sys.argv[2:]:'
             '\n    for _, _, names in os.walk(top): print(*[n for n in names if "og" in n or "cred" in n])',
             '.nvm/v20/login-free': '', '.cargo/bin/mug-ls': '', '.cargo/credentials.toml': KEY,
             '.local/share/keyrings/login': KEY, '.local/bin/other': ''}
    for name, text in files.items():
        (home/name).parent.mkdir(parents=True, exist_ok=True)
        (home/name).write_text(text)
        (home/name).chmod(0o755)
    (home/'.nvm/v20/bin').mkdir()
    (home/'.nvm/v20/bin/mug-agent').symlink_to('../lib/tool/cli.py')
    (home/'.local/bin/mugpython').symlink_to(sys.executable)
    folders = [home/name for name in ('.nvm/v20/bin', '.cargo/bin', '.local/bin')]
    monkeypatch.setenv('PATH', os.pathsep.join(map(str, folders)), prepend=os.pathsep)
    run = run_agent(find_agent(f'mug-agent {{prompt}} {home}'), 'Go.', tmp_path/'o')
    assert not run.error and run.text.split() == ['login-free']

def test_a_package_of_npm_finds_those_beside_it(box, home, script, tmp_path, monkeypatch):
    modules = home/'tools'/'node_modules'
    for name in ('.bin', '@mugs/mug/bin', '@mugs/mug-linux/credentials'):
        (modules/name).mkdir(parents=True)
    program = modules/'@mugs'/'mug'/'bin'/'mug.py'
    program.write_text('#!/usr/bin/env python3\nimport os, sys'
                       '\nhere = os.path.dirname(os.path.realpath(__file__))'
                       '\nprint(os.listdir(here + "/../../mug-linux"))')
    program.chmod(0o755)
    (modules/'.bin'/'mug-agent').symlink_to('../@mugs/mug/bin/mug.py')
    monkeypatch.setenv('PATH', str(modules/'.bin'), prepend=os.pathsep)
    run = run_agent(find_agent('mug-agent {prompt}'), 'Go.', tmp_path/'o')
    assert not run.error and run.text == "['credentials']"

def test_what_holds_a_login_is_shown_in_part(home):
    private = _private()
    (home/'.docker'/'bin').mkdir(parents=True)
    assert _beside(home/'.docker'/'bin'/'x', private) == [home/'.docker']
    (home/'.docker'/'config.json').write_text('{}')
    assert _beside(home/'.docker'/'bin'/'x', private)[:2] == [home/'.docker'/'bin', home/'.docker'/'lib']
    assert _beside(home/'agent.py', private) == [home/'agent.py']
    assert _beside(home/'.ssh'/'agent.py', private) == [home/'.ssh'/'agent.py']
    assert home/'.local' not in _beside(home/'.local'/'bin'/'x', private)

def test_a_proof_runs_in_it_and_its_runs_see_neither_evals_nor_repository(box, home, script, tmp_path):
    shop = home.parent/'shop'
    agent = script(f"""
if os.path.exists({str(shop)!r}) and [*Path({str(shop)!r}).rglob('*')]: sys.exit(4)
Path('out.txt').write_text('x')""")
    proof = prove(shop/'skills'/'mugs', agent, config=ProofConfig(rounds=2))
    assert proof.facts['lost'] == 0 and proof.facts['sandbox'] == ''
    assert not any('sandbox' in line for line in proof.facts['caveats'])

def test_a_proof_says_where_there_was_none(home, script, monkeypatch):
    agent = script("Path('out.txt').write_text('x')")
    monkeypatch.setattr('skillrl.llm.command._bwrap', lambda: ('', 'there is no bwrap'))
    try:
        use_sandbox('auto')
        proof = prove(home.parent/'shop'/'skills'/'mugs', agent, config=ProofConfig(rounds=2))
        notes = proof.facts['caveats']
        assert [line for line in notes if 'without a sandbox (there is no bwrap)' in line]
        with pytest.raises(ValueError, match='there is no bwrap'):
            use_sandbox('on')
        with pytest.raises(ValueError, match="sandbox is 'maybe': give auto, on or off"):
            use_sandbox('maybe')
    finally:
        use_sandbox('off')

def test_a_sandbox_that_cannot_be_made_is_no_answer(box, tmp_path):
    with pytest.raises(OSError, match='nothing could run in a sandbox .*--sandbox off'):
        run_program(['true'], tmp_path, safe_env({}), 60, sandbox=Sandbox((tmp_path/'none',)))

def test_without_one_our_variables_are_for_root_alone(tmp_path):
    source = """import ctypes, os
from skillrl.llm.command import Sandbox, run_program
run_program(['true'], os.getcwd(), {}, 60, sandbox=Sandbox())
print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"""
    env = os.environ | dict(SKILLRL_SANDBOX='off')
    line = [sys.executable, '-c', source]
    out = subprocess.run(line, env=env, capture_output=True, text=True, cwd=tmp_path)
    assert sys.platform != 'linux' or out.stdout == '0\n'
