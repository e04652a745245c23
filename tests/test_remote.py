"""Servers that lie, stall, break off and vanish: each gets one sentence that names the address,
and no episode is lost in silence"""
import gzip, json, socket, threading, urllib.error, urllib.request
from contextlib import contextmanager
import pytest
from skillrl.envs.alfworld.engine import AlfworldEnv
from skillrl.envs.alfworld.households import Household
from skillrl.envs.alfworld.router import ROUTER
from skillrl.envs.krill import RemoteEnv
from skillrl.envs.server import Server, serve

games = Household('maple').games('test', 1)

def answer_once(conn, reply, seen):
    "Read one request and send `reply`"
    got = b''
    while not got.endswith(b'}'):
        got += conn.recv(65536) or b'}' # Unread bytes would reset the connection
    seen.append(got)
    conn.sendall(reply)

@contextmanager
def raw(reply, hold=False):
    "A server that reads one request per connection and sends the bytes `reply`, whatever they are"
    listener, free = socket.create_server(('127.0.0.1', 0)), threading.Event()
    seen = []
    def run():
        while True:
            try:
                conn, _ = listener.accept()
            except OSError:
                return
            with conn:
                try:
                    answer_once(conn, reply, seen)
                    if hold:
                        free.wait(20)
                except OSError:
                    pass
    threading.Thread(target=run, daemon=True).start()
    try:
        yield f'http://127.0.0.1:{listener.getsockname()[1]}', seen
    finally:
        free.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()

def http(body, status='200 OK', *headers):
    body = body if isinstance(body, bytes) else body.encode()
    head = [f'HTTP/1.1 {status}', f'Content-Length: {len(body)}', 'Connection: close', *headers, '', '']
    return '\r\n'.join(head).encode() + body

def ok(**kw):
    return http(json.dumps(dict(observation='You are in the middle of a room.') | kw))

def fails(url, error, says, **kw):
    env = RemoteEnv(url, **kw)
    with pytest.raises(error) as e:
        env.reset()
    told = str(e.value)
    assert url in told and says in told and '\n' not in told
    with pytest.raises(RuntimeError, match='reset starts one'):
        env.step('look')

values = [
    (http(''), 'an object'),
    (http('{"observation": '), 'an object'),
    (http(b'\xff\xfe\x80'), 'an object'),
    (http('['*100_000), 'an object'),
    (http('<html>It works!</html>'), 'an object'),
    (http('null'), 'an object'),
    (http('[]'), 'an object'),
    (http('{}'), 'None as observation'),
    (ok(observation=None), 'observation'),
    (ok(observation=['look']), 'observation'),
    (ok(reward='1'), 'reward'),
    (ok(reward=True), 'reward'),
    (ok(reward=float('nan')), 'reward'),
    (ok(reward=float('inf')), 'reward'),
    (ok(reward=10**400), 'reward'),
    (ok(done='false'), 'done'),
    (ok(done=1), 'done'),
    (ok(available_actions='look'), 'available_actions'),
    (ok(available_actions={'look': 1}), 'available_actions'),
    (ok(available_actions=['look', None]), 'available_actions'),
    (ok(task_description=7), 'task_description'),
    (ok(task_category=['Pick']), 'task_category'),
    (http(b'no gzip', '200 OK', 'Content-Encoding: gzip'), 'unpacked'),
    (http('{"error": "no such\\ntask"}', '404 Not Found'), '404 (no such task)'),
    (http('<h1>Not Found</h1>', '404 Not Found'), '404'),
    (http('', '301 Moved', 'Location: /elsewhere'), '301'),
    (http('', '204 No Content'), 'an object'),
    (http('x'*10**6, '400 Bad'), '400')]

@pytest.mark.parametrize('reply,says', values, ids=range(len(values)))
def test_nonsense_is_a_value_error(reply, says):
    with raw(reply) as (url, _):
        fails(url, ValueError, says)

broken = [
    (b'', 'broke off'),
    (b'garbage\r\n\r\n', 'broke off'),
    (http('{"observation": "half')[:-4], 'broke off'),
    (http('{}', '500 Oops'), '500'),
    (http('{"error": "out of mugs"}', '503 Busy'), '503 (out of mugs)'),
    (http('', '502 Bad Gateway'), 'look into')]

@pytest.mark.parametrize('reply,says', broken, ids=range(len(broken)))
def test_no_answer_is_a_connection_error(reply, says):
    with raw(reply) as (url, _):
        fails(url, ConnectionError, says)

stalls = [b'', b'HTTP/1.1 200 OK\r\n', b'HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{"observation"']

@pytest.mark.parametrize('reply', stalls)
def test_a_stall_ends(reply):
    with raw(reply, hold=True) as (url, seen):
        fails(url, ConnectionError, 'no answer within 0.2 s', timeout=.2)
        assert len(seen)==1, 'a request that may have acted is not sent again'

def test_nobody_home():
    with raw(b'') as (url, _):
        pass
    fails(url, ConnectionError, 'no server is listening')

def test_a_password_stays_out_of_errors():
    with raw(http('{}', '401 Unauthorized')) as (url, seen):
        with pytest.raises(ValueError, match='401') as e:
            RemoteEnv(url.replace('//', '//agent:secret@')).reset()
    assert 'secret' not in str(e.value) and b'authorization: basic' in seen[0].lower()

