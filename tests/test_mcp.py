"""MCP both ways: servers that die, hang and keep state under a world of tasks; and our worlds on a server.

Needs the extra `mcp`."""
import asyncio, json, os, random, runpy, signal, subprocess, sys, time
from types import SimpleNamespace
import pytest
from faults import error, FaultServer, said
from skillrl.agent.contract import ChatPolicy, parse_reply, write_reply
from skillrl.agent.episode import Episode, EpisodeError, rollout
from skillrl.cli.main import main
from skillrl.core.store import atomic_write
from skillrl.core.trajectory import Step, Trajectory
from skillrl.llm.chat import ScriptedChat
from skillrl.llm.openai_client import OpenAIChatClient
from skillrl.serve.openenv import make_env, observed

mcp = pytest.importorskip('mcp', reason='the extra mcp is not installed')
from skillrl.worlds.mcp.world import _load_tasks, ToolServer, ToolTask, _ToolEnv, _ToolReader
from skillrl.serve.mcp_server import mcp_server, serve_mcp

SHOP = '''
import os, time
from pathlib import Path
from mcp.server import MCPServer

def shop(folder):
    server, sold = MCPServer('shop', log_level='ERROR'), []
    @server.tool()
    def sell(thing:str, price:int=1)->str:
        if thing == 'bomb':
            os._exit(3)
        time.sleep(3600 if thing == 'clock' else 0)
        sold.append(thing)
        Path(folder, 'sold.txt').write_text(' '.join(sold))
        return f'Error: {thing} is out of stock' if thing == 'unicorn' else 'sold'
    @server.tool()
    def till()->dict:
        files = sorted(os.listdir(folder))
        return dict(sold=sold, pid=os.getpid(), files=files, env=[*os.environ], cwd=os.getcwd())
    return server

if __name__ == '__main__':
    shop('.').run()
'''

@pytest.fixture(scope='module')
def shop(tmp_path_factory):
    "The shop in this process, `here`, and how to start it as a program, `there`"
    file = tmp_path_factory.mktemp('shop')/'shop.py'
    file.write_text(SHOP)
    there = dict(command=sys.executable, args=[str(file)])
    return SimpleNamespace(here=runpy.run_path(file)['shop'], there=there)

def task(server, *check, **more):
    return ToolTask('Sell a mug.', list(check), server, id='shop-0', **more)

def played(task, *commands, most=9):
    "What an episode brings, step by step"
    env = _ToolEnv([task], most)
    env.reset()
    return [env.step(command) for command in commands]

def gone(pid):
    for _ in range(300):
        try:
            os.kill(pid, 0)
        except OSError:
            return True
        time.sleep(.05)

# ---- what counts as success ----

def sh(text):
    return dict(command=['sh', '-c', text])

SOLD = 'sell {"thing": "mug", "price": 3}'
CHECKS = [(dict(call='till {}', matches='"mug"'), True), (dict(call='till {}', matches='cup'), False),
          (dict(file='sold.txt', matches='^mug$'), True), (dict(file='no.txt', matches=''), False),
          (sh('grep -q mug sold.txt'), True), (sh('test -f no.txt'), False),
          (dict(matches='^3$'), True), (dict(matches='^4$'), False)]

@pytest.mark.parametrize('check, holds', CHECKS, ids=str)
def test_only_the_check_decides(check, holds, shop):
    *_, last = played(task(shop.here, check), SOLD, 'finish {"answer": "3"}')
    assert last[1:4] == (float(holds), True, False) and last[4]['won'] is holds

@pytest.mark.parametrize('n', [1, 2])
def test_all_checks_must_hold_and_a_cut_off_episode_is_checked_too(n, shop):
    checks = [check for check, _ in CHECKS[:n]]
    assert played(task(shop.here, *checks), SOLD, most=1)[-1][1:4] == (2. - n, False, True)

def test_calls_are_looked_at_before_files_wherever_they_stand(shop):
    "To look at a file ends the server, so that it writes what it has not written yet"
    call, file = CHECKS[0][0], CHECKS[2][0]
    assert played(task(shop.here, file, call), SOLD, 'finish {}')[-1][4]['won']

def test_the_agent_sees_no_check_and_no_error_flag_is_trusted(shop):
    env = _ToolEnv([task(shop.here, sh('test -f secret'))])
    seen = [env.reset(), env.step('till {}'), env.step('sell {"thing": "unicorn"}'), env.step('finish {}')]
    assert 'secret' not in str(seen) and seen[-1][1] == 0

