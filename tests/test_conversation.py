"""Conversations that grow: what was sampled is what is read on from, and what is trained on"""
import random
from dataclasses import replace
import pytest, torch
from skillrl.agent.episode import Episode, StepRow, demonstrate, rollout
from skillrl.agent.prompt import Limits
from skillrl.core.config import AgentConfig, RLConfig, SkillRLConfig
from skillrl.llm.reply import between
from skillrl.envs.base import world
from skillrl.llm.local import Policy, Reply
from skillrl.core.store import data_path
from skillrl.training.phases import drawn_rows
from skillrl.training.rl import GRPOTrainer
from skillrl.training.sft import by_conversation, encode_rows, micro_batches, minibatches

APPENDED = AgentConfig(conversation='appended')

@pytest.fixture(scope='module')
def base():
    return Policy.load(data_path('base'))

def group(n=3, steps=4, agent=APPENDED):
    suite = world('alfworld').suites(SkillRLConfig().env)[0][0]
    (game,) = suite.games('train', 1)
    return [Episode(suite.env(game, steps), game, agent=agent) for _ in range(n)]

def played(policy, **limits):
    episodes = group()
    rollout(episodes, policy, 1., torch.Generator().manual_seed(0), limits=Limits(**limits))
    return episodes

def test_every_row_begins_with_what_was_read_and_sampled_before(base):
    for e in played(base):
        assert [row.reply_ids for row in e.rows] == [step.token_ids for step in e.steps]
        for before, row in zip(e.rows, e.rows[1:]):
            known = before.prompt_ids + before.reply_ids
            assert row.prompt_ids[:len(known)] == known
        assert e.last is None # Nothing that was read outlives the episode

def test_log_probs_of_what_was_read_on_are_those_of_whole_rows(base):
    rows = [row for e in played(base) for row in e.rows]
    lp, mask = base.logps([r.prompt_ids for r in rows], [r.reply_ids for r in rows])
    noted = torch.nn.utils.rnn.pad_sequence([torch.tensor(r.logprobs) for r in rows], batch_first=True)
    torch.testing.assert_close(lp.detach()*mask, noted, atol=1e-4, rtol=0)

def test_a_conversation_that_no_longer_fits_begins_anew(base):
    longest = max(len(row.prompt_ids) for e in played(base) for row in e.rows)
    rows = [row for e in played(base, max_prompt_tokens=longest - 1) for row in e.rows]
    assert max(len(row.prompt_ids) for row in rows) < longest

def test_a_step_of_the_optimizer_has_whole_conversations(base):
    rows = [row for e in played(base) for row in e.rows]
    steps = minibatches(by_conversation(rows), 1)
    assert [len(step) for step in steps] == [len(e.rows) for e in played(base)]
    assert [len(step) for step in minibatches(by_conversation(rows), 5)] == [8, 4]

def test_the_trainer_learns_from_conversations_what_it_learns_from_rows(base):
    rows = [replace(row, advantage=(-1.)**i) for i, e in enumerate(played(base)) for row in e.rows]
    weights = []
    for order in (rows, rows[::-1]): # Backwards no row goes on from the one before
        trainer = GRPOTrainer(base.frozen_copy(), RLConfig())
        trainer.policy.model.requires_grad_(True)
        trainer.loss(order)[0].backward()
        weights.append(torch.cat([p.grad.flatten() for p in trainer.policy.model.parameters()]))
    assert (weights[0] - weights[1]).norm() < 1e-4*weights[0].norm()

def test_rows_of_a_micro_batch_fill_no_more_tokens_than_allowed():
    rows = [StepRow([5]*n, [6]*3) for n in random.Random(0).sample(range(10, 400), 80)]
    chunks = micro_batches(rows, 500)
    assert sum(map(len, chunks)) == 80
    for chunk in chunks:
        area = len(chunk)*max(len(r.prompt_ids) + 3 for r in chunk)
        assert area <= 500 or len(chunk) == 1

def test_conversations_are_drawn_whole():
    def turn(name, i):
        said = [dict(role=('user', 'assistant')[k%2], content=f'{name} {k}') for k in range(2*i + 2)]
        return dict(prompt=said[:-1], completion=said[-1]['content'])
    talks = [[turn(name, i) for i in range(3)] for name in 'ab']
    rows = [row for talk in talks for row in talk]
    orders = [drawn_rows(rows, SkillRLConfig(seed=seed)) for seed in range(5)]
    assert rows in orders and talks[1] + talks[0] in orders
    assert all(order in (rows, talks[1] + talks[0]) for order in orders)

