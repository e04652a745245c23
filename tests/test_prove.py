"A proof: runs that are killed, lost, limited and graded late, and what it leaves"
import json, os, random, re, shlex, signal, subprocess, sys, time
from pathlib import Path
import pytest
from skillrl.cli.main import main
from skillrl.core.store import read_json, write_json
from skillrl.llm.chat import ScriptedChat
from skillrl.llm.reply import ChatReply, RunStopped
from skillrl.proof.agents import find_agent
from skillrl.proof.prove import _never_differs, _tree_hash, prove, ProofConfig

# Writes the secret word if the skill tells it, and a line for each call
AGENT = '''import os, sys
from pathlib import Path
calls, prompt, skill = sys.argv[1:]
with open(calls, 'a') as f:
    f.write(f'{prompt} {bool(skill)}' + chr(10))
word = Path(skill, 'SKILL.md').read_text().split()[-1] if skill else 'nothing'
Path('word.txt').write_text(word)
'''
FLAKY = '''import sys
n = len(open(sys.argv[1]).readlines()) if __import__('os').path.exists(sys.argv[1]) else 0
if n % 3 == 2:
    open(sys.argv[1], 'a').write('lost' + chr(10))
    sys.exit('the line is down')
'''

def skill_in(folder, word='kettle', n=6, name='words', **check):
    "A skill that tells `word`, with evals that want to find kettle"
    here = folder/name
    (here/'evals').mkdir(parents=True)
    (here/'SKILL.md').write_text(f'---\nname: {name}\ndescription: Words.\n---\nThe word is {word}\n')
    wanted = dict(file='word.txt', contains='kettle') | check
    evals = [dict(id=i, prompt=f'p{i}', assertions=[dict(text='the word is there', check=wanted)])
             for i in range(n)]
    write_json(here/'evals'/'evals.json', dict(skill_name=name, evals=evals))
    return here

def agent_in(folder, before=''):
    "A program and the file that it notes its calls in"
    program, calls = folder/'agent.py', folder/'calls.txt'
    program.write_text(before + AGENT)
    return f'{sys.executable} {program} {calls} {{prompt}} {{skill}}', calls

def lines(path):
    return path.read_text().splitlines() if path.exists() else []

def typed(skill, agent, *more):
    return main(['prove', str(skill), '--agent', agent, '--set', 'parallel=1', 'rounds=4', *more])

@pytest.mark.parametrize('word, wanted, code, verdict', [
    ('kettle', 'kettle', 0, 'verdict: helps'), ('mug', 'kettle', 1, 'verdict: not enough'),
    ('mug', 'nothing', 2, 'verdict: harms')])
def test_the_exit_status_is_the_verdict(tmp_path, capsys, word, wanted, code, verdict):
    agent, _ = agent_in(tmp_path)
    assert typed(skill_in(tmp_path, word, contains=wanted), agent) == code
    assert verdict in capsys.readouterr().out

def test_an_old_version_takes_the_place_of_no_skill(tmp_path):
    agent, calls = agent_in(tmp_path)
    old = skill_in(tmp_path/'old', 'mug')
    found = prove(skill_in(tmp_path), find_agent(agent), against=old, config=ProofConfig(parallel=1))
    assert found.code == 0 and {line.split()[1] for line in lines(calls)} == {'True'}
    arms = read_json(found.folder/'proof.json')['hashes']
    assert arms == dict(with_skill=_tree_hash(tmp_path/'words'), old_skill=_tree_hash(old))

def test_a_folder_of_skills_ends_with_the_worst_and_with_a_table(tmp_path, monkeypatch, capsys):
    agent, summary = agent_in(tmp_path)[0], tmp_path/'summary.md'
    monkeypatch.setenv('GITHUB_STEP_SUMMARY', str(summary))
    skill_in(tmp_path/'skills', name='good')
    skill_in(tmp_path/'skills', 'mug', name='idle')
    assert typed(tmp_path/'skills', agent, '--ci', '--output', str(tmp_path/'out')) == 1
    assert '| good | on these evals: helps (+1.00' in summary.read_text()
    assert (tmp_path/'out'/'good-workspace'/'iteration-1'/'report.html').exists()
    assert sorted(p.name for p in (tmp_path/'skills').iterdir()) == ['good', 'idle']

KILLS = 12

