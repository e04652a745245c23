"Which games each phase plays: training games, fresh games for each round, test games under the right bank"
from types import SimpleNamespace
import pytest
from alfworld_pddl import write_game
from skillrl.training.builders import build_local_policy
from skillrl.core.config import SkillRLConfig
from skillrl.envs.alfworld.households import Household
from skillrl.envs.base import world
from skillrl.core.runfolder import RunFolder
from skillrl.skills.bank import Skill, SkillBank
from skillrl.training import phases, pipeline
from skillrl.training.phases import _next_games, draw_groups, experience_in
from skillrl.training.pipeline import Pipeline, _bank_shown
from skillrl.core.trajectory import Step, Trajectory

SMALL = {'env.train_suites': 2, 'env.test_suites': 3, 'env.episodes': 4, 'env.test_tasks': 4,
         'rl.tasks_per_iteration': 6, 'rl.group_size': 2, 'evolution.gate': 'none'}
CONFIG = SkillRLConfig().merged(SMALL)

def suites_of(config=CONFIG):
    return world(config.env.name).suites(config.env)

def drawn(suites, config, iterations=4):
    "Ids of the games that some iterations of GRPO play"
    banks = dict.fromkeys(s.name for s in suites)
    groups = [g for i in range(iterations) for g in draw_groups(suites, banks, config, i)[0]]
    return {e.game.id for group in groups for e in group}

@pytest.fixture
def folder(tmp_path):
    "Real games in folders: four to learn from for each of two categories, two to be tested on"
    for split, n in (('train', 20), ('valid_seen', 4), ('valid_unseen', 4)):
        for i in range(n):
            house = Household(f'{split}-{i}')
            write_game(house.game(split, 0, 'pick'), tmp_path/split/f'{i}')
    return tmp_path

def test_training_in_a_folder_of_real_games_draws_from_its_training_files(folder):
    config = CONFIG.merged({'env.games': str(folder)})
    (suite,), _ = suites_of(config)
    learnt, tests = drawn([suite], config), {g.id for s in suite.tests for g in suite.games(s)}
    assert len(learnt) > 3 and len(tests) == 8
    assert learnt <= {suite.game('train', i).id for i in range(len(suite.splits['train']))}
    assert not learnt & tests

def test_games_that_are_won_now_and_then_are_drawn_more_often(folder):
    config = CONFIG.merged({'env.games': str(folder)})
    (suite,), _ = suites_of(config)
    mixed, *others = {suite.game('train', i).task: i for i in range(len(suite.splits['train']))}
    past = [Trajectory(f'{task}#{i}', task, success=task == mixed and i < 4)
            for task in (mixed, *others) for i in range(8)]
    def drawn_of(*past):
        groups = [g for i in range(4) for g in draw_groups([suite], {suite.name: None}, config, i, *past)[0]]
        return sum(group[0].game.task == mixed for group in groups)
    assert drawn_of(lambda suite: past) > 9 > drawn_of() # Of 24; by chance 3
    suite.live = True # A server is not asked for more games than are played
    assert drawn_of(lambda suite: past) == drawn_of() < 9

def test_training_in_a_household_draws_no_test_game():
    train, _ = suites_of()
    learnt = drawn(train, CONFIG)
    assert len(learnt) > 10 and all('/train/' in game for game in learnt)

def ids(some):
    return {g.id for g in some}

def test_every_evolution_round_has_games_of_its_own():
    suite = suites_of()[0][0]
    rounds = [ids(_next_games(suite, 'val', 6, n)) for n in range(3)]
    assert all(rounds) and len(set.union(*rounds)) == sum(map(len, rounds))
    assert not set.union(*rounds) & experience_in(suite, CONFIG, []).held_out

def test_every_split_of_tests_is_held_out():
    suite = suites_of()[0][0]
    tests = [ids(suite.games(split, CONFIG.env.test_tasks)) for split in ('test', 'new')]
    assert experience_in(suite, CONFIG, []).held_out == set.union(*tests) and all(tests)

def test_a_win_after_the_steps_of_a_test_is_no_win_of_a_trial(monkeypatch):
    suite, config = suites_of()[0][0], CONFIG.merged({'env.max_steps': 5})
    def finished(steps):
        t = Trajectory(f'{steps}', 'cool the mug', 'cool', [Step('', '')]*steps, True)
        return SimpleNamespace(done=True, retriever=None, rows=[], experiment=[], trajectory=lambda: t)
    monkeypatch.setattr(phases, '_round_groups', lambda *args: [[finished(4), finished(5), finished(6)]])
    monkeypatch.setattr(phases, 'play_episodes', lambda *args: None)
    played = phases.play_trials(None, [suite], {suite.name: SkillBank()}, config)[suite.name]
    assert [t.success for t in played] == [True, True, False]

