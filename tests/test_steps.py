"""Single steps of the loop as a user runs them.

The same bytes on any number of threads, teachers, evolving banks, and what they say."""
import json, random, re
from pathlib import Path
import numpy as np
import pytest, torch
from faults import FaultServer, said
from skillrl.cli.main import main
from skillrl.training.builders import build_policy
from skillrl.core.config import SkillRLConfig
from skillrl.skills.bank import SkillBank, versions
from skillrl.core.store import JsonlLog
from skillrl.training import phases, pipeline
from skillrl.training.evaluate import _describe_difference, describe_evolution
from skillrl.core.formats import load_trajectories
from skillrl.core.trajectory import Trajectory
from skillrl.envs.base import world

SMALL = {'sft': {'steps': 3}, 'rl': {'iterations': 2, 'tasks_per_iteration': 3, 'group_size': 4},
         'evolution': {'validation_interval': 2, 'gate': 'none'}}

@pytest.fixture(scope='module')
def here(tmp_path_factory):
    """Trajectories of one household, a bank distilled from them, an empty one,
    and settings for steps of seconds"""
    here = tmp_path_factory.mktemp('steps')
    (here/'small.json').write_text(json.dumps(SMALL))
    SkillBank().save(here/'empty.json')
    assert main(['collect', '--episodes', '12', '--output', str(here/'t.json')]) == 0
    assert main(['distill', '--trajectories', str(here/'t.json'), '--output', str(here/'bank.json')]) == 0
    return here

@pytest.fixture(scope='module')
def run(tmp_path_factory):
    """The smallest run of the whole loop, the threads around it before and after,
    and those at each of its commits"""
    tiny = {'env.train_suites': 1, 'env.test_suites': 1, 'env.episodes': 4, 'env.test_tasks': 1,
            'env.max_steps': 4, 'rl.tasks_per_iteration': 2, 'rl.group_size': 2}
    path = tmp_path_factory.mktemp('run')/'run'
    before, inside = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        config = SkillRLConfig().merged(SMALL | tiny)
        pipeline.train(config, path, step=lambda *_: inside.append(torch.get_num_threads()))
        return path, torch.get_num_threads(), inside
    finally:
        torch.set_num_threads(before)

def files(folder):
    return {p.name: p.read_bytes() for p in Path(folder).iterdir() if p.is_file()}
def started(here, step, config='small.json'):
    return [step, '--config', str(here/config), '--skill-bank', str(here/'bank.json')]

def test_sft_and_rl_write_the_same_bytes_on_one_thread_and_on_two(here, tmp_path):
    before = torch.get_num_threads()
    once = SMALL['rl'] | {'iterations': 1}
    (here/'once.json').write_text(json.dumps(SMALL | {'rl': once}))
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            for step in ('sft', 'rl'):
                assert main([*started(here, step, 'once.json'), '--output', str(tmp_path/step/str(n))]) == 0
    finally:
        torch.set_num_threads(before)
    for step in ('sft', 'rl'):
        assert files(tmp_path/step/'1') == files(tmp_path/step/'2')

def test_every_step_gives_the_threads_back_and_leaves_the_generators_alone():
    before, inside = torch.get_num_threads(), []
    def states():
        return random.getstate(), tuple(np.random.get_state()[1]), torch.get_rng_state().tolist()
    torch.set_num_threads(2)
    try:
        drawn = states()
        config = SkillRLConfig().merged(SMALL)
        policy = build_policy(config)
        suite = world('alfworld').suites(config.env)[0][0]
        rows = phases.demonstrations(suite, None, config)
        losses = phases.fine_tune(rows, config)[1]
        def each(*_):
            inside.append(torch.get_num_threads())
        logs, _ = phases.train_in_suite(policy, suite, SkillBank(), config, each)
        assert torch.get_num_threads() == 2 and inside == [2, 2] and states() == drawn
        assert len(losses) == config.sft.steps and len(logs) == config.rl.iterations
    finally:
        torch.set_num_threads(before)

def test_a_run_gives_the_threads_back(run):
    assert run[1] == 2 and set(run[2]) == {2}

class Thinker:
    "A teacher behind a server that finds a thought for every step"
    def __init__(self, trajs):
        self.by_task = {t.task: t for t in trajs if t.success}
    def __call__(self, request):
        return said(json.dumps(self.thoughts(request['body']['messages'][-1]['content'])))
    def thoughts(self, text):
        t = next(t for task, t in self.by_task.items() if task in text)
        return [dict(step=i, action=s.action, thought=f'Step {i} gets me closer.')
                for i, s in enumerate(t.steps, 1)]

