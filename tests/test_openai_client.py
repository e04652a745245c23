"A service that is late, rude, full, mute or torn: what each costs in requests, and that the key stays put"
import gc, logging, os, random, subprocess, sys, threading, traceback
import numpy as np
import pytest
from faults import CUT, RESET, Answer, FaultServer, error, said, slow, truncated
from skillrl.llm.ledger import BudgetExceeded, Ledger, ReplyCache
from skillrl.llm.reply import Outage
from skillrl.llm.openai_client import OpenAIChatClient, OpenAIEmbedder
from skillrl.llm.service import _MAX_RETRY_WAIT, NoReply, is_local, read_chat
from skillrl.core.store import JsonlLog

KEY = 'Zq7-mug-and-spoon_0451'
RETRIES = 2

@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for k in list(os.environ):
        if k.startswith('OPENAI') or k.lower().endswith('_proxy'):
            monkeypatch.delenv(k)

@pytest.fixture
def naps():
    return []

@pytest.fixture
def client(naps):
    "Makes a client of a server that waits without waiting"
    def make(server, **kw):
        kw = dict(api_key=KEY, base_url=server.url, retries=RETRIES, timeout=5., pause=naps.append) | kw
        return OpenAIChatClient('mini', **kw)
    return make

def ask(text='Why was the mug not accepted?'):
    return [dict(role='user', content=text)]

# --- faults: requests, status, words in the error ---
passing = dict(
    minute_429=(
        error(429, 'You exceeded your current quota: 15 requests per minute', 'rate_limit_exceeded'),
        '[rate_limit_exceeded] You exceeded'),
    plain_429=(error(429, 'slow down'), 'slow down'),
    retry_after=(error(429, 'slow down', retry_after='1'), 'ask less at a time'),
    timeout_408=(error(408), '408'),
    conflict_409=(error(409), '409'),
    oops_500=(error(500), '500'),
    busy_503=(error(503, retry_after='2'), '503'),
    bare_500=(Answer('', 500), '500'),
    reset=(RESET, 'broke off'),
    torn_body=(CUT, 'broke off'),
    late=(slow(3), 'no answer within 0.15 s'),
    no_choices=(said(choices=0), 'no choice'),
    choice_null=(Answer(dict(choices=[None])), 'no choice'),
    no_message=(Answer(dict(choices=[dict(finish_reason='stop')])), 'no choice'),
    null_content=(said(None), 'no text'),
    error_inside_200=(Answer(dict(error=dict(message='upstream is full'))), 'upstream is full'),
    number_content=(said(7), 'no text'),
    truncated=(truncated(), 'no JSON'),
    json_null=(Answer('null'), 'no choice'),
    bytes_garbage=(Answer(b'\xff\xfe\x80'), 'no JSON'),
    deep=(Answer('[' * 100_000), 'no JSON'),
    not_gzip=(Answer('mug', headers={'Content-Encoding': 'gzip'}), 'broke off'),
)
permanent = dict(
    bad_400=(error(400, 'no such role'), 'correct the request'),
    wrong_key_401=(error(401, 'bad key'), 'check the API key'),
    forbidden_403=(error(403), 'may do'),
    absent_404=(error(404), '/v1'),
    fastapi_404=(Answer(dict(detail='Not Found'), 404), 'Not Found'),
    unprocessable_422=(Answer(dict(detail=[dict(loc=['body', 'messages'], msg='field required')]), 422),
                       'field required'),
    quota_by_type_429=(
        Answer(dict(error=dict(message='x' * 500, type='insufficient_quota', code=None)), 429), 'used up'),
    quota_429=(error(429, 'You exceeded your current quota', 'insufficient_quota', retry_after='1'),
               'used up'),
    moved_307=(Answer('', 307, {'Location': 'http://elsewhere/v1'}), 'elsewhere'),
    html_404=(Answer('<h1>Nothing here</h1>', 404), 'Nothing here'),
)

@pytest.mark.parametrize('fault,says', passing.values(), ids=passing)
def test_a_passing_fault_that_stays(client, naps, fault, says):
    with FaultServer(rest=fault) as s:
        r = client(s, timeout=.15 if fault.delay else 5.).reply(ask())
        assert (r.status, s.count, len(naps))==('infra_error', 1 + RETRIES, RETRIES)
        assert says in r.error and s.url in r.error and '\n' not in r.error and r.text==''

