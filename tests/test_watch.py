"The page that follows a run: over damaged files, while another process writes, its server, in a browser"
import os, random, re, shutil, subprocess, sys, threading, time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen
import pytest
from skillrl.cli.main import main
from skillrl.skillopt.ruleworld import RuleWorld
from skillrl.core.formats import load_trajectories
from skillrl.core.store import JsonlLog, data_path, read_json, write_json
from skillrl.viewers.report import write_page
from skillrl.viewers.watch import _SECTIONS, _RunPage, watch_run
from test_dashboard import Tags, hostile, poisoned, train
from test_krill import wait_until

sys.path.insert(0, str(Path(__file__).parents[1]/'benchmarks'))
from fuzz import small_bank, train_run  # noqa: E402

SUCCESS = '## Success\n\n| games | won |\n|---|---|\n| after, evolved bank | 0.50 |\n\n'

@pytest.fixture
def kitchen(tmp_path):
    "A training run that was stopped after its tests"
    train_run(tmp_path/'kitchen', load_trajectories(data_path('sample_trajectories.jsonl'))[:4], small_bank())
    (tmp_path/'kitchen'/'report.md').write_text(SUCCESS)
    return tmp_path/'kitchen'

@pytest.fixture(scope='module')
def document(tmp_path_factory):
    "A finished SkillOpt run"
    root = tmp_path_factory.mktemp('watch')/'document'
    train(root, world=RuleWorld(seed=2, train=20, val=6, test=2))
    return root

@pytest.fixture(params=['kitchen', 'document'])
def either(request):
    return request.getfixturevalue(request.param)

def status(html):
    return re.search('role="status">(.*?)</strong>', html)[1]

def commit(root, **state):
    write_json(root/'state.json', read_json(root/'state.json') | dict(state=state))

# ---- what it says ----

def test_all_sections_of_a_training_run(kitchen):
    html = _RunPage(kitchen).html()
    parts = dict(re.findall('<h2>(.*?)</h2>(.*?)</section>', html, re.S))
    assert status(html) == 'Stopped: rl: 1 of 4 steps.'
    assert [*parts] == [*_SECTIONS]
    assert parts['Learning'].count('<svg') == 1
    assert 'after, evolved bank' in parts['Success on test games']
    assert 'the bank that changed last' in parts['Bank']
    assert parts['Last episodes'].count('<details><summary>') == 4

def test_the_page_of_a_skillopt_run_is_its_report(document):
    page = _RunPage(document)
    html = page.html()
    report = write_page(document).read_text(encoding='utf-8')
    assert status(html) == 'Ended: 2 of 2 steps made.'
    assert report.partition('</h1>')[2].removesuffix('</body></html>') in html
    assert page.html() == html

def test_looking_takes_no_lock_and_writes_nothing(either):
    before = {p: p.stat().st_mtime_ns for p in either.rglob('*')}
    _RunPage(either).html()
    assert {p: p.stat().st_mtime_ns for p in either.rglob('*')} == before

def test_a_run_that_begins(tmp_path):
    with pytest.raises(FileNotFoundError, match='holds no run to watch'):
        watch_run(tmp_path)
    write_json(tmp_path/'config.json', dict(edit_budget=1))
    page = _RunPage(tmp_path)
    assert status(page.html()) == 'Waits for its first step.'
    (tmp_path/'.lock').write_text('1')
    assert status(page.html()) == 'At work: 0 of ? steps made.'

# ---- damaged files, hostile texts ----

