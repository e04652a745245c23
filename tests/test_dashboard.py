"What is shown of a run: any folder, while another process writes it, and in a real browser"
import json, os, random, re, shutil, signal, socket, subprocess, sys, threading, time
from html.parser import HTMLParser
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen
import pytest
from skillrl.envs.ruleworld import RuleOptimizer, RuleTarget, RuleWorld
from skillrl.skillopt.config import SkillOptConfig
from skillrl.skillopt.trainer import SkillOptTrainer
from skillrl.viewers.live import PAGE, Watch, present
from skillrl.viewers.report import plot_run, write_page
from skillrl.viewers.run import (describe_worth, finals, json_of, lost_table, read_run, score_in, steps_table,
                                 usage_table, why)
from skillrl.viewers.steps import SkillDiff, run_browser, skill_at, skill_diff, step_story

def train(root, epochs=1, target=None, **kw):
    config = SkillOptConfig(num_epochs=epochs, batch_size=10, minibatch_size=4, workers=1, verbose=False,
                            out_root=str(root), **kw)
    return SkillOptTrainer(config=config, env=RuleWorld(seed=2, val=60),
                           optimizer_client=RuleOptimizer(.7, seed=2),
                           target_client=target or RuleTarget(seed=2)).train()

@pytest.fixture(scope='module')
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp('dashboard')/'run'
    train(root)
    return root

@pytest.fixture
def root(finished, tmp_path):
    "A finished run that may be damaged"
    return Path(shutil.copytree(finished, tmp_path/'run'))

def tables(root):
    "Everything that is shown of a run but its pictures, as text"
    view = read_run(root)
    n = max([r['step'] for r in view.steps if (root/f'steps/step_{r["step"]:04}').is_dir()], default=0)
    shown = [{k: v for k, v in present(root).items() if k != 'quiet'}, finals(root), usage_table(view),
             lost_table(root), steps_table(view.steps), describe_worth(view)]
    return '\n'.join(map(repr, shown + [step_story(root, k) for k in [n] if k]))

def report(root):
    try:
        return write_page(root).read_text(encoding='utf-8')
    except FileNotFoundError as e:
        assert 'holds no run' in str(e)

# --- what the folder says is text

hostile = ('<script>window.pwned=1</script><img src=x onerror="window.pwned=1"></pre></style>'
           '<svg onload=window.pwned=1>\'"&$x$ \u2028\x1b[31m' + 'w'*3000)

def poisoned(root):
    "A run in which every text a model or an item could have written is hostile"
    def w(name, o):
        (root/name).parent.mkdir(parents=True, exist_ok=True)
        (root/name).write_text(o if isinstance(o, str) else json.dumps(o), encoding='utf-8')
    usage = {hostile: {hostile: dict(calls=3, prompt_tokens=4, completion_tokens=5)}}
    steps = [dict(step=n, epoch=1, action=action + hostile, reason=hostile, candidate_gate_score=.5,
                  current_score=.5, best_score=.5, best_step=1, skill_len=90, usage=usage)
             for n, action in enumerate(('accept', 'reject'), 1)]
    w('config.json', dict(num_epochs=1, prices={hostile: [1, 2]}, **{hostile: hostile}))
    w('history.json', steps)
    w('runtime_state.json', dict(best_step=1, best_score=.5, usage=usage))
    w('summary.json', dict(total_steps=2, stopped=hostile, usage=usage, best_step=1, best_selection_score=.5,
                           usd=1, test_gain=dict(mean=.1, interval=[-.1, .3])))
    w('events.jsonl', json.dumps(dict(step=2, stage=hostile, event='end',
                                      seconds=1)) + '\n' + json.dumps(dict(step=2, stage=hostile,
                                                                           event='begin', n=4)) + '\n')
    w('best_skill.md', hostile)
    for n in range(3):
        w(f'skills/skill_v{n:04}.md', f'Write the invoice.\n{hostile*bool(n)}\n')
    for n in (1, 2):
        w(f'steps/step_{n:04}/step_record.json', steps[n - 1])
        w(f'steps/step_{n:04}/raw_patches.json',
          [dict(source_type=hostile, patch=dict(edits=[dict(op=hostile, content=hostile, target=hostile)]))])
        w(f'steps/step_{n:04}/edit_apply_report.json',
          [dict(op=hostile, content_preview=hostile, status=hostile)])
        w(f'steps/step_{n:04}/selection_eval/results.json',
          [dict(id=hostile, hard=1, soft=1., fail_reason=hostile)])
    return root