def test_killed_again_and_again_it_says_the_same_and_pays_for_no_run_twice(tmp_path):
    agent, calls = agent_in(tmp_path, 'import time\ntime.sleep(.05)\n')
    whole, calm = skill_in(tmp_path/'calm'), lines(calls)
    typed(whole, agent)
    once = lines(calls)
    calls.unlink()
    skill = skill_in(tmp_path/'wild')
    line = [sys.executable, '-c', 'from skillrl.cli.main import main; raise SystemExit(main())', 'prove',
            str(skill), '--agent', agent, '--set', 'parallel=2', 'rounds=4']
    rng, killed = random.Random(0), 0
    while True:
        p = subprocess.Popen(line, start_new_session=True, stdout=subprocess.DEVNULL)
        wait = len(lines(calls)) + rng.randint(1, 3)
        while p.poll() is None and (killed == KILLS or len(lines(calls)) < wait):
            time.sleep(.01)
        if p.poll() is not None:
            break
        time.sleep(rng.random()/10)
        os.killpg(p.pid, signal.SIGKILL)
        p.wait()
        killed += 1
    assert p.returncode == 0 and killed >= 3 and not calm
    assert len(lines(calls)) <= len(once) + 2*killed # What was under way
    a, b = (read_json(s.with_name('words-workspace')/'iteration-1'/'proof.json') for s in (whole, skill))
    told = 'claims', 'gains', 'stopped', 'reason', 'never_differs', 'hashes', 'evals'
    assert {k: a[k] for k in told} == {k: b[k] for k in told}
    counted = list(skill.with_name('words-workspace').glob('*/eval-*/*/run-*/grading.json'))
    assert len(counted) == len(once)

def test_a_run_that_is_lost_is_made_again_and_is_no_score_of_0(tmp_path):
    agent, calls = agent_in(tmp_path, FLAKY)
    found = prove(skill_in(tmp_path, n=3), find_agent(agent), config=ProofConfig(parallel=1, rounds=2))
    assert found.facts['gains'] == [[1.]*3]*2 and found.facts['lost'] == lines(calls).count('lost') > 2
    lost = [json.loads(line) for line in (found.folder/'lost.jsonl').read_text().splitlines()]
    assert all('the line is down' in row['error'] for row in lost)

def test_an_agent_that_never_works_is_no_verdict(tmp_path):
    agent, calls = agent_in(tmp_path, 'raise SystemExit("no key")\n')
    with pytest.raises(RunStopped, match='none of 12 runs could be counted.*no key'):
        prove(skill_in(tmp_path), find_agent(agent), config=ProofConfig(parallel=1))
    agent_in(tmp_path) # It is mended, and the proof goes on
    found = prove(tmp_path/'words', find_agent(agent), config=ProofConfig(parallel=1))
    assert found.code == 0 and found.folder.name == 'iteration-1' and found.facts['lost'] == 12

def asked(messages):
    return 'kettle' if 'kettle' in messages[0]['content'] else 'nothing'

def chat_skill(folder):
    "A skill for a chat, whose evals need a judge"
    here = skill_in(folder)
    evals = [dict(id=i, prompt=f'p{i}', expected_output='kettle', assertions=['The word is kettle'])
             for i in range(6)]
    return here, write_json(folder/'evals.json', evals)

def rules(messages):
    "A judge that looks for the word, and may not see what tells the arm"
    told = messages[-1]['content']
    assert 'SKILL.md' not in told and 'with_skill' not in told and 'words' not in told.split('Final')[0]
    passed = 'Final answer: "kettle"' in told
    return json.dumps([dict(assertion=1, passed=passed, evidence='kettle')])

def test_a_judge_that_is_away_is_asked_later_and_the_agent_is_not(tmp_path):
    skill, evals = chat_skill(tmp_path)
    actor = ScriptedChat(asked)
    away = ScriptedChat(lambda messages: ChatReply(status='infra_error', error='away'))
    config, agent = ProofConfig(parallel=1, rounds=2), find_agent('chat', actor)
    with pytest.raises(RunStopped, match='none of 12 runs could be graded.*away'):
        prove(skill, agent, away, evals=evals, config=config)
    found = prove(skill, agent, ScriptedChat(rules), evals=evals, config=config)
    assert found.code == 0 and len(actor.calls) == 24 and found.folder.name == 'iteration-1'

def test_a_limit_ends_the_proof_and_is_told(tmp_path):
    skill, evals = chat_skill(tmp_path)
    agent = find_agent('chat', ScriptedChat(asked))
    found = prove(skill, agent, ScriptedChat(rules), evals=evals,
                  config=ProofConfig(parallel=1, max_tokens=30))
    assert found.facts['limit'] == 'max_tokens of 30 is reached' in str(found)
    assert 30 <= found.facts['spent']['max_tokens'] < 60

def test_other_programs_read_what_it_leaves(tmp_path):
    agent, _ = agent_in(tmp_path)
    found = prove(skill_in(tmp_path, n=2), find_agent(agent), config=ProofConfig(parallel=1, rounds=2))
    run = found.folder/'eval-0'/'with_skill'/'run-1'
    grading, timing = read_json(run/'grading.json'), read_json(run/'timing.json')
    assert grading['summary'] == dict(passed=1, failed=0, total=1, pass_rate=1.)
    assert grading['expectations'] == grading['assertion_results'] and timing['duration_ms'] > 0
    assert (run/'outputs'/'word.txt').read_text() == 'kettle'
    found = read_json(found.folder/'benchmark.json')
    assert found['run_summary']['delta']['pass_rate'] == '+1.00'
    assert {(r['eval_id'], r['configuration'], r['run_number']) for r in found['runs']} == {
        (i, arm, k) for i in (0, 1) for arm in ('with_skill', 'without_skill') for k in (1, 2)}
    assert all(r['result']['total'] == 1 for r in found['runs'])

