"Config files as people write them: every key of Krill's, every wrong value, and no secret on disk"

import json
import pytest
from skillrl.core.config import SkillRLConfig, load_config
from test_typed import KRILL

@pytest.fixture
def write(tmp_path):
    def write(txt, name='c.json'):
        (tmp_path/name).write_text(txt if isinstance(txt, str) else json.dumps(txt))
        return tmp_path/name
    return write

def test_every_key_of_krill_arrives(write):
    cfg = load_config(write(KRILL))
    assert (cfg.rl.iterations, cfg.rl.tasks_per_iteration, cfg.rl.learning_rate)==(150, 8, 1e-6)
    assert (cfg.model.max_prompt_tokens, cfg.model.max_new_tokens)==(6000, 1024)
    assert (cfg.retrieval.similarity_threshold, cfg.evolution.evolution_threshold)==(0.4, 0.4)
    assert (cfg.sft.epochs, cfg.sft.steps)==(3, 0)
    assert (cfg.model.policy_model_id, cfg.model.teacher_model_id)==('gpt-4o-mini', 'gpt-4o')
    assert (cfg.retrieval.mode, cfg.retrieval.encoder)==('embedding', 'openai:text-embedding-3-small')

def nonsense_for(f):
    "Values that no setting of the type of the field `f` takes"
    yield []
    yield {'a': 1} if f.type is str else 'nonsense'
    yield 2 if f.type is bool else True
    if f.default is not None:
        yield None

def refusal(path, value):
    "What is said of `value` for the setting `path`; empty if it is taken"
    try:
        SkillRLConfig().merged({path: value})
    except ValueError as e:
        return str(e)
    return ''

def test_every_setting_refuses_nonsense_by_name():
    told = [(path, bad, refusal(path, bad))
            for path, _, f in SkillRLConfig().settings() for bad in nonsense_for(f)]
    assert len(told) > 200
    assert [row for row in told if row[0] not in row[2] or '\n' in row[2]] == []

@pytest.mark.parametrize(
    'txt,says',
    [('', 'not valid JSON'), ('[]', 'holds a list'),
     ('{"rll": {"group_size": 8}}', 'did you mean rl.group_size'),
     ('{"rl": {"group_size": 1}}', 'at least 2'),
     ('{"rl": {"learning_rate": NaN}}', 'a number of at least'),
     ('{"skill_retrieval": {"topk": 6}}', 'did you mean retrieval.top_k'),
     ('{"evolution": {"evolution_threshold": 40}}', 'at most 1'), ('{"seed": -1}', 'at least 0')],
)
def test_bad_files_get_one_sentence(write, txt, says):
    with pytest.raises(ValueError, match=says) as e:
        load_config(write(txt))
    assert '\n' not in str(e.value)

def test_bad_yaml_gets_one_sentence(write):
    with pytest.raises(ValueError, match='not valid YAML') as e:
        load_config(write('rl: [', 'c.yaml'))
    assert '\n' not in str(e.value)

def test_no_secret_is_written(write, monkeypatch):
    monkeypatch.setenv('SKILLRL_POLICY_API_KEY', 'sk-policy')
    cfg = load_config(write({'model': {'teacher_api_key': ''}}))
    assert (cfg.model.teacher_api_key, cfg.model.policy_api_key)==('', 'sk-policy')
    assert 'sk-' not in json.dumps(cfg.to_dict()) + repr(cfg) + str(cfg)
    with pytest.raises(ValueError, match='set the variable SKILLRL_TEACHER_API_KEY') as e:
        load_config(write({'model': {'teacher_api_key': 'sk-file'}}))
    assert 'sk-file' not in str(e.value)

def test_a_preset_can_be_the_base(write):
    cfg = load_config(write({'rl': {'group_size': 4}}), base=load_config('paper_webshop.yaml'), seed=3)
    assert (cfg.rl.group_size, cfg.rl.learning_rate, cfg.env.max_steps, cfg.seed)==(4, 1e-6, 15, 3)