class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.attrs = [], []
        self.feed(page)
    def handle_starttag(self, tag, attrs):
        self.tags.append(tag), self.attrs.extend(attrs)

def test_a_hostile_skill_stays_text_in_the_report(tmp_path):
    page = write_page(poisoned(tmp_path/'run')).read_text(encoding='utf-8')
    seen = Tags(page)
    assert not {'script', 'img', 'iframe', 'object', 'form', 'a', 'base'} & set(seen.tags)
    assert seen.tags.count('link') == 1
    assert [v for k, v in seen.attrs if k in ('src', 'href') and not v.startswith(('#', 'data:,'))] == []
    assert not [k for k, _ in seen.attrs if k.startswith('on')]
    assert page.count('&lt;script&gt;window.pwned') > 10

@pytest.mark.parametrize('old,new',
                         [('Write.', hostile), (hostile, 'Write.'), (hostile, hostile[::-1]), ('', hostile)],
                         ids=range(4))
def test_a_hostile_skill_stays_text_in_a_diff(old, new):
    page = SkillDiff(old.split('\u2028')[0], new.split('\u2028')[0]).html()
    assert set(Tags(page).tags) <= {'pre', 'ins', 'del', 'mark', 'span'}

def test_a_hostile_name_of_a_folder(tmp_path):
    root = poisoned(tmp_path/'<b onclick=x>run')
    assert 'b' not in Tags(write_page(root).read_text(encoding='utf-8')).tags

def test_a_hostile_skill_stays_text_elsewhere(tmp_path):
    root = poisoned(tmp_path/'run')
    assert '\x1b' not in repr(skill_diff(root, 0, 1)) + repr(step_story(root, 1))
    out = run_browser(root).children[1]
    assert not {'script', 'img', 'svg'} & set(Tags(out.value).tags)
    plot_run(root).canvas.draw()

def test_a_fence_in_a_skill_does_not_end_the_diff():
    md = SkillDiff('a\n```\nb\n````\n<b>', 'a\n```\nc\n````\n<b>')._repr_markdown_()
    fence = md.split('diff')[0]
    assert fence == '`'*5 and md.endswith('\n' + fence) and md.count(fence) == 2

@pytest.mark.parametrize('old,new',
                         [('', ''), ('', 'a'), ('a', ''), ('a\r\nb', 'a\nb'), ('x\n'*5000, 'y\n'*5000),
                          ('a b '*4000, 'b a '*4000)], ids=range(6))
def test_any_two_texts_can_be_compared(old, new):
    began, d = time.monotonic(), SkillDiff(old, new)
    assert d.html().startswith('<pre') and time.monotonic() - began < 10
    assert [t for s, t, _ in d.rows if s == '-'] == [] or old.splitlines() != new.splitlines()

def test_words_that_changed_are_marked():
    assert SkillDiff('Give two decimals.', 'Give three decimals.').html() == (
        '<pre class="diff"><del>- Give <mark>two</mark> decimals.</del>'
        '<ins>+ Give <mark>three</mark> decimals.</ins></pre>')

# --- what it says is what happened

def test_the_report_has_what_the_summary_has(root):
    page, s = write_page(root).read_text(encoding='utf-8'), json.loads((root/'summary.json').read_text())
    assert f'{s["best_selection_score"]:.3f} in fresh passes' in page
    assert f'{s["test_gain"]["mean"]:+.3f}' in page
    assert page.split('<h2>What was refused')[0].count('<h3>Step') == s['total_accepts']
    assert page.count('<h3>Step') == s['total_steps']
    assert page.count('<svg') == 3
    assert str(root) not in page and not re.search(r'https?://(?!www\.w3\.org)', page)
    assert page == write_page(root).read_text(encoding='utf-8')

