"Policies of many families, and the ways a saved one can be broken: the long half of the page `llm.local`"
import json, resource, subprocess, sys
from pathlib import Path

import pytest, torch
import transformers as tf
from skillrl.llm.local import Policy, tiny_model, word_tokenizer

WORDS = '<think> </think> <action> </action> task : put clean egg in cabinet go to move'.split() + [
    f'{o} {i}' for o in ('egg', 'cabinet') for i in (1, 2)
]
SMALL = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=1, vocab_size=30, head_dim=16)
FAMILIES = dict(
    llama=lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**SMALL)),
    qwen2=lambda: tf.Qwen2ForCausalLM(tf.Qwen2Config(**SMALL)),
    qwen3=lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**SMALL)),
    mistral_with_a_sliding_window=lambda: tf.MistralForCausalLM(tf.MistralConfig(**SMALL, sliding_window=5)),
    gemma2_with_capped_scores=lambda: tf.Gemma2ForCausalLM(
        tf.Gemma2Config(**SMALL, sliding_window=6, final_logit_softcapping=2.0)),
    smollm3=lambda: tf.SmolLM3ForCausalLM(tf.SmolLM3Config(**SMALL, pad_token_id=0)),
    gpt_neox=lambda: tf.GPTNeoXForCausalLM(
        tf.GPTNeoXConfig(**{k: v for k, v in SMALL.items() if k not in ('num_key_value_heads', 'head_dim')})
    ),
    gpt2=lambda: tf.GPT2LMHeadModel(
        tf.GPT2Config(vocab_size=30, n_embd=32, n_layer=2, n_head=2, n_positions=64)),
)

@pytest.fixture
def tok():
    return word_tokenizer(WORDS)

def prompts():
    return [[5, 6, 7], [8]*12, [9, 10, 11, 12, 13, 14, 15], [5, 6, 7], [20, 4]]

def fresh(family):
    torch.manual_seed(0)
    model = FAMILIES[family]().eval()
    for p in model.parameters():
        p.data.mul_(4)  # so that scores differ by more than rounding
    return model

def test_what_a_row_is_filled_up_with_is_a_number_whatever_computes_attention(tok):
    policy = Policy(fresh('llama'), tok)
    fused, _ = policy.logps(prompts(), [[4]]*5)
    policy.model.set_attn_implementation('eager')
    torch.testing.assert_close(policy.logps(prompts(), [[4]]*5)[0], fused)

@pytest.mark.parametrize('family', FAMILIES)
class TestFamily:
    def test_logprobs_are_those_of_a_plain_forward_pass(self, family, tok):
        policy = Policy(fresh(family), tok)
        replies = policy.generate(prompts(), generator=torch.Generator().manual_seed(1), max_new_tokens=9)
        lp, mask = policy.logps([r.prompt_ids for r in replies], [r.token_ids for r in replies])
        for k, r in enumerate(replies):
            n = len(r.token_ids)
            plain = (
                policy.model(torch.tensor([r.prompt_ids + r.token_ids]))
                .logits[0, -n - 1 : -1]
                .log_softmax(-1)[range(n), r.token_ids]
            )
            torch.testing.assert_close(lp[k, :n], plain, atol=1e-5, rtol=0)
            torch.testing.assert_close(torch.tensor(r.logprobs), plain.detach(), atol=1e-5, rtol=0)
            assert mask[k].tolist() == [1.]*n + [0.]*(mask.shape[1]-n)

    def test_greedy_replies_are_those_of_generate(self, family, tok):
        policy = Policy(fresh(family), tok)
        for p, r in zip(prompts(), policy.generate(prompts(), temperature=0, max_new_tokens=9)):
            theirs = policy.model.generate(torch.tensor([p]), do_sample=False, max_new_tokens=9,
                                           eos_token_id=tok.eos_token_id, pad_token_id=0)
            assert r.token_ids == theirs[0, len(p):].tolist()

    def test_it_comes_back_from_its_folder(self, family, tok, tmp_path):
        policy = Policy(fresh(family), tok)
        again = Policy.load(policy.save(tmp_path/'a'))
        text = 'Put the clean egg 2 in a cabinet 1: <think> go </think>'
        assert again.encode(text) == policy.encode(text) and again.tokenizer.decode(
            again.encode(text)) == policy.tokenizer.decode(policy.encode(text))
        assert torch.equal(again.logps(prompts(), prompts())[0], policy.logps(prompts(), prompts())[0])
        again.save(tmp_path/'b')
        assert folder(tmp_path/'a') == folder(tmp_path/'b')

def folder(d):
    return {p.name: p.read_bytes() for p in Path(d).iterdir()}
def sampled(policy, ps, **kw):
    return [r.token_ids for r in policy.generate(ps, generator=torch.Generator().manual_seed(3), **kw)]

def test_pad_and_end_may_be_one_token_or_two(tok):
    other = word_tokenizer(WORDS)
    other.pad_token = other.eos_token
    a, b = Policy(tiny_model(30), tok), Policy(tiny_model(30), other)
    assert sampled(a, prompts()) == sampled(b, prompts())
    other.padding_side = 'right'
    assert sampled(a, prompts()) == sampled(b, prompts())

def test_a_tokenizer_without_pad_gets_one_and_without_end_is_refused(tok):
    tok.pad_token = None
    assert Policy(tiny_model(30), tok).tokenizer.pad_token == '<eos>'
    tok.eos_token = None
    with pytest.raises(ValueError, match='no eos_token'):
        Policy(tiny_model(30), tok)