@pytest.mark.parametrize('damage', ['gone', 'half', 'noise', 'list', 'folder'])
def test_every_file_may_be_damaged(either, tmp_path, monkeypatch, damage):
    for module in ('report', 'watch'):
        monkeypatch.setattr(f'skillrl.viewers.{module}.figure_html', lambda fig, label: label)
    root = shutil.copytree(either, tmp_path/'damaged')
    page = _RunPage(root)
    whole = page.html()
    odd = b'[1, null, "x", [], {}]\n{"steps": 3, "metadata": {"suite": "../.."}, "losses": 1, "step": true}\n'
    for file in [p for p in root.rglob('*') if p.is_file()]:
        data = file.read_bytes()
        file.unlink()
        if damage == 'folder':
            file.mkdir()
        elif damage != 'gone':
            noise = random.Random(0).randbytes(300)
            file.write_bytes(dict(half=data[:len(data)//2], noise=noise, list=odd)[damage])
        page.times = None
        assert page.html().count('<h2>') == whole.count('<h2>')
        shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
        file.write_bytes(data)
    page.times = None
    assert page.html() == whole

def poison(root):
    "A training run whose environment and policy say what a page must not obey"
    log = JsonlLog(root/'trajectories.jsonl')
    row = log.read()[-1] | dict(task=hostile, final_observation=hostile, end=hostile)
    for step in row['steps']:
        step |= dict(observation=hostile, action=hostile, reply=hostile, skills=[hostile], token_ids=None)
    row['metadata'] = dict(phase=hostile, suite=hostile)
    log.append([row]*8)
    bank, = (root/'bank').glob('*/v*.json')
    skill = dict(skill_id='gen_666', title=hostile, principle=hostile, when_to_apply=hostile)
    write_json(bank, read_json(bank) | dict(general_skills=[skill]))
    commit(root, phase=hostile, done=1, total=2)
    return root

@pytest.fixture(params=['training', 'optimisation'])
def hostile_run(request, tmp_path):
    is_training = request.param == 'training'
    root = poison(request.getfixturevalue('kitchen')) if is_training else poisoned(tmp_path/'run')
    (root/'.lock').write_text('1')
    return root

def test_hostile_texts_stay_text(hostile_run):
    html = _RunPage(hostile_run).html()
    tags = Tags(html).tags
    assert tags.count('script') == 1 and not {'img', 'iframe', 'form', 'a', 'base'} & set(tags)
    assert html.count('window.pwned') > 10 and '<svg onload' not in html

def test_half_a_character_is_shown(kitchen):
    commit(kitchen, phase='\ud800', done=1)
    with watch_run(kitchen) as page:
        assert 'Stopped: ?: begun.' in ask(page)

# ---- a run that another process writes ----

def ask(page):
    return urlopen(page.url, timeout=30).read().decode()

PROGRAM = 'from skillrl.cli.main import main; main()'

def test_a_run_is_followed_while_it_is_written_and_after_it_was_killed(tmp_path, monkeypatch):
    monkeypatch.setattr('skillrl.viewers.report.figure_html', lambda fig, label: '')
    root, told = tmp_path/'run', ''
    optimize = ['optimize', '--output', str(root), '--set', 'num_epochs=4', 'verbose=false']
    write_json(root/'config.json', dict(edit_budget=1))
    with watch_run(root) as page:
        assert status(ask(page)) == 'Waits for its first step.'
        process = subprocess.Popen([sys.executable, '-c', PROGRAM, *optimize])
        while not re.match('At work: [1-9]', told):
            assert process.poll() is None
            told = status(ask(page))
        process.kill()
        process.wait()
        assert status(ask(page)).startswith('At work') # Only the silence tells
        for p in root.rglob('*'):
            os.utime(p, (time.time() - 500,)*2)
        assert 'Nothing was written for 8 minutes' in status(ask(page))
        assert main(optimize) == 0
        assert status(ask(page)) == 'Ended: 8 of 8 steps made.'

# ---- the server ----

def test_nothing_is_kept(document):
    before = threading.active_count()
    page = watch_run(document)
    reply = urlopen(page.url, timeout=10)
    assert reply.headers['Cache-Control'] == 'no-store'
    assert 'frame-ancestors' in reply.headers['Content-Security-Policy']
    assert 'Access-Control-Allow-Origin' not in reply.headers
    page.close(), page.close()
    with pytest.raises(URLError):
        urlopen(page.url, timeout=10)
    wait_until(lambda: threading.active_count() <= before)

# ---- in a real browser ----

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

class Tab:
    "A page, and what it complained of or asked others for"
    def __init__(self, chromium, url, width):
        self.width, self.problems = width, []
        self.page = chromium.new_page(viewport=dict(width=width, height=800))
        self.page.on('pageerror', lambda e: self.problems.append(str(e)))
        self.page.on('console', lambda m: m.type in ('error', 'warning') and self.problems.append(m.text))
        self.page.on('request', lambda r: r.url.startswith((url, 'data:')) or self.problems.append(r.url))
        self.page.goto(url)

    def is_well(self, name):
        if folder := os.environ.get('SKILLRL_SHOTS'):
            self.page.screenshot(path=f'{folder}/{name}_{self.width}.png', full_page=True)
        fits = 'document.documentElement.scrollWidth <= document.documentElement.clientWidth'
        return self.page.evaluate(fits) and self.page.evaluate('window.pwned') is None and self.problems == []

def says(tabs, told):
    from playwright.sync_api import expect
    for tab in tabs:
        expect(tab.page.get_by_role('status')).to_have_text(told)

def test_the_page_follows_a_run(chromium, document, tmp_path):
    root = tmp_path/'run'
    write_json(root/'config.json', dict(edit_budget=1))
    with watch_run(root) as server:
        tabs = [Tab(chromium, server.url, width) for width in (1280, 390)]
        says(tabs, 'Waits for its first step.')
        shutil.copytree(document, root, dirs_exist_ok=True)
        (root/'.lock').write_text('1')
        says(tabs, 'At work: 2 of 2 steps made.')
        (root/'.lock').write_text('')
        says(tabs, 'Ended: 2 of 2 steps made.')
        for tab in tabs:
            assert 'All 2 steps were made.' in tab.page.inner_text('body') and tab.is_well('skillopt')
            box = tab.page.locator('svg').bounding_box()
            assert box['width'] > 280 and box['x'] + box['width'] <= tab.width
    says(tabs, 'No answer: the run is no longer served here.')

def test_what_is_open_stays_open_when_its_section_changes(chromium, kitchen):
    with watch_run(kitchen) as server:
        tab = Tab(chromium, server.url, 1280)
        tab.page.locator('summary', has_text='What it says').click()
        (kitchen/'evolution.jsonl').unlink()
        commit(kitchen, phase='done', versions={})
        says([tab], 'Ended: all phases are done.')
        assert tab.page.locator('details[open]').count() == 1 and tab.is_well('training')

@pytest.mark.parametrize('width', [1280, 390])
def test_hostile_texts_do_nothing_in_a_browser(chromium, hostile_run, width):
    with watch_run(hostile_run) as server:
        tab = Tab(chromium, server.url, width)
        for fold in tab.page.locator('summary').all()[:1]:
            fold.click()
        assert 'pwned' in tab.page.inner_text('body') and tab.is_well(f'hostile_{hostile_run.name}')
