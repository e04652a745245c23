"Adapters in RL: what moves, what the reference is, what is saved, and what merging costs"
import json, shutil
from pathlib import Path
import pytest, torch
import transformers as tf
from skillrl.agent.episode import StepRow
from skillrl.training.builders import build_rl_policy
from skillrl.training.costs import shape_of
from skillrl.core.config import RLConfig, SkillRLConfig
from skillrl.llm.adapter import AdapterPolicy, load_base, load_policy, merge_adapter, new_adapter
from skillrl.llm.local import Policy, word_tokenizer
from skillrl.llm.placement import Placement
from skillrl.core.store import read_json, write_json
from skillrl.training.phases import fine_tune
from skillrl.training.pipeline import train
from skillrl.training.rl import GRPOTrainer

WORDS = 'go to take put clean heat egg mug plate fridge sink shelf'.split()
SIZES = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, initializer_range=.1)
FAMILIES = dict(llama=(tf.LlamaConfig, tf.LlamaForCausalLM), qwen2=(tf.Qwen2Config, tf.Qwen2ForCausalLM),
                qwen3=(tf.Qwen3Config, tf.Qwen3ForCausalLM), gemma=(tf.Gemma2Config, tf.Gemma2ForCausalLM))
PROMPTS = [[5, 6, 7], [8]*9, [9, 10, 11, 12], [5, 6, 7]]*4
RL = RLConfig(learning_rate=5e-3, minibatch=8)

@pytest.fixture(scope='module')
def bases(tmp_path_factory):
    "Family → folder of a small random model"
    folder, tok = tmp_path_factory.mktemp('bases'), word_tokenizer(WORDS)
    for name, (config, model) in FAMILIES.items():
        torch.manual_seed(0)
        Policy(model(config(vocab_size=len(tok), **SIZES)), tok).save(folder/name)
    return {name: folder/name for name in FAMILIES}

def learner(base, bits=0, seed=0):
    return GRPOTrainer(new_adapter(base, rank=4, bits=bits, seed=seed), RL)

def rows_of(policy):
    "What `policy` wrote, good where it begins with a word of the first half"
    generator = torch.Generator().manual_seed(1)
    said = policy.generate(PROMPTS, generator=generator, max_new_tokens=5)
    return [StepRow(r.prompt_ids, r.token_ids, r.logprobs, advantage=1. if r.token_ids[0] < 9 else -1.)
            for r in said]

def both(row_list, policy):
    return policy.logps([r.prompt_ids for r in row_list], [r.reply_ids for r in row_list])[0].detach()

def scores(model):
    with torch.no_grad():
        return model(input_ids=torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12]])).logits

def adapters(policy):
    return {name: p.detach().clone() for name, p in policy.adapter().items()}

def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)

CASES = [(family, bits) for family in FAMILIES for bits in (0, 4)]

def test_a_base_is_placed_and_held_in_four_bits_twice(bases):
    "The figures by which four bits are scaled are quantised too; without data, no GPU is needed"
    assert load_base(bases['llama'], placement=Placement('meta')).device.type == 'meta'
    held = load_base(bases['llama'], bits=4).config.quantization_config
    assert held.bnb_4bit_use_double_quant and held.bnb_4bit_quant_type == 'nf4'

def test_a_base_in_the_same_run_is_named_from_the_adapter(bases, tmp_path):
    base = tmp_path/'run'/'reference'
    shutil.copytree(bases['llama'], base)
    for folder, name in [('run/policy', '../reference'), ('elsewhere/run/policy', str(base))]:
        saved = new_adapter(base).save(tmp_path/folder)
        assert json.loads((saved/'base.json').read_text()) == dict(base=name, bits=0)
    assert json.loads((saved/'adapter_config.json').read_text())['r'] == 8

@pytest.mark.parametrize('family,bits', CASES)
def test_rl_moves_the_adapter_and_nothing_else(bases, family, bits):
    trainer = learner(bases[family], bits)
    rows = rows_of(trainer.policy)
    before = {n: p.detach().clone() for n, p in trainer.policy.model.named_parameters()}
    at_first = trainer.loss(rows)[0].item()
    for _ in range(4):
        trainer.update([rows[:8], rows[8:]])
    assert trainer.loss(rows)[0].item() < at_first - .02
    for name, p in trainer.policy.model.named_parameters():
        assert torch.equal(before[name], p) == ('lora_' not in name), name
    assert {p.dtype for p in trainer.policy.adapter().values()} == {torch.float32}

