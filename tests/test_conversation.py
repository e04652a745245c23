"""Conversations that grow: what was sampled is what is read on from, and what is trained on"""
import random
from dataclasses import replace
import pytest, torch
from skillrl.agent.episode import Episode, StepRow, rollout
from skillrl.agent.prompt import Limits
from skillrl.core.config import AgentConfig, RLConfig, SkillRLConfig
from skillrl.llm.reply import between
from skillrl.envs.base import world
from skillrl.llm.local import Policy
from skillrl.llm.prefixes import prefix_tree
from skillrl.core.store import data_path
from skillrl.training.rl import GRPOTrainer, minibatches

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
    steps = minibatches(rows, 1, random.Random(0))
    assert sorted(len(step) for step in steps) == sorted(len(e.rows) for e in played(base))
    tree = prefix_tree([r.prompt_ids + r.reply_ids for r in rows])
    assert sum(map(len, tree.paths))/len(tree.ids) > 3

def test_the_trainer_learns_the_same_with_and_without_sharing(base):
    rows = [replace(row, advantage=(-1.)**i) for i, e in enumerate(played(base)) for row in e.rows]
    weights = []
    for share in (False, True):
        trainer = GRPOTrainer(base.frozen_copy(), RLConfig(), shares=share)
        trainer.tokens = 3_000
        trainer.policy.model.requires_grad_(True)
        if share:
            trainer.read_reference(rows)
        trainer.loss(rows)[0].backward()
        weights.append(torch.cat([p.grad.flatten() for p in trainer.policy.model.parameters()]))
    for r in rows:
        r.reference = None
    assert (weights[0] - weights[1]).norm() < 1e-4*weights[0].norm()

def test_rows_of_a_micro_batch_fill_no_more_tokens_than_allowed(base):
    trainer = GRPOTrainer(base, RLConfig())
    trainer.tokens = 500
    rows = [StepRow([5]*n, [6]*3) for n in random.Random(0).sample(range(10, 400), 80)]
    chunks = trainer.cut(rows)
    assert sum(map(len, chunks)) == 80
    for chunk in chunks:
        area = len(chunk)*max(len(r.prompt_ids) + 3 for r in chunk)
        assert area <= 500 or len(chunk) == 1

class Letters:
    "A tokenizer of single letters, whose template ends a reply with `$`"
    def apply_chat_template(self, chat, tokenize, add_generation_prompt):
        return ''.join(m['content'] + '$' for m in chat) + '>'

    def __call__(self, text, add_special_tokens):
        return dict(input_ids=list(text))

def test_an_end_token_that_was_written_is_not_asked_for_again():
    assert between(Letters(), 'hi', '$') == list('hi$>')
    assert between(Letters(), 'hi') == list('$hi$>')
