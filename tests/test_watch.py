"The page of a training run: while another process writes the run, over damaged files, and in a real browser"
import json, random, shutil, socket, threading, time
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen
import pytest
from skillrl.config import SkillRLConfig
from skillrl.flags import SMOKE
from skillrl.store import JsonlLog, write_json
from skillrl.training.pipeline import train
from skillrl.viewers import live
from skillrl.viewers.loop import last_rows
from skillrl.viewers.replay import Replay, replays
from skillrl.viewers.watch import PARTS, Part, present_loop, watch_run
from test_dashboard import chromium # noqa: F401 (a fixture)
from test_krill import wait_until
from test_dashboard import Tags, fits, hostile, opened, shot, until, widths

SMALL = SMOKE | {'env.train_suites': 1, 'env.test_suites': 1, 'env.episodes': 2, 'env.test_tasks': 1,
                 'sft.games': 1, 'sft.steps': 3, 'rl.iterations': 3, 'rl.tasks_per_iteration': 2,
                 'evolution.test_rounds': 1}

@pytest.fixture(scope='module')
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp('watch')/'kitchen'
    train(SkillRLConfig().merged(SMALL), root)
    return root

@pytest.fixture
def root(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path/'kitchen'))

def ask(page, path):
    return urlopen(page.url + path, timeout=60).read().decode()

def shown(folder):
    "Everything that is served of a run"
    with watch_run(folder) as page:
        state = json.loads(ask(page, 'state.json'))
        return state, {name: ask(page, f'{name}.html') for name in state['parts']}

# ---- a finished run ----

def test_all_parts_of_a_finished_run(finished):
    state, parts = shown(finished)
    assert state['status'] == 'Ended: all phases are done.'
    assert parts.keys() == PARTS.keys()
    assert parts['curves'].count('<svg') == 2
    assert 'after, evolved bank' in parts['result']
    assert 'the bank that changed last' in parts['bank']
    assert parts['episodes'].count('<details><summary>') > 8
    assert 'No server was asked' in parts['spending']

def test_looking_writes_nothing(finished):
    before = {p: p.stat().st_mtime_ns for p in finished.rglob('*')}
    shown(finished)
    assert {p: p.stat().st_mtime_ns for p in finished.rglob('*')} == before

def test_what_rl_learnt_is_what_the_log_says(finished):
    rows = [r for r in JsonlLog(finished/'trajectories.jsonl').read() if r['metadata']['phase'] == 'rl']
    learnt = [step for row in rows for step in row['steps'] if 'advantage' in step]
    metrics = [row for row in JsonlLog(finished/'metrics.jsonl').read() if row['phase'] == 'rl']
    assert len(learnt) == sum(row['rows'] for row in metrics)
    assert all(len(step['token_ids']) == len(step['logprobs']) for step in learnt)
    assert {row['end'] for row in rows} <= {'won', 'lost', 'step limit'}
    assert all((row['end'] == 'won') == row['success'] for row in rows)

def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(FileNotFoundError, match='holds no run to watch'):
        watch_run(tmp_path)

# ---- damaged files, hostile texts ----

# File → the parts that are made from it
FILES = {'metrics.jsonl': ['curves'], 'trajectories.jsonl': ['episodes'], 'evolution.jsonl': ['bank'],
         'report.md': ['result'], 'state.json': [], 'config.json': ['spending']}