def test_diffs_lead_from_the_first_skill_to_the_last(root):
    for n in range(1, 5):
        d = skill_diff(root, n - 1, n)
        added, gone = ([t for s, t, _ in d.rows if s == sign] for sign in '+-')
        assert sorted(skill_at(root, n).splitlines() + gone) == sorted(skill_at(root,
                                                                                n - 1).splitlines() + added)

def test_skills_without_snapshots(tmp_path, finished):
    train(tmp_path/'run', save_every_step=False)
    assert not (tmp_path/'run'/'skills').exists()
    assert [skill_at(tmp_path/'run', n) for n in range(5)] == [skill_at(finished, n) for n in range(5)]

def test_a_lost_rollout_has_no_score(root):
    p = root/'final_selection_eval'/'results.json'
    rows = json.loads(p.read_text())
    for r in rows:
        if r["id"] in {o["id"] for o in rows[:10]}:
            r |= dict(status='infra_error', hard=0, soft=0)
    p.write_text(json.dumps(rows))
    assert score_in(p.parent, {}).n == len({r["id"] for r in rows}) - 10

def test_words_for_each_end(root):
    v = read_run(root)
    for interval, words in (([.1, .3], 'more than chance'), ([-.1, .3], 'includes 0, so chance may explain'),
                            ([-.3, -.1], 'worse than the first skill')):
        v.summary['test_gain'] = dict(mean=.1, interval=interval)
        assert words in describe_worth(v)
    v.summary['test_gain'] = None
    assert 'in fresh passes' in describe_worth(v) and 'nobody knows what it gained' in describe_worth(v)
    v.summary['best_selection_interval'] = None
    assert 'not measured afresh' in describe_worth(v)
    v.summary['best_step'] = 0
    assert 'No candidate was accepted' in describe_worth(v)
    v.held = True
    assert 'has not ended' in describe_worth(v)

def test_the_verdict_names_each_of_its_numbers(root):
    v = read_run(root)
    s = v.summary
    told = f'step {s["best_step"]}. It scores {s["best_selection_score"]:.3f} in fresh passes'
    assert told in describe_worth(v)
    assert f'the first skill scored {s["baseline_selection_score"]:.3f}' in describe_worth(v)
    assert f'that of the first skill {s["baseline_test_hard"]:.3f}' in describe_worth(v)
    v.config['gate_metric'] = 'soft' # The gain is then one of soft scores
    assert 'Its score there' not in describe_worth(v)

def test_no_code_of_a_record_is_shown_to_a_reader(root):
    for name in ('history.json', 'steps/step_0003/step_record.json'):
        o = json.loads((root/name).read_text())
        (o if name[0] == 's' else o[2]).update(action='skip_no_patches', reason='', gate=None)
        (root/name).write_text(json.dumps(o))
    page = report(root).split('<h2>Settings')[0] + repr([steps_table(read_run(root).steps),
                                                         usage_table(read_run(root)),
                                                         *(step_story(root, n) for n in range(1, 5))])
    assert not re.findall(r'accept_new_best|applied_\w+|skip_no\w*|\b\w+_eval\w*|items got better', page)
    assert 'no candidate: nothing proposed was taken' in page
    assert re.search(r'\d+ of \d+ comparisons went better, \d+ worse', page)

@pytest.mark.parametrize('gate,words', [
    (dict(n=10, wins=1, losses=2, gain=-.1, low=-.3),
     '1 of 10 comparisons went better, 2 worse: the mean score falls by 0.100'),
    (dict(n=10, wins=2, losses=2, gain=0, low=-.3),
     '2 of 10 comparisons went better, 2 worse: the mean score stays'),
    (dict(n=10, wins=2, losses=1, gain=.1, low=-.2),
     'mean gain +0.100, which may be luck (the true gain could be as low as -0.200)'),
    (dict(n=10, wins=4, losses=1, gain=.3, low=.1, keep=True),
     '4 of 10 comparisons went better, 1 worse: mean gain +0.300'),
    (dict(n=10, wins=2, losses=1, gain=.1, interims=[dict(need=4)]),
     'mean gain +0.100, but 4 more have to go better than worse'),
    (dict(n=0), 'told'), (None, 'told'), ('x', 'told')])
def test_why(gate, words):
    assert why(dict(gate=gate, reason='told')).endswith(words)

