"The whole run as a user meets it: killed, resumed, repeated, and refused with one sentence"
import json, random, signal, time
from dataclasses import replace
from pathlib import Path
import pytest
from alfworld_pddl import write_game
from skillrl.cli.main import main
from skillrl.core.config import SkillRLConfig
from skillrl.envs.alfworld.world import HouseholdSuite
from skillrl.core.tables import row_name
from skillrl.core.store import data_path
from skillrl.skills.bank import Skill, SkillBank
from skillrl.training.pipeline import train

SECRET = 'sk-never-written'
SMALL = dict(env=dict(train_suites=1, test_suites=1, episodes=2, test_tasks=1, max_steps=3),
             sft=dict(games=2, steps=2), rl=dict(iterations=2, tasks_per_iteration=2, group_size=2),
             evolution=dict(validation_interval=2))

def files(folder):
    kept = [p for p in sorted(Path(folder).rglob('*')) if p.is_file() and p.name!='.lock']
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in kept}

@pytest.fixture(scope='module')
def config(tmp_path_factory):
    "File of a run that has all phases and little to do in each"
    path = tmp_path_factory.mktemp('config')/'small.json'
    path.write_text(json.dumps(SMALL))
    return str(path)

@pytest.fixture(scope='module')
def whole(lives, config, tmp_path_factory):
    "A run that nobody stopped, and how long it took"
    folder, t = tmp_path_factory.mktemp('whole')/'run', time.monotonic()
    assert lives.run('train', '--config', config, '--output', folder, OPENAI_API_KEY=SECRET)==0
    return folder, time.monotonic()-t

def play_until(kills, sig, seconds, folder, start, config):
    """Start, stop and resume runs in `folder` until that many were cut off.

    Gives every run that reached its end, and the last one made to."""
    rng, done = random.Random(int(sig)), []
    cut = n = 0
    args = ['--config', config, '--output', str(folder/'0')]
    while cut < kills:
        began, after = time.monotonic(), rng.uniform(.1, .9)*seconds
        finished = start('train', *args, sig=sig, seconds=after)==0
        cut += not finished
        if finished:
            seconds = min(seconds, time.monotonic() - began) # The first run is the slowest
            done, n = [*done, folder/str(n)], n+1
            args = ['--config', config, '--output', str(folder/str(n))]
        elif (folder/str(n)/'config.json').exists():
            args = ['--resume', str(folder/str(n))]
    assert start('train', *args)==0
    return [*done, folder/str(n)]

@pytest.mark.parametrize('sig,kills', [(signal.SIGKILL, 1), (signal.SIGINT, 1)])
def test_killed_and_resumed_to_the_same_bytes(whole, lives, config, tmp_path, sig, kills):
    "A sample of what benchmarks/kills.py does two hundred times"
    folder, seconds = whole
    for run in play_until(kills, sig, seconds, tmp_path, lives.run, config):
        assert files(run)==files(folder)

def test_resuming_a_finished_run_changes_nothing(whole, lives):
    before = files(whole[0])
    assert lives.run('train', '--resume', str(whole[0]))==0
    assert files(whole[0])==before

def test_splits_of_a_run_do_not_meet(whole):
    seen = {}
    for line in (whole[0]/'trajectories.jsonl').read_text().splitlines():
        t = json.loads(line)
        seen.setdefault(t['metadata']['phase'], set()).add(t['game'])
    assert seen.pop('sft') <= seen['collect'] # The expert shows what was collected
    assert all(a.isdisjoint(b) for k,a in seen.items() for l,b in seen.items() if k!=l)
    looks = [json.loads(l) for l in (whole[0]/'evolution.jsonl').read_text().splitlines()]
    assert looks and all(x['rates_before'] for x in looks)

def test_what_rl_learnt_is_what_the_log_says(whole):
    rows, metrics = ([json.loads(l) for l in (whole[0]/f'{name}.jsonl').read_text().splitlines()]
                     for name in ('trajectories', 'metrics'))
    played = [row for row in rows if row['metadata']['phase'] == 'rl']
    learnt = [step for row in played for step in row['steps'] if 'advantage' in step]
    assert len(learnt) == sum(row['rows'] for row in metrics if row['phase'] == 'rl')
    assert all(len(step['token_ids']) == len(step['logprobs']) for step in learnt)
    assert all((row['end'] == 'won') == row['success'] for row in played)

def test_artefacts_hold_no_pickle_and_no_secret(whole):
    held = files(whole[0])
    assert not [n for n,b in held.items() if SECRET.encode() in b or n.endswith(('.pkl', '.pt', '.bin'))]

def sentence(capsys, *argv):
    assert main([str(a) for a in argv])==1
    out, err = capsys.readouterr()
    assert len(err.strip().splitlines())==1, err
    return err

