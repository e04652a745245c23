"""Conversations: the same log-probs, gradients and replies as row by row, whatever the model"""
import random
import pytest, torch
import transformers as hf
from skillrl.llm.reply import GrownPrompt
from skillrl.llm.decoding import chunked_logps
from skillrl.llm.local import _FAMILIES, Policy, has_plain_layers, word_tokenizer
from skillrl.llm.placement import checkpoint_gradients

SIZES = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, max_position_embeddings=256, pad_token_id=None)
CONFIGS = dict(llama=hf.LlamaConfig, qwen2=hf.Qwen2Config, qwen3=hf.Qwen3Config, gemma=hf.GemmaConfig,
               smollm3=hf.SmolLM3Config)
TOKENIZER = word_tokenizer([f'thing {i}' for i in range(40)])

def fresh(family, seed=0):
    torch.manual_seed(seed)
    config = CONFIGS[family](vocab_size=len(TOKENIZER), initializer_range=.2, **SIZES)
    return Policy(hf.AutoModelForCausalLM.from_config(config).eval(), TOKENIZER)

def conversations(rng, n=3, turns=4):
    "Prompts and replies of episodes of one task, each prompt the one before and more"
    first = [rng.randrange(4, 44) for _ in range(9)]
    for _ in range(n):
        prompt = first
        for _ in range(turns):
            reply = [rng.randrange(4, 44) for _ in range(rng.randint(1, 6))]
            yield prompt, reply
            prompt = prompt + reply + [rng.randrange(4, 44) for _ in range(rng.randint(1, 5))]

def gradient(policy, prompts, replies, together=True):
    "Log-probs and their gradient; or of each row on its own"
    policy.model.zero_grad()
    rows = [(prompts, replies)] if together else [([p], [r]) for p, r in zip(prompts, replies)]
    lps = []
    for some in rows:
        lp, mask = policy.logps(*some)
        (lp.exp()*mask).sum().backward()
        lps += [row[m > 0].detach() for row, m in zip(lp, mask)]
    grads = [p.grad.flatten() for p in policy.model.parameters() if p.grad is not None]
    return torch.cat(lps), torch.cat(grads)

def test_every_family_is_tested():
    assert set(CONFIGS) == set(_FAMILIES)

@pytest.mark.parametrize('family', CONFIGS)
def test_a_conversation_gives_the_log_probs_and_gradients_of_its_rows(family):
    policy, lengths = fresh(family), []
    prompts, replies = zip(*conversations(random.Random(0)))
    expected = gradient(policy, prompts, replies, together=False)
    forward = policy.model.get_decoder().forward
    def noting(input_ids, **kw):
        lengths.append(input_ids.shape)
        return forward(input_ids=input_ids, **kw)
    policy.model.get_decoder().forward = noting
    got = gradient(policy, prompts, replies)
    torch.testing.assert_close(got[0], expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got[1], expected[1], atol=1e-5, rtol=1e-4)
    assert lengths == [(3, max(len(p + r) for p, r in zip(prompts, replies)))]

@pytest.mark.parametrize('family', CONFIGS)
def test_what_was_read_is_gone_on_from(family):
    "Three turns of four conversations, one of which begins anew; the same tokens as when all is read again"
    policy, rng = fresh(family), random.Random(2)
    def add():
        return [rng.randrange(4, 44) for _ in range(rng.randint(1, 5))]
    prompts = [GrownPrompt(add()) for _ in range(4)]
    for turn in range(3):
        g = [torch.Generator().manual_seed(turn) for _ in range(2)]
        replies = policy.generate(prompts, generator=g[0], max_new_tokens=5)
        again = policy.generate([list(p) for p in prompts], generator=g[1], max_new_tokens=5)
        assert [r.token_ids for r in replies] == [r.token_ids for r in again]
        assert all(r.read is None for r in again)
        assert [r.read.n for r in replies] == [
            len(r.prompt_ids) + len(r.token_ids) - 1 for r in replies]
        prompts = [GrownPrompt(r.prompt_ids + r.token_ids + add(), r) for r in replies]
        prompts[turn] = GrownPrompt(add())

