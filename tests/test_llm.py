"Asking a model: JSON in every disguise, money under pressure, calls out of order, keys that must not be seen"
import _thread, json, os, random, signal, threading, time, traceback
from dataclasses import replace
import json_repair, pytest
from skillrl.llm.chat import Chat, ScriptedChat
from skillrl.llm.json_reply import find_json, json_items
from skillrl.llm.ledger import BudgetExceeded, Ledger, ReplyCache
from skillrl.core.secrets import redact
from skillrl.llm.reply import ChatReply, Outage, split_thought
from skillrl.core.store import JsonlLog

def ask(text):
    return [dict(role='user', content=text)]
a, b = dict(title='Rinse first'), dict(title='Close up')
c = dict(title='Look twice')
A, B, C = map(json.dumps, (a, b, c))

# ---- JSON in a reply ----
found = {
    'bare list': (f'[{A}, {B}]', [a, b]),
    'empty object': ('Nothing to add: {}', {}),
    'white space': (f'\n\n  [ {A} ]\t\n', [a]),
    'fenced': (f'```json\n[{A}]\n```', [a]),
    'fence never closed': (f'```json\n[{A}]', [a]),
    'fence in capitals on one line': (f'```JSON [{A}]```', [a]),
    'prose after': (f'[{A}]\nHope this helps!', [a]),
    'prose with brackets': (f'I found [2] things (see [a, b] and {{x}}): [{A}, {B}]. [end]', [a, b]),
    'prose with a quote': (f'He said "look in ["  and then [{A}, {B}]', [a, b]),
    'prose with braces around it': (f'{{{{ [{A}] }}}}', [a]),
    'prose with an apostrophe': (f"Don't worry: [{A}]", [a]),
    'several, the last counts': (f'First idea: [{A}, {B}] or {{}}. Final answer: [{C}].', [c]),
    'several, the last with objects counts': (f'Final answer: [{C}], see [1, 2] and []', [c]),
    'several objects of one answer': (f'First idea: {A}. Final answer:\n```json\n{B}\n{C}\n```', [b, c]),
    'several, the last of equals': (f'[{A}] or rather [{json.dumps(dict(title="RINSE FIRST"))}]',
                                    [dict(title='RINSE FIRST')]),
    'thought before': (f'<think>Maybe [{B}, {C}]?</think>[{A}]', [a]),
    'thought without beginning': (f'Maybe [{B}, {C}]?</think>[{A}]', [a]),
    'tag in a string': ('[{"title": "Write <think> then </think>"}]',
                        [dict(title='Write <think> then </think>')]),
    'escaped quotes in a value': ('{"title": "use {\\"a\\": 1}", "n": 1}', dict(title='use {"a": 1}', n=1)),
    'trailing commas': ('[{"title": "Rinse first",},]', [a]),
    'Python words': ('{"ok": True, "no": False, "item": None}', dict(ok=True, no=False, item=None)),
    'not a number': ('{"score": NaN, "n": 1}', dict(score=None, n=1)),
    'numbers': ('[0, -1, 2.5, 1e3, -1.5E-2]', [0, -1, 2.5, 1000.0, -0.015]),
    'line break in a string': ('{"title": "Rinse\nfirst"}', dict(title='Rinse\nfirst')),
    'unknown escape': (r'{"title": "\d+ mugs \(clean\) it\'s"}', dict(title=r"\d+ mugs \(clean\) it's")),
    'unicode escapes': (r'{"title": "caf\u00e9 \ud83d\ude00"}', dict(title='café 😀')),
    'lone surrogate escape': (r'{"title": "mug \ud83d!"}', dict(title='mug \ufffd!')),
    'lone surrogate': ('{"title": "mug \udc00"}', dict(title='mug \ufffd')),
    'NUL': ('\0[{"title": "Ri\0nse \\u0000first"}]', [a]),
    'ellipsis': (f'[{A}, ...]', [a]),
    'unquoted quotes': (f'[{A}, {{"title": "a "good" one"}}, {B}]', [a, dict(title='a "good" one'), b]),
    'single quotes': (f'I found {{2}}: {[a, b]}.', [a, b]),
    'brackets in strings': ('{"a": "]}", "b": "[{"}', dict(a=']}', b='[{')),
    'byte order mark': (f'\ufeff[{A}]', [a]),
    'same key twice': ('{"title": "x", "title": "Rinse first"}', a),
}

