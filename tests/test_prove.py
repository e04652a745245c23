"A proof: runs that are killed, lost, limited and graded late, and what it leaves"
import json, os, random, re, shlex, shutil, signal, subprocess, sys, time
from pathlib import Path
import pytest
from skillrl.cli.main import main
from skillrl.core.store import read_json, write_json
from skillrl.llm.chat import ScriptedChat
from skillrl.llm.ledger import Ledger
from skillrl.llm.reply import ChatReply, RunStopped
from skillrl.proof.agents import AGENTS, find_agent
from skillrl.proof.claims import analyse, losses_test, ProofPlan
from skillrl.proof.evals import Assertion, Eval
from skillrl.proof.prove import _tree_hash, prove
from skillrl.proof.runs import grade_run, ProofConfig
from skillrl.skills.skill_md import skill_files
from skillrl.viewers.report import write_proof_page

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
    sys.exit('HTTP 503: the line is down')
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
    hashes = [_tree_hash(skill_files(folder)) for folder in (tmp_path/'words', old)]
    assert arms == dict(zip(('with_skill', 'old_skill'), hashes))

def test_a_folder_of_skills_ends_with_the_worst_and_with_a_table(tmp_path, monkeypatch, capsys):
    agent, summary = agent_in(tmp_path)[0], tmp_path/'summary.md'
    monkeypatch.setenv('GITHUB_STEP_SUMMARY', str(summary))
    skill_in(tmp_path/'skills', name='good', n=8)
    skill_in(tmp_path/'skills', 'mug', name='idle')
    assert typed(tmp_path/'skills', agent, '--ci', '--output', str(tmp_path/'out')) == 1
    assert '| good | helps | helps +1.00 [' in summary.read_text()
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
    log = [json.loads(line) for line in (found.folder/'log.jsonl').read_text().splitlines()]
    lost = [row['error'] for row in log if 'error' in row]
    assert len(lost) == found.facts['lost'] and all('the line is down' in error for error in lost)

def test_two_starts_in_vain_end_it_and_it_goes_on_when_the_cause_is_mended(tmp_path):
    agent, calls = agent_in(tmp_path, 'raise SystemExit("Not logged in")\n')
    with pytest.raises(RunStopped, match='none of 2 runs could be counted.*Not logged in'):
        prove(skill_in(tmp_path), find_agent(agent), config=ProofConfig(parallel=4))
    agent_in(tmp_path) # It is mended
    found = prove(tmp_path/'words', find_agent(agent), config=ProofConfig(parallel=1))
    assert found.code == 0 and found.folder.name == 'iteration-1' and found.facts['lost'] == 2
    assert found.facts['spent']['max_runs'] == len(lines(calls)) + 2

def test_an_arm_that_is_lost_again_and_again_ends_it(tmp_path):
    agent, calls = agent_in(tmp_path, 'if sys.argv[3]: sys.exit("HTTP 429")\n'.join(['import sys\n', '']))
    with pytest.raises(RunStopped, match='6 runs of with_skill in a row were lost.*429'):
        prove(skill_in(tmp_path), find_agent(agent), config=ProofConfig(parallel=1))

def test_a_lost_run_is_tried_three_times(tmp_path):
    before = """import sys
calls, prompt, skill = sys.argv[1:]
n = calls + prompt + '.lost'
if prompt in ('p0', 'p1') and skill and len(open(n, 'a+').read()) < 1:
    f = open(n, 'a+'); f.seek(0); tried = f.read(); f.write('x'); f.close()
    if len(tried) < (2 if prompt == 'p0' else 3): sys.exit('HTTP 503')
"""
    agent, _ = agent_in(tmp_path, before)
    found = prove(skill_in(tmp_path, n=3), find_agent(agent), config=ProofConfig(parallel=1, rounds=1))
    assert found.facts['gains'] == [[1., None, 1.]] and found.facts['lost'] == 5
    assert found.facts['losses']['with_skill'] == dict(tries=3, lost=2, failed=0)
    assert 'with_skill lost 2 and failed 0 of 3 runs' in str(found).splitlines()[0]

