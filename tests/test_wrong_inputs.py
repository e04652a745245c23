"Wrong inputs: each is refused in one sentence that says what to do, without a traceback, and nothing changes"

import json, os, re
import pytest
from skillrl.cli.main import main
from skillrl.core.config import SkillRLConfig
from skillrl.skills.bank import SkillBank, version_path
from skillrl.core.runfolder import RunFolder
from skillrl.core.store import data_path

NOBODY = 'http://127.0.0.1:9/v1' # A port at which nothing listens
SKILL = dict(skill_id='a', title='Eggs', principle='Look for egg in fridge 1.', when_to_apply='always')

def lay_out(here):
    "The folder that all cases work in"
    def put(name, text):
        return ((here/name).parent.mkdir(parents=True, exist_ok=True), (here/name).write_text(text))
    bank = SkillBank.load(data_path('sample_bank.json'))
    bank.save(here/'bank.json')
    bank.save(version_path(here/'versions'))
    put('broken.json', '{"rl": ')
    put('key.json', '{"rl": {"groupsize": 8}}')
    put('env.json', '{"env": {"name": "chess"}}')
    put('both.json', '{"model": {"checkpoint": "x", "policy_model_id": "y"}}')
    put('secret.json', '{"model": {"teacher_api_base": "http://me:hunter2@host/v1"}}')
    put('encoder.json', '{"retrieval": {"mode": "embedding", "encoder": "openai"}}')
    put('prices.json', '{"m": 5}')
    put(
        'priced.json',
        json.dumps(
            dict(model=dict(teacher_model_id='m', teacher_api_base=NOBODY, prices=str(here / 'prices.json')))
        ),
    )
    put('stats.json', json.dumps(dict(general_skills=[SKILL | dict(stats=dict(wins='many'))])))
    put('torn.jsonl', '{"id": "a", "task": "b"}\n{"id": "c", "ta')
    put('none.jsonl', '')
    put('stranger.jsonl', '{"shoes": 2}\n')
    put('latin.jsonl', '')
    (here/'latin.jsonl').write_bytes(b'{"task": "caf\xe9", "steps": []}\n')
    put('few.jsonl', '{"question": "Who?", "answers": "I"}')
    put('bare.jsonl', '{"question": "Who?"}')
    put(
        'forms.jsonl',
        '\n'.join(
            json.dumps(dict(question=f'What is {n} and {n + 1} of {"abcdefghijkl"[n]}?', answers=str(n)))
            for n in range(12)
        ),
    )
    put('things/notes.txt', 'nothing of ours')
    put('one/SKILL.md', '---\nname: one\ndescription: d\n---\n')
    with RunFolder(here/'trained', SkillRLConfig().to_dict()) as run:
        run.commit(dict(phase='collect', done=0, versions={}))
    put('odd/config.json', json.dumps(SkillRLConfig().to_dict()))
    put('odd/state.json', '{}')
    put('away/config.json', json.dumps(SkillRLConfig().to_dict()))
    put(
        'away/state.json',
        json.dumps(
            dict(fingerprint='', logs={}, folders=dict(policy='/etc'), state=dict(phase='rl', done=1))),
    )
    put('optimized/config.json', '{"edit_budget": 1}')
    put('optimized/config.json', '{"edit_budget": 4}')
    put('weights/config.json', '{"model_type": "qwen3"}')
    put('weights/model.safetensors', 'these are no weights')
    put('games/valid_seen/a/game.tw-pddl', '{"pddl_problem": 3}')
    put('late.jsonl', '{"id": "a", "task": "b", "steps": [{"observation": 5, "action": "look"}]}\n')

SERVED = ['--policy-model', 'a', '--policy-url', NOBODY, '--teacher', 'b', '--teacher-url', NOBODY]