def test_every_end_token_of_the_generation_settings_ends_a_reply(tok):
    model = tiny_model(30)
    model.generation_config.eos_token_id = list(range(10, 20))
    replies = Policy(model, tok).generate(prompts()*10, generator=torch.Generator().manual_seed(0))
    ends = {2, *range(10, 20)}
    assert (
        all(set(r.token_ids[:-1]).isdisjoint(ends) for r in replies)
        and {r.token_ids[-1] for r in replies} <= ends
    )
    assert len({r.token_ids[-1] for r in replies}) > 5

def test_a_cut_reply_has_no_end_token(tok):
    assert all(len(r) <= 2 for r in sampled(Policy(tiny_model(30), tok), prompts(), max_new_tokens=2))

@pytest.mark.parametrize('batch_size', [1, 2, 3, 7, 64])
def test_batch_size_changes_nothing(tok, batch_size):
    policy = Policy(tiny_model(30), tok)
    many = prompts()*6
    assert sampled(policy, many, batch_size=batch_size) == sampled(policy, many)

def test_gradients_do_not_depend_on_the_batch(tok):
    def grads(batches):
        policy = Policy(tiny_model(30), tok)
        for b in batches:
            lp, mask = policy.logps([prompts()[i] for i in b], [prompts()[-i-1] for i in b])
            (lp*mask).sum().backward()
        return torch.cat([p.grad.flatten() for p in policy.model.parameters()])
    together = grads([range(5)])
    torch.testing.assert_close(grads([[4, 2], [0], [3, 1]]), together,
                               atol=1e-5 * together.abs().max().item(), rtol=1e-4)

def test_dropout_is_off_while_writing_and_back_afterwards(tok):
    policy = Policy(FAMILIES['gpt2'](), tok)
    policy.model.train()
    a, b = sampled(policy, prompts()), sampled(policy, prompts())
    assert a == b and policy.model.training

def test_the_tokenizer_is_saved_as_it_was_made(tok, tmp_path):
    policy = Policy(tiny_model(30), tok)
    policy.save(tmp_path/'a')
    tok(['egg', 'egg in cabinet 1'], padding=True, truncation=True, max_length=2)
    policy.save(tmp_path/'b')
    assert folder(tmp_path/'a') == folder(tmp_path/'b')

def test_whoever_may_read_the_configuration_may_read_the_weights(tok, tmp_path):
    d = Policy(tiny_model(30), tok).save(tmp_path/'p')
    assert len({f.stat().st_mode for f in d.iterdir()}) == 1

def damage(name, change):
    def f(d):
        (d/name).write_bytes(change((d/name).read_bytes()))
    return f
def without_a_layer(d):
    from safetensors.torch import load_file, save_file
    w = load_file(d/'model.safetensors')
    save_file({k: v for k, v in w.items() if 'layers.1.' not in k}, d / 'model.safetensors',
              metadata={'format': 'pt'})
def smaller(d):
    c = json.loads((d/'config.json').read_text())
    (d/'config.json').write_text(json.dumps(c | dict(hidden_size=32)))

@pytest.mark.parametrize(
    'breakage',
    [
        damage('model.safetensors', lambda b: b[:-9]),
        damage('model.safetensors', lambda b: b''),
        damage('config.json', lambda b: b[:50]),
        damage('tokenizer.json', lambda b: b[:50]),
        damage('tokenizer_config.json', lambda b: b[:20]),
        lambda d: (d / 'model.safetensors').unlink(),
        lambda d: (d / 'config.json').unlink(),
        lambda d: (d / 'tokenizer.json').unlink(),
        without_a_layer,
        smaller,
    ],
)
def test_a_broken_folder_is_one_sentence(tok, tmp_path, breakage):
    d = Policy(tiny_model(30), tok).save(tmp_path/'p')
    breakage(d)
    with pytest.raises(ValueError) as e:
        Policy.load(d)
    said = str(e.value)
    assert str(d) in said and 'save or copy it again' in said and '\n' not in said, said

@pytest.mark.parametrize('where', ['nowhere', 'no-such-org/no-such-model', 'a/b/c/d'])
def test_a_missing_policy_is_one_sentence(where, tmp_path):
    for w in (where, tmp_path/where):
        with pytest.raises(FileNotFoundError, match='there is no policy') as e:
            Policy.load(w)
        assert '\n' not in str(e.value)

def test_a_full_disk_leaves_the_earlier_policy(tok, tmp_path):
    d = Policy(tiny_model(30), tok).save(tmp_path/'p')
    before, limits = folder(d), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match='what was there before is untouched'):
            Policy(tiny_model(30, seed=1), tok).save(d)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert folder(d) == before and [p.name for p in tmp_path.iterdir()] == ['p']

FIRST_RUN = """
from skillrl.cli.main import main
main(['eval', '--set', 'env.test_tasks=1', 'env.max_steps=2'])
"""

def test_a_first_run_announces_nothing_that_will_go(tmp_path):
    "Neither by a warning nor by a line of a library's log"
    done = subprocess.run([sys.executable, '-W', 'always::FutureWarning', '-c', FIRST_RUN],
                          cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and 'deprecated' not in done.stderr, done.stderr

def test_a_prompt_is_never_cut_or_filled_up_as_another_call_wanted(tok):
    policy, text = Policy(tiny_model(vocab_size=len(tok)), tok), 'put clean egg in cabinet'
    before = policy.encode(text)
    tok(text, truncation=True, max_length=2, padding='max_length')
    assert policy.encode(text) == policy.encode([dict(role='user', content=text)]) == before
    tok(text, padding='max_length', max_length=30)
    assert policy.encode(text) == before and len(before) == 5