# One of each way to fail; that the others are asked again too is seen where they stay
WAYS_TO_FAIL = 'plain_429 oops_500 reset late truncated no_choices'.split()

@pytest.mark.parametrize('name', WAYS_TO_FAIL)
def test_a_passing_fault_that_passes(client, naps, name):
    fault, _ = passing[name]
    with FaultServer(fault) as s:
        r = client(s, timeout=.15 if fault.delay else 5.).reply(ask())
        assert (r.status, r.text, s.count, len(naps))==('ok', 'A mug goes into the sink first.', 2, 1)

@pytest.mark.parametrize('fault,says', permanent.values(), ids=permanent)
def test_a_lasting_fault_is_met_once(client, naps, fault, says):
    with FaultServer(rest=fault) as s:
        r = client(s).reply(ask())
        assert (r.status, s.count, naps)==('infra_error', 1, [])
        assert says in r.error and '\n' not in r.error and len(r.error) < 600

refusals = dict(
    filtered=said('', 'content_filter'),
    declined=said(None, refusal='I cannot discuss mugs.'),
    azure=error(400, "The response was filtered due to Azure OpenAI's content management policy.",
                'content_filter'),
    policy=error(400, 'no', 'content_policy_violation'),
    thinking_only=said(None, 'length', reasoning_content='A mug, a mug'),
    out_of_tokens=said(None, 'length'),
    tool_call=said(None, 'tool_calls', tool_calls=[]),
    empty=said(''),
    thought_in_tags=said('<think>A mug, a m', 'length'),
)

@pytest.mark.parametrize('answer', refusals.values(), ids=refusals)
def test_a_no_is_a_refusal_and_is_not_asked_again(client, answer):
    with FaultServer(rest=answer) as s:
        r = client(s).reply(ask())
        assert (r.status, s.count)==('refused', 1) and r.error

def test_nobody_home(client, naps):
    with FaultServer() as s:
        pass
    r = client(s).reply(ask())
    assert (
        r.status == 'infra_error'
        and 'broke off' in r.error
        and 'whether the server runs' in r.error
        and len(naps) == RETRIES
    )

def test_the_package_below_does_not_retry(client):
    "One layer: the requests of several faults in a row add up, and never multiply"
    with FaultServer(error(429), RESET, error(500), truncated(), said('mug')) as s:
        assert client(s, retries=4).reply(ask()).text=='mug'
        assert s.count==5 and {r['headers'].get('x-stainless-retry-count') for r in s.requests}=={'0'}

# --- waiting ---
@pytest.mark.parametrize(
    'header,wait',
    [('0', 0), ('0.5', 0.5), ('60', 60), ('61', _MAX_RETRY_WAIT), ('1e400', _MAX_RETRY_WAIT)],
)
def test_retry_after_is_kept_to(client, naps, header, wait):
    with FaultServer(error(429, retry_after=header)) as s:
        client(s).reply(ask())
    assert naps==[wait]

# --- what a reply says ---
def test_a_reply_has_all_its_parts(client):
    answer = said('<think>Dirty.</think>Rinse it.', usage=(123, 45), reasoning_content='A mug.')
    with FaultServer(answer) as s:
        r = client(s, default_temperature=.3).reply(ask(), seed=3, top_k=5, min_p=.1)
    assert (r.text, r.thought, r.finish, r.status)==('Rinse it.', 'A mug.\nDirty.', 'stop', 'ok')
    assert (r.prompt_tokens, r.completion_tokens, r.cached)==(123, 45, False)
    sent = dict(model='mini', messages=ask(), seed=3, temperature=.3, top_k=5, min_p=.1)
    assert s.requests[0]['body']==sent

@pytest.mark.parametrize(
    'usage',
    [None, [], 'many', dict(prompt_tokens=None), dict(prompt_tokens='7', completion_tokens=-2),
     dict(prompt_tokens=True)],
)
def test_a_count_that_is_missing_is_estimated_and_says_so(client, usage):
    "Five tokens read and eight written, as most tokenizers count"
    with (FaultServer(rest=Answer(said().body | dict(usage=usage))) as s,
          pytest.warns(UserWarning, match='estimated, at most so many')):
        r = client(s).reply(ask())
    assert r.ok and 8 <= r.prompt_tokens <= 60 and 8 <= r.completion_tokens <= 20

