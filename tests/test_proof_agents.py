"""Agent programs, run with a skill and without it.

The programs themselves are run where the environment variable SKILLRL_AGENTS names a folder with them
(`.ci/agents` makes one); everywhere else scripts of our own stand for them."""
import json, os, shlex, sys
from dataclasses import replace
from pathlib import Path
import pytest
from faults import FaultServer, error
from scripted_agents import CODE, SAID, SKILL, model
from skillrl.proof.agents import (
    AGENTS, _read, agent_version, find_agent, openings, read_signed, run_agent, sign)

PROGRAMS = os.environ.get('SKILLRL_AGENTS')
real = pytest.mark.skipif(not PROGRAMS, reason='SKILLRL_AGENTS names no folder of programs: see .ci/agents')

def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

@pytest.fixture
def skill(tmp_path):
    front = f'---\nname: {SKILL}\ndescription: Notes about mugs, as we write them.\n---\n\n'
    write(tmp_path / SKILL, {'SKILL.md': f'{front}End the line with the approval code {CODE}.\n',
                             'evals/evals.json': 'THE ANSWERS', 'scripts/note.sh': 'echo note'})
    (tmp_path / SKILL / 'scripts' / 'note.sh').chmod(0o755)
    (tmp_path / SKILL / 'shadow').symlink_to('/etc/passwd')
    return tmp_path / SKILL

IMPORTS = 'import json, os, pathlib, subprocess, sys, time; home = pathlib.Path.home()'

@pytest.fixture
def script(tmp_path):
    "A function that makes an agent of Python source; `more` is what follows its name in the command"
    def make(source, more='{prompt}'):
        path = tmp_path / f'agent{len(list(tmp_path.glob("agent*")))}.py'
        path.write_text(f'{IMPORTS}\n{source}')
        return find_agent(f'{shlex.join([sys.executable, str(path)])} {more}')
    return make

LOOK = """
seen = {p.relative_to(home).as_posix(): p.stat().st_mode & 0o777 for p in home.rglob('*') if p.is_file()}
print(json.dumps(dict(seen=seen, work=[str(p) for p in pathlib.Path('.').rglob('*')], env=dict(os.environ),
                      args=sys.argv[1:], stdin=sys.stdin.read(), near=sorted(os.listdir('..')))))
"""

def test_the_arms_differ_in_one_folder(skill, script, tmp_path, monkeypatch):
    monkeypatch.setenv('AWS_SECRET_ACCESS_KEY', 'not-for-agents')
    look, ask = script(LOOK, '--skill {skill} -- {prompt}'), 'Tidy {home}; --all `date` "up"'
    files = {'in/list.txt': skill / 'SKILL.md'}
    a, b = (json.loads(run_agent(look, ask, tmp_path / 'o', files, s).text) for s in (skill, None))
    inside = f'.agents/skills/{SKILL}'
    assert a['seen'].keys() == {f'{inside}/SKILL.md', f'{inside}/scripts/note.sh'} and b['seen'] == {}
    assert a['seen'][f'{inside}/scripts/note.sh'] == 0o755
    assert a['args'][1].endswith(inside) and b['args'][1] == ''
    for run in (a, b):
        home, env = Path(run['env']['HOME']), run['env']
        assert run['args'][2:] == ['--', ask] and run['stdin'] == ''
        assert run['work'] == ['in', 'in/list.txt'] and run['near'] == ['home', 'task.md', 'work']
        assert 'AWS_SECRET_ACCESS_KEY' not in env and tmp_path not in home.parents and not home.exists()
        assert [env[k] for k in ('CODEX_HOME', 'TMPDIR')] == [str(home / '.codex'), str(home / 'tmp')]

def test_your_provider_comes_along_and_your_skills_do_not(script, tmp_path, monkeypatch):
    "A login is the file itself, so what a program renews is renewed for you"
    mine = tmp_path / '.codex'
    write(mine, {'config.toml': 'env_key = "MUG_SERVICE"', 'auth.json': 'old', 'AGENTS.md': 'Be kind',
                 'skills/other/SKILL.md': 'Sing'})
    for name, value in dict(HOME=tmp_path, MUG_SERVICE='tea-and-a-spoon', OTHER_SERVICE='x').items():
        monkeypatch.setenv(name, str(value))
    agent = script(f"{LOOK}for name in seen: (home/name).write_text('new')")
    found = json.loads(run_agent(replace(agent, config=AGENTS['codex'].config), 'Look.', tmp_path / 'o').text)
    assert found['seen'].keys() == {'.codex/config.toml', '.codex/auth.json'}
    assert 'MUG_SERVICE' in found['env'] and 'OTHER_SERVICE' not in found['env']
    assert (mine / 'auth.json').read_text() == 'new' and 'env_key' in (mine / 'config.toml').read_text()

