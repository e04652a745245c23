"What a loop without one of its parts does, and what the benchmark of the parts counts"
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from skillrl.core.config import SkillRLConfig
from skillrl.core.store import JsonlLog, read_json
from skillrl.training.pipeline import train
from skillrl.core.trajectory import Step, Trajectory

sys.path.insert(0, str(Path(__file__).parents[1]/'benchmarks'))
import ablation

TINY = SkillRLConfig().merged({'env.train_suites': 1, 'env.test_suites': 1, 'env.episodes': 3,
                               'env.test_tasks': 3, 'env.max_steps': 6, 'sft.games': 3, 'sft.steps': 2,
                               'rl.iterations': 1, 'rl.tasks_per_iteration': 1, 'rl.group_size': 2,
                               'evolution.validation_interval': 1})
TASK = 'put some mug on shelf.'

def test_each_arm_changes_one_setting_and_the_first_changes_none():
    arms = ablation.ARMS
    assert [len(changed) for changed in arms.values()] == [0] + [1]*(len(arms) - 1)
    assert len({str(SkillRLConfig().merged(changed).to_dict()) for changed in arms.values()}) == len(arms)

def test_without_rl_the_last_condition_is_the_tuned_policy_with_the_evolved_bank(tmp_path):
    path = tmp_path/'run'
    train(TINY.merged(ablation.ARMS['no RL']), path)
    assert {t.metadata['condition'] for t in ablation.last_evaluation(path)} == {'after, evolved bank'}
    assert not (path/'policy').exists()
    assert 'After 0 iterations of GRPO' in (path/'report.md').read_text(encoding='utf-8')
    phases = {d['metadata']['phase'] for d in JsonlLog(path/'trajectories.jsonl').read()}
    assert phases == {'collect', 'evolve', 'eval'}
    assert read_json(path/'state.json')['state']['phase'] == 'done'

def write_run(path, conditions, rounds=()):
    "A run that won, under each condition, the games whose numbers are given"
    log = []
    for condition, won in conditions.items():
        for i in range(4):
            about = dict(phase='eval', condition=condition, split='valid_seen')
            t = Trajectory(f'{condition}{i}', TASK, 'pick', success=i in won, game=f'g{i}', metadata=about)
            log.append(t.to_dict())
    t = Trajectory('c', TASK, 'pick', [Step('', 'look', '', 0)]*3, metadata=dict(phase='collect'))
    path.mkdir(parents=True)
    JsonlLog(path/'trajectories.jsonl').append([*log, t.to_dict()])
    JsonlLog(path/'evolution.jsonl').append(list(rounds))
    return path

def test_seeds_are_paired_each_with_its_own_full_loop(tmp_path, monkeypatch, capsys):
    "Seed 0 loses games 0 and 2 without RL, seed 1 gains game 3: one gained and two lost of eight"
    won = {('full', 0): [0, 1, 2], ('no_rl', 0): [1], ('full', 1): [0], ('no_rl', 1): [0, 3]}
    for (arm, seed), games in won.items():
        write_run(tmp_path/arm/str(seed), {'after, bank': games})
    class Idle(ThreadPoolExecutor):
        def map(self, *args):
            return []
    monkeypatch.setattr(ablation, 'ProcessPoolExecutor', lambda jobs, context: Idle(jobs))
    rows = ablation.ablate(TINY, tmp_path, ['full', 'no RL'], seeds=2)
    counted = [(r['arm'], r['seed'], *r['test']['valid_seen'].values()) for r in rows]
    assert counted == [('full', 0, 3, 4, 0, 0), ('no RL', 0, 1, 4, 0, 2),
                       ('full', 1, 1, 4, 0, 0), ('no RL', 1, 2, 4, 1, 0)]
    ablation.told(rows, 'valid_seen')
    assert '-0.12 [' in capsys.readouterr().out.splitlines()[1]

