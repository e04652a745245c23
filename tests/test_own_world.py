"A world that is one file of the user's: the whole loop runs on it by its name"
import json, re, sys
from pathlib import Path
import pytest
from skillrl.config import SkillRLConfig
from skillrl.envs.base import world
from skillrl.training.pipeline import train
from skillrl.training.phases import require_expert

page = Path(__file__).parent.parent/'nbs'/'905_your_own_world.ipynb'
NAME = 'lost_property:LostProperty'
SMALL = {'env.name': NAME, 'env.max_steps': 2, 'env.collect_steps': 3, 'env.episodes': 6, 'env.train_suites': 2,
         'env.test_suites': 1, 'env.test_tasks': 2, 'sft.steps': 1, 'sft.batch_size': 2, 'rl.iterations': 1,
         'rl.tasks_per_iteration': 1, 'rl.group_size': 2, 'evolution.val_tasks': 4, 'evolution.gate_tasks': 1,
         'evolution.validation_interval': 1}

@pytest.fixture
def config(tmp_path, monkeypatch):
    "Settings that play the world of the page, whose file lies in the folder we work in"
    cells = [''.join(c['source']) for c in json.loads(page.read_text(encoding='utf-8'))['cells']]
    parts = [re.sub(r'^%%writefile.*\n', '', c) for c in cells if c.startswith('%%writefile')]
    (tmp_path/'lost_property.py').write_text('\n'.join(parts), encoding='utf-8')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'path', [p for p in sys.path if p])
    monkeypatch.delitem(sys.modules, 'lost_property', raising=False)
    yield SkillRLConfig().merged(SMALL)
    sys.modules.pop('lost_property', None)

def test_a_file_in_the_working_folder_is_found(config):
    assert world(NAME).route('find watch') == 'find_valuables'
    assert world(NAME).router('find hope') == ''

def test_the_whole_loop_runs_in_it(config, tmp_path):
    phases = []
    train(config, tmp_path/'run', step=lambda phase, done, total: phases.append(phase))
    assert list(dict.fromkeys(phases)) == ['collect', 'distill', 'sft', 'rl', 'evolve', 'eval']
    report = (tmp_path/'run'/'report.md').read_text(encoding='utf-8')
    assert 'find_' in report and '| after, evolved bank |' in report

def test_a_world_without_an_expert_stops_before_it_plays(config, tmp_path):
    class Unattended(type(world(NAME))):
        def expert(self, task, rng, trust=1.):
            return None
    sys.modules['lost_property'].Unattended = Unattended
    alone = config.merged({'env.name': 'lost_property:Unattended'})
    with pytest.raises(ValueError, match='set sft.demonstrator to teacher'):
        train(alone, tmp_path/'run')
    assert not (tmp_path/'run'/'trajectories.jsonl').exists()
    office = world(alone.env.name).suites(alone.env)[0][0]
    require_expert(office, alone.merged({'sft.method': 'none'}))
    require_expert(office, alone.merged({'sft.demonstrator': 'teacher'}))