CRASHES = 'import sys\nif not sys.argv[3]: sys.exit("KeyError: mug")\n'

def test_a_run_that_crashes_scores_0_and_is_never_made_again(tmp_path):
    agent, calls = agent_in(tmp_path, CRASHES.replace('not ', ''))
    found = prove(skill_in(tmp_path, contains='nothing'), find_agent(agent), config=ProofConfig(parallel=1))
    rounds = found.analysis.stopped
    assert found.code == 2 and found.facts['gains'] == [[-1.]*6]*rounds and found.facts['lost'] == 0
    assert found.facts['losses']['with_skill'] == dict(tries=6*rounds, lost=0, failed=6*rounds)
    assert len(list(found.folder.glob('eval-*/with_skill/*/run.json'))) == 6*rounds
    assert 'with_skill lost 0 and failed' in str(found).splitlines()[0]
    grading = read_json(found.folder/'eval-0'/'with_skill'/'run-1'/'grading.json')
    assert 'KeyError: mug' in grading['expectations'][0]['evidence'] and grading['summary']['pass_rate'] == 0

def test_where_all_runs_of_both_arms_fail_nothing_is_known(tmp_path):
    agent, _ = agent_in(tmp_path, 'raise SystemExit(3)\n')
    with pytest.raises(RunStopped, match='all of 12 runs failed.*ended with code 3'):
        prove(skill_in(tmp_path), find_agent(agent), config=ProofConfig(parallel=1))
    agent_in(tmp_path)
    found = prove(tmp_path/'words', find_agent(agent), config=ProofConfig(parallel=1))
    assert found.code == 0 and found.facts['spent']['max_runs'] == 12 + 12*found.analysis.stopped

def test_runs_that_time_out_where_they_would_be_wrong_prove_nothing():
    "12 evals, 8 rounds, no effect: wrong runs of the arm with the skill time out, and score 0"
    rng = random.Random(0)
    for share in (.2, .4, .8):
        helps, plan = 0, ProofPlan(8, .2)
        for _ in range(120):
            chances = [rng.betavariate(1.2, 1.2) for _ in range(12)]
            gains = []
            for _ in range(8):
                row = []
                for chance in chances:
                    right = rng.random() < chance
                    late = not right and rng.random() < share
                    new = scored(dict(text='', failure='its time was up')) if late else float(right)
                    row.append(new - (rng.random() < chance))
                gains.append(row)
                analysis = analyse(plan, gains)
                if analysis.stopped:
                    break
            helps += analysis.claims[0].verdict == 'helps'
        assert helps/120 <= .06 # .025 and two standard errors

def test_arms_that_lose_different_shares_get_no_verdict(tmp_path):
    assert [losses_test([k, 0], [96, 96]) < .05 for k in (0, 5, 6)] == [False, False, True]
    before = """import os, sys
n = sys.argv[1] + sys.argv[2] + '.n'
k = len(open(n).read()) if os.path.exists(n) else 0
if sys.argv[3] and k % 2 == 0:
    open(n, 'a').write('x')
    sys.exit('HTTP 503')
if sys.argv[3]: open(n, 'a').write('x')
"""
    agent, _ = agent_in(tmp_path, before)
    found = prove(skill_in(tmp_path), find_agent(agent), config=ProofConfig(parallel=1))
    told = str(found).splitlines()
    assert found.code == 1 and 'no verdict' in told[0] and 'helps' in told[1]
    assert found.facts['losses']['with_skill']['lost'] == found.facts['losses']['with_skill']['tries']

def scored(run):
    return grade_run(EVAL, run, '.')['summary']['pass_rate']