@pytest.mark.parametrize('damage', ['gone', 'half', 'noise', 'list', 'folder'])
@pytest.mark.parametrize('name', FILES)
def test_every_file_may_be_damaged(root, name, damage):
    file = root/name
    data = file.read_bytes()
    file.unlink()
    if damage == 'folder':
        file.mkdir()
    elif damage != 'gone':
        odd = b'[1, null]\n{"steps": 3, "metadata": {"suite": "../.."}, "losses": 1, "success": "x"}\n'
        noise = random.Random(0).randbytes(300)
        file.write_bytes(dict(half=data[:len(data)//2], noise=noise, list=odd)[damage])
    for part in FILES[name]:
        _, make, files = PARTS[part]
        assert Part(root, make, files).html()
    assert present_loop(root, {})['status']
    replays(root, 2)

@pytest.mark.parametrize('tail', [b'{"phase": "rl", "succ', b'\n\n', b'\xff\xfe{', b'{"a": 1}'])
def test_a_torn_tail_is_left_out(root, tail):
    whole = last_rows(root/'metrics.jsonl', 99)
    with open(root/'metrics.jsonl', 'ab') as f:
        f.write(tail)
    assert len(whole) == 4
    assert last_rows(root/'metrics.jsonl', 99) == whole

def poison(root):
    "A run whose environment and policy say what a page must not obey"
    log = JsonlLog(root/'trajectories.jsonl')
    row = log.read()[-1] | dict(task=hostile, final_observation=hostile, end=hostile)
    for step in row['steps']:
        step |= dict(observation=hostile, action=hostile, reply=hostile, skills=[hostile], token_ids=None)
    row['metadata'] = dict(phase=hostile, suite=hostile)
    log.append([row]*8)
    bank = next((root/'bank').iterdir())
    last = max(bank.glob('v*.json'))
    d = json.loads(last.read_text())
    d['general_skills'] = [dict(skill_id='gen_666', title=hostile, principle=hostile, when_to_apply=hostile)]
    write_json(last, d)

def test_hostile_texts_stay_text(root):
    poison(root)
    for html in shown(root)[1].values():
        assert not {'script', 'img', 'iframe'} & set(Tags(html.split('<svg')[0]).tags)
    assert 'pwned' in shown(root)[1]['episodes']
    assert '<script' not in Replay(replays(root, 1)[0].trajectory)._repr_html_()

# ---- a run that goes on, in a real browser ----

def test_a_run_is_followed_in_a_browser(chromium, lives, tmp_path):
    write_json(tmp_path/'small.json', {k: v for k, v in SMALL.items()})
    root = tmp_path/'kitchen'
    lives.start('train', '--config', tmp_path/'small.json', '--output', root)
    while not (root/'config.json').exists():
        assert lives.running()
        time.sleep(.05)
    with watch_run(root) as server:
        tabs = {width: opened(chromium, server.url, width) for width in (1280, 390)}
        said = []
        while lives.running():
            for page, _ in tabs.values():
                page.wait_for_timeout(100)
                said.append(page.inner_text('#status'))
        for width, (page, problems) in tabs.items():
            until(page, "document.getElementById('status').textContent.startsWith('Ended')")
            until(page, "document.querySelectorAll('#result table').length == 1")
            page.locator('#episodes > details > summary').first.click()
            page.wait_for_timeout(2500)
            assert page.locator('#episodes > details[open]').count() == 1
            shot(page, f'training_{width}')
            assert page.locator('#curves svg').count() == 2
            assert fits(page) and problems == []
    assert lives.end() == 0
    assert any('rl: ' in s for s in said) and any(s.startswith('At work') for s in said)

@widths
def test_hostile_texts_do_nothing_in_the_browser(chromium, root, width):
    poison(root)
    with watch_run(root) as server:
        page, problems = opened(chromium, server.url, width)
        until(page, "document.getElementById('episodes').textContent.includes('pwned')")
        page.locator('#episodes > details > summary').first.click()
        shot(page, f'hostile_training_{width}')
        assert page.evaluate('window.pwned') is None and fits(page) and problems == []
        page.close()

# ---- readers that die or drip ----

def reader(page):
    return socket.create_connection(page.server_address, timeout=5)

def test_readers_of_a_page_are_bounded_and_the_oldest_goes_first(root, monkeypatch):
    monkeypatch.setattr(live, 'READERS', 4)
    before = threading.active_count()
    with watch_run(root) as page, ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(reader(page)).sendall(b'GET /state.json')
        wait_until(lambda: len(page.readers.came) == 4)
        assert threading.active_count() <= before + 6
        assert json.loads(ask(page, 'state.json'))['name'] == 'kitchen'

def test_a_reader_that_drips_is_let_go(root, monkeypatch):
    monkeypatch.setattr(live, 'REQUEST_SECONDS', .3)
    with watch_run(root) as page, reader(page) as slow:
        began = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() < began + 4:
                slow.sendall(b'G')
                time.sleep(.05)
        assert time.monotonic() < began + 3
        wait_until(lambda: not page.readers.came)
