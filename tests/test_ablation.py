"The runs of an ablation, what is kept of each, and how seeds are pooled"
import pytest
from skillrl.ablation import ARMS, ablate, ablation_table, arm_difference, arm_rates, arm_row, arm_runs
from skillrl.ablation import find_arms, last_evaluation, steps_spent
from skillrl.config import SkillRLConfig
from skillrl.evaluate import over_seeds, paired_difference
from skillrl.stats import Rate, paired_interval, wilson
from skillrl.store import JsonlLog, read_json
from skillrl.trajectory import Step, Trajectory

TINY = SkillRLConfig().merged({
    'env.train_suites': 1, 'env.test_suites': 1, 'env.episodes': 3, 'env.test_tasks': 3,
    'env.collect_steps': 6, 'env.max_steps': 6, 'sft.games': 3, 'sft.steps': 2,
    'rl.iterations': 1, 'rl.tasks_per_iteration': 1, 'rl.group_size': 2,
    'evolution.val_tasks': 4, 'evolution.gate_tasks': 2, 'evolution.validation_interval': 1,
    'evolution.test_rounds': 2})
PAIR = ['full', 'no RL']
TASK = 'put some mug on shelf.'

@pytest.fixture(scope='module')
def two_seeds(tmp_path_factory):
    "Folder and rows of two arms with two seeds, which ran side by side"
    folder = tmp_path_factory.mktemp('ablation')
    steps = []
    rows = ablate(TINY, folder, PAIR, seeds=2, jobs=2, step=lambda *step: steps.append(step))
    assert steps[-1] == ('runs', 4, 4)
    return folder, rows

def test_each_arm_changes_one_setting_and_the_first_changes_none():
    assert [len(changed) for changed in ARMS.values()] == [0] + [1]*(len(ARMS) - 1)
    assert len({str(SkillRLConfig().merged(changed).to_dict()) for changed in ARMS.values()}) == len(ARMS)

def test_seeds_count_up_and_every_arm_has_each():
    runs = arm_runs(TINY.merged({'seed': 3}), 'x', PAIR, seeds=2)
    assert [(run.arm, run.config.seed) for run in runs] == [(arm, seed) for seed in (3, 4) for arm in PAIR]
    assert [run.path.as_posix() for run in runs] == ['x/full/3', 'x/no_rl/3', 'x/full/4', 'x/no_rl/4']
    assert [run.config.rl.iterations for run in runs] == [1, 0, 1, 0]

def test_arms_are_found_as_their_folders_are_named():
    assert find_arms('no_rl, full,No SFT,no_rl') == ['no RL', 'full', 'no SFT']
    with pytest.raises(ValueError, match="no arm '': choose from full, no_hierarchy, raw_trajectories"):
        find_arms('full,')

def test_one_after_the_other_is_the_same_as_side_by_side(two_seeds, tmp_path):
    folder, rows = two_seeds
    assert [(row['arm'], row['seed']) for row in rows] == [(arm, seed) for seed in (0, 1) for arm in PAIR]
    alone = ablate(TINY.merged({'seed': 1}), tmp_path, PAIR)
    assert alone == rows[2:]

def test_what_is_there_is_read_and_what_was_stopped_goes_on(two_seeds, tmp_path):
    _, rows = two_seeds
    class Stop(Exception):
        pass
    def stop(what, done, total):
        if what == 'no RL 0, evolve':
            raise Stop
    with pytest.raises(Stop):
        ablate(TINY, tmp_path, PAIR, step=stop)
    before = (tmp_path/'full'/'0'/'state.json').read_bytes()
    steps = []
    again = ablate(TINY, tmp_path, PAIR, step=lambda *step: steps.append(step[0]))
    assert again == rows[:2]
    assert {what.split(',')[0] for what in steps} == {'no RL 0'} and 'no RL 0, distill' not in steps
    assert (tmp_path/'full'/'0'/'state.json').read_bytes() == before

