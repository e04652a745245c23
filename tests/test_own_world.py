"A world that is one file of the user's: the whole loop runs on it by its name"
import os, re, sys
import pytest
from faults import FaultServer, said
from skillrl.cli.main import main
from skillrl.core.config import SkillRLConfig
from skillrl.envs.base import world
from skillrl.serve.openenv import make_env
from skillrl.serve.krill import Server
from skillrl.cli.flags import Invocation
from skillrl.core.formats import load_trajectories
from skillrl.core.trajectory import Step, Trajectory
from skillrl.skills.bank import Skill, SkillBank
from skillrl.core.store import read_json, write_json
from skillrl.training.builders import build_teacher
from skillrl.training.phases import learns_from_won

NAME = 'lost_property:LostProperty'
SMALL = {'env': dict(max_steps=2, episodes=6, train_suites=2, test_suites=1, test_tasks=2),
         'sft': dict(games=6, steps=1, batch_size=2),
         'rl': dict(iterations=1, tasks_per_iteration=1, group_size=2),
         'evolution': dict(validation_interval=1)}

@pytest.fixture
def config(tmp_path, monkeypatch):
    "Settings that play the world that `init` writes into the folder we work in"
    monkeypatch.chdir(tmp_path)
    assert main(['init', 'world', 'lost_property']) == 0
    monkeypatch.setattr(sys, 'path', [p for p in sys.path if p])
    monkeypatch.delitem(sys.modules, 'lost_property', raising=False)
    for name in [k for k in os.environ if re.search('API_KEY|SKILLRL|OPENAI', k)]:
        monkeypatch.delenv(name)
    write_json(tmp_path/'small.json', SMALL)
    yield SkillRLConfig().merged(SMALL | {'env.name': NAME})
    sys.modules.pop('lost_property', None)

def test_a_world_is_begun_under_a_name_of_ones_own_and_never_over_a_file(config, capsys):
    assert main(['init', 'world', 'my_shop']) == 0 and 'my_shop:MyShop' in capsys.readouterr().out
    assert world('my_shop:MyShop').name == 'my_shop'
    for name, says in (('my_shop', 'my_shop.py is there already'), ('My-shop', 'give small letters')):
        assert main(['init', 'world', name]) == 1 and says in capsys.readouterr().err

def test_a_file_in_the_working_folder_is_found(config):
    assert world(NAME).route('find watch') == 'find_valuables'
    assert world(NAME).router('find hope') == ''

def skillrl(line, capsys, status=0):
    "What the command line `line` prints, on stderr where it fails"
    assert main(line.split()) == status
    return capsys.readouterr()[status]

def test_the_whole_loop_runs_in_it(config, tmp_path, capsys):
    shown = skillrl(f'train --env {NAME} --config small.json --output run', capsys)
    assert 'Success on test games' in shown and 'after, evolved bank' in ' '.join(shown.split())
    assert read_json(tmp_path/'run'/'config.json')['env']['name'] == NAME
    report = (tmp_path/'run'/'report.md').read_text(encoding='utf-8')
    assert 'find_' in report and '| after, evolved bank |' in report
    played = load_trajectories(tmp_path/'run'/'trajectories.jsonl')
    assert {t.metadata['phase'] for t in played} >= {'collect', 'eval'}
    assert {t.category for t in played} == {'find_valuables', 'find_papers'}
    assert SkillBank.load(tmp_path/'run'/'bank'/'test-0').items()

def test_one_step_after_the_other(config, capsys):
    where = f'--env {NAME} --config small.json'
    assert '6 episodes' in skillrl(f'collect {where} --suite test-0 --episodes 6 --output t.json', capsys)
    assert {t.category for t in load_trajectories('t.json')} <= {'find_valuables', 'find_papers'}
    skillrl(f'distill {where} --trajectories t.json --output bank.json', capsys)
    shown = skillrl(f'eval {where} --suite test-0 --set env.test_tasks=2 --skill-bank bank.json', capsys)
    assert 'no bank' in shown and 'find_' in shown
    assert 'there is no suite' in skillrl(f'eval {where} --suite barn', capsys, 1)

def test_a_chat_policy_is_evaluated_in_it(config, capsys):
    def opens(request):
        prompt = request['body']['messages'][-1]['content']
        assert 'open drawer 1' in prompt and 'Task: find' in prompt
        return said('<think>look</think><action>open drawer 1</action>')
    with FaultServer(rest=opens) as s:
        line = f'eval --env {NAME} --config small.json --suite test-0 --set env.test_tasks=2'
        shown = skillrl(f'{line} --policy-model m --policy-url {s.url}', capsys)
    assert len(s.requests) == 4 and re.search(r'no bank +0\.00', shown)

@pytest.mark.parametrize('name', ['lost_property.py:LostProperty', './lost_property.py:LostProperty'])
def test_a_world_may_be_a_file(config, tmp_path, monkeypatch, name):
    (tmp_path/'elsewhere').mkdir()
    assert world(name).name == 'lost_property'
    monkeypatch.chdir(tmp_path/'elsewhere')
    assert world(f'{tmp_path}/lost_property.py:LostProperty').name == 'lost_property'

