"""One name for one thing.

The words that the glossary has retired stand in no identifier, config key, flag or file name. Prose may use
any word, and the name of a test is a sentence. `python tools/measure.py` looks for them; what it finds is
tried here."""
import ast, importlib
from collections import defaultdict
import pytest
import measure as m
import names
from test_imports import modules

def retired(where, source):
    h = m.Habits()
    m.see_text(where, source, h)
    return [place.split()[-1] for place in h.retired]

HOLD_ONE = ['judge', 'judges', 'build_player', 'PlayerBank', 'twoPlayers', 'live_groups', 'live-groups',
            'Hearings', 'HARM_RATE', '80_players.ipynb', 'policy_for']
HOLD_NONE = ['judged', 'avoid', 'landed', 'display', 'harmless', 'dead_groups', 'playerless']

@pytest.mark.parametrize('name', HOLD_ONE)
def test_a_retired_word_is_found_inside_a_name(name):
    assert len(m.retired_in(name)) == 1

@pytest.mark.parametrize('name', HOLD_NONE)
def test_other_words_may_hold_its_letters(name):
    assert m.retired_in(name) == set()

def test_only_names_count():
    source = """
def test_a_judge(): ...
said = 'judge' # A judge
print(f'judge {said}', '-judge', dict(judge=1))
"""
    assert retired('x.py:', source) == ['judge']
    assert retired('x.py:', source.replace('-judge', '--' + 'judge')) == ['--' + 'judge', 'judge']

def test_a_shelf_is_furniture_in_alfworld():
    assert retired('envs/alfworld/01_scene.ipynb:cell 3:', 'shelf = 1') == []
    assert retired('04_skills.bank.ipynb:cell 3:', 'shelf = 1') == ['shelf']

def test_every_exception_has_a_reason():
    assert all(m.ALLOWED.values())
    assert {word for word, part in m.ALLOWED} <= m.RETIRED

# ---- what a name says ----

CELL = """
_MOST = 2*10
_NAMES = 'a', 'b'
LEAST = 3
def find(rows: list, found: bool, env: Any)->tuple:
    kept = [seen for seen in rows if hasattr(env, 'chat') or getattr(env, rows[0])]
    return kept, found
"""
TREES = {'x.py': ast.parse(CELL)}

def test_a_participle_is_no_name():
    share, places = names.participles(TREES)
    assert sorted(place.split()[-1] for place in places) == ['found', 'kept', 'seen']
    assert share == 3/8

def test_a_private_number_is_a_setting_that_nobody_can_choose():
    assert names.private_numbers(TREES) == ['x.py:2 _MOST']

def test_a_seam_without_a_type_is_any_a_tuple_or_a_name_that_is_asked_for():
    assert names.untyped_seams(TREES) == ['x.py:5 find env', 'x.py:5 find result', 'x.py:6 hasattr chat']

# ---- bounds ----

def test_a_change_may_go_a_little_beyond_what_stands(monkeypatch, capsys):
    monkeypatch.setattr(m, 'STANDING', {'tokens': 1000, 'commands': 15, 'share': .5})
    assert [m.bound_of(name) for name in m.STANDING] == [1030, 16, .515]
    assert not m.report('tokens', 1030, [], False)
    assert m.report('tokens', 1042, [], False)
    assert '12 too many: remove what your change replaces' in capsys.readouterr().out

def test_what_is_never_right_has_no_air():
    assert {m.bound_of(name) for name in m.BOUNDS if not m.BOUNDS[name]} == {0}

# A command is called as the phase that it runs, and every world has its own categories, suites and expert
SHARED = {'cli', 'training.pipeline'}
OF_A_WORLD = {'CATEGORIES', 'OTHER', 'ROUTER', 'official_prompt', 'suites', 'read_hints', 'play_expert'}

def makers_of_names():
    "Exported name → what the modules mean by it, each with the first module that says so"
    makers = defaultdict(dict)
    for module in sorted(modules()):
        if module in SHARED or module.split('.')[0] in SHARED:
            continue
        loaded = importlib.import_module(f'skillrl.{module}')
        for name in loaded.__all__:
            makers[name].setdefault(id(getattr(loaded, name)), module)
    return makers

def test_no_two_modules_export_one_name_for_different_things():
    shared = {name: made.values() for name, made in makers_of_names().items() if len(made) > 1}
    assert shared.keys() <= OF_A_WORLD, shared
