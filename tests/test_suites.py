"Folders of real games: which split a game belongs to, and what a part of a split holds"
import shutil
from collections import Counter
from pathlib import Path
import pytest
from alfworld_pddl import write_game
from skillrl.cli.main import main
from skillrl.envs.alfworld.scene import CATEGORIES
from skillrl.envs.alfworld.households import Household
from skillrl.envs.alfworld.world import FolderSuite, HouseholdSuite

house = HouseholdSuite(Household('maple'))

@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv('COLUMNS', '200') # A narrow terminal gets a column for each row

def write(root, place, game):
    trial = f'trial_{game.id.replace("/", "_")}'
    folder = Path(root)/place/f'{CATEGORIES[game.category]}-Mug-None-Shelf-1'/trial
    write_game(game, folder)

@pytest.fixture
def folder(tmp_path):
    "Thirty training games, and two tests of eighteen"
    root = tmp_path/'alfworld'/'json_2.1.1'
    for place, split, n in (('train', 'train', 30), ('valid_seen', 'val', 18), ('valid_unseen', 'test', 18)):
        for g in house.games(split, n):
            write(root, place, g)
    return root

def test_a_part_of_a_test_is_of_all_categories(folder):
    suite = FolderSuite(str(folder))
    for split in ('valid_seen', 'valid_unseen'):
        for n in (6, 12):
            assert set(Counter(g.category for g in suite.games(split)[:n]).values()) == {n//6}
    again = FolderSuite(str(folder))
    assert [g.id for g in suite.games('valid_seen')] == [g.id for g in again.games('valid_seen')]

def test_a_part_of_the_training_games_is_of_all_categories(folder):
    suite = FolderSuite(str(folder))
    kinds = Counter(g.category for g in suite.games('train'))
    assert len({g.category for g in suite.games('train', len(kinds))}) == len(kinds)

def test_official_tests_are_reported_apart(folder, capsys):
    assert main(['eval', '--games', str(folder), '--set', 'env.test_tasks=6', 'env.max_steps=2']) == 0
    out = capsys.readouterr().out
    rows = [l for l in out.splitlines() if 'no bank' in l]
    assert len(rows) == 2 and 'valid_seen' in rows[0] and 'valid_unseen' in rows[1]
    assert all(l.rstrip().endswith('6') for l in rows)

@pytest.mark.parametrize('where,splits', [
    ('../..', ['valid_seen', 'valid_unseen']), ('..', ['valid_seen', 'valid_unseen']),
    ('valid_seen', ['valid_seen']), ('valid_unseen', ['valid_unseen'])])
def test_games_one_level_too_high_or_low_are_found(folder, where, splits, capsys):
    assert main(['eval', '--games', str(folder/where), '--set', 'env.test_tasks=2', 'env.max_steps=1']) == 0
    rows = [l for l in capsys.readouterr().out.splitlines() if 'no bank' in l]
    assert len(rows) == len(splits) and all(s in l for s, l in zip(splits, rows))

def test_a_folder_without_a_split_says_what_was_looked_for(folder, tmp_path, capsys):
    def says(*argv):
        assert main([str(a) for a in argv]) == 1
        err = capsys.readouterr().err
        assert len(err.strip().splitlines()) == 1
        return err
    smoke = 'train', '--smoke', '--games'
    only_tests = says(*smoke, folder/'valid_seen', '--output', tmp_path/'a')
    assert 'enough training games (train or valid_train)' in only_tests
    no_tests = says(*smoke, folder/'train', '--output', tmp_path/'b')
    assert 'test games (valid_seen or valid_unseen)' in no_tests
    assert 'looked below' in says('eval', '--games', tmp_path/'nothing')
    (tmp_path/'odd').mkdir()
    shutil.copytree(folder/'valid_seen', tmp_path/'odd'/'mine')
    assert 'is in none of them' in says('eval', '--games', tmp_path/'odd')
    shutil.copytree(folder, folder.parent/'json_2.1.2')
    assert 'name one of the two' in says('eval', '--games', folder.parent)