def test_a_budget_binds_where_the_server_reports_no_usage(client):
    mute = said('a mug, a plate, ' * 100, usage=None)
    for budget in (dict(budget_usd=.01), dict(budget_tokens=10_000)):
        with FaultServer(rest=mute) as s, pytest.warns(UserWarning):
            c = client(s, ledger=Ledger({'mini': (1., 2.)}, **budget), parallel=1)
            with pytest.raises(BudgetExceeded) as e:
                c.replies(asks(100), max_tokens=900)
            assert 2 < s.count < 20 and len(e.value.replies)==s.count

def test_a_resumed_ledger_knows_what_was_paid(client, tmp_path):
    from skillrl.core.config import ModelConfig, SkillRLConfig
    from skillrl.training.builders import build_teacher
    with FaultServer(rest=said(usage=None)) as s, pytest.warns(UserWarning):
        m = ModelConfig(teacher_model_id='mini', teacher_api_base=s.url)
        m.teacher_api_key = 'none'
        first = build_teacher(SkillRLConfig(model=m), tmp_path).chat
        first.reply(ask())
        again = build_teacher(SkillRLConfig(model=m), tmp_path).chat.ledger
    assert again.counts==first.ledger.counts and again.tokens > 0

def test_an_answer_without_a_reply_and_without_a_count_is_not_billed(client):
    with FaultServer(Answer(dict(error=dict(message='upstream is full'))), said(usage=(100, 5))) as s:
        r = client(s).reply(ask())
    assert (r.prompt_tokens, r.completion_tokens)==(100, 5)

@pytest.mark.parametrize('text', ['naïve café ☕', '\ud800 alone', 'nul \0', 'a'*300_000, '"}]}', '日本語'])
def test_any_text_travels_both_ways(client, tmp_path, text):
    with FaultServer(lambda r: said(r['body']['messages'][0]['content'] + '!')) as s:
        r = client(s, cache=ReplyCache(tmp_path/'c'), log=JsonlLog(tmp_path/'l.jsonl')).reply(ask(text))
    assert r.ok and r.text.endswith('!') and (r.text[:-1]==text or not text.isprintable())

def test_random_answers_never_raise():
    "Every shape of JSON is a reply or garbled"
    rng, values = (random.Random(0),
                   [None, [], {}, '', 'mug', 3, -1, 2.5, True, [None], [[]], [{}], {'message': {}}])
    names = ['choices', 'message', 'content', 'finish_reason', 'usage', 'refusal', 'reasoning_content',
             'error', 'prompt_tokens']
    def some(depth):
        if depth==0 or rng.random() < .2:
            return rng.choice(values)
        if rng.random() < .3:
            return [some(depth-1) for _ in range(rng.randint(0, 2))]
        return {k: some(depth-1) for k in rng.sample(names, rng.randint(1, 5))}
    seen = set()
    for _ in range(20_000):
        d = some(4)
        if rng.random() < .5:
            d = dict(choices=[dict(message=some(2), finish_reason=some(1))], usage=some(2))
        try:
            seen.add(read_chat(d).status)
        except NoReply:
            seen.add('garbled')
    assert seen=={'ok', 'refused', 'garbled'}

# --- dialects ---
ONLY_THE_NEWER = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. "
    "Use 'max_completion_tokens' instead."
)
objecting = [ONLY_THE_NEWER, 'Unrecognized request argument supplied: max_tokens',
             'max_tokens: Extra inputs are not permitted',
             "Unexpected fields in the request: {'max_tokens'}"]

def only(name, message, status=400):
    "A server that knows the limit under `name` alone"
    def answer(request):
        wrong = {'max_tokens', 'max_completion_tokens'} - {name}
        return Answer(dict(detail=message), status) if wrong & request['body'].keys() else said()
    return answer

@pytest.mark.parametrize(
    'message, status, given',
    [*((message, 400, 'max_tokens') for message in objecting),
     (ONLY_THE_NEWER, 422, 'max_tokens'), (ONLY_THE_NEWER, 400, 'max_completion_tokens')],
)
def test_the_name_of_the_limit_is_learnt_once(client, naps, message, status, given):
    with FaultServer(rest=only('max_completion_tokens', message, status)) as s:
        c = client(s)
        assert [c.reply(ask(str(i)), **{given: 50}).ok for i in range(4)]==[True]*4
        assert s.count==1 + 4 and naps==[]
        assert all(r['body']['max_completion_tokens']==50 for r in s.requests[1:])