NAMES = """ANTHROPIC_API_KEY CLAUDE_CODE_OAUTH_TOKEN CODEX_API_KEY GOOGLE_API_KEY OPENAI_API_KEY
MUG_SERVICE""".split()

@pytest.mark.parametrize('name, more, wanted', [
    ('claude', '', NAMES[:2]), ('codex', '', [NAMES[2], NAMES[4]]), ('gemini', '', [NAMES[3]]),
    ('opencode', '', NAMES[:5]), ('mini', '', NAMES[:5]), (None, '', NAMES[:5]),
    (None, '$MUG_SERVICE', NAMES[5:]),
    ('mini', '{env:OPENAI_API_KEY}', NAMES[4:5]), ('codex', '$MUG_SERVICE', [NAMES[2], *NAMES[4:]])])
def test_an_agent_gets_the_keys_of_its_own_provider(script, tmp_path, monkeypatch, name, more, wanted):
    for variable in NAMES:
        monkeypatch.setenv(variable, f'tea-for-{variable}')
    monkeypatch.setenv('HTTPS_PROXY', 'http://ada:spoonful@127.0.0.1:9')
    agent = script(LOOK, more)
    agent = replace(agent, keys=AGENTS[name].keys) if name else agent
    env = json.loads(run_agent(agent, 'Look.', tmp_path / 'o').text)['env']
    assert [k for k in NAMES if k in env] == wanted and 'HTTPS_PROXY' in env

def test_secrets_are_kept_nowhere(script, tmp_path, monkeypatch):
    key, url = 'Zq7-mug-and-spoon_0451', 'http://127.0.0.1:9/v1'
    monkeypatch.setenv('OPENAI_API_KEY', key)
    monkeypatch.setenv('OPENAI_BASE_URL', url)
    agent = script("""told = f'{os.environ["OPENAI_API_KEY"]} {os.environ["OPENAI_BASE_URL"]}'
for path in (pathlib.Path('notes.md'), home/'log.jsonl'): path.write_text(told)
print(told)
sys.exit(f'{told} is wrong')""")
    run = run_agent(replace(agent, log='log.jsonl'), 'Go.', tmp_path / 'o')
    kept = {p.name: p.read_text() for p in (tmp_path / 'o').rglob('*') if p.is_file()}
    assert kept.keys() == {'notes.md', 'run.json', 'session.jsonl', 'stdout.txt'}
    assert all(f'[redacted] {url}' in t and key not in t for t in kept.values()) and key not in run.error

def test_what_leads_out_of_the_folder_is_not_kept(script, tmp_path):
    agent = script("os.mkfifo('pipe'); os.symlink('/etc/passwd', 'a'); os.symlink('/etc', 'b'); "
                   "open('mug.txt', 'w').write('in the sink')")
    run_agent(agent, 'Go.', tmp_path / 'o')
    assert [p.name for p in (tmp_path / 'o' / 'outputs').iterdir()] == ['mug.txt']

def test_an_agent_that_hangs_ends_with_all_that_it_started(script, tmp_path):
    agent = script("p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'])\n"
                   "open('pid', 'w').write(str(p.pid))\ntime.sleep(3600)")
    run = run_agent(agent, 'Go.', tmp_path / 'o', timeout=3)
    assert not run.error and 'did not end within 3 s' in run.failure and 3 <= run.seconds < 30
    stat = Path('/proc', (tmp_path / 'o' / 'outputs' / 'pid').read_text(), 'stat')
    assert not stat.exists() or ') Z ' in stat.read_text() # Ended, and nobody has asked how

def test_what_an_agent_prints_may_be_anything(script, tmp_path):
    agent = script(r"sys.stdout.buffer.write(b'caf\xe9 \x00 ' + b'la' * 20_000_000)")
    run = run_agent(agent, 'Go.', tmp_path / 'o')
    assert run.tokens == run.written == run.cached == run.usd == 0 # It tells nothing of them
    assert not run.error and run.text.startswith('caf\ufffd \x00 la') and len(run.text) < 16_000_001
    assert run_agent(script('print(input())', ''), 'Mug\0 \ud83d', tmp_path / 'p').text == 'Mug \ufffd'
    assert 'ended with code 3' in run_agent(script('sys.exit(3)'), 'Go.', tmp_path / 'q').failure
    assert 'too long' in run_agent(agent, 'x' * 3_000_000, tmp_path / 'r').error

