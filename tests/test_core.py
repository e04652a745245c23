"Small exact facts of the core. Each was made wrong in a copy of the library, and no other test noticed"
import pytest
from alfworld_pddl import write_game
from skillrl.core.config import SkillRLConfig
from skillrl.envs.alfworld.households import Household
from skillrl.envs.alfworld.world import FolderSuite, HouseholdSuite
from skillrl.envs.base import world
from skillrl.skills.evolution import _weak_categories
from skillrl.core.stats import wilson
from skillrl.training.phases import draw_groups

# ---- which games are played ----

def test_a_group_is_one_task_played_several_times():
    config = SkillRLConfig().merged({'rl.tasks_per_iteration': 4, 'rl.group_size': 3})
    suites, _ = world(config.env.name).suites(config.env)
    groups, _ = draw_groups(suites[:2], {s.name: None for s in suites}, config, 0)
    assert [len({e.game.id for e in group}) for group in groups] == [1]*4
    assert len({group[0].game.id for group in groups}) > 1

@pytest.fixture
def folder(tmp_path):
    "Twelve training games and six to be tested on, as files"
    house = HouseholdSuite(Household('maple'))
    for place, split, n in (('train', 'train', 12), ('valid_seen', 'test', 6)):
        for i, game in enumerate(house.games(split, n)):
            write_game(game, tmp_path/place/f'{i:02}')
    return tmp_path

def test_a_test_is_played_whole_and_training_in_part(folder):
    suite = FolderSuite(str(folder))
    assert len(suite.games('valid_seen', 2)) == len(suite.games('test', 2)) == 6
    assert len(suite.games('train', 2)) == 2

# ---- evidence ----

def test_a_category_is_weak_only_below_the_threshold():
    won = {'heat': (1, 10), 'cool': (3, 10), 'look': (4, 10), 'pick': (9, 10), 'clean': (0, 0)}
    rates = {category: wilson(*counts) for category, counts in won.items()}
    assert _weak_categories(rates, .4) == ['heat', 'cool']
    assert _weak_categories(rates, .2) == ['heat']


