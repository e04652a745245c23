"A policy on a Tinker server: what leaves for the server, and a whole run on it that is stopped and resumed"
import inspect, os, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import pytest, tinker, torch
from tinker.types import AdamParams
from local_engine import LocalEngine, LocalTraining
from skillrl.training import builders
from skillrl.agent.episode import StepRow
from skillrl.core.config import RLConfig, SkillRLConfig
from skillrl.cli.flags import SMOKE
from skillrl.llm.local import Policy, tiny_model, word_tokenizer
from skillrl.core.store import data_path, read_json
from skillrl.training.pipeline import train
from skillrl.training.rl import GRPOTrainer
from skillrl.training.tinker import _REQUEST_ROWS, _reply_logprobs, TinkerPolicy, open_service

class Counting(LocalTraining):
    "Remembers the sizes of requests"
    def __init__(self, *args):
        super().__init__(*args)
        self.read, self.pushed = [], []

    def forward(self, data, loss_fn='cross_entropy'):
        self.read.append(len(data))
        return super().forward(data, loss_fn)

    def forward_backward(self, data, loss_fn):
        self.pushed.append(len(data))
        self.data = data
        return super().forward_backward(data, loss_fn)

    def optim_step(self, params):
        self.adam = params
        return super().optim_step(params)

@pytest.fixture
def policy():
    tokenizer = word_tokenizer('open close drawer mug look'.split())
    base = Policy(tiny_model(len(tokenizer), hidden=32, seed=0), tokenizer)
    engine = LocalEngine(base)
    begun = TinkerPolicy(engine, engine.create_lora_training_client('tiny-base'), tokenizer)
    begun.client = Counting(begun.client.policy, True, engine.states)
    return begun

def scored(n, advantage=1.):
    return [StepRow([4, 5, 6], [7, 8], [-1., -1.], advantage=advantage) for _ in range(n)]

def test_every_request_has_the_same_number_of_rows(policy):
    GRPOTrainer(policy, RLConfig(), policy.frozen_copy()).update([scored(5), scored(40)])
    assert set(policy.client.read + policy.client.pushed) == {_REQUEST_ROWS}
    assert len(policy.client.pushed) == 2 # The rows of both chunks

def test_nothing_leaves_when_the_loss_of_a_later_chunk_is_no_number(policy):
    trainer = GRPOTrainer(policy, RLConfig(), policy.frozen_copy())
    with pytest.raises(FloatingPointError, match='loss is nan'):
        trainer.update([scored(3), scored(3, float('nan'))])
    assert policy.client.pushed == []

def test_a_step_without_a_gradient_asks_for_nothing(policy):
    before = policy.logps([[5, 6]], [[7]])[0].detach()
    assert policy.step(lr=1.) == {}
    assert torch.equal(policy.logps([[5, 6]], [[7]])[0], before)

@pytest.mark.parametrize('mean, weight', [(True, 4*_REQUEST_ROWS), (False, 1)])
def test_a_server_that_takes_means_is_sent_sums(policy, mean, weight):
    "Three tokens before two are four places of a row, and requests are filled up to so many rows"
    policy.mean = mean
    lp = policy.logps([[4, 5, 6]]*2, [[7, 8]]*2)[0]
    (lp*torch.tensor([[1., -2.], [3., 0.]])).sum().backward()
    policy.step(lr=.01)
    sent = [d.loss_fn_inputs['advantages'].tolist() for d in policy.client.data]
    assert sent[:2] == [[0, 0, -weight, 2*weight], [0, 0, -3*weight, 0]]
    assert len(sent) == _REQUEST_ROWS and not any(map(any, sent[2:]))
    assert policy.client.adam == AdamParams(learning_rate=.01, beta1=.9, beta2=.999, eps=1e-8,
                                            weight_decay=0., grad_clip_norm=1.)

def test_a_policy_on_a_server_has_the_defaults_of_one_that_is_here():
    there, here = (inspect.signature(kind.generate).parameters for kind in (TinkerPolicy, Policy))
    assert all(p.default == here[name].default for name, p in there.items())

def test_log_probs_from_before_a_step_give_no_gradient(policy):
    old = policy.logps([[5, 6]], [[7]])[0]
    policy.logps([[5, 6]], [[7]])[0].sum().backward()
    policy.step(lr=.01)
    with pytest.raises(RuntimeError, match='has taken a step'):
        old.sum().backward()