def test_the_proven_are_tried_again_in_few_groups():
    suite, config = suites_of()[0][0], CONFIG.merged({'evolution.gate': 'probation'})
    bank = SkillBank([Skill('gen_001', 'Open it', 'Open what is closed.')])
    trials, game = phases._Trials(suite, bank, config), suite.games('val', 1)[0]
    trials.retriever = SimpleNamespace(retrieve=lambda task: SimpleNamespace(ids=['gen_001']))
    groups = [trials.group(game, 2, f'{k}') for k in range(60)]
    assert 1 <= sum(bool(group[0].retriever.tried) for group in groups) <= 14 # Of 60; by a tenth 6

def run_with_banks(path):
    "An open pipeline whose suites have two versions of a bank each, which name suite and version"
    run = RunFolder(path, CONFIG.to_dict())
    p = Pipeline(run)
    for version in (0, 1):
        for name, suite in p.suites.items():
            p.save_bank(suite, SkillBank([Skill('gen_001', f'{name} {version}', 'Open what is closed.')]))
    return p

def title(bank):
    return bank.items()[0].title

def test_each_condition_shows_its_bank(tmp_path):
    p = run_with_banks(tmp_path/'run')
    for i, suite in enumerate(p.test):
        assert _bank_shown(p, 'no bank', i) is None
        assert title(_bank_shown(p, 'bank', i)) == f'{suite.name} 0'
        assert title(_bank_shown(p, 'evolved bank', i)) == f'{suite.name} 1'
        for what, version in (('wrong bank', 0), ('wrong evolved bank', 1)):
            wrong = title(_bank_shown(p, what, i))
            assert wrong.endswith(f' {version}') and wrong.startswith('test') and suite.name not in wrong
    p.run.close()

def test_what_others_measured_is_theirs_alone():
    measured = {'a': {'look': [1], 'open': [2]}, 'b': {'look': [3, 4]}, 'c': {'shut': [5]}}
    assert pipeline._elsewhere(measured, 'a') == {'look': [3, 4], 'shut': [5]}
    assert pipeline._elsewhere(measured, 'b') == {'look': [1], 'open': [2], 'shut': [5]}

@pytest.mark.parametrize('gate, statuses', [('probation', ['active', 'probation']), ('none', ['active'])])
def test_a_bank_begins_on_probation_where_trials_decide(tmp_path, monkeypatch, gate, statuses):
    fresh = SkillBank([Skill('gen_001', 'Doors', 'Open what is closed.')])
    monkeypatch.setattr(pipeline, 'write_bank', lambda *args: fresh)
    with RunFolder(tmp_path/'run', CONFIG.merged({'evolution.gate': gate}).to_dict()) as run:
        p = Pipeline(run)
        pipeline.distill(p)
        for suite in p.suites.values():
            versions = range(p.state['versions'][suite.name] + 1)
            assert [p.bank(suite, n).items()[0].status for n in versions] == statuses

class Saved:
    def __init__(self, name):
        self.name = name
    def save(self, folder):
        (folder/'name').write_text(self.name)

def test_after_is_the_policy_that_rl_left_and_before_is_the_fine_tuned_one(tmp_path, monkeypatch):
    from skillrl.llm import adapter
    monkeypatch.setattr(adapter, 'load_policy', lambda folder, placement: (folder/'name').read_text())
    p = run_with_banks(tmp_path/'run')
    for folder, name in (('reference', 'tuned'), ('policy', 'learnt')):
        with p.run.folder(folder) as place:
            Saved(name).save(place)
        p.run.commit(p.state)
    assert (p.policy('before'), p.policy('after')) == ('tuned', 'learnt')
    played = []
    monkeypatch.setattr(pipeline, 'play_episodes', lambda policy, *a, **kw: played.append(policy) or [])
    for when in ('before', 'after'):
        pipeline._play_condition(p, when, 'no bank', 'test')
    assert played == ['tuned', 'learnt']
    p.run.close()

def test_without_rl_both_are_the_fine_tuned_policy(tmp_path, monkeypatch):
    from skillrl.llm import adapter
    monkeypatch.setattr(adapter, 'load_policy', lambda folder, placement: (folder/'name').read_text())
    p = run_with_banks(tmp_path/'run')
    with p.run.folder('reference') as place:
        Saved('tuned').save(place)
    p.run.commit(p.state)
    assert p.policy('after') == p.policy('before') == 'tuned'
    p.run.close()