def test_prices(tmp_path):
    train(tmp_path/'run', prices={'ruleworld-agent': (1., 1.), 'ruleworld-optimizer': (1., 1.)})
    s = json.loads((tmp_path/'run'/'summary.json').read_text())
    assert s['usd'] > 0 and f'{s["usd"]:.4f} USD' in write_page(tmp_path/'run').read_text()

def test_a_run_that_a_limit_ended(tmp_path):
    train(tmp_path/'run', max_target_calls=450)
    assert '450' in present(tmp_path/'run')['ended']
    assert 'raise max_target_calls' in write_page(tmp_path/'run').read_text()

def test_a_folder_as_1_0_0_left_it(root):
    for p in [*root.rglob('state.json'), *root.rglob('screen.json'), root/'events.jsonl', root/'.lock']:
        p.unlink()
    shutil.rmtree(root/'final_selection_eval')
    for name in ('history.json', 'summary.json', 'runtime_state.json', 'test_eval_best/summary.json'):
        o = json.loads((root/name).read_text())
        for r in o if isinstance(o, list) else [o]:
            for k in ('usage', 'gate', 'reason', 'n_patches_kept', 'usd', 'test_gain',
                      'best_selection_interval', 'best_hash', 'skill_hash'):
                r.pop(k, None)
        (root/name).write_text(json.dumps(o))
    assert present(root)['status'] == 'ended' and 'not measured afresh' in describe_worth(read_run(root))
    assert [n.split(',')[0] for n in finals(root)] == ['selection', 'test', 'test']
    assert skill_at(root, 4)
    assert step_story(root, 1).rows[-1][2]
    assert report(root).count('<h3>Step') == 4

def test_nothing_there(tmp_path):
    assert present(tmp_path/'x')['status'] == 'not begun'
    plot_run(tmp_path/'x').canvas.draw()
    with pytest.raises(FileNotFoundError, match='holds no run'):
        write_page(tmp_path/'x')
    with pytest.raises(ValueError, match='no steps yet'):
        run_browser(tmp_path/'x')
    assert not (tmp_path/'x').exists()

# --- files that are torn, missing or not ours

def files(root):
    return sorted(p for p in root.rglob('*') if p.is_file() and p.name not in ('.lock', 'report.html')
                  and 'step_0001' not in str(p))

@pytest.mark.parametrize('damage', ['gone', 'half', 'noise', 'list', 'folder'])
def test_each_file_may_be_damaged(root, finished, damage, monkeypatch):
    with monkeypatch.context() as m:
        m.setattr('skillrl.viewers.report.as_svg', laid_out)
        damage_each_file(root, damage)
    assert tables(root) == tables(finished) and report(root) == report(finished)

def laid_out(fig, label):
    "Everything in the figure is placed, but no picture written"
    fig.draw_without_rendering()
    return label

