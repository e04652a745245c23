"What a user sees: tables at 80 columns, first lines, the page of flags and settings, the site"
import importlib.util, json
from dataclasses import fields
from pathlib import Path
import pytest
from pages import name_of, pages
from skillrl.cli.main import COMMANDS
from skillrl.core.config import SkillRLConfig
from skillrl.viewers.inspection import table_text
from skillrl.skillopt.settings import SkillOptConfig
from skillrl.core.tables import Table
from skillrl.training.evaluate import describe_gain
from skillrl.core.trajectory import Trajectory

root = Path(__file__).parent.parent
RATE = '0.50 [0.15, 0.85]'
CATEGORIES = 'pick', 'pick_two', 'look', 'clean', 'heat', 'cool'

@pytest.mark.parametrize('columns, names', [(80, 0), (200, 6)])
def test_result_tables_keep_words_whole(monkeypatch, columns, names):
    monkeypatch.setenv('COLUMNS', str(columns))
    head = ['', 'all', *CATEGORIES, 'steps', 'n']
    lines = table_text(Table(head, [['after, evolved bank, new', *[RATE]*7, '12.0', 160]])).splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[0].split() == ['all', *CATEGORIES[:names], 'steps', 'n']
    assert lines[1].startswith('after, evolved bank, new') and lines[1].count(RATE) == 1 + names
    assert lines[2:] == ([] if names else ['(a terminal of 169 columns shows 6 categories too)'])

def played(*won):
    return [Trajectory(str(i), 'task', game=str(i), success=bool(w)) for i, w in enumerate(won)]

@pytest.mark.parametrize('results, told', [
    ({'before, no bank': played(0, 0), 'after, bank': played(0, 0)}, 'Nothing was won in 4 episodes'),
    ({'no bank': played(0, 1)}, '0.50 of the games were won, with nothing to compare it with')])
def test_a_run_that_won_nothing_says_so_first(results, told):
    assert describe_gain(results) == told

def test_one_sentence_says_what_the_loop_gained():
    none, all_of_them = played(*[0]*20), played(*[1]*20)
    rows = {'before, no bank': none, 'before, bank': none, 'after, evolved bank': all_of_them}
    told = '"before, no bank" won 0.00 of its games and "after, evolved bank" 1.00: they differ by +1.00 ['
    assert describe_gain(rows).startswith(told)

# ---- the page of flags and settings ----

def outputs(file):
    cells = json.loads((root/'nbs'/file).read_text(encoding='utf-8'))['cells']
    data = [o.get('data', {}) for c in cells for o in c.get('outputs', ())]
    return '\n'.join(''.join(d.get('text/markdown', '')) for d in data)

def test_one_page_lists_every_command_and_flag():
    page = outputs('cli/05_main.ipynb')
    for command in COMMANDS:
        about = page.partition(f'### skillrl {command.name}\n')[2].partition('\n### ')[0]
        told = [line.split('`')[1].split()[0] for line in about.splitlines() if line.startswith('| `')]
        assert told == list(command.flags), command.name

def test_one_page_lists_every_setting():
    page = outputs('cli/05_main.ipynb')
    paths = [path for path, _, _ in SkillRLConfig().settings()]
    paths += [f.name for f in fields(SkillOptConfig) if f.metadata]
    assert [path for path in paths if f'| `{path}` |' not in page] == []

# ---- the site ----

@pytest.fixture(scope='module')
def site():
    spec = importlib.util.spec_from_file_location('site_tool', root/'tools'/'site.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

def files_in(entry):
    "The pages of a part of the navigation"
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [file for part in parts for file in files_in(part)]

def test_the_navigation_begins_with_what_users_want_to_do(site):
    titles = {p: (name_of(p), p.stem) for p in pages()}
    first, tasks, *wings = site.nav(titles)
    goals = files_in(tasks)
    assert first == 'index.md' and len(goals) == len(site.GOALS)
    names = {f'{name}.md' for name, _ in titles.values()}
    assert sorted(goals + files_in(wings)) == sorted(names - {'index.md'})

def test_the_search_of_the_site_needs_no_server(site):
    "The index lies in a script, and its worker is a file of the site"
    settings = site.yaml.safe_load((root/'mkdocs.yml').read_text(encoding='utf-8'))
    assert 'offline' in settings['plugins']
    assert settings['extra']['polyfills'] == ['iframe-worker.js']
    assert 'http' not in (root/'nbs'/'iframe-worker.js').read_text(encoding='utf-8')
