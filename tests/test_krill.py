"""A server that speaks Krill's protocol among strangers: whom it answers and how, whose episode a step acts
in, and how much of it clients can take that die, drip or want everything"""
import http.client, json, re, socket, threading, time
from contextlib import ExitStack, closing, contextmanager, suppress
import pytest
from skillrl.serve import sessions
from skillrl.envs.alfworld.engine import AlfworldEnv
from skillrl.envs.alfworld.households import Household
from skillrl.envs.alfworld.world import HouseholdSuite
from skillrl.serve.krill import _SESSION, RemoteEnv, Server
from skillrl.serve.sessions import _BODY
from skillrl.envs.base import ServerSuite

games = Household('maple').games('test', 1)
JSON = {'Content-Type': 'application/json'}
LOOK = {'action': 'look'}
HEAD = 'POST /reset HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n'
LAST = HEAD + 'Connection: close\r\n'

@pytest.fixture
def server():
    with Server(AlfworldEnv(games)) as s:
        yield s

def connect(s, source='127.0.0.1'):
    return closing(http.client.HTTPConnection(*s.server_address, timeout=10, source_address=(source, 0)))

def ask(c, route, body=None, method='POST', **headers):
    "Status, answer and session of one request on connection `c`"
    data = body if isinstance(body, (bytes, str)) else json.dumps(body or {})
    c.request(method, route, data, JSON | {'Host': 'localhost'} | headers)
    r = c.getresponse()
    return r.status, json.loads(r.read()), r.headers.get(_SESSION)

def once(s, *args, **kw):
    with connect(s) as c:
        return ask(c, *args, **kw)

def talk(s, data):
    "What the server answers to raw bytes until it hangs up"
    with socket.create_connection(s.server_address, timeout=10) as c:
        c.sendall(data)
        return b''.join(iter(lambda: c.recv(65536), b''))

def connections(s):
    return s.inner.server_state.connections

def wait_until(is_so):
    until = time.monotonic() + 5
    while not is_so() and time.monotonic() < until:
        time.sleep(.01)
    assert is_so()

# ---- what is answered, and how ----

requests = [
    ('POST /reset', b'{"task_id": 7}', 400), ('POST /reset', b'{"task_id": "attic/1"}', 404),
    ('POST /reset', b'null', 400), ('POST /reset', b'[]', 400), ('POST /reset', b'\xff', 400),
    ('POST /reset', b'['*100_000, 400), ('POST /step', b'{"action": null}', 400), ('POST /step', b'{}', 400),
    ('POST /step', b'{"action": "look"}', 400), ('POST /', b'{}', 404), ('POST /step/look', b'{}', 404),
    ('GET /reset', b'', 404), ('GET /', b'', 404), ('PUT /step', b'{}', 404), ('PATCH /step', b'{}', 404),
    ('POST /reset', b' '*(_BODY + 1), 413), ('POST /reset', b' '*6*_BODY, 413)]

@pytest.mark.parametrize('route, data, status', requests, ids=range(len(requests)))
def test_bad_requests_get_a_sentence(server, route, data, status):
    method, path = route.split()
    got, said, _ = once(server, path, data, method)
    assert got == status and list(said) == ['error'] and len(said['error']) > 10

POST = 'POST /reset HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n'
odd_heads = ['nonsense', 'POST /reset HTTP/2', POST + 'Name : kitchen',
             POST + 'Host: localhost', POST + 'Content-Length: many', POST + 'Content-Length: -1',
             POST + 'Content-Length: 0\r\nContent-Length: 9']

@pytest.mark.parametrize('head', odd_heads, ids=range(len(odd_heads)))
def test_odd_heads_are_refused(server, head, capfd):
    assert talk(server, f'{head}\r\n\r\n'.encode()).startswith(b'HTTP/1.1 400 ') and not server.sessions
    assert RemoteEnv(server.url).reset()[1]['game']
    assert capfd.readouterr() == ('', '')