@pytest.mark.parametrize('case', found)
def test_find_json(case):
    text, value = found[case]
    assert find_json(text) == value

@pytest.mark.parametrize(
    'text',
    ['', '   ', 'No.', '"a string"', '42', 'null', '[', '{', ']', '{]', '{"a', '[see below', '{title}',
     '<think>[1, 2]', '```json\n```', '\0', '[' * 200, '{"a":' * 200, '": "', '\\"', '[-', '[tru'],
)
def test_no_json(text):
    assert find_json(text) is None and json_items(text) == []

items = {
    'one object': (A, [a]),
    'wrapped': (f'{{"skills": [{A}, {B}]}}', [a, b]),
    'wrapped with a remark': (f'{{"analysis": "two of them", "skills": [{A}, {B}], "n": 2}}', [a, b]),
    'wrapped twice': (f'{{"result": {{"skills": [{A}]}}}}', [a]),
    'by category': (f'{{"general": [{A}], "task_specific": {{"pick": [{B}], "heat": [{C}]}}}}', [a, b, c]),
    'by id': (f'{{"s1": {A}, "s2": {B}}}', [a, b]),
    'single under a name': (f'{{"skill": {A}}}', [a]),
    'list of wrappers': (f'[{{"skills": [{A}]}}, {{"skills": [{B}]}}]', [a, b]),
    'nested list': (f'[[{A}], [[{B}]]]', [a, b]),
    'several lists': (f'General: [{A}]\nMistakes: [{B}, {C}]', [a, b, c]),
    'one a line': (f'{A}\n{B}\n{C}\n', [a, b, c]),
    'missing comma': (f'[{A} {B}]', [a, b]),
    'cut': (f'[{A}, {B}, {{"title": "Lo', [a, b]),
    'cut wrapper': (f'{{"skills": [{A}, {{"title": "Lo', [a]),
    'cut object': ('{"title": "Rinse first", "principle": "Alw', []),
    'cut two deep': (f'{{"task_specific": {{"pick": [{A}, {{"ti', [a]),
    'cut by a fence': (f'```json\n[{A}, {B},\n```', [a, b]),
    'cut in an escape': (f'[{A}, "x\\', [a]),
    'not only objects': (f'[1, {A}, "x", null, {B}]', [a, b]),
    'plain list': ('["a", "b"]', []),
    'an item with lists of its own': ('[{"title": "t", "steps": [{"action": "look"}]}]',
                                      [dict(title='t', steps=[dict(action='look')])]),
    'an item with an item of its own': (f'{{"kind": "add", "item": {A}}}', [dict(kind='add', item=a)]),
    'an item that quotes JSON': (json.dumps(dict(title='t', principle='[{"title": "evil"}]')),
                                 [dict(title='t', principle='[{"title": "evil"}]')]),
    'remarks beside the wrapper': (f'{{"general": [{A}], "model": "x", "ids": [1, 2]}}', [a]),
    'empty wrapper': ('{"skills": []}', []),
}

@pytest.mark.parametrize('case', items)
def test_json_items(case):
    text, value = items[case]
    assert json_items(text) == value

@pytest.mark.parametrize('write', [json.dumps, str])
def test_no_cut_makes_half_a_text_or_half_a_number_whole(write):
    rules = [dict(title=f'Rule {i}0, or so', wins=120+i) for i in range(3)]
    whole = dict(remark='So, [two] of {them}', skills=rules)
    said = {whole['remark'], *(v for o in rules for v in o.values())}
    for text in (write(whole), write(rules)):
        for cut in range(len(text)):
            assert all(said.issuperset(o.values()) for o in json_items(text[:cut])), text[:cut]

