"""Servers that lie, stall, break off and vanish: each gets one sentence that names the address,
and no episode is lost in silence"""
import gzip, json, socket, threading, time
from contextlib import contextmanager, suppress
import pytest
from skillrl.envs.alfworld.scene import ROUTER
from skillrl.serve.krill import RemoteEnv

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

values = [(http(''), 'an object'), (http('{"observation": '), 'an object'),
          (http(b'\xff\xfe\x80'), 'an object'), (http('['*100_000), 'an object'),
          (http('<html>It works!</html>'), 'an object'), (http('null'), 'an object'),
          (http('[]'), 'an object'), (http('{}'), 'None as observation'),
          (ok(observation=None), 'observation'), (ok(observation=['look']), 'observation'),
          (ok(reward='1'), 'reward'), (ok(reward=True), 'reward'), (ok(reward=float('nan')), 'reward'),
          (ok(reward=float('inf')), 'reward'), (ok(reward=10**400), 'reward'), (ok(done='false'), 'done'),
          (ok(done=1), 'done'), (ok(available_actions='look'), 'available_actions'),
          (ok(available_actions={'look': 1}), 'available_actions'),
          (ok(available_actions=['look', None]), 'available_actions'),
          (ok(task_description=7), 'task_description'), (ok(task_category=['Pick']), 'task_category'),
          (http(b'no gzip', '200 OK', 'Content-Encoding: gzip'), 'cannot be read'),
          (http('{"error": "no such\\ntask"}', '404 Not Found'), '404 (no such task)'),
          (http('<h1>Not Found</h1>', '404 Not Found'), '404'),
          (http('', '301 Moved', 'Location: /elsewhere'), '301'), (http('', '204 No Content'), 'an object'),
          (http('x'*10**6, '400 Bad'), '400')]

@pytest.mark.parametrize('reply,says', values, ids=range(len(values)))
def test_nonsense_is_a_value_error(reply, says):
    with raw(reply) as (url, _):
        fails(url, ValueError, says)

broken = [(b'', 'broke off'), (b'garbage\r\n\r\n', 'broke off'),
          (http('{"observation": "half')[:-4], 'broke off'), (http('{}', '500 Oops'), '500'),
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

def pouring(server, piece, pause):
    "Answers `piece` by `piece`, without an end"
    conn, _ = server.accept()
    with conn, suppress(OSError):
        conn.recv(65536)
        conn.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n')
        for _ in range(100):
            conn.sendall(piece)
            time.sleep(pause)

endless = [((b' ', .1), .5, ConnectionError, 'no answer within 0.5 s'),
           ((b' '*10**6, 0), 10., ValueError, 'sent what cannot be read')]

@pytest.mark.parametrize('poured, timeout, error, says', endless)
def test_a_server_that_drips_or_floods_costs_one_deadline(poured, timeout, error, says):
    with socket.create_server(('127.0.0.1', 0)) as listener:
        threading.Thread(target=pouring, args=(listener, *poured), daemon=True).start()
        url = f'http://127.0.0.1:{listener.getsockname()[1]}'
        with pytest.raises(error, match=says):
            RemoteEnv(url, timeout=timeout).reset()
