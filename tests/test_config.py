"Config files as people write them: every key Krill knows, every way a value can be wrong, and no secret on disk"
import json
import pytest
from skillrl.config import SkillRLConfig, load_config

krill = {
    'sft': dict(learning_rate=1e-4, batch_size=16, epochs=3),
    'rl': dict(learning_rate=1e-6, batch_size=64, group_size=8, kl_coeff=0.01, clip_epsilon=0.2, invalid_action_penalty=0.1,
               max_prompt_length=6000, max_response_length=1024, training_epochs=150),
    'skill_retrieval': dict(top_k=6, similarity_threshold=0.3),
    'evolution': dict(validation_interval=5, max_new_skills=3, evolution_threshold=0.4, max_analysis_deep=10, max_analysis_shallow=5),
    'model': {f'{who}_{what}': '' if what=='api_key' else f'{who}-{what}' for who in ('policy', 'teacher', 'embedding')
              for what in ('api_base', 'model_id', 'api_key')}}

@pytest.fixture
def write(tmp_path):
    def write(txt, name='c.json'):
        (tmp_path/name).write_text(txt if isinstance(txt, str) else json.dumps(txt))
        return tmp_path/name
    return write

def test_every_key_of_krill_arrives(write):
    cfg = load_config(write(krill))
    assert (cfg.rl.iterations, cfg.rl.tasks_per_iteration, cfg.rl.learning_rate)==(150, 8, 1e-6)
    assert (cfg.model.max_prompt_tokens, cfg.model.max_new_tokens)==(6000, 1024)
    assert (cfg.retrieval.similarity_threshold, cfg.evolution.evolution_threshold)==(0.3, 0.4)
    assert (cfg.sft.epochs, cfg.sft.steps)==(3, 0)
    assert cfg.model.teacher_model_id=='teacher-model_id'

@pytest.mark.parametrize('section', krill)
def test_a_part_of_krills_file_will_do(write, section):
    assert load_config(write({section: krill[section]})).seed==0

@pytest.mark.parametrize('path,_,f', list(SkillRLConfig().settings()))
def test_every_setting_refuses_nonsense_by_name(path, _, f):
    for bad in (None, [], {'a': 1} if f.type is str else "nonsense", 2 if f.type is bool else True):
        with pytest.raises(ValueError) as e: SkillRLConfig().merged({path: bad})
        assert path in str(e.value) and '\n' not in str(e.value)

@pytest.mark.parametrize('txt,says', [
    ('', 'not valid JSON'), ('{"rl": ', 'not valid JSON'), ('[]', 'holds a list'), ('{"rl": []}', 'no setting rl'), ('{"rl": null}', 'no setting rl'),
    ('{"rll": {"group_size": 8}}', 'did you mean rl.group_size'), ('{"rl": {"groupsize": 8}}', 'did you mean rl.group_size'),
    ('{"rl": {"group_size": 1}}', 'at least 2'), ('{"rl": {"learning_rate": 0}}', 'above 0'), ('{"rl": {"learning_rate": NaN}}', 'a number above 0'),
    ('{"rl": {"batch_size": "x"}}', 'rl.batch_size'), ('{"skill_retrieval": {"topk": 6}}', 'did you mean retrieval.top_k'),
    ('{"evolution": {"evolution_threshold": 40}}', 'at most 1'), ('{"seed": -1}', 'at least 0')])
def test_bad_files_get_one_sentence(write, txt, says):
    with pytest.raises(ValueError, match=says) as e: load_config(write(txt))
    assert '\n' not in str(e.value)

@pytest.mark.parametrize('txt', ['rl: [', 'a: b: c', '\t- x'])
def test_bad_yaml_gets_one_sentence(write, txt):
    with pytest.raises(ValueError, match='not valid YAML') as e: load_config(write(txt, 'c.yaml'))
    assert '\n' not in str(e.value)

def test_empty_yaml_is_the_default(write):
    assert load_config(write('', 'c.yml')).to_dict()==load_config().to_dict()

def test_no_secret_is_written(write, monkeypatch):
    monkeypatch.setenv('OPENAI_API_KEY', 'sk-environment')
    cfg = load_config(write({'model': {'teacher_api_key': 'sk-file'}}))
    assert (cfg.model.teacher_api_key, cfg.model.policy_api_key)==('sk-file', 'sk-environment')
    assert 'sk-' not in json.dumps(cfg.to_dict()) + repr(cfg) + str(cfg) + cfg._repr_markdown_()
    with pytest.raises(ValueError) as e: load_config(write({'model': {'teacher_api_key': 12345}}))
    assert '12345' not in str(e.value)

def test_a_preset_can_be_the_base(write):
    cfg = load_config(write({'rl': {'group_size': 4}}), base=SkillRLConfig.paper('webshop'), seed=3)
    assert (cfg.rl.group_size, cfg.rl.learning_rate, cfg.env.max_steps, cfg.seed)==(4, 1e-6, 15, 3)
