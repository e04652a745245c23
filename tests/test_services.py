"""A whole run with a teacher behind a real server.

What it costs, what it leaves behind, and what an outage does to it."""
import io, json, re, signal
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from threading import Lock
import pytest
from faults import FaultServer, error, said
from skillrl.cli.main import main
from skillrl.skills.bank import SkillBank
from skillrl.skills.queries import prompt

KEY = 'sk-live-0123456789abcdefABCDEF'
PRICES = {'wise': [1.0, 2.0]}
SMALL = dict(env=dict(train_suites=1, test_suites=1, episodes=6, test_tasks=1, max_steps=6),
             sft=dict(games=2, steps=2), rl=dict(iterations=2, tasks_per_iteration=2, group_size=2),
             evolution=dict(validation_interval=2))

def teach(request, usage=(11, 7)):
    "A sound answer to whatever the run asks"
    system, user = (m['content'] for m in request['body']['messages'][:2])
    kinds = 'lessons', 'proposals', 'thoughts'
    kind = next(k for k in kinds if prompt(k) in system)
    lost = re.search(r'Episode (\d+), of the kind "(.*?)", was lost', user)
    number, category = (int(lost[1]), lost[2]) if lost else (1, re.search(r'of the kind "(.*?)"', user)[1])
    how = dict(title=f'How to {category}', when_to_apply='Always.',
               principle=f'For {category} tasks search every place once before going back.')
    if kind=='thoughts':
        did = re.findall(r'^(\d+)\. .* did "(.*)"', user, re.M)
        answer = [dict(step=int(i), action=a, thought='The goal needs it.') for i,a in did]
    elif kind=='proposals':
        why = dict(evidence=[number], hypothesis='More games are won.')
        answer = [dict(kind='add', **how, **why, category=category)]
    else:
        answer = [dict(how, category=category, evidence=[number])]
    return said(json.dumps(answer), usage=usage)

def config_file(folder, **more):
    "A file in `folder` with settings of a run that has all phases and little to do in each"
    path = folder/'config.json'
    path.write_text(json.dumps(SMALL | {part: SMALL.get(part, {}) | held for part, held in more.items()}))
    return str(path)

def train(server, folder, **more):
    return main(['train', '--config', config_file(folder.parent, **more), '--teacher', 'wise',
                 '--teacher-url', server.url, '--output', str(folder)])

def files(folder):
    kept = [p for p in sorted(Path(folder).rglob('*')) if p.is_file() and p.name!='.lock']
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in kept}

@pytest.fixture
def key(monkeypatch):
    monkeypatch.setenv('SKILLRL_TEACHER_API_KEY', KEY)

@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    "A run whose teacher fails twice at first: its folder, what it printed, and the keys of its calls"
    folder, told = tmp_path_factory.mktemp('whole')/'run', io.StringIO()
    outages = error(429, 'slow down, {key}', retry_after='0'), error(500, 'oops {key}')
    with pytest.MonkeyPatch.context() as m, FaultServer(*outages, rest=teach) as server:
        m.setenv('SKILLRL_TEACHER_API_KEY', KEY)
        m.setattr('skillrl.llm.service._retry_wait', lambda *_: 0)
        with redirect_stdout(told), redirect_stderr(told):
            assert train(server, folder)==0
        return folder, told.getvalue(), [r['key'] for r in server.requests]

def test_a_run_with_a_teacher_ends_without_a_trace_of_the_key(whole):
    folder, told, keys = whole
    held = files(folder)
    assert set(keys)=={KEY}
    assert not [n for n,b in held.items() if KEY.encode() in b] and KEY not in told
    assert 'Run folder' in told and 'Success on test games' in told
    assert len(held['teacher/exchanges.jsonl'].splitlines()) > 4 and len(keys) > 4
    bank = SkillBank.load(folder/'bank'/'train-000')
    assert {o.provenance['teacher'] for o in bank.items()}=={'wise'}

def test_an_outage_stops_the_run_with_its_cause_and_the_rest_is_done_later(whole, tmp_path, capsys, key):
    with FaultServer(rest=error(401, 'the key {key} is not known here')) as server:
        assert train(server, tmp_path/'run')==1
        err = capsys.readouterr().err
        assert 'not known here' in err.strip().splitlines()[-1] and KEY not in err
        exchanges = (tmp_path/'run'/'teacher'/'exchanges.jsonl').read_bytes()
        assert not [n for n,b in files(tmp_path/'run').items() if KEY.encode() in b]
        server.rest = teach
        assert main(['train', '--resume', str(tmp_path/'run'), '--teacher-url', server.url])==0
    assert (tmp_path/'run'/'teacher'/'exchanges.jsonl').read_bytes().startswith(exchanges)
    def same(held):
        own = 'config.json', 'state.json', 'state.previous.json'
        return {n: b for n,b in held.items() if not n.startswith('teacher/') and n not in own}
    assert same(files(tmp_path/'run'))==same(files(whole[0]))

