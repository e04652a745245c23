"""A server of ours among strangers: whom it answers, whose episode a step acts in,
and how much of it one client can take"""
import http.client, json, re, socket, subprocess, sys, threading, time
from contextlib import closing
import pytest
from skillrl.envs import server as serving
from skillrl.envs.alfworld.engine import AlfworldEnv
from skillrl.envs.alfworld.households import Household
from skillrl.envs.alfworld.suites import HouseholdSuite
from skillrl.envs.krill import RemoteEnv
from skillrl.envs.server import serve
from skillrl.envs.sessions import SESSION
from skillrl.envs.suite import ServerSuite

games = Household('maple').games('test', 1)
JSON = {'Content-Type': 'application/json'}
LOOK = {'action': 'look'}

@pytest.fixture
def server():
    with serve(AlfworldEnv(games)) as s:
        yield s

def connect(s):
    return closing(http.client.HTTPConnection(*s.http.server_address, timeout=10))

def ask(c, route, body, **headers):
    "Status, answer and headers of one request on connection `c`"
    data = body if isinstance(body, (bytes, str)) else json.dumps(body)
    c.request('POST', route, data, JSON | headers)
    r = c.getresponse()
    return r.status, json.loads(r.read()), r.headers

def once(s, *args, **kw):
    with connect(s) as c:
        return ask(c, *args, **kw)

def task(game):
    return {'task_id': game.id}

# --- who may ask

foreign = ['evil.example', 'evil.example:80', '127.evil.example', 'localhost.evil.example',
           '10.0.0.7', '', '[']

@pytest.mark.parametrize('host', foreign)
def test_a_request_by_a_foreign_name_is_refused(server, host):
    status, said, _ = once(server, '/reset', {}, Host=host)
    assert status == 403 and 'is not served here' in said['error'] and not server.running

def test_own_names_are_answered(server):
    port = server.http.server_address[1]
    for host in (f'127.0.0.1:{port}', f'localhost:{port}', 'LOCALHOST', '[::1]'):
        assert once(server, '/reset', {}, Host=host)[0] == 200
    with serve(AlfworldEnv(games), hosts=['kitchen']) as s:
        assert once(s, '/reset', {}, Host='kitchen:80')[0] == 200

pages = ['http://evil.example', 'null', 'http://127.0.0.1:1', 'https://localhost', 'file://']

@pytest.mark.parametrize('origin', pages)
def test_a_request_from_a_page_is_refused(server, origin):
    status, said, _ = once(server, '/reset', {}, Origin=origin)
    assert status == 403 and 'from the page' in said['error'] and not server.running

kinds = ['text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data; boundary=x',
         'application/jsonp']

@pytest.mark.parametrize('kind', kinds)
def test_a_body_that_is_not_json_is_refused(server, kind):
    assert once(server, '/reset', '{}', **{'Content-Type': kind})[0] == 415 and not server.running
    for body in ('[]', 'null', '"look"', '7', '{"task_id": ', 'task_id=1'):
        assert once(server, '/reset', body)[0] == 400
    with_charset = {'Content-Type': 'application/json; charset=utf-8'}
    assert once(server, '/reset', '{}', **with_charset)[0] == 200

# --- whose episode

def test_two_clients_never_share_an_episode(server):
    one, two = RemoteEnv(server.url), RemoteEnv(server.url)
    begun = [e.reset(options={'game': g})[1]['task'] for e, g in zip((one, two), games)]
    assert begun == [g.task for g in games[:2]]
    seen = [e.step('look')[4]['task'] for e in (one, two, one)]
    assert seen == [games[i].task for i in (0, 1, 0)]
    near = AlfworldEnv(games)
    near.reset(options={'game': games[0]})
    for _ in range(2):
        near.step('look')
    assert one.step('inventory') == near.step('inventory')

