"What a skill is tried on: results whose scores are numbers, questions judged by words, and a client that never takes an outage for an answer"
import json, math, time
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import pytest
from faults import RESET, FaultServer, error, said, truncated
from skillrl.envs.base import SkillEnv
from skillrl.envs.qa import BARE, SimpleQAEnv, f1, qa_score, says, words
from skillrl.llm.base import ScriptedChat
from skillrl.llm.ledger import BudgetExceeded, Ledger, ReplyCache
from skillrl.llm.reply import Outage
from skillrl.llm.openai_client import OpenAIChatClient
from skillrl.store import to_json
from skillrl.types import RolloutResult

# --- results ---
full = dict(id='capitals-7', hard=.5, soft=.25, n_turns=3, fail_reason='names two cities', task_type='capitals', task_description='geography',
            predicted_answer='Rio', question='What is the capital of Brazil?', reference_text='Brasília', target_system_prompt='Answer.', target_user_prompt='Q',
            conversation=[dict(role='user', content='Q')], extras=dict(source='atlas', pages=[3, 5]), status='infra_error', usage=dict(calls=1))

def test_D6_extras_keep_to_themselves():
    r = RolloutResult('capitals-7', 1, .5, extras=dict(hard=0, soft=9, id='other', status='infra_error', extras=dict(deep=1)))
    d = r.to_dict()
    assert (d['id'], d['hard'], d['soft'], d['status'])==('capitals-7', 1, .5, 'ok')
    assert RolloutResult.from_dict(json.loads(to_json(d)))==r

def test_D6_fractions_are_kept():
    r = RolloutResult.from_dict(dict(id='a', hard=.5, soft=1/3)).checked()
    assert (r.hard, r.soft)==(.5, 1/3) and RolloutResult.from_dict(json.loads(to_json(r.to_dict()))).hard==.5

def test_D6_null_is_not_a_score_and_says_so():
    r = RolloutResult.from_dict(dict(id='capitals-7', hard=None))
    with pytest.raises(ValueError, match="^hard of item 'capitals-7' is None: .*from 0 to 1"): r.checked()

def test_a_flat_result_of_another_library_is_read():
    r = RolloutResult.from_dict(dict(id=7, hard=True, soft=1, fail_reason=None, conversation=None, n_turns=2., latency=3.5, tool='search', extras=dict(tool='map')))
    assert (r.id, r.hard, r.n_turns, r.fail_reason, r.conversation)==('7', True, 2, '', []) and r.extras==dict(latency=3.5, tool='map') and r.checked() is r

@pytest.mark.parametrize('status,usage', [('success', 7), ('done', 'much'), (0, [1]), (True, 0), ('failed', None), (['ok'], (3, 4))])
def test_a_status_or_usage_of_another_library_is_an_extra(status, usage):
    r = RolloutResult.from_dict(dict(id='a', hard=1, soft=.5, status=status, usage=usage)).checked()
    assert (r.status, r.usage, r.hard)==('ok', {}, 1) and r.extras==dict(status=status) | (dict(usage=usage) if usage is not None else {})
    assert RolloutResult.from_dict(json.loads(to_json(r.to_dict()))).extras==json.loads(to_json(r.extras))

@pytest.mark.parametrize('keys', [full.keys(), ['id'], ['id', 'extras'], ['id', 'hard', 'usage']], ids=lambda k: f'{len(k)}_fields')
def test_a_result_survives_a_file(keys):
    r = RolloutResult.from_dict({k: full[k] for k in keys})
    d = json.loads(to_json(r.to_dict()))
    assert RolloutResult.from_dict(d)==r and {'id', 'hard', 'soft', 'status'} <= d.keys() and all(full[k]==d[k] for k in keys)

def test_two_results_share_nothing():
    a, b = RolloutResult('a'), RolloutResult('b')
    a.conversation.append(1), a.extras.update(x=1), a.usage.update(calls=1)
    assert (b.conversation, b.extras, b.usage)==([], {}, {})

@pytest.mark.parametrize('field', ['hard', 'soft'])
@pytest.mark.parametrize('v', [5, -.01, 1.0001, math.nan, math.inf, -math.inf, None, 'x', '1', '', b'1', [1], {}, 1j, 10**400, np.float64('nan'), np.array([1, 1])], ids=repr)
def test_D7_what_is_no_score_is_refused_by_name(field, v):
    r = RolloutResult('capitals-7', **{field: v})
    with pytest.raises(ValueError, match=rf"^{field} of item 'capitals-7' is .*: a score is a number from 0 to 1") as e: r.checked()
    assert len(str(e.value)) < 250