@pytest.mark.parametrize('name, says', [
    ('alfwrld', "world 'alfwrld' is unknown: choose one of alfworld, mcp, remote, search, webshop"),
    ('lost_property:Nothing', "has no attribute 'Nothing'"), ('nowhere:World', "No module named 'nowhere'"),
    ('broken:World', 'cannot be loaded: SyntaxError'), ('lost_property:DRAWERS', 'has no suites')])
def test_a_name_that_is_no_world_is_refused_in_one_sentence(config, tmp_path, capsys, name, says):
    (tmp_path/'broken.py').write_text('class World(:')
    told = skillrl(f'train --env {name} --output run', capsys, 1)
    assert says in told and len(told.strip().splitlines()) == 1
    assert not (tmp_path/'run').exists()

@pytest.mark.parametrize('name', ['run/theirs.py:World', 'run.theirs:World'])
def test_a_program_in_a_run_folder_is_not_run_unasked(config, tmp_path, name):
    write_json(tmp_path/'run'/'config.json', {'env': {'name': name}})
    (tmp_path/'run'/'theirs.py').write_text('open("was_run", "w")')
    with pytest.raises(ValueError, match='env.name.*--set'):
        Invocation().settings('run')
    assert not (tmp_path/'was_run').exists()
    write_json(tmp_path/'run'/'config.json', {'env': {'name': NAME}})
    assert Invocation(env=NAME).settings('run').env.name == NAME

def test_a_world_without_an_expert_learns_from_won_episodes(config):
    class Unattended(type(world(NAME))):
        def expert(self, task, rng, trust=1.):
            return None
    sys.modules['lost_property'].Unattended = Unattended
    alone = config.merged({'env.name': 'lost_property:Unattended'})
    office = world(alone.env.name).suites(alone.env)[0][0]
    assert learns_from_won(office, alone) and not learns_from_won(office, config)

def test_a_url_is_played_at_not_passed_over(config, tmp_path, capsys):
    "Where nothing listens, no command claims to have played; where a server does, its games are played"
    nowhere = f'--env {NAME} --config small.json --url http://127.0.0.1:9'
    for line in ('collect --output t.json', 'train --output run'):
        assert 'no server is listening' in skillrl(f'{line} {nowhere}', capsys, 1)
    with pytest.raises(ValueError, match='would be passed over: leave it out'):
        make_env(NAME, url='http://127.0.0.1:9')
    assert not (tmp_path/'t.json').exists()
    with Server(world('alfworld').suite(SkillRLConfig().env)) as s:
        where = f'--env {NAME} --config small.json --url {s.url}'
        skillrl(f'collect {where} --episodes 2 --output t.json', capsys)
    played = load_trajectories('t.json')
    assert len(played) == 2
    assert all(t.category not in ('find_valuables', 'find_papers', '') for t in played)

def test_a_server_of_unknown_kind_is_the_world_remote(config, tmp_path, capsys):
    suite = world('alfworld').suite(SkillRLConfig().env)
    known = {g.category for g in suite.games('collect', 6)}
    with Server(suite) as s:
        where = f'--env remote --url {s.url} --config small.json'
        skillrl(f'collect {where} --episodes 6 --output t.json', capsys)
        skillrl('distill --env remote --trajectories t.json --output bank.json', capsys)
        assert 'no bank' in skillrl(f'eval {where} --set env.test_tasks=1 --skill-bank bank.json', capsys)
    assert {t.category for t in load_trajectories('t.json')} == known
    assert 'give --url' in skillrl('collect --env remote --output t.json', capsys, 1)

def asked(number, product, *answers, won=True):
    "A day at a desk; `answers` are pairs of who was asked and what he owns"
    said = [f'{name} owns: {owned}.' for name, owned in answers]
    seen = [f'You are at the desk. Your task: find the owner of {product}.', *said]
    steps = [Step(before, f'ask {name}') for before, (name, _) in zip(seen, answers)]
    task, game = f'find the owner of {product}', f'day {number}'
    return Trajectory(f'{number}', task, 'general', steps, won, seen[-1], game=game)

def test_a_teacher_without_a_world_mends_what_nothing_lost_asks_for(config):
    first = asked(1, 'login', ('Ivo', 'payroll'), ('Hana', 'login'))
    later = [asked(i, 'payroll', ('Ivo', 'nothing'), ('Cleo', 'payroll')) for i in (2, 3)]
    lost = asked(4, 'wiki', ('Ivo', 'nothing'), ('Ben', 'maps'), won=False)
    wrong = Skill('gen_001', 'Where payroll is kept', 'Look for payroll in Ivo.', 'Always.')
    bank = SkillBank(general_skills=[wrong])
    proposals = build_teacher(config).propose(bank, [lost], [first, *later, lost], ['general'], 5)
    assert ('refine', 'Look for payroll in Cleo.') in [(p.kind, p.item.principle) for p in proposals]
