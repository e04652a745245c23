"""Rollouts where lines fail, environments lie, threads hang and processes die.

What 1.0.0 did is told beside each test that is named after a fault of it."""
import errno, os, random, signal, subprocess, sys, threading, time
from pathlib import Path
import pytest
from skillrl.llm.chat import ScriptedChat
from skillrl.llm.ledger import BudgetExceeded, Ledger, Meter, _GivenUp, add_usage
from skillrl.llm.reply import ChatReply, Outage
from skillrl.core.concurrency import Journal, ThreadExecutor
from skillrl.skillopt.rollout import items_hash, items_of, run_rollout
from skillrl.skillopt.types import RolloutResult
sys.path.insert(0, str(Path(__file__).parent))

ITEMS = [dict(id=f'i{k}', q=f'question {k}', a=f'answer {k}') for k in range(20)]
SKILL = 'Answer with the number.'

class Client:
    """Answers right.

    `lost(n, user)` says whether call `n` (from 1) is lost as in 1.0.0: an empty text, an error"""
    model = 'm'
    def __init__(self, lost=lambda n, user: False, naps=None):
        self.lost, self.naps = lost, naps
        self.lock, self.asked = threading.Lock(), []
    def chat(self, *, system, user, max_completion_tokens=4096, temperature=None, stage='', retries=3, **kw):
        with self.lock:
            self.asked.append(user)
            n = len(self.asked)
        if self.naps:
            time.sleep(self.naps.pop())
        if self.lost(n, user):
            return '', dict(prompt_tokens=0, completion_tokens=0, total_tokens=0, calls=0, stage=stage,
                            error='Error code: 400')
        return user.replace('question', 'answer'), dict(prompt_tokens=10, completion_tokens=2,
                                                        total_tokens=12)

class Env:
    name = 'numbers'
    def rollout_one(self, *, item, skill, target_client):
        text, _ = target_client.chat(system=skill, user=item['q'], stage='rollout')
        return RolloutResult(item['id'], hard=text == item['a'], soft=text == item['a'],
                             predicted_answer=text)

class Breaks(Env):
    "Does `how` for the items in `places`, and plays the others"
    def __init__(self, how, *places):
        self.how, self.places = how, {f'i{p}' for p in places}
    def rollout_one(self, *, item, **kw):
        return self.how(item) if item['id'] in self.places else super().rollout_one(item=item, **kw)

def play(env=None, items=ITEMS, client=None, workers=4, timeout=None, **kw):
    return run_rollout(env or Env(), SKILL, items, target_client=client or Client(),
                       executor=ThreadExecutor(workers, timeout), **dict(pause=0) | kw)

def fail(e):
    def do(item):
        raise e
    return do

# Threads

@pytest.mark.parametrize('workers', [0, 1, 3, 8, 32])
def test_results_come_in_the_order_of_the_items(workers):
    naps = [random.Random(0).uniform(0, .01) for _ in ITEMS]
    assert [r.id for r in play(client=Client(naps=naps), workers=workers)]==[i['id'] for i in ITEMS]

def test_jobs_begin_in_their_order_and_no_more_than_workers_at_a_time():
    begun, now = [], [0]
    most, lock = [0], threading.Lock()
    def job(i):
        with lock:
            begun.append(i)
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(.02)
        with lock:
            now[0] -= 1
        return i
    assert ThreadExecutor(5).run(job, range(40))==list(range(40))
    assert most[0]==5 and all(abs(i - place) < 5 for place, i in enumerate(begun))

@pytest.mark.parametrize('workers', [1, 4])
def test_done_hears_of_one_job_at_a_time_and_can_end_the_run(workers):
    seen, inside = [], threading.Lock()
    def done(i, out):
        assert inside.acquire(blocking=False)
        seen.append((i, out))
        inside.release()
        return len(seen) == 6
    out = ThreadExecutor(workers).run(lambda x: x*x, range(1000), done)
    assert 6 <= len(seen) <= 6 + workers and len(dict(seen))==len(seen)
    assert out==[i*i if i in dict(seen) else None for i in range(1000)]