def test_each_reply_has_a_seed_of_its_own(policy):
    policy.generate([[5, 6]], max_new_tokens=1)
    heard, policy._sampler.sample = [], lambda prompt, n, params: heard.append(params.seed)
    with pytest.raises(AttributeError): # Nobody answers
        policy.generate([[5, 6]]*200, generator=torch.Generator().manual_seed(0))
    assert len(set(heard)) == 200

def test_an_answer_without_log_probs_is_refused(policy):
    with pytest.raises(ValueError, match='the engine gave 0 log-probs for 2 tokens'):
        _reply_logprobs({}, [4, 5])

class Healthy(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == '/api/v1/healthz' else 404)
        self.end_headers()
    def log_message(self, *args):
        pass

@pytest.fixture
def url():
    "Where something answers, but speaks no Tinker"
    server = ThreadingHTTPServer(('127.0.0.1', 0), Healthy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{server.server_port}'
    server.shutdown()
    server.server_close()

def test_another_sdk_is_refused_before_it_waits_for_ever(url, monkeypatch):
    monkeypatch.setattr(tinker, '__version__', '0.38.0')
    with pytest.raises(ValueError, match='tinker 0.38.0 is installed, and 0.24.1 was proven'):
        open_service(url)

def test_the_session_sends_no_telemetry_and_no_key_of_another_service(url, monkeypatch):
    monkeypatch.setenv('TINKER_API_KEY', 'tml-of-another-service')
    monkeypatch.delenv('TINKER_TELEMETRY', raising=False)
    given = {}
    monkeypatch.setattr(tinker, 'ServiceClient', given.update)
    open_service(f'{url}/')
    assert given == dict(base_url=url, api_key='tml-none')
    assert os.environ['TINKER_TELEMETRY'] == '0'

def test_the_key_of_an_engine_goes_only_where_the_user_said():
    config = SkillRLConfig().merged({'model.engine_api_base': 'https://mug:8000'})
    config.opened((), {'OPENAI_API_KEY': 'sk-other'}) # Which no engine is ever sent
    mine = {'SKILLRL_ENGINE_API_KEY': 'tml-mine'}
    with pytest.raises(ValueError, match='by --set model.engine_api_base'):
        config.opened((), mine)
    assert config.opened(['https://mug:8000'], mine).model.engine_api_key == 'tml-mine'

@pytest.fixture
def engine(url, monkeypatch):
    "A local engine with the shipped base, where the SDK would connect"
    served = LocalEngine(Policy.load(data_path('base')))
    monkeypatch.setattr(tinker, 'ServiceClient', lambda **kw: served)
    open_service.cache_clear()
    yield served
    open_service.cache_clear()

TINY = SMOKE | {'sft.steps': 3, 'rl.iterations': 2, 'env.train_suites': 1, 'env.test_suites': 1,
                'env.episodes': 2, 'env.test_tasks': 2, 'env.max_steps': 6}

class Killed(Exception):
    pass

def test_a_run_on_an_engine_is_killed_and_resumed(tmp_path, url, engine):
    config = SkillRLConfig().merged(TINY | {'model.engine_api_base': url})
    def kill(phase, done, total):
        if (phase, done) == ('rl', 1):
            raise Killed
    with pytest.raises(Killed):
        train(config, tmp_path/'run', step=kill)
    before = len(engine.clients)
    train(config, tmp_path/'run', resume=True)
    folders = read_json(tmp_path/'run'/'state.json')['folders']
    files = [tmp_path/'run'/folders[name]/'tinker.json' for name in ('reference', 'policy')]
    paths = [read_json(file)['path'] for file in files]
    assert set(paths) < engine.states.keys()
    assert (tmp_path/'run'/'report.md').exists()
    assert (before, len(engine.clients) - before) == (4, 3) # Adapters that the server must have room for
    moved = [engine.states[path].optimizer for path in paths]
    assert all(optimizer.state for optimizer in moved)
    assert isinstance(builders.build_local_policy(config), TinkerPolicy)
    elsewhere = SkillRLConfig().merged({'model.checkpoint': str(tmp_path/'run'/folders['policy'])})
    with pytest.raises(ValueError, match='--engine URL'):
        builders.build_local_policy(elsewhere)