def test_requests_may_be_sent_ahead(server):
    requests = f'{HEAD}\r\n{{}}'.encode()*2 + f'{LAST}\r\n{{}}'.encode()
    assert talk(server, requests).count(b'HTTP/1.1 200 OK') == 3

def test_a_client_that_waits_to_be_asked_is_asked(server):
    with socket.create_connection(server.server_address, timeout=10) as c:
        c.sendall(f'{LAST}Expect: 100-continue\r\n\r\n'.encode())
        assert c.recv(100).startswith(b'HTTP/1.1 100 Continue')
        c.sendall(b'{}')
        assert b''.join(iter(lambda: c.recv(65536), b'')).startswith(b'HTTP/1.1 200 OK')

STRANGERS = ['evil.example', 'evil.test:80', '', ' ', '0.0.0.0', '127.0.0.1.evil.test', 'localhost.evil.test']

@pytest.mark.parametrize('status, says, headers', [
    *((403, 'is not served here', {'Host': host}) for host in STRANGERS),
    (403, 'from the page', {'Origin': 'http://evil.example'}), (403, 'from the page', {'Origin': 'null'}),
    (415, 'send application/json', {'Content-Type': 'text/plain'}),
    (415, 'send application/json', {'Content-Type': 'application/jsonp'})])
def test_pages_and_foreign_names_are_refused(server, status, says, headers):
    got, said, _ = once(server, '/reset', **headers)
    assert got == status and says in said['error'] and not server.sessions
    assert once(server, '/reset', **{'Content-Type': 'application/json; charset=utf-8'})[0] == 200

# ---- whose episode ----

def test_two_clients_never_share_an_episode(server):
    spellings = server.url, server.url.replace('127.0.0.1', 'localhost'), server.url + '/'
    envs = [RemoteEnv(url) for url in spellings]
    for e, g in zip(envs, games):
        e.reset(options={'game': g})
    assert [e.step('look')[4]['task'] for e in envs] == [g.task for g in games[:3]]
    played = sorted((s.env.game.id, s.env.steps) for s in server.sessions.values())
    assert played == sorted((g.id, 1) for g in games[:3])

def test_clients_without_sessions_play_on_their_own_connection(server):
    "Krill's client keeps its connection and knows no session"
    with connect(server) as one, connect(server) as two:
        for c, g in ((one, games[0]), (two, games[1])):
            assert ask(c, '/reset', {'task_id': g.id})[0] == 200
        assert ask(one, '/reset', {'task_id': 'attic/1'})[0] == 404 # Its episode goes on
        for c, g in ((one, games[0]), (two, games[1]), (one, games[0])):
            assert ask(c, '/step', LOOK)[1]['task_description'] == g.task
        status, said, _ = once(server, '/step', LOOK)
        assert status == 400 and 'no episode is running here' in said['error']

def test_a_new_connection_never_takes_over_a_lost_session_without_its_id(server):
    "Who comes from the same address may be somebody else"
    _, _, id = once(server, '/reset')
    wait_until(lambda: not connections(server))
    for headers in ({}, {'Connection': 'close'}):
        assert once(server, '/step', LOOK, **headers)[0] == 400
    for wrong in ('new', 'x'*32, id[:-1]):
        assert once(server, '/step', LOOK, **{_SESSION: wrong})[0] == 400
    assert re.fullmatch('[0-9a-f]{32}', id) and server.sessions[id].env.steps == 0
    assert once(server, '/step', LOOK, **{_SESSION: id})[0] == 200

def test_sessions_are_bounded_and_expire():
    with Server(AlfworldEnv(games), most=3) as s:
        envs = [RemoteEnv(s.url) for _ in range(4)]
        for e in envs[:3] + envs[:3]:
            e.reset()
        assert len(s.sessions) == 3
        envs[2].max_steps = 1
        envs[2].step('look')
        envs[3].reset() # In the place of one that has ended
        assert len(s.sessions) == 3
        with pytest.raises(ConnectionError, match='503 .3 episodes are being played'):
            envs[2].reset()
        s.idle = 0.
        envs[2].reset()
        assert len(s.sessions) == 1
        with pytest.raises(ValueError, match='no episode is running'):
            envs[0].step('look')