@pytest.mark.parametrize('workers', [1, 4])
def test_an_error_of_done_ends_the_run(workers):
    def done(i, out):
        raise OSError(errno.ENOSPC, 'No space left on device')
    with pytest.raises(OSError, match='No space left'):
        ThreadExecutor(workers).run(str, range(100), done)

def test_nothing_to_do():
    assert ThreadExecutor().run(len, []) == [] and play(items=[]) == []

# E6: 1.0.0 waits for the slowest, for ever if need be, and through Ctrl-C

@pytest.mark.parametrize('workers', [1, 2, 8])
def test_E6_one_rollout_that_hangs_costs_its_timeout(workers):
    never, began = threading.Event(), time.monotonic()
    results = play(Breaks(lambda item: never.wait(60), 3), workers=workers, timeout=.5, retries=0)
    never.set()
    assert time.monotonic() - began < 20
    assert [r.id for r in results if not r.ok]==['i3'] and len(results)==len(ITEMS)
    assert results[3].fail_reason=='rollout_error: TimeoutError: no result within 0.5 s'

def test_E6_as_many_hang_as_there_are_workers():
    never = threading.Event()
    results = play(Breaks(lambda item: never.wait(60), 1, 2, 3, 4, 5, 6), workers=3, timeout=.5, retries=0)
    never.set()
    assert sum(r.ok for r in results)==14

def test_E6_a_rollout_that_was_given_up_calls_nothing_more():
    wake, ended = threading.Event(), threading.Event()
    ends = []
    class Stubborn(Env):
        def rollout_one(self, *, item, skill, target_client):
            if item['id']=='i0':
                return self.hang(target_client)
            time.sleep(.2)
            if item['id']=='i5':
                wake.set()  # while the stage goes on
            if item['id']=='i5':
                assert ended.wait(20)
            return super().rollout_one(item=item, skill=skill, target_client=target_client)
        def hang(self, target_client):
            wake.wait(60)
            try:
                while True:
                    try:
                        return target_client.chat(system='', user='late')
                    except Exception:
                        pass
            except BaseException as e:
                ends.append(e)
            finally:
                ended.set()
    client = Client()
    results = play(Stubborn(), items=ITEMS[:6], client=client, workers=2, timeout=.5, retries=0)
    assert isinstance(ends[0], _GivenUp)
    assert 'late' not in client.asked
    assert [r.ok for r in results]==[False] + [True]*5