@pytest.mark.parametrize('v', [0, 1, True, False, .5, 1., np.float32(.5), np.bool_(True), np.int64(1), np.array(.25)], ids=repr)
def test_D7_what_is_a_score_becomes_a_plain_float(v):
    r = RolloutResult('a', v, v).checked()
    assert type(r.hard) is type(r.soft) is float and r.hard==float(v) and json.loads(json.dumps(r.to_dict(), allow_nan=False))['hard']==float(v)

@pytest.mark.parametrize('d', [None, 'won', 3, ['id'], (1, 0)], ids=repr)
def test_what_is_no_dict_is_no_result(d):
    with pytest.raises(TypeError, match='a result is a dict or a RolloutResult'): RolloutResult.from_dict(d)

def test_a_long_result_is_shown_short(): assert len(repr(RolloutResult('a', question='why '*9999, conversation=[dict(role='user', content='x'*9999)]))) < 300

# --- environments ---
def test_an_environment_has_two_methods():
    class Half(SkillEnv):
        def get_items(self, split): return []
    with pytest.raises(TypeError, match='rollout_one'): Half()
    class Whole(Half):
        def rollout_one(self, *, item, skill, target_client): return RolloutResult('a')
    env = Whole()
    assert (env.name, env.get_initial_skill(), env.get_task_types(), list(env.task_types))==('skill_env', '', [], [])

def qa(answers, question='Which?', **item): return SimpleQAEnv(train_items=[dict(id='q', question=question, answers=answers, **item)], val_items=[], test_items=[])

def played(reply, answers, skill='', **item):
    env, chat = qa(answers, **item), ScriptedChat([reply])
    return env.rollout_one(item=env.get_items('train')[0], skill=skill, target_client=chat).checked(), chat

@pytest.mark.parametrize('answers', [[144], 144, '144', ['144'], (144,), [144.], ['gross', 144]], ids=repr)
def test_C13_answers_may_be_numbers(answers):
    r, _ = played('It is 144.', answers)
    assert (r.hard, r.soft, r.status)==(1, 1, 'ok') and '144' in r.reference_text
    assert played('It is 145.', answers)[0].hard==0

# reply, references, hard, soft
C14 = [('Because I do not know', 'Au', 0, 0.), ('In 2013', '13', 0, 0.), ('It is not Paris', 'Paris', 0, 0.), ('Paris.', 'Paris, France', 0, 2/3), ('Brasilia', 'Brasília', 1, 1.),
       ('Brasília', 'Brasilia', 1, 1.), ('BRASÍLIA!', 'brasilia', 1, 1.), ('Paris, France.', 'Paris', 1, 1.), ('the Beatles', 'Beatles', 1, 1.), ('Au', 'Au', 1, 1.), ('The symbol is Au.', 'au', 1, 1.),
       ("It isn't Paris", 'Paris', 0, 0.), ('It isn’t Paris', 'Paris', 0, 0.), ('not Lyon but Paris', 'Paris', 1, 1.), ('not Lyon but Paris', 'Lyon', 0, 0.), ('Paris, not Lyon', 'Paris', 1, 1.),
       ('Paris, not Lyon', 'Lyon', 0, 0.), ('He was not guilty', 'guilty', 0, 0.), ('He was not guilty', 'not guilty', 1, 1.), ('It was not until 1945', '1945', 1, 1.),
       ('1,000', '1000', 1, 1.), ('3.50', '3.5', 1, 1.), ('3.5', '3', 0, 0.), ('35', '3.5', 0, 0.), ('-5', '5', 0, 0.), ('−5', '-5', 1, 1.), ('13th', '13', 0, 0.), ('130', '13', 0, 0.), ('10:30', '10', 0, 0.),
       ('about 13 of them', '13', 1, 1.), ('2010-2013', '2013', 1, 1.), ('x = -5', '-5', 1, 1.), ('B', 'B', 1, 1.), ('Because', 'B', 0, 0.), ('A mug', 'A', 0, 0.), ('The answer is A.', 'A', 1, 1.),
       ('U.S.', 'US', 1, 1.), ('Washington D.C.', 'Washington, DC', 1, 1.), ('_Paris_', 'Paris', 1, 1.), ('答えは東京です', '東京', 1, 1.), ('', 'Paris', 0, 0.), ('🙂', '🙂', 1, 1.), ('🙂', '🙁', 0, 0.),
       ('Lyon or Nice', 'Nice Lyon', 0, 4/5), ('Paris Paris Paris', 'Paris Lyon', 0, 2/5), ('Rome', 'Paris', 0, 0.)]

@pytest.mark.parametrize('reply,answer,hard,soft', C14, ids=[f'{r} vs {a}' for r, a, *_ in C14])
def test_C14_words_and_not_letters(reply, answer, hard, soft): assert qa_score(reply, [answer])==(hard, round(soft, 4))

