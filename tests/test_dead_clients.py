"Clients that die, drip, or take everything do not keep others from a server of ours"

import http.client, json, socket, time
from contextlib import ExitStack, closing
import pytest
from skillrl.envs import server as serving, sessions
from skillrl.envs.alfworld.engine import AlfworldEnv
from skillrl.envs.alfworld.households import Household
from skillrl.envs.server import serve
from skillrl.envs.sessions import SESSION

games = Household('maple').games('test', 1)
HEAD = b'POST /reset HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n'

def wait_until(is_so):
    until = time.monotonic() + 5
    while not is_so() and time.monotonic() < until:
        time.sleep(.01)
    assert is_so()

def connect(s, source='127.0.0.1'):
    return closing(http.client.HTTPConnection(*s.http.server_address, timeout=10, source_address=(source, 0)))

def ask(c, route, body=None, **headers):
    "Status, and the session"
    headers |= {'Content-Type': 'application/json', 'Host': 'localhost'}
    c.request('POST', route, json.dumps(body or {}), headers)
    r = c.getresponse()
    r.read()
    return r.status, r.headers.get(SESSION)

LOOK = {'action': 'look'}

@pytest.mark.parametrize('named', [{}, {SESSION: 'new'}], ids=['without a session', 'with one'])
def test_clients_that_died_make_room(named, monkeypatch):
    "256 times connect, begin an episode, die"
    monkeypatch.setattr(sessions, 'AWAY', 0.)
    with serve(AlfworldEnv(games)) as s, connect(s) as alive:
        assert ask(alive, '/reset')[0] == 200
        for _ in range(s.most):
            with connect(s) as c:
                assert ask(c, '/reset', **named)[0] == 200
        wait_until(lambda: len(s.http.open) == 1)
        with connect(s) as c:
            assert ask(c, '/reset')[0] == 200
        assert len(s.sessions) == s.most
        assert ask(alive, '/step', LOOK)[0] == 200 # Whoever lives keeps its own, the oldest of all

def test_of_two_that_died_the_first_goes_first():
    with serve(AlfworldEnv(games), most=2) as s:
        ids = []
        for _ in range(2):
            with connect(s) as c:
                ids.append(ask(c, '/reset')[1])
        wait_until(lambda: not s.http.open)
        with connect(s) as c:
            ask(c, '/reset')
        assert ids[0] not in s.sessions and ids[1] in s.sessions

def test_a_new_connection_never_takes_over_a_lost_session_without_its_id():
    with serve(AlfworldEnv(games)) as s:
        with connect(s) as c:
            _, id = ask(c, '/reset')
        wait_until(lambda: not s.http.open)
        for headers in ({}, {'Connection': 'close'}):
            with connect(s) as c:
                assert ask(c, '/step', LOOK, **headers)[0] == 409
        assert s.sessions[id].env.steps == 0
        with connect(s) as c:
            assert ask(c, '/step', LOOK, **{SESSION: id})[0] == 200

def test_an_address_cannot_keep_all_sessions():
    with serve(AlfworldEnv(games), most=4) as s, ExitStack() as stack:
        many = [stack.enter_context(connect(s)) for _ in range(5)]
        assert [ask(c, '/reset')[0] for c in many] == [200]*4 + [503]
        other, third = (stack.enter_context(connect(s, '127.0.0.2')) for _ in range(2))
        assert ask(other, '/reset')[0] == 200 # Three and one
        assert ask(many[0], '/step', LOOK)[0] == 400 # It was used least recently
        assert ask(third, '/reset')[0] == 200 # Two and two
        with connect(s, '127.0.0.2') as c:
            assert ask(c, '/reset')[0] == 503
        assert [ask(c, '/step', LOOK)[0] for c in (other, third, *many[2:4])] == [200]*4

def test_an_address_cannot_keep_all_connections(monkeypatch):
    monkeypatch.setattr(serving, 'CONNECTIONS', 4)
    with serve(AlfworldEnv(games)) as s, ExitStack() as stack:
        for _ in range(4):
            half = stack.enter_context(socket.create_connection(s.http.server_address))
            half.sendall(HEAD)
        wait_until(lambda: len(s.http.open) == 4)
        with connect(s, '127.0.0.2') as c:
            assert ask(c, '/reset')[0] == 200
        assert len(s.http.open) <= 4

def test_half_a_head_is_bounded_in_time(monkeypatch):
    monkeypatch.setattr(serving, 'ASK', .3)
    with serve(AlfworldEnv(games)) as s, socket.create_connection(s.http.server_address, timeout=5) as half:
        half.sendall(HEAD)
        began = time.monotonic()
        assert b' 408 ' in half.recv(1000)
        assert time.monotonic() < began + 3