def damage_each_file(root, damage):
    "Damage one file after another, show the run each time, and mend the file again"
    drawn = set()
    for p in files(root):
        data = p.read_bytes()
        p.unlink()
        if damage == 'folder':
            p.mkdir()
        elif damage != 'gone':
            p.write_bytes(dict(half=data[:len(data)//2], noise=random.Random(0).randbytes(300),
                               list=b'[1, null, "x", [], {}, {"step": "1"}, {"step": true}]')[damage])
        tables(root)
        if p.name not in drawn:
            report(root), drawn.add(p.name)
        shutil.rmtree(p) if p.is_dir() else p.unlink(missing_ok=True)
        p.write_bytes(data)
    assert len(drawn) > 10

@pytest.mark.parametrize('text', ['['*100_000, '{"a":'*100_000, '', '\0', '{"a": 1} x', '1e999'],
                         ids=range(6))
def test_no_text_is_too_odd(text):
    assert json_of(text, dict) == {} and json_of(text, list) == []

odd = [None, True, 'x', '', [], {}, [1], {'a': 1}, -5, 10**400, float('nan'), float('inf'), 'w'*999, [[]],
       {'interval': 3}, {'interval': ['x', None]}]

def test_any_value_anywhere(root):
    rng = random.Random(3)
    names = ['history.json', 'runtime_state.json', 'summary.json', 'config.json',
             'baseline_selection_eval/summary.json',
             *(f'steps/step_0004/{k}.json'
               for k in ('step_record', 'raw_patches', 'screen', 'edit_apply_report',
                         'selection_eval/results'))]
    whole = {n: (root/n).read_text() for n in [*names, 'events.jsonl']}
    for i in range(200):
        name = rng.choice(names)
        o = json.loads(whole[name])
        at = o
        while True:
            k = rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
            if not at[k] or not isinstance(at[k], (dict, list)) or rng.random() < .3:
                break
            at = at[k]
        at[k] = rng.choice(odd)
        (root/name).write_text(json.dumps(o))
        try:
            tables(root) if i%20 else report(root)
        except Exception as e:
            pytest.fail(f'{name}: {k!r} = {str(at[k])[:60]!r}: {e!r}')
        (root/name).write_text(whole[name])

# --- a run that another process writes

WRITER = """
import sys, time
sys.path.insert(0, sys.argv[2])
from test_dashboard import RuleTarget, train
class Slow(RuleTarget):
    def chat(self, **kw):
        time.sleep(.004)
        return super().chat(**kw)
train(sys.argv[1], epochs=2, target=Slow(seed=2))
"""

def writer(root):
    return subprocess.Popen([sys.executable, '-c', WRITER, str(root), str(Path(__file__).parent)],
                            cwd=Path(__file__).parent.parent)

def state(page):
    return json.loads(urlopen(page.url + 'state.json', timeout=10).read())

def test_a_run_is_followed_while_it_is_written(tmp_path):
    seen, process = [], None
    with Watch(tmp_path/'run') as page:
        assert state(page)['status'] == 'not begun'
        process = writer(tmp_path/'run')
        while process.poll() is None:
            seen.append(state(page))
        end = state(page)
    assert process.returncode == 0 and len(seen) > 20
    made = [len(d['steps']) for d in seen]
    assert made == sorted(made) and len(set(made)) > 3
    assert {'selection', 'rollout'} <= {d['stage'] for d in seen}
    assert {d['status'] for d in seen} <= {'not begun', 'works', 'ended'}
    assert any(d['answers'] for d in seen) and any(d['best']['text'] for d in seen)
    assert end['status'] == 'ended' and end['ended'] == 'All 8 steps were made.' and len(end['steps']) == 8

@pytest.mark.skipif(os.name != 'posix', reason='kills a process as POSIX does')
def test_a_run_that_was_killed(tmp_path):
    process = writer(tmp_path/'run')
    while not present(tmp_path/'run')['steps']:
        time.sleep(.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    d = present(tmp_path/'run')
    assert d['status'] == 'works' and d['quiet'] is not None # Only the silence tells
    log = tmp_path/'run'/'events.jsonl'
    for p in [*(tmp_path/'run').glob('journal_*'), log, tmp_path/'run'/'runtime_state.json']:
        os.utime(p, (time.time() - 500,)*2)
    assert present(tmp_path/'run')['quiet'] >= 499
    assert 'has not ended' in write_page(tmp_path/'run').read_text()
    train(tmp_path/'run', epochs=2)
    assert present(tmp_path/'run')['status'] == 'ended'

def test_looking_takes_no_lock_and_writes_nothing(root):
    before = {p: p.stat().st_mtime_ns for p in root.rglob('*')}
    with Watch(root) as page:
        state(page)
    plot_run(root), finals(root)
    assert {p: p.stat().st_mtime_ns for p in root.rglob('*')} == before
    train(root, epochs=2)

# --- the server

def talk(page, data):
    with socket.create_connection(page.server_address, timeout=10) as c:
        c.sendall(data)
        return b''.join(iter(lambda: c.recv(65536), b''))

def get(page, path='/', host=None, method='GET'):
    host = host or f'127.0.0.1:{page.server_address[1]}'
    return talk(page, f'{method} {path} HTTP/1.0\r\nHost: {host}\r\n\r\n'.encode())

def status(reply):
    return int(reply.split()[1])

@pytest.mark.parametrize('host',
                         ['evil.test', 'evil.test:80', '127.0.0.1.evil.test', 'localhost.evil.test',
                          '0.0.0.0', '[::1]', 'evil.test\r\nHost: localhost', 'localhost\r\nHost: evil.test',
                                  '127.0.0.1:80:80', 'evil.test#127.0.0.1', ' '])
def test_other_hosts_are_refused(root, host):
    with Watch(root) as page:
        for path in ('/', '/state.json'):
            reply = get(page, path, host)
            assert status(reply) == 403 and b'invoice' not in reply

@pytest.mark.parametrize('host', ['localhost', '127.0.0.1', 'localhost:1', '127.0.0.1:65535'])
def test_this_machine_is_answered_through_any_port(root, host):
    with Watch(root) as page:
        assert status(get(page, '/state.json', host)) == 200

@pytest.mark.parametrize('path',
                         ['/config.json', '/../run/config.json', '/best_skill.md', '/%2e%2e/x',
                          '/state.json/', '/state.json?x', 'state.json', 'http://evil.test/', '/.lock',
                          '/\0'])
def test_no_path_is_a_file(root, path):
    with Watch(root) as page:
        assert status(get(page, path)) in (400, 404)

@pytest.mark.parametrize('method', ['POST', 'PUT', 'DELETE', 'HEAD', 'OPTIONS', 'PATCH', 'get'])
def test_only_get(root, method):
    with Watch(root) as page:
        assert status(get(page, method=method)) == 501

@pytest.mark.parametrize('data',
                         [b'nonsense\r\n\r\n', b'GET / HTTP/1.1\r\n\r\n',
                          b'GET / HTTP/9.9\r\nHost: localhost\r\n\r\n',
                          b'GET ' + b'/'*70_000 + b' HTTP/1.1\r\n\r\n',
                                  b'GET / HTTP/1.0\r\n' + b'A: b\r\n'*300 + b'\r\n'], ids=range(5))
def test_bad_bytes_disturb_nobody(root, data, capfd):
    with Watch(root) as page:
        try:
            assert b'invoice' not in (reply := talk(page, data)) and b' 200 ' not in reply.split(b'\r\n')[0]
        except ConnectionError:
            pass # Refused before all was sent
        assert state(page)['status'] == 'ended'
    assert capfd.readouterr() == ('', '')

def test_who_hangs_up_or_says_nothing_disturbs_nobody(root, capfd):
    with Watch(root) as page:
        silent = [socket.create_connection(page.server_address) for _ in range(20)]
        for _ in range(20):
            c = socket.create_connection(page.server_address)
            c.sendall(b'GET / HTTP/1.0\r\nHost: localhost\r\n\r\n')
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b'\1\0\0\0\0\0\0\0')
            c.close()
        assert state(page)['status'] == 'ended'
    for c in silent:
        c.close()
    assert capfd.readouterr() == ('', '')

def test_only_this_machine_and_nothing_is_kept(root):
    before = threading.active_count()
    page = Watch(root)
    assert page.server_address[0] == '127.0.0.1' and page.url in repr(page)
    reply = urlopen(page.url, timeout=10)
    assert reply.headers['Cache-Control'] == 'no-store'
    assert 'frame-ancestors' in reply.headers['Content-Security-Policy']
    assert 'Access-Control-Allow-Origin' not in reply.headers and reply.read().decode() == PAGE
    page.close(), page.close()
    with pytest.raises(URLError):
        urlopen(page.url, timeout=10)
    for _ in range(100):
        if threading.active_count() <= before:
            break
        time.sleep(.01)
    assert threading.active_count() <= before

def test_a_port_that_is_taken(root):
    with Watch(root) as page:
        with pytest.raises(OSError, match='choose another, or 0 for any'):
            Watch(root, page.server_address[1])
    for port in (-1, 70_000):
        with pytest.raises(OSError, match='choose another'):
            Watch(root, port)

# --- in a real browser

@pytest.fixture(scope='module')
def chromium():
    sync = pytest.importorskip('playwright.sync_api',
                               reason='Playwright is not installed: pip install playwright')
    found = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), None)
    if not found:
        pytest.skip('there is no Chromium on this machine: install it to see the pages drawn')
    with sync.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=found,
                                    args=['--no-sandbox', '--disable-gpu', '--disable-background-networking'])
        yield browser
        browser.close()