def test_it_is_said_what_cannot_be_graded_and_a_wrong_setting(tmp_path, capsys):
    skill, evals = chat_skill(tmp_path)
    assert main(['prove', str(skill), '--agent', 'sh', '--evals', str(evals)]) == 1
    assert 'no assertion of these evals can be graded' in capsys.readouterr().err
    assert main(['prove', str(skill), '--agent', 'sh', '--set', 'round=3']) == 1
    assert 'round' in capsys.readouterr().err and not Path(tmp_path/'words-workspace').exists()

GRADES = '''import json, os, re, sys
asked = sys.stdin.read()
with open(sys.argv[1], 'a') as f:
    f.write(asked.split('Final answer:')[1] + chr(10))
passed = 'kettle' in asked.split('Task:')[0].split('Final answer')[1]
print(json.dumps([dict(assertion=1, passed=passed, evidence='kettle')]))
'''

def test_a_judge_may_be_a_command_that_sees_no_arm_and_no_name(tmp_path, capsys):
    skill, evals = chat_skill(tmp_path)
    (tmp_path/'grades.py').write_text(GRADES)
    agent, seen = agent_in(tmp_path)[0], tmp_path/'seen.txt'
    line = f'prove {skill} --agent "{agent}" --evals {evals} --set rounds=4 parallel=1 --judge '
    code = main(shlex.split(f'{line} "{sys.executable} {tmp_path/"grades.py"} {seen}"'))
    assert code == 0 and 'helps (+1.00' in capsys.readouterr().out
    assert 'Assertion 1' in seen.read_text() and not re.search('words|with_skill|SKILL.md', seen.read_text())
    assert main(shlex.split(f'{line} "no-such-program -p"')) == 1

def test_the_sample_needs_no_key_and_says_what_its_text_is_worth(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(['prove', '--sample']) == 0
    assert 'kettle-tags' in capsys.readouterr().out
    text = Path('skillrl-sample/kettle-tags/SKILL.md')
    text.write_text(text.read_text().split('# Price tags')[0] + 'Write a tag.')
    assert main(['prove', '--sample']) == 1 and text.read_text().endswith('Write a tag.')
    assert main(['prove']) == 1 and '--sample' in capsys.readouterr().err

def test_init_writes_the_first_evals_and_nothing_over_them(tmp_path, capsys):
    skill = skill_in(tmp_path)
    evals = skill/'evals'/'evals.json'
    assert main(['prove', str(skill), '--init']) == 1 and 'is there already' in capsys.readouterr().err
    made = evals.read_text()
    evals.unlink()
    assert main(['prove', str(skill), '--agent', 'sh']) == 1 and '--init' in capsys.readouterr().err
    program = tmp_path/'writer.py'
    program.write_text(f'print(open({str(tmp_path/"made.json")!r}).read())')
    (tmp_path/'made.json').write_text(made)
    assert main(['prove', str(skill), '--init', '--agent', f'{sys.executable} {program}']) == 0
    assert len(read_json(evals)['evals']) == 6 and 'how_to' not in evals.read_text()
    evals.unlink()
    assert main(['prove', str(skill), '--init']) == 0 and 'how_to' in evals.read_text()

def test_programs_of_checks_run_only_with_the_flag(tmp_path, capsys):
    program = f'open({str(tmp_path/"ran")!r}, "w")'
    skill = skill_in(tmp_path, n=2, file='', command=[sys.executable, '-c', program], contains=None)
    agent = agent_in(tmp_path)[0]
    assert typed(skill, agent) == 1 and '--run-checks lets' in capsys.readouterr().err
    assert not (tmp_path/'ran').exists()
    typed(skill, agent, '--run-checks')
    assert (tmp_path/'ran').exists()

def test_what_is_left_out_of_an_arm_is_said_beside_the_verdict(tmp_path, capsys):
    (tmp_path/'secret').write_text('kettle')
    skill = skill_in(tmp_path/'skills')
    (skill/'notes.md').symlink_to(tmp_path/'secret')
    typed(skill, agent_in(tmp_path)[0])
    assert 'words: notes.md is left out' in capsys.readouterr().out

def test_an_assertion_never_differs_only_if_it_never_does():
    def row(arm, a, b):
        said = [dict(text='a', passed=a), dict(text='b', passed=b)]
        return dict(eval_id=1, configuration=arm, expectations=said)
    assert _never_differs([row('with', True, False), row('without', False, False)]) == [[1, 'b', False]]