def cool(request):
    return (
        error(
            400,
            "'temperature' does not support 0.7 with this model. Only the default (1) value is supported.")
        if 'temperature' in request['body']
        else said()
    )

def test_a_temperature_is_dropped_once_and_said_so(client):
    with FaultServer(rest=cool) as s, pytest.warns(UserWarning, match='mini takes no temperature') as said_so:
        c = client(s, default_temperature=.7)
        assert [c.reply(ask(str(i))).ok for i in range(3)]==[True]*3
        assert s.count==1 + 3 and len([w for w in said_so if w.category is UserWarning])==1

def test_the_newer_name_is_for_openai_and_azure():
    where = ['https://api.openai.com/v1', 'https://mug.openai.azure.com/openai/v1',
             'https://openai.mug.example', 'http://192.168.0.7:11434/v1']
    named = [OpenAIChatClient('mini', api_key=KEY, base_url=url).names['max_tokens'] for url in where]
    assert named==['max_completion_tokens']*2 + ['max_tokens']*2

# --- a reply in a given form ---
SKILL = dict(type='object', properties=dict(title=dict(type='string')), required=['title'],
             additionalProperties=False)
NO_SCHEMA = ["This response_format type is unavailable now", "'response_format.type' must be 'text'",
             'json_schema: Extra inputs are not permitted', "Invalid schema for response_format 'reply'",
             'Failed to parse grammar']

def formed(*known, text='{"title": "Rinse first"}', message=NO_SCHEMA[0], status=400):
    "A server that knows some forms of a reply, `plain` among them"
    def answer(r):
        form = r['body'].get('response_format', dict(type='plain'))['type']
        return said(text) if form in known else error(status, message)
    return answer

def forms(s):
    return [r['body'].get('response_format', dict(type='plain'))['type'] for r in s.requests]

def test_a_schema_is_sent_as_response_format(client):
    with FaultServer(rest=formed('json_schema')) as s:
        r = client(s).reply(ask(), response_format=SKILL)
    assert r.text=='{"title": "Rinse first"}' and s.requests[0]['body']['response_format']==dict(
        type='json_schema', json_schema=dict(name='reply', schema=SKILL, strict=True))

@pytest.mark.parametrize('message', NO_SCHEMA)
@pytest.mark.parametrize('status', [400, 422])
def test_a_form_that_a_server_refuses_is_refused_once(client, naps, message, status):
    with FaultServer(rest=formed('plain', message=message, status=status)) as s:
        c = client(s)
        assert [c.reply(ask(str(i)), response_format=SKILL).ok for i in range(3)]==[True]*3 and naps==[]
        assert forms(s)==['json_schema', 'plain', 'plain', 'plain']

def test_a_cached_reply_does_not_depend_on_the_form_that_was_sent(client, tmp_path):
    cache = ReplyCache(tmp_path/'c')
    with FaultServer(rest=formed('plain')) as s:
        assert not client(s, cache=cache).reply(ask(), response_format=SKILL).cached
        assert client(s, cache=cache).reply(ask(), response_format=SKILL).cached and s.count==2

# --- where and with which key ---
@pytest.mark.parametrize('path', ['', '/', '/openai', '/openai/deployments/mini', '/openai/v1/x'])
def test_an_azure_address_ends_in_openai_v1(path):
    azure = 'https://mug.openai.azure.com'
    with pytest.raises(ValueError, match=f"{azure}{path}' speaks Azure's own protocol.*end in /openai/v1"):
        OpenAIChatClient('mini', api_key=KEY, base_url=azure + path)
    for url in (f'{azure}/openai/v1', f'{azure}/openai/v1/', 'https://mug.models.ai.azure.com/v1',
                f'https://mug.example/{azure}'):
        assert OpenAIChatClient('mini', api_key=KEY, base_url=url).endpoint == url

def test_the_key_comes_from_the_argument_else_the_environment(client, monkeypatch):
    monkeypatch.setenv('OPENAI_API_KEY', 'from-the-environment\n')
    with FaultServer() as s:
        client(s).reply(ask()), client(s, api_key=None).reply(ask())
        monkeypatch.setenv('OPENAI_BASE_URL', s.url)
        OpenAIChatClient('mini').reply(ask())
        assert [r['key'] for r in s.requests]==[KEY, 'from-the-environment', 'from-the-environment']

