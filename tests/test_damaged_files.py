"A damaged file is shown without its bad records, or refused in one sentence"

import json, sys
from pathlib import Path
import pytest
from skillrl.cli.main import main
from skillrl.core.formats import load_memories
from skillrl.viewers.inspection import success_table
from skillrl.skills.bank import SkillBank
from skillrl.core.store import data_path

sys.path.insert(0, str(Path(__file__).parents[1]/'benchmarks'))
from fuzz import fuzz  # noqa: E402

RATE = dict(mean=.5, low=.2, high=.8, n=12)
ROUND = dict(round=1, suite='s', weak=['cool'], kept=[], refused=[], proposals=[], rates_before={'all': RATE})
BAD = [dict(weak=5), dict(kept=3), dict(refused='no'), dict(proposals=7), dict(proposals=[5]),
       dict(rates_before=[]), dict(rates_before={'all': 3}), dict(rates_before={'all': {'mean': 'a'}})]

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
    d['common_mistakes'][0]['provenance'] = dict(trajectories=None)
    (tmp_path/'bank.json').write_text(json.dumps(d))
    assert main(['inspect', str(tmp_path/'bank.json')]) == 0

def test_episodes_whose_steps_are_a_number_are_one_sentence(tmp_path, capsys):
    file = tmp_path/'episodes.json'
    file.write_text(json.dumps([dict(id='a', task_description='b', steps=5)]))
    assert main(['distill', '--trajectories', str(file), '--output', str(tmp_path/'b')]) == 1
    assert 'the field `steps` should be of type list' in capsys.readouterr().err

def inspected(capsys, path):
    status = main(['inspect', str(path)])
    said = capsys.readouterr()
    return status, said.out, said.err

def test_a_deeply_nested_first_line_is_one_sentence(tmp_path, capsys):
    (tmp_path/'a.jsonl').write_text('['*100_000 + '\n')
    assert inspected(capsys, tmp_path/'a.jsonl')[0] in (0, 1)

def test_a_setting_too_large_for_a_float_is_named(tmp_path, capsys):
    (tmp_path/'c.json').write_text(json.dumps({'rl': {'learning_rate': 10**400}}))
    assert main(['inspect', str(tmp_path), '--config', str(tmp_path/'c.json')]) == 1
    assert 'rl.learning_rate is' in capsys.readouterr().err

@pytest.mark.parametrize('wrong', [5, None, dict(bad_action=5), dict(trigger_condition=[])])
def test_a_mistake_of_a_memory_that_is_no_text_is_named(tmp_path, wrong):
    content = dict(task_meta=dict(original_goal='b'), refined_trajectory=[],
                   strategic_guidelines=dict(mistakes_to_avoid=[wrong]))
    (tmp_path/'m.json').write_text(json.dumps([dict(memory_id='a', content=content)]))
    with pytest.raises(ValueError, match='mistake|bad_action|trigger_condition'):
        load_memories(tmp_path/'m.json')

def test_a_bank_whose_version_is_null_is_exported_for_krill(tmp_path):
    bank = SkillBank(metadata=dict(version=None))
    assert bank.to_dict('krill')['current_cycle'] == 0

def test_settings_that_are_nested_too_deeply_are_named(tmp_path, capsys):
    (tmp_path/'c.json').write_text('{"a":'*100_000)
    assert main(['inspect', str(tmp_path), '--config', str(tmp_path/'c.json')]) == 1
    assert f"{tmp_path/'c.json'} is not valid JSON" in capsys.readouterr().err

def test_a_report_that_is_not_utf8_is_shown(tmp_path):
    (tmp_path/'report.md').write_bytes(b'## Success\n\n| a |\n|---|\n| \xff |\n\n')
    assert success_table(tmp_path).rows == [['\ufffd']]

def test_damaged_documents_of_every_kind_end_in_a_page_or_a_sentence(tmp_path):
    "A portion of what benchmarks/fuzz.py does five thousand times"
    counts, wrong = fuzz(200, 7, tmp_path)
    assert sum(counts.values()) > 500
    assert not wrong, next(iter(wrong.values()))