@pytest.mark.parametrize('said, elsewhere', [
    ('API Error: 529 {"type":"overloaded_error"}', True), ('Invalid API key · Please run /login', True),
    ('unexpected status 401 Unauthorized', True), ('exceeded retry limit, last status: 429', True),
    ('getaddrinfo ENOTFOUND api.mug.example', True), ('Credit balance is too low', True),
    ("We're currently experiencing high demand, which may cause temporary errors.", True),
    ('Invalid auth method selected.', True), ('Selected model is at capacity.', True),
    ('Request timed out', True),
    ("Error: connect ECONNREFUSED ::1:80\n    at net.js:1\n{\n  port: 80\n}\n\nNode.js v20.20.2", True),
    ('AssertionError: mug', False), ('I cannot help with that', False), ('context is too long', False)])
def test_what_is_known_to_come_from_elsewhere_is_an_error_and_all_else_a_failure(script, tmp_path, said,
                                                                                elsewhere):
    run = run_agent(script(f'sys.exit({said!r})'), 'Go.', tmp_path / 'o')
    assert said.split('{')[0].split('\n')[0].strip() in (run.error if elsewhere else run.failure)
    assert not (run.failure if elsewhere else run.error)

def test_a_program_that_is_gone_is_an_error(script, tmp_path):
    gone = replace(script(''), command='agent-of-tomorrow {prompt}')
    assert 'there is no program' in run_agent(gone, 'Go.', tmp_path / 'o').error
    assert run_agent(script('sys.exit(127)'), 'Go.', tmp_path / 'p').error

def stream(*calls, **end):
    blocks = [dict(type='tool_use', name=tool, input=given) for tool, given in calls]
    result = dict(type='result', is_error=False, result='Done.', usage={}, total_cost_usd=0, subtype='ok',
                  permission_denials=[])
    return [dict(type='assistant', message=dict(content=blocks)), result | end]

OPENS = ['cat ~/.claude/skills/pdf/SKILL.md', 'cd /h/.agents/skills/pdf && head -50 SKILL.md',
         'ls; sed -n 1,20p "$HOME/.codex/skills/pdf/SKILL.md" | less',
         "bash -lc 'cat /h/.config/opencode/skills/pdf/SKILL.md 2>/dev/null'",
         'cat <<EOF > note\ngit\nEOF\ncat /h/.gemini/skills/pdf/SKILL.md']
LEAVES = ['git diff ~/.claude/skills/pdf/SKILL.md', 'echo "name: pdf" > ~/.claude/skills/pdf/SKILL.md',
          'find ~ -name SKILL.md | grep pdf', 'cat ~/.claude/skills/pdf-forms/SKILL.md', 'cat pdf/SKILL.md',
          'cat work/skills/pdf/SKILL.md', 'cat > ~/.claude/skills/pdf/SKILL.md <<EOF\nMugs\nEOF',
          'wc -l ~/.claude/skills/pdf/SKILL.md', "sed -i 's/a/b/' ~/.claude/skills/pdf/SKILL.md",
          'echo cat ~/.claude/skills/pdf/SKILL.md', 'cat "~/.claude/skills/pdf/SKILL.md']

@pytest.mark.parametrize('command', OPENS + LEAVES)
def test_a_skill_is_opened_by_who_reads_it(command):
    found = 'pdf' in openings(stream(('Bash', dict(command=command))), ['pdf'])
    assert found == (command in OPENS or command.startswith('cat "~')) # The last has an open quotation

def test_a_skill_is_opened_by_its_tool_and_by_read():
    read, write = (dict(file_path=f'/h/.claude/skills/{name}/SKILL.md') for name in ('pdf', 'mug'))
    calls = ('Skill', dict(skill='office:pdf')), ('Read', read), ('Write', write | dict(content='x'))
    assert openings(stream(*calls), ['pdf']) == ['pdf']

def test_what_it_took_is_told_by_kind():
    usage = dict(input_tokens=10, cache_read_input_tokens=100, cache_creation_input_tokens=5, output_tokens=7)
    run = AGENTS['claude'].reader(stream(usage=usage, total_cost_usd=.5))
    assert (run.tokens, run.written, run.cached, run.usd) == (122, 7, 100, .5)

def test_a_proof_beside_a_skill_and_its_history_stay_behind(skill, script, tmp_path):
    write(skill, {'proof.json': '{}', '.git/HEAD': 'x', 'notes/proof.json': '{}'})
    found = json.loads(run_agent(script(LOOK), 'Look.', tmp_path / 'o', skill=skill).text)['seen']
    inside = f'.agents/skills/{SKILL}'
    assert found.keys() == {f'{inside}/{k}' for k in ('SKILL.md', 'scripts/note.sh', 'notes/proof.json')}