def test_bad_input_gets_one_sentence(tmp_path, capsys):
    def put(name, text):
        (tmp_path/name).write_text(text)
        return tmp_path/name
    skill = dict(skill_id='a', title='Eggs', principle='Look for egg in fridge 1.', when_to_apply='always')
    def bank(name, *skills, **more):
        return put(name, json.dumps(dict(general_skills=skills, **more)))
    twice = bank('twice.json', skill, skill, task_specific_skills={}, common_mistakes=[])
    empty = put('empty.json', '{"general_skills": [], "task_specific_skills": {}}')
    stats = bank('stats.json', skill | dict(stats=dict(wins='many')))
    origin = bank('origin.json', skill | dict(provenance=dict(trajectories=5)))
    removed = bank('removed.json', skill, removed_ids=5)
    broken = put('broken.json', '{"rl": ')
    key = put('key.json', '{"rl": {"groupsize": 8}}')
    torn = put('torn.jsonl', '{"id": "a", "task": "b"}\n{"id": "c", "ta')
    nowhere = 'http://127.0.0.1:9'
    model = dict(teacher_model_id='m', teacher_api_base=f'{nowhere}/v1',
                 prices=str(put('prices.json', '{"m": 5}')))
    prices = put('prices_config.json', json.dumps(dict(model=model)))
    no_file = tmp_path/'none.json'
    x, b, y = (tmp_path/name for name in 'xby')
    cases = [(['train', '--config', broken, '--output', x], 'broken.json'),
             (['train', '--config', key, '--output', x], 'rl.group_size'),
             (['train', '--config', no_file, '--output', x], 'none.json'),
             (['train', '--resume', tmp_path/'no_run'], 'no_run'),
             (['distill', '--trajectories', torn, '--output', b], 'torn.jsonl'),
             (['inspect', twice], "'a'"),
             (['inspect', empty], 'empty.json'),
             (['eval', '--policy', tmp_path/'no_policy'], 'no_policy'),
             (['eval', '--games', tmp_path/'no_games'], 'no_games'),
             (['inspect', stats], '`stats`'),
             (['inspect', origin], '`trajectories`'),
             (['inspect', removed], '`removed_ids`'),
             (['distill', '--trajectories', tmp_path/'t.json', '--teacher-url', f'{nowhere}/v1',
               '--output', b], '--teacher'),
             (['eval', '--policy-url', f'{nowhere}/v1'], '--policy-model'),
             (['export', no_file, '--output', b], 'none.json'),
             (['evolve', '--skill-bank', no_file, '--output', b], 'none.json'),
             (['train', '--config', prices, '--output', y], 'prices.json'),
             (['collect', '--url', nowhere, '--episodes', '1', '--output', tmp_path/'t'], '127.0.0.1:9')]
    for argv, says in cases:
        assert says in sentence(capsys, *argv)
    assert not x.exists() and not b.exists()

BANKS = {name: 0 for name in ('train-000', 'train-001', 'test-000', 'test-001', 'test-002')}
@pytest.mark.parametrize('state,says', [
    *((state, 'is not one that this run') for state in [
        {}, dict(phase='../x', done=0, versions={}), dict(phase=['collect'], done=0, versions={}),
        dict(phase='distill', done='1', versions={}), dict(phase='distill', done=-1, versions={}),
        dict(phase='distill', done=0, versions={'train-000': '../../x'}),
        dict(phase='distill', done=0, versions=[]), dict(phase='eval', done=0, versions={'train-000': 0}),
        dict(phase='eval', done=0, versions=BANKS)]),
    (dict(phase='collect', done=99, versions={}), 'done 99 of 5')], ids=repr)
def test_a_state_that_no_run_has_written_gets_one_sentence(tmp_path, capsys, state, says):
    from skillrl.core.config import SkillRLConfig
    from skillrl.core.runfolder import RunFolder
    small = SkillRLConfig().merged({'env.train_suites': 2, 'env.test_suites': 3})
    with RunFolder(tmp_path/'run', small.to_dict()) as run:
        run.commit(state)
    err = sentence(capsys, 'train', '--resume', tmp_path/'run')
    assert f'{tmp_path}/run/state.json ' in err and says in err and 'start a new run' in err

def test_a_state_that_names_files_of_no_run_gets_one_sentence(tmp_path, capsys):
    from skillrl.core.config import SkillRLConfig
    from skillrl.core.runfolder import RunFolder
    with RunFolder(tmp_path/'run', SkillRLConfig().to_dict()) as run:
        run.log('diary').append([dict(day=1)])
        run.commit(dict(phase='collect', done=0, versions={}))
        run.log('diary').append([dict(day=2)])
    assert "'diary.jsonl'" in sentence(capsys, 'train', '--resume', tmp_path/'run')
    assert (tmp_path/'run'/'diary.jsonl').read_text().count('day') == 2

def test_unsolvable_game_gets_one_sentence(tmp_path, capsys):
    from skillrl.envs.alfworld.households import Household
    game = Household('unsolvable').game('test', 0, 'heat')
    things = tuple(t for t in game.scene.things if t.type != game.goal.thing)
    write_game(replace(game, scene=replace(game.scene, things=things)), tmp_path/'valid_seen')
    assert 'game.tw-pddl cannot be won' in sentence(capsys, 'eval', '--games', tmp_path)

