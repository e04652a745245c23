"`skillrl optimize` as a user meets it: with every kind of job; stopped, resumed, looked at, and refused"

import io, json, os, re, shlex, signal, subprocess, sys, time
from contextlib import chdir, redirect_stderr, redirect_stdout
from unittest.mock import patch
import pytest
from faults import FaultServer, error, said
from skillrl.cli.main import main, parser
from skillrl.skillopt.ruleworld import RuleWorld
from skillrl.skillopt.settings import SkillOptConfig
from skillrl.cli.jobs import _opt_settings
from skillrl.core.store import read_json

SKILLRL = [sys.executable, '-c', 'import sys; from skillrl.cli.main import main; sys.exit(main())']
KEY = 'wiring-7f3a9c51d2'


def env(**more):
    keep = {
        k: v for k, v in os.environ.items() if not re.search('KEY|SECRET|TOKEN|OPENAI|SKILLRL|ALFWORLD', k)
    }
    return keep | dict(OPENAI_API_KEY=KEY, OMP_NUM_THREADS='1', COLUMNS='250') | more


def listen():
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # A shell that runs the tests in its background has it ignored


def start(*words, cwd, **more):
    return subprocess.Popen([*SKILLRL, *map(str, words)], cwd=cwd, env=env(**more), text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=listen)


def run(*words, cwd, code=0, **more):
    "What a command prints, its errors after that"
    out, err = io.StringIO(), io.StringIO()
    with chdir(cwd), patch.dict(os.environ, env(**more), clear=True):
        with redirect_stdout(out), redirect_stderr(err):
            status = main([str(w) for w in words])
    said = out.getvalue() + err.getvalue()
    assert status == code, said
    assert 'Traceback' not in said
    return said


def end_of(out):
    return out.partition('\nNext: ')[0]  # The results, which stand before what went to stderr


def optimize(*words, **kw):
    return run('optimize', *words, **kw)


NOT_THE_SAME = 'events.jsonl', '.lock'  # How long things took, and by whom


def files(folder):
    return {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in sorted(folder.rglob('*'))
        if p.is_file() and p.name not in NOT_THE_SAME
    }


# --- offline ---
@pytest.fixture(scope='module')
def offline(tmp_path_factory):
    "The folder in which `skillrl optimize` was run, and what it said"
    cwd = tmp_path_factory.mktemp('offline')
    return cwd, optimize(cwd=cwd, OPENAI_API_KEY='')


def test_without_arguments_it_runs_offline_and_ends_with_a_summary(offline):
    cwd, out = offline
    end = end_of(out)
    world = RuleWorld(seed=42)
    best = (cwd / 'runs' / 'run-001' / 'best_skill.md').read_text()
    before, after = map(world.truth, (world.get_initial_skill(), best))
    s = read_json(cwd / 'runs' / 'run-001' / 'summary.json')
    low, high = s['best_selection_interval']
    assert after > before + 0.1
    assert low <= after <= high
    assert f'{s["best_selection_score"]:.3f}  {low:.3f} to {high:.3f}' in end
    assert 'Best skill: runs/run-001/best_skill.md   Report: runs/run-001/report.html' in end
    assert 'Mind the' in best
    assert (cwd / 'runs' / 'run-001' / 'report.html').stat().st_size > 1000


def test_the_same_folder_goes_on_and_a_finished_run_costs_nothing(offline):
    cwd, out = offline
    before = files(cwd / 'runs' / 'run-001')
    for words in (['--output', 'runs/run-001'], ['--resume', 'runs/run-001']):
        assert end_of(optimize(*words, cwd=cwd)) == end_of(out)
        assert files(cwd / 'runs' / 'run-001') == before


def test_more_epochs_may_be_added_and_another_seed_may_not(offline, tmp_path):
    optimize('--smoke', '--output', 'r', cwd=tmp_path)
    again = ['--resume', 'r', '--smoke']
    assert '2 steps' in optimize(*again, '--set', 'num_epochs=2', cwd=tmp_path)
    assert 'seed was 42' in optimize(*again, '--seed', 7, cwd=tmp_path, code=1)
    assert 'begun with other settings (items' in optimize('--resume', 'r', cwd=tmp_path, code=1)