def opened(browser, url, width):
    "A page and what it complained of or asked others for"
    page, problems = browser.new_page(viewport=dict(width=width, height=800)), []
    page.on('pageerror', lambda e: problems.append(str(e)))
    page.on('console', lambda m: problems.append(m.text) if m.type in ('error', 'warning') else None)
    page.on('request', lambda r: problems.append(r.url) if not r.url.startswith((url, 'data:')) else None)
    page.goto(url)
    return page, problems

def until(page, condition):
    "Wait for `condition`; Playwright's own way to do so is a use of eval, which the page forbids"
    for _ in range(100):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    pytest.fail(f'after 5 s still not: {condition}')

def fits(page):
    return page.evaluate('document.documentElement.scrollWidth <= document.documentElement.clientWidth')

def shot(page, name):
    if folder := os.environ.get('SKILLRL_SHOTS'):
        page.screenshot(path=f'{folder}/{name}.png', full_page=True)

widths = pytest.mark.parametrize('width', [1280, 390])

@widths
def test_the_page_follows_a_run(chromium, tmp_path, width):
    with Watch(tmp_path/'run') as server:
        page, problems = opened(chromium, server.url, width)
        until(page, "document.getElementById('status').textContent == 'waits for the run to begin'")
        seen = []
        class Observed(RuleTarget):
            def chat(self, **kw):
                if self.calls in (30, 450):
                    seen.append(observed(page, f'watch_{width}_{self.calls}'))
                return super().chat(**kw)
        train(tmp_path/'run', epochs=2, target=Observed(seed=2))
        until(page, "document.getElementById('status').textContent.startsWith('ended')")
        seen.append(observed(page, f'watch_{width}_end'))
        assert [s['fits'] for s in seen] == [True]*3 and problems == []
        assert seen[0]['status'] == 'step 0: selection items (rollouts: 60)'
        assert 'rollouts' in seen[1]['status']
        steps = present(tmp_path/'run')['steps']
        measured = sum(s['candidate_gate_score'] is not None for s in steps)
        assert seen[0]['dots'] == 0 < seen[1]['dots'] < seen[2]['dots'] == measured
        assert seen[2]['best'] == (tmp_path/'run'/'best_skill.md').read_text()
        assert all(min(width - 60, 880) <= s['chart']['width'] <= width and s['chart']['height'] >= 200
                   for s in seen)
    until(page, "document.getElementById('status').textContent.startsWith('no answer')")
    page.close()

