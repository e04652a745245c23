"""The client against a server that is not ours: `transformers serve` with the shipped base policy, in
a process of its own on this machine. What comes over the wire is compared with what the
same weights say here."""
import os, re, socket, subprocess, sys, time, urllib.request
import pytest
from skillrl.llm.ledger import Ledger
from skillrl.llm.openai_client import OpenAIChatClient
from skillrl.core.store import data_path

from transformers.utils.import_utils import is_serve_available
pytestmark = pytest.mark.skipif(not is_serve_available(),
                                reason='the serving extra is missing: pip install "transformers[serving]"')

BASE = str(data_path('base'))

def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]

def answers(url):
    try:
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=2).status==200
    except OSError:
        return False

@pytest.fixture(scope='module')
def address(tmp_path_factory):
    "Address of the running server"
    home, port = tmp_path_factory.mktemp('served'), free_port()
    env = os.environ | dict(HF_HUB_OFFLINE='1', HF_HOME=str(home), OMP_NUM_THREADS='1')
    code = 'import sys; from transformers.cli.transformers import main; sys.exit(main())'
    args = ['serve', BASE, '--host', '127.0.0.1', '--port', str(port), '--device', 'cpu', '--default-seed',
            '0']
    with open(home/'log', 'w+') as log:
        server = subprocess.Popen([sys.executable, '-c', code, *args], stdout=log, stderr=subprocess.STDOUT,
                                  env=env)
        try:
            for _ in range(500):
                if answers(f'http://127.0.0.1:{port}/health') or server.poll() is not None:
                    break
                time.sleep(.1)
            else:
                pytest.fail('the server did not answer within 50 s')
            if server.poll() is not None:
                pytest.fail(f'the server ended with {server.returncode}:\n{(home/"log").read_text()[-2000:]}')
            yield f'http://127.0.0.1:{port}/v1'
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill(), server.wait()

@pytest.fixture(scope='module')
def client(address):
    return OpenAIChatClient(BASE, base_url=address, timeout=60., retries=1, ledger=Ledger())

@pytest.fixture(scope='module')
def policy():
    from skillrl.llm.local import Policy
    return Policy.load(BASE)

@pytest.fixture(scope='module')
def prompts():
    "The first prompts of six games, as the agent would send them"
    from skillrl.agent.prompt import PromptContext, step_messages
    from skillrl.envs.alfworld.engine import AlfworldEnv
    from skillrl.envs.alfworld.households import Household
    from skillrl.envs.alfworld.memory import AlfworldMemory
    games, out = Household('maple').games('test', 1), []
    for g in games:
        obs, info = AlfworldEnv(games).reset(options={'game': g})
        seen = PromptContext(info['task'], obs, info['admissible_commands'], memory=AlfworldMemory(obs))
        out.append(step_messages(seen))
    return out

def local(policy, messages, n):
    "The likeliest reply of the weights as they lie here, and its tokens"
    r = policy.generate([policy.encode(messages)], temperature=0, max_new_tokens=n)[0]
    return r.text, len(r.prompt_ids), len(r.token_ids)

def said_over_the_wire(r):
    return re.sub(r'\s*<eos>$', '', f'<think> {r.thought} </think> {r.text}')

def test_the_served_policy_says_what_it_says_here(client, policy, prompts):
    before = client.ledger.tokens
    replies = client.replies(prompts, temperature=0, max_tokens=32)
    for r, messages in zip(replies, prompts):
        text, read, written = local(policy, messages, 32)
        assert r.ok and r.finish=='stop' and said_over_the_wire(r)==text
        assert (r.prompt_tokens, r.completion_tokens)==(read, written)
    assert client.ledger.tokens - before==sum(r.tokens for r in replies)

def test_a_reply_cut_by_the_limit_says_so(client, prompts):
    r = client.reply(prompts[0], temperature=0, max_tokens=5)
    assert (r.ok, r.finish, r.completion_tokens)==(True, 'length', 5)

@pytest.mark.parametrize(
    'change,says', [(dict(model='kettle'), r'400 .*kettle'), (dict(base_url=''), r'404 .*ends in /v1')])
def test_its_refusals_are_understood(address, prompts, change, says):
    kw = dict(model=BASE, base_url=address) | {k: v or address.removesuffix('/v1') for k,v in change.items()}
    r = OpenAIChatClient(kw.pop('model'), retries=0, **kw).reply(prompts[0])
    assert r.status=='infra_error' and re.search(says, r.error)

def test_a_parameter_it_does_not_know_is_named(client, prompts):
    r = client.reply(prompts[0], max_tokens=5, top_k=3)
    assert r.status=='infra_error' and '422' in r.error and 'top_k' in r.error