def test_settings_come_from_a_file_and_flags_fall_on_top(tmp_path):
    (tmp_path / 'c.yaml').write_text('num_epochs: 1\nbatch_size: 40\ngate_metric: soft\n')
    optimize('--config', 'c.yaml', '--set', 'gate_metric=mixed', 'verbose=false', '--seed', 5, '--output',
             'r', cwd=tmp_path)
    c = read_json(tmp_path / 'r' / 'config.json')
    assert (c['num_epochs'], c['batch_size'], c['gate_metric'], c['seed'], c['verbose']) == (
        1, 40, 'mixed', 5, False)


# --- looking at it ---
def test_inspect_shows_steps_summary_and_usage(offline):
    cwd, out = offline
    shown = run('inspect', 'runs/run-001', cwd=cwd)
    history, s = (read_json(cwd / 'runs' / 'run-001' / f'{k}.json') for k in ('history', 'summary'))
    words = dict(accept_new_best='accepted, the best so far', accept='accepted', reject='refused',
                 skip_no_patches='no candidate: nothing proposed was taken')
    assert all(re.search(rf'^{r["step"]} .*  {words[r["action"]]}  ', shown, re.M) for r in history)
    calls = sum(u['calls'] for u in s['usage']['target'].values())
    shown_calls = [int(n) for n in re.findall(r'^target .*?  (\d+)  ', shown, re.M)]
    assert sum(shown_calls) == calls
    assert f'{s["test_gain"]["mean"]:+.3f}' in shown
    assert f'{s["test_hard"]:.3f}' in shown


def test_inspect_of_a_run_loads_nothing_heavy(offline):
    look = "import sys; from skillrl.cli.main import main; main(['inspect', 'runs/run-001'])"
    code = f"{look}; print('loaded', *sys.modules)"
    out = subprocess.run([sys.executable, '-c', code], cwd=offline[0], capture_output=True, text=True,
                         check=True).stdout
    loaded = {m.split('.')[0] for m in out.split('loaded')[1].split()}
    assert 'step' in out
    assert not loaded & {'numpy', 'torch', 'openai', 'gymnasium', 'matplotlib', 'transformers', 'httpx'}


def test_inspect_of_a_run_under_way(tmp_path):
    optimize('--set', 'max_target_calls=150', '--output', 'r', cwd=tmp_path)
    (tmp_path / 'r' / 'summary.json').unlink()
    out = run('inspect', 'r', cwd=tmp_path)
    assert 'go on with skillrl optimize --resume r' in out
    assert 'target  selection items' in out


# --- questions, two models behind a server ---
CITIES = dict(Brazil='Brasília', Peru='Lima', Chile='Santiago', Norway='Oslo', Kenya='Nairobi',
              Japan='Tokyo', Egypt='Cairo', Ghana='Accra')
ITEMS = [
    dict(question=f'What is the capital of {k}, asked the {n} time?', answers=v)
    for n in range(4)
    for k, v in CITIES.items()
]


def clerk(body):
    system, user = body['messages'][0]['content'], body['messages'][-1]['content']
    return (
        next(v for k, v in CITIES.items() if k in user)
        if 'Name the city.' in system
        else 'I would have to look that up.'
    )


def editor(body):
    told = body['messages'][-1]['content']
    return (
        json.dumps(dict(edits=[dict(op='append', content='Name the city.')]))
        if '## Trajectories' in told
        else '{}'
    )


def both(request):
    return said(editor(request['body']) if request['body']['model'] == 'editor' else clerk(request['body']))


@pytest.fixture
def forms(tmp_path):
    (tmp_path / 'forms.jsonl').write_text('\n'.join(map(json.dumps, ITEMS)))
    return tmp_path


def two(server):
    return ['--policy-model', 'clerk', '--policy-url', server.url, '--teacher', 'editor', '--teacher-url',
            server.url]


