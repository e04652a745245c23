"The command line as a whole: what a refusal leaves behind, its flags, and what it says and shows"

import argparse, io, json, os, re, shlex, shutil, signal, subprocess, sys, threading
from pathlib import Path
import pytest
from alfworld_pddl import write_game
from faults import FaultServer, error, said, slow
from replies import skill
from skillrl.cli.main import COMMANDS, main, parser
from skillrl.core.config import SkillRLConfig
from skillrl.envs.alfworld.households import household
from skillrl.skills.bank import Skill, SkillBank, version_path
from skillrl.core.formats import save_trajectories
from skillrl.core.store import data_path, read_json, write_json
from skillrl.core.trajectory import Step, Trajectory

root = Path(__file__).parent.parent
SKILLRL = [sys.executable, '-c', 'import sys; from skillrl.cli.main import main; sys.exit(main())']
SMALL = dict(env=dict(episodes=3, test_tasks=3, max_steps=6), sft=dict(games=3, steps=2),
             rl=dict(iterations=1, tasks_per_iteration=1, group_size=2),
             evolution=dict(validation_interval=1))


@pytest.fixture
def here(tmp_path, monkeypatch):
    "An empty folder with a small config, a bank and two episodes"
    monkeypatch.chdir(tmp_path)
    for name in [k for k in os.environ if re.search('API_KEY|SKILLRL|OPENAI', k)]:
        monkeypatch.delenv(name)
    write_json(tmp_path / 'small.json', SMALL)
    write_json(tmp_path / 'tiny.json', TINY_TRAIN)
    SkillBank.load(data_path('sample_bank.json')).save(tmp_path / 'bank.json')
    return tmp_path


def sentence(capsys, *argv, status=1):
    "The one line that a command which fails says"
    assert main([str(a) for a in argv]) == status
    err = capsys.readouterr().err.strip().splitlines()
    assert len(err) == 1, err
    return err[0]


# --- a run that fails ---
TINY_TRAIN = dict(
    SMALL, env=SMALL['env'] | dict(train_suites=1, test_suites=1, episodes=2, test_tasks=1),
    evolution=SMALL['evolution'])  # A whole loop, as short as it gets


def test_a_run_that_has_begun_stays_when_it_fails(here, capsys):
    with FaultServer(rest=error(401, 'who are you')) as s:
        assert (
            main(['train', '--config', 'tiny.json', '--episodes', '6', '--teacher', 'wise', '--teacher-url',
             s.url, '--output', 'run'])
            == 1
        )
    assert (here / 'run' / 'state.json').exists()
    err = capsys.readouterr().err
    assert 'who are you' in err and err.startswith('Teacher: up to ')


# --- files ---
def test_collect_without_games_leaves_the_trajectories_as_they_were(here, capsys):
    write_game(household('train-0').game('test', 0, 'pick'), here / 'games' / 'valid_seen' / 'a')
    (here / 't.json').write_text('[{"id": "old", "task": "look", "steps": []}]')
    held = (here / 't.json').read_bytes()
    assert 'games' in sentence(capsys, 'collect', '--games', 'games', '--output', 't.json')
    assert (here / 't.json').read_bytes() == held


# --- what calls take ---
def test_a_bar_shows_calls_tokens_and_money_while_a_teacher_is_asked(here, monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self):
            return True
    screen = Terminal()
    save_trajectories([Trajectory('t', 'find mug', 'pick', [Step('A desk.', 'look')], True)], 't.json')
    words = ['distill', '--trajectories', 't.json', '--output', 'b.json', '--teacher', 'wise']
    with FaultServer(rest=said(json.dumps([skill(category='general')]), usage=(1200, 34))) as s:
        monkeypatch.setattr(sys, 'stderr', screen)
        assert main([*words, '--teacher-url', s.url]) == 0
    assert re.search('wise .*1 call, 1,234 tokens, ', screen.getvalue())
    assert '1 call, 1,234 tokens, ' in capsys.readouterr().out


