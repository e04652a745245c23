"Chats without a service: agents that are run and ended"
import io, json, os, re, signal, subprocess, sys, time
from pathlib import Path
import pytest
from banks import rule_breaks
from skillrl.llm.ledger import ReplyCache
from skillrl.llm.command import NAME, CommandChat, _Drain, _lay_out
from skillrl.skills.skill_md import split_text
from skillrl.core.store import JsonlLog

def ask(text='Where is the mug?', system='You keep house.'):
    return [dict(role='system', content=system), dict(role='user', content=text)]

# ---- agents on the command line ----
@pytest.fixture
def agent(tmp_path):
    "Makes the command of a Python script"
    def make(source, name='agent'):
        path = tmp_path/f'{name}.py'
        path.write_text(source)
        return [sys.executable, str(path)]
    return make

def over(pid, within=20):
    "Does the process `pid` end?"
    for _ in range(int(within/.05)):
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
        try:
            if Path(f'/proc/{pid}/stat').read_text().rsplit(')')[-1].split()[0] in 'ZX':
                return True
        except OSError:
            pass
        time.sleep(.05)
    return False

def lost(command, **kw):
    r = CommandChat(command, **kw).reply(ask())
    assert (r.status, r.text, r.finish) == ('infra_error', '', '')
    return r.error

def test_stdout_is_the_answer(agent):
    command = agent('import sys; print("  In the sink.  \\n"); print("a warning", file=sys.stderr)')
    r = CommandChat(command).reply(ask())
    assert (r.status, r.text, r.finish, r.tokens) == ('ok', 'In the sink.', 'stop', 0)

def test_the_folder_an_agent_sees(agent):
    seen = 'sorted(os.listdir()), open("task.md").read(), sys.stdin.read(), pathlib.Path.cwd().name'
    source = f'import json, os, pathlib, sys; print(json.dumps([{seen}]))'
    listing, task, stdin, name = json.loads(CommandChat(agent(source)).reply(ask('Where?\n')).text)
    assert listing == ['.agents', '.claude', 'SKILL.md', 'task.md'] and name == NAME
    assert task == stdin and 'You keep house.' in task and task.endswith('\n\nWhere?\n')

def test_no_system_text_no_skill(agent):
    command = agent('import os; print(sorted(os.listdir()))')
    assert CommandChat(command).chat(system='', user='Where?')[0] == "['task.md']"

@pytest.mark.parametrize(
    'system',
    ['Be brief.', '---\nname: other\n---\nbody', '---', 'a: b: c', '\ufeff# Title\n\n---\n\nx',
     'x' * 100_000, '🫖 Spülbecken'],
)
def test_the_skill_is_one_that_agents_accept(system, tmp_path):
    folder = _lay_out(tmp_path/NAME, ask(system=system))
    assert rule_breaks(folder) == []
    front, body = split_text((folder/'SKILL.md').read_text(encoding='utf-8'))
    assert front['name'] == NAME == folder.name and front['description'] and body == system.strip()

def test_the_skill_is_word_for_word(tmp_path):
    system = '# Mugs\r\n\r\n  indented\t\n---\nend  '
    assert (_lay_out(tmp_path / NAME, ask(system=system)) / 'SKILL.md').read_bytes().decode().split(
        '---\n\n', 1)[1] == system + '\n'

def test_placeholders_and_no_shell(agent):
    command = [*agent('import json, sys; print(json.dumps(sys.argv[1:]))'), '{folder}', '--in={task}',
               '{other}', '{"a": {}}', '$HOME; echo `id` > x', '*']
    said = json.loads(CommandChat(command).reply(ask()).text)
    assert Path(said[0]).name == NAME and said[1] == f'--in={said[0]}/task.md'
    assert said[2:] == ['{other}', '{"a": {}}', '$HOME; echo `id` > x', '*']

def test_the_task_is_no_argument(agent):
    command = agent('import sys; print(len(sys.argv), len(sys.stdin.read()))')
    assert CommandChat(command).reply(ask('--yolo ' + 'x'*3_000_000, system='')).text == '1 3000007'

def test_an_agent_that_does_not_read(agent):
    assert CommandChat(agent('print("no")')).reply(ask('x'*3_000_000)).text == 'no'

def test_exit_codes(agent):
    assert lost(agent('import sys; print("half an answer"); sys.exit("a\\nrate limit")'),
                model='robot').startswith('robot ended with code 1 (rate limit)')
    assert 'ended with code 7 (half)' in lost(agent('import sys; print("half"); sys.exit(7)'))
    assert 'ended with code 2 (it said nothing)' in lost(agent('import os; os._exit(2)'))
    assert 'was ended by signal 15' in lost(agent('import os; os.kill(os.getpid(), 15)'))