@pytest.mark.parametrize('family,bits', CASES)
def test_the_reference_is_the_base_bit_for_bit(bases, family, bits):
    trainer = learner(bases[family], bits)
    rows = rows_of(trainer.policy)
    trainer.update([rows])
    plain = Policy(load_base(bases[family], bits), trainer.policy.tokenizer)
    assert torch.equal(both(rows, trainer.reference), both(rows, plain))
    assert not torch.equal(both(rows, trainer.policy), both(rows, plain))
    mine = {id(p) for p in trainer.policy.model.parameters()}
    assert {id(p) for p in trainer.reference.model.parameters()} == mine

@pytest.mark.parametrize('family,bits', CASES)
def test_a_saved_learner_goes_on_to_the_same_bytes(bases, tmp_path, family, bits):
    trainer = learner(bases[family], bits)
    rows = rows_of(trainer.policy)
    trainer.update([rows])
    saved = trainer.save(tmp_path/'run'/'0001')
    again = learner(bases[family], bits, seed=7)
    again.restore(saved)
    for one in (trainer, again):
        one.update([rows[:8], rows[8:]])
    assert same(adapters(trainer.policy), adapters(again.policy))
    files = [{f.name: f.read_bytes() for f in one.save(tmp_path/'run'/name).iterdir()}
             for name, one in (('a', trainer), ('b', again))]
    assert files[0] == files[1]
    assert sorted(files[0]) == ['adapter_config.json', 'adapter_model.safetensors', 'base.json',
                                'optimizer.safetensors']

@pytest.mark.parametrize('family,bits', CASES)
def test_merging_costs_rounding_only(bases, tmp_path, family, bits):
    trainer = learner(bases[family], bits)
    rows = rows_of(trainer.policy)
    for _ in range(3):
        trainer.update([rows])
    merged = merge_adapter(trainer.policy.save(tmp_path/'a'))
    apart = (scores(merged.model) - scores(trainer.policy.model)).abs().max().item()
    rounding = (scores(load_base(bases[family])) - scores(load_base(bases[family], bits))).abs().max().item()
    assert apart <= (1.5*rounding if bits else 1e-5)

def test_four_bits_pass_gradients_on_after_a_reply_was_written(bases):
    "bitsandbytes packs a matrix for some CPUs when it is first read without a gradient, and then has none"
    found = []
    for first in (False, True):
        policy = new_adapter(bases['llama'], rank=4, bits=4)
        with torch.no_grad():
            for p in policy.adapter().values():
                p += .01
        if first:
            policy.generate(PROMPTS, max_new_tokens=3)
        policy.logps(PROMPTS, [[5, 6]]*len(PROMPTS))[0].sum().backward()
        found.append({name: p.grad for name, p in policy.adapter().items()})
    assert same(*found)
    assert all(g.any() for name, g in found[1].items() if 'layers.0' in name)

@pytest.mark.parametrize('rank', [2, 8])
def test_the_share_of_an_adapter_is_alpha_by_rank(bases, rank):
    policy = new_adapter(bases['llama'], rank=rank)
    held = [getattr(m, 'scaling', None) for m in policy.model.modules()]
    assert {scaling['default'] for scaling in held if isinstance(scaling, dict)} == {2}

@pytest.mark.parametrize('bits', [0, 4])
def test_a_loaded_adapter_lies_beside_a_base_of_as_many_bits(bases, tmp_path, bits):
    folder = new_adapter(bases['qwen2'], rank=4, bits=bits).save(tmp_path/'a')
    policy = load_policy(folder)
    assert policy.bits == bits
    assert json.loads((policy.save(tmp_path/'b')/'base.json').read_text())['bits'] == bits

def test_a_reference_after_sft_stays_what_it_was(bases):
    policy = new_adapter(bases['qwen3'], rank=4)
    with torch.no_grad():
        for p in policy.adapter().values():
            p += .05
    trainer = GRPOTrainer(policy, RL)
    rows = rows_of(trainer.policy)
    before = both(rows, trainer.policy)
    assert torch.equal(both(rows, trainer.reference), before)
    for _ in range(2):
        trainer.update([rows])
    assert torch.equal(both(rows, trainer.reference), before)
    generator = [torch.Generator().manual_seed(2) for _ in range(2)]
    said = [who.generate(PROMPTS, generator=g, max_new_tokens=4)
            for who, g in zip((trainer.reference, policy), generator)]
    assert [r.token_ids for r in said[0]] != [r.token_ids for r in said[1]]
    assert len(trainer.optimizer.param_groups[0]['params']) == len(policy.adapter())

def test_a_base_of_sixteen_bits_has_an_adapter_of_thirty_two(bases):
    policy = new_adapter(bases['llama'], rank=4, seed=0, placement=Placement(dtype='bfloat16'))
    held = {p.dtype for name, p in policy.model.named_parameters() if 'lora_' not in name}
    assert held == {torch.bfloat16} and {p.dtype for p in policy.adapter().values()} == {torch.float32}
    trainer = GRPOTrainer(policy, RLConfig(learning_rate=1e-6))
    before = adapters(policy)
    for _ in range(2): # The first moves only B, which begins at nothing
        trainer.update([rows_of(trainer.policy)])
    assert not any(torch.equal(before[name], p) for name, p in policy.adapter().items())

