"Servers that never end, and a Ctrl-C: every call has a deadline and a bound, and what was answered is kept"
import gzip, signal, subprocess, sys, threading, time
import pytest
from test_backends import over
from faults import Answer, FaultServer, drips, error, said, slow
from skillrl.llm.reply import Outage
from skillrl.llm.openai_client import OpenAIChatClient, OpenAIEmbedder
from skillrl.core.store import JsonlLog
from skillrl.core.concurrency import worker_threads

def ask(text='Why was the mug not accepted?'):
    return [dict(role='user', content=text)]

def client(server, **kw):
    return OpenAIChatClient(
        'mini', **dict(base_url=server.url, api_key='none', retries=0, timeout=0.3, pause=lambda t: None) | kw
    )

def ended(f, *args):
    "What `f` returns; a call that never ends fails, and does not hold the tests"
    return worker_threads(1, threading.Event()).submit(f, *args).result(60)

# ---- a deadline for the whole ----
@pytest.mark.parametrize('what', ['headers', 'body'])
def test_a_server_that_drips_does_not_outlive_the_timeout(what):
    with FaultServer(rest=drips(what)) as s:
        r = ended(client(s).reply, ask())
        assert r.status=='infra_error' and 'no answer within 0.3 s' in r.error and s.count==1
        ended(client(s, retries=2).reply, ask())
        assert s.count==1 + 3

def test_a_connection_that_was_used_before_has_a_deadline_too():
    with FaultServer(said('Rinse it.'), rest=drips('headers')) as s:
        c = client(s)
        assert c.reply(ask()).ok
        assert 'no answer within 0.3 s' in ended(c.reply, ask()).error

def test_a_server_that_does_not_read_has_a_deadline():
    with FaultServer() as s:
        s.http.RequestHandlerClass.do_POST, post = (
            lambda self: s.over.wait(),
            s.http.RequestHandlerClass.do_POST,
        )
        try:
            r = ended(client(s).reply, ask('mug ' * 5_000_000))
        finally:
            s.http.RequestHandlerClass.do_POST = post
        assert not r.ok

# ---- a bound on the body ----
def big(n):
    return dict(said().body, padding=' ' * n)

@pytest.mark.parametrize('status', [200, 400])
def test_a_body_without_end_is_not_read_to_its_end(status):
    "100 MB of nothing, packed; an error may be as long as an answer"
    blanks = gzip.compress(bytes(100_000_000), 1)
    with FaultServer(rest=Answer(blanks, status, headers={'Content-Encoding': 'gzip'})) as s:
        r = client(s, timeout=60).reply(ask())
        assert not r.ok and 'longer than 67,108,864 bytes' in r.error
        embedder = OpenAIEmbedder('small', base_url=s.url, api_key='none', retries=0)
        with pytest.raises(Outage, match='longer than 67,108,864 bytes'):
            embedder.encode(['mug'])

def test_a_long_answer_within_the_bound_is_read():
    with FaultServer(rest=Answer(big(20_000_000))) as s:
        assert client(s, timeout=60).reply(ask()).ok

# ---- a stop ----
def test_a_stop_ends_a_request_and_its_retries():
    stop = threading.Event()
    with FaultServer(said(), rest=slow(3600)) as s:
        c = client(s, timeout=3600, retries=4)
        assert c.reply(ask()).ok
        threading.Timer(.3, stop.set).start()
        r = worker_threads(1, stop).submit(c.reply, ask()).result(60)
        assert r.status=='infra_error' and 'stopped' in r.error and s.count==2

def test_a_pause_between_two_tries_ends_with_a_stop():
    stop = threading.Event()
    with FaultServer(said(), rest=error(503, retry_after='600')) as s:
        c = OpenAIChatClient('mini', base_url=s.url, api_key='none')
        assert c.reply(ask()).ok
        threading.Timer(.3, stop.set).start()
        r = worker_threads(1, stop).submit(c.reply, ask()).result(60)
        assert 'stopped' in r.error and s.count==2