# ---- nobody waits for another ----

class Thinking(AlfworldEnv):
    "A world that thinks about one command, and about one game, until it is let go"
    def __init__(self, *args):
        super().__init__(*args)
        self.go, self.thinks = threading.Event(), threading.Event()

    def start(self, game):
        if game is games[5]:
            self.think()
        return super().start(game)

    def step(self, action):
        if action == 'examine mirror 1':
            self.think()
        return super().step(action)

    def think(self):
        self.thinks.set()
        self.go.wait(20)

@contextmanager
def in_thread(f, world):
    "`f` runs beside until `world` thinks, and afterwards to its end; the list holds what it returned by then"
    found = []
    t = threading.Thread(target=lambda: found.append(f()))
    t.start()
    try:
        assert world.thinks.wait(10)
        yield found
    finally:
        world.go.set()
        t.join(20)

slow = [lambda env: env.step('examine mirror 1'), lambda env: env.reset(options={'game': games[5]})]

@pytest.mark.parametrize('slow', slow, ids=['step', 'reset'])
def test_nobody_waits_for_a_world_that_thinks_or_makes_a_game(slow):
    world = Thinking(games)
    with Server(world) as s:
        one, two = RemoteEnv(s.url), RemoteEnv(s.url)
        one.reset(options={'game': games[0]})
        two.reset(options={'game': games[1]})
        with in_thread(lambda: slow(one), world) as found:
            assert two.step('look')[4]['task'] == games[1].task and not found
        assert found

def test_closed_and_restarted_in_the_middle():
    s = Server(AlfworldEnv(games))
    envs, port = [RemoteEnv(s.url) for _ in range(2)], s.server_address[1]
    for env in envs:
        env.reset()
    s.close()
    with pytest.raises(ConnectionError, match='no server is listening'):
        envs[0].step('look')
    with Server(AlfworldEnv(games), port=port):
        with pytest.raises(RuntimeError, match='reset starts one'):
            envs[0].step('look')
        with pytest.raises(ValueError, match='no episode is running'):
            envs[1].step('look')
        assert envs[0].reset()[1]['game'] == games[0].id

def test_a_broken_world_is_the_servers_fault():
    class Broken(AlfworldEnv):
        def step(self, action):
            raise KeyError('mug 1')
    with Server(Broken(games)) as s:
        env = RemoteEnv(s.url)
        env.reset()
        with pytest.raises(ConnectionError, match="500 .the environment failed with KeyError: 'mug 1'"):
            env.step('look')

@pytest.mark.parametrize('action', ['', 'naïve café ☕', '\ud800', 'a'*10_000, '"}\r\n\r\n{'])
def test_any_text_travels(server, action):
    env = RemoteEnv(server.url)
    env.reset()
    assert env.step(action)[0] == 'Nothing happens.'

# ---- clients that die, drip, or take everything ----

def test_an_address_cannot_keep_all_sessions():
    with Server(AlfworldEnv(games), most=4) as s, ExitStack() as stack:
        many = [stack.enter_context(connect(s)) for _ in range(5)]
        assert [ask(c, '/reset')[0] for c in many] == [200]*4 + [503]
        other, third = (stack.enter_context(connect(s, '127.0.0.2')) for _ in range(2))
        assert ask(other, '/reset')[0] == 200 # Three and one
        assert ask(many[0], '/step', LOOK)[0] == 400 # It was used least recently
        assert ask(third, '/reset')[0] == 200 # Two and two
        with connect(s, '127.0.0.2') as c:
            assert ask(c, '/reset')[0] == 503
        assert [ask(c, '/step', LOOK)[0] for c in (other, third, *many[2:4])] == [200]*4