EVAL = Eval(1, 'p', '', {}, [Assertion('the word is there', dict(contains='kettle'))], Path('.'))

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
    with pytest.raises(RunStopped, match='none of 6 runs could be counted.*away'):
        prove(skill, agent, away, evals=evals, config=config)
    assert len(actor.calls) == 6
    found = prove(skill, agent, ScriptedChat(rules), evals=evals, config=ProofConfig(rounds=2))
    assert found.code == 0 and len(actor.calls) == 24 and found.folder.name == 'iteration-1'

def test_a_judge_that_cannot_grade_an_output_makes_it_score_0(tmp_path):
    def confused(messages):
        return 'mug' if 'Final answer: "nothing"' in messages[-1]['content'] else rules(messages)
    skill, evals = chat_skill(tmp_path)
    rater = ScriptedChat(confused)
    found = prove(skill, find_agent('chat', ScriptedChat(asked)), rater, evals=evals,
                  config=ProofConfig(parallel=1, rounds=2))
    assert found.facts['gains'][0] == [1.]*6
    assert found.facts['losses']['without_skill'] == dict(tries=12, lost=0, failed=12)

def test_the_judge_does_not_see_the_name_of_the_skill(tmp_path):
    skill, evals = chat_skill(tmp_path)
    actor, rater = ScriptedChat(lambda messages: f'{asked(messages)} as words tells'), ScriptedChat(rules)
    prove(skill, find_agent('chat', actor), rater, evals=evals, config=ProofConfig(parallel=1, rounds=1))
    told = [call[-1]['content'] for call in rater.calls]
    assert told and not any('words tells' in text for text in told)

# ---- limits, and going on ----
PRICES = {'scripted': [1e6, 1e6]} # A dollar a token

def priced(script):
    return ScriptedChat(script, ledger=Ledger(PRICES))

@pytest.mark.parametrize('name, parallel', [('max_tokens', 1), ('max_tokens', 8), ('max_usd', 8)])
def test_a_limit_holds_with_runs_in_flight_and_the_judge(tmp_path, name, parallel):
    skill, evals = chat_skill(tmp_path)
    def slowly(messages):
        time.sleep(.02)
        return asked(messages)
    actor, rater = priced(slowly), priced(rules)
    config = ProofConfig(parallel=parallel, **{name: 900})
    found = prove(skill, find_agent('chat', actor), rater, evals=evals, config=config)
    spent = actor.ledger.tokens + rater.ledger.tokens
    assert found.facts['limit'].startswith(f'{name} of 900') and found.facts['limit'] in str(found)
    assert found.facts['spent'][name] == spent <= 900 and rater.ledger.tokens > actor.ledger.tokens
    dearest = max(r['result']['tokens'] for r in read_json(found.folder/'benchmark.json')['runs'])
    assert spent > 450 and dearest

def test_limits_that_nobody_can_keep_are_refused_before_the_first_run(tmp_path):
    agent, calls = agent_in(tmp_path)
    skill, evals = chat_skill(tmp_path)
    for name in ('max_usd', 'max_tokens'):
        with pytest.raises(ValueError, match=f'does not say what its runs take, so {name} cannot be kept'):
            prove(skill_in(tmp_path/name), find_agent(agent), config=ProofConfig(**{name: 5}))
    actor = find_agent('chat', ScriptedChat(asked, 'me'))
    with pytest.raises(ValueError, match="'me' has no price, so max_usd cannot be kept"):
        prove(skill, actor, priced(rules), evals=evals, config=ProofConfig(max_usd=5))
    with pytest.raises(ValueError, match="'who' has no price"):
        prove(skill, find_agent('chat', priced(asked)), ScriptedChat(rules, 'who'), evals=evals,
              config=ProofConfig(max_usd=5))
    with pytest.raises(ValueError, match='codex has no price'):
        prove(skill, AGENTS['codex'], priced(rules), evals=evals, config=ProofConfig(max_usd=5))
    assert not lines(calls) and not skill.with_name('words-workspace').exists()
    file = write_json(tmp_path/'prices.json', {'me': [0, 0], 'scripted': [0, 0]})
    config = ProofConfig(max_usd=5, prices=str(file))
    found = prove(skill, actor, ScriptedChat(rules), evals=evals, config=config)
    assert found.code == 0 and found.facts['spent']['max_usd'] == 0

