"Encoders against other ways to the same numbers"
import json, pickle, socket
from pathlib import Path
import numpy as np
import pytest
from skillrl.skills.embedding import (
    CachedEncoder, FolderEncoder, TfidfEncoder, _frame, stems, unit_rows, _words_and_pairs)
from skillrl.skills.bank import Skill, SkillBank
from skillrl.skills.retrieval import Retriever

GOALS = ['put a hot egg in garbagecan.', 'heat some apple and put it in fridge.',
         'put a hot mug in cabinet.', 'put some egg in fridge.', 'find two mug and put them in cabinet.',
         'find two apple and put them in sinkbasin.', 'look at egg under the desklamp.']

# --- counted words

def test_rows_are_unit_and_the_same_every_time():
    a, b = TfidfEncoder(GOALS), TfidfEncoder(list(GOALS))
    rows = a.encode(GOALS)
    assert rows.dtype == np.float32 and np.array_equal(rows, b.encode(GOALS))
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert np.array_equal(rows, np.concatenate([a.encode([g]) for g in GOALS]))

def test_the_words_weigh_what_sklearn_says():
    text = pytest.importorskip('sklearn.feature_extraction.text')
    theirs = (
        text.TfidfVectorizer(
            analyzer=lambda t: [*_words_and_pairs(stems(t)).elements()], smooth_idf=True, norm='l2'
        )
        .fit_transform(GOALS)
        .toarray()
    )
    e = TfidfEncoder(GOALS)
    ours = e.encode(GOALS)[:, [i for (part, _), i in e.columns.items() if part == 'words']]
    assert np.allclose(unit_rows(ours) @ unit_rows(ours).T, theirs @ theirs.T, atol=1e-5)
    assert np.allclose((ours**2).sum(1), 0.75, atol=1e-6)

def test_the_frame_blanks_rare_words_only():
    e = TfidfEncoder([
        f'put a hot {n} in shelf.'
        for n in 'egg mug apple pan pot cup bowl fork knife plate bread potato'.split()
    ])
    assert e.common == {'put', 'a', 'heat', 'in', 'shelf'}
    assert _frame(stems('put a hot spoon in shelf'), e.common)['a heat _'] == 1
    a, b = (e.frame.weigh(_frame(stems(f'put a hot {n} in shelf.'), e.common)) for n in ('egg', 'mug'))
    assert a == b

# --- a model in a folder

SIZES = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)

def made(folder, config, model, side='right', **sizes):
    "A folder with a model of two layers, made from seed 0, and the model itself"
    import torch
    from skillrl.llm.local import word_tokenizer
    tok = word_tokenizer(sorted({w for g in GOALS for w in g.replace('.', ' .').split()}))
    tok.padding_side = side
    torch.manual_seed(0)
    model = model(config(vocab_size=len(tok), **SIZES, **sizes))
    for p in model.parameters():
        p.data.mul_(4)
    model.save_pretrained(folder), tok.save_pretrained(folder)
    return folder, model.eval(), tok

@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
    from transformers import BertConfig, BertModel
    return made(tmp_path_factory.mktemp('models')/'tiny', BertConfig, BertModel, max_position_embeddings=16)

def copy_of(folder, to, *without):
    to.mkdir()
    for p in folder.iterdir():
        if p.name not in without:
            (to/p.name).write_bytes(p.read_bytes())
    return to

def test_masked_mean_by_hand(tiny):
    import torch
    folder, model, tok = tiny
    rows = FolderEncoder(folder).encode(GOALS)
    for g, r in zip(GOALS, rows):
        with torch.no_grad():
            h = model(input_ids=torch.tensor([tok(g)['input_ids']])).last_hidden_state[0].mean(0).numpy()
        assert np.allclose(h/np.linalg.norm(h), r, atol=1e-5)
    assert rows.dtype == np.float32 and np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)

@pytest.fixture(scope='module')
def decoder(tmp_path_factory):
    "Pads on the left, as Qwen3-Embedding does"
    from transformers import Qwen3Config, Qwen3Model
    folder = tmp_path_factory.mktemp('models')/'decoder'
    return made(folder, Qwen3Config, Qwen3Model, 'left', num_key_value_heads=1, head_dim=12)

def pooling_by(folder, to, **modes):
    "A folder as sentence-transformers writes it"
    (copy_of(folder, to)/'1_Pooling').mkdir()
    parts = [dict(idx=i, name=str(i), path=path, type=f'sentence_transformers.models.{kind}')
             for i, (path, kind) in enumerate([('', 'Transformer'), ('1_Pooling', 'Pooling')])]
    (to/'modules.json').write_text(json.dumps(parts))
    how = dict(word_embedding_dimension=24, include_prompt=True) | modes
    (to/'1_Pooling'/'config.json').write_text(json.dumps(how))
    return to

LAST = dict(pooling_mode_cls_token=False, pooling_mode_mean_tokens=False, pooling_mode_lasttoken=True)

