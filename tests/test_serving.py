"""`skillrl serve` and `/retrieve`, with real servers on loopback: what is printed works, and what makes no
sense gets a sentence"""
import json, shlex, signal, socket, subprocess, sys, urllib.error, urllib.request
from functools import partial
from contextlib import contextmanager
import pytest
from skillrl.cli.main import main, parser
from skillrl.cli.main import _server
from skillrl.serve.krill import RemoteEnv, Server
from skillrl.serve.sessions import Refusal
from skillrl.worlds.search.retrieve import Library, RemoteLibrary, retrieve

RUN = [sys.executable, '-c', 'from skillrl.cli.main import main; raise SystemExit(main())']
DOCUMENTS = ['"Jaws"\nJaws is a film by Steven Spielberg.', '"Cincinnati"\nA city on the Ohio.']

def served(line):
    "The server that `skillrl serve` makes of a command line"
    args = parser().parse_args(['serve', *line.split()])
    return _server(args, args.settings().env)

def post(url, body, headers=None):
    "Status and answer of one request"
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {'Content-Type': 'application/json'} | (headers or {}))
    try:
        with urllib.request.urlopen(request, timeout=20) as r:
            return r.status, json.load(r)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)

# --- the command ---

@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_until_it_is_stopped(number):
    command = [*RUN, 'serve', '--env', 'alfworld', '--port', '0']
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        place, curl, _ = [process.stdout.readline().strip() for _ in range(3)]
        url = place.rpartition(' ')[2]
        assert place == f'alfworld is served at {url}' and url.startswith('http://127.0.0.1:')
        program, *_, data, target = shlex.split(curl)
        assert program == 'curl' and post(target, data.encode())[0] == 200
        env = RemoteEnv(url)
        env.reset(options={'game': 'test-0'})
        process.send_signal(number)
        assert process.wait(20) == 0
        assert process.stderr.read() == ''
        with pytest.raises(ConnectionError, match='no server is listening'):
            env.step('look')
    finally:
        process.kill()
        process.communicate()

def test_limits_reach_the_server():
    line = '--env alfworld --port 0 --sessions 2 --idle 5 --host 127.0.0.1,kitchen --set env.max_steps=3'
    with served(line) as s:
        assert (s.most, s.idle, s.max_steps, s.hosts) == (2, 5, 3, {'kitchen'})
        assert s.server_address[0] == '127.0.0.1'
        env = RemoteEnv(s.url)
        env.reset(options={'game': 'test-0'})
        assert [env.step('look')[3] for _ in range(3)] == [False, False, True]
        health = json.load(urllib.request.urlopen(f'{s.url}/health'))
        assert health == dict(status='ok', sessions=1, most=2)

@pytest.mark.parametrize('line, says', [
    ('--suite kitchen', "'kitchen'"), ('--games nowhere', 'nowhere'), ('--env chess', "'chess' is unknown"),
    ('--openenv --suite train-001', '--suite and --openenv'),
    ('--host 203.0.113.7', 'choose another host or port')])
def test_what_cannot_be_served_is_one_sentence(line, says, capsys):
    assert main(['serve', '--port', '0', *line.split()]) == 1
    out, err = capsys.readouterr()
    assert says in err and len(err.strip().splitlines()) == 1 and not out

def test_a_port_that_is_taken_is_one_sentence(capsys):
    with socket.create_server(('127.0.0.1', 0)) as taken:
        assert main(['serve', '--port', str(taken.getsockname()[1])]) == 1
    assert 'choose another host or port' in capsys.readouterr().err

def test_games_of_another_server_are_not_served_again(tmp_path, capsys):
    (tmp_path/'config.json').write_text('{"env": {"url": "http://localhost:3000"}}')
    assert main(['serve', '--config', str(tmp_path/'config.json'), '--port', '0']) == 1
    assert 'games are played at http://localhost:3000' in capsys.readouterr().err

# --- /retrieve ---

@pytest.fixture(scope='module')
def retrieval():
    with Server(None, routes={'POST /retrieve': partial(retrieve, Library(DOCUMENTS))}) as s:
        yield s

JAWS, OHIO = [dict(document=dict(contents=text)) for text in DOCUMENTS]

def test_skillrl_sends_one_text(retrieval):
    status, said = post(f'{retrieval.url}/retrieve', dict(query='Jaws', topk=3, return_scores=True))
    assert (status, said['result'][0][0]['document']) == (200, JAWS['document'])

def test_the_command_serves_searches_in_the_suite_it_serves():
    from skillrl.core.config import SkillRLConfig
    from skillrl.envs.base import world
    suite = world('search').suite(SkillRLConfig().merged({'env.name': 'search'}).env, 'test-001')
    with served('--env search --suite test-001 --port 0') as s:
        far = RemoteLibrary(s.url)
        for game in suite.games('test', 5):
            assert far.search(game.task, 3) == suite.library.search(game.task, 3)
    with served('--env alfworld --port 0') as s:
        assert post(f'{s.url}/retrieve', dict(query='Jaws'))[0] == 404

# --- its client ---

@contextmanager
def answers(*replies):
    "Address of a server that gives these (status, answer), the last again and again, and what it is asked"
    questions = []
    def reply(body):
        questions.append(body)
        status, answer = replies[min(len(questions), len(replies)) - 1]
        if status == 200:
            return answer
        raise Refusal(status, answer)
    with Server(None, routes={'POST /retrieve': reply}) as s:
        yield s.url, questions

GOOD = 200, dict(result=[[JAWS | dict(score=1.5)]])
FOUND = [(DOCUMENTS[0], 1.5)]

@pytest.fixture
def quick(monkeypatch):
    "Pauses between two tries are counted, not made"
    pauses = []
    monkeypatch.setattr('skillrl.worlds.search.retrieve.pause', pauses.append)
    return pauses

@pytest.mark.parametrize('status', [500, 502, 503, 504])
def test_a_server_in_trouble_is_asked_again(quick, status):
    with answers((status, 'busy'), (status, 'busy'), GOOD) as (url, _):
        assert RemoteLibrary(url).search('Jaws', 1) == FOUND
    assert quick == [1, 2]

def test_a_server_that_stays_in_trouble_is_an_error(quick):
    with answers((503, 'busy')) as (url, questions):
        with pytest.raises(ConnectionError, match='answered by 503 .busy'):
            RemoteLibrary(url, tries=4).search('Jaws')
        assert (len(questions), quick) == (4, [1, 2, 3])

def test_a_refusal_is_asked_once(quick):
    with answers((400, 'no')) as (url, questions):
        with pytest.raises(ValueError, match='answered by 400'):
            RemoteLibrary(url).search('Jaws')
        assert (len(questions), quick) == (1, [])

def test_a_server_that_says_nothing_costs_its_time_out(quick):
    with socket.create_server(('127.0.0.1', 0)) as silent:
        far = RemoteLibrary(f'http://127.0.0.1:{silent.getsockname()[1]}', timeout=.2, tries=2)
        with pytest.raises(ConnectionError, match='no answer within 0.2 s'):
            far.search('Jaws')

def test_more_documents_than_were_asked_for_are_cut(retrieval):
    with answers((200, dict(result=[[JAWS, OHIO]]))) as (url, _):
        assert len(RemoteLibrary(url).search('Jaws', 1)) == 1
