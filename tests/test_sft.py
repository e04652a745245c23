"Fine-tuning: the losses of trl's own prompt/completion rows"
from copy import deepcopy
import pytest
import torch
from skillrl.llm.adapter import new_adapter
from skillrl.training.sft import FullOptions, encode_rows, full_sft, _lr_at
from test_grpo import untold

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

def test_losses_are_those_of_prompt_completion_rows(base, tmp_path):
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer
    policy, lr = new_adapter(base[0]), 1e-2
    model = deepcopy(policy.model)
    ours = full_sft(encode_rows(ROWS, policy), policy, FullOptions(4, lr, len(ROWS)))
    args = SFTConfig(output_dir=str(tmp_path/'trl'), max_steps=4, per_device_train_batch_size=len(ROWS),
                     logging_steps=1, save_strategy='no', report_to='none', use_cpu=True, bf16=False,
                     completion_only_loss=True, **untold(SFTConfig))
    moving = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(moving, lr=lr, betas=(.9, .98), weight_decay=.01)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _lr_at(step, 4, 0))
    trainer = SFTTrainer(model, args, train_dataset=Dataset.from_list(ROWS), processing_class=base[1],
                         optimizers=(optimizer, rates))
    trainer.train()
    theirs = [entry['loss'] for entry in trainer.state.log_history if 'loss' in entry]
    assert ours == pytest.approx(theirs, abs=1e-6) and ours[-1] < ours[0]
