"""Many skills at once and at one error, what a branch has changed, and the workflow to copy.

The repositories are real, in folders of their own, and the agents are programs."""
import json, os, re, shlex, shutil, subprocess
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
import pytest, yaml
from skillrl.cli.main import main, parser
from skillrl.core.store import read_json
from skillrl.proof import family
from skillrl.proof.agents import find_agent
from skillrl.proof.family import (
    changed_members, examine_members, exit_code, find_members, Member, prove_members)
from skillrl.proof.prove import prove
from skillrl.proof.runs import ProofConfig
from test_prove import agent_in, lines, skill_in

ROOT = Path(__file__).parent.parent
CASES = Path(os.environ.get('SKILLRL_REAL_DATA') or '/nowhere').parent/'wild'/'cases'
BROKEN = '---\nname: broken\ndescription: Tables: sums. Use when: asked\n---\nText\n'

def typed(skills, agent, *more):
    return main(['prove', str(skills), '--agent', agent, '--set', 'parallel=1', 'rounds=4', *more])

def row(out, name):
    "Cells of the row of a skill in the table that ends `out`"
    table = out[out.rindex('skill  '):].splitlines()
    return next(re.split(r'\s{2,}', line.strip()) for line in table if line.split()[:1] == [name])

# ---- many skills ----
AGREE = 'not enough evidence' # Of two evals whose runs all agree

@pytest.mark.skipif(not CASES.is_dir(), reason='SKILLRL_REAL_DATA has no cases beside it')
@pytest.mark.parametrize('folder, code, words', [
    ('skills', 1, {'hello-file': AGREE, 'zz-file': AGREE, 'no-evals': 'no evals'}),
    ('bad', 3, {'hello-file': AGREE, 'a-colon': 'error'})])
@pytest.mark.parametrize('more', [['--ci'], []])
def test_the_skills_of_people(tmp_path, monkeypatch, capsys, folder, code, words, more):
    monkeypatch.chdir(shutil.copytree(CASES/'10_prove_many_skills', tmp_path/'x'))
    assert main(['prove', folder, '--agent', 'python3 agent.py {prompt}', *more]) == code
    out = capsys.readouterr().out
    first = min(words, key=lambda name: words[name] == AGREE)
    assert out.startswith(f'{first}: {words[first]} (') # Before anything is paid
    assert {name: ' '.join(row(out, name)[1:2]) for name in words} == words

def folder_with(tmp_path, **words):
    "Skills whose agent writes these words, eight evals each"
    for name, word in words.items():
        skill_in(tmp_path/'skills', word, name=name, n=8)
    return tmp_path/'skills'

def test_all_are_looked_at_before_anything_is_paid(tmp_path, capsys):
    agent, calls = agent_in(tmp_path)
    skills = folder_with(tmp_path, a='kettle', broken='kettle', judged='kettle', other='kettle', z='kettle')
    (skills/'broken'/'SKILL.md').write_text(BROKEN)
    asks = '[{"id": 1, "prompt": "p", "assertions": ["It is good"]}]'
    (skills/'judged'/'evals'/'evals.json').write_text(asks)
    (skills/'other'/'evals'/'evals.json').write_text('{"evals": [')
    shutil.rmtree(skills/'z'/'evals')
    members = find_members(skills)
    assert [m.folder.name for m in examine_members(members)] == ['a'] and not lines(calls)
    assert [m.verdict for m in members] == ['not begun', 'error', 'error', 'error', 'no evals']
    assert typed(skills, agent) == 3
    told = capsys.readouterr().out.splitlines()
    assert [line.split(':')[0] for line in told[:5]] == ['broken', 'judged', 'other', 'z', 'a']
    assert 'judge' in told[1] and 'evals.json' in told[2]
    spent = read_json(skills/'a-workspace'/'iteration-1'/'proof.json')['spent']
    assert len(lines(calls)) == spent['max_runs']

def test_one_skill_that_cannot_be_proved_is_one_sentence(tmp_path, capsys):
    agent, calls = agent_in(tmp_path)
    skill = skill_in(tmp_path)
    (skill/'SKILL.md').write_text(BROKEN)
    assert typed(skill, agent) == 3 and not lines(calls)
    told = capsys.readouterr()
    assert not told.out and told.err.count('\n') == 1 and 'quotes' in told.err
    assert typed(skill, agent, '--ci') == 3 # With the table
    assert row(capsys.readouterr().out, 'words')[1] == 'error'