@pytest.mark.parametrize('more', [
    dict(max_runs=0), dict(max_runs=40, parallel=4), dict(max_runs=0, timeout=9)])
def test_a_raised_limit_goes_on_and_pays_for_nothing_twice(tmp_path, more):
    agent, calls = agent_in(tmp_path)
    skill = skill_in(tmp_path)
    short = prove(skill, find_agent(agent), config=ProofConfig(parallel=1, max_runs=10))
    assert len(lines(calls)) == 10 and short.code == 1 and short.facts['limit'] == 'max_runs of 10 is reached'
    same = prove(skill, find_agent(agent), config=ProofConfig(parallel=1, max_runs=10))
    assert len(lines(calls)) == 10 and same.facts['gains'] == short.facts['gains']
    whole = prove(skill, find_agent(agent), config=ProofConfig(**dict(parallel=1) | more))
    assert whole.folder == short.folder and whole.facts['limit'] == '' and whole.code == 0
    assert len(lines(calls)) == whole.facts['spent']['max_runs'] == 12*whole.analysis.stopped
    n = len(lines(calls))
    prove(skill, find_agent(agent), config=ProofConfig(parallel=3, max_minutes=5))
    assert len(lines(calls)) == n # It has ended, and only a limit is another
    prove(skill, find_agent(agent), config=ProofConfig(**dict(parallel=3, max_minutes=5)))
    assert len(lines(calls)) == n + 12 # The next proof, whose first round agrees with the last

def test_what_was_lost_is_paid_when_a_proof_goes_on(tmp_path):
    "Tokens of lost runs, of runs that fell to a limit and of the judge"
    skill, evals = chat_skill(tmp_path)
    found, spent = None, {}
    for limit in (300, 600):
        actor, rater = priced(asked), priced(rules)
        found = prove(skill, find_agent('chat', actor), rater, evals=evals,
                      config=ProofConfig(parallel=1, max_tokens=limit))
        spent[limit] = actor.ledger.tokens + rater.ledger.tokens
    assert spent[300] <= 300 and found.facts['spent']['max_tokens'] == sum(spent.values()) <= 600
    agent, calls = agent_in(tmp_path, FLAKY)
    for most in (8, 12):
        found = prove(skill_in(tmp_path/'x') if most == 8 else tmp_path/'x'/'words', find_agent(agent),
                      config=ProofConfig(parallel=1, max_runs=most))
        assert found.facts['spent']['max_runs'] == len(lines(calls)) == most and found.facts['lost'] > 0

def test_the_skills_of_a_command_share_its_limits_and_those_that_ended_stay(tmp_path, capsys):
    agent, calls = agent_in(tmp_path)
    for name in ('a', 'b', 'c'):
        skill_in(tmp_path/'skills', name=name, n=9)
    words = ['--output', str(tmp_path/'o')]
    assert typed(tmp_path/'skills', agent, 'max_runs=30', *words) == 1 and len(lines(calls)) == 30
    first = lines(calls)
    assert typed(tmp_path/'skills', agent, *words) == 0
    assert len(lines(calls)) == 3*36 and lines(calls)[:30] == first
    assert [*(tmp_path/'o').glob('*/iteration-2')] == []

def test_half_a_run_is_made_again(tmp_path):
    agent, calls = agent_in(tmp_path)
    found = prove(skill_in(tmp_path, n=2), find_agent(agent), config=ProofConfig(rounds=2))
    (found.folder/'proof.json').unlink()
    for run, name in (('eval-0/with_skill/run-1', 'run.json'), ('eval-1/with_skill/run-2', 'grading.json')):
        (found.folder/run/name).unlink()
    shutil.rmtree(found.folder/'eval-1'/'without_skill'/'run-1')
    (found.folder/'eval-1'/'without_skill'/'run-1').write_text('no folder')
    n = len(lines(calls))
    again = prove(tmp_path/'words', find_agent(agent), config=ProofConfig(rounds=2))
    assert again.facts['gains'] == found.facts['gains'] and len(lines(calls)) == n + 2