@pytest.mark.parametrize(
    'url',
    ['https://mug.example/v1?api-key=hunter22', 'https://mug.example?key=a@hunter22',
     'https://bob:p?hunter22@mug.example/v1', 'https://mug.example/v1#hunter22'],
)
def test_a_query_in_an_address_is_refused_and_not_quoted(url, monkeypatch):
    for make in (OpenAIChatClient, OpenAIEmbedder):
        with pytest.raises(ValueError, match='leave it out') as e:
            make('mini', api_key=KEY, base_url=url)
        assert 'hunter22' not in ''.join(traceback.format_exception(e.value)).replace('base_url=url', '')
    monkeypatch.setenv('OPENAI_BASE_URL', url)
    with pytest.raises(ValueError, match='leave it out'):
        OpenAIChatClient('mini', api_key=KEY)

def test_a_local_server_needs_no_key(client):
    with FaultServer() as s:
        for url in (s.url, s.url.replace('127.0.0.1', 'localhost'), s.url + '/'):
            assert client(s, base_url=url, api_key=None).reply(ask()).ok
        assert {r['path'] for r in s.requests}=={'/v1/chat/completions'}

@pytest.mark.parametrize('url', [None, 'https://mug.example/v1'])
def test_a_missing_key_is_one_sentence(url):
    for make in (OpenAIChatClient, OpenAIEmbedder):
        with pytest.raises(ValueError, match='set OPENAI_API_KEY or pass api_key') as e:
            make('mini', base_url=url)
        assert '\n' not in str(e.value)

@pytest.mark.parametrize('key', ['two words', 'line\nbreak', 'ключ-от-дома', 'naïve', 'tab\tkey'])
def test_a_key_that_cannot_be_one_is_not_quoted(key):
    with pytest.raises(ValueError, match='copy it again') as e:
        OpenAIChatClient('mini', api_key=key, base_url='https://mug.example/v1')
    assert key not in str(e.value) and key not in ''.join(traceback.format_exception(e.value))

@pytest.mark.parametrize(
    'kw,says',
    [(dict(base_url='ftp://mug'), 'begin it with http'), (dict(base_url='http://'), 'begin it with http'),
     (dict(base_url='https://mug.openai.azure.com?x=1'), 'goes on with a query'),
     (dict(timeout=float('nan')), 'timeout is nan'), (dict(retries=1.5), 'retries is 1.5')],
)
def test_settings_are_checked_before_anything_is_sent(kw, says):
    with pytest.raises(ValueError, match=says):
        OpenAIChatClient('mini', **dict(base_url='http://localhost:9/v1') | kw)

def test_a_base_url_without_v1_is_kept_and_its_404_says_what_to_do(client):
    with FaultServer(
        rest=lambda r: said() if r['path'].startswith('/v1/') else Answer(dict(detail='Not Found'), 404)
    ) as s:
        r = client(s, base_url=s.url.removesuffix('/v1')).reply(ask())
        assert (
            s.requests[0]['path'] == '/chat/completions'
            and 'ends in /v1' in r.error
            and r.status == 'infra_error'
        )
        assert client(s).reply(ask()).ok

def test_no_proxy_stands_before_this_machine(client, monkeypatch):
    for k in ('HTTP_PROXY', 'http_proxy', 'ALL_PROXY', 'all_proxy'):
        monkeypatch.setenv(k, 'http://127.0.0.1:9')
    with FaultServer() as s:
        assert client(s, retries=0).reply(ask()).ok

def test_a_redirect_does_not_carry_the_key_away(client):
    with (FaultServer() as thief,
          FaultServer(rest=lambda r: Answer('', 307, {'Location': thief.url + '/chat/completions'})) as s):
        assert not client(s).reply(ask()).ok and thief.count==0