@pytest.mark.parametrize('workers, timeout', [(1, None), (1, 60), (4, None)])
def test_E6_ctrl_c_stops_at_once_and_keeps_what_is_finished(workers, timeout):
    signal.signal(signal.SIGINT, signal.default_int_handler) # A job in the background begins without one
    never, journal = threading.Event(), Journal()
    def press(item):
        if workers > 1 or timeout:
            threading.Timer(.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            never.wait(60)
        raise KeyboardInterrupt
    client, began = Client(), time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        play(Breaks(press, 5), client=client, workers=workers, timeout=timeout, journal=journal)
    assert time.monotonic() - began < 20
    kept = len(journal)
    assert kept==len(client.asked)==(5 if workers==1 else 19)
    never.set()
    again = Client()
    assert [r.hard for r in play(client=again, journal=journal)]==[1]*20 and len(again.asked)==20 - kept

# Budgets and questions

@pytest.mark.parametrize('workers', [1, 8])
def test_a_spent_budget_stops_the_run_and_loses_nothing(workers):
    client, journal = Client(), Journal()
    def guard():
        if len(client.asked) >= 7:
            raise BudgetExceeded('7 of 7 calls are used: raise max_calls')
    lock = threading.Lock()
    def one_by_one():
        with lock:
            guard()
    with pytest.raises(BudgetExceeded, match='raise max_calls'):
        play(client=client, workers=workers, journal=journal, guard=one_by_one)
    assert 7 <= len(client.asked) < 7 + workers and len(journal)==len(client.asked)
    more = Client()
    assert all(r.ok for r in play(client=more, journal=journal)) and len(more.asked) + len(client.asked)==20

def test_an_environment_cannot_swallow_a_spent_budget():
    class Deaf(Env):
        def rollout_one(self, **kw):
            try:
                return super().rollout_one(**kw)
            except Exception:
                return dict(hard=0)
    def guard():
        raise BudgetExceeded('nothing is left')
    with pytest.raises(BudgetExceeded):
        play(Deaf(), guard=guard)

# C10, E1: 1.0.0 scores a lost call as a wrong answer, and remembers that score for ever

@pytest.mark.parametrize('usage',
                         [{}, None, dict(prompt_tokens=0, completion_tokens=0, total_tokens=0),
                          dict(calls=0, error='401')])
def test_C10_a_client_that_answers_nothing_is_an_outage(usage):
    class Mute:
        model, calls = 'mute', 0
        def chat(self, **kw):
            Mute.calls += 1
            return '', usage
    cause = '401' if usage and 'error' in usage else 'an empty answer that took no tokens'
    with pytest.raises(Outage, match=f'the first 5 of 20 rollouts.*{cause}.*run again'):
        play(client=Mute(), workers=1)
    assert Mute.calls==15

def test_an_empty_answer_that_was_paid_for_is_an_answer():
    class Blank:
        model = 'blank'
        def chat(self, **kw):
            return '', dict(prompt_tokens=10, completion_tokens=0)
    assert [(r.status, r.hard) for r in play(client=Blank())]==[('ok', 0)]*20

def test_a_refusal_is_an_answer():
    chat = ScriptedChat(lambda messages: ChatReply(status='refused', error='content filter'))
    results = play(client=chat)
    assert [(r.status, r.hard) for r in results]==[('ok', 0)]*20

@pytest.mark.parametrize('workers', [1, 8])
def test_E1_errors_that_pass_cost_nothing_but_time(workers):
    client = Client(lambda n, user: n <= 9)
    results = play(client=client, workers=workers)
    assert [(r.hard, r.usage) for r in results]==[(r.hard, r.usage) for r in play()]

def test_E1_what_is_lost_is_not_kept():
    journal = Journal()
    results = play(client=Client(lambda n, user: user == 'question 7'), journal=journal)
    assert [r.id for r in results if not r.ok]==['i7']
    assert len(journal)==19
    assert 'Error code: 400' in results[7].fail_reason
    assert all(r.ok for r in play(journal=journal))

def test_E1_a_lost_call_is_not_scored_by_an_environment_that_does_not_look():
    results = play(client=Client(lambda n, user: user == 'question 7'))
    assert (results[7].status, results[7].hard)==('infra_error', 0)
    assert all(r.ok for r in results if r.id != 'i7')

def test_a_call_that_was_lost_and_repeated_by_the_environment_is_not_lost():
    class Patient(Env):
        def rollout_one(self, *, item, skill, target_client):
            text = ''
            while not text:
                text, _ = target_client.chat(system=skill, user=item['q'])
            return dict(hard=text == item['a'])
    client = Client(lambda n, user: n % 3 == 1)
    assert all(r.ok for r in play(Patient(), client=client, workers=1, retries=0))

def test_too_many_lost():
    def bad(*places):
        return Breaks(fail(OSError('no disk')), *places)
    assert sum(r.ok for r in play(bad(1, 2), items=ITEMS[:4]))==2
    with pytest.raises(Outage,
                       match="3 of 4 rollouts for 'val' were lost, "
                             "that of item 'i1' to 'rollout_error: OSError: no disk'"):
        play(bad(1, 2, 3), items=ITEMS[:4], stage='val')

def test_each_lost_item_has_its_tries_and_no_more():
    asked = []
    def broken(item):
        asked.append(item['id'])
        raise OSError('no disk')
    play(Breaks(broken, 6, 11), retries=3)
    assert sorted(asked)==['i11']*4 + ['i6']*4

# D5, D6, D7: what environments do

class Parses(Env):
    "Makes `calls` calls and raises `error` after as many as `after`"
    def __init__(self, error, after=1):
        self.error, self.after = error, after
    def rollout_one(self, *, item, skill, target_client):
        for n in range(3):
            if n==self.after and item['id'] in ('i2', 'i3'):
                self.error()
            target_client.chat(system=skill, user=f'{item["q"]} {n}')
        return dict(hard=1)

def raises(error, cause=None):
    def f():
        raise error from cause
    return f

@pytest.mark.parametrize('after', [1, 2])
@pytest.mark.parametrize('error',
                         [ValueError('cannot parse 7b'), KeyError('answer'), RuntimeError('no such move'),
                          ZeroDivisionError(), RecursionError()], ids=repr)
def test_an_environment_that_breaks_on_what_the_model_wrote_scores_0(error, after):
    asked = Client()
    results = play(Parses(raises(error), after), client=asked, retries=3, items=ITEMS[:10])
    assert [(r.status, r.hard) for r in results]==[('ok', 0 if r.id in ('i2', 'i3') else 1) for r in results]
    assert results[2].fail_reason.startswith(f'env_error: {type(error).__name__}:')
    assert results[2].usage['calls']==after
    assert len(asked.asked)==8*3 + 2*after  # Not tried again

@pytest.mark.parametrize('error,after',
                         [(raises(ValueError('no file')), 0), (raises(OSError('no disk')), 1),
                          (raises(TimeoutError('slow')), 1), (raises(MemoryError()), 1),
    (raises(RuntimeError('simulator down'), ConnectionRefusedError()), 1), (raises(Outage('lost')), 2)],
    ids=['before_a_call', 'disk', 'time', 'memory', 'network_below', 'outage'])
def test_E1_what_an_environment_cannot_help_is_lost_after_an_answer_too(error, after):
    results = play(Parses(error, after), retries=1, items=ITEMS[:10])
    assert [r.id for r in results if not r.ok]==['i2', 'i3']
    assert all(r.fail_reason.startswith('rollout_error: ') for r in results[2:4])

def test_E1_an_environment_that_breaks_on_a_lost_call_is_lost():
    class Reads(Env):
        def rollout_one(self, *, item, skill, target_client):
            target_client.chat(system=skill, user='warm up ' + item['id'])
            text, _ = target_client.chat(system=skill, user=item['q'])
            return dict(hard=len(text.split()[0]) > 0)
    results = play(Reads(), client=Client(lambda n, user: user=='question 7'), retries=0)
    assert [(r.id, r.status) for r in results if not r.ok]==[('i7', 'infra_error')]

def test_an_answer_from_a_cache_is_an_answer():
    class Cached(Client):
        def chat(self, **kw):
            return super().chat(**kw)[0], dict(calls=0)
    results = play(Parses(raises(ValueError('cannot parse 7b'))), client=Cached(), items=ITEMS[:4])
    assert [r.fail_reason for r in results[2:]]==['env_error: ValueError: cannot parse 7b']*2

def test_a_key_in_an_error_of_the_environment_is_blotted_out():
    results = play(Parses(raises(ValueError('judge refused sk-proj-0123456789abcdef'))), items=ITEMS[:4])
    assert 'sk-proj' not in results[2].fail_reason and '[redacted]' in results[2].fail_reason

class Thing:
    def __init__(self, places):
        self.places, self._cache = places, object()

def test_an_item_is_known_again_in_another_process():
    code = """class Thing: pass
t = Thing(); t.places, t._seen = {'shelf', 'desk', 'drawer'}, object()
from skillrl.skillopt.rollout import items_hash
print(items_hash([t, dict(b={'x', 'y', 'z', 'w'}, a=frozenset('pqrs'), c=print), object()]))"""
    said = {subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True,
                           env=os.environ | dict(PYTHONHASHSEED=str(k))).stdout for k in range(4)}
    assert len(said)==1

