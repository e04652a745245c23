"Programs that are run and ended, and those that answer questions"
import io, json, os, shlex, signal, subprocess, sys, time
from pathlib import Path
import pytest
from skillrl.llm.command import _Drain, run_program, safe_env
from skillrl.skillopt.eval_env import program_chat

def ask(text='Where is the mug?', system='You keep house.'):
    return [dict(role='system', content=system), dict(role='user', content=text)]

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

def ran(command, folder, timeout=60, **kw):
    return run_program(command, folder, safe_env({}), timeout, **kw)

def answer(command, *question):
    return program_chat(shlex.join(command)).reply(ask(*question))

def lost(command):
    r = answer(command)
    assert (r.status, r.text, r.finish) == ('infra_error', '', '')
    return r.error

# ---- a program that answers ----
def test_stdout_is_the_answer(agent):
    command = agent('import sys; print("  In the sink.  \\n"); print("a warning", file=sys.stderr)')
    r = answer(command)
    assert (r.status, r.text, r.finish, r.tokens) == ('ok', 'In the sink.', 'stop', 0)

def test_instructions_and_question_come_on_stdin_and_never_as_an_argument(agent):
    command = agent('import sys; t = sys.stdin.read(); print(len(sys.argv), len(t), t[:20], t[-9:])')
    long = 'x'*3_000_000
    assert answer(command, f'--yolo {long} Where?\n').text == '1 3000032 You keep house.\n\n--y x Where?'
    assert answer(agent('print("no")'), long).text == 'no'

def test_placeholders_and_no_shell(agent):
    command = [*agent('import json, sys; print(json.dumps(sys.argv[1:] + [sys.stdin.read()]))'),
               '--in={task}', '{prompt}', '{other}', '{"a": {}}', '$HOME; echo `id` > x', '*']
    said = json.loads(answer(command).text)
    assert said[0].startswith('--in=/') and said[1] == 'You keep house.\n\nWhere is the mug?'
    assert said[2:] == ['{other}', '{"a": {}}', '$HOME; echo `id` > x', '*', '']

def test_exit_codes(agent):
    assert 'ended with code 1 (rate limit)' in lost(
        agent('import sys; print("half an answer"); sys.exit("a\\nrate limit")'))
    assert 'ended with code 7 (half)' in lost(agent('import sys; print("half"); sys.exit(7)'))
    assert 'ended with code 2 (it said nothing)' in lost(agent('import os; os._exit(2)'))
    assert 'was ended by signal 15' in lost(agent('import os; os.kill(os.getpid(), 15)'))
    assert len(lost(agent('import sys; sys.exit("e" * 5_000_000)'))) < 500

def test_a_missing_program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ('plain', 'broken', 'mug-agent'):
        Path(name).write_text('#!/no/such/interpreter\n')
    Path('broken').chmod(0o755)
    Path('mug-agent').write_text(f'#!{sys.executable}\nprint("hello")\n')
    Path('mug-agent').chmod(0o755)
    for command in (['mug-agent', '-p'], ['./plain']):
        with pytest.raises(ValueError, match='there is no'):
            program_chat(shlex.join(command))
    assert 'broken' in lost(['./broken']) and answer(['./mug-agent']).text == 'hello'

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
    answer(agent(MOVE.format(there=str(there), root=root, instead=instead)))
    assert (there/'mine.txt').read_text() == 'Zq7-mug-and-spoon_0451'

# ---- a program that is run and ended ----
def test_a_timeout_ends_the_whole_group(agent, tmp_path):
    "Agent, child and grandchild; all of them keep stdout open"
    source = f'''
import subprocess, sys, time
inner = "import os, time; open({str(tmp_path/'pids')!r}, 'a').write(f'{{os.getpid()}} '); time.sleep(3600)"
start = f"p = subprocess.Popen([sys.executable, '-c', {{inner!r}}])"
outer = f"import subprocess, sys; {{start}}; exec({{inner!r}})"
p = subprocess.Popen([sys.executable, '-c', outer])
exec(inner)'''
    assert ran(agent(source), tmp_path, 6).code is None
    pids = (tmp_path/'pids').read_text().split()
    assert len(pids) == 3 and all(map(over, pids))

@pytest.mark.parametrize('leaves', [False, True])
def test_a_child_left_behind_does_not_hold_us(agent, tmp_path, leaves):
    "It ends with its agent, unless it has left the group"
    child = f'[sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session={leaves}'
    command = agent(f'import subprocess, sys; print(subprocess.Popen({child}).pid, flush=True)')
    result = ran(command, tmp_path, 50)
    pid = int(result.out)
    assert result.code == 0 # None where the time-out ended it
    if leaves:
        os.kill(pid, signal.SIGKILL)
    assert over(pid)

def test_output_is_capped(agent, tmp_path):
    assert ran(agent('print("la" * 5_000_000)'), tmp_path, most=1000).out == 'la'*500
    pipe = io.BytesIO(b'la' * 1_000_000)
    drain = _Drain(pipe, 1000)
    drain.join(60)
    assert len(drain.kept) == 1000 and pipe.closed

SLEEPER = '''
import os, time
open({!r}, 'w').write(str(os.getpid()) + '\\n')
time.sleep(3600)'''
ASKS = 'from skillrl.skillopt.eval_env import program_chat; chat = program_chat({!r})'

def test_ctrl_c_ends_the_agent(agent, tmp_path):
    run = ASKS.format(shlex.join(agent(SLEEPER.format(str(tmp_path/'pid')))))
    hears = 'import signal; signal.signal(2, signal.default_int_handler)'
    ours = subprocess.Popen([sys.executable, '-c', f'{hears}; {run}; chat.chat(system="", user="x")'],
                            stderr=subprocess.PIPE)
    pid = wait_for(tmp_path/'pid')
    ours.send_signal(signal.SIGINT)
    assert b'KeyboardInterrupt' in ours.communicate(timeout=60)[1] and over(pid)

def test_the_end_of_our_process_ends_agents_of_threads_it_left(agent, tmp_path):
    run = f'''
import threading, pathlib, time
{ASKS.format(shlex.join(agent(SLEEPER.format(str(tmp_path/'pid')))))}
threading.Thread(target=chat.reply, args=([dict(role="user", content="x")],), daemon=True).start()
while not pathlib.Path({str(tmp_path/'pid')!r}).exists(): time.sleep(.01)'''
    ours = subprocess.Popen([sys.executable, '-c', run])
    assert ours.wait(60) == 0 and over(wait_for(tmp_path/'pid'))

def wait_for(path):
    for _ in range(1200):
        if path.exists() and (text := path.read_text()).endswith('\n'):
            return int(text)
        time.sleep(.05)
    raise AssertionError(f'{path.name} was not written')