@pytest.mark.parametrize(
    'url,local',
    [('http://localhost:1', True), ('http://127.8.0.1', True), ('http://[::1]:3/v1', True),
     ('http://LOCALHOST', True), ('https://localhost.evil.com', False),
     ('http://127.0.0.1@evil.com/v1', False), ('https://api.openai.com/v1', False),
     ('http://127.evil.example/v1', False), ('http://127.0.0.1.nip.io', False),
     ('http://127.0.0.1.evil.example:80', False), ('http://localhost@evil.example', False),
     ('http://127.0.0.1:80@evil.example', False), ('http://0x7f.1', False), ('http://127.1', False),
     ('http://[::1', False), ('', False), ('http://localhost.:3', True), ('http://127.0.0.1./v1', True),
     ('http://[::ffff:127.0.0.1]:3', True), ('http://[::ffff:10.0.0.1]', False),
     ('http://0.0.0.0:3', True)],
)
def test_what_counts_as_this_machine(url, local):
    assert is_local(url)==local

# --- batches ---
def asks(n):
    return [ask(f'Episode {i}') for i in range(n)]
def number(request):
    return int(request['body']['messages'][0]['content'].split()[-1])

@pytest.mark.parametrize(
    'fault,says,each',
    [(error(401, 'Incorrect API key {key}'), '401', 1), (error(500), '500', 3), (RESET, 'broke off', 3),
     (said(choices=0), 'no choice', 3), (error(429, code='insufficient_quota'), 'used up', 1)],
)
@pytest.mark.parametrize('n', [1, 3, 100])
def test_a_total_outage_stops_early_with_its_cause(client, fault, says, each, n):
    with FaultServer(rest=fault) as s:
        with pytest.raises(Outage, match=says) as e:
            client(s).replies(asks(n))
        assert (
            s.count <= 5 * each
            and KEY not in str(e.value)
            and all(r.status == 'infra_error' for r in e.value.replies)
        )

def test_a_storm_of_faults_costs_no_answer(client):
    "Every prompt meets one random passing fault first; all are answered, each with one more request"
    rng, met = random.Random(0), {}
    lock = threading.Lock()
    kinds = [f for k, (f, _) in passing.items() if k not in ('late', 'deep')]
    def answer(r):
        with lock:
            met[number(r)] = met.get(number(r), 0) + 1
            return rng.choice(kinds) if met[number(r)]==1 else said(f'Reply {number(r)}')
    with FaultServer(rest=answer) as s:
        assert [r.text for r in client(s).replies(asks(120))] == [
            f'Reply {i}' for i in range(120)
        ] and s.count == 240

def test_garbled_answers_are_paid_for_and_counted(client):
    "Empty choices come with a bill"
    with FaultServer(said(choices=0, usage=(100, 0)), said('mug', usage=(100, 5))) as s:
        c = client(s, ledger=Ledger({'mini': (1., 2.)}))
        r = c.reply(ask())
        assert (r.prompt_tokens, r.completion_tokens, c.ledger.tokens)==(200, 5, 205)

# --- the key ---
echo = 'Incorrect API key provided: {key}. Find yours.'
leaky = dict(echoed_401=error(401, echo), echoed_400=error(400, echo), echoed_500=Answer(echo, 500),
             echoed_in_200=Answer(dict(error=echo)), refused_with=said(None, refusal=echo),
             header=Answer('', 302, {'Location': f'http://mug/?key={KEY}'}),
             half=error(401, 'x' * 285 + '{key}'), thought=said(None, 'length', reasoning_content=echo),
             broken=Answer('{key}'), detail=Answer(dict(detail=[dict(input='{key}')]), 422), reset=RESET,
             reply=said('your key is {key}'))

@pytest.mark.parametrize('fault', leaky.values(), ids=leaky)
def test_the_key_is_nowhere(client, tmp_path, caplog, fault):
    for name in ('openai', 'httpx2', 'skillrl'):
        caplog.set_level(logging.DEBUG, logger=name)
    texts = []
    with FaultServer(rest=fault) as s:
        c = client(s, cache=ReplyCache(tmp_path/'cache'), log=JsonlLog(tmp_path/'log.jsonl'))
        e = OpenAIEmbedder('small', base_url=s.url, api_key=KEY, retries=1, pause=lambda t: 0)
        for f in (
            lambda: c.replies(asks(3), user=f'me {KEY}'),
            lambda: c.reply(ask(f'Is {KEY} a good key?')),
            lambda: c.replies([]),
            lambda: e.encode(['mug']),
            lambda: c.service.ask(c.service.client.chat.completions.with_raw_response.create, read_chat,
                                  model='mini', messages=ask()),
        ):
            try:
                texts.append(repr(f()) if f else '')
            except Exception as x:
                texts.append(''.join(traceback.format_exception(x)))
        texts += [repr(c), repr(e), repr(c.service), repr(c.ledger), c.endpoint]
        assert s.count and all(r['key']==KEY for r in s.requests)
    files = [p for p in tmp_path.rglob('*') if p.is_file()]
    assert files and len(texts)==10
    raw = texts[4] # `Service.ask` hands an answer on as it came, and `Chat` cleans it
    for where in ([t for t in texts if t is not raw or 'Error' in t or 'Failed' in t]
    + [p.read_text() for p in files]
    + [caplog.text]):
        assert KEY not in where and KEY[:12] not in where