def test_a_proof_that_others_bring_along_is_no_verdict(tmp_path, monkeypatch):
    agent, calls = agent_in(tmp_path)
    skill = skill_in(tmp_path, 'mug')
    monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path/'theirs'))
    theirs = prove(skill_in(tmp_path/'x', 'kettle', name='words'), find_agent(agent), workspace=tmp_path/'w')
    config = prove(skill, find_agent(agent), workspace=tmp_path/'w2', config=ProofConfig(max_runs=1))
    shutil.copy(config.folder/'config.json', theirs.folder/'config.json')
    (theirs.folder/'proof.json').unlink()
    n = len(lines(calls))
    monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path/'mine'))
    found = prove(skill, find_agent(agent), workspace=tmp_path/'w')
    assert found.code == 1 and found.folder.name == 'iteration-2' and len(lines(calls)) > n + 10

def test_what_a_proof_is_about_begins_another(tmp_path):
    agent, calls = agent_in(tmp_path)
    skill, file = skill_in(tmp_path), tmp_path/'words'/'list.txt'
    file.write_text('mug')
    evals = read_json(skill/'evals'/'evals.json')['evals']
    write_json(skill/'evals'/'evals.json', [e | dict(files=['list.txt']) for e in evals])
    short = dict(config=ProofConfig(max_runs=2))
    names = [prove(skill, find_agent(agent), **short).folder.name]
    whole = _tree_hash(skill_files(skill))
    file.write_text('cup') # As long as before
    assert _tree_hash(skill_files(skill)) != whole
    for change in (dict(seed=1), dict(effect=.3), dict(model='m')):
        config = ProofConfig(max_runs=2, **change)
        names.append(prove(skill, find_agent(agent), config=config).folder.name)
    names.append(prove(skill, find_agent(agent), against='same', config=ProofConfig(max_runs=2)).folder.name)
    short = dict(config=ProofConfig(max_runs=2))
    names.append(prove(skill, find_agent(f'{agent} --more'), **short).folder.name)
    assert names == [f'iteration-{n}' for n in range(1, 7)]
    config = read_json(skill.with_name('words-workspace')/'iteration-1'/'config.json')
    assert config['rule'] == 3 and config['config'] == dict(
        rounds=8, effect=.2, no_worse=0., panel=False, seed=0)

def test_jobs_are_shuffled_in_each_round(tmp_path):
    agent, calls = agent_in(tmp_path)
    prove(skill_in(tmp_path), find_agent(agent), config=ProofConfig(parallel=1, rounds=4))
    a, b = lines(calls)[:12], lines(calls)[12:24]
    plain = [f'p{n} {arm}' for n in range(6) for arm in (True, False)]
    assert sorted(a) == sorted(b) == sorted(plain) and a != b and plain not in (a, b)

def test_what_never_differs_and_what_would_be_needed(tmp_path):
    agent, _ = agent_in(tmp_path)
    skill = skill_in(tmp_path, n=6)
    evals = read_json(skill/'evals'/'evals.json')['evals']
    evals[1]['assertions'] += [dict(text='a file', check=dict(file='word.txt')),
                               dict(text='a key', check=dict(file='key.txt'))]
    write_json(skill/'evals'/'evals.json', evals)
    found = prove(skill, find_agent(agent), config=ProofConfig(parallel=1))
    assert found.facts['never_differs'] == [[1, 'a file', True], [1, 'a key', False]]
    assert found.facts['needed'] == []
    idle = prove(skill, find_agent(agent), against='same', config=ProofConfig(parallel=1))
    assert len(idle.facts['never_differs']) == 8 and idle.facts['needed']
    notes = ' '.join(idle.facts['caveats']) # No word of what this agent does not tell or what was asked for
    assert '8 assertions said the same' in notes and 'opened' not in notes and 'sandbox' not in notes