@pytest.mark.parametrize('named', [{}, {_SESSION: 'new'}], ids=['without a session', 'with one'])
def test_clients_that_died_make_room(server, named, monkeypatch):
    "256 times connect, begin an episode, die"
    monkeypatch.setattr(sessions, '_AWAY', 0.)
    with connect(server) as alive:
        assert ask(alive, '/reset')[0] == 200
        ids = [once(server, '/reset', **named)[2] for _ in range(server.most)]
        wait_until(lambda: len(connections(server)) == 1)
        assert once(server, '/reset')[0] == 200
        assert len(server.sessions) == server.most
        assert ids[1] not in server.sessions and ids[2] in server.sessions # The first that died goes first
        assert ask(alive, '/step', LOOK)[0] == 200 # Whoever lives keeps its own, the oldest of all

def test_connections_are_bounded(monkeypatch):
    monkeypatch.setattr(sessions, '_CONNECTIONS', 16)
    with Server(AlfworldEnv(games)) as server:
        with ExitStack() as stack:
            for _ in range(16):
                stack.enter_context(socket.create_connection(server.server_address)).sendall(HEAD.encode())
            wait_until(lambda: len(connections(server)) == 16)
            with pytest.raises(ConnectionError, match='503'):
                RemoteEnv(server.url).reset()
        wait_until(lambda: not connections(server))
        assert RemoteEnv(server.url).reset()[1]['game']

@pytest.mark.parametrize('head', ['', 'POST /reset HTT', HEAD, HEAD + '\r\n{'],
                         ids=['nothing', 'line', 'head', 'body'])
def test_half_a_request_is_bounded_in_time_however_it_drips(server, head, monkeypatch):
    monkeypatch.setattr(sessions, '_ASK', .4)
    with socket.create_connection(server.server_address, timeout=5) as half:
        half.sendall(head.encode())
        for _ in range(100):
            with suppress(OSError):
                half.sendall(b' ' if head else b'')
            time.sleep(.05)
            if not connections(server):
                break
        assert not connections(server)
    assert not server.sessions and RemoteEnv(server.url).reset()[1]['game']

def test_half_a_body_is_refused_with_a_sentence(server, monkeypatch):
    monkeypatch.setattr(sessions, '_ASK', .4)
    answer = talk(server, f'{HEAD}\r\n{{'.encode())
    assert b' 408 ' in answer and b'longer than 0.4 s' in answer

def test_a_client_may_think_between_two_steps(server, monkeypatch):
    monkeypatch.setattr(sessions, '_ASK', .2)
    with connect(server) as c:
        assert ask(c, '/reset')[0] == 200
        time.sleep(.5)
        assert ask(c, '/step', LOOK)[0] == 200

def test_who_hangs_up_disturbs_nobody(server, capfd):
    for _ in range(20):
        c = socket.create_connection(server.server_address)
        c.sendall(f'{HEAD}\r\n{{}}'.encode())
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b'\1\0\0\0\0\0\0\0')
        c.close()
    with socket.create_connection(server.server_address): # Says nothing, and is not waited for
        assert RemoteEnv(server.url).reset()[1]['game']
    assert capfd.readouterr() == ('', '')

# ---- our own client's games ----

def test_a_server_knows_the_games_its_own_client_asks_for():
    with Server(HouseholdSuite(Household('maple'))) as s:
        suite = ServerSuite(s.url)
        for split in ('collect', 'train', 'val', 'gate', 'test'):
            for g in suite.games(split, 2):
                suite.env(g, 5).reset(options={'game': g})
        assert len({x.env.game.id for x in s.sessions.values()}) == 10, 'no two splits share a game'
        assert suite.env(None, 5).reset(options={'game': 'train-999999'})
        with pytest.raises(ValueError, match='404'):
            suite.env(None, 5).reset(options={'game': 'exam-1'})
