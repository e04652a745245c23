"""Our worlds on an OpenEnv server, played by two clients; and servers that lie, stall and vanish.

The first part needs the extra `openenv`, the second the package `websockets` alone."""
import json, random, socket, subprocess, sys, threading, time
from contextlib import contextmanager, suppress
from http import HTTPStatus
import pytest
from skillrl.core.config import EnvConfig
from skillrl.envs.base import world, world_names
from skillrl.serve.openenv import _openenv_messages, serve_openenv
from skillrl.serve.openenv_client import OpenEnvClient
from skillrl.envs.base import ServerSuite

server = pytest.importorskip('websockets.sync.server', reason='the package websockets is not installed')
client = pytest.importorskip('websockets.sync.client')
try:
    import openenv
except ImportError:
    openenv = None
needs_openenv = pytest.mark.skipif(openenv is None, reason='the extra openenv is not installed')

# ---- our server ----

def client_of(running):
    return openenv.GenericEnvClient(base_url=running.url).sync()

@pytest.fixture(scope='module')
def kitchen():
    with serve_openenv('alfworld', port=0, most=3) as running:
        yield running

@needs_openenv
@pytest.mark.parametrize('name', [n for n in ('alfworld', 'search', 'webshop') if n in world_names()])
def test_openenvs_client_sees_what_the_world_says(name):
    here = world(name).suite(EnvConfig(name=name))
    game = here.game('test', 1)
    env = here.env(game, 50)
    text, info = env.reset()
    with serve_openenv(name, port=0) as running, client_of(running) as client:
        there = client.reset(game='test-1')
        assert (there.observation['text'], there.observation['task']) == (text, info['task'])
        rng = random.Random(0)
        while not there.done:
            command = rng.choice(info['admissible_commands'] or ['look'])
            text, reward, terminated, truncated, info = env.step(command)
            there = client.step({'command': command})
            seen = there.observation
            assert (seen['text'], seen['admissible_commands']) == (text, info['admissible_commands'])
            assert (there.reward, there.done) == (reward, terminated or truncated)
            assert (seen['won'], seen['truncated'], seen['game']) == (info['won'], truncated, info['game'])

@needs_openenv
def test_sessions_do_not_see_each_other(kitchen):
    clients = [client_of(kitchen) for _ in range(3)]
    games = [c.reset(game=f'test-{i}').observation['game'] for i, c in enumerate(clients)]
    assert len(set(games)) == 3
    for n in range(2):
        for game, client in zip(games, clients):
            assert client.step({'command': 'look'}).observation['game'] == game
            assert client.state()['step_count'] == n + 1
    for client in clients:
        client.close()

@needs_openenv
def test_a_seed_draws_the_same_games(kitchen):
    with client_of(kitchen) as client:
        drawn = [client.reset(seed=s, split='test').observation['game'] for s in (1, 2, 1)]
    assert drawn[0] == drawn[2] != drawn[1] and '/test/' in drawn[0]

@needs_openenv
@pytest.mark.parametrize('asked, says', [
    ({'game': 'mug-3'}, 'not a split and a number'), ({'game': 3}, 'send text such as test-3'),
    ({'split': 'attic'}, 'choose one of collect'), ({'seed': -1}, 'greater or equal to zero')])
def test_what_cannot_be_begun_gets_a_sentence(kitchen, asked, says):
    with client_of(kitchen) as client:
        with pytest.raises(RuntimeError, match=says):
            client.reset(**asked)
        with pytest.raises(RuntimeError, match='Invalid message'):
            client.step({'command': 3})
        with pytest.raises(RuntimeError, match='reset starts an episode'):
            client.step({'command': 'look'})

@needs_openenv
def test_a_full_server_is_asked_until_there_is_a_place(kitchen):
    first = [OpenEnvClient(kitchen.url) for _ in range(3)]
    for env in first:
        env.reset()
    with pytest.raises(ConnectionError, match='3/3 sessions'):
        OpenEnvClient(kitchen.url, timeout=.3).reset()
    threading.Timer(.3, first[0].close).start()
    last = OpenEnvClient(kitchen.url)
    assert last.reset()[1]['task']
    for env in (*first, last):
        env.close()

@needs_openenv
def test_nothing_is_left_of_finished_episodes(kitchen):
    for n in range(9):
        env = OpenEnvClient(kitchen.url, max_steps=2)
        env.reset(options={'game': f'test-{n}'})
        assert [env.step('look')[2:4] for _ in range(3)] == [(False, False), (False, True), (False, True)]

@needs_openenv
def test_pages_of_a_browser_are_kept_out(kitchen):
    from websockets.exceptions import InvalidStatus
    port = int(kitchen.url.rsplit(':', 1)[1])
    for host, origin in (('127.0.0.1', 'http://evil.example'), ('evil.example', None)):
        with pytest.raises(InvalidStatus, match='403'):
            local = socket.create_connection(('127.0.0.1', port))
            client.connect(f'ws://{host}:{port}/ws', origin=origin, sock=local)

@needs_openenv
def test_the_loop_finds_its_games_there(kitchen):
    here = world('alfworld').suite(EnvConfig())
    there = ServerSuite(kitchen.url.replace('http', 'ws'), world('alfworld').router)
    near, far = here.games('val', 3), there.games('val', 3)
    assert [(g.task, g.category) for g in far] == [(g.task, g.category) for g in near]

@pytest.mark.skipif(openenv is not None, reason='openenv is installed')
def test_without_the_package_a_sentence_names_it():
    with pytest.raises(ImportError, match='install the extra openenv'):
        _openenv_messages()

# ---- somebody else's server ----

SCHEMA = dict(action=dict(properties=dict(word=dict(type='string')), required=['word']))