# ---- Ctrl-C, in a process of its own ----
RUN = '''
import signal, sys
# A shell that runs the tests in its background has it ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
from skillrl.llm.openai_client import OpenAIChatClient
import shlex
from skillrl.llm.command import use_sandbox
from skillrl.skillopt.eval_env import program_chat
from skillrl.core.store import JsonlLog
def ask(text): return [dict(role='user', content=text)]
def client(url, **kw): return OpenAIChatClient('mini', base_url=url, api_key='none', timeout=3600, **kw)
'''

def interrupted(code, *args, ready):
    "Exit code of a process that runs `code` and gets Ctrl-C, and what it wrote to stderr"
    p = subprocess.Popen([sys.executable, '-c', RUN + code, *map(str, args)], stderr=subprocess.PIPE,
                         text=True)
    until = time.monotonic() + 60
    while not ready() and time.monotonic() < until:
        time.sleep(.02)
    time.sleep(.3)
    p.send_signal(signal.SIGINT)
    err = p.communicate(timeout=60)[1]
    return p.returncode, err

def number(request):
    return int(request['body']['messages'][0]['content'].split()[-1])

faults = dict(silent=slow(3600), drips=drips('body'), busy=error(503, retry_after='600'))

@pytest.mark.parametrize('fault', faults.values(), ids=faults)
def test_ctrl_c_ends_a_batch_and_keeps_what_was_answered(tmp_path, fault):
    log = tmp_path/'log.jsonl'
    with FaultServer(rest=lambda r: fault if number(r) % 3==1 else said(f'Reply {number(r)}')) as s:
        batch = '[ask(f"Episode {i}") for i in range(12)]'
        code = f'client(sys.argv[1], log=JsonlLog(sys.argv[2]), parallel=4).replies({batch})'
        rc, err = interrupted(
            code, s.url, log, ready=lambda: {0, 1, 2} <= {number(r) for r in s.requests}
        )
    assert rc in (130, -signal.SIGINT) and 'KeyboardInterrupt' in err
    rows = JsonlLog(log).read()
    assert {0, 2} <= {int(r['text'].split()[-1]) for r in rows if r['status']=='ok'}
    assert all('stopped' in r['error'] for r in rows if r['status']!='ok')

def test_ctrl_c_ends_one_call():
    with FaultServer(rest=slow(3600)) as s:
        rc, err = interrupted('client(sys.argv[1]).reply(ask("Why?"))', s.url, ready=lambda: s.count)
    assert rc in (130, -signal.SIGINT)

def test_ctrl_c_ends_rollouts():
    code = '''
from skillrl.skillopt.qa import SimpleQAEnv
from skillrl.skillopt.rollout import run_rollout
items = [dict(id=str(i), question=f'Where is mug {i}', answers=['sink']) for i in range(12)]
env = SimpleQAEnv(train_items=items, val_items=[], test_items=[])
run_rollout(env, 'Look in the sink.', items, target_client=client(sys.argv[1]))'''
    with FaultServer(rest=slow(3600)) as s:
        rc, err = interrupted(code, s.url, ready=lambda: s.count >= 4)
    assert rc in (130, -signal.SIGINT), err

AGENT = """
import os, pathlib, time
marks = pathlib.Path({marks!r})
is_first = not any(marks.iterdir())
(marks/str(os.getpid())).touch()
time.sleep(0 if is_first else 3600)
print('done')
"""

def test_ctrl_c_ends_agents(tmp_path):
    "The first question goes alone, all others after its answer"
    source = AGENT.format(marks=str(tmp_path))
    batch = '[ask(f"Episode {i}") for i in range(6)]'
    code = f"""
use_sandbox('off')
program_chat(shlex.join([sys.executable, '-c', {source!r}])).replies({batch})"""
    rc, err = interrupted(code, ready=lambda: len([*tmp_path.iterdir()]) >= 5)
    assert rc in (130, -signal.SIGINT), err
    pids = [p.name for p in tmp_path.iterdir()]
    assert len(pids) >= 5 and all(map(over, pids))
