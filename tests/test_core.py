"Small exact facts of the core. Each was made wrong in a copy of the library, and no other test noticed"
import math, shutil
import pytest, torch
from alfworld_pddl import write_game
from torch.testing import assert_close
from skillrl.core.config import SkillRLConfig
from skillrl.envs.alfworld.households import Household
from skillrl.envs.alfworld.world import _FolderSuite, HouseholdSuite
from skillrl.envs.base import world
from skillrl.llm.tiny import tiny_model, word_tokenizer
from skillrl.skills.evolution import _weak_categories
from skillrl.core.stats import wilson
from skillrl.training.grpo import _clipped_objective, _token_logps
from skillrl.training.phases import draw_groups
from skillrl.training.rl import TrainablePolicy

# ---- the loss ----

def objective(ratio, advantage, **options):
    "Clipped objective of one token whose probability changed by `ratio`"
    lp = torch.tensor([[math.log(ratio)]])
    one, adv = torch.ones(1, 1), torch.tensor([advantage])
    return _clipped_objective(lp, 0*one, adv, one, **options).item()

def test_the_clip_range_may_be_wider_above_than_below():
    wide = dict(epsilon=.2, epsilon_high=.5)
    assert objective(3., 1., **wide) == pytest.approx(1.5)
    assert objective(.6, -1., **wide) == pytest.approx(-.8)

def test_log_probs_are_those_of_the_temperature_they_were_sampled_at():
    logits = torch.tensor([[[1., 3., 0.], [2., 2., 5.]]])
    ids = torch.tensor([[1, 0]])
    expected = torch.stack([(logits[0, 0]/2).log_softmax(-1)[1], (logits[0, 1]/2).log_softmax(-1)[0]])
    assert_close(_token_logps(logits, ids, temperature=2.)[0], expected)

# ---- a policy is its own engine ----

def trained_policy():
    "A tiny policy with one step of its optimizer behind it"
    tokenizer = word_tokenizer('look take mug'.split())
    policy = TrainablePolicy(tiny_model(len(tokenizer), hidden=32), tokenizer)
    learn(policy)
    return policy

def learn(policy):
    "One step towards saying a fixed reply"
    lp, mask = policy.logps([policy.encode('look')], [policy.encode('take mug')])
    (-(lp*mask).sum()).backward()
    policy.step(1e-2)

def weights(policy):
    return {name: p.detach().clone() for name, p in policy.model.named_parameters()}

def test_a_step_leaves_no_gradient_behind():
    policy = trained_policy()
    assert all(p.grad is None or not p.grad.any() for p in policy.model.parameters())

def test_a_saved_policy_goes_on_with_the_moments_of_its_optimizer(tmp_path):
    policy = trained_policy()
    policy.save(tmp_path/'policy')
    again = TrainablePolicy.load(tmp_path/'policy')
    learn(policy)
    learn(again)
    assert_close(weights(again), weights(policy), rtol=0, atol=0)

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
    suite = _FolderSuite(str(folder))
    assert len(suite.games('valid_seen', 2)) == len(suite.games('test', 2)) == 6
    assert len(suite.games('train', 2)) == 2

def test_a_game_that_is_in_two_splits_is_refused(folder):
    shutil.copytree(folder/'train'/'00', folder/'valid_seen'/'copy')
    suite = _FolderSuite(str(folder))
    with pytest.raises(ValueError, match='hold the same game'):
        for split in ('train', 'val', 'gate', 'report', 'test'):
            suite.games(split)

# ---- evidence ----

def test_a_category_is_weak_only_below_the_threshold():
    won = {'heat': (1, 10), 'cool': (3, 10), 'look': (4, 10), 'pick': (9, 10), 'clean': (0, 0)}
    rates = {category: wilson(*counts) for category, counts in won.items()}
    assert _weak_categories(rates, .4) == ['heat', 'cool']
    assert _weak_categories(rates, .2) == ['heat']


def test_the_interval_of_a_rate_is_wilsons_at_95_percent():
    share = wilson(8, 10)
    assert (round(share.low, 4), round(share.high, 4)) == (.4902, .9433)
    assert wilson(0, 20).high == pytest.approx(.1611, abs=1e-4)
