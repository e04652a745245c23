"The skill of `skillrl optimize` reaches the agent program that answers, as it runs in real life"

import json, os, shutil, subprocess, sys, time
import pytest
from faults import FaultServer, error, said
from skillrl.cli.main import main
from skillrl.llm.command import CommandChat, _lay_out

# Sends what came on stdin to a model and nothing else, as agent programs do; `SKILL.md` it never opens
AGENT = """import json, sys, urllib.request
asked = dict(messages=[dict(role='user', content=sys.stdin.read())])
request = urllib.request.Request(sys.argv[1], json.dumps(asked).encode())
answer = json.load(urllib.request.urlopen(request))
print(answer['choices'][0]['message']['content'])
"""
DEAF = AGENT.replace('sys.stdin.read()', "'Solve it.'")
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
    who = ['--policy-command', command, '--teacher-command', command, '--skill', 'skill.md']
    return main(['optimize', '--questions', 'forms.jsonl', *who, *QUICK, '--output', 'o'])


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


def test_the_agent_is_tried_before_it_is_paid(here, capsys):
    "A program that reads nothing asks once at most, and the run ends in one sentence before it begins"
    with FaultServer(rest=answer) as s:
        assert optimize(s.url, DEAF) == 1
        assert s.count <= 1
    told = capsys.readouterr().err
    assert 'never sees the skill' in told
    assert 'agent.py' in told
    assert not (here / 'o').exists()


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


def test_a_skill_lies_where_each_program_looks(tmp_path):
    "Claude Code looks in `.claude/skills`, Codex and Gemini CLI in `.agents/skills`"
    asked = [dict(role='system', content=SKILL), dict(role='user', content='Is 1 a number?')]
    work = _lay_out(tmp_path/'skill', asked)
    for home in ('.claude/skills/skill', '.agents/skills/skill', '.'):
        text = (work / home / 'SKILL.md').read_text()
        assert text.startswith('---\nname: skill\n')
        assert SKILL in text


def test_the_trial_of_an_agent_ends_before_it_asks(tmp_path):
    slow = AGENT.replace('request =', 'import time; time.sleep(1); request =')
    (tmp_path / 'agent.py').write_text(slow)
    with FaultServer() as s:
        CommandChat([sys.executable, str(tmp_path / 'agent.py'), s.url]).probe()
        assert not s.count


@pytest.mark.skipif(not shutil.which('claude'), reason='Claude Code is not installed')
def test_claude_code_sends_the_skill(tmp_path):
    with FaultServer(rest=error(400, 'enough')) as s:
        env = dict(HOME=str(tmp_path), ANTHROPIC_BASE_URL=s.url, ANTHROPIC_API_KEY='sk-ant-example-7f3a')
        chat = CommandChat(['claude', '-p', '--model', 'mug'], env=env, timeout=120)
        chat.probe()
        assert not s.count
        chat.reply([dict(role='system', content=SKILL), dict(role='user', content='Is 1 a number?')])
        asked = [json.dumps(r['body']) for r in s.requests]
    assert any(SKILL in text for text in asked)
