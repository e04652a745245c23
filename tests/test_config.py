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
    monkeypatch.setenv('SKILLRL_POLICY_API_KEY', 'sk-policy')
    cfg = load_config(write({'model': {'teacher_api_key': 'sk-file'}}))
    assert (cfg.model.teacher_api_key, cfg.model.policy_api_key)==('sk-file', 'sk-policy')
    assert 'sk-' not in json.dumps(cfg.to_dict()) + repr(cfg) + str(cfg) + cfg._repr_markdown_()
    with pytest.raises(ValueError) as e: load_config(write({'model': {'teacher_api_key': 12345}}))
    assert '12345' not in str(e.value)

def test_a_preset_can_be_the_base(write):
    cfg = load_config(write({'rl': {'group_size': 4}}), base=SkillRLConfig.paper('webshop'), seed=3)
    assert (cfg.rl.group_size, cfg.rl.learning_rate, cfg.env.max_steps, cfg.seed)==(4, 1e-6, 15, 3)

def test_the_shared_keys_are_left_to_the_client(monkeypatch):
    "Which of the two is right depends on the address, and an argument would win over both"
    for who in ('policy', 'teacher', 'embedding'): monkeypatch.delenv(f'SKILLRL_{who.upper()}_API_KEY', raising=False)
    monkeypatch.setenv('OPENAI_API_KEY', 'sk-openai')
    monkeypatch.setenv('AZURE_OPENAI_API_KEY', 'sk-azure')
    m = load_config(**{'model.teacher_api_base': 'https://mug.openai.azure.com'}).model
    assert (m.policy_api_key, m.teacher_api_key, m.embedding_api_key)==('', '', '')
    monkeypatch.setenv('SKILLRL_TEACHER_API_KEY', 'sk-teacher')
    assert load_config().model.teacher_api_key=='sk-teacher'

@pytest.mark.parametrize('who', ['policy', 'teacher', 'embedding'])
@pytest.mark.parametrize('url', ['http://bob:hunter22@mug.example/v1', 'http://hunter22@mug.example', 'bob:hunter22@mug.example/v1', 'https://bob:hun/ter22@mug.example',
                                 'https://mug.example/v1?api-key=hunter22', 'https://mug.example?hunter22', 'https://mug.example/v1#hunter22', ['http://bob:hunter22@mug']])
def test_no_credential_hides_in_an_address(write, who, url):
    for load in (lambda: load_config(write({'model': {f'{who}_api_base': url}})), lambda: load_config(**{f'model.{who}_api_base': url})):
        with pytest.raises(ValueError) as e: load()
        said = str(e.value)
        assert f'model.{who}_api_base is (hidden)' in said and f'model.{who}_api_key' in said and f'SKILLRL_{who.upper()}_API_KEY' in said
        assert 'hunter22' not in said and 'ter22' not in said and '\n' not in said

def test_an_environments_address_has_no_password(write):
    with pytest.raises(ValueError, match='env.url is .hidden.: give it an address without @ .the') as e: load_config(write({'env': {'url': 'http://bob:hunter22@games.example'}}))
    assert 'hunter22' not in str(e.value)
    assert load_config(write({'env': {'url': 'http://games.example/a?split=train'}})).env.url.endswith('?split=train')

@pytest.mark.parametrize('url', ['', 'http://localhost:8000/v1', 'https://mug.openai.azure.com', 'http://[::1]:3/v1', 'https://api.example/a/b_c-d.e/v1/'])
def test_plain_addresses_pass(url): assert load_config(**{'model.teacher_api_base': url}).model.teacher_api_base==url

@pytest.mark.parametrize('bad', [-0.1, 1, 1.5])
def test_a_threshold_no_retriever_takes_is_refused_here(bad):
    with pytest.raises(ValueError, match='retrieval.similarity_threshold is .*at least 0 and of at most 0.99'): load_config(**{'retrieval.similarity_threshold': bad})

def test_room_for_a_teachers_answer():
    m = load_config(**{'model.teacher_max_tokens': '2000'}).model
    assert (m.teacher_max_tokens, SkillRLConfig().model.teacher_max_tokens, m.azure_api_version)==(2000, 4096, '2024-12-01-preview')
    with pytest.raises(ValueError, match='model.teacher_max_tokens is 0'): load_config(**{'model.teacher_max_tokens': 0})