def test_evals_that_are_named_and_not_there_are_an_error_and_no_idle_skill(tmp_path):
    agent, _ = agent_in(tmp_path)
    skills = folder_with(tmp_path, a='kettle', b='kettle')
    assert typed(skills, agent, '--evals', str(tmp_path/'none.json')) == 3

DIES = '''import os, sys
from pathlib import Path
if sys.argv[3:] and sys.argv[3].endswith('/b'):
    sys.exit('Not logged in')
'''

def test_a_skill_that_dies_midway_takes_no_other_with_it(tmp_path, capsys):
    agent, calls = agent_in(tmp_path, DIES)
    assert typed(folder_with(tmp_path, a='kettle', b='kettle', c='kettle'), agent) == 3
    out = capsys.readouterr().out
    assert [row(out, name)[1] for name in 'abc'] == ['helps', 'error', 'helps']
    assert 'Not logged in' in out[out.rindex('skill  '):]

STARTS_NOT = '''import sys
open(sys.argv[1], 'a').write('x' + chr(10))
sys.exit('Not logged in')
'''

def test_an_agent_that_never_starts_is_tried_for_one_skill_only(tmp_path, capsys):
    agent, calls = agent_in(tmp_path, STARTS_NOT)
    assert typed(folder_with(tmp_path, a='kettle', b='kettle', c='kettle'), agent) == 3
    out = capsys.readouterr().out
    assert len(lines(calls)) == 2 and [row(out, n)[1] for n in 'abc'] == ['error', 'not begun', 'not begun']

def test_the_budget_is_one_and_its_end_has_a_table(tmp_path, capsys):
    agent, calls = agent_in(tmp_path)
    skills = folder_with(tmp_path, a='kettle', b='kettle', c='kettle')
    assert typed(skills, agent, 'max_runs=120') == 1 and len(lines(calls)) == 120
    out = capsys.readouterr().out
    assert row(out, 'a')[1] == 'helps' and 'max_runs of 120 is reached' in row(out, 'c')[-1]

def test_ctrl_c_leaves_a_table(tmp_path, monkeypatch, capsys):
    agent, calls = agent_in(tmp_path)
    def interrupted(folder, *more):
        if folder.name == 'b':
            raise KeyboardInterrupt
        return prove(folder, *more)
    monkeypatch.setattr(family, 'prove', interrupted)
    assert typed(folder_with(tmp_path, a='kettle', b='kettle', c='kettle'), agent) == 130
    out = capsys.readouterr().out
    assert [row(out, name)[1] for name in 'abc'] == ['helps', 'not begun', 'not begun']

def test_the_table_has_both_claims_losses_cost_and_which_proof(tmp_path, monkeypatch, capsys):
    agent, _ = agent_in(tmp_path)
    monkeypatch.setenv('GITHUB_STEP_SUMMARY', str(tmp_path/'summary.md'))
    skill_in(tmp_path/'skills', name='a', n=6)
    odd = tmp_path/'skills'/os.fsdecode(b'b|<x>\xff')
    odd.mkdir()
    (odd/'SKILL.md').write_text(BROKEN)
    for n in (1, 2):
        typed(tmp_path/'skills', agent, '--ci', '--output', str(tmp_path/'o'))
        name, verdict, these, like, lost, cost, which = row(capsys.readouterr().out, 'a')
        assert which == f'no. {n}, against no skill'
    interval = r'(helps|not enough evidence) \+1\.00 \[[+-]\d\.\d\d, [+-]\d\.\d\d\]'
    assert re.fullmatch(interval, these) and re.fullmatch(interval, like)
    assert lost.endswith(lost.split(', ')[0]) and re.fullmatch(r'(0 of \d+)(, 0 of \d+)', lost)
    assert re.fullmatch(r'\d+ runs, cost unknown', cost) # Of a program of one's own
    summary = (tmp_path/'summary.md').read_text()
    assert summary.count('| a | ') == 2 and r'b\|&lt;x>\udcff' in summary