def test_a_password_in_the_address_is_not_shown(client):
    with FaultServer(rest=error(500)) as s:
        c = client(s, base_url=s.url.replace('//', '//cook:hunter22@'))
        assert 'hunter22' not in c.reply(ask()).error + repr(c.service) + c.endpoint

def test_a_client_that_is_gone_leaves_no_connection(client):
    with FaultServer() as s:
        c = client(s)
        c.reply(ask())
        web = c.service.client
        assert not web.is_closed()
        del c
        gc.collect()
        assert web.is_closed()

def test_importing_and_making_nothing_loads_no_openai():
    heavy = ('openai', 'httpx2', 'torch', 'numpy')
    code = f'import skillrl.llm.openai_client, sys; print([m for m in {heavy} if m in sys.modules])'
    assert subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stdout.strip()=='[]'

# --- vectors ---
@pytest.fixture
def embedder(naps):
    def make(server, **kw):
        return OpenAIEmbedder(
            'small',
            **dict(base_url=server.url, api_key=KEY, retries=RETRIES, pause=naps.append, timeout=5.0) | kw)
    return make

def test_vectors_come_in_order_in_chunks(embedder):
    texts = ['m'*(i % 40 + 1) for i in range(600)]
    with FaultServer() as s:
        e = embedder(s)
        v = e.encode(texts)
        assert (v.shape, v.dtype)==((600, 3), np.float32) and v[:, 0].tolist()==[len(t) for t in texts]
        assert [len(r['body']['input']) for r in s.requests] == [256, 256, 88] and {
            r['path'] for r in s.requests
        } == {'/v1/embeddings'}
        assert s.requests[0]['body']['encoding_format']=='float'

def test_an_empty_text_and_a_broken_one_still_have_vectors(embedder):
    with FaultServer() as s:
        assert embedder(s).encode(['', '\ud800', 'mug ☕']).shape == (3, 3) and s.requests[0]['body'][
            'input'] == [' ', '?', 'mug ☕']

def row(i, v):
    return dict(index=i, embedding=v)
nonsense = dict(
    none=dict(data=[]), too_few=dict(data=[row(0, [1])]), twice=dict(data=[row(0, [1]), row(0, [1])]),
    ragged=dict(data=[row(0, [1]), row(1, [1, 2])]), empty=dict(data=[row(0, []), row(1, [])]),
    nan=dict(data=[row(0, [1]), row(1, [float('nan')])]), text=dict(data=[row(0, [1]), row(1, ['mug'])]),
    base64=dict(data=[row(0, 'AAAA'), row(1, 'AAAA')]), flat=dict(data=[1, 2]), chat=said().body, lists=[],
    unhashable=dict(data=[dict(index=[], embedding=[1])]))

@pytest.mark.parametrize('answer', nonsense.values(), ids=nonsense)
def test_nonsense_for_vectors_is_asked_for_again_and_then_an_error(embedder, answer):
    with FaultServer(Answer(answer)) as s:
        assert embedder(s).encode(['mug', 'cup']).shape==(2, 3)
    with FaultServer(rest=Answer(answer)) as s:
        with pytest.raises(Outage, match='2 texts got no vectors.*garbled'):
            embedder(s).encode(['mug', 'cup'])
        assert s.count==1 + RETRIES

@pytest.mark.parametrize(
    'fault,count',
    [(error(401, 'bad key {key}'), 1), (error(404), 1), (error(429), 3), (RESET, 3), (truncated(), 3)])
def test_vectors_share_the_one_layer_of_retries(embedder, fault, count):
    with FaultServer(rest=fault) as s:
        with pytest.raises(Outage) as e:
            embedder(s).encode(['mug'])
        assert s.count==count and KEY not in str(e.value)