def test_any_cut_and_any_damage_ends_without_a_surprise():
    rng = random.Random(3)
    odd = '{"k": [1, 2.5e3, null, "\\u00e9\\n"]}'
    text = f'<think>x "y</think> Sure [1]: ```json\n[{A}, {json.dumps(B)}, {odd}]\n```'
    for _ in range(3000):
        s = list(text)
        for _ in range(rng.randrange(1, 6)):
            s[rng.randrange(len(s))] = rng.choice('[]{}",:\\\n<>0a\0\ud800')
        s = ''.join(s)[:rng.randrange(len(s) + 1)]
        assert all(isinstance(o, dict) for o in json_items(s))
        json.dumps(find_json(s), ensure_ascii=False).encode()

hostile = dict(lists='[', objects='{"a":', mixed='[{"a":', closed=']', pairs='[]', nested_pairs='[[],',
               quotes='"', escaped='\\"', open_strings='["', open_strings_apart='[" ',
               escaped_strings='["\\"', escapes='\\', numbers='[1', digits='1', words='[true', commas='[,',
               spaces=' ', fences='```' + ' ' * 50, fence_lines='```json\n', thinks='<think>',
               unthinks='</think>', both='<think></think>', quoted='"<think>', colons='{"a":1,', nul='\0',
               surrogates='\ud800', channels='<|channel|>final', turns='<|end|><|channel|>analysis',
               keys='{"a', strings='["a",', list_then_space='[          ',
               half='[{"a": "')