@pytest.mark.parametrize('takes_tools', [True, False])
def test_a_chat_model_calls_tools_in_its_own_way_where_its_server_lets_it(shop, takes_tools):
    def model(request):
        turn = str(request['body']['messages'])
        name, given = ('finish', {}) if 'sold' in turn else ('sell', dict(thing='a </action> mug'))
        if 'tools' not in request['body']:
            return said(write_reply('', 'finish {}'))
        kinds = {t['function']['name']: t['function']['parameters'] for t in request['body']['tools']}
        assert kinds['sell']['required'] == ['thing'] and set(kinds) == {'sell', 'till', 'finish'}
        call = dict(id='1', type='function', function=dict(name=name, arguments=json.dumps(given)))
        return said(None, 'tool_calls', tool_calls=[call]) if takes_tools else error(400, 'no tool use here')
    game = task(shop.here, dict(call='till {}', matches='a </action> mug'))
    with FaultServer(rest=model) as server:
        policy = ChatPolicy(OpenAIChatClient('m', base_url=server.url, api_key='k'))
        t, = rollout([Episode(_ToolEnv([game]))], policy)
    assert t.success is takes_tools and all(step.ok for step in t.steps)
    assert not any('tools' in m for request in server.requests for m in request['body']['messages'])

@pytest.mark.parametrize('script, wins', [('grep -c mug /app/sold.txt > /logs/verifier/reward.txt', True),
                                          ('echo 0 > /logs/verifier/reward.txt', False)])
def test_a_harbor_task_brings_its_server_and_its_check(shop, tmp_path, script, wins):
    put = dict(command=shop.there['command'], args=shop.there['args'], transport='stdio', name='shop')
    server = '\n'.join(f'{k} = {json.dumps(v)}' for k, v in put.items())
    atomic_write(tmp_path/'sale'/'task.toml', f'[[environment.mcp_servers]]\n{server}')
    atomic_write(tmp_path/'sale'/'instruction.md', 'Sell a mug.')
    atomic_write(tmp_path/'sale'/'tests'/'test.sh', script)
    game, = _load_tasks(tmp_path).values()
    assert game.id == 'sale' and played(game, SOLD, 'finish {}')[-1][4]['won'] is wins
    atomic_write(tmp_path/'sale'/'task.toml', '')
    with pytest.raises(ValueError, match='names no `mcp_servers`'):
        _load_tasks(tmp_path)

# ---- fresh, and out of reach ----

def test_each_episode_has_a_process_and_a_folder_of_its_own(shop, monkeypatch):
    monkeypatch.setenv('OPENAI_API_KEY', 'sk-not-for-you')
    mine = task(shop.there, sh('true'), files={'list/a.txt': 'mug'})
    seen = [json.loads(played(mine, SOLD, 'till {}', 'finish {}')[1][0]) for _ in range(2)]
    assert [s['sold'] for s in seen] == [['mug']]*2 and seen[0]['pid'] != seen[1]['pid']
    assert [s['files'] for s in seen] == [['list', 'sold.txt']]*2
    assert all('OPENAI_API_KEY' not in s['env'] and s['cwd'] == '.' and gone(s['pid']) for s in seen)

HOLD = '''import gc, json, sys, time
from skillrl.worlds.mcp.world import ToolServer
server, how = ToolServer(json.loads(sys.argv[1]), '.'), sys.argv[2]
print(json.loads(server.call('till', {}))['pid'], flush=True)
if how == 'forgotten':
    del server
    gc.collect()
time.sleep(0 if how == 'ended' else 60)'''

