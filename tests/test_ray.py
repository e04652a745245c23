"Rollouts by the workers of a real Ray cluster on this machine; skipped where Ray is not installed"
import os, signal
from functools import partial
from pathlib import Path
import pytest
from skillrl.skillopt.bank_env import BankEnv
from skillrl.core.concurrency import Journal, ThreadExecutor
from skillrl.core.config import SkillRLConfig
from skillrl.envs.base import world
from skillrl.skillopt.rollout import run_rollout
from skillrl.skillopt.ruleworld import RuleTarget, RuleWorld
from skillrl.skills.bank import Skill, SkillBank

pytest.importorskip('ray', reason='Ray is large and optional: pip install "skillrl-lab[ray]" to test it')
from skillrl.core.concurrency import RayExecutor

@pytest.fixture(scope='module')
def executor():
    import ray
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get('PYTHONPATH', '')])
    found = dict(env_vars=dict(PYTHONPATH=path)) # Jobs of this file, on a worker
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=found)
    yield RayExecutor(2)
    ray.shutdown()

def square(n):
    return n*n

def test_outcomes_in_order_and_each_told_once(executor):
    told = []
    out = executor.run(square, range(6), lambda place, out: told.append((place, out)))
    assert out == [0, 1, 4, 9, 16, 25]
    assert sorted(told) == list(enumerate(out))

def test_an_exception_is_an_outcome(executor):
    out = executor.run(partial(divmod, 1), [1, 0])
    assert out[0] == (1, 0) and isinstance(out[1], ZeroDivisionError)

def test_done_ends_the_run(executor):
    out = executor.run(square, range(50), lambda place, out: True)
    assert 1 <= 50 - out.count(None) <= 3
    with pytest.raises(KeyError):
        executor.run(square, range(50), lambda place, out: {}['x'])

def die_once(folder, n):
    "A job whose worker is killed the first time"
    mark = Path(folder)/f'{n}'
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return n

def test_a_killed_worker_loses_nothing(executor, tmp_path):
    assert executor.run(partial(die_once, str(tmp_path)), [3, 5]) == [3, 5]

def test_rollouts_are_those_of_threads(executor, tmp_path):
    env = RuleWorld(seed=2)
    items = env.get_items('train')[:12]
    def play(executor, name):
        journal = Journal(tmp_path/f'{name}.jsonl')
        results = run_rollout(env, env.get_initial_skill(), items, target_client=RuleTarget(seed=2),
                              executor=executor, journal=journal, seed=3)
        return [r.to_dict() for r in results], len(journal)
    assert play(executor, 'ray') == play(ThreadExecutor(2), 'threads')

def test_tasks_of_a_bank_too(executor):
    "With the shipped weights, which travel to the workers"
    from skillrl.training.builders import build_local_policy
    config = SkillRLConfig().merged({'env.max_steps': 4})
    suite = world(config.env.name).suites(config.env)[0][0]
    bank = SkillBank(general_skills=[Skill('gen_000', 'Closed things', 'Open what is closed.')])
    env = BankEnv(suite, bank, build_local_policy(config), config, dict(train=3))
    items = env.get_items('train')
    def play(executor):
        skill = env.get_initial_skill()
        results = run_rollout(env, skill, items, target_client=None, executor=executor, seed=3)
        return [r.to_dict() for r in results]
    assert play(executor) == play(ThreadExecutor(1))
