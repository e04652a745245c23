"The GRPO loss on a small transformer, against trl, finite differences, and other layouts of the batch"
import os
from copy import deepcopy
import pytest
import torch
from skillrl.training.grpo import (LossOptions, group_advantage, grpo_loss, step_advantage)
from skillrl.llm.local import _token_logps

V, PAD = 100, 0
torch.set_num_threads(1)

def tiny(seed):
    "A two-layer Qwen3 of 32 dimensions with large random weights, so that log-probs differ from one another"
    from transformers import Qwen3Config, Qwen3ForCausalLM
    torch.manual_seed(seed)
    cfg = Qwen3Config(vocab_size=V, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                      num_key_value_heads=2, head_dim=8, intermediate_size=64, max_position_embeddings=64,
                      initializer_range=.1,
                      tie_word_embeddings=True, pad_token_id=PAD, bos_token_id=1, eos_token_id=1)
    return Qwen3ForCausalLM(cfg).eval()

def exact(seed):
    "A small GPT-2 in float64: Qwen3's norms always compute in float32, too coarse for differences"
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.manual_seed(seed)
    cfg = GPT2Config(vocab_size=V, n_positions=64, n_embd=32, n_layer=2, n_head=4, initializer_range=.1,
                     bos_token_id=1, eos_token_id=1)
    return GPT2LMHeadModel(cfg).double().eval()