def test_two_spellings_of_an_address_never_share_an_episode(server):
    port = server.http.server_address[1]
    spellings = (('127.0.0.1', ''), ('localhost', ''), ('localhost', '/'))
    envs = [RemoteEnv(f'http://{name}:{port}{tail}') for name, tail in spellings]
    for e, g in zip(envs, games):
        e.reset(options={'game': g})
    assert [e.step('look')[4]['task'] for e in envs] == [g.task for g in games[:3]]
    tasks = [s.env.game.id for s in server.sessions.values()]
    assert sorted(tasks) == sorted(g.id for g in games[:3])
    assert all(s.env.steps == 1 for s in server.sessions.values())

PROGRAM = '''
import sys
from skillrl.envs.krill import RemoteEnv
e = RemoteEnv(sys.argv[1])
e.reset(options={"game": sys.argv[2]})
print(flush=True)
sys.stdin.readline()
for _ in range(5):
    e.step("look")
'''

def test_two_processes_never_share_an_episode(server):
    def start(g):
        command = [sys.executable, '-c', PROGRAM, server.url, g.id]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    clients = [start(g) for g in games[:2]]
    for p in clients:
        p.stdout.readline() # Both have begun
    for p in clients:
        p.communicate('\n')
    assert [p.returncode for p in clients] == [0, 0]
    played = sorted((s.env.game.id, s.env.steps) for s in server.sessions.values())
    assert played == sorted((g.id, 5) for g in games[:2])

def test_clients_without_sessions_play_on_their_own_connection(server):
    "Krill's client keeps its connection and knows no session"
    with connect(server) as one, connect(server) as two:
        begun = [ask(c, '/reset', task(g))[0] for c, g in ((one, games[0]), (two, games[1]))]
        assert begun == [200, 200]
        for c, g in ((one, games[0]), (two, games[1]), (one, games[0])):
            assert ask(c, '/step', LOOK)[1]['task_description'] == g.task
        status, said, _ = once(server, '/step', LOOK)
        assert status == 409 and 'this connection has begun no episode' in said['error']

def test_a_client_without_a_connection_of_its_own_plays_by_the_id(server):
    "Who comes from the same address may be somebody else"
    for g in games[:2]:
        *_, told = once(server, '/reset', task(g), Connection='close')
        assert once(server, '/step', LOOK, Connection='close')[0] == 409
        status, said, _ = once(server, '/step', LOOK, Connection='close', **{SESSION: told[SESSION]})
        assert status == 200 and said['task_description'] == g.task

def test_a_session_is_nobody_elses(server):
    *_, told = once(server, '/reset', {}, **{SESSION: 'new'})
    assert re.fullmatch('[0-9a-f]{32}', told[SESSION])
    for id in ('new', 'x'*32, told[SESSION][:-1]):
        assert once(server, '/step', LOOK, **{SESSION: id})[0] == 400
    assert once(server, '/step', LOOK, **{SESSION: told[SESSION]})[0] == 200

def test_sessions_are_bounded_and_expire():
    with serve(AlfworldEnv(games), most=3) as s:
        envs = [RemoteEnv(s.url) for _ in range(4)]
        for e in envs[:3] + envs[:3]:
            e.reset()
        assert len(s.sessions) == 3
        for e in envs[:3]:
            e.max_steps = 1
        envs[2].step('look')
        envs[3].reset() # In the place of one that has ended
        assert len(s.sessions) == 3
        envs[2].max_steps = 50
        with pytest.raises(ConnectionError, match='503 .3 episodes are being played'):
            envs[2].reset()
        s.idle = 0.
        envs[2].reset()
        assert len(s.sessions) == 1
        with pytest.raises(ValueError, match='no episode is running'):
            envs[0].step('look')

# --- how much one client can take

def send_slowly(slow, is_open, until):
    "A byte every tenth of a second"
    slow.sendall(b'POST /reset HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90\r\n\r\n')
    while time.monotonic() < until:
        slow.sendall(b' ')
        time.sleep(.1)
        if not is_open():
            break

def test_slow_clients_are_dropped_and_others_play_on(monkeypatch):
    monkeypatch.setattr(serving, 'ASK', .6)
    with serve(AlfworldEnv(games)) as s, socket.create_connection(s.http.server_address, timeout=10) as slow:
        began = time.monotonic()
        try:
            send_slowly(slow, lambda: s.http.open, began + 8)
        except OSError:
            pass
        assert time.monotonic() < began + 4 and not s.http.open
        assert RemoteEnv(s.url).reset()[1]['game']