def test_items_that_differ_are_told_apart():
    things = [1, '1', 1., None, 'None', [], {}, '', ['a', 'b'], ['ab'], ["a', 'b"], dict(a=1), dict(a='1'),
              Thing({'a'}), Thing({'b'}), 'é', b'a']
    assert len({items_hash([t]) for t in things})==len(things)

@pytest.mark.parametrize('score',
                         [dict(hard=5), dict(soft=float('nan')), dict(hard=None), dict(hard=-1),
                          dict(hard='1'), dict(soft=float('inf'))])
@pytest.mark.parametrize('workers', [1, 8])
def test_D7_a_score_that_is_none_stops_the_run_and_names_the_item(score, workers):
    with pytest.raises(ValueError, match=f"{[*score][0]} of item 'i4' is .*number from 0 to 1"):
        play(Breaks(lambda item: score, 4, 9, 10), workers=workers,
             client=Client(naps=[random.uniform(0, .003) for _ in range(40)]))

@pytest.mark.parametrize('out', [None, 'yes', 1, ('a', 'b'), [1]])
def test_a_result_of_another_kind_stops_the_run(out):
    with pytest.raises(TypeError, match="for item 'i2': return a RolloutResult or a dict"):
        play(Breaks(lambda item: out, 2))

def test_a_result_that_no_file_can_hold_stops_the_run():
    with pytest.raises(TypeError, match='cannot be written as JSON'):
        play(Breaks(lambda item: dict(hard=1, extras=dict(thing=object())), 2))