def test_without_rl_the_last_condition_is_the_tuned_policy_with_the_evolved_bank(two_seeds):
    path = two_seeds[0]/'no_rl'/'0'
    assert {t.metadata['condition'] for t in last_evaluation(path)} == {'after, evolved bank'}
    assert read_json(path/'state.json')['state']['phase'] == 'done'
    assert not (path/'policy').exists()
    assert 'After 0 iterations of GRPO' in (path/'report.md').read_text(encoding='utf-8')
    played = JsonlLog(path/'trajectories.jsonl').read()
    assert {d['metadata']['phase'] for d in played} == {'collect', 'evolve', 'eval'}

def test_both_splits_are_counted_and_paired_within_a_seed(two_seeds):
    folder, rows = two_seeds
    full, part = (last_evaluation(folder/arm/'1') for arm in ('full', 'no_rl'))
    for split in ('test', 'new'):
        a, b = ([t for t in played if t.metadata['split'] == split] for played in (full, part))
        counts = rows[3]['test'][split]
        assert (counts['won'], counts['n']) == (sum(t.success for t in b), len(b))
        assert (counts['gained'] - counts['lost'])/counts['n'] == paired_difference(a, b).mean
    lines = ablation_table(rows).rows
    assert [line[0] for line in lines] == ['full', 'no RL', 'full, new', 'no RL, new']

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

def test_the_best_bank_is_the_evolved_one_where_there_is_one(tmp_path):
    first, evolved = {'before, bank': [0, 1, 2], 'after, bank': [0]}, {'after, evolved bank': [0, 1]}
    for name, conditions, won in (('a', first, 1), ('b', first | {'after, wrong bank': []}, 1),
                                  ('c', first | evolved, 2)):
        assert sum(t.success for t in last_evaluation(write_run(tmp_path/name, conditions))) == won

def test_games_of_a_gate_count_and_those_of_trials_are_in_the_log_already(tmp_path):
    records = [dict(rule='probation', steps=50), dict(rule='none', steps=7), dict(rule='sign', steps=20)]
    assert steps_spent(write_run(tmp_path/'run', {'after, bank': []}, records)) == 3 + 7 + 20

def test_a_gate_that_tries_nothing_still_plays(tmp_path):
    rows = ablate(TINY, tmp_path, ['no gate', 'no evolution'])
    records = JsonlLog(tmp_path/'no_gate'/'0'/'evolution.jsonl').read()
    assert records and all(r['steps'] > 0 for r in records)
    assert rows[0]['steps'] - rows[1]['steps'] == sum(r['steps'] for r in records)

@pytest.fixture
def pooled(tmp_path):
    "Two seeds of two arms, by hand: the same games, won by others"
    won = {('full', 0): [0, 1, 2], ('no RL', 0): [1], ('full', 1): [0], ('no RL', 1): [0, 3]}
    runs = arm_runs(TINY, tmp_path, PAIR, seeds=2)
    for run in runs:
        write_run(run.path, {'after, bank': won[run.arm, run.config.seed]})
    first = {run.config.seed: run for run in runs if run.arm == 'full'}
    return runs, [arm_row(run, first[run.config.seed]) for run in runs]

def test_games_of_two_seeds_are_told_apart(pooled):
    "Seed 0 loses games 0 and 2 without RL, seed 1 gains game 3: one gained and two lost of eight"
    expected = Rate(-1/8, *paired_interval(1, 2, 8), 8)
    assert vars(arm_difference(pooled[1], 'no RL', 'valid_seen')) == vars(expected)

def test_success_is_the_mean_over_seeds_and_of_one_seed_that_of_its_games(pooled):
    rows = pooled[1]
    assert vars(arm_rates(rows, 'valid_seen')['full']) == vars(over_seeds([.75, .25]))
    assert vars(arm_rates(rows[:2], 'valid_seen')['full']) == vars(wilson(3, 4))
    assert arm_rates(rows, 'new') == {}

def test_runs_on_other_games_are_not_compared(tmp_path):
    a, b = arm_runs(TINY, tmp_path, PAIR)
    write_run(a.path, {'after, bank': []})
    log = JsonlLog(write_run(b.path, {'after, bank': []})/'trajectories.jsonl')
    other = log.read()[0] | dict(game='g9')
    log.append([other])
    with pytest.raises(ValueError, match='do not hold the same games'):
        arm_row(b, a)
