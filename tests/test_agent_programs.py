"Agent programs under `skillrl optimize`: with questions, and with the evals of a skill"

import json, os, shutil, subprocess, sys, time
import pytest
from faults import FaultServer, error, said
from test_prove import lines
from skillrl.cli.main import main
from skillrl.core.store import read_json, write_json
from skillrl.proof.agents import find_agent
from skillrl.skillopt.eval_env import _skill_folder, AgentChat, EvalEnv, program_chat, prove_best

# Sends what came on stdin to a model and nothing else, as agent programs do; `SKILL.md` it never opens
AGENT = """import json, sys, urllib.request
asked = dict(messages=[dict(role='user', content=sys.stdin.read())])
request = urllib.request.Request(sys.argv[1], json.dumps(asked).encode())
answer = json.load(urllib.request.urlopen(request))
print(answer['choices'][0]['message']['content'])
"""
FORMS = [dict(question=f'Is {n} a number?', answers='aye') for n in range(12)]
SKILL = 'Answer aye, unless you are a mug.'
EDIT = '{"edits": [{"op": "append", "content": "Say aye."}]}'
QUICK = ['--set', 'num_epochs=1', 'batch_size=6', 'minibatch_size=3', 'final_passes=0']


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'forms.jsonl').write_text('\n'.join(map(json.dumps, FORMS)))
    (tmp_path / 'skill.md').write_text(SKILL)
    return tmp_path


def optimize(url, source):
    "The exit status of a short run in which a program of this `source` answers and edits"
    with open('agent.py', 'w') as f:
        f.write(source)
    command = f'{sys.executable} -I -S agent.py {url}'.replace('agent.py', os.path.abspath('agent.py'))
    who = ['--policy-command', command, '--teacher-command', command]
    return main(['optimize', 'skill.md', '--questions', 'forms.jsonl', *who, *QUICK, '--output', 'o'])


def answer(request):
    text = request['body']['messages'][0]['content']
    return said(EDIT if '## Trajectories' in text else 'aye')


def test_the_agent_sees_the_skill(here, capsys):
    with FaultServer(rest=answer) as s:
        assert optimize(s.url, AGENT) == 0
        asked = [r['body']['messages'][0]['content'] for r in s.requests]
    acted = [text for text in asked if 'a number?' in text and '## Trajectories' not in text]
    assert len(acted) >= 8
    assert all(SKILL in text for text in acted)


SKILLRL = [sys.executable, '-c', 'import sys; from skillrl.cli.main import main; sys.exit(main())']
SLEEPS = """import os, time
with open('{0}.new', 'w') as f:
    f.write(str(os.getpid()))
os.rename('{0}.new', '{0}')
time.sleep(60)
"""


def test_an_agent_ends_with_a_command_that_is_told_to_end(here):
    (here / 'agent.py').write_text(SLEEPS.format(here / 'pid'))
    who = ['--policy-command', f'{sys.executable} {here}/agent.py', '--teacher-command', 'cat']
    ours = subprocess.Popen([*SKILLRL, 'optimize', '--questions', 'forms.jsonl', *who, '--output', 'o'])
    for _ in range(600):
        if (here / 'pid').exists():
            break
        time.sleep(.05)
    ours.terminate()
    assert ours.wait(30) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int((here / 'pid').read_text()), 0)


@pytest.mark.skipif(not shutil.which('claude'), reason='Claude Code is not installed')
def test_claude_code_sends_the_skill(tmp_path, monkeypatch):
    with FaultServer(rest=error(400, 'enough')) as s:
        env = dict(HOME=str(tmp_path), ANTHROPIC_BASE_URL=s.url, ANTHROPIC_API_KEY='sk-ant-example-7f3a')
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        chat = program_chat('claude -p --model mug')
        chat.reply([dict(role='system', content=SKILL), dict(role='user', content='Is 1 a number?')])
        asked = [json.dumps(r['body']) for r in s.requests]
    assert any(SKILL in text for text in asked)


# --- evals ---
CLERK = """import os, pathlib, re, sys
prompt, skill = sys.argv[1], pathlib.Path(sys.argv[2])
text = (skill/'SKILL.md').read_text()
with open({calls!r}, 'a') as f: f.write(prompt + ' ' + str('K7' in text) + chr(10))
if {fails}: sys.exit({why!r})
pathlib.Path('label.txt').write_text('K7' if 'K7' in text else 'none')
print(sorted(p.name for p in skill.iterdir()))
"""
TUTOR = """import sys
open({0!r}, 'a').write(sys.stdin.read())
print('{{"edits": [{{"op": "append", "content": "End it with K7."}}]}}')
"""
HEAD = '---\nname: labels\ndescription: How we label.\n---\n\n'