# --- Ctrl-C ---
@pytest.mark.parametrize('command,kept', [('distill', 'b.teacher'), ('evolve', 'grown'), ('train', 'run')])
def test_ctrl_c_says_in_one_sentence_what_is_kept_and_how_to_go_on(here, lives, command, kept):
    hangs, asked = threading.Event(), []
    def answered(request):
        asked.append(request['body']['messages'])
        if hangs.is_set() and len(asked) == 2:
            lives.send(signal.SIGINT)
            return slow(60)
        return said(json.dumps([skill(category='general')]))
    save_trajectories([Trajectory(f't{i}', f'find mug {i}', 'pick', [Step('A desk.', 'look')], True, 'Done.')
                       for i in range(12)], 't.json')
    own = dict(distill=['--trajectories', 't.json', '--output', 'b.json'], train=['--output', 'run'],
               evolve=['--skill-bank', 'bank.json', '--rounds', '3', '--output', 'grown'])[command]
    with FaultServer(rest=answered) as s:
        hangs.set()
        words = [command, *own, '--config', 'tiny.json', '--teacher', 'wise', '--teacher-url', s.url]
        lives.start(*words, err='said.txt')
        assert lives.end() == 130
        told, first = Path('said.txt').read_text(), asked[0]
        assert 'Traceback' not in told
        (again,) = re.findall(f'^Stopped: .*are kept in {kept}; go on with: (.*)$', told, re.M)
        hangs.clear()
        asked.clear()
        if command == 'train':
            words = shlex.split(again)[1:]
        else:
            assert again.startswith('the same command')
            words = [word for word in words if word not in ('--skill-bank', 'bank.json')]
        assert lives.run(*words) == 0
    assert asked and first not in asked