def test_an_environment_may_say_itself_that_a_rollout_was_lost():
    results = play(Breaks(lambda item: dict(hard=1, status='infra_error', fail_reason='simulator down'), 2))
    assert (results[2].status, results[2].fail_reason)==('infra_error', 'simulator down')

def test_an_environment_that_returns_one_object_for_all():
    one = RolloutResult('shared', hard=1)
    results = play(Breaks(lambda item: one, *range(20)))
    assert [r.id for r in results]==[i['id'] for i in ITEMS] and one.id=='shared' and one.usage=={}

def test_ids_are_told_apart():
    class Twins:
        def get_items(self, split):
            return [{}, dict(id=7), dict(id='7')]
    with pytest.raises(ValueError, match="2 items of the split 'val' have the same id '7'"):
        items_of(Twins(), 'val')

# Threads decide nothing

class Shaky(Env):
    "Item `k` is lost `k % 4` times, and for ever if it is among `dead`"
    def __init__(self, dead=()):
        self.dead, self.tries = dead, {}
        self.rng = random.Random()
    def rollout_one(self, *, item, skill, target_client):
        time.sleep(self.rng.uniform(0, .002))
        k = int(item['id'][1:])
        self.tries[k] = self.tries.get(k, 0) + 1
        result = super().rollout_one(item=item, skill=skill, target_client=target_client)
        if k in self.dead or self.tries[k] <= k % 4:
            raise OSError(f'try {self.tries[k]} of {k}')
        return result

@pytest.mark.parametrize('dead, outage',
                         [((), False), (range(4), False), (range(5, 9), False), (range(5), True),
                          (range(8), True), (range(3, 15), True)])
def test_the_number_of_threads_changes_nothing(dead, outage):
    def told(workers):
        try:
            return [r.to_dict() for r in play(Shaky(dead), workers=workers)]
        except Outage as e:
            return str(e)
    first = told(1)
    assert isinstance(first, str)==outage
    for workers in (2, 3, 8, 20):
        assert told(workers)==first