@pytest.mark.parametrize('how', ['killed', 'ended', 'forgotten'])
def test_a_server_ends_with_us(how, shop):
    command = [sys.executable, '-c', HOLD, json.dumps(shop.there), how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    pid = int(process.stdout.readline())
    if how == 'killed':
        process.send_signal(signal.SIGKILL)
    assert gone(pid)
    process.kill()

# ---- outages ----

def test_a_server_that_dies_loses_no_game(shop):
    episodes = [Episode(_ToolEnv([task(shop.there, sh('true'))])) for _ in range(2)]
    script = [write_reply('x', command) for command in ('finish {}', SOLD, SOLD.replace('mug', 'bomb'))]
    with pytest.raises(EpisodeError, match='is not counted: the MCP server did not answer sell') as e:
        rollout(episodes, ChatPolicy(ScriptedChat(script)))
    assert [t.success for t in e.value.finished] == [True] # And the other is neither won nor lost

def test_a_server_that_hangs_is_ended(shop, tmp_path):
    server = ToolServer(shop.there, tmp_path, timeout=3)
    pid = json.loads(server.call('till', {}))['pid']
    with pytest.raises(ConnectionError, match='timed out'):
        server.call('sell', dict(thing='clock'))
    assert gone(pid)

@pytest.mark.parametrize('server, says', [
    (dict(command='no-such-shop'), 'no-such-shop'), (dict(url='http://127.0.0.1:9/mcp'), 'did not start'),
    (dict(command=sys.executable, args=['-c', 'raise SystemExit("no licence")']), 'no licence')])
def test_a_server_that_does_not_start(server, says, tmp_path):
    with pytest.raises(OSError, match=says) as e:
        ToolServer(server, tmp_path)
    assert '\n' not in str(e.value)

def test_strange_calls_are_answered(shop, tmp_path):
    server = ToolServer(shop.here, tmp_path)
    assert {server.call(*call)[:5] for call in (('fly', {}), ('sell', dict(thing=[])))} == {'Error'}

# ---- a file of tasks ----

@pytest.mark.parametrize('line, says', [
    ('{"prompt": "x"}', 'line 2: the field `check` is missing'), ('[]', 'line 2'),
    ('{"prompt": "x", "check": [{"call": "a"}]}', 'line 2: a check has nothing'),
    ('{"prompt": "x", "check": []}\n{"prompt": "x", "check": []}', 'line 3: another task')])
def test_what_is_wrong_in_a_file_is_said_with_its_line(line, says, tmp_path, capsys):
    file = tmp_path/'tasks.jsonl'
    file.write_text('{"server": {"command": "x"}}\n' + line)
    assert main(['collect', '--env', 'mcp', '--games', str(file), '--output', str(tmp_path/'t.json')]) == 1
    told = capsys.readouterr().err
    assert says in told and len(told.splitlines()) == 1

def test_spaces_in_an_argument_arrive():
    said = 'write {"text": "if a:\\n    b  c"}'
    assert parse_reply(write_reply('x', said), ['write {<text>}']) == ('x', said, True)

def test_errors_and_repeats_are_no_part_of_the_way():
    def won(n):
        look, add = f'look {{"at": {n}}}', 'add {"repo": "."}'
        acts = [add, look, look, add, 'finish {"answer": "1"}']
        seen = ['', 'Database error: locked', 'x', 'x', 'added']
        return Trajectory(f'{n}', f'task {n}', 'ship', [*map(Step, seen, acts)], True, 'Over.', f'g{n}')
    reader, trajs = _ToolReader(), [won(0), won(1)]
    assert reader.order(trajs[0]) == ('look', 'add', 'finish')
    assert [s.principle for s in reader.tell(trajs, 2)] == ['To ship, call add with repo ".".']
    assert reader.tell(trajs[:1]*2, 2) == [] # Twice the same game is one

# ---- our worlds on a server ----

async def differences(place, name, n, most):
    "What the official client sees otherwise than the engine in `n` random episodes, and their steps"
    suite, rng = make_env(name).suite, random.Random(0)
    odd, steps = 0, 0
    async with mcp.Client(place) as client:
        async def ask(tool, **arguments):
            return (await client.call_tool(tool, arguments)).structured_content
        for k in range(n):
            env = suite.env(suite.game('test', k), most)
            far = await ask('reset', game=f'test-{k}')
            id, (text, info) = far.pop('episode'), env.reset()
            seen = text, None, False, False, info
            odd += far != observed(*seen)
            while not (seen[2] or seen[3]):
                command = rng.choice(seen[4]['admissible_commands'] or ['search[mug]'])
                seen, steps = env.step(command), steps + 1
                odd += await ask('step', episode=id, command=command) != observed(*seen)
    return odd, steps

@pytest.mark.parametrize('name', ['alfworld', 'webshop'])
def test_the_official_client_sees_what_the_engine_says(name):
    odd, steps = asyncio.run(differences(mcp_server(make_env(name)), name, 3, 50))
    with serve_mcp(mcp_server(make_env(name, max_steps=9)), port=0) as running:
        far, more = asyncio.run(differences(f'{running.url}/mcp', name, 2, 9))
    assert odd + far == 0 and steps + more > 9

def test_episodes_do_not_see_each_other():
    async def told():
        async with mcp.Client(mcp_server(make_env('alfworld'), most=2)) as client:
            async def ask(tool, **arguments):
                r = await client.call_tool(tool, arguments)
                return r.structured_content or r.content[0].text
            one, two, full = [await ask('reset', game=f'test-{k}') for k in range(3)]
            seen, lost = [await ask('step', episode=id, command='look') for id in (two['episode'], 'x')]
            return one['game'], two['game'], seen['game'], full, lost
    one, two, seen, full, lost = asyncio.run(told())
    assert one != two == seen
    assert 'come back later' in full and 'call reset' in lost

NOISY = """import sys
from skillrl.cli.main import main
from skillrl.serve.openenv import SuiteEnv
reset = SuiteEnv.reset
SuiteEnv.reset = lambda *a, **kw: print('noise') or reset(*a, **kw)
raise SystemExit(main(['serve', '--env', 'alfworld', '--mcp']))"""

def test_the_command_says_nothing_else_on_stdout():
    "Whatever prints while it serves; and it ends with who started it"
    client = dict(protocolVersion='2025-06-18', capabilities={}, clientInfo=dict(name='x', version='1'))
    said = [dict(id=1, method='initialize', params=client), dict(method='notifications/initialized'),
            dict(id=2, method='tools/call', params=dict(name='reset', arguments=dict(game='test-1')))]
    lines = ''.join(json.dumps(dict(jsonrpc='2.0') | d) + '\n' for d in said)
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, '-c', NOISY], text=True, stdin=pipe, stdout=pipe)
    process.stdin.write(lines)
    process.stdin.flush()
    _, last = [json.loads(process.stdout.readline()) for _ in range(2)]
    assert last['result']['structuredContent']['game'] == make_env('alfworld').suite.game('test', 1).id
    process.stdin.close()
    assert process.stdout.read() == '' and process.wait(20) == 0