def test_a_micro_batch_counts_a_conversation_once(base):
    rows = [row for e in played(base) for row in e.rows]
    longest = max(row.length for row in rows)
    assert [len(chunk) for chunk in micro_batches(rows, 3*longest)] == [12]
    assert [len(chunk) for chunk in micro_batches(rows, 2*longest)] == [8, 4]

def test_demonstrations_are_the_conversation_that_is_played(base):
    (e,) = group(1, 6, replace(APPENDED, reply='action', decode='admissible'))
    expert = world('alfworld').expert(e.start().task, random.Random(0), .9)
    _, demos = demonstrate(e, expert)
    rows = encode_rows(demos, base)
    replies = iter(rows)
    class Same(Policy):
        def generate(self, prompts, **kw):
            return [Reply(base.tokenizer.decode(r.reply_ids, skip_special_tokens=True), r.reply_ids,
                          [0.]*len(r.reply_ids), list(p)) for p, r in zip(prompts, replies)]
    (again,) = group(1, 6, e.agent)
    rollout([again], Same(base.model, base.tokenizer))
    assert [row.prompt_ids for row in again.rows] == [row.prompt_ids for row in rows]
    assert len(by_conversation(rows)) == 1 and len(rows) > 2
    assert ['Actions' in d['prompt'][-1]['content'] for d in demos[1:]] == [False]*(len(demos) - 1)

class Letters:
    "A tokenizer of single letters, whose template ends a reply with `$`"
    def apply_chat_template(self, chat, tokenize, add_generation_prompt):
        return ''.join(m['content'] + '$' for m in chat) + '>'

    def __call__(self, text, add_special_tokens):
        return dict(input_ids=list(text))

def test_an_end_token_that_was_written_is_not_asked_for_again():
    assert between(Letters(), 'hi', '$') == list('hi$>')
    assert between(Letters(), 'hi') == list('$hi$>')

# ---- a chat template without a system role ----

STRICT = ("{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
          "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
          "{{ m.content }} {{ eos_token }}{% endfor %}")

@pytest.fixture
def strict(tmp_path):
    "The shipped weights with the words of the contract and a template that refuses a system message"
    from skillrl.agent.contract import CONTRACT
    from skillrl.llm.local import tiny_model, word_tokenizer
    words = [*Policy.load(data_path('base')).tokenizer.get_vocab(), *CONTRACT.lower().split()]
    tok = word_tokenizer(words)
    tok.chat_template = STRICT
    Policy(tiny_model(len(tok), hidden=32), tok).save(tmp_path/'strict')
    return Policy.load(tmp_path/'strict')

@pytest.mark.parametrize('how', ['rendered', 'appended'])
def test_a_template_without_a_system_role_reads_the_contract_first_in_sft_and_in_play(strict, how):
    agent = AgentConfig(conversation=how, decode='admissible')
    (e,) = group(1, 4, agent)
    _, demos = demonstrate(e, world('alfworld').expert(e.start().task, random.Random(0), .9))
    rows = encode_rows(demos, strict)
    system, user = (m['content'] for m in demos[0]['prompt'])
    assert rows[0].prompt_ids == strict.encode(f'{system}\n\n{user} <eos>')
    said = iter(rows)
    class Same(Policy):
        def generate(self, prompts, **kw):
            new = [next(said).reply_ids for _ in prompts]
            return [Reply(self.tokenizer.decode(ids, skip_special_tokens=True), ids, [0.]*len(ids), list(p))
                    for ids, p in zip(new, prompts)]
    (again,) = group(1, 4, agent)
    rollout([again], Same(strict.model, strict.tokenizer))
    assert [row.prompt_ids for row in again.rows] == [row.prompt_ids for row in rows]
    lp, mask = strict.logps([r.prompt_ids for r in again.rows], [r.reply_ids for r in again.rows])
    assert torch.isfinite(lp).all() and int(mask.sum()) == sum(len(r.reply_ids) for r in rows)

def test_doctor_takes_a_template_without_a_system_role(strict, tmp_path, capsys):
    from skillrl.cli.main import main
    main(['doctor', '--policy', str(tmp_path/'strict')])
    assert 'the chat template takes all messages' in capsys.readouterr().out