@pytest.mark.parametrize('name', hostile)
def test_hostile_characters_are_read_to_the_end(name):
    text = hostile[name] * (200_000 // len(hostile[name]))
    for front in ('', '[{"a": "', '<think>'):
        assert sum(map(len, split_thought(front + text))) <= len(front + text)
        assert all(isinstance(o, dict) for o in json_items(front + text))

@pytest.mark.parametrize('name', hostile)
def test_json_repair_is_given_little_as_its_time_grows_with_the_square(name, monkeypatch):
    given, loads = [], json_repair.loads
    def counted(text, **kw):
        given.append(text)
        return loads(text, **kw)
    monkeypatch.setattr(json_repair, 'loads', counted)
    for n in (100, 9000, 100_000):
        unit = hostile[name] * (n // len(hostile[name]))
        for text in (f'["{unit}"]', f'["a" {unit}]', f'{{"a": {unit}}}', f'{unit[:9000]}["a" "b"]'*9):
            given.clear()
            json_items(text)
            assert sum(map(len, given)) <= 10_000
            assert all(sum(map(text.count, '[]{}')) <= 200 for text in given)

# ---- thoughts ----
@pytest.mark.parametrize('text, thought, rest', [
    ('', '', ''), ('b</think> \n', '', 'b</think>'), ('<think>\na\n</think>\n\nb\n', 'a', 'b'),
    ('<think></think>b', '', 'b'), ('<Think>a</THINK>b', 'a', 'b'), ('<think>only</think>', 'only', ''),
    ('{"a": "\\"<think>"}', '', '{"a": "\\"<think>"}'),
    ('<thinking>x</thinking>y', 'x', 'y'), ('<thinking>x', 'x', ''),
    ('x</thinking>y', 'x', 'y'),
    ('[THINK]x[/THINK]y', 'x', 'y'), ('◁think▷x◁/think▷y', 'x', 'y'), ('["[THINK]"]', '', '["[THINK]"]'),
    ('<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>final<|message|>y<|return|>',
     'x', 'y'),
    ('<|channel|>analysis<|message|>x', 'x', ''),
    ('<|channel|>final <|constrain|>json<|message|>[]', '', '[]')])
def test_split_thought(text, thought, rest):
    assert split_thought(text) == (thought, rest)

# ---- replies ----
def test_status_of_a_reply():
    chat = ScriptedChat(['yes', '', '   ', '<think>hm',
     ChatReply(status='refused'), TimeoutError('slow'),
     ChatReply('half', status='infra_error', error='cut')])
    got = [chat.reply(ask(str(i))) for i in range(7)]
    assert [r.status for r in got] == 'ok refused refused refused refused infra_error infra_error'.split()
    assert got[3].thought == 'hm' and 'no answer' in got[3].error
    assert got[5].error == 'TimeoutError: slow' and not got[5].ok

def test_what_utf8_cannot_hold_is_cleaned_both_ways(tmp_path):
    log = JsonlLog(tmp_path/'log.jsonl')
    chat = ScriptedChat(['mug \ud800\0'], log=log, cache=ReplyCache(tmp_path/'cache'))
    assert chat.reply(ask('plate \udfff\0')).text == 'mug \ufffd'
    assert chat.calls[0][0]['content'] == 'plate \ufffd' and log.read()[0]['messages'] == chat.calls[0]

# ---- cache ----
@pytest.fixture
def cache(tmp_path):
    return ReplyCache(tmp_path/'cache')

@pytest.mark.parametrize(
    'change',
    [dict(endpoint='http://elsewhere'), dict(params=dict(temperature=0, seed=1)),
     dict(messages=[dict(role='system', content='why')])],
)
def test_cache_knows_the_whole_request(cache, change):
    request = dict(endpoint='', model='mini', messages=ask('why'), params=dict(temperature=0))
    cache.put(request, ChatReply('because', thought='hm', prompt_tokens=3, completion_tokens=4))
    assert cache.get(dict(reversed(request.items()))) == ChatReply(
        'because', thought='hm', prompt_tokens=3, completion_tokens=4, cached=True)
    assert cache.get(request | change) is None

@pytest.mark.parametrize('status', ['refused', 'infra_error'])
def test_cache_keeps_only_answers(cache, status):
    cache.put(dict(a=1), ChatReply('x', status=status))
    assert len(cache) == 0

@pytest.mark.parametrize(
    'junk',
    [b'', b'[]', b'{"text": 1}', b'{"text": "x", "status": "infra_error"}', b'{"nope": 1}', b'\xff\xfe',
     b'[' * 100_000, b'{"text": "x", "prompt_tokens": null}', b'{"text": "x", "cached": "yes"}'],
)
def test_a_damaged_file_is_a_miss_and_is_replaced(cache, junk):
    cache.put(dict(a=1), ChatReply('x'))
    file, = cache.folder.iterdir()
    file.write_bytes(junk)
    assert cache.get(dict(a=1)) is None
    cache.put(dict(a=1), ChatReply('y'))
    assert cache.get(dict(a=1)).text == 'y' and os.listdir(cache.folder) == [file.name]

def test_many_threads_and_one_file(cache):
    replies = [ChatReply(f'reply {i}' * 1000) for i in range(8)]
    def write(r):
        for _ in range(20):
            ReplyCache(cache.folder).put(dict(a=1), r)
            assert cache.get(dict(a=1)) in [replace(r, cached=True) for r in replies]
    threads = [threading.Thread(target=write, args=[r]) for r in replies]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(os.listdir(cache.folder)) == 1

def test_a_second_run_is_free(cache, tmp_path):
    for free in (False, True):
        chat = ScriptedChat(
            lambda m: m[0]['content'],
            cache=cache,
            ledger=Ledger(budget_tokens=0 if free else 100),
            log=JsonlLog(tmp_path / f'{free}.jsonl'),
        )
        assert [r.text for r in chat.replies([ask(str(i)) for i in range(20)], temperature=0.7)] == [
            str(i) for i in range(20)
        ]
        assert len(chat.calls) == (0 if free else 20) and chat.ledger.tokens == (0 if free else 40)
    rows = [JsonlLog(tmp_path/f'{free}.jsonl').read() for free in (False, True)]
    assert [r | dict(cached=True) for r in rows[0]] == rows[1]

# ---- ledger and budget ----
def test_prices_can_be_edited():
    ledger = Ledger({'mini': [1, 2]}, budget_usd=1)
    with pytest.raises(ValueError, match="'maxi' has no price.*ledger.prices\\['maxi'\\] = "):
        ledger.check('maxi')
    ledger.prices['maxi'] = (5, 5)
    ledger.check('maxi', 100_000, 100_000)
    with pytest.raises(BudgetExceeded):
        ledger.check('maxi', 100_000, 100_001)

@pytest.mark.parametrize('budget', [dict(budget_tokens=0), dict(budget_usd=0), dict(budget_tokens=5)])
def test_nothing_is_sent_beyond_the_budget(budget):
    ledger = Ledger({'scripted': (1, 1)}, **budget)
    ledger.add('scripted', 5, 0)
    chat = ScriptedChat(['x'], ledger=ledger)
    with pytest.raises(BudgetExceeded) as e:
        chat.reply(ask('?'))
    assert chat.calls == [] and e.value.replies == [] and ledger.held == {}

@pytest.mark.parametrize('parallel', [1, 2, 7, 32])
@pytest.mark.parametrize('unit', ['tokens', 'usd'])
def test_a_parallel_batch_keeps_the_budget(parallel, unit):
    "50 + 30 tokens a call, 50 bytes of prompt more: the budget holds and is used, and answers are there"
    budget = dict(budget_tokens=1000) if unit == 'tokens' else dict(budget_usd=.001)
    def slow(m):
        time.sleep(.001)
        return ChatReply('word ' * 30, prompt_tokens=20, completion_tokens=30)
    chat = ScriptedChat(slow, ledger=Ledger({'scripted': (1, 1)}, **budget), parallel=parallel)
    with pytest.raises(BudgetExceeded, match=f'raise budget_{unit}') as e:
        chat.replies([ask(f'{i:03}') for i in range(200)], max_tokens=40)
    assert len(e.value.replies) == len(chat.calls) and all(r.ok for r in e.value.replies)
    assert (
        900 <= chat.ledger.tokens <= 1000
        and chat.ledger.tokens == 50 * len(chat.calls)
        and chat.ledger.held == {}
    )

def test_a_budget_stops_at_the_same_call_every_time():
    def stopped(seed):
        rng = random.Random(seed)
        def jitter(m):
            time.sleep(rng.random() * .003)
            return 'word ' * (int(m[0]['content']) % 7)  + 'end'
        chat = ScriptedChat(jitter, ledger=Ledger(budget_tokens=200), parallel=8)
        with pytest.raises(BudgetExceeded) as e:
            chat.replies([ask(str(i)) for i in range(100)], max_tokens=10)
        return [r.text for r in e.value.replies]
    first = stopped(0)
    assert len(first) > 20 and all(stopped(seed) == first for seed in range(1, 6))

@pytest.mark.parametrize('parallel', [1, 2, 16])
@pytest.mark.parametrize('budget, sent', [(.05, 1), (.1, 2), (.01, 1), (.5, 12)])
def test_calls_without_a_limit_pass_the_budget_by_one_reply_at_most(parallel, budget, sent):
    "Replies of 4,000 tokens at 10 USD a million are 0.04 USD each; nobody said how long they may be"
    def script(m):
        time.sleep(.001)
        return ChatReply('x', prompt_tokens=20, completion_tokens=4000)
    chat = ScriptedChat(script, ledger=Ledger({'scripted': (1, 10)}, budget_usd=budget), parallel=parallel)
    with pytest.raises(BudgetExceeded) as e:
        chat.replies([ask(str(i)) for i in range(60)])
    assert len(chat.calls) == len(e.value.replies) == sent and chat.ledger.held == {}
    assert chat.ledger.usd <= max(budget, 20e-6 + .04)

def test_a_limit_is_no_obstacle_to_going_together():
    "Without a budget, or with limits, calls still go side by side"
    for kw, params in [({}, {}), (dict(ledger=Ledger(budget_tokens=100_000)), dict(max_tokens=10)),
                       (dict(ledger=Ledger(budget_tokens=100_000)), dict(max_completion_tokens=10))]:
        chat = Gauge(parallel=4, wait=.02, **kw)
        chat.replies([ask(str(i)) for i in range(30)], **params)
        assert chat.most == 4
    chat = Gauge(parallel=4, ledger=Ledger(budget_tokens=100_000))
    assert len(chat.replies([ask(str(i)) for i in range(30)])) == 30 and chat.most == 1

@pytest.mark.parametrize('params', [{}, dict(max_tokens=50)])
@pytest.mark.parametrize('batch', [True, False])
def test_teacher_and_policy_share_a_ledger(params, batch):
    "Two models in two threads: nobody is told that the budget is spent while it is only held, and it is kept"
    ledger, ends = Ledger(dict(teacher=(1, 10), policy=(1, 1)), budget_usd=.01), {}
    def script(m):
        time.sleep(.001)
        return ChatReply('x', prompt_tokens=5, completion_tokens=50)
    def play(model):
        chat = ScriptedChat(script, model, ledger=ledger, parallel=4)
        try:
            if batch:
                chat.replies([ask(f'{i}') for i in range(400)], **params)
            else:
                for i in range(400):
                    chat.reply(ask(f'{i}'), **params)
        except BudgetExceeded:
            ends[model] = ledger.usd
    threads = [threading.Thread(target=play, args=[m]) for m in ('teacher', 'policy')]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not any(t.is_alive() for t in threads) and ledger.held == {}
    assert (
        0.01 - 0.0006 <= ledger.usd <= 0.01
        and set(ends) <= {'teacher', 'policy'}
        and all(usd > 0.009 for usd in ends.values())
        and 'teacher' in ends
    )

def test_a_thread_does_not_wait_for_itself():
    ledger = Ledger(budget_tokens=100)
    hold = ledger.hold('scripted')
    chat = ScriptedChat(['x'], ledger=ledger)
    with pytest.raises(BudgetExceeded, match='0 tokens of 100 are left'):
        chat.reply(ask('?'))
    ledger.release(hold)
    assert chat.reply(ask('?')).ok

# ---- many at a time ----
class Gauge(Chat):
    "Counts how many calls run at once"
    def __init__(self, wait=.003, **kw):
        super().__init__('gauge', **kw)
        self.now = self.most = self.total = 0
        self.wait, self.lock = wait, threading.Lock()
    def send(self, messages, **params):
        with self.lock:
            self.now, self.total = self.now + 1, self.total + 1
            self.most = max(self.most, self.now)
        time.sleep(self.wait)
        with self.lock:
            self.now -= 1
        return ChatReply(messages[0]['content'], prompt_tokens=1, completion_tokens=1)

@pytest.mark.parametrize('parallel', [1, 3, 16])
def test_as_many_at_a_time_as_allowed(parallel):
    chat = Gauge(parallel=parallel)
    assert [r.text for r in chat.replies([ask(str(i)) for i in range(80)])] == [str(i) for i in range(80)]
    assert chat.most == parallel and chat.total == 80

def test_log_ledger_and_cache_are_the_same_whatever_comes_first(tmp_path):
    def files(name, seed):
        rng = random.Random(seed)
        def jitter(m):
            time.sleep(rng.random() * .004)
            return (
                TimeoutError('slow')
                if m[0]['content'].endswith('3')
                else f'<think>{name[:0]}hm</think>' + m[0]['content']
            )
        folder = tmp_path/name
        chat = ScriptedChat(jitter, log=JsonlLog(folder/'log.jsonl'), cache=ReplyCache(folder/'cache'))
        chat.replies([ask(str(i % 37)) for i in range(60)], temperature=0)
        return (
            {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob('*') if p.is_file()},
            repr(chat.ledger.counts), chat.calls)
    first = files('run0', 0)
    assert all(files(f'run{i}', i) == first for i in range(1, 5))
    rows = [json.loads(l) for l in first[0]['log.jsonl'].splitlines()]
    assert [r['messages'][0]['content'] for r in rows] == [str(i % 37) for i in range(60)]

def test_with_a_cache_the_same_request_is_sent_once(cache):
    batch = [ask('a'), ask('b'), ask('a'), ask('a')]
    for kw, sent in [({}, 4), (dict(cache=cache), 2)]:
        chat = ScriptedChat(lambda m: m[0]['content'], **kw)
        got = chat.replies(batch, temperature=1)
        assert [r.text for r in got] == ['a', 'b', 'a', 'a'] and len(chat.calls) == sent
        assert [r.cached for r in got] == [False, False, sent == 2, sent == 2]
        assert chat.ledger.counts['scripted'][0] == sent

@pytest.mark.parametrize('n', [1, 3, 5, 6, 1000])
def test_a_total_outage_stops_after_a_few(n, tmp_path):
    chat = ScriptedChat(lambda m: ConnectionError('refused by host'), log=JsonlLog(tmp_path/'log.jsonl'))
    with pytest.raises(Outage, match='ConnectionError: refused by host.*check the address') as e:
        chat.replies([ask(str(i)) for i in range(n)])
    assert len(chat.calls) == len(e.value.replies) == len(chat.log.read()) == 1
    chat.reached = True # It has answered before
    with pytest.raises(Outage):
        chat.replies([ask(str(i)) for i in range(n)])
    assert min(n, 5) <= len(chat.calls) - 1 < 2*chat.parallel + 5

@pytest.mark.parametrize('parallel', [1, 4, 16])
def test_a_partial_outage_is_in_the_list(parallel, cache):
    chat = ScriptedChat(
        lambda m: ConnectionError('x') if int(m[0]['content']) % 3 else 'ok', parallel=parallel, cache=cache
    )
    got = chat.replies([ask(str(i)) for i in range(30)])
    assert [r.status for r in got] == ['infra_error' if i % 3 else 'ok' for i in range(30)] and len(
        cache) == 10

def test_an_outage_keeps_what_the_cache_knew(cache):
    for i in range(3):
        cache.put(dict(endpoint='', model='scripted', messages=ask(str(i)), params={}),
                  ChatReply(f'known {i}'))
    chat = ScriptedChat(lambda m: ConnectionError('x'), cache=cache)
    with pytest.raises(Outage, match='1 of 4 calls') as e:
        chat.replies([ask(str(i)) for i in range(100)])
    assert [r.ok for r in e.value.replies] == [True] * 3 + [False]

def test_refusals_beside_lost_calls_are_no_answers():
    with pytest.raises(Outage, match='1 of 2 calls') as e:
        ScriptedChat([ChatReply(status='refused'), ConnectionError('x')]).replies([ask('a'), ask('b')])
    assert [r.status for r in e.value.replies] == ['refused', 'infra_error']

@pytest.mark.parametrize('error', [KeyboardInterrupt, OSError])
def test_what_was_paid_for_is_never_lost(error, tmp_path):
    "The batch is stopped from outside while calls are out: those are entered, the error carries the replies"
    class Interrupted(ScriptedChat):
        def record(self, call, r):
            if len(self.ledger.counts) and self.ledger.counts['scripted'][0] == 10 and not done: 
                done.append(1)
                super().record(call, r)
                raise error('stop')
            return super().record(call, r)
    done = []
    chat = Interrupted(
        lambda m: (time.sleep(0.002), m[0]['content'])[1], parallel=4, log=JsonlLog(tmp_path / 'log.jsonl')
    )
    with pytest.raises(error) as e:
        chat.replies([ask(str(i)) for i in range(100)])
    n = chat.ledger.counts['scripted'][0]
    assert 11 <= n < 100 and [r.text for r in e.value.replies] == [str(i) for i in range(n)]
    assert len(chat.log.read()) == n and chat.ledger.held == {}

def test_an_interrupt_while_waiting_loses_nothing():
    "Ctrl-C arrives while the main thread waits for a reply"
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # A shell that runs the tests in its background has it ignored
    def script(m):
        if m[0]['content'] == '12':
            _thread.interrupt_main()
        time.sleep(.01)
        return m[0]['content']
    chat = ScriptedChat(script, parallel=4)
    try:
        with pytest.raises(KeyboardInterrupt) as e:
            chat.replies([ask(str(i)) for i in range(200)])
    finally:
        signal.signal(signal.SIGINT, before)
    n = chat.ledger.counts['scripted'][0]
    assert (
        12 < n < 40
        and [r.text for r in e.value.replies] == [str(i) for i in range(n)]
        and chat.ledger.held == {}
    )

def test_an_interrupt_frees_what_one_call_held():
    class Slow(Chat):
        def send(self, messages, **params):
            raise KeyboardInterrupt
    chat = Slow('slow')
    with pytest.raises(KeyboardInterrupt):
        chat.reply(ask('?'), max_tokens=100)
    assert chat.ledger.held == {}

def test_a_script_that_ends_says_so():
    chat = ScriptedChat(['a', 'b'])
    with pytest.raises(RuntimeError, match='the script has 2 replies') as e:
        chat.replies([ask(q) for q in 'xyz'])
    assert len(e.value.replies) <= 2 and chat.ledger.held == {}

# ---- secrets ----
KEY = 'mug/and+spoon-0123456789'

@pytest.mark.parametrize(
    'text, hidden',
    [('Incorrect API key provided: sk-abcdEFGH1234.', 'abcdEFGH'), ('sk-proj-Ab_12-cdEF34', 'Ab_12'),
     ('key sk-abcd****wxyz', 'wxyz'), ('Authorization: Bearer abc.def-123', 'abc.def'),
     ('authorization=Basic dXNlcjpwdw==', 'dXNl'), ("{'Authorization': 'Bearer xyz98765'}", 'xyz98765'),
     ('api_key=verysecret', 'verysecret'), ('"api_key": "verysecret"', 'verysecret'),
     ('{\\"api_key\\": \\"verysecret\\"}', 'verysecret'), ('api-key: verysecret', 'verysecret'),
     ('x-api-key: verysecret', 'verysecret'), ('APIKEY=verysecret', 'verysecret'),
     ('http://h/v1?api_key=verysecret&x=1', 'verysecret'), ('http://me:verysecret@host/v1', 'verysecret'),
     ('password: verysecret', 'verysecret'), ('client_secret=verysecret', 'verysecret'),
     ('bearer ABCDEFGH12345678', 'ABCDEFGH'), ('hf_' + 'a1' * 12, 'a1a1'), ('AIza' + 'b2' * 18, 'b2b2'),
     ('ghp_' + 'c3' * 15, 'c3c3'), ('eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.abcDEF', 'eyJzdWI'),
     (f'it was {KEY}!', KEY), ('mug%2Fand%2Bspoon-0123456789', '0123'),
     ('OPENAI_API_KEY=verysecret', 'verysecret'), ('AZURE_OPENAI_API_KEY: verysecret', 'verysecret')],
)
def test_redact(text, hidden):
    out = redact(text, [KEY])
    assert hidden not in out and '[redacted]' in out and redact(out, [KEY]) == out

@pytest.mark.parametrize(
    'text',
    ['task-specific-skills first', 'risk-averse', 'the bearer of the mug', 'put mug 1 in/on shelf 2',
     'http://host:8000/v1', 'prompt_tokens: 1234567', 'the key is on the desk', 'token budget = 4096',
     'basic knowledge of kitchens', 'gen_001, pick_002, sk-1'],
)
def test_redact_leaves_the_rest(text):
    assert redact(text) == text

@pytest.mark.parametrize(
    'unit',
    ['sk-', 'Bearer ', 'api_key=', '://a:', 'eyJa.', 'x' * 50 + '@', 'api_key' + ' ' * 20,
     'authorization: bearer ', 'a', '-sk', '://' + 'a' * 99, 'eyJ' + 'a' * 99],
)
def test_redact_reads_a_million_characters(unit):
    assert redact(unit * (200_000 // len(unit))) is not None

def test_no_key_is_written_raised_or_shown(tmp_path):
    folder, keys = tmp_path/'run', ['Bearer other-key-1', 'tea-spoon']
    class Echo(ScriptedChat):
        secrets = (KEY,)
    script = [f'<think>{KEY}</think>your key is {KEY}', ChatReply('x', thought=KEY),
              ChatReply(status='refused', error=f'401 {KEY}'), ConnectionError(f'Bearer {KEY}'), 'fine']
    chat = Echo(script, log=JsonlLog(folder / 'log.jsonl'), cache=ReplyCache(folder / 'cache'),
                ledger=Ledger({'scripted': (1, 1)}, budget_usd=1))
    got = chat.replies([ask(f'{i} {KEY}') for i in range(5)],
                       extra_headers=dict(zip(['Authorization', 'api-key'], keys)), user=KEY)
    with pytest.raises(Outage) as e:
        Echo(lambda m: ConnectionError(KEY)).replies([ask('x')])
    trace = ''.join(traceback.format_exception(e.value))
    shown = (
        ''.join(map(repr, [got, chat, chat.ledger, chat.cache, chat.log, e.value, e.value.replies]))
        + str(e.value)
        + trace
    )
    written = ''.join(p.read_text() for p in folder.rglob('*') if p.is_file())
    for key in (KEY, *keys):
        assert key not in shown and key not in written
    assert '[redacted]' in written and got[0].text == 'your key is [redacted]'