def test_a_run_folder_in_use_is_left_alone(tmp_path, capsys):
    from skillrl.core.runfolder import _FolderLock
    lock = _FolderLock(tmp_path/'run')
    assert 'in use' in sentence(capsys, 'train', '--smoke', '--output', tmp_path/'run')
    lock.close()

def test_the_shipped_base_is_small():
    assert sum(p.stat().st_size for p in data_path('base').rglob('*')) < 4e6

class OwnTeacher:
    def __init__(self):
        self.asked = []

    def distill(self, trajs):
        self.asked.append('distill')
        return [Skill('', 'Doors', 'Open doors.', category=trajs[0].category)]

    def propose(self, bank, failures, evidence, categories, limit):
        self.asked.append('propose')
        return []

def test_a_run_learns_from_a_teacher_of_ones_own_and_goes_on_with_it(tmp_path):
    def teacher(trajs):
        return ['Open doors.']
    config = SkillRLConfig().merged(SMALL)
    train(config, tmp_path/'by_function', teacher=teacher)
    bank = SkillBank.load(tmp_path/'by_function'/'bank'/'test-000')
    assert [o.principle for o in bank.items()] == ['Open doors.']
    def stop(phase, done, total):
        if phase == 'distill':
            raise KeyboardInterrupt
    own = OwnTeacher()
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path/'own', step=stop, teacher=own)
    assert own.asked == ['distill']
    train(None, tmp_path/'own', resume=True, teacher=own)
    assert own.asked[:2] == ['distill']*2 and 'propose' in own.asked

def test_what_is_no_teacher_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match='pass an object with distill and propose, or a function'):
        train(SkillRLConfig(), tmp_path/'run', teacher=[])
    assert not (tmp_path/'run').exists()

def test_a_live_server_can_be_played_and_learned_on(tmp_path, capsys):
    "Krill's protocol, over a real socket, through the commands a user types"
    from skillrl.envs.alfworld.households import Household
    from skillrl.serve.krill import Server
    with Server(HouseholdSuite(Household('train-000')), max_steps=12) as server:
        live = ['--url', server.url]
        assert main(['collect', *live, '--episodes', '6', '--output', str(tmp_path/'t.json')])==0
        assert main(['distill', '--trajectories', str(tmp_path/'t.json'),
                     '--output', str(tmp_path/'b.json')])==0
        assert main(['eval', *live, '--set', 'env.test_tasks=4', '--skill-bank', str(tmp_path/'b.json')])==0
        (tmp_path/'c.json').write_text('{"rl": {"iterations": 1, "tasks_per_iteration": 1, "group_size": 2}}')
        assert main(['rl', *live, '--config', str(tmp_path/'c.json'), '--skill-bank', str(tmp_path/'b.json'),
                     '--output', str(tmp_path/'p')])==0
    assert '6 episodes' in capsys.readouterr().out and (tmp_path/'p'/'model.safetensors').exists()

def test_the_committed_runs_are_of_the_present_loop():
    from skillrl.training.pipeline import _CONDITIONS
    loop, config = json.loads((data_path('loop.json')).read_text()), SkillRLConfig()
    rows = [row_name(', '.join(c), split) for c in _CONDITIONS for split in HouseholdSuite.tests]
    for run in loop['seeds']:
        assert list(run['test']) == rows and len(run['rl']['success']) == config.rl.iterations
        games = config.env.test_suites*config.env.test_tasks
        assert {r['n'] for r in run['test'].values()} == {games}
        tested = [r for r in run['rounds'] if r['half'] == 'test']
        rounds = config.evolution.test_rounds(config.rl.iterations)
        assert [r['suites'] for r in tested] == [config.env.test_suites]*rounds
        assert sum(r['steps'] for r in tested) == run['spent']['evolve']
        decided = sum(r['changed'].get('probation to active', 0) for r in run['rounds'])
        assert decided >= sum(last for _, last in run['banks'].values())
    story = loop['skill']
    assert not story['source']['won'] and story['episode']['won'] and not story['episode_without']['won']
    assert all(list(filter(row['won'].get, row['won'])) in ([], ['after, evolved bank'])
               for row in story['tests'] if row['game'] == story['episode']['id'].split('#')[0])

def test_the_committed_seeds_have_what_the_front_page_draws():
    from skillrl.training.pipeline import _CONDITIONS
    conditions = [', '.join(c) for c in _CONDITIONS]
    for run in json.loads(data_path('learning.json').read_text())['seeds']:
        assert {row_name(c, 'new') for c in [*conditions, 'GRPO without skills']} <= run['test'].keys()
        for points in run['arms'].values():
            steps = [p['steps'] for p in points]
            assert steps == sorted(set(steps)) and all(0 <= p['success'] <= 1 for p in points)
        in_test = [n for phase, n in run['spent'].items() if phase.endswith(' test')]
        assert run['arms']['evolution'][-1]['steps'] == sum(in_test)