def test_an_answer_may_be_packed_and_bare():
    answer = dict(observation='Your task is to: put a mug in desk 1.', extra=1, info='x')
    body = gzip.compress(json.dumps(answer).encode())
    with raw(http(body, '200 OK', 'Content-Encoding: gzip')) as (url, _):
        env = RemoteEnv(url + '/', max_steps=2, router=ROUTER)
        _, info = env.reset()
        task = 'put a mug in desk 1'
        assert info==dict(admissible_commands=[], won=False, task=task, category='pick', game='')
        steps = [env.step('look')[1:4] for _ in range(3)]
        assert steps==[(0., False, False), (0., False, True), (0., False, True)]

rewards = [(1, True), (1., True), (.99, False), (2, True), (-1, False), (None, False)]

@pytest.mark.parametrize('reward,won', rewards)
def test_winning_is_being_done_with_one(reward, won):
    with raw(ok(done=True, reward=reward)) as (url, _):
        env = RemoteEnv(url)
        assert env.reset()[1]['won'] is False, 'what a reset says of done and reward does not count'
        obs, r, terminated, truncated, info = env.step('look')
        assert (r, terminated, truncated, info['won'])==(float(reward or 0), True, False, won)

@pytest.mark.parametrize('action', ['', 'naïve café ☕', '\ud800', 'a'*10_000, '"}\r\n\r\n{'])
def test_any_text_travels(action):
    with serve(AlfworldEnv(games)) as s:
        env = RemoteEnv(s.url)
        env.reset()
        assert env.step(action)[0]=='Nothing happens.'

def test_closed_in_the_middle():
    s = serve(AlfworldEnv(games))
    url, env = s.url, RemoteEnv(s.url)
    env.reset()
    s.close()
    s.close()
    with pytest.raises(ConnectionError, match='no server is listening'):
        env.step('look')
    port = int(url.rsplit(':', 1)[1])
    with serve(AlfworldEnv(games), port=port):
        with pytest.raises(RuntimeError, match='reset starts one'):
            env.step('look')
        assert env.reset()[1]['game']==games[0].id

def test_restarted_in_the_middle():
    s = serve(AlfworldEnv(games))
    env, port = RemoteEnv(s.url), int(s.url.rsplit(':', 1)[1])
    env.reset()
    s.close()
    with serve(AlfworldEnv(games), port=port), pytest.raises(ValueError, match='no episode is running'):
        env.step('look')

def test_a_broken_world_is_the_servers_fault():
    class Broken(AlfworldEnv):
        def step(self, action):
            raise KeyError('mug 1')
    told = "500 .the environment failed with KeyError: 'mug 1'"
    with serve(Broken(games)) as s:
        env = RemoteEnv(s.url)
        env.reset()
        with pytest.raises(ConnectionError, match=told):
            env.step('look')

requests = [
    ('POST /reset', b'{"task_id": 7}', 400),
    ('POST /reset', b'{"task_id": "attic/1"}', 404),
    ('POST /reset', b'null', 400),
    ('POST /reset', b'\xff', 400),
    ('POST /reset', b'['*100_000, 400),
    ('POST /step', b'{"action": null}', 400),
    ('POST /step', b'{}', 400),
    ('POST /step', b'{"action": "look"}', 400),
    ('POST /', b'{}', 404),
    ('POST /step/look', b'{}', 404),
    ('GET /reset', None, 404),
    ('GET /', None, 404),
    ('PUT /step', b'{}', 404),
    ('PATCH /step', b'{}', 404),
    ('POST /reset', b' '*2_000_000, 413)]

@pytest.mark.parametrize('route,data,status', requests, ids=range(len(requests)))
def test_bad_requests_get_a_sentence(route, data, status):
    method, path = route.split()
    with serve(AlfworldEnv(games)) as s:
        headers = {'Content-Type': 'application/json'}
        request = urllib.request.Request(s.url + path, data, headers, method=method)
        try:
            got, body = urllib.request.urlopen(request, timeout=10), None
        except urllib.error.HTTPError as e:
            got, body = e.code, json.load(e)
    assert got==status and list(body)==['error'] and len(body['error']) > 10

def talk(s, data):
    with socket.create_connection(s.http.server_address, timeout=10) as c:
        c.sendall(data)
        c.shutdown(socket.SHUT_WR)
        return b''.join(iter(lambda: c.recv(65536), b''))

@pytest.mark.parametrize('data', [
    b'nonsense\r\n\r\n',
    b'POST /reset HTTP/1.1\r\nContent-Length: many\r\n\r\n',
    b'POST /reset HTTP/1.1\r\nContent-Length: -1\r\n\r\n',
    b'POST /reset HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n',
    b'POST /reset HTTP/1.1\r\nContent-Length: 90\r\n\r\n{"task_id'])
def test_bad_bytes_get_a_sentence(data, capfd):
    with serve(AlfworldEnv(games)) as s:
        assert b'{"error": ' in talk(s, data)
        assert not s.running and s.handle('POST /reset', b'')[0]==200
    assert capfd.readouterr()==('', '')

def test_who_hangs_up_disturbs_nobody(capfd):
    with serve(AlfworldEnv(games)) as s:
        for _ in range(20):
            c = socket.create_connection(s.http.server_address)
            c.sendall(b'POST /reset HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}')
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b'\1\0\0\0\0\0\0\0')
            c.close()
        silent = socket.create_connection(s.http.server_address) # Says nothing, and is not waited for
        assert RemoteEnv(s.url).reset()[1]['game']
        silent.close()
    assert capfd.readouterr()==('', '')

def test_a_failed_reset_leaves_the_running_episode():
    s = Server(AlfworldEnv(games))
    s.handle('POST /reset', b'{}')
    assert s.handle('POST /reset', b'{"task_id": "attic/1"}')[0]==404
    assert s.handle('POST /step', b'{"action": "look"}')[1]['task_description']==games[0].task