def test_a_missing_program(tmp_path):
    assert "there is no program 'mug-agent': install it" in lost(['mug-agent', '-p'])
    (plain := tmp_path/'plain').write_text('print(1)')
    assert 'there is no program' in lost([str(plain)])
    (broken := tmp_path/'broken').write_text('#!/no/such/interpreter\n')
    broken.chmod(0o755)
    assert 'Error' in lost([str(broken)])

def test_a_program_beside_us_is_found_but_only_by_its_path(agent, tmp_path, monkeypatch):
    script = tmp_path/'mug-agent'
    script.write_text(f'#!{sys.executable}\nprint("hello")\n')
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert CommandChat(['./mug-agent']).reply(ask()).text == 'hello'
    assert 'there is no program' in lost(['mug-agent'])

def test_a_timeout_ends_the_whole_group(agent, tmp_path):
    "Agent, child and grandchild; all of them keep stdout open"
    source = f'''
import subprocess, sys, time
inner = "import os, time; open({str(tmp_path/'pids')!r}, 'a').write(f'{{os.getpid()}} '); time.sleep(3600)"
start = f"p = subprocess.Popen([sys.executable, '-c', {{inner!r}}])"
outer = f"import subprocess, sys; {{start}}; exec({{inner!r}})"
p = subprocess.Popen([sys.executable, '-c', outer])
exec(inner)'''
    began = time.monotonic()
    assert re.match(r'robot did not end within 6 s \(it said nothing\): raise timeout',
                    lost(agent(source), model='robot', timeout=6))
    assert time.monotonic() - began < 40
    pids = (tmp_path/'pids').read_text().split()
    assert len(pids) == 3 and all(map(over, pids))

def test_a_child_left_behind_ends_with_its_agent(agent):
    child = 'subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])'
    command = agent(f'import subprocess, sys; print({child}.pid)')
    began = time.monotonic()
    pid = CommandChat(command, timeout=60).reply(ask()).text
    assert over(pid) and time.monotonic() - began < 30

def test_a_child_that_leaves_the_group_does_not_hold_us(agent):
    sleep = 'subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)'
    began = time.monotonic()
    left = agent(f'import subprocess, sys; print({sleep}.pid, flush=True)')
    pid = CommandChat(left, timeout=50).reply(ask()).text
    assert time.monotonic() - began < 20
    os.kill(int(pid), signal.SIGKILL)

ASKS = 'from skillrl.llm.command import CommandChat; CommandChat({!r}).chat(system="", user="x")'

def test_ctrl_c_ends_the_agent(agent, tmp_path):
    source = f'''
import os, time
open({str(tmp_path/'pid')!r}, 'w').write(str(os.getpid()) + '\\n')
time.sleep(3600)'''
    run = ASKS.format(agent(source))
    ours = subprocess.Popen(
        [sys.executable, '-c', f'import signal; signal.signal(2, signal.default_int_handler); {run}'],
        stderr=subprocess.PIPE)
    pid = wait_for(tmp_path/'pid')
    ours.send_signal(signal.SIGINT)
    assert b'KeyboardInterrupt' in ours.communicate(timeout=60)[1] and over(pid)

def test_the_end_of_our_process_ends_agents_of_threads_it_left(agent, tmp_path):
    source = f'''
import os, time
open({str(tmp_path/'pid')!r}, 'w').write(str(os.getpid()) + '\\n')
time.sleep(3600)'''
    run = f'''
import threading, pathlib, time
from skillrl.llm.command import CommandChat
reply, question = CommandChat({agent(source)!r}).reply, [dict(role="user", content="x")]
threading.Thread(target=reply, args=(question,), daemon=True).start()
while not any(p.read_text() for p in pathlib.Path({str(tmp_path)!r}).glob('pid')): time.sleep(.01)'''
    ours = subprocess.Popen([sys.executable, '-c', run])
    assert ours.wait(60) == 0 and over(wait_for(tmp_path/'pid'))

def wait_for(path):
    for _ in range(1200):
        if path.exists() and (text := path.read_text()).endswith('\n'):
            return int(text)
        time.sleep(.05)
    raise AssertionError(f'{path.name} was not written')

def test_output_is_capped(agent):
    r = CommandChat(agent('print("la" * 5_000_000)'), most=1000).reply(ask())
    assert (r.status, r.finish, r.text) == ('ok', 'length', 'la'*500)
    r = CommandChat(agent('import sys; sys.stderr.write("e" * 5_000_000); print("fine")'), most=1000).reply(
        ask()
    )
    assert (r.finish, r.text) == ('stop', 'fine')
    assert len(lost(agent('import sys; sys.exit("e" * 5_000_000)'))) < 500

def test_what_is_too_much_is_not_kept_in_memory():
    pipe = io.BytesIO(b'la' * 1_000_000)
    drain = _Drain(pipe, 1000)
    drain.join(60)
    assert len(drain.kept) == 1001 and pipe.closed