def test_luck_is_the_same_for_any_number_of_threads_any_outage_and_any_skill():
    class Lucky:
        def rollout_one(self, *, item, skill, target_client):
            text, _ = target_client.chat(system=skill, user=item['q'])
            return dict(hard=random.Random(target_client.seed).random())
    def play_with(workers=1, lost=lambda n, user: False, skill=SKILL, **kw):
        results = run_rollout(Lucky(), skill, ITEMS, target_client=Client(lost),
                              executor=ThreadExecutor(workers), pause=0, **kw)
        return [r.hard for r in results]
    first = play_with(seed=1)
    late = play_with(3, lambda n, user: n <= 9, seed=1)
    assert first==play_with(8, seed=1)==late==play_with(seed=1, skill='Other.')
    assert len(set(first))==20
    assert all(a != b for other in (dict(seed=2), dict(seed=1, repeat=1), dict(seed=1, split='val')) for a,
               b in zip(first, play_with(**other)))

def test_without_a_seed_there_is_none():
    seen = []
    class Looks(Env):
        def rollout_one(self, *, target_client, **kw):
            seen.append(target_client.seed)
            return super().rollout_one(target_client=target_client, **kw)
    client = Client()
    client.seed = 7  # of the client, not of a rollout
    play(Looks(), client=client)
    assert set(seen)=={None}

# What was paid for

@pytest.mark.parametrize('cut', range(1, 150, 11))
def test_a_torn_journal_keeps_its_whole_entries(tmp_path, cut):
    journal = Journal(tmp_path/'j.jsonl')
    for i in range(3):
        journal.put(('skill', i), dict(answer='é' * 10, n=i))
    size = journal.path.stat().st_size
    line = size//3
    os.truncate(journal.path, size - cut)
    again = Journal(journal.path)
    kept = len(again)
    assert kept==3 - (cut + line - 2)//line  # a line that lacks only its end is whole
    again.put(('skill', 'new'), [1])
    assert len(Journal(journal.path))==kept + 1 and Journal(journal.path).get(('skill', 'new'))==[1]

def test_a_journal_for_many_threads(tmp_path):
    journal = Journal(tmp_path/'deep'/'j.jsonl')
    ThreadExecutor(16).run(lambda i: journal.put((i,), dict(text='x' * i)), range(300))
    again = Journal(journal.path)
    assert [again.get((i,)) for i in range(300)]==[dict(text='x' * i) for i in range(300)]

def test_a_journal_gives_copies_and_what_a_file_would_give():
    journal, value = Journal(), dict(a=[1], t=(1, 2), nan=float('nan'))
    journal.put('k', value)
    assert journal.get('k')==dict(a=[1], t=[1, 2], nan=None)
    journal.get('k')['a'].append(2)
    assert journal.get('k')['a']==[1] and journal.get('other') is None and not journal.count_once('k')

def test_what_decides_whether_a_rollout_is_known():
    journal, client = Journal(), Client()
    def asks(**kw):
        before = len(client.asked)
        run_rollout(Env(), kw.pop('skill', SKILL), ITEMS[:3], target_client=client, journal=journal, **kw)
        return len(client.asked) - before
    assert [asks(), asks(), asks(repeat=1), asks(split='val'), asks(skill='Other.'),
            asks(stage='screen')]==[3, 0, 3, 3, 3, 0]
    client.model = 'n'
    assert asks()==3

def test_items_without_ids_are_told_apart_by_what_they_hold():
    journal, client = Journal(), Client()
    class Plain(Env):
        def rollout_one(self, *, item, **kw):
            return super().rollout_one(item=dict(item, id='x'), **kw)
    bare = [dict(q=i['q'], a=i['a']) for i in ITEMS]
    first, second = (play(Plain(), items=part, client=client, journal=journal)
                     for part in (bare[:10], bare[10:]))
    assert len(client.asked)==20 and [r.predicted_answer for r in first + second]==[i['a'] for i in ITEMS]