# What is typed → words that the sentence must have. The first 26 are known defects.
WRONG = {
    # a folder is data
    'train --resume away': 'away',
    'train --resume odd': 'odd',
    'train --resume optimized': 'optimized holds a run of skillrl optimize',
    'optimize --resume trained': 'trained holds a run of skillrl train',
    'train --resume trained --output x': '--output',
    'train --resume trained --seed 5': 'seed',
    'train --output trained': 'trained',
    # servers, models, money
    'train --config secret.json': 'teacher_api_base',
    'train --config priced.json': 'prices.json',
    'train --config both.json': 'policy_model_id',
    'train --config encoder.json': 'names no model',
    'distill --teacher-url URL --trajectories late.jsonl': '--teacher-url needs --teacher',
    'eval --policy-url URL': '--policy-url needs --policy-model',
    'eval --policy x --policy-model y': '--policy-model',
    'optimize --questions forms.jsonl --set max_usd=2 SERVED': 'has no price',
    # data
    'collect --suite kitchen': "'kitchen'",
    'evolve --suite val-000 --skill-bank bank.json': "'val-000'",
    'distill --trajectories none.jsonl': 'none.jsonl',
    'eval --games nowhere': 'nowhere',
    'train --games things': 'things',
    'eval --games games': 'game.tw-pddl',
    'optimize --questions few.jsonl SERVED': 'at least 3',
    'optimize --questions bare.jsonl SERVED': 'bare.jsonl, line 1',
    'train --config env.json': 'chess',
    'train --config key.json': 'rl.group_size',
    'inspect things': 'things',
    # and others
    'train --config nothing.json': 'nothing.json',
    'train --config broken.json': 'broken.json',
    'train --config things': 'things',
    'train --policy nothing': 'nothing',
    'eval --policy weights': 'weights',
    'distill --trajectories nothing.json': 'nothing.json',
    'distill --trajectories torn.jsonl': 'torn.jsonl',
    'distill --trajectories stranger.jsonl': 'stranger.jsonl',
    'distill --trajectories latin.jsonl': 'latin.jsonl',
    'distill --trajectories late.jsonl': 'observation',
    'inspect nothing': 'nothing',
    'inspect stats.json': 'stats',
    'inspect trained --find egg': '--find',
    'inspect bank.json nothing.json': 'nothing.json',
    'sft --skill-bank nothing.json': 'nothing.json',
    'rl --skill-bank things': 'things',
    'evolve --skill-bank bank.json --output versions': 'versions',
    'export one --output x': 'one',
    'export nothing.json --output x': 'nothing.json',
    'optimize --set zzz=1': 'zzz',
    'optimize --set batch_size': 'NAME=VALUE',
    'optimize --set batch_size=x': 'batch_size',
    'optimize nothing.md': 'nothing.md',
    'optimize --teacher t': '--questions or --evals',
    'optimize --questions forms.jsonl --teacher b --teacher-command cat': '--teacher-command',
    'optimize --output trained': 'trained',
    'optimize --questions forms.jsonl --policy-command no-such-agent --teacher-command cat': 'no-such-agent',
    'optimize --resume things': 'things',
    'collect --episodes 0': 'env.episodes is 0',
    'train --seed x': "seed is 'x'",
    'inspect trained --port 70000': '0-65535',
}
UNREAD = {'collect --episodes many': "'many'", 'train --mokc': '--mokc', 'export bank.json': '--output',
          'export bank.json --output x --format pdf': "'pdf'", 'trian': "'trian'", '': 'COMMAND'}


@pytest.fixture(scope='module')
def laid(tmp_path_factory):
    here = tmp_path_factory.mktemp('wrong')
    lay_out(here)
    return here

@pytest.fixture
def here(laid, monkeypatch):
    monkeypatch.chdir(laid)
    for name in [k for k in os.environ if re.search('API_KEY|SKILLRL|OPENAI', k)]:
        monkeypatch.delenv(name)
    return laid

def held(folder):
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() if p.is_file() else None
        for p in sorted(folder.rglob('*'))
        if p.name != '.lock'
    }


def words(line):
    out = []
    for w in line.split():
        out += SERVED if w=='SERVED' else [NOBODY if w=='URL' else w]
    return out

@pytest.mark.parametrize('line', WRONG)
def test_a_wrong_input_gets_one_sentence_and_changes_nothing(here, capsys, line):
    before = held(here)
    assert main(words(line))==1
    out, err = capsys.readouterr()
    said = [l for l in err.strip().splitlines() if not l.startswith('Run folder: ')]
    assert len(said)==1 and said[0].startswith('skillrl: ') and 'Traceback' not in err, err
    assert WRONG[line] in said[0] and 20 < len(said[0]) < 420 and 'hunter2' not in err and not out
    assert re.search(r'[:;,] \w+|\(', said[0]), 'a remedy follows the finding'
    assert held(here)==before

@pytest.mark.parametrize('line', UNREAD)
def test_a_line_that_cannot_be_read_gets_one_sentence(here, capsys, line):
    before = held(here)
    with pytest.raises(SystemExit) as e:
        main(line.split())
    out, err = capsys.readouterr()
    assert (e.value.code == 2 and len(err.strip().splitlines()) == 1 and UNREAD[line] in err
            and '--help' in err and not out)
    assert held(here)==before

def test_there_are_fifty_of_them():
    assert len(WRONG) + len(UNREAD) >= 50 and len(WRONG) >= 50