def wait_until(is_so):
    until = time.monotonic() + 5
    while not is_so() and time.monotonic() < until:
        time.sleep(.01)

def test_connections_and_threads_are_bounded(server):
    before, held = threading.active_count(), []
    try:
        for _ in range(serving.CONNECTIONS):
            held.append(socket.create_connection(server.http.server_address, timeout=10))
        wait_until(lambda: len(server.http.open) >= serving.CONNECTIONS)
        for _ in range(10):
            with pytest.raises(ConnectionError, match='503 .256 connections are open'):
                RemoteEnv(server.url).reset()
        assert threading.active_count() <= before + serving.CONNECTIONS
    finally:
        for c in held:
            c.close()
    wait_until(lambda: not server.http.open)
    assert RemoteEnv(server.url).reset()[1]['game']

# --- our own client's games

worlds = [HouseholdSuite(Household('maple')), AlfworldEnv(Household('maple').games('val', 5))]

@pytest.mark.parametrize('world', worlds, ids=['suite', 'environment'])
def test_a_server_knows_the_games_its_own_client_asks_for(world):
    with serve(world) as s:
        suite = ServerSuite(s.url)
        for split in ('collect', 'train', 'val', 'gate', 'test'):
            for g in suite.games(split, 2):
                suite.env(g, 5).reset(options={'game': g})
        assert len({x.env.game.id for x in s.sessions.values()}) == 10, 'no two splits share a game'
        assert suite.env(None, 5).reset(options={'game': 'train-999999'})
        with pytest.raises(ValueError, match='404'):
            suite.env(None, 5).reset(options={'game': 'exam-1'})
    if isinstance(world, AlfworldEnv):
        with serve(world) as s, pytest.raises(ValueError, match="are of the split 'test'"):
            RemoteEnv(s.url).reset(options={'game': 'test-30'})

def test_a_remote_game_carries_its_task_and_category():
    suite = HouseholdSuite(Household('maple'))
    with serve(suite) as s:
        far = ServerSuite(s.url).games('gate', 4)
        assert [(g.task, g.category) for g in far] == [(g.task, g.category) for g in suite.games('gate', 4)]

def test_the_gate_sees_which_remote_games_a_skill_touches():
    from skillrl.envs.alfworld.router import ROUTER
    from skillrl.skills.bank import Skill, SkillBank
    from skillrl.skills.proposals import touched
    from skillrl.skills.retrieval import Retriever
    suite, bank = HouseholdSuite(Household('maple')), SkillBank()
    bank.add(Skill('cool_001', 'Cool it', 'Open the fridge first.', 'Always.', category='cool'))
    with serve(suite) as s:
        games = ServerSuite(s.url).games('gate', 12)
        found = touched(SkillBank(), bank, games, lambda b: Retriever(b, router=ROUTER))
    assert [g.category for g in found] == ['cool']*2

# --- the client's side

def drip(server):
    "Answers a byte every tenth of a second"
    conn, _ = server.accept()
    with conn:
        conn.recv(65536)
        try:
            conn.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n')
            for _ in range(100):
                conn.sendall(b' ')
                time.sleep(.1)
        except OSError:
            pass

def flood(server):
    conn, _ = server.accept()
    with conn:
        conn.recv(65536)
        try:
            conn.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n')
            for _ in range(100):
                conn.sendall(b' '*10**6)
        except OSError:
            pass

endless = [(drip, ConnectionError, 'no answer within 0.5 s'), (flood, ValueError, 'did not stop')]

@pytest.mark.parametrize('world,error,says', endless)
def test_a_server_that_drips_or_floods_costs_one_deadline(world, error, says):
    with socket.create_server(('127.0.0.1', 0)) as listener:
        threading.Thread(target=world, args=(listener,), daemon=True).start()
        began = time.monotonic()
        url = f'http://127.0.0.1:{listener.getsockname()[1]}'
        timeout = .5 if world is drip else 10.
        with pytest.raises(error, match=says):
            RemoteEnv(url, timeout=timeout).reset()
        assert time.monotonic() < began + 4