def test_usage_counts_every_call_once(tmp_path):
    client, journal = Client(lambda n, user: n <= 3 or user == 'question 7'), Journal(tmp_path/'j.jsonl')
    results = play(client=client, journal=journal)
    paid = add_usage(*(r.usage for r in results))
    assert paid==dict(calls=19, prompt_tokens=190, completion_tokens=38, total_tokens=228)
    again = add_usage(*(r.usage
                        for r in play(journal=journal, client=Client(lambda n, user: True), retries=0)))
    assert again['total_tokens']==0
    later = play(journal=Journal(journal.path))
    assert add_usage(*(r.usage for r in later))==dict(calls=20, prompt_tokens=200, completion_tokens=40,
                                                      total_tokens=240)

def test_tokens_of_a_try_that_was_lost_are_counted():
    class TwoCalls(Env):
        def rollout_one(self, *, item, skill, target_client):
            target_client.chat(system=skill, user='plan ' + item['q'])
            return super().rollout_one(item=item, skill=skill, target_client=target_client)
    results = play(TwoCalls(), items=ITEMS[:1], client=Client(lambda n, user: n == 2), workers=1)
    assert results[0].ok
    assert results[0].usage==dict(calls=3, prompt_tokens=30, completion_tokens=6, total_tokens=36)

# Meters

def test_a_ledger_is_entered_once():
    run = Ledger()
    meter = Meter(Client(), ledger=run)
    meter.chat(system='', user='question 1')
    own = Meter(ScriptedChat(lambda m: 'a shelf', ledger=run), ledger=run)
    own.chat(system='', user='Where is it?')
    assert run.counts=={'m': (1, 10, 2), 'scripted': (1, 3, 2)} and not run.held
    assert (meter.usage['total_tokens'], own.usage['total_tokens'])==(12, 5)

def test_a_budget_holds_for_clients_that_know_of_none():
    client, ledger = Client(), Ledger(budget_tokens=100)
    class Short(Env):
        def rollout_one(self, *, item, skill, target_client):
            text, _ = target_client.chat(system=skill, user=item['q'], max_completion_tokens=8)
            return dict(hard=text == item['a'])
    journal = Journal()
    with pytest.raises(BudgetExceeded, match='of 100 are left'):
        play(Short(), client=client, ledger=ledger, journal=journal)
    assert ledger.tokens <= 100 and ledger.tokens==12*len(client.asked)==12*len(journal) and not ledger.held

def test_a_meter_looks_like_its_client():
    client = Client()
    client.temperature = .7
    meter = Meter(client, 'reflect')
    assert (meter.model, meter.temperature, hasattr(meter, 'replies_of'))==('m', .7, False)
    assert not hasattr(meter, 'reply') and not hasattr(meter, 'replies')

def test_an_outage_in_a_chat_is_remembered_by_its_cause():
    meter = Meter(ScriptedChat([ConnectionError('no route')]))
    with pytest.raises(Outage):
        meter.chat(system='', user='Where?')
    assert list(meter.lost.values())==['Outage: ConnectionError: no route'] and meter.usage['total_tokens']==0

def test_a_client_that_breaks_the_contract_is_named():
    class Old:
        model = 'old'
        def chat(self, **kw):
            return 'shelf'
    with pytest.raises(Outage, match=r'should return \(text, usage\)'):
        play(client=Old())

# What was paid

class Steps(Env):
    "Asks `n` times for an item"
    def __init__(self, n=3):
        self.n = n
    def rollout_one(self, *, item, skill, target_client):
        for k in range(self.n - 1):
            target_client.chat(system=skill, user=f'step {k} of {item["q"]}')
        return super().rollout_one(item=item, skill=skill, target_client=target_client)

