"Adapter training: the same bytes from the same seed, and the losses of trl's own prompt/completion rows"
import pytest
import torch
from skillrl.llm.adapter import LoraOptions, load_policy, merge_adapter
from skillrl.llm.local import Policy, tiny_model, word_tokenizer
from skillrl.llm.placement import Placement, told_checkpointing
from skillrl.training.sft import (_AdapterOptions, FullOptions, _adapter_sft, encode_rows, full_sft,
                                  _sft_tokens)

ROWS = [dict(prompt=f'put the {thing} in the {place} .', completion=f' go to {place}')
        for thing in ('mug', 'egg') for place in ('fridge', 'sink', 'microwave')]

@pytest.fixture(scope='module')
def base(tmp_path_factory):
    "Folder of a very small model, and its word-level tokenizer"
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
    words = sorted({w for r in ROWS for w in (r['prompt']+r['completion']).split()})
    vocabulary = {w: i for i,w in enumerate(['<pad>', '<end>', '<unk>']+words)}
    wl = Tokenizer(models.WordLevel(vocabulary, unk_token='<unk>'))
    wl.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tok = PreTrainedTokenizerFast(tokenizer_object=wl, pad_token='<pad>', eos_token='<end>',
                                  unk_token='<unk>')
    torch.manual_seed(0)
    cfg = Qwen3Config(vocab_size=len(tok), hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                      num_key_value_heads=2, head_dim=16, intermediate_size=128, initializer_range=.06,
                      tie_word_embeddings=True, eos_token_id=1, pad_token_id=0)
    folder = tmp_path_factory.mktemp('base')
    Qwen3ForCausalLM(cfg).save_pretrained(folder)
    tok.save_pretrained(folder)
    return folder, tok

def files(folder):
    return {f.name: f.read_bytes() for f in folder.iterdir()}

@pytest.mark.parametrize('quantize', [False, True])
def test_same_seed_same_bytes(base, tmp_path, quantize):
    folder, tok = base
    def run(name, seed):
        lora = LoraOptions(bits=4 if quantize else 0)
        options = _AdapterOptions(steps=4, lr=1e-2, batch_size=2, seed=seed, lora=lora)
        return _adapter_sft(ROWS, folder, tok, tmp_path/name, options)[1]
    losses = [run('a', 0), run('b', 0), run('c', 1)]
    assert losses[0]==losses[1]!=losses[2] and len(losses[0])==4
    a, b, c = (files(tmp_path/n) for n in 'abc')
    assert a==b and a['adapter_model.safetensors']!=c['adapter_model.safetensors']
    assert sorted(a)==['adapter_config.json', 'adapter_model.safetensors', 'base.json']

def test_losses_are_those_of_prompt_completion_rows(base, tmp_path):
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, set_seed
    from trl import SFTConfig, SFTTrainer
    folder, tok = base
    options = _AdapterOptions(steps=4, lr=1e-2, batch_size=3)
    _, ours = _adapter_sft(ROWS, folder, tok, tmp_path/'ours', options)
    set_seed(0)
    args = SFTConfig(output_dir=str(tmp_path/'trl'), seed=0, max_steps=4, learning_rate=1e-2,
                     per_device_train_batch_size=3, logging_steps=1, save_strategy='no', report_to='none',
                     use_cpu=True, bf16=False, completion_only_loss=True,
                     **told_checkpointing(Placement(), SFTConfig))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    lora = LoraConfig(r=8, lora_alpha=16, target_modules='all-linear', task_type='CAUSAL_LM')
    data = Dataset.from_list(ROWS)
    trainer = SFTTrainer(model, args, train_dataset=data, processing_class=tok, peft_config=lora)
    trainer.train()
    theirs = [entry['loss'] for entry in trainer.state.log_history if 'loss' in entry]
    assert ours == pytest.approx(theirs, abs=1e-6)

def test_first_loss_counts_replies_only(base, tmp_path):
    folder, tok = base
    options = _AdapterOptions(steps=1, batch_size=len(ROWS))
    _, (loss,) = _adapter_sft(ROWS, folder, tok, tmp_path/'one', options)
    model = load_policy(tmp_path/'one').model.unload()
    total = n = 0
    for r in ROWS:
        t = _sft_tokens(r, tok)
        ids, own = torch.tensor([t['input_ids']]), torch.tensor(t['labels'])[1:]!=-100
        logps = model(ids).logits[0,:-1].log_softmax(-1)
        lp = logps.gather(-1, ids[0,1:,None])[:,0][own]
        total, n = total-lp.sum().item(), n+len(lp)
    assert loss == pytest.approx(total/n, abs=1e-4)

def test_a_failed_run_leaves_the_old_adapter(base, tmp_path):
    folder, tok = base
    _adapter_sft(ROWS, folder, tok, tmp_path/'kept', _AdapterOptions(steps=1))
    before = files(tmp_path/'kept')
    with pytest.raises(ValueError, match='a row has no completion'):
        rows = ROWS+[dict(prompt='put the mug')]
        _adapter_sft(rows, folder, tok, tmp_path/'kept', _AdapterOptions(steps=1))
    assert files(tmp_path/'kept')==before

def test_adapter_training_leaves_generators_and_threads_as_they_were(base, tmp_path):
    import random
    import numpy as np
    folder, tok = base
    def state():
        drawn = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
        return *drawn, torch.get_num_threads()
    threads, made = torch.get_num_threads(), []
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            before = state()
            _adapter_sft(ROWS, folder, tok, tmp_path/f'{n}', _AdapterOptions(steps=2, lr=1e-2, batch_size=2))
            merge_adapter(tmp_path/f'{n}')
            assert state() == before
            made.append(files(tmp_path/f'{n}'))
    finally:
        torch.set_num_threads(threads)
    assert made[0] == made[1]

def test_one_row_at_a_time_moves_the_same_weights():
    words = 'put the mug egg in fridge sink go to look'.split()
    tok = word_tokenizer(words)
    rows = [dict(prompt=' '.join(words[:n]), completion=' '.join(words[n:])) for n in (2, 5, 7, 9)]*4
    def trained(micro_batch_tokens):
        policy = Policy(tiny_model(len(tok), hidden=32, seed=1), tok)
        found = full_sft(encode_rows(rows, policy), policy, FullOptions(6, 1e-3, 8, 0, micro_batch_tokens))
        return found, torch.cat([w.flatten() for w in policy.model.parameters()])
    losses, weights = trained(1)
    whole_losses, whole = trained(65_536)
    assert losses == pytest.approx(whole_losses, abs=1e-4) # Processors round sums differently
    # A tenth of one update of 1e-3; how sums round depends on the processor, and Adam enlarges it (2e-5 seen)
    assert (weights - whole).abs().max() < 1e-4