@pytest.fixture
def labels(here):
    "The words that optimise a skill with nine evals"
    wanted = dict(text='K7', check=dict(file='label.txt', contains='K7'))
    evals = [dict(id=n, prompt=f'Label-{n}', assertions=[wanted]) for n in range(9)]
    write_json(here/'labels'/'evals'/'evals.json', evals)
    (here/'labels'/'SKILL.md').write_text(f'{HEAD}Label it.\n')
    (here/'labels'/'codes.txt').write_text('none')
    (here/'tutor.py').write_text(TUTOR.format(str(here/'told')))
    def words(fails='False', why='HTTP 503: the line is down'):
        (here/'clerk.py').write_text(CLERK.format(calls=str(here/'calls'), fails=fails, why=why))
        clerk, tutor = f'{here}/clerk.py {{prompt}} {{skill}}', f'{here}/tutor.py'
        return ['optimize', 'labels', '--evals', '--agent', f'{sys.executable} {clerk}',
                '--teacher-command', f'{sys.executable} {tutor}', '--output', 'o',
                '--set', 'num_epochs=1', 'workers=1', 'final_passes=0', 'proof.rounds=3', 'proof.parallel=1']
    return words


def test_a_skill_is_optimised_on_some_evals_and_proven_on_others(here, labels, capsys):
    assert main(labels()) == 0
    assert 'labels: on these evals: helps' in capsys.readouterr().out
    new = here/'o'/'best_skill'/'labels'
    assert (new/'SKILL.md').read_text() == f'{HEAD}Label it.\n\nEnd it with K7.\n'
    assert (here/'labels'/'SKILL.md').read_text() == f'{HEAD}Label it.\n' and (new/'codes.txt').exists()
    proof = read_json(here/'o'/'proof'/'iteration-1'/'benchmark.json')
    proven = {f'Label-{n}' for n in proof['metadata']['evals_run']}
    asked = [line.split() for line in lines(here/'calls')]
    before = [prompt for prompt, _ in asked[:-6*len(proven)]]
    told = (here/'told').read_text()
    assert len(proven) == 3 and not proven & {*before} and not any(p in told for p in proven)
    assert sum(f'Label-{n}' in told for n in range(9)) == 3
    assert main(labels()) == 0 and len(lines(here/'calls')) == len(asked)


def test_a_run_that_crashes_scores_0_and_the_teacher_reads_why(here, labels, capsys):
    assert main(labels("'K7' not in text", 'no code, no label')) == 0
    assert 'labels: on these evals: helps' in capsys.readouterr().out
    assert 'no code, no label' in (here/'told').read_text()


def test_an_agent_that_says_nothing_is_graded_by_what_it_leaves(here, labels, capsys):
    words = labels()
    source = (here/'clerk.py').read_text()
    (here/'clerk.py').write_text(source[:source.index('print(')])
    assert main(words) == 0 and 'labels: on these evals: helps' in capsys.readouterr().out


def test_nothing_is_proven_where_nothing_has_changed(here, labels, capsys):
    words = labels()
    (here/'tutor.py').write_text("print('[]')")
    assert main(words) == 0 and not (here/'o'/'proof').exists()
    (here/'o'/'best_skill.md').write_text(f'{HEAD}Label it.\n')
    calls = lines(here/'calls')
    client = AgentChat(find_agent(f'{sys.executable} {here}/clerk.py {{prompt}} {{skill}}'), here/'labels')
    _, proof = prove_best(EvalEnv(client), here/'o')
    assert proof is None and lines(here/'calls') == calls


def test_a_run_that_is_lost_is_no_score(here, labels, capsys):
    assert main(labels('True')) == 1
    assert 'the line is down' in capsys.readouterr().err and not [*(here/'o').rglob('results.json')]


@pytest.mark.parametrize('share', [.3, .97])
def test_killed_it_goes_on_and_pays_for_no_run_twice(here, labels, share):
    assert main(labels()) == 0
    whole = len(lines(here/'calls'))
    best = (here/'o'/'best_skill.md').read_text()
    proof = read_json(here/'o'/'proof'/'iteration-1'/'proof.json')['claims']
    shutil.rmtree(here/'o')
    (here/'calls').unlink()
    ours = subprocess.Popen([*SKILLRL, *labels()], stdout=subprocess.DEVNULL)
    while len(lines(here/'calls')) < share*whole and ours.poll() is None:
        time.sleep(.01)
    ours.kill()
    assert ours.wait(30) == -9
    assert main(labels()) == 0
    assert len(lines(here/'calls')) <= whole + 1
    assert (here/'o'/'best_skill.md').read_text() == best
    assert read_json(here/'o'/'proof'/'iteration-1'/'proof.json')['claims'] == proof


def test_what_a_skill_links_to_is_not_written(here, labels):
    (here/'labels'/'SKILL.md').rename(here/'mine.md')
    (here/'labels'/'SKILL.md').symlink_to(here/'mine.md')
    assert (_skill_folder(here/'new', here/'labels', 'Sing.')/'SKILL.md').read_text() == 'Sing.'
    assert (here/'mine.md').read_text() == f'{HEAD}Label it.\n'


def test_evals_that_are_too_few_or_have_no_skill_are_refused(here, labels, capsys):
    write_json(here/'labels'/'evals'/'evals.json', read_json(here/'labels'/'evals'/'evals.json')[:2])
    assert main(labels()) == 1
    assert '2 evals that can be graded' in capsys.readouterr().err
    assert main(['optimize', '--evals', '--teacher-command', 'cat']) == 1
    assert '--evals needs a skill' in capsys.readouterr().err and not (here/'o').exists()