def test_the_shared_key_is_left_to_the_client(monkeypatch):
    for who in ('policy', 'teacher', 'embedding'):
        monkeypatch.delenv(f'SKILLRL_{who.upper()}_API_KEY', raising=False)
    monkeypatch.setenv('OPENAI_API_KEY', 'sk-openai')
    m = load_config(**{'model.teacher_api_base': 'https://mug.example/v1'}).model
    assert (m.policy_api_key, m.teacher_api_key, m.embedding_api_key)==('', '', '')
    monkeypatch.setenv('SKILLRL_TEACHER_API_KEY', 'sk-teacher')
    assert load_config().model.teacher_api_key=='sk-teacher'

@pytest.mark.parametrize(
    'who, url',
    [
        ('policy', 'http://bob:hunter22@mug.example/v1'),
        ('embedding', 'http://bob:hunter22@mug.example/v1'),
        ('teacher', 'http://bob:hunter22@mug.example/v1'),
        ('teacher', 'bob:hun/ter22@mug.example/v1'),  # Before a slash, a parser sees no host
        ('teacher', 'https://mug.example/v1?api-key=hunter22'),
        ('teacher', 'https://mug.example/v1#hunter22'),
        ('teacher', ['http://bob:hunter22@mug']),
    ],
    ids=['policy', 'embedding', 'teacher', 'no scheme', 'query', 'fragment', 'list'],
)
def test_no_credential_hides_in_an_address(write, who, url):
    for load in (
        lambda: load_config(write({'model': {f'{who}_api_base': url}})),
        lambda: load_config(**{f'model.{who}_api_base': url}),
    ):
        with pytest.raises(ValueError) as e:
            load()
        said = str(e.value)
        assert (f'model.{who}_api_base is (hidden)' in said and f'SKILLRL_{who.upper()}_API_KEY' in said)
        assert 'hunter22' not in said and 'ter22' not in said and '\n' not in said

def test_an_environments_address_has_no_password(write):
    with pytest.raises(ValueError, match='env.url is .hidden.: give it an address without @ .the') as e:
        load_config(write({'env': {'url': 'http://bob:hunter22@games.example'}}))
    assert 'hunter22' not in str(e.value)
    assert load_config(write({'env': {'url': 'http://games.example/a?split=train'}})).env.url.endswith(
        '?split=train')


@pytest.mark.parametrize('bad', [-0.1, 1])
def test_a_threshold_no_retriever_takes_is_refused_here(bad):
    with pytest.raises(ValueError,
                       match='retrieval.similarity_threshold is .*at least 0 and of at most 0.99'):
        load_config(**{'retrieval.similarity_threshold': bad})

# ---- keys and the addresses of a run folder ----

EVIL, MINE = 'http://evil.example/v1', 'http://mug.example/v1'

def stored(who, url):
    return SkillRLConfig().merged({f'model.{who}_api_base': url})


@pytest.mark.parametrize(
    'who, variable',
    [('policy', 'SKILLRL_POLICY_API_KEY'), ('embedding', 'SKILLRL_EMBEDDING_API_KEY'),
     ('teacher', 'SKILLRL_TEACHER_API_KEY'), ('teacher', 'OPENAI_API_KEY')],
)
def test_a_key_goes_to_no_address_that_only_a_run_folder_names(who, variable):
    cfg = stored(who, EVIL)
    with pytest.raises(ValueError) as e:
        cfg.opened((), dict(**{variable: 'sk-mine'}))
    said = str(e.value)
    assert EVIL in said and variable in said and f'model.{who}_api_base' in said
    assert '\n' not in said and 'sk-mine' not in said and getattr(cfg.model, f'{who}_api_key') == ''
    cfg.opened([EVIL], dict(**{variable: 'sk-mine'}))
    stored(who, EVIL).fill_keys(dict(**{variable: 'sk-mine'}))

