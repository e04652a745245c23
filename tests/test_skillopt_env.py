"""What a skill is tried on.

Results whose scores are numbers, questions judged by words, and a client that never takes an outage
for an answer."""
import json, math
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import pytest
from faults import RESET, FaultServer, error, said, truncated
from skillrl.skillopt.qa import _BARE, SimpleQAEnv, f1, _qa_score, says, words
from skillrl.llm.chat import ScriptedChat
from skillrl.llm.ledger import BudgetExceeded, Ledger, ReplyCache
from skillrl.llm.reply import Outage
from skillrl.llm.openai_client import OpenAIChatClient
from skillrl.core.store import to_json
from skillrl.skillopt.settings import SkillOptConfig
from skillrl.skillopt.trainer import SkillOptTrainer
from skillrl.skillopt.types import RolloutResult

# --- results ---

full = dict(
    id='capitals-7', hard=.5, soft=.25, n_turns=3, fail_reason='names two cities',
    task_type='capitals', task_description='geography', question='What is the capital of Brazil?',
    predicted_answer='Rio', reference_text='Brasília',
    target_system_prompt='Answer.', target_user_prompt='Q', conversation=[dict(role='user', content='Q')],
    extras=dict(source='atlas', pages=[3, 5]), status='infra_error', usage=dict(calls=1))

def through_a_file(result):
    "`result` written as JSON and read back"
    return RolloutResult.from_dict(json.loads(to_json(result.to_dict())))

def test_D6_extras_keep_to_themselves():
    extras = dict(hard=0, soft=9, id='other', status='infra_error', extras=dict(deep=1))
    r = RolloutResult('capitals-7', 1, .5, extras=extras)
    d = r.to_dict()
    assert (d['id'], d['hard'], d['soft'], d['status']) == ('capitals-7', 1, .5, 'ok')
    assert through_a_file(r) == r

def test_D6_fractions_are_kept():
    r = RolloutResult.from_dict(dict(id='a', hard=.5, soft=1/3)).checked()
    assert (r.hard, r.soft) == (.5, 1/3)
    assert through_a_file(r).hard == .5

def test_D6_null_is_not_a_score_and_says_so():
    r = RolloutResult.from_dict(dict(id='capitals-7', hard=None))
    with pytest.raises(ValueError, match="^hard of item 'capitals-7' is None: .*from 0 to 1"):
        r.checked()

def test_a_flat_result_of_another_library_is_read():
    flat = dict(id=7, hard=True, soft=1, fail_reason=None, conversation=None, n_turns=2.,
                latency=3.5, tool='search', extras=dict(tool='map'))
    r = RolloutResult.from_dict(flat)
    assert (r.id, r.hard, r.n_turns, r.fail_reason, r.conversation) == ('7', True, 2, '', [])
    assert r.extras == dict(latency=3.5, tool='map')
    assert r.checked() is r

@pytest.mark.parametrize('keys', [full.keys(), ['id']], ids=['whole', 'id alone'])
def test_a_result_survives_a_file(keys):
    r = RolloutResult.from_dict({k: full[k] for k in keys})
    d = json.loads(to_json(r.to_dict()))
    assert RolloutResult.from_dict(d) == r
    assert {'id', 'hard', 'soft', 'status'} <= d.keys()
    assert {k: d[k] for k in keys} == {k: full[k] for k in keys}

def test_two_results_share_nothing():
    a, b = RolloutResult('a'), RolloutResult('b')
    a.conversation.append(1)
    a.extras.update(x=1)
    a.usage.update(calls=1)
    assert (b.conversation, b.extras, b.usage) == ([], {}, {})

NO_SCORES = [-.01, 1.0001, math.nan, None, '1', b'1', 10**400]
SCORES = [0, 1, True, .5, np.array(.25)]

@pytest.mark.parametrize('field, v', [('soft', 1.0001), *(('hard', v) for v in NO_SCORES)], ids=repr)
def test_D7_what_is_no_score_is_refused_by_name(field, v):
    r = RolloutResult('capitals-7', **{field: v})
    expected = rf"^{field} of item 'capitals-7' is .*: a score is a number from 0 to 1"
    with pytest.raises(ValueError, match=expected) as e:
        r.checked()
    assert len(str(e.value)) < 250

@pytest.mark.parametrize('v', SCORES, ids=repr)
def test_D7_what_is_a_score_becomes_a_plain_float(v):
    r = RolloutResult('a', v, v).checked()
    assert type(r.hard) is type(r.soft) is float
    assert r.hard == float(v)
    assert json.loads(json.dumps(r.to_dict(), allow_nan=False))['hard'] == float(v)

# --- environments ---

def qa(answers, question='Which?', **item):
    "An environment whose one training item has these `answers`"
    items = [dict(id='q', question=question, answers=answers, **item)]
    return SimpleQAEnv(train_items=items, val_items=[], test_items=[])

def played(reply, answers, skill='', **item):
    "(result, client) of the one item when the model says `reply`"
    env, chat = qa(answers, **item), ScriptedChat([reply])
    result = env.rollout_one(item=env.get_items('train')[0], skill=skill, target_client=chat)
    return result.checked(), chat