def test_runs_that_fail_stand_in_the_table_by_arm(tmp_path, capsys):
    agent, _ = agent_in(tmp_path, 'import sys\nif not sys.argv[3]:\n    sys.exit("boom")\n')
    assert typed(skill_in(tmp_path), agent, '--ci') == 0
    n = read_json(tmp_path/'words-workspace'/'iteration-1'/'proof.json')['stopped']*6
    assert row(capsys.readouterr().out, 'words')[-3] == f'0 of {n}, {n} of {n}'

@pytest.mark.parametrize('verdicts, code', [
    ('helps', 0), ('no worse', 0), ('not enough evidence', 1), ('no verdict, for …', 1), ('harms', 2),
    ('error', 3), ('not begun', 3), ('helps|no evals', 0), ('no evals|no evals', 3),
    ('not enough evidence|helps', 1), ('harms|not enough evidence', 2), ('harms|error|helps', 3), ('', 0)])
def test_the_worst_wins(verdicts, code):
    assert exit_code([SimpleNamespace(verdict=v) for v in verdicts.split('|') if v]) == code

# ---- one error for all ----
def fake_proof(p, verdict='not enough evidence', read=None):
    def at_level(alpha):
        read.append(alpha)
        return fake_proof(p, 'helps' if p <= alpha else 'WRONG')
    return SimpleNamespace(facts=dict(verdict=verdict, p=p), at_level=at_level)

@pytest.mark.parametrize('ps, verdicts, again, level', [
    ([.04, .01], ['not enough evidence', 'helps'], [0], .05),           # Bonferroni would say no to .04
    ([.04, .03], ['not enough evidence']*2, [], None),                  # Neither is below .025
    ([.02, .001, .9], ['not enough evidence', 'helps', 'not enough evidence'], [0], .025),
    ([.04, .01], ['no verdict, for the arms lost …', 'helps'], [], None), # Losses stay what they are
    ([.04, .01, None], ['not enough evidence', 'helps', None], [], None)]) # What broke off counts among the M
def test_what_the_others_leave_over_is_used(tmp_path, monkeypatch, ps, verdicts, again, level):
    members, config = [Member(tmp_path/str(i)) for i in range(len(ps))], ProofConfig()
    read, levels = [], []
    def fake(folder, agent, rater, against, evals, where, config):
        levels.append(config.alpha)
        if ps[int(folder.name)] is None:
            raise FileNotFoundError('gone since it was looked at')
        return fake_proof(ps[int(folder.name)], verdicts[int(folder.name)], read)
    monkeypatch.setattr(family, 'prove', fake)
    monkeypatch.setattr(family, 'was_cut', lambda place: False)
    seen = [*prove_members(members, None, None, config)]
    assert levels == [.05/len(ps)]*len(ps) and config.alpha == .05
    assert [members.index(m) for m in seen[len(ps):]] == again
    assert all(m.verdict == 'error' for m, p in zip(members, ps) if p is None)
    assert read == [pytest.approx(level)]*len(again) and all(members[i].verdict == 'helps' for i in again)

def test_runs_are_read_at_another_level_and_none_is_made(tmp_path):
    agent, calls = agent_in(tmp_path)
    config = ProofConfig(parallel=1, rounds=2, alpha=.001)
    proof = prove(skill_in(tmp_path, n=3), find_agent(agent), config=config)
    n = len(lines(calls))
    assert proof.facts['verdict'] == 'not enough evidence'
    again = proof.at_level(.5)
    assert again.facts['verdict'] == 'helps' and again.code == 0 and len(lines(calls)) == n
    kept = read_json(proof.folder/'proof.json')
    assert (kept['verdict'], kept['alpha']) == ('helps', .5) and again.folder == proof.folder

def test_a_file_beside_an_agent_of_yours_is_found_from_its_work_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path/'my agent.py').write_text('x')
    (tmp_path/'json').write_text('x')
    words = shlex.split(find_agent('python3 -m json "my agent.py" {prompt} ./json').command)
    assert words == ['python3', '-m', 'json', str(tmp_path/'my agent.py'), '{prompt}', str(tmp_path/'json')]

# ---- what a branch has changed ----
def git(repo, *words):
    who = ['-c', 'user.name=shop', '-c', 'user.email=shop@example.org', '-c', 'commit.gpgsign=false']
    done = subprocess.run(['git', '-C', repo, *who, *words], check=True, capture_output=True)
    return os.fsdecode(done.stdout)

ODD = 'a b', '-x', 'new\nline', 'é', os.fsdecode(b'odd\xff'), '$(touch x)', '"q"'