def test_the_budget_holds_across_a_stop(tmp_path, capsys, key):
    (tmp_path/'prices.json').write_text(json.dumps(PRICES))
    model = {'budget_usd': 0.03, 'prices': str(tmp_path/'prices.json')}
    with FaultServer(rest=lambda request: teach(request, (3000, 500))) as server:
        assert train(server, tmp_path/'run', model=model)==1
        spent = server.count
        capsys.readouterr()
        named = '--config', str(tmp_path/'config.json'), '--teacher-url', server.url
        assert main(['train', '--resume', str(tmp_path/'run'), *named])==1
        assert server.count==spent > 0
    assert 'budget' in capsys.readouterr().err

def test_demonstrations_with_a_teachers_thoughts(tmp_path, key):
    with FaultServer(rest=teach) as server:
        assert train(server, tmp_path/'run', sft=dict(games=0))==0
    rows = [json.loads(l) for l in (tmp_path/'run'/'sft.jsonl').read_text().splitlines()]
    opening = '<think> The goal needs it. </think> <action> '
    assert rows and all(r['completion'].startswith(opening) for r in rows)

def test_a_policy_behind_a_server_is_judged_and_an_outage_is_no_failure(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path) # Where the calls are kept
    def walk(request):
        new = re.search(r'\n- (go to [a-z]+ \d+)', request['body']['messages'][-1]['content'])
        return said(f'<action>{new[1] if new else "look"}</action>')
    small = ['--set', 'env.test_tasks=6', 'env.max_steps=3']
    played = ['eval', *small, '--policy-model', 'walker', '--policy-url']
    with FaultServer(rest=walk) as server:
        assert main([*played, server.url])==0
    assert re.search(r'^no bank +0\.00 \[0\.00, 0\.39\]', capsys.readouterr().out, re.M)
    with FaultServer(*[walk]*7, error(400, 'one bad day'), rest=walk) as server:
        assert main([*played, server.url])==0
    assert '1 more got no answer and does not count' in capsys.readouterr().out
    with FaultServer(rest=error(400, 'closed for good')) as server:
        assert main([*played, server.url])==1
    assert 'closed for good' in capsys.readouterr().err

AT_ONCE = 16 # Calls that may be under way when a run is killed

def play_or_teach(request):
    "The answer of a player that walks from place to place, or of the teacher"
    if request['body']['model'] == 'wise':
        return teach(request)
    new = re.search(r'\n- (go to [a-z]+ \d+)', request['body']['messages'][-1]['content'])
    return said(f'<action>{new[1] if new else "look"}</action>')

def test_a_run_with_player_and_teacher_is_killed_and_pays_no_call_twice(lives, tmp_path, key):
    "Killed while the player collects, while the teacher distils, and while banks evolve"
    def status(server, *first):
        return lives.run('train', *first, '--policy-url', server.url, '--teacher-url', server.url)
    begin = '--config', config_file(tmp_path), '--teacher', 'wise', '--policy-model', 'walker', '--output'
    with FaultServer(rest=play_or_teach) as server:
        assert status(server, *begin, tmp_path/'whole')==0
        paid, models = server.count, [r['body']['model'] for r in server.requests]
    distils = models.index('wise')
    due, lock = [distils//2, distils + 1, paid - 1], Lock()
    def mortal(request):
        with lock: # Requests come side by side
            if due and server.count >= due[0]:
                due.pop(0)
                lives.send(signal.SIGKILL)
        return play_or_teach(request)
    with FaultServer(rest=mortal) as server:
        ends = [status(server, *begin, tmp_path/'run')]
        while ends[-1]:
            ends.append(status(server, '--resume', tmp_path/'run'))
        assert ends==[-signal.SIGKILL]*3 + [0]
        assert paid <= server.count <= paid + 3*AT_ONCE
    def same(held):
        alike = 'bank/', 'policy/', 'evolution.jsonl', 'metrics.jsonl', 'report.md', 'trajectories.jsonl'
        return {n: b for n,b in held.items() if n.startswith(alike)}
    assert same(files(tmp_path/'run'))==same(files(tmp_path/'whole'))