def test_any_reference_will_do_and_order_does_not_matter():
    for answers in (['Lutetia', 'Paris'], ['Paris', 'Lutetia']): assert qa_score('Paris', answers)==(1, 1)
    assert qa_score('Paris', ['Paris, France', 'Lutetia'])==qa_score('Paris', ['Lutetia', 'Paris, France'])==(0, .6667)

def test_a_question_that_denies_may_be_repeated():
    reply, question = 'The planet that does not have a moon is Venus.', 'Which planet does not have a moon?'
    assert (qa_score(reply, ['Venus'])[0], qa_score(reply, ['Venus'], question)[0])==(0, 1)

@pytest.mark.parametrize('text', [t for r, a, *_ in C14 for t in (r, a) if t], ids=repr)
def test_everything_says_itself(text):
    assert says(text, text) is True and f1(text, text) in (0., 1.)
    assert words(text.upper())==words(text.lower())

@pytest.mark.parametrize('text', ['1'*10**5, '1.'*50_000, '1,111'*20_000, 'a.'*50_000, "a'"*50_000, '('*10**5, ' '*10**5, 'not ' + 'paris '*20_000, '東'*10**5, ' - '*30_000, '\u0300'*10**5],
                         ids=lambda t: repr(t[:6]))
def test_a_reply_gone_wild_is_judged_in_linear_time(text):
    t = time.perf_counter()
    qa_score(text, ['Paris', text[:100]])
    assert time.perf_counter() - t < 5

def test_what_the_model_is_sent():
    r, chat = played('In the sink.', 'sink', skill='Look low first.', context='A kitchen.', question='Where is the mug?', task_type='look')
    assert chat.calls==[[dict(role='system', content='Look low first.'), dict(role='user', content='Context:\nA kitchen.\n\nQuestion: Where is the mug?\n\nAnswer:')]]
    assert (r.id, r.n_turns, r.task_type, r.predicted_answer, r.question)==('q', 1, 'look', 'In the sink.', 'Where is the mug?')
    assert r.conversation==[*chat.calls[0], dict(role='assistant', content='In the sink.')] and r.fail_reason==''

@pytest.mark.parametrize('skill', ['', ' \n', None])
def test_without_a_skill_a_sentence_stands_in(skill): assert played('sink', 'sink', skill=skill)[1].calls[0][0]['content']==BARE

def test_a_failure_says_what_was_wanted():
    r, _ = played('x'*500, ['sink', 'basin', 'tub', 'pail'])
    assert r.hard==0 and "does not say 'sink' or 'basin' or 'tub'" in r.fail_reason and len(r.fail_reason) < 200

def test_splits_are_three_and_a_fourth_is_named():
    env = SimpleQAEnv(train_items=[dict(question='?', answers='a', task_type='look')], val_items=[], test_items=[dict(question='?', answers='a', task_type='heat')])
    assert [len(env.get_items(s)) for s in ('train', 'val', 'test')]==[1, 0, 1] and env.get_task_types()==['heat', 'look'] and env.name=='simple_qa'
    env.get_items('train').clear()
    assert len(env.get_items('train'))==1
    with pytest.raises(KeyError, match="'holdout' is unknown: choose one of train, val, test"): env.get_items('holdout')

@pytest.mark.parametrize('item,says', [(dict(question='?'), 'has no `answers`'), (dict(question='?', answers=[]), r'answers \[\]'), (dict(question='?', answers=['a', None]), 'None'),
    (dict(question='?', answers=['a', ' ']), "' '"), (dict(question='?', answers=[['a']]), r"\[\['a'\]\]"), (dict(question='?', answers=dict(a=1)), 'answers {'), (dict(answers='a'), 'has no `question`'),
    (dict(question=' ', answers='a'), "question ' '"), (dict(question=3, answers='a'), 'question 3'), ('what?', "is 'what\\?': an item is a dict"), (None, 'is None')], ids=repr)
def test_a_bad_item_is_met_before_anything_is_spent(item, says):
    with pytest.raises(ValueError, match=rf'^val item 1 .*{says}') as e: SimpleQAEnv(train_items=[], val_items=[dict(question='?', answers='a'), item], test_items=[])
    assert '\n' not in str(e.value)

# --- chat: one system, one user, text and usage ---
@pytest.fixture
def client(monkeypatch):
    "Makes a client of a server that waits without waiting"
    for k in ('OPENAI_API_KEY', 'OPENAI_BASE_URL'): monkeypatch.delenv(k, raising=False)
    def make(server, **kw): return OpenAIChatClient('mini', **dict(api_key='Zq7-mug-and-spoon', base_url=server.url, retries=2, timeout=5., pause=lambda s: None) | kw)
    return make