@pytest.mark.parametrize(
    'near',
    ['http://mug.example.evil.example/v1', 'http://mug.example/v1/evil', 'http://mug.example:81/v1',
     'https://mug.example/v1', 'http://mug.example'],
)
def test_addresses_are_compared_whole(near):
    with pytest.raises(ValueError, match='OPENAI_API_KEY would go there'):
        stored('teacher', near).opened([MINE], dict(OPENAI_API_KEY='k'))

@pytest.mark.parametrize(
    'same', [MINE, 'http://mug.example/v1/', 'HTTP://Mug.Example/v1', 'http://mug.example:80/v1'])
def test_another_spelling_of_a_named_address_will_do(same):
    cfg = stored('teacher', same).opened([MINE], dict(SKILLRL_TEACHER_API_KEY='k'))
    assert cfg.model.teacher_api_key == 'k'


def test_without_a_key_in_the_environment_any_address_may_be_resumed():
    assert stored('teacher', EVIL).opened((), {}).model.teacher_api_key == ''
    mine = stored('teacher', EVIL)
    mine.model.teacher_api_key = 'given'
    assert (
        mine.opened((), dict(OPENAI_API_KEY='k', SKILLRL_TEACHER_API_KEY='k')).model.teacher_api_key
        == 'given'
    )


def test_the_address_that_an_empty_one_stands_for_needs_no_name():
    "A folder that names it redirects nothing; where OPENAI_BASE_URL says otherwise, it would"
    usual = stored('teacher', 'https://api.openai.com/v1')
    usual.opened((), dict(OPENAI_API_KEY='k'))
    with pytest.raises(ValueError, match='would go there'):
        usual.opened((), dict(OPENAI_API_KEY='k', OPENAI_BASE_URL=MINE))

# ---- files that ship, and Krill's ----

@pytest.mark.parametrize('env', ['alfworld', 'webshop', 'search'])
def test_the_papers_settings_are_files(env):
    "As `--config` takes them, from any folder"
    table4 = dict(iterations=150, learning_rate=1e-6, clip_epsilon=0.2)
    for name in (f'configs/paper_{env}.yaml', f'paper_{env}.yaml'):
        assert {k: getattr(load_config(name).rl, k) for k in table4} == table4

@pytest.mark.parametrize(
    'env,lengths',
    [('alfworld', (4096, 512, 128)), ('webshop', (6000, 768, 64)), ('search', (5000, 700, 256))])
def test_the_scripts_settings_are_files_where_they_differ(env, lengths):
    c = load_config(f'configs/official_{env}.yaml')
    assert (c.model.max_prompt_tokens, c.model.max_new_tokens,
            c.rl.minibatch) == lengths and c.env.name == env
    history = 4 if env == 'search' else 2
    assert (c.agent.prompt, c.agent.history_length) == ('official', history)


def test_a_file_of_ones_own_is_not_replaced_by_one_that_ships(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_config(tmp_path/'paper_alfworld.yaml')

@pytest.mark.parametrize(
    'over,says',
    [
        ({'model.checkpoint': 'data/policy', 'model.policy_model_id': 'mini'}, 'only one can act'),
        ({'model.embedding_model_id': 'small', 'retrieval.mode': 'lexical'},
         'retrieval.encoder is openai:small, but retrieval.mode is lexical'),
        (
            {'model.embedding_model_id': 'small', 'retrieval.mode': 'embedding',
             'retrieval.encoder': 'tfidf'},
            'leave the model out',
        ),
        ({'retrieval.mode': 'embedding', 'retrieval.encoder': 'openai'},
         'retrieval.encoder is openai and names no model'),
    ],
)
def test_a_model_that_is_named_is_used_or_refused(over, says):
    with pytest.raises(ValueError, match=says) as e:
        load_config(**over)
    assert '\n' not in str(e.value)
