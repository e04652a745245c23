"""Games written for the original ALFWorld engine, which `.ci/differential` compares with ours.

Longer comparisons run where the material is: `$SKILLRL_CONFORMANCE` holds `alfworld/*.jsonl.gz` with recorded
games, `$ALFWORLD_DATA` the official games."""
import gzip, json, os, random
from dataclasses import replace
from pathlib import Path
import pytest
from alfworld_pddl import pddl_problem
from original_engine import missing_packages
from skillrl.core.config import EnvConfig
from skillrl.envs.alfworld.engine import Engine
from skillrl.envs.alfworld.world import _game_from_pddl, find_games, load_game
from skillrl.envs.alfworld.households import households
from skillrl.envs.alfworld.scene import CATEGORIES, Game, Goal, Thing, build_scene
from skillrl.envs.base import world

ORIGINAL = str(Path(__file__).parents[1]/'tools'/'original_engine.py:OriginalAlfworld')

def again(game):
    "`game`, written as a planning problem and read from it"
    return _game_from_pddl(dict(pddl_problem=pddl_problem(game), task=game.task), game.id)

def told(game, rng, steps):
    "What our engine says to random commands"
    engine = Engine(game)
    said = [engine.reset(), engine.admissible()]
    for _ in range(steps):
        said += [engine.step(rng.choice(engine.admissible())), engine.admissible(), engine.won]
    return said

def same(game, steps=60):
    return told(game, random.Random(0), steps) == told(again(game), random.Random(0), steps)

# ---- games as planning problems ----

@pytest.mark.parametrize('category', CATEGORIES)
def test_a_game_that_was_written_is_read_as_the_same_game(category):
    for house in households('test', 4):
        for game in house.games('test', 2, (category,)):
            assert again(game).goal == game.goal
            assert same(game)

def test_states_doors_floors_and_contents_are_written_too():
    receptacles = [('cabinet', 3, True), ('fridge', 3, True), ('sinkbasin', 7, False)]
    things = [('mug', 'cabinet 1'), ('egg', 'fridge 1'), ('knife', None), ('desklamp', 'cabinet 1')]
    scene = build_scene(receptacles, things, start=7)
    states = dict(
        mug=dict(state=frozenset({'clean', 'hot'}), inside=('egg 1',)),
        egg=dict(state=frozenset({'cool', 'sliced'}), places=('fridge 1', 'cabinet 1'), spots=(3, 7)),
        knife=dict(spots=(3,)), desklamp=dict(state=frozenset({'on'})))
    things = tuple(replace(t, **states[t.type]) for t in scene.things)
    receptacles = tuple(replace(r, open=r.type == 'fridge') for r in scene.receptacles)
    game = Game('g', replace(scene, things=things, receptacles=receptacles), Goal('pick', 'mug', 'cabinet'))
    read = again(game).scene
    rank = {at: n for n, at in enumerate(sorted({3, 7}), 1)} # Locations are counted from 1
    placed = tuple(replace(t, spots=tuple(rank[at] for at in t.spots)) for t in things)
    assert read.things == placed
    assert [(r.name, r.openable, r.open, r.location) for r in read.receptacles] == [
        (r.name, r.openable, r.open, rank[r.location]) for r in receptacles]
    assert (read.start, read.holds) == (rank[7], scene.holds)
    assert same(game)

def test_a_name_that_the_engine_would_not_print_is_refused():
    scene = build_scene([('shelf', 1, False)], [('mug', 'shelf 1')])
    odd = replace(scene, things=(*scene.things, Thing('mug 7', 'mug')))
    with pytest.raises(ValueError, match='would print .mug 2. for .mug 1.'):
        pddl_problem(Game('g', odd, Goal('pick', 'mug', 'shelf')))

def test_the_name_decides_how_a_thing_is_written():
    "One official bathroom has a bathtub's basin in which things are washed as in a sink's"
    scene = build_scene([('bathtubbasin', 1, False), ('sinkbasin', 2, False)], [('cloth', 'bathtubbasin 1')])
    bath, sink = scene.receptacles
    odd = replace(scene, receptacles=(replace(bath, type='sinkbasin'), sink))
    assert same(Game('g', odd, Goal('clean', 'cloth', 'sinkbasin')))

def test_the_types_of_the_rules_are_declared_in_every_room():
    problem = pddl_problem(Game('g', build_scene([('shelf', 1, False)], []), Goal('pick', 'mug', 'shelf')))
    for type in ('sinkbasin', 'microwave', 'fridge'):
        assert f'{type}type - rtype' in problem
    for type in ('knife', 'butterknife'):
        assert f'{type}type - otype' in problem

@pytest.mark.skipif('SKILLRL_CONFORMANCE' not in os.environ,
                    reason='SKILLRL_CONFORMANCE is not set: it should name a folder with recorded games')
def test_recorded_games_survive():
    for file in sorted(Path(os.environ['SKILLRL_CONFORMANCE'], 'alfworld').glob('*.jsonl.gz')):
        with gzip.open(file, 'rt', encoding='utf-8') as f:
            for line in f:
                recorded = json.loads(line)
                assert same(_game_from_pddl(recorded, recorded['id']))

@pytest.mark.skipif('ALFWORLD_DATA' not in os.environ,
                    reason='ALFWORLD_DATA is not set: it should name a folder with official games')
def test_official_games_survive():
    for game in map(load_game, find_games(os.environ['ALFWORLD_DATA'])):
        assert same(game, steps=5), game.id

# ---- the adapter ----

@pytest.mark.skipif(not missing_packages(), reason='the original engine is installed here')
@pytest.mark.parametrize('ask', [lambda w, c: w.suites(c), lambda w, c: w.suite(c)])
def test_without_the_package_a_run_ends_before_it_begins(ask):
    with pytest.raises(ValueError, match=r"no module alfworld.*pip install -e '\.\[alfworld\]'"):
        ask(world(ORIGINAL), EnvConfig())