def test_what_chat_sends_and_brings(client):
    with FaultServer() as s:
        text, usage = client(s).chat(system='Be brief.', user='Where?', max_completion_tokens=50, temperature=0, stage='rollout', retries=9, seed=7)
    assert s.requests[0]['body']==dict(model='mini', messages=[dict(role='system', content='Be brief.'), dict(role='user', content='Where?')],
                                       max_completion_tokens=50, temperature=0, seed=7)
    assert (text, usage)==('A mug goes into the sink first.', dict(calls=1, prompt_tokens=11, completion_tokens=7, total_tokens=18, stage='rollout'))

def test_what_is_not_said_is_not_sent(client):
    with FaultServer() as s:
        client(s).chat(system='', user='')
        client(s, default_temperature=.7).chat(system=None, user='Where?', max_completion_tokens=None)
    assert [r['body'] for r in s.requests]==[dict(model='mini', messages=[dict(role='user', content='')], max_completion_tokens=4096),
                                             dict(model='mini', messages=[dict(role='user', content='Where?')], temperature=.7)]

@pytest.mark.parametrize('fault,requests', [(error(401, 'bad key {key}'), 1), (error(403), 1), (error(404), 1), (error(400, 'no such role'), 1),
    (error(429, 'used up', 'insufficient_quota'), 1), (error(429, retry_after='1'), 3), (error(500), 3), (RESET, 3), (truncated(), 3)],
    ids='401 403 404 400 quota 429 500 reset truncated'.split())
def test_E3_an_outage_is_raised_and_never_an_answer(client, fault, requests):
    with FaultServer(rest=fault) as s:
        with pytest.raises(Outage) as e: client(s).chat(system='Be brief.', user='Where?', retries=5)
        assert s.count==requests and e.value.replies[0].status=='infra_error' and 'mug-and-spoon' not in str(e.value)

def test_E3_what_passes_is_answered(client):
    with FaultServer(error(429, retry_after='1'), RESET) as s:
        assert client(s).chat(system='', user='Where?')[0]=='A mug goes into the sink first.' and s.count==3

@pytest.mark.parametrize('message', ["Unsupported parameter: 'max_completion_tokens'. Use 'max_tokens' instead.", 'Unrecognized request argument supplied: max_completion_tokens'])
def test_E4_the_other_name_is_remembered(client, message):
    def old(request): return error(400, message) if 'max_completion_tokens' in request['body'] else said()
    with FaultServer(rest=old) as s:
        c = client(s)
        for _ in range(5): assert c.chat(system='', user='Where?', max_completion_tokens=9)[0]
        assert s.count==6 and [r['body'].get('max_tokens') for r in s.requests]==[None] + [9]*5

def test_a_refusal_is_an_answer_with_its_reason(client):
    with FaultServer(said('', 'content_filter'), said(None, refusal='I do not discuss mugs.', usage=None)) as s, pytest.warns(UserWarning, match='estimated'):
        (a, u), (b, v) = (client(s).chat(system='', user='Where?') for _ in range(2))
    assert (a, b)==('', '') and u['refused'] and v['refused']=='I do not discuss mugs.' and (u['calls'], u['total_tokens'])==(1, 18) and v['estimated'] and 0 < v['total_tokens'] < 60

def test_what_is_known_is_free(tmp_path):
    chat = ScriptedChat(['In the sink.'], cache=ReplyCache(tmp_path))
    (a, u), (b, v) = (chat.chat(system='', user='Where is it?', stage=s) for s in ('rollout', 'gate'))
    assert a==b and u==dict(calls=1, prompt_tokens=3, completion_tokens=3, total_tokens=6, stage='rollout')
    assert v==dict(calls=0, prompt_tokens=0, completion_tokens=0, total_tokens=0, cached=True, stage='gate') and chat.ledger.tokens==6

def test_the_budget_holds_before_the_call():
    chat = ScriptedChat(lambda m: 'In the sink.', ledger=Ledger(budget_tokens=100))
    with pytest.raises(BudgetExceeded): chat.chat(system='', user='Where?', max_completion_tokens=4096)
    assert chat.calls==[] and chat.chat(system='', user='Where?', max_completion_tokens=20)[0]=='In the sink.'

def test_thoughts_are_no_answer():
    assert ScriptedChat(['<think>Low?</think>In the sink.']).chat(system='', user='Where?')[0]=='In the sink.'

def test_an_outage_leaves_a_rollout_unscored():
    env = qa('sink')
    with pytest.raises(Outage): env.rollout_one(item=env.get_items('train')[0], skill='', target_client=ScriptedChat([ConnectionError('refused')]))

def test_many_threads_share_one_bill():
    chat, env = ScriptedChat(lambda m: 'In the sink.'), qa('sink')
    with ThreadPoolExecutor(16) as pool: rs = list(pool.map(lambda i: env.rollout_one(item=env.get_items('train')[0], skill=f'skill {i}', target_client=chat), range(200)))
    assert all(r.checked().hard for r in rs) and chat.ledger.counts['scripted'][0]==200 and len(chat.calls)==200