SHORT = ['--set', 'num_epochs=1', 'batch_size=8', 'minibatch_size=4']


def test_questions_are_learnt_from_a_server_and_the_key_is_kept_to_it(forms):
    with FaultServer(rest=both) as s:
        out = optimize('--questions', 'forms.jsonl', *two(s), *SHORT, '--output', 'r', cwd=forms)
    assert re.search(r'test, first skill +0\.000.*\n.*test, best skill +1\.000', out)
    assert 'Name the city.' in (forms / 'r' / 'best_skill.md').read_text()
    assert {r['key'] for r in s.requests} == {KEY}
    assert {r['body']['model'] for r in s.requests} == {'clerk', 'editor'}
    assert KEY not in out
    assert not [name for name, data in files(forms / 'r').items() if KEY.encode() in data]
    assert (
        sum(
            u['calls']
            for k in ('target', 'optimizer')
            for u in read_json(forms / 'r' / 'summary.json')['usage'][k].values()
        )
        == s.count
    )


@pytest.mark.parametrize('sig', [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped_in_the_middle_it_goes_on_with_what_it_paid_for(forms, sig):
    with FaultServer(rest=both) as s:
        optimize('--questions', 'forms.jsonl', *two(s), *SHORT, 'workers=1', '--output', 'whole', cwd=forms)
    asked = s.count

    def until(request):
        if s2.count == asked // 2:
            p.send_signal(sig)
        if s2.count >= asked // 2:
            time.sleep(0.5)
        return both(request)

    with FaultServer(rest=until) as s2:
        p = start('optimize', '--questions', 'forms.jsonl', *two(s2), *SHORT, 'workers=1', '--output', 'r',
                  cwd=forms)
        _, err = p.communicate(timeout=120)
        first = s2.count
    assert p.returncode == (-9 if sig == signal.SIGKILL else 130)
    if sig != signal.SIGKILL:
        assert err.strip().splitlines()[-1] == (
            'Stopped: steps and answers are kept in r; go on with: '
            + shlex.join(['skillrl', 'optimize', '--resume', 'r', '--questions', 'forms.jsonl', *two(s2),
                          *SHORT, 'workers=1'])
        )
    with FaultServer(rest=both) as s3:
        optimize('--resume', 'r', '--questions', 'forms.jsonl', *two(s3), cwd=forms)
    assert first + s3.count <= asked + 2
    named_by_address = 'config.json', 'summary.json', 'report.html'

    def same(n):
        return {k: v for k, v in files(forms / n).items() if k not in named_by_address}

    assert same('r') == same('whole')


def test_a_service_that_is_down_says_so_and_the_run_goes_on_later(forms):
    words = ['--questions', 'forms.jsonl', *SHORT, '--output', 'r']
    with FaultServer(
        rest=lambda r: both(r) if r['body']['model'] == 'clerk' else error(401, 'who are you')
    ) as s:
        out = optimize(*words, *two(s), cwd=forms, code=1)
    assert len(out.strip().splitlines()[-1:]) == 1
    assert 'who are you' in out
    assert 'go on with: skillrl optimize --resume r --questions forms.jsonl --set' in out
    with FaultServer(rest=both) as s:
        assert '1.000' in optimize('--resume', 'r', *words[:2], *two(s), cwd=forms)


# --- a skill to begin with ---
HEAD = '---\nname: atlas\ndescription: Names capitals.\n---\n\n'


@pytest.fixture
def atlas(forms):
    (forms / 'atlas').mkdir()
    (forms / 'atlas' / 'SKILL.md').write_text(HEAD + '# Atlas\n\nAnswer politely.\n')
    return forms


def test_a_skill_in_a_file_keeps_its_head(atlas):
    with FaultServer(rest=both) as s:
        asked = ['atlas', '--questions', 'forms.jsonl', '--output', 'r']
        optimize(*asked, *two(s), *SHORT, cwd=atlas)
    best = (atlas / 'r' / 'best_skill.md').read_text()
    assert best.startswith(HEAD)
    assert 'Answer politely.' in best
    assert 'Name the city.' in best
    assert (atlas / 'atlas' / 'SKILL.md').read_text() == HEAD + '# Atlas\n\nAnswer politely.\n'


def test_a_skill_keeps_its_line_ends(tmp_path):
    (tmp_path / 'mine.md').write_bytes('\ufeffWrite the invoice.\r\n\r\n- Mind the vat.\r\n'.encode())
    optimize('mine.md', '--smoke', '--output', 'r', cwd=tmp_path)
    for best in (tmp_path / 'r' / 'best_skill.md', tmp_path / 'r' / 'skills' / 'skill_v0000.md'):
        text = best.read_bytes()
        assert text.startswith(b'Write the invoice.\r\n\r\n- Mind the vat.\r\n')
        assert text.count(b'\n') == text.count(b'\r\n')


# --- refusals ---
def refusals():
    at = ['--policy-model', 'a', '--policy-url', 'http://127.0.0.1:1/v1', '--teacher', 'b', '--teacher-url',
          'http://127.0.0.1:1/v1']
    return dict(
        no_file=(['--questions', 'none.jsonl', *at], 'there is no file none.jsonl'),
        torn=(['--questions', 'torn.jsonl', *at], 'torn.jsonl, line 2'),
        split_name=(['--questions', 'dev.jsonl', *at], "has the split 'dev': choose one of train, val, test"),
        two_folders=(['--resume', 'occupied', '--output', 'x'], '--resume and --output are both given'),
        no_target=(['--questions', 'forms.jsonl', *at[4:]], '--questions needs --policy-model'),
        no_optimizer=(['--questions', 'forms.jsonl', *at[:4]], '--questions needs --teacher'),
        price=(['--questions', 'forms.jsonl', *at, '--set', 'max_usd=2'], "'a' has no price, so max_usd"),
        two_jobs=(['--questions', 'forms.jsonl', '--evals', 'b', *at],
                  '--questions would do nothing with --evals'),
        no_job=(at, '--policy-model, --policy-url, --teacher, --teacher-url would do nothing without'),
        bytes=(['bytes.md'], 'bytes.md is not UTF-8 text'),
        setting=(['--set', 'max_uds=2'], 'max_usd'),
        config=(['--config', 'sections.json'], 'there is no setting'),
        occupied=(['--output', 'occupied'], 'already holds files of something else'),
    )


@pytest.fixture
def odd(forms):
    for name, text in dict(torn='{"question": "a", "answers": "b"}\n{"quest', bare='{"question": "Who?"}',
                           dev='{"question": "Who?", "answers": "I", "split": "dev"}',
                           told='{"question": "Who?", "answers": "I", "split": "val"}',
                           few='{"question": "Who?", "answers": "I"}').items():
        (forms / f'{name}.jsonl').write_text(text)
    (forms / 'bytes.md').write_bytes(b'caf\xe9')
    (forms / 'sections.json').write_text('{"rl": {"group_size": 4}}')
    (forms / 'occupied').mkdir()
    (forms / 'occupied' / 'config.json').write_text('{"seed": 0, "rl": {}}')
    return forms


@pytest.mark.parametrize('name', refusals())
def test_what_cannot_work_is_refused_in_a_sentence_before_anything_is_made(odd, name, monkeypatch, capsys):
    words, why = refusals()[name]
    before = files(odd)
    monkeypatch.chdir(odd)
    assert main(['optimize', *words]) == 1
    out, err = capsys.readouterr()
    assert err.startswith('skillrl: ')
    assert len(err.strip().splitlines()) == 1
    assert why in err
    assert not out
    assert files(odd) == before


def test_every_setting_can_be_set():
    for name, v in SkillOptConfig().to_dict().items():
        if name != 'out_root':
            args = parser().parse_args(['optimize', '--set', f'{name}={json.dumps(v)}'])
            assert getattr(_opt_settings(args, 'run'), name) == v