def test_calls_that_raise_are_counted():
    class Raises(Client):
        def chat(self, **kw):
            out = super().chat(**kw)
            if len(self.asked) in (2, 5):
                raise ConnectionError('reset by peer')
            return out
    client = Raises()
    results = play(items=ITEMS[:8], client=client, workers=1)
    assert all(r.ok for r in results) and sum(r.usage['calls'] for r in results)==len(client.asked)==10
    assert [r.usage['calls'] for r in results]==[1, 2, 1, 1, 2, 1, 1, 1]

def test_calls_that_time_out_are_counted():
    ended = threading.Event()
    class Hangs(Client):
        def chat(self, **kw):
            out = super().chat(**kw)
            if self.asked.count('question 3') == 1 == self.asked[-1:].count('question 3'):
                ended.wait(20)
            return out
    client = Hangs()
    results = play(items=ITEMS[:5], client=client, timeout=.2, workers=1)
    ended.set()
    assert results[3].ok
    assert results[3].usage==dict(calls=2, prompt_tokens=10, completion_tokens=2, total_tokens=12)
    assert sum(r.usage['calls'] for r in results)==len(client.asked)==6

def test_a_play_that_a_limit_cuts_off_is_on_the_bill():
    client, bill = Client(), {}
    journal = Journal()
    def guard():
        if len(client.asked) >= 7:
            raise BudgetExceeded('7 of 7 calls are made')
    with pytest.raises(BudgetExceeded):
        play(Steps(), client=client, workers=1, guard=guard, bill=bill, journal=journal, stage='gate')
    assert len(client.asked)==7 and len(journal)==2
    assert bill==dict(paid=dict(gate=dict(calls=7, prompt_tokens=70, completion_tokens=14, total_tokens=84)),
                      played=3, largest=0)
    later = {}
    play(Steps(), client=client, bill=later, journal=journal)
    assert later['paid']['rollout']['calls']==len(client.asked) - 7==54 and later['played']==18

def test_a_rollout_that_asks_past_its_meter_counts_as_a_call():
    class Past(Env):
        def rollout_one(self, *, item, skill, target_client):
            return super().rollout_one(item=item, skill=skill, target_client=target_client.client)
    bill = {}
    results = play(Past(), bill=bill)
    assert {r.usage['calls'] for r in results}=={1} and bill['paid']['rollout']['calls']==20
    class Asks(Env):
        def rollout_one(self, **kw):
            return dict(hard=1)
    alone = run_rollout(Asks(), SKILL, ITEMS, target_client=None)
    assert {r.usage['calls'] for r in alone}=={0}

def test_a_rollout_that_hangs_gives_back_what_it_holds():
    "One that waits for it would wait for ever"
    ended, ledger = threading.Event(), Ledger(budget_tokens=5000)
    class Hangs(Client):
        def chat(self, **kw):
            out = super().chat(**kw)
            if self.asked.count('question 0') == 1 == self.asked[-1:].count('question 0'):
                ended.wait(20)
            return out
    results = play(items=ITEMS[:4], client=Hangs(), ledger=ledger, timeout=.3, workers=2)
    assert all(r.ok for r in results) and not ledger.held
    ended.set()

def test_what_is_known_is_not_asked_for_room():
    asked, journal = [], Journal()
    play(items=ITEMS[:5], journal=journal, begin=asked.append)
    play(items=ITEMS, journal=journal, begin=asked.append)
    assert asked==[5, 15]

def test_one_skill_or_one_for_each_item():
    seen = []
    class Says:
        def rollout_one(self, *, item, skill, **kw):
            return seen.append((item['id'], skill)) or dict(hard=1)
    items = [dict(id=i) for i in 'abc']
    run_rollout(Says(), ['x', 'y', 'x'], items, target_client=Client(), executor=ThreadExecutor(1))
    assert seen==[('a', 'x'), ('b', 'y'), ('c', 'x')]
    with pytest.raises(ValueError, match='2 skills for 3 items'):
        run_rollout(Says(), ['x', 'y'], items, target_client=Client())