def observed(page, name):
    "What the page shows after its next look"
    for _ in range(2):
        try:
            with page.expect_response('**/state.json', timeout=5000):
                pass
        except Exception as e:
            pytest.fail(f'the page asks no more: {e!r}') # Which, unlike `e`, no rollout can survive
    shot(page, name)
    def text(id):
        return page.evaluate(f"document.getElementById('{id}').textContent")
    return dict(status=text('status'), best=text('best'), dots=page.locator('#chart circle').count(),
                chart=page.locator('#chart').bounding_box(), fits=fits(page))

@widths
def test_the_report_fits(chromium, finished, width):
    page, problems = opened(chromium, write_page(finished).as_uri(), width)
    shot(page, f'report_{width}')
    assert fits(page) and problems == []
    boxes = [page.locator('.figures svg').nth(i).bounding_box() for i in range(3)]
    assert all(b['width'] > 280 and b['height'] > 150 and b['x'] + b['width'] <= width for b in boxes)
    assert (boxes[0]['y'] == boxes[1]['y']) == (width == 1280)
    page.close()

@widths
def test_hostile_texts_do_nothing_in_a_browser(chromium, tmp_path, width):
    root = poisoned(tmp_path/'run')
    page, problems = opened(chromium, write_page(root).as_uri(), width)
    shot(page, f'hostile_report_{width}')
    assert page.evaluate('window.pwned') is None and fits(page) and problems == []
    page.close()
    (root/'.lock').write_text('1')
    with Watch(root) as server:
        page, problems = opened(chromium, server.url, width)
        until(page, "document.getElementById('best').textContent.includes('pwned')")
        shot(page, f'hostile_watch_{width}')
        assert page.evaluate('window.pwned') is None and fits(page) and problems == []
        assert page.locator('img, pre script').count() == 0
        page.close()