# --- flags ---
def options(command):
    sub = next(a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    return [a for a in sub.choices[command]._actions if a.dest not in ('help', 'command')]


NAMES = [c.name for c in COMMANDS]


@pytest.mark.parametrize('name', NAMES)
def test_every_flag_says_what_holds_without_it(name, monkeypatch):
    for a in options(name):
        assert re.search(r'\(default: .+\)|\(required\)', a.help) or a.required, a.dest
    monkeypatch.setenv('COLUMNS', '80')
    sub = next(a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    assert max(map(len, sub.choices[name].format_help().splitlines())) <= 80


@pytest.mark.parametrize('name', NAMES)
def test_every_flag_that_is_offered_is_read(name):
    "It is a setting, or the source of the commands speaks of it"
    from skillrl.cli.flags import _FLAGS
    source = ''.join(p.read_text(encoding='utf-8') for p in (root/'skillrl'/'cli').glob('*.py'))
    own = {a.dest for a in options(name)} - _FLAGS.keys() - {'version'}
    assert [f for f in own if not re.search(rf"args\.{f}\b|'{f}'", source)] == []


def test_version_is_said(capsys):
    import skillrl

    with pytest.raises(SystemExit) as e:
        main(['--version'])
    assert e.value.code == 0
    assert capsys.readouterr().out.strip() == f'skillrl {skillrl.__version__}'


# --- going on with a run ---
@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    "A folder with a small run of train and one of optimize"
    cwd = tmp_path_factory.mktemp('runs')
    old = os.getcwd()
    os.chdir(cwd)
    write_json(cwd / 'tiny.json', TINY_TRAIN)
    try:
        assert main(['train', '--config', 'tiny.json', '--output', 'trained']) == 0
        assert main(['optimize', '--smoke', '--output', 'optimized']) == 0
    finally:
        os.chdir(old)
    return cwd


def test_settings_given_with_resume_are_compared(runs, capsys, monkeypatch):
    monkeypatch.chdir(runs)
    told = sentence(capsys, 'train', '--resume', 'trained', '--seed', 5)
    assert 'seed was 0 and is now 5' in told
    assert '--accept-changes' in told
    write_json(runs / 'c.json', dict(rl=dict(group_size=6)))
    assert 'rl.group_size was 2 and is now 6' in sentence(
        capsys, 'train', '--resume', 'trained', '--config', 'c.json')
    assert main(['train', '--resume', 'trained', '--seed', '0']) == 0


def test_changed_settings_can_be_accepted(runs, tmp_path, capsys):
    shutil.copytree(runs / 'trained', tmp_path / 'run')
    again = ['train', '--resume', str(tmp_path / 'run'), '--accept-changes']
    assert main([*again, '--set', 'agent.decode=admissible']) == 0
    assert read_json(tmp_path / 'run' / 'config.json')['agent']['decode'] == 'admissible'
    assert main([*again, '--seed', '5']) == 1
    assert 'test suites' in capsys.readouterr().err


KEY = 'sk-live-0123456789abcdefABCDEF'


def test_a_key_goes_to_an_address_of_a_folder_only_when_it_is_named(here, capsys, monkeypatch):
    monkeypatch.setenv('SKILLRL_TEACHER_API_KEY', KEY)
    (here / 'forms.jsonl').write_text(
        '\n'.join(
            json.dumps(dict(question=f'What is {n} and {n + 1}?', answers=str(2 * n + 1))) for n in range(12)
        )
    )
    with FaultServer(rest=said('{}')) as s:
        who = ['--policy-model', 'a', '--policy-url', s.url, '--teacher', 'b', '--teacher-url', s.url]
        assert main(['optimize', '--questions', 'forms.jsonl', *who, '--smoke', '--output', 'o']) == 0
        write_json(
            here / 't' / 'config.json',
            SkillRLConfig()
            .merged({'model.teacher_model_id': 'b', 'model.teacher_api_base': s.url})
            .to_dict(),
        )
        asked = s.count
        capsys.readouterr()
        told = sentence(capsys, 'train', '--resume', 't')
        assert s.url in told
        assert 'SKILLRL_TEACHER_API_KEY' in told
        assert KEY not in told
        assert s.count == asked
        again = ['optimize', '--resume', 'o', '--questions', 'forms.jsonl']
        assert 'needs --teacher' in sentence(capsys, *again)
        assert main([*again, *who, '--smoke']) == 0


# --- SkillOpt's agents and its page ---


def test_the_page_of_a_run_is_reachable_from_this_machine_only(runs):
    from urllib.request import urlopen

    line = [*SKILLRL, 'inspect', 'optimized', '--port', '0']
    with subprocess.Popen(line, cwd=runs, text=True, stdout=subprocess.PIPE) as p:
        url = p.stdout.readline().split()[0]
        assert url.startswith('http://127.0.0.1:')
        assert b'SkillOpt' in urlopen(url, timeout=30).read()
        p.kill()


# --- progress ---
def test_stdout_holds_results_only(here, capsys):
    assert main(['optimize', '--smoke', '--output', 'o']) == 0
    out, err = capsys.readouterr()
    assert 'Run folder' in err
    assert 'Run folder' not in out
    assert not re.search(r'^step \d+ of', out, re.M)
    assert out.startswith('\nNo candidate was accepted') and '95 % interval' in out


# --- inspect ---
@pytest.fixture(scope='module')
def zoo(runs):
    "One of everything that inspect knows"
    from skillrl.skills.skill_md import to_skill_md

    bank = SkillBank.load(data_path('sample_bank.json'))
    to_skill_md(bank, runs / 'skills')
    bank.save(version_path(runs / 'versions'))
    bank.save(runs / 'bank.json')
    shutil.copytree(data_path('base'), runs / 'policy')
    shutil.copytree(runs / 'trained', runs / 'unfinished')
    for name in ('report.md', 'state.json'):
        (runs / 'unfinished' / name).unlink()
    old = os.getcwd()
    os.chdir(runs)
    try:
        assert main(['collect', '--episodes', '6', '--output', 't.json']) == 0
    finally:
        os.chdir(old)
    return runs


KINDS = {'policy': 'policy', 'optimized': 'SkillOpt run', 'trained': 'training run',
         'unfinished': 'training run', 'bank.json': 'bank', 'versions': 'bank with its versions',
         'skills': 'bank of SKILL.md folders', 't.json': 'trajectories',
         'trained/evolution.jsonl': 'evolution log', 'trained/metrics.jsonl': 'JSON'}


@pytest.mark.parametrize('name', KINDS)
def test_inspect_says_what_anything_is_at_terminal_width(zoo, capsys, monkeypatch, name):
    monkeypatch.chdir(zoo)
    for columns in (80, 120):
        monkeypatch.setenv('COLUMNS', str(columns))
        capsys.readouterr()
        assert main(['inspect', name]) == 0
        out = capsys.readouterr().out
        assert out.splitlines()[0] == f'{name}: {KINDS[name]}'
        tables = [l for l in out.splitlines() if '  ' in l.strip() and not l.startswith(' ')]
        assert all(len(l) <= columns for l in tables), max(tables, key=len)


def test_inspect_of_an_unfinished_run_says_how_to_go_on(zoo, capsys, monkeypatch):
    monkeypatch.chdir(zoo)
    assert main(['inspect', 'unfinished']) == 0
    assert 'skillrl train --resume unfinished' in capsys.readouterr().out


# --- doctor ---
def test_doctor_finds_this_machine_well(here, capsys):
    assert main(['doctor']) == 0
    out = capsys.readouterr().out
    for what in 'python torch peft threads GPU disk policy prompt memory'.split():
        assert re.search(rf'^ok +{what}: ', out, re.M), what
    assert 'PROBLEM' not in out


def test_doctor_asks_a_server_that_is_named_and_shows_no_key(here, capsys, monkeypatch):
    monkeypatch.setenv('SKILLRL_TEACHER_API_KEY', KEY)
    with FaultServer(rest=said('ok')) as s:
        assert main(['doctor', '--teacher', 'wise', '--teacher-url', s.url]) == 0
        assert s.count == 1
        assert s.requests[0]['key'] == KEY
        assert main(['doctor', '--policy-model', 'mini', '--policy-url', s.url]) == 0
        assert s.requests[1]['body']['model'] == 'mini'
    with FaultServer(rest=error(401, 'the key {key} is wrong')) as s:
        assert main(['doctor', '--teacher', 'wise', '--teacher-url', s.url]) == 1
    out = capsys.readouterr().out
    assert 'wise at' in out
    assert 'answered' in out
    assert 'SKILLRL_TEACHER_API_KEY' in out
    assert re.search('^PROBLEM +teacher: wise at', out, re.M) and '1 problem' in out
    assert KEY not in out


def test_doctor_says_what_of_a_bank_the_policy_can_read(here, capsys):
    SkillBank([Skill('gen_001', 'Be careful', 'Think first.')]).save('words.json')
    assert main(['doctor', '--skill-bank', 'words.json']) == 1
    told = capsys.readouterr().out
    assert re.search(r'^PROBLEM +reading: .* 0 of 1 entries.*: let a teacher that fills `fact`', told, re.M)
    with FaultServer(rest=said('ok')) as s:
        reads = ['--policy-model', 'mini', '--policy-url', s.url]
        assert main(['doctor', '--skill-bank', 'words.json', *reads]) == 0


def test_a_run_warns_of_a_bank_that_its_weights_cannot_read_before_the_others_are_paid_for(here, capsys):
    found = []
    def answered(request):
        found.append(capsys.readouterr().err)
        return said(json.dumps([skill(category='general')]))
    with FaultServer(rest=answered) as s:
        args = ['--config', 'tiny.json', '--teacher', 'wise', '--teacher-url', s.url, '--output', 'run']
        assert main(['train', *args, '--set', 'rl.iterations=0', 'evolution.validation_interval=0']) == 0
    warned = ['Warning: the policy that acts can read 0 of' in err for err in found]
    assert warned[:2] == [False, True]
    out = capsys.readouterr().out
    assert 'Warning: the policy that acts can read 0 of 2 entries' in ' '.join(out.split())


def test_doctor_says_what_would_help(here, capsys):
    assert main(['doctor', '--policy', 'none', '--games', 'nowhere']) == 1
    out = capsys.readouterr().out
    assert out.count('PROBLEM') == 2
    assert '2 problems' in out


# --- warnings ---
def test_a_warning_is_one_plain_line(here, capsys, monkeypatch):
    import warnings, skillrl.training.plan

    def odd(*args):
        warnings.warn('this run began with torch 1.0\nand goes on with 2.0')
        return iter(())

    monkeypatch.setattr(skillrl.training.plan, 'examine_machine', odd)
    assert main(['doctor']) == 0
    assert capsys.readouterr().err == 'skillrl: this run began with torch 1.0 and goes on with 2.0\n'