C14 = [ # Reply, reference, hard, soft
    ('In 2013', '13', 0, 0.),
    ('It is not Paris', 'Paris', 0, 0.),
    ('Brasilia', 'Brasília', 1, 1.),
    ('Paris, France.', 'Paris', 1, 1.),
    ('the Beatles', 'Beatles', 1, 1.),
    ('It isn’t Paris', 'Paris', 0, 0.),
    ('not Lyon but Paris', 'Paris', 1, 1.),
    ('not Lyon but Paris', 'Lyon', 0, 0.),
    ('Paris, not Lyon', 'Paris', 1, 1.),
    ('He was not guilty', 'not guilty', 1, 1.),
    ('It was not until 1945', '1945', 1, 1.),
    ('1,000', '1000', 1, 1.),
    ('3.50', '3.5', 1, 1.),
    ('3.5', '3', 0, 0.),
    ('-5', '5', 0, 0.),
    ('−5', '-5', 1, 1.),
    ('13th', '13', 0, 0.),
    ('about 13 of them', '13', 1, 1.),
    ('2010-2013', '2013', 1, 1.),
    ('x = -5', '-5', 1, 1.),
    ('Because', 'B', 0, 0.),
    ('U.S.', 'US', 1, 1.),
    ('答えは東京です', '東京', 1, 1.),
    ('🙂', '🙂', 1, 1.),
    ('🙂', '🙁', 0, 0.),
    ('Lyon or Nice', 'Nice Lyon', 0, 4/5),
    ('Paris Paris Paris', 'Paris Lyon', 0, 2/5),
    ('Rome', 'Paris', 0, 0.),
]

@pytest.mark.parametrize('reply, answer, hard, soft', C14, ids=[f'{r} vs {a}' for r, a, *_ in C14])
def test_C14_words_and_not_letters(reply, answer, hard, soft):
    assert _qa_score(reply, [answer]) == (hard, round(soft, 4))

def agrees_with_itself(text):
    one_case = words(text.upper()) == words(text.lower())
    return one_case and says(text, text) is True and f1(text, text) in (0., 1.)

def test_everything_says_itself():
    texts = {text for reply, answer, *_ in C14 for text in (reply, answer) if text}
    assert sorted(text for text in texts if not agrees_with_itself(text)) == []

WILD = ['1'*10**5, '1.'*50_000, '1,111'*20_000, 'a.'*50_000, "a'"*50_000, '('*10**5, ' '*10**5,
        'not ' + 'paris '*20_000, '東'*10**5, ' - '*30_000, '\u0300'*10**5]

@pytest.mark.parametrize('text', WILD, ids=lambda t: repr(t[:6]))
def test_a_reply_gone_wild_is_judged(text):
    _qa_score(text, ['Paris', text[:100]])

@pytest.mark.parametrize('skill', [' \n', None])
def test_without_a_skill_a_sentence_stands_in(skill):
    _, chat = played('sink', 'sink', skill=skill)
    assert chat.calls[0][0]['content'] == _BARE

class Scripted:
    "Answers right when its system message says the rule"
    model = 'scripted'
    def __init__(self):
        self.systems = []
    def chat(self, *, system, user, stage='', **kw):
        if stage != 'rollout':
            return json.dumps(dict(edits=[dict(op='append', content='- Say sink.')])), {}
        self.systems.append(system)
        return ('sink' if 'Say sink' in system else 'tub'), {}

@pytest.mark.parametrize('skill', ['', ' \n', 'Be kind.\n'])
def test_the_first_and_the_best_skill_share_their_instruction(tmp_path, skill):
    items = {f'{split}_items': [dict(id=str(i), question=f'Where does mug {i} go?', answers='sink')
                                for i in range(4)] for split in ('train', 'val', 'test')}
    env, target = SimpleQAEnv(**items, initial_skill=skill), Scripted()
    config = SkillOptConfig(num_epochs=1, verbose=False, out_root=str(tmp_path))
    summary = SkillOptTrainer(config=config, env=env, optimizer_client=target, target_client=target).train()
    assert (summary['baseline_test_hard'], summary['test_hard']) == (0, 1)
    assert all(system.startswith(skill.strip() or _BARE) for system in target.systems)

# --- chat: one system, one user, text and usage ---

@pytest.fixture
def client(monkeypatch):
    "Makes a client of a server that waits without waiting"
    for name in ('OPENAI_API_KEY', 'OPENAI_BASE_URL'):
        monkeypatch.delenv(name, raising=False)

    def make(server, **kw):
        usual = dict(api_key='Zq7-mug-and-spoon', base_url=server.url, retries=2, timeout=5.,
                     pause=lambda seconds: None)
        return OpenAIChatClient('mini', **usual | kw)
    return make

ANSWER = 'A mug goes into the sink first.' # What the server says unless told otherwise
FREE = dict(calls=0, prompt_tokens=0, completion_tokens=0, total_tokens=0)

