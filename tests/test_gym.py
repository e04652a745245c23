"""Every world under a name in gymnasium's register, made, seeded and played as gymnasium wants it"""
import subprocess, sys, warnings
import gymnasium as gym
import pytest
import skillrl.envs
from gymnasium.utils.env_checker import check_env
from pathlib import Path
from skillrl.envs.base import world_names
from skillrl.serve.openenv import make_env

PACKAGED = sorted(file.parent.name for file in Path(skillrl.__path__[0]).glob('*/*/world.py'))

def test_every_world_has_a_name():
    assert len(PACKAGED) > 2
    assert set(PACKAGED) <= set(world_names())
    assert [id for id in gym.registry if id.startswith('skillrl/')] == [f'skillrl/{n}-v0' for n in PACKAGED]

def output_of(code):
    return subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout

ORDERS = 'gymnasium as g, skillrl', 'skillrl, gymnasium as g, skillrl.serve.openenv'

@pytest.mark.parametrize('imports', ORDERS)
def test_who_has_gymnasium_knows_the_worlds(imports):
    assert output_of(f'import {imports}; print("skillrl/alfworld-v0" in g.registry)') == 'True\n'

def test_the_package_alone_does_not_import_gymnasium():
    assert output_of('import skillrl, sys; print("gymnasium" in sys.modules)') == 'False\n'

def test_a_name_brings_its_own_import():
    made = 'import gymnasium as g; print(g.make("skillrl:skillrl/alfworld-v0").reset(seed=0)[1]["game"])'
    assert output_of(made).strip() == gym.make('skillrl/alfworld-v0').reset(seed=0)[1]['game']

@pytest.mark.parametrize('name', [name for name in PACKAGED if name != 'mcp']) # It has no games of its own
def test_gymnasium_finds_nothing_wrong(name):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        env = gym.make(f'skillrl/{name}-v0', split='test')
        check_env(env.unwrapped)
        env.reset(seed=1)
        env.step('look') # Passes the checker that `make` puts around it

def test_a_seed_says_which_games_come_in_which_order():
    env, other = gym.make('skillrl/alfworld-v0'), make_env('alfworld')
    def games(env, seed):
        return [env.reset(seed=seed)[1]['game'], *(env.reset()[1]['game'] for _ in range(4))]
    assert games(env, 7) == games(other, 7)
    assert games(env, 7) != games(env, 8)
    assert len(set(games(env, 7))) == 5

def test_a_game_and_a_split_can_be_named():
    env = gym.make('skillrl/alfworld-v0', split='test', max_steps=2)
    assert '/test/' in env.reset(seed=1)[1]['game']
    assert '/train/' in env.reset(options={'split': 'train'})[1]['game']
    first = env.reset(options={'game': 'val-3'})
    assert first == env.reset(seed=5, options={'game': 'val-3'})
    assert [env.step('look')[2:4] for _ in range(3)] == [(False, False), (False, True), (False, True)]

@pytest.mark.parametrize('options, says', [({'split': 'attic'}, "split is 'attic': choose one of collect"),
                                           ({'game': 'attic-3'}, "'attic-3' is not a split and a number")])
def test_what_does_not_exist_cannot_be_played(options, says):
    with pytest.raises(ValueError, match=says):
        make_env('alfworld').reset(options=options)
