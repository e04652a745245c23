"A damaged file is shown without its bad records, or refused in one sentence"

import json
import pytest
from skillrl.cli import main
from skillrl.skills.bank import SkillBank
from skillrl.store import data_path

RATE = dict(mean=.5, low=.2, high=.8, n=12)
ROUND = dict(round=1, suite='s', weak=['cool'], kept=[], refused=[], proposals=[], rates_before={'all': RATE},
             rates_after=None)
BAD = [dict(weak=5), dict(kept=3), dict(refused='no'), dict(proposals=7), dict(proposals=[5]),
       dict(rates_before=[]), dict(rates_before={'all': 3}), dict(rates_before={'all': {'mean': 'a'}}),
       dict(proposals=[dict(gate=5)]), dict(proposals=[dict(gate=dict(wins='a', losses=0, n=1))])]

@pytest.mark.parametrize('wrong', BAD, ids=json.dumps)
def test_the_good_rounds_of_a_damaged_evolution_log_are_shown(tmp_path, capsys, wrong):
    file = tmp_path/'evolution.jsonl'
    file.write_text('\n'.join(map(json.dumps, [ROUND, ROUND | wrong])) + '\n')
    assert main(['inspect', str(file)]) == 0
    out = capsys.readouterr().out
    assert '0.50' in out
    assert '1 record of' in out

def test_a_bank_whose_trajectories_are_null_is_shown(tmp_path, capsys):
    d = SkillBank.load(data_path('sample_bank.json')).to_dict()
    d['general_skills'][0]['provenance'] = dict(trajectories=None)
    (tmp_path/'bank.json').write_text(json.dumps(d))
    assert main(['inspect', str(tmp_path/'bank.json')]) == 0

def test_episodes_whose_steps_are_a_number_are_one_sentence(tmp_path, capsys):
    file = tmp_path/'episodes.json'
    file.write_text(json.dumps([dict(id='a', task_description='b', steps=5)]))
    assert main(['distill', '--trajectories', str(file), '--output', str(tmp_path/'b')]) == 1
    assert 'the field `steps` should be of type list' in capsys.readouterr().err