@contextmanager
def stranger(*replies, schema=SCHEMA, refuse=False):
    "A server that sends one of `replies` for each message, and what it heard; a callable is called instead"
    heard = []
    def answer(connection):
        with suppress(Exception):
            if refuse:
                connection.send(replies[0])
                return
            for message, reply in zip(connection, [*replies]):
                heard.append(json.loads(message))
                reply(connection) if callable(reply) else connection.send(reply)
    def page(connection, request):
        if request.path == '/schema':
            return connection.respond(HTTPStatus.OK, json.dumps(schema))
    running = server.serve(answer, '127.0.0.1', 0, process_request=page)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield f'ws://127.0.0.1:{running.socket.getsockname()[1]}', heard
    finally:
        running.shutdown()

def said(kind='observation', **data):
    return json.dumps(dict(type=kind, data=data))

FIRST = said(observation=dict(prompt='Guess a word.', task='guess it', admissible_commands=['crane', 7]))

def test_a_stranger_with_words_of_its_own():
    last = said(observation=dict(text='Right!'), reward=True, done=True)
    with stranger(FIRST, last) as (url, heard):
        env = OpenEnvClient(url)
        obs, info = env.reset(options={'game': 'train-3'})
        assert json.loads(obs) == json.loads(FIRST)['data']['observation'] # Which has no `text`
        about = dict(task='guess it', category='', game='train-3')
        assert info == dict(admissible_commands=['crane'], won=False, **about)
        done = env.step('crane')
        assert done[:4] == ('Right!', 1., True, False) and done[4]['won']
        assert env.step('again') == done
    begun, stepped = heard
    assert begun['type'] == 'reset' and begun['data']['game'] == 'train-3' and begun['data']['seed'] >= 0
    assert stepped == dict(type='step', data=dict(word='crane'))

def test_a_name_is_a_seed_for_those_who_know_no_names():
    seeds = []
    for game, seed in (('train-1', None), ('train-1', None), ('train-2', None), ('train-1', 5)):
        with stranger(FIRST) as (url, heard):
            OpenEnvClient(url).reset(seed=seed, options={'game': game})
            seeds.append(heard[0]['data']['seed'])
    assert seeds[0] == seeds[1] != seeds[2] and seeds[3] == 5

def test_an_episode_that_was_cut_off_is_not_over():
    with stranger(FIRST, said(observation=dict(text='', truncated=True), done=True, reward=1)) as (url, _):
        env = OpenEnvClient(url)
        env.reset()
        assert env.step('crane')[1:4] == (1., False, True)

NONSENSE = ['', 'null', '[]', '<html>', '{}', '['*100_000, said(), said(observation=7),
            said(observation={}, reward='1'), said(observation={}, reward=float('nan')),
            said(observation={}, done=1), said('error', code='VALIDATION_ERROR', message='no')]

@pytest.mark.parametrize('reply', NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_is_a_value_error(reply):
    with stranger(reply) as (url, _):
        env = OpenEnvClient(url, field='word')
        with pytest.raises(ValueError, match='at ws://127.0.0.1') as e:
            env.reset()
        assert '\n' not in str(e.value)
        with pytest.raises(RuntimeError, match='reset starts one'):
            env.step('crane')

BROKEN = said('error', code='EXECUTION_ERROR', message='out\nof mugs')
FAILURES = [
    (lambda c: c.close(), 'broke off'), (lambda c: c.socket.close(), 'broke off'),
    (lambda c: c.send('x'*5_000_000), 'broke off'), (lambda c: time.sleep(1), 'no answer within 0.3 s'),
    (BROKEN, r'could not go on \(out of mugs\)')]

@pytest.mark.parametrize('reply, says', FAILURES, ids=range(len(FAILURES)))
def test_no_answer_is_a_connection_error(reply, says):
    with stranger(FIRST, reply) as (url, heard):
        env = OpenEnvClient(url, timeout=.3)
        env.reset()
        with pytest.raises(ConnectionError, match=says):
            env.step('crane')
        with pytest.raises(RuntimeError, match='reset starts one'):
            env.step('crane')
    assert [m['type'] for m in heard] == ['reset', 'step'], 'a command that may have acted is not sent again'

def test_a_full_server_says_so_before_it_is_asked():
    with stranger(said('error', code='CAPACITY_REACHED', message='2/2 taken'), refuse=True) as (url, _):
        with pytest.raises(ConnectionError, match='2/2 taken'):
            OpenEnvClient(url, timeout=.3).reset()

@pytest.mark.parametrize('schema', [None, {}, {'action': {'required': ['x', 'y']}}], ids=str)
def test_actions_that_are_no_texts(schema):
    with stranger(FIRST, schema=schema) as (url, _):
        with pytest.raises(ValueError, match='name the one that takes a text as field'):
            OpenEnvClient(url).reset()
        assert OpenEnvClient(url, field='word').reset()[0]

def test_who_never_answers_is_not_waited_for():
    with socket.create_server(('127.0.0.1', 0)) as silent:
        env = OpenEnvClient(f'ws://127.0.0.1:{silent.getsockname()[1]}', timeout=.3, field='word')
        with pytest.raises(ConnectionError, match='did not answer within 0.3 s'):
            env.reset()
        env.field = ''
        with pytest.raises(ConnectionError, match='had no answer within 0.3 s'):
            env.reset()

def test_a_process_that_still_plays_can_end():
    play = ('import sys; from skillrl.serve.openenv_client import OpenEnvClient; '
            'env = OpenEnvClient(sys.argv[1], field="word"); env.reset()')
    with stranger(FIRST) as (url, _):
        done = subprocess.run([sys.executable, '-c', play, url], timeout=60)
    assert done.returncode == 0