def test_sft_imitates_won_episodes_with_a_teachers_thoughts(here, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv('SKILLRL_TEACHER_API_KEY', 'none')
    trajs = load_trajectories(here/'t.json')
    won = [t for t in trajs if t.success]
    rows = sum(s.ok for t in won for s in t.steps)
    with FaultServer(rest=Thinker(trajs)) as s:
        assert main([*started(here, 'sft'), '--trajectories', str(here/'t.json'),
                     '--teacher', 'wise', '--teacher-url', s.url, '--output', str(tmp_path/'p')]) == 0
        assert s.count == len(won)
    told = capsys.readouterr().out
    assert f'{rows} rows' in told and f'{len(won)} questions, 0 unanswered' in told
    assert len(JsonlLog(tmp_path/'p.teacher'/'exchanges.jsonl').read()) == len(won)

def test_sft_on_won_episodes_needs_no_teacher_model(here, tmp_path, capsys):
    (tmp_path/'c.json').write_text(json.dumps(SMALL | {'sft': {'steps': 1}}))
    step = ['sft', '--config', str(tmp_path/'c.json'), '--skill-bank', str(here/'bank.json'),
            '--output', str(tmp_path/'p')]
    assert main([*step, '--trajectories', str(here/'t.json')]) == 0
    rows = sum(s.ok for t in load_trajectories(here/'t.json') if t.success for s in t.steps)
    assert f'{rows} rows, ' in capsys.readouterr().out
    assert main([*step, '--trajectories', str(tmp_path/'none.json')]) == 1
    assert 'none.json cannot be used' in capsys.readouterr().err

def test_rl_evolves_its_bank_as_train_does(here, tmp_path, capsys):
    """With an empty bank many games are lost, and with the gate off every proposal stays:
    the look after iteration 2 changes the bank"""
    assert main(['rl', '--config', str(here/'small.json'), '--skill-bank', str(here/'empty.json'),
                 '--trajectories', str(here/'t.json'), '--output', str(tmp_path/'p')]) == 0
    (record,) = JsonlLog(tmp_path/'p.bank'/'evolution.jsonl').read()
    assert record['round'] == 0 and record['kept'] and versions(tmp_path/'p.bank') == [0, 1]
    banks = [SkillBank.load(tmp_path/'p.bank'/f'v{n:04}.json') for n in (0, 1)]
    assert [len(b.items()) for b in banks] == [0, len(record['kept'])]
    n = len(record['kept'])
    told = f'1 evolution round tried {n} proposal{"s"*(n > 1)} and kept {n}, so 1 of 1 bank changed'
    assert told in capsys.readouterr().out

def test_the_report_says_in_words_what_changed(run, capsys):
    path = run[0]
    told = (path/'report.md').read_text().partition('## What changed')[2].partition('## Learning')[0]
    looks = JsonlLog(path/'evolution.jsonl').read()
    asked, kept = (sum(len(r[k]) for r in looks) for k in ('proposals', 'kept'))
    assert re.search(r'Fine-tuning took \d+ demonstration rows in \d+ steps: the loss went from', told)
    assert 'After 2 iterations of GRPO the rows "before, bank" and "after, bank"' in told
    assert f'{len(looks)} evolution round' in told
    assert (f'tried {asked} proposal' if asked else 'found nothing to propose') in told
    if not kept:
        assert 'no bank changed; the rows "after, bank" and "after, evolved bank" win equally often.' in told
    assert main(['inspect', str(path)]) == 0
    out = capsys.readouterr().out
    assert f'{path}/report.md' in out and 'demonstration rows' not in out

@pytest.mark.parametrize('tried,kept,words', [
    ([0, 0], [0, 0], '2 evolution rounds found nothing to propose, so no bank changed'),
    ([1, 0], [0, 0], '2 evolution rounds tried 1 proposal and kept none, so no bank changed'),
    ([2, 1], [1, 1], '2 evolution rounds tried 3 proposals and kept 2, so 2 of 2 banks changed')])
def test_counts_of_evolution_are_singular_and_plural(tried, kept, words):
    records = [dict(suite=f'h{i}', proposals=[{}]*n, kept=['x']*k)
               for i, (n, k) in enumerate(zip(tried, kept))]
    assert describe_evolution(records, 2) == words

def test_equal_rows_are_called_equal_and_small_differences_luck():
    def play(won):
        return [Trajectory(str(i), 't', success=bool(w), game=f'g{i}') for i, w in enumerate(won)]
    results = dict(a=play([0]*20), b=play([0]*20), c=play([1] + [0]*19), d=play([1]*20))
    words = [_describe_difference(results, 'a', k) for k in 'bcd']
    assert [('equally often' in w, 'may be luck' in w) for w in words] == [
        (True, False), (False, True), (False, False)]

def test_a_resumed_run_sends_no_key_to_an_address_that_only_its_folder_names(tmp_path, monkeypatch):
    class Stop(Exception):
        pass
    def stop(*_):
        raise Stop
    with FaultServer() as s:
        small = {'env.train_suites': 1, 'env.test_suites': 1, 'env.episodes': 2}
        teacher = {'model.teacher_model_id': 'wise', 'model.teacher_api_base': s.url}
        config = SkillRLConfig().merged(SMALL | small | teacher)
        config.model.teacher_api_key = 'none'
        with pytest.raises(Stop):
            pipeline.train(config, tmp_path/'run', step=stop)
        monkeypatch.setenv('SKILLRL_TEACHER_API_KEY', 'sk-mine')
        with pytest.raises(ValueError, match=re.escape(s.url)):
            pipeline.train(None, tmp_path/'run', True)
        with pytest.raises(Stop):
            pipeline.train(config.opened([s.url]), tmp_path/'run', True, stop)