@pytest.mark.parametrize(
    'modes, place',
    [(LAST, -1), (dict(pooling_mode='lasttoken'), -1),
     (dict(pooling_mode_cls_token=True, pooling_mode_mean_tokens=False), 0)],
)
def test_the_token_that_the_folder_names_is_the_vector_whatever_the_padding(decoder, tmp_path, modes, place):
    import torch
    folder, model, tok = decoder
    e = FolderEncoder(pooling_by(folder, tmp_path/'pooled', **modes))
    rows = e.encode(GOALS)
    for g, r in zip(GOALS, rows):
        with torch.no_grad():
            h = model(input_ids=torch.tensor([tok(g)['input_ids']])).last_hidden_state[0, place].numpy()
        assert np.allclose(h/np.linalg.norm(h), r, atol=1e-5)
    assert np.allclose(e.encode(GOALS[:1] + ['egg ' * 40])[0], rows[0], atol=1e-5)
    assert len({len(tok(g)['input_ids']) for g in GOALS}) > 1

def test_a_query_has_the_instruction_of_the_folder_before_it_and_a_skill_has_not(tiny, tmp_path):
    folder = pooling_by(tiny[0], tmp_path/'told')
    (folder / 'config_sentence_transformers.json').write_text(
        json.dumps(dict(prompts=dict(query='find some ', document=''))))
    e = CachedEncoder(FolderEncoder(folder))
    assert e.query_prefix == 'find some '
    kept = Skill('pick_001', 'Eggs', 'put some egg in fridge.', category='pick')
    found = Retriever(SkillBank([], dict(pick=[kept])), 'embedding', encoder=e).rank.similarities('egg')
    assert np.isclose(found[0], float(e.encode(['find some egg'])[0] @ e.encode([f'pick: {kept.text}'])[0]),
                      atol=1e-5)

def test_long_texts(tiny):
    rows = FolderEncoder(tiny[0], 2).encode(['egg ' * 500, 'egg', 'egg ' * 16])
    assert np.allclose(rows[0], rows[2], atol=1e-6)

def test_nothing_is_fetched(tiny, monkeypatch):
    def refuse(*a, **kw):
        raise AssertionError('a connection was tried')
    (monkeypatch.setattr(socket, 'create_connection', refuse),
     monkeypatch.setattr(socket.socket, 'connect', refuse),
     monkeypatch.setattr(socket, 'getaddrinfo', refuse))
    assert FolderEncoder(tiny[0]).encode(GOALS[:1]).shape == (1, 24)
    says = 'in the folder sentence-transformers/all-MiniLM-L6-v2: download'
    with pytest.raises(FileNotFoundError, match=says):
        FolderEncoder('sentence-transformers/all-MiniLM-L6-v2')

def test_pickled_weights_are_not_read(tiny, tmp_path):
    folder = copy_of(tiny[0], tmp_path/'pickled', 'model.safetensors')
    class Evil:
        def __reduce__(self):
            return (Path(tmp_path/'ran').touch, ())
    (folder/'pytorch_model.bin').write_bytes(pickle.dumps(Evil()))
    with pytest.raises(FileNotFoundError, match='safetensors'):
        FolderEncoder(folder)
    (folder/'other.safetensors').write_bytes((tiny[0]/'model.safetensors').read_bytes())
    with pytest.raises(ValueError, match='cannot be read'):
        FolderEncoder(folder).encode(GOALS)
    assert not (tmp_path/'ran').exists()

def test_code_in_a_folder_is_not_run(tiny, tmp_path):
    folder = pooling_by(tiny[0], tmp_path/'evil')
    (folder/'evil.py').write_text(f'open({str(tmp_path/"ran")!r}, "w")')
    parts = json.loads((folder/'modules.json').read_text())
    (folder/'modules.json').write_text(json.dumps([parts[0], parts[1] | dict(type='evil.Evil')]))
    with pytest.raises(ValueError, match='cannot be read'):
        FolderEncoder(folder).encode(GOALS)
    assert not (tmp_path/'ran').exists()

def test_broken_weights(tiny, tmp_path):
    cut = copy_of(tiny[0], tmp_path/'cut')
    (cut/'model.safetensors').write_bytes((cut/'model.safetensors').read_bytes()[:-100])
    with pytest.raises(ValueError, match='cut cannot be read'):
        FolderEncoder(cut).encode(GOALS)

# --- rows in memory

class Counting:
    "An encoder that notes what it was asked"
    def __init__(self):
        self.asked = []
    def encode(self, texts):
        self.asked.append(list(texts))
        return np.array([[len(t), 1, 2] for t in texts], np.float32).reshape(len(texts), 3)

def test_each_text_is_encoded_once():
    e = Counting()
    c = CachedEncoder(e)
    texts = ['a', 'bb', 'a', '', '\ud800 half a pair', 'bb']
    assert np.array_equal(c.encode(texts), Counting().encode(texts))
    assert np.array_equal(c.encode(['ccc', 'a']), Counting().encode(['ccc', 'a']))
    assert e.asked == [['a', 'bb', '', '\ud800 half a pair'], ['ccc']]