EVERY = {'evolution.validation_interval': 1}

@pytest.mark.parametrize('iterations,tries', [(0, 2), (3, 1)])
def test_without_rl_rounds_in_test_suites_try_what_nobody_else_has(tmp_path, monkeypatch, iterations, tries):
    config = CONFIG.merged({'evolution.gate': 'probation', 'rl.iterations': iterations} | EVERY)
    asked = []
    monkeypatch.setattr(pipeline, 'play_trials', lambda *args: asked.append(args[4:6]) or {})
    monkeypatch.setattr(Pipeline, 'evolve_suite', lambda *args: None)
    monkeypatch.setattr(Pipeline, 'policy', lambda *args: None)
    monkeypatch.setattr(Pipeline, 'bank', lambda *args: SkillBank())
    with RunFolder(tmp_path/'run', config.to_dict()) as run:
        pipeline.evolve(Pipeline(run))
    assert asked[0] == (iterations, tries) and {said[1] for said in asked} == {tries}

def test_tries_that_look_around_are_sent_each_elsewhere_and_where_nobody_was():
    config = CONFIG.merged({'evolution.gate': 'probation', 'env.test_tasks': 8})
    suite, bank = suites_of(config)[0][0], SkillBank()
    suite.house = Household(suite.name, preconditions=False) # Else some are told what to try instead
    past = phases.collect_games(build_local_policy(config), suite, config)
    reader = world('alfworld').teacher().reader
    known = {(reader.room(t), place) for t in past for place in reader.found(t)}
    groups = list(phases._round_groups(suite, bank, config, 0, 1, past))
    assert [len(group[0].skills) for group in groups] == [0, 0, 0, 3, 0, 3, 0, 3]
    sent = [(frozenset(e.memory.receptacles), line.partition(' in ')[2].rstrip('.'))
            for e in (groups[3][0], groups[5][0]) for line in e.skills]
    assert len(set(sent)) == 6 and not known & set(sent)
    explore = world('alfworld').explorer([])
    lines = [line for _ in range(3) for line in explore(groups[3][0])]
    assert len(set(lines)) == 9

def test_what_a_bank_says_in_other_words_is_no_experiment(monkeypatch):
    config = CONFIG.merged({'evolution.gate': 'probation'})
    said = dict(kind='before', about='heat', value='open microwave 1')
    skill = Skill('a', 'Open it', 'See to it that microwave 1 is open.', category='heat', fact=said)
    suite = suites_of(config)[0][0]
    monkeypatch.setattr(type(world('alfworld')), 'experimenter', lambda self, played, said: said)
    assert phases._experimenter(suite, SkillBank([], dict(heat=[skill])), config, []) == {
        'See to it that microwave 1 is open.', 'Before heat: open microwave 1.'}

class Recorded:
    "A suite that notes which games it was asked for"
    def __init__(self, suite):
        self.suite, self.asked = suite, []
    def __getattr__(self, name):
        return getattr(self.suite, name)
    def games(self, split, n):
        self.asked += [g.id for g in self.suite.games(split, n)]
        return self.suite.games(split, n)

def test_the_expert_demonstrates_as_many_games_as_asked_for_however_few_are_collected():
    config = CONFIG.merged({'sft.games': 7, 'env.episodes': 2})
    suite = Recorded(suites_of()[0][0])
    rows = phases.demonstrations(suite, None, config)
    assert suite.asked == [g.id for g in suite.suite.games('collect', 7)] and len(rows) >= 7

def test_a_folder_with_fewer_games_demonstrates_all_that_are_no_test_and_no_evolution_game(folder):
    config = CONFIG.merged({'env.games': str(folder), 'sft.games': 99})
    (suite,), _ = suites_of(config)
    asked = Recorded(suite)
    assert phases.demonstrations(asked, None, config)
    assert asked.asked == [g.id for g in suite.games('collect')] and 0 < len(asked.asked) < 20

def test_the_learning_rate_falls_in_the_second_half():
    config = CONFIG.merged({'rl.iterations': 4, 'rl.learning_rate': .001})
    rates = []
    class Trainer:
        def iterate(self, groups, seed, limits):
            rates.append(self.config.learning_rate)
            return {}
    suites = suites_of(config)[0][:1]
    assert len(list(phases.rl_iterations(Trainer(), suites, lambda suite: None, config, range(5)))) == 5
    assert rates == pytest.approx([.001, .001, .001, .0005, 0])
