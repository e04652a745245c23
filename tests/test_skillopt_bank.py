"SkillOpt on the bank of a household, played by the shipped policy and edited by the offline teacher"

from pathlib import Path
import pytest
from banks import skills
from skillrl import SkillOptConfig, SkillOptTrainer
from skillrl.core.config import SkillRLConfig
from skillrl.envs.base import world
from skillrl.envs.alfworld.households import households
from skillrl.envs.alfworld.world import HouseholdSuite
from skillrl.training.builders import build_policy
from skillrl.skillopt.bank_env import BankEnv
from skillrl.skillopt.bank_env import TeacherOptimizer
from skillrl.skills.bank import SkillBank


def offline_teacher():
    return TeacherOptimizer(world('alfworld').teacher())


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    env = BankEnv(
        HouseholdSuite(households('test', 2)[1]),
        SkillBank(),
        build_policy(SkillRLConfig()),
        sizes=dict(train=8, val=6, test=2),
    )
    config = SkillOptConfig(
        num_epochs=2,
        batch_size=8,
        minibatch_size=8,
        edit_budget=6,
        lr_scheduler='constant',
        workers=1,
        verbose=False,
        eval_test=False,
        out_root=str(tmp_path_factory.mktemp('bank') / 'run'),
    )
    trainer = SkillOptTrainer(config=config, env=env, optimizer_client=offline_teacher(), target_client=None)
    return env, trainer, trainer.train()


def test_a_bank_grows_through_the_gate(run):
    env, trainer, summary = run
    assert summary['total_steps'] == 2 and summary['total_accepts'] >= 1
    bank = env.read((Path(trainer.cfg.out_root) / 'best_skill.md').read_text())
    assert bank.items('active') and all(o.provenance['origin'] == 'document' for o in bank.items('active'))
    assert all(o.principle.startswith(('Look for', 'To ')) for o in skills(bank))


def test_games_of_training_and_of_the_gate_are_not_the_same(run):
    env, *_ = run
    train, val, test = (({i['id'] for i in env.get_items(s)}) for s in ('train', 'val', 'test'))
    assert not train & val and not train & test and not val & test


def test_a_finished_run_plays_no_game_again(run):
    env, trainer, summary = run
    idle = BankEnv(env.suite, env.bank, None, sizes=env.sizes)
    again = SkillOptTrainer(
        config=trainer.cfg, env=idle, optimizer_client=offline_teacher(), target_client=None
    )
    assert again.train() == summary