def repository(tmp_path, *names, under='skills'):
    "A repository whose main has these skills, and a branch of it"
    repo = tmp_path/'shop'
    for name in names:
        skill_in(repo/under, 'mug', n=8, name='x').rename(repo/under/name)
        file = repo/under/name/'SKILL.md'
        file.write_bytes(file.read_bytes().replace(b': x\n', b': ' + name.encode('ascii', 'replace') + b'\n'))
    (repo/'.gitignore').write_text('__pycache__/\n*-workspace/\n')
    git(tmp_path, 'init', '-q', '-b', 'main', str(repo))
    commit(repo, 'One')
    git(repo, 'switch', '-q', '-c', 'better')
    return repo

def commit(repo, message):
    git(repo, 'add', '-A')
    git(repo, 'commit', '-q', '--allow-empty', '-m', message)

def write(repo, name, word='kettle'):
    text = (repo/'skills'/name/'SKILL.md').read_text().rpartition(' ')[0]
    (repo/'skills'/name/'SKILL.md').write_text(f'{text} {word}\n')

def compared(repo, tmp_path, base='main', path='skills'):
    "Name → what it is compared with"
    shutil.rmtree(tmp_path/'before', ignore_errors=True)
    (tmp_path/'before').mkdir()
    found = changed_members(repo/path, base, tmp_path/'before')
    return {m.folder.name: m.versus if m.against is None else (m.against/'SKILL.md').read_text().split()[-1]
            for m in found}

NEW, EVALS = 'no skill, for it is new', 'no skill, for only its evals changed'

@pytest.mark.parametrize('committed', [True, False])
def test_what_a_branch_has_changed(tmp_path, committed):
    repo = repository(tmp_path, 'same', 'text', 'evals', 'both', 'gone', 'less', 'junk')
    (repo/'skills'/'less'/'extra.md').write_text('x')
    git(repo, 'switch', '-q', 'main')
    commit(repo, 'Two')
    git(repo, 'switch', '-q', '-C', 'better', 'main')
    write(repo, 'text')
    write(repo, 'both')
    for name in ('evals', 'both'):
        file = repo/'skills'/name/'evals'/'evals.json'
        file.write_text(file.read_text().replace('p1', 'p one'))
    shutil.rmtree(repo/'skills'/'gone')
    (repo/'skills'/'less'/'extra.md').unlink()
    (repo/'skills'/'junk'/'__pycache__').mkdir()
    (repo/'skills'/'junk'/'__pycache__'/'x.pyc').write_text('x')
    (repo/'skills'/'same'/'SKILL.md').touch()
    skill_in(repo/'skills', name='new')
    if committed:
        commit(repo, 'Three')
    assert compared(repo, tmp_path) == dict(text='mug', evals=EVALS, both='mug', less='mug', new=NEW)
    assert compared(repo, tmp_path, path='skills/text') == dict(text='mug')
    assert compared(repo, tmp_path, path='skills/same') == {}

def test_what_main_did_meanwhile_is_no_change_of_the_branch(tmp_path):
    repo = repository(tmp_path, 'a', 'b')
    write(repo, 'a')
    commit(repo, 'Ours')
    git(repo, 'switch', '-q', 'main')
    write(repo, 'a', 'jug')
    write(repo, 'b', 'jug')
    commit(repo, 'Theirs')
    git(repo, 'switch', '-q', 'better')
    assert compared(repo, tmp_path) == dict(a='mug')

def test_a_tracked_file_that_is_ignored_is_a_change(tmp_path):
    repo = repository(tmp_path, 'a', 'b')
    (repo/'skills'/'a'/'__pycache__').mkdir()
    (repo/'skills'/'a'/'__pycache__'/'x.pyc').write_text('x')
    git(repo, 'add', '-f', 'skills/a/__pycache__/x.pyc')
    git(repo, 'commit', '-q', '-m', 'Forced')
    assert compared(repo, tmp_path) == dict(a='mug')