def test_whole_weights_that_multiply_in_sixteen_bits_move_in_thirty_two(bases):
    policy = Policy.load(bases['llama'], Placement(dtype='bfloat16', gradient_checkpointing=True))
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    trainer = GRPOTrainer(policy, RLConfig(learning_rate=1e-6), policy)
    policy.logps(PROMPTS, [[5, 6]]*len(PROMPTS))[0].sum().backward()
    trainer._step()
    moved = sum((p != before[name]).sum().item() for name, p in policy.model.named_parameters())
    assert moved > .5*policy.n_parameters
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}

@pytest.mark.parametrize('settings,says', [
    ({}, 'set it to lora or qlora, or merge the adapter'),
    ({'model.adapter': 'lora'}, 'or leave SFT out, with sft.epochs=0')])
def test_an_adapter_as_checkpoint_is_used_as_one_or_refused(bases, tmp_path, settings, says):
    folder = new_adapter(bases['llama'], rank=4).save(tmp_path/'a')
    config = SkillRLConfig().merged({'model.checkpoint': str(folder)} | settings)
    with pytest.raises(ValueError, match=says):
        fine_tune([dict(prompt='go', completion='to')], config) if settings else build_rl_policy(config)
    assert isinstance(load_policy(folder), AdapterPolicy)

def test_an_adapter_of_another_shape_is_not_restored(bases, tmp_path):
    folder = learner(bases['llama']).policy.save(tmp_path/'a')
    other = GRPOTrainer(new_adapter(bases['llama'], rank=2), RL)
    with pytest.raises(ValueError, match='resume with the settings it was begun with'):
        other.policy.restore(folder)

def test_a_base_may_be_a_model_that_is_fetched(bases, tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    folder = new_adapter(bases['llama']).save(tmp_path/'a')
    write_json(folder/'base.json', dict(base='smollm2', bits=0))
    with pytest.raises(FileNotFoundError, match='run skillrl fetch smollm2'):
        load_policy(folder)
    fetched = shutil.copytree(bases['llama'], tmp_path/'skillrl'/'models'/'smollm2')
    again = load_policy(folder)
    assert again.base == str(fetched)
    assert shape_of(folder) == shape_of(fetched)
    assert read_json(again.save(tmp_path/'runs'/'b')/'base.json')['base'] == 'smollm2'

def test_a_base_that_is_gone_is_named(bases, tmp_path):
    folder = learner(bases['llama']).policy.save(tmp_path/'a')
    known = json.loads((folder/'base.json').read_text())
    (folder/'base.json').write_text(json.dumps(known | dict(base='/nowhere/base')))
    with pytest.raises(FileNotFoundError, match='/nowhere/base'):
        load_policy(folder)

# ---- whole runs ----

SMALL = dict(env=dict(train_suites=1, test_suites=1, episodes=2, test_tasks=1, max_steps=10),
             sft=dict(games=2, steps=2),
             rl=dict(iterations=3, tasks_per_iteration=2, group_size=4),
             model=dict(adapter='lora'),
             evolution=dict(validation_interval=0))

def files(folder):
    kept = [p for p in sorted(Path(folder).rglob('*')) if p.is_file() and p.name != '.lock']
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in kept}

class Stop(Exception):
    pass

def run_until(folder, config, iterations, resume=False):
    "Go on with a run until so many iterations of RL are done"
    def step(*now):
        if now[:2] == ('rl', iterations):
            raise Stop
    with pytest.raises(Stop):
        train(config, folder, resume, step)

@pytest.mark.parametrize('epochs', [3, 0])
def test_a_run_with_an_adapter_goes_on_to_the_same_bytes(tmp_path, epochs):
    config = SkillRLConfig().merged(SMALL).merged({'sft.epochs': epochs})
    run_until(tmp_path/'whole', config, 3)
    for iterations in (1, 2, 3):
        run_until(tmp_path/'cut', config, iterations, iterations > 1)
    whole = files(tmp_path/'whole')
    assert files(tmp_path/'cut') == whole
    check_weights(tmp_path/'whole', whole)

def check_weights(run, held):
    "The newest two adapters, and no whole model"
    assert {name.split('/')[1] for name in held if name.startswith('policy/')} == {'0002', '0003'}
    models = {name for name in held if name.endswith('/model.safetensors')}
    assert models == set()
    assert load_policy(run/'policy'/'0003').frozen_copy().name == 'frozen_1'