# ---- the command ----
def test_a_command_estimates_and_begins_nothing(tmp_path, capsys):
    agent, calls = agent_in(tmp_path)
    assert typed(skill_in(tmp_path), agent, '--dry-run') == 0
    told = capsys.readouterr().out
    assert '6 evals in 2 arms, 12 runs a round, at most 4 rounds or 48 runs' in told and not lines(calls)
    assert not (tmp_path/'words-workspace').exists()

def test_a_command_says_it_to_programs(tmp_path, capsys):
    agent, _ = agent_in(tmp_path)
    assert typed(skill_in(tmp_path), agent, '--json') == 0
    told = json.loads(capsys.readouterr().out)
    assert (told['skill'], told['verdict'], told['code']) == ('words', 'helps', 0)
    assert told['spent']['max_runs'] == 12*told['stopped'] and told['losses']['with_skill']['failed'] == 0

def test_errors_of_a_command_are_no_verdict(tmp_path, capsys):
    agent, _ = agent_in(tmp_path, 'raise SystemExit("Not logged in")\n')
    assert typed(skill_in(tmp_path), agent) == 3
    assert 'none of 2 runs' in capsys.readouterr().err
    with pytest.raises(SystemExit) as e:
        main(['prove', 'words', '--no-such-flag'])
    assert e.value.code == 3

@pytest.mark.parametrize('wanted, code', [('kettle', 0), ('nothing', 2)])
def test_the_verdict_is_the_status_where_nobody_reads_on(tmp_path, wanted, code):
    agent, _ = agent_in(tmp_path)
    words = command(skill_in(tmp_path, contains=wanted), agent)
    p = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    p.stdout.close()
    assert p.wait(120) == code

def test_ctrl_c_says_what_is_kept_and_how_to_go_on(tmp_path):
    agent, calls = agent_in(tmp_path, 'import time\ntime.sleep(.3)\n')
    skill = skill_in(tmp_path)
    scratch = tmp_path/'scratch'
    scratch.mkdir()
    p = subprocess.Popen(command(skill, agent), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
                         env=os.environ | dict(TMPDIR=str(scratch)))
    while len(lines(calls)) < 3:
        time.sleep(.01)
    p.send_signal(signal.SIGINT)
    told = p.communicate(timeout=60)[1]
    kept = skill.with_name('words-workspace')
    assert p.returncode == 130 and f'kept in {kept}; go on with: skillrl prove' in told
    assert shlex.join(['--set', 'parallel=2', 'rounds=4']) in told and not [*scratch.iterdir()]

def command(skill, agent):
    return [sys.executable, '-c', 'from skillrl.cli.main import main; raise SystemExit(main())', 'prove',
            str(skill), '--agent', agent, '--set', 'parallel=2', 'rounds=4']

def test_while_it_runs_it_says_how_far_it_is(tmp_path):
    agent, told = agent_in(tmp_path, FLAKY)[0], []
    config = ProofConfig(parallel=1, rounds=2)
    def follow(course, number):
        told.append(course.progress(number))
    config.budget.each = follow
    found = prove(skill_in(tmp_path), find_agent(agent), config=config)
    assert told[-1][:2] == (24, 24) and 'round 2 of 2, effect so far +1.00, 0.00 USD' in told[-1][2]
    assert f'{found.facts["lost"]} lost, the first because' in told[-1][2]
    assert 'the line is down' in told[-1][2]
    assert [done for done, *_ in told] == [*range(1, 25)]

# ---- what an agent leaves, and the page ----
def test_half_a_character_costs_no_verdict(tmp_path):
    skill = skill_in(tmp_path)
    evals = read_json(skill/'evals'/'evals.json')['evals']
    for e in evals:
        e['assertions'][0]['text'] += ' \ud83d'
    (skill/'evals'/'evals.json').write_text(json.dumps(evals))
    odd = 'import os\nopen(os.fsencode("mug") + bytes([0xed, 0xa0]), "w")\n'
    agent, _ = agent_in(tmp_path, odd)
    found = prove(skill, find_agent(agent), config=ProofConfig(parallel=1))
    assert found.code == 0 and write_proof_page(found).exists()