@pytest.mark.parametrize('name', ODD)
def test_names_with_spaces_and_odd_bytes(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    repo = repository(tmp_path, name, 'same')
    write(repo, name)
    assert compared(repo, tmp_path) == {name: 'mug'}
    other = tmp_path/f'{name} shop'
    repo.rename(other)
    assert compared(other, tmp_path) == {name: 'mug'} and not list(tmp_path.rglob('x'))

def test_links_within_the_repository_lead_to_what_was_there(tmp_path):
    repo = repository(tmp_path, 'a', 'b')
    (repo/'shared').mkdir()
    (repo/'shared'/'how.md').write_text('old')
    (repo/'skills'/'a'/'how.md').symlink_to('../../shared/how.md')
    (repo/'skills'/'c').symlink_to('../shared/c')
    skill_in(repo/'shared', 'mug', n=3, name='c')
    commit(repo, 'Links')
    git(repo, 'branch', 'links')
    (repo/'shared'/'how.md').write_text('new')
    write(repo, 'a')
    (repo/'shared'/'c'/'SKILL.md').write_text('---\nname: c\ndescription: x\n---\nkettle\n')
    found = compared(repo, tmp_path, 'links')
    assert found == dict(a='mug', c='mug')
    assert (tmp_path/'before'/'tree'/'skills'/'a'/'how.md').read_text() == 'old'
    assert (tmp_path/'before'/'tree'/'.git').is_dir()

def everything(repo):
    "Path → bytes of all that is in a repository and its work tree"
    return {str(p): p.is_file() and sha256(p.read_bytes()).hexdigest() for p in sorted(repo.rglob('*'))}

def test_nothing_of_the_repository_is_touched_and_nothing_of_it_runs(tmp_path):
    repo = repository(tmp_path, 'a', 'b')
    for hook in ('post-index-change', 'post-checkout', 'reference-transaction'):
        (repo/'.git'/'hooks'/hook).write_text(f'#!/bin/sh\ntouch {tmp_path}/ran\n')
        (repo/'.git'/'hooks'/hook).chmod(0o755)
    write(repo, 'a')
    git(repo, '-c', 'core.hooksPath=/dev/null', 'add', '-A')
    write(repo, 'b')
    (repo/'skills'/'a'/'SKILL.md').touch()
    (tmp_path/'ran').unlink(missing_ok=True)
    before = everything(repo)
    assert compared(repo, tmp_path) == dict(a='mug', b='mug')
    assert everything(repo) == before and not (tmp_path/'ran').exists()

def test_it_works_in_another_work_tree_and_from_a_hook(tmp_path, monkeypatch):
    repo = repository(tmp_path, 'a')
    git(repo, 'worktree', 'add', '-q', '-b', 'third', str(tmp_path/'third'), 'main')
    write(tmp_path/'third', 'a')
    assert compared(tmp_path/'third', tmp_path) == dict(a='mug')
    monkeypatch.setenv('GIT_INDEX_FILE', str(repo/'.git'/'index'))
    write(repo, 'a')
    assert compared(repo, tmp_path) == dict(a='mug')

@pytest.mark.parametrize('base', ['mian', '--all', '', 'main; touch x', 'HEAD:skills'])
def test_a_base_that_is_none_is_one_sentence(tmp_path, capsys, base):
    repo = repository(tmp_path, 'a')
    assert main(['prove', str(repo/'skills'), '--agent', 'true', f'--changed={base}']) == 3 or not base
    told = capsys.readouterr()
    assert told.err.count('\n') <= 1 and 'Traceback' not in told.err
    assert not base or 'fetch it' in told.err and repr(base) in told.err

def test_a_shallow_clone_and_a_folder_without_git_are_one_sentence(tmp_path, capsys):
    repo = repository(tmp_path, 'a')
    write(repo, 'a')
    commit(repo, 'Two')
    git(tmp_path, 'clone', '-q', '--depth=1', f'file://{repo}', str(tmp_path/'clone'))
    assert main(['prove', str(tmp_path/'clone'/'skills'), '--agent', 'true', '--changed', 'origin/main']) == 3
    assert 'fetch-depth: 0' in capsys.readouterr().err
    skill_in(tmp_path/'plain', name='a')
    assert main(['prove', str(tmp_path/'plain'), '--agent', 'true', '--changed', 'main']) == 3
    assert 'lies in no git repository' in capsys.readouterr().err

def test_a_branch_is_proved_against_what_it_was(tmp_path, capsys):
    agent, calls = agent_in(tmp_path)
    repo = repository(tmp_path, 'a', 'b', 'c')
    write(repo, 'a')
    write(repo, 'b', 'jug')
    skill_in(repo/'skills', name='d', n=8)
    commit(repo, 'Two')
    words = ['--changed', 'main', '--ci', '--output', str(tmp_path/'o')]
    assert typed(repo/'skills', agent, *words) == 1
    out = capsys.readouterr().out
    assert row(out, 'a')[1] == 'helps' and row(out, 'a')[-1] == 'no. 1, against what it was at main'
    assert row(out, 'b')[1] == 'not enough evidence' and NEW in row(out, 'd')[-1] and '\nc ' not in out
    arms = read_json(tmp_path/'o'/'a-workspace'/'iteration-1'/'proof.json')['hashes']
    assert [*arms] == ['with_skill', 'old_skill'] and len({*arms.values()}) == 2
    assert git(repo, 'status', '--porcelain') == ''
    n = len(lines(calls))
    assert typed(repo/'skills', agent, *words, '--dry-run') == 0 and len(lines(calls)) == n

def test_where_nothing_has_changed_nothing_is_paid(tmp_path, capsys):
    agent, calls = agent_in(tmp_path)
    repo = repository(tmp_path, 'a')
    assert typed(repo/'skills', agent, '--changed', 'main', '--ci') == 0 and not lines(calls)
    assert 'No skill in' in capsys.readouterr().out
    assert typed(repo/'skills', agent, '--changed', 'main', '--against', 'same') == 3

# ---- the workflow ----
def workflow():
    text = (ROOT/'configs'/'prove_skills.yml').read_text(encoding='utf-8')
    return text, yaml.safe_load(text)

def test_the_workflow_asks_for_little_and_gives_no_key_to_strangers():
    text, flow = workflow()
    job = flow['jobs']['prove']
    assert [*flow[True]] == ['pull_request'] and 'pull_request_target:' not in text # YAML reads `on` as true
    assert flow['permissions'] == dict(contents='read') and 'permissions' not in job
    assert job['if'] == 'github.event.pull_request.head.repo.full_name == github.repository'
    assert 'forks' in text and 'timeout-minutes' in job
    holders = [s for s in job['steps'] if 'secrets.' in json.dumps(s)]
    assert [s['run'].split()[:2] for s in holders] == [['skillrl', 'prove']]
    assert 'secrets.' not in json.dumps([flow.get('env'), job.get('env')])

def test_the_workflow_pins_what_it_takes_and_installs_no_name_of_ours():
    _, flow = workflow()
    steps = flow['jobs']['prove']['steps']
    uses = [s['uses'] for s in steps if 'uses' in s]
    assert uses and all(re.fullmatch(r'actions/[\w-]+@[0-9a-f]{40}', name) for name in uses)
    checkout = next(s for s in steps if 'checkout' in s.get('uses', ''))['with']
    assert checkout == {'fetch-depth': 0, 'persist-credentials': False}
    runs = [s for s in steps if 'run' in s]
    assert not any('${{' in s['run'] for s in runs) # Names of branches are no code
    pip = next(s for s in runs if 'pip' in s['run'])
    assert pip['run'] == 'pip install "$SKILLRL"'
    assert re.fullmatch(r'git\+https://\S+@\w+', pip['env']['SKILLRL'])
    assert all(re.search(r'@\d+\.\d+\.\d+$', s['run']) for s in runs if 'npm' in s['run'])

def test_the_workflow_calls_a_command_that_there_is():
    text, flow = workflow()
    step = next(s for s in flow['jobs']['prove']['steps'] if s.get('run', '').startswith('skillrl'))
    args = parser().parse_args(shlex.split(step['run'])[1:])
    assert args.command == 'prove' and args.ci and args.changed == 'origin/$BASE' and args.against is None
    assert step['env']['BASE'] == '${{ github.base_ref }}'
    assert flow[True]['pull_request']['paths'] == [f'{args.path}/**']
    assert 'max_usd' in args.set[0] and 'run_checks' not in step['run']

def test_nobody_is_told_to_install_an_unregistered_name():
    files = [p for folder in ('skillrl', 'configs', 'benchmarks') for p in (ROOT/folder).rglob('*')
             if p.suffix in ('.py', '.yml', '.yaml')]
    assert not [p for p in files if re.search('pip install [^\n]*skillrl-lab', p.read_text(encoding='utf-8'))]