def test_only_new_tokens_are_read():
    policy, seen = fresh('qwen3'), []
    forward = policy.model.forward
    def noting(input_ids, **kw):
        seen.append(input_ids.shape[1])
        return forward(input_ids=input_ids, **kw)
    (r,) = policy.generate([GrownPrompt([7]*50)], temperature=0, max_new_tokens=3)
    policy.model.forward = noting
    policy.generate([GrownPrompt(r.prompt_ids + r.token_ids + [8, 9], r)], temperature=0, max_new_tokens=3)
    assert seen[0] == 3 # The last token of the reply, which nobody had read, and two new ones

def test_two_replies_to_one_prompt_disturb_neither():
    "What was read is written into by the first that goes on from it"
    policy = fresh('qwen3')
    (r,) = policy.generate([GrownPrompt([7]*50)], temperature=0, max_new_tokens=3)
    ways = [GrownPrompt(r.prompt_ids + r.token_ids + [8, i], r) for i in (9, 20)]
    first, other = (policy.generate([way], temperature=0, max_new_tokens=3)[0] for way in ways)
    longer = GrownPrompt(first.prompt_ids + first.token_ids + [30], first)
    together = policy.generate([longer, ways[1]], temperature=0, max_new_tokens=3)
    afresh = policy.generate([list(longer), list(ways[1])], temperature=0, max_new_tokens=3)
    assert [x.token_ids for x in together] == [x.token_ids for x in afresh]
    assert together[1].token_ids == other.token_ids

def test_a_prompt_that_does_not_go_on_is_refused():
    policy = fresh('qwen3')
    (r,) = policy.generate([GrownPrompt([7, 8])], max_new_tokens=2)
    for prompt in ([7, 9] + r.token_ids + [5], r.prompt_ids + r.token_ids):
        with pytest.raises(ValueError, match='does not go on'):
            GrownPrompt(prompt, r)

def test_layers_that_keep_nothing_for_backward_read_a_conversation_again():
    "Gradient checkpointing runs a layer a second time while gradients are computed"
    policy = fresh('qwen3')
    prompts, replies = zip(*conversations(random.Random(5)))
    expected = gradient(policy, prompts, replies)
    checkpoint_gradients(policy.model)
    torch.testing.assert_close(gradient(policy, prompts, replies)[1], expected[1], atol=1e-5, rtol=1e-4)

def test_a_model_with_another_way_to_look_back_reads_row_by_row():
    config = hf.MistralConfig(vocab_size=len(TOKENIZER), sliding_window=4, **SIZES)
    torch.manual_seed(0)
    policy = Policy(hf.AutoModelForCausalLM.from_config(config).eval(), TOKENIZER)
    assert not has_plain_layers(policy.model)
    prompts, replies = zip(*conversations(random.Random(0)))
    expected = gradient(policy, prompts, replies, together=False)
    torch.testing.assert_close(gradient(policy, prompts, replies)[0], expected[0], atol=1e-5, rtol=1e-5)

def test_a_large_vocabulary_is_scored_in_pieces(monkeypatch):
    "The scores of a policy of 44 words, were 100 of them too many to hold"
    import skillrl.llm.local as local
    policy = fresh('gemma')
    prompts, replies = zip(*conversations(random.Random(6)))
    expected = gradient(policy, prompts, replies)
    calls = []
    def pieces(*a):
        calls.append(len(a[2]))
        return chunked_logps(*a, scores=100)
    monkeypatch.setattr(local, 'MOST_SCORES', 100)
    monkeypatch.setattr(local, 'chunked_logps', pieces)
    got = gradient(policy, prompts, replies)
    assert calls == [sum(map(len, replies))]
    torch.testing.assert_close(got[0], expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got[1], expected[1], atol=1e-5, rtol=1e-4)