def episodes(seed=0, n=6):
    "Prompts and replies of two groups of three episodes, of differing lengths; advantages with one penalty"
    g = torch.Generator().manual_seed(seed)
    def size(low, high):
        return int(torch.randint(low, high, (), generator=g))
    def text(n):
        return torch.randint(2, V, (n,), generator=g).tolist()
    rows = [(text(size(3, 12)), text(size(2, 8))) for _ in range(2*n)]
    adv = group_advantage([1., 0., 0., 1., 1., 0.], ['heat']*3+['clean']*3)
    return rows, step_advantage(adv, [i//2 for i in range(2*n)], [i==5 for i in range(2*n)], .1)

def lay_out(rows, side='right', width=0):
    "One tensor of prompt and reply per row, padded on one side; attention mask; mask of reply tokens"
    T = max(width, max(len(p)+len(r) for p,r in rows))
    ids, att, own = (torch.full((len(rows), T), v) for v in (PAD, 0, 0))
    for i,(p,r) in enumerate(rows):
        n = len(p)+len(r)
        at = T-n if side=='left' else 0
        ids[i,at:at+n] = torch.tensor(p+r)
        att[i,at:at+n] = 1
        own[i,at+len(p):at+n] = 1
    return ids, att, own

def logps(model, ids, att):
    pos = (att.cumsum(-1)-1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=att, position_ids=pos, use_cache=False).logits
    return _token_logps(logits[:,:-1], ids[:,1:])

def loss_of(models, rows, adv, layout=('right', 0), total=None, **options):
    "Loss of the first of `models`; the others are the policy that sampled and the reference"
    ids, att, own = lay_out(rows, *layout)
    with torch.no_grad():
        old, ref = (logps(m, ids, att) for m in models[1:])
    return grpo_loss(logps(models[0], ids, att), old, ref, adv, own[:,1:], LossOptions(**options), total)

def drifted(model, seed, by):
    "A copy of `model` some way off"
    other, g = deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in other.parameters():
            p += by*torch.randn(p.shape, generator=g)
    return other

def three(make=tiny):
    model = make(1)
    return [model, drifted(model, 2, .01), drifted(model, 3, .03)]

def gradient(model, loss):
    model.zero_grad(set_to_none=True)
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

def apart(a, b):
    return ((a-b).abs().max()/b.abs().max()).item()

@pytest.mark.parametrize('loss_type', ['token-mean', 'row-sum'])
def test_gradient_is_the_finite_difference(loss_type):
    models, (rows, adv) = three(exact), episodes()
    kw = dict(beta=.1, loss_type=loss_type)
    loss, stats = loss_of(models, rows, adv.double(), **kw)
    assert 0 < stats['clip_fraction'] < 1 and stats['kl'] > 0
    grad, g = gradient(models[0], loss), torch.Generator().manual_seed(0)
    params = [p for p in models[0].parameters() if p.grad is not None]
    for _ in range(5):
        way, h = [torch.randn(p.shape, generator=g, dtype=p.dtype) for p in params], 1e-6
        def at(step):
            with torch.no_grad():
                for p,w in zip(params, way):
                    p += step*w
                out = loss_of(models, rows, adv.double(), **kw)[0].item()
                for p,w in zip(params, way):
                    p -= step*w
            return out
        slope = (at(h)-at(-h))/(2*h)
        along = (grad*torch.cat([w.flatten() for w in way])).sum().item()
        assert abs(slope - along) < 1e-6*max(1, abs(slope))

def test_layout_changes_nothing():
    models, (rows, adv) = three(), episodes()
    loss, stats = loss_of(models, rows, adv)
    grad = gradient(models[0], loss)
    for side,width in [('left', 0), ('right', 40), ('left', 40)]:
        other, s = loss_of(models, rows, adv, (side, width))
        assert abs(other-loss) < 1e-6
        assert s['tokens']==stats['tokens'] and abs(s['kl']-stats['kl']) < 1e-6
        assert apart(gradient(models[0], other), grad) < 1e-5

def untold(config):
    "What keeps a trainer of trl from computing activations again; its name from transformers 5.22 on"
    what = 'activation' if hasattr(config, 'activation_checkpointing') else 'gradient'
    return {f'{what}_checkpointing': False}

@pytest.fixture(scope='module')
def trl_trainer(tmp_path_factory):
    "trl's GRPOTrainer around a small policy on disk, with a word-level tokenizer"
    os.environ.update(TRL_EXPERIMENTAL_SILENCE='1', HF_HUB_OFFLINE='1')
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer
    folder = str(tmp_path_factory.mktemp('policy'))
    vocabulary = {w: i for i,w in enumerate(['<pad>', '<end>'] + [f'w{i}' for i in range(2, V)])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token='<pad>'))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tok = PreTrainedTokenizerFast(tokenizer_object=words, pad_token='<pad>', eos_token='<end>')
    tiny(1).save_pretrained(folder)
    def make(loss_type, beta):
        args = GRPOConfig(output_dir=folder+'/out', per_device_train_batch_size=12, num_generations=3,
                          max_completion_length=8, beta=beta, loss_type=loss_type, epsilon=.2,
                          use_bias_correction_kl=False, bf16=False, use_cpu=True, report_to=[],
                          **untold(GRPOConfig))
        data = Dataset.from_list([dict(prompt='w5 w6')]*12)
        from transformers import Qwen3ForCausalLM
        model = Qwen3ForCausalLM.from_pretrained(folder)
        def reward(completions, **kw):
            return [0.]*len(completions)
        return GRPOTrainer(model, reward, args, data, processing_class=tok)
    return make

@pytest.mark.parametrize('beta', [0., .05])
@pytest.mark.parametrize('loss_type', ['bnpo', 'dapo', 'dr_grpo'])
def test_equal_to_trl(trl_trainer, loss_type, beta):
    trainer, (rows, adv) = trl_trainer(loss_type, beta), episodes()
    model, models = trainer.model.eval(), [None]+three()[1:]
    prompts, replies = lay_out([(p, []) for p,_ in rows], 'left'), lay_out([([], r) for _,r in rows])
    ids, att = (torch.cat([p, r], 1) for p,r in zip(prompts[:2], replies[:2]))
    C = replies[0].shape[1]
    with torch.no_grad():
        old, ref = (logps(m, ids, att)[:,-C:] for m in models[1:])
    model.train()
    trainer.current_gradient_accumulation_steps = 1
    batch = dict(prompt_ids=prompts[0], prompt_mask=prompts[1], completion_ids=replies[0],
                 completion_mask=replies[1], advantages=adv, old_per_token_logps=old, ref_per_token_logps=ref,
                 num_items_in_batch=replies[1].sum())
    theirs = trainer._compute_loss(model, batch)
    g = gradient(model, theirs)
    tokens = int(replies[1].sum())
    same = dict(bnpo={}, dapo=dict(total=tokens), dr_grpo=dict(total=len(rows)*8))
    kw = same[loss_type]
    ours, stats = loss_of([model]+models[1:], rows, adv, beta=beta, **kw)
    assert stats['clip_fraction'] > 0
    assert abs(ours-theirs) < 1e-6
    assert apart(gradient(model, ours), g) < 1e-4