def test_what_chat_sends_and_brings(client):
    with FaultServer() as s:
        text, usage = client(s).chat(system='Be brief.', user='Where?', max_completion_tokens=50,
                                     temperature=0, stage='rollout', retries=9, seed=7)
    messages = [dict(role='system', content='Be brief.'), dict(role='user', content='Where?')]
    assert s.requests[0]['body'] == dict(model='mini', messages=messages, max_tokens=50,
                                         temperature=0, seed=7)
    assert text == ANSWER
    assert usage == dict(calls=1, prompt_tokens=11, completion_tokens=7, total_tokens=18, stage='rollout')

def test_what_is_not_said_is_not_sent(client):
    with FaultServer() as s:
        client(s).chat(system='', user='')
        client(s, default_temperature=.7).chat(system=None, user='Where?', max_completion_tokens=None)
    first, second = (r['body'] for r in s.requests)
    assert first == dict(model='mini', messages=[dict(role='user', content='')], max_tokens=4096)
    assert second == dict(model='mini', messages=[dict(role='user', content='Where?')], temperature=.7)

OUTAGES = { # Name → (fault, requests until it is given up)
    '401': (error(401, 'bad key {key}'), 1),
    'quota': (error(429, 'used up', 'insufficient_quota'), 1),
    '429': (error(429, retry_after='1'), 3),
    'reset': (RESET, 3),
    'truncated': (truncated(), 3),
}

@pytest.mark.parametrize('fault, requests', OUTAGES.values(), ids=OUTAGES)
def test_E3_an_outage_is_raised_and_never_an_answer(client, fault, requests):
    with FaultServer(rest=fault) as s, pytest.raises(Outage) as e:
        client(s).chat(system='Be brief.', user='Where?', retries=5)
    assert s.count == requests
    assert e.value.replies[0].status == 'infra_error'
    assert 'mug-and-spoon' not in str(e.value)

def test_E3_what_passes_is_answered(client):
    with FaultServer(error(429, retry_after='1'), RESET) as s:
        assert client(s).chat(system='', user='Where?')[0] == ANSWER
        assert s.count == 3

NEW_SERVERS = ["Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
               'Unrecognized request argument supplied: max_tokens']

@pytest.mark.parametrize('message', NEW_SERVERS)
def test_E4_the_other_name_is_remembered(client, message):
    def new(request):
        return error(400, message) if 'max_tokens' in request['body'] else said()

    with FaultServer(rest=new) as s:
        c = client(s)
        for _ in range(5):
            assert c.chat(system='', user='Where?', max_completion_tokens=9)[0]
        assert s.count == 6
        assert [r['body'].get('max_completion_tokens') for r in s.requests] == [None] + [9]*5

def test_a_refusal_is_an_answer_with_its_reason(client):
    filtered = said('', 'content_filter')
    refused = said(None, refusal='I do not discuss mugs.', usage=None)
    with FaultServer(filtered, refused) as s, pytest.warns(UserWarning, match='estimated'):
        first, usage = client(s).chat(system='', user='Where?')
        second, estimated = client(s).chat(system='', user='Where?')
    assert first == second == ''
    assert usage['refused']
    assert (usage['calls'], usage['total_tokens']) == (1, 18)
    assert estimated['refused'] == 'I do not discuss mugs.'
    assert 0 < estimated['total_tokens'] < 60

def test_what_is_known_is_free(tmp_path):
    chat = ScriptedChat(['In the sink.'], cache=ReplyCache(tmp_path))
    paid, usage = chat.chat(system='', user='Where is it?', stage='rollout')
    known, free = chat.chat(system='', user='Where is it?', stage='gate')
    assert paid == known
    assert usage == dict(calls=1, prompt_tokens=3, completion_tokens=3, total_tokens=6, stage='rollout')
    assert free == FREE | dict(cached=True, stage='gate')
    assert chat.ledger.tokens == 6

def test_the_budget_holds_before_the_call():
    chat = ScriptedChat(lambda m: 'In the sink.', ledger=Ledger(budget_tokens=100))
    with pytest.raises(BudgetExceeded):
        chat.chat(system='', user='Where?', max_completion_tokens=4096)
    assert chat.calls == []
    assert chat.chat(system='', user='Where?', max_completion_tokens=20)[0] == 'In the sink.'

def test_thoughts_are_no_answer():
    chat = ScriptedChat(['<think>Low?</think>In the sink.'])
    assert chat.chat(system='', user='Where?')[0] == 'In the sink.'

def test_an_outage_leaves_a_rollout_unscored():
    env, chat = qa('sink'), ScriptedChat([ConnectionError('refused')])
    with pytest.raises(Outage):
        env.rollout_one(item=env.get_items('train')[0], skill='', target_client=chat)

def test_many_threads_share_one_bill():
    chat, env = ScriptedChat(lambda m: 'In the sink.'), qa('sink')
    item = env.get_items('train')[0]

    def play(i):
        return env.rollout_one(item=item, skill=f'skill {i}', target_client=chat).checked()

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(play, range(200)))
    assert all(r.hard for r in results)
    assert chat.ledger.counts['scripted'][0] == len(chat.calls) == 200