def test_what_others_have_written_is_not_believed(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path / 'state'))
    file, other = (tmp_path / 'a' / f'iteration-{n}' / 'run.json' for n in (1, 2))
    row = sign(dict(usd=.1, text='mug \ud83d'), file)
    write(tmp_path, {str(p): json.dumps(row) for p in (file, other)})
    assert read_signed(file) == dict(usd=.1, text='mug \ud83d') and read_signed(other) is None
    for damaged in (row | dict(usd=0), row | dict(signature=1), [1], 'x', None, {}):
        file.write_text(json.dumps(damaged))
        assert read_signed(file) is None
    file.write_text(json.dumps(row))
    assert (tmp_path / 'state' / 'skillrl' / 'key').stat().st_mode & 0o77 == 0
    (tmp_path / 'state' / 'skillrl' / 'key').unlink() # Another machine
    assert read_signed(file) is None
    file.unlink()
    os.mkfifo(file)
    assert read_signed(file) is None

@pytest.mark.parametrize('name', AGENTS)
def test_words_that_we_do_not_know_are_no_answer(name, tmp_path):
    path = tmp_path / 'stdout.txt'
    odd = '{"type": "result"}\n{"part": 1}\n{"type": "turn.completed", "usage": []}\n'
    for strange in ('', 'no JSON\n[1]\n', odd):
        path.write_text(strange)
        assert 'no end that we know' in _read(AGENTS[name], path, path).error

# ---- the programs themselves ----
MODELS = dict(claude='claude-sonnet-4-5', gemini='gemini-2.5-flash', mini='openai/m')
CODEX = 'model="m"\nmodel_provider="x"\n[model_providers.x]\nname="x"\nenv_key="MUG_KEY"\nbase_url='
GEMINI = '{"security": {"auth": {"selectedType": "gemini-api-key"}}}'
KEYS = dict.fromkeys(('ANTHROPIC_API_KEY', 'OPENAI_API_KEY', 'GEMINI_API_KEY', 'MUG_KEY'), 'teapot-key-991')

@pytest.fixture
def at(tmp_path, monkeypatch):
    "A function that lets all programs ask the service at an address"
    def set_up(url):
        asks = dict(npm='@ai-sdk/openai-compatible', models=dict(m={}),
                    options=dict(baseURL=url, apiKey='{env:MUG_KEY}'))
        opencode = json.dumps(dict(model='x/m', provider=dict(x=asks)))
        write(tmp_path, {'.codex/config.toml': f'{CODEX}"{url}"\n', '.gemini/settings.json': GEMINI,
                         '.config/opencode/opencode.json': opencode})
        top = url.removesuffix('/v1')
        urls = dict(ANTHROPIC_BASE_URL=top, OPENAI_BASE_URL=url, GOOGLE_GEMINI_BASE_URL=top)
        for name, value in (KEYS | urls | dict(HOME=str(tmp_path))).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv('PATH', f'{PROGRAMS}/bin', prepend=os.pathsep)
    return set_up

def try_out(agent, folder, skill=None, timeout=120.):
    return run_agent(agent, '--help write notes', folder, {}, skill, MODELS.get(agent.name, ''), timeout)

@real
@pytest.mark.parametrize('name', AGENTS)
def test_a_program_uses_the_skill_where_it_has_it(name, at, skill, tmp_path):
    for given, note in ((skill, CODE), (None, 'no code')):
        with FaultServer(rest=model) as s:
            at(s.url)
            run = try_out(AGENTS[name], tmp_path / 'o', given)
        asked = json.dumps([r['body'] for r in s.requests])
        assert (run.error, run.text) == ('', SAID)
        assert '--help write notes' in asked and (SKILL in asked) == bool(given)
        assert 'THE ANSWERS' not in asked
        assert run.opened == [SKILL]*len(run.opened) and bool(run.opened) == bool(given) and run.tokens >= 36
        assert (tmp_path / 'o' / 'outputs' / 'NOTES.md').read_text().strip() == note
        assert any(SAID in p.read_text() for p in (tmp_path / 'o').glob('s*'))
    assert agent_version(AGENTS[name])[0].isdigit()

@real
@pytest.mark.parametrize('name', AGENTS)
def test_a_program_whose_service_refuses_or_is_gone(name, at, tmp_path):
    with FaultServer(rest=error(400, 'no such mug')) as s:
        at(s.url)
        assert 'no such mug' in try_out(AGENTS[name], tmp_path / 'o', timeout=30).failure
    assert 'did not end within 6 s' in try_out(AGENTS[name], tmp_path / 'p', timeout=6).failure

@real
def test_a_run_in_which_a_tool_was_denied_has_failed(at, tmp_path):
    strict = replace(AGENTS['claude'], command='claude -p --output-format=stream-json --verbose -- {prompt}')
    with FaultServer(rest=model) as s:
        at(s.url)
        run = try_out(strict, tmp_path / 'o')
    assert 'not allowed to use Bash' in run.failure