def test_output_that_is_no_text(agent):
    r = CommandChat(agent(r'import sys; sys.stdout.buffer.write(b"caf\xe9 \xff\x00 mug")')).reply(ask())
    assert r.ok and r.text == 'caf\ufffd \ufffd mug'

def test_silence_is_a_refusal(agent):
    text, usage = CommandChat(agent('pass')).chat(system='', user='Where?')
    assert text == '' and 'gave no answer' in usage['refused']

# ---- what an agent may know ----
def test_the_environment_holds_no_secret(agent, monkeypatch):
    secrets = dict(OPENAI_API_KEY='sk-1', AWS_SECRET_ACCESS_KEY='x', GITHUB_TOKEN='x',
                   HTTPS_PROXY='http://u:p@h', SSH_AUTH_SOCK='x', PYTHONPATH='x', LD_PRELOAD='')
    for k, v in secrets.items():
        monkeypatch.setenv(k, v)
    seen = json.loads(
        CommandChat(agent('import json, os; print(json.dumps(dict(os.environ)))'), env=dict(MUG='1', N=3))
        .reply(ask())
        .text
    )
    assert not secrets.keys() & seen.keys()
    assert seen['PATH'] == os.environ['PATH'] and (seen['MUG'], seen['N']) == ('1', '3')

def test_its_own_key_is_not_repeated(agent, tmp_path):
    key = 'Zq7-mug-and-spoon_0451'
    command = agent(
        'import os, sys; k = os.environ["AGENT_KEY"]; print("key", k, file=sys.stderr); print("key", k); '
        'sys.exit(int(sys.stdin.read().split()[-1]))'
    )
    chat = CommandChat(command, env=dict(AGENT_KEY=key), log=JsonlLog(tmp_path / 'log.jsonl'),
                       cache=ReplyCache(tmp_path / 'cache'))
    assert chat.reply(ask('0')).text == 'key [redacted]' and 'key [redacted]' in chat.reply(ask('1')).error
    written = [p for p in tmp_path.rglob('*') if p.is_file()]
    assert not [p.name for p in written if key in p.read_text()]
    assert key not in repr(chat)

# ---- folders ----
def test_folders_are_fresh_and_go(agent):
    command = agent('import os; print(os.path.exists("left"), os.getcwd()); open("left", "w").close()')
    seen = [CommandChat(command).reply(ask()).text.split() for _ in range(2)]
    assert [s[0] for s in seen] == ['False']*2 and seen[0][1] != seen[1][1]
    assert not any(Path(s[1]).parent.exists() for s in seen)

def test_folders_go_after_a_failure_too(agent, tmp_path, monkeypatch):
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path/'tmp'))
    (tmp_path/'tmp').mkdir()
    (lost(agent('import sys; sys.exit(1)')), lost(['mug-agent']),
     lost(agent('import time; time.sleep(3600)'), timeout=0.5))
    assert list((tmp_path/'tmp').iterdir()) == []

MOVE = """
import os, pathlib
here = pathlib.Path.cwd()
there = pathlib.Path({there!r})
for k in ({root!r},): here = here.parent if k else here
os.chdir('/')
here.rename(there/'moved')
here.{instead}
print('said')
"""

@pytest.mark.parametrize('root', [False, True])
@pytest.mark.parametrize('instead', ['symlink_to(there/"moved")', 'mkdir()', 'name'])
def test_what_a_work_folder_has_become_a_link_to_is_left_alone(agent, tmp_path, root, instead):
    (there := tmp_path/'there').mkdir()
    (there/'mine.txt').write_text('Zq7-mug-and-spoon_0451')
    command = agent(MOVE.format(there=str(there), root=root, instead=instead))
    CommandChat(command).reply(ask())
    assert (there/'mine.txt').read_text() == 'Zq7-mug-and-spoon_0451'

# ---- like any other chat ----
def test_a_cache_knows_the_command(agent, tmp_path):
    cache = ReplyCache(tmp_path / 'cache')
    command = agent(f'open({str(tmp_path / "runs")!r}, "a").write("x"); print("hi")')
    def runs(*more):
        r = CommandChat([*command, *more], model='m', cache=cache).reply(ask())
        return r.cached, len((tmp_path / 'runs').read_text())
    assert [runs(), runs(), runs('--fast')] == [(False, 1), (True, 1), (False, 2)]

@pytest.mark.parametrize('command', ['claude -p', [], None, ['x', 3], [None]])
def test_a_command_is_a_list(command):
    with pytest.raises(ValueError, match='command is .*: give a list of text'):
        CommandChat(command)

@pytest.mark.parametrize('timeout', [0, -1, float('nan')])
def test_a_timeout_is_above_0(timeout):
    with pytest.raises(ValueError, match='timeout is .*: give seconds above 0'):
        CommandChat(['x'], timeout=timeout)