def test_the_page_counts_evals_as_people_do_and_says_the_verdict_once(tmp_path):
    agent, _ = agent_in(tmp_path)
    found = prove(skill_in(tmp_path, n=11), find_agent(agent), config=ProofConfig(rounds=1))
    page = write_proof_page(found).read_text()
    assert [int(n) for n in re.findall('Eval ([0-9]+)<', page)] == [*range(11)]
    benchmark = read_json(found.folder/'benchmark.json')
    assert benchmark['metadata']['evals_run'] == [*range(11)]
    notes = page.split('What to know')[1].split('What to do next')[0]
    assert 'It took 22 runs' in notes and 'on these evals: ' not in notes

def test_damaged_files_of_a_proof_cost_no_traceback(tmp_path):
    agent, _ = agent_in(tmp_path)
    skill, rng = skill_in(tmp_path, n=2), random.Random(0)
    found = prove(skill, find_agent(agent), config=ProofConfig(rounds=2))
    (found.folder/'proof.json').unlink()
    files = sorted(p for p in found.folder.rglob('*') if p.is_file() and p.stat().st_size)
    for file in rng.sample(files, 25):
        data = file.read_bytes()
        at = rng.randrange(len(data))
        worse = [b'', data[:at], data[:at] + b'\xff' + data[at:], b'[]', b'null', b'{"a": 1}']
        file.write_bytes(rng.choice(worse))
        try:
            again = prove(skill, find_agent(agent), config=ProofConfig(rounds=2))
            n = len(again.facts['gains']) # A later proof takes the gains of earlier ones with it
            assert n and again.facts['gains'] == found.facts['gains'][:n]
        except (ValueError, OSError) as e:
            assert len(str(e)) < 500 and str(tmp_path) in str(e)
            file.write_bytes(data)

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
    assert main(['prove', str(skill), '--agent', 'sh', '--evals', str(evals)]) == 3
    assert 'no assertion of these evals can be graded' in capsys.readouterr().err
    assert main(['prove', str(skill), '--agent', 'sh', '--set', 'round=3']) == 3
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
    assert main(shlex.split(f'{line} "no-such-program -p"')) == 3

def test_the_sample_needs_no_key_and_says_what_its_text_is_worth(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(['prove', '--sample']) == 0
    assert 'kettle-tags' in capsys.readouterr().out
    text = Path('skillrl-sample/kettle-tags/SKILL.md')
    text.write_text(text.read_text().split('# Price tags')[0] + 'Write a tag.')
    assert main(['prove', '--sample']) == 1 and text.read_text().endswith('Write a tag.')
    assert main(['prove']) == 3 and '--sample' in capsys.readouterr().err

def test_init_writes_the_first_evals_and_nothing_over_them(tmp_path, capsys):
    skill = skill_in(tmp_path)
    evals = skill/'evals'/'evals.json'
    assert main(['prove', str(skill), '--init']) == 3 and 'is there already' in capsys.readouterr().err
    made = evals.read_text()
    evals.unlink()
    assert main(['prove', str(skill), '--agent', 'sh']) == 3 and '--init' in capsys.readouterr().err
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
    assert typed(skill, agent) == 3 and '--run-checks lets' in capsys.readouterr().err
    assert not (tmp_path/'ran').exists()
    typed(skill, agent, '--run-checks')
    assert (tmp_path/'ran').exists()

def test_what_is_left_out_of_an_arm_is_said_beside_the_verdict(tmp_path, capsys):
    (tmp_path/'secret').write_text('kettle')
    skill = skill_in(tmp_path/'skills')
    (skill/'notes.md').symlink_to(tmp_path/'secret')
    typed(skill, agent_in(tmp_path)[0])
    assert 'words: notes.md is left out' in capsys.readouterr().out
