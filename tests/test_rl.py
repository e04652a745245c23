"What GRPO learns from: scores between lost and won, and steps that were no valid action"
import math
from copy import deepcopy
from dataclasses import replace
import pytest, torch
from skillrl.agent.episode import Episode, StepRow, rollout
from skillrl.core.config import RLConfig
from skillrl.envs.base import TextEnv
from skillrl.llm.local import Policy, tiny_model, word_tokenizer
from skillrl.training.grpo import group_advantage
from skillrl.training.rl import GRPOTrainer, _scored_rows
from skillrl.training.sft import FullOptions, encode_rows, full_sft

SIZES = {'shirt 1': 0., 'shirt 2': .25, 'shirt 3': .5, 'shirt 4': 1.}

class Wish:
    id = 'a shirt'
    task, category = 'buy a shirt.', 'shop'

class Shop:
    "Four shirts, each of which is paid by how well it fits"
    won = paid = False
    def reset(self):
        return 'You see a shirt 1, a shirt 2, a shirt 3, and a shirt 4.'
    def admissible(self):
        return [f'buy {s}' for s in SIZES]
    def step(self, command):
        self.paid = SIZES.get(command.removeprefix('buy '), 0.)
        self.won = self.paid == 1
        return 'You leave.'

class ShopEnv(TextEnv):
    def start(self, game):
        return Shop()
    def score(self):
        return float(self.engine.paid)

def tries(n=8):
    return [Episode(ShopEnv([Wish()], max_steps=1)) for _ in range(n)]
def reply(action):
    return f'<think> look </think> <action> {action} </action>'

@pytest.fixture(scope='module')
def shopper():
    "Knows the form of a reply and buys anything; one reply in five is no shirt of this shop"
    words = 'task buy actions now see look did skill holding shirt'.split()
    words += ['<think>', '</think>', '<action>', '</action>', ':']
    tokenizer = word_tokenizer([*words, *SIZES, 'shirt 9'])
    shopper, prompt = Policy(tiny_model(len(tokenizer), hidden=32), tokenizer), tries(1)[0].messages()
    rows = [dict(prompt=prompt, completion=reply(f'buy {s}')) for s in [*SIZES, 'shirt 9']*8]
    full_sft(encode_rows(rows, shopper), shopper, FullOptions(steps=100, lr=5e-3, batch_size=20))
    return shopper

@pytest.fixture
def policy(shopper):
    return Policy(deepcopy(shopper.model), shopper.tokenizer)

def chance(policy, action):
    with torch.no_grad():
        ids = policy.encode(reply(action)) + [policy.tokenizer.eos_token_id]
        lp, mask = policy.logps([policy.encode(tries(1)[0].messages())], [ids])
    return (lp*mask).sum().item()

def test_a_reward_between_0_and_1_reaches_the_advantage(policy):
    "Today only `won` counts: three shirts that fit more or less are all worth 0"
    group = tries(4)
    for e, shirt in zip(group, SIZES):
        e.start()
        step = e.act(f'buy {shirt}')
        e.rows = [StepRow([1], [2], [-1.])]
        assert step.reward == SIZES[shirt] and e.score == SIZES[shirt] == e.trajectory().score
    rows, seen = _scored_rows([group])
    assert [r.advantage for r in rows] == pytest.approx(group_advantage(list(SIZES.values()), [0]*4).tolist())
    assert (seen['success'], seen['score']) == (.25, .4375)

def test_grpo_climbs_partial_rewards(policy):
    "No try of these groups wins outright, so only the partial reward can teach"
    def ten(seed):
        groups = [tries() for _ in range(8)]
        generator = torch.Generator().manual_seed(seed)
        rollout([e for group in groups for e in group], policy, generator=generator)
        return [[e for e in g if not e.won] for g in groups]
    def prefers():
        return chance(policy, 'buy shirt 3') - chance(policy, 'buy shirt 1')
    trainer, before = GRPOTrainer(policy, RLConfig(learning_rate=1e-3)), prefers()
    for seed in range(4):
        trainer.learn(ten(seed), seed)
    assert prefers() > before + .5

def test_without_a_penalty_nobody_reads_the_reference(policy):
    group = tries()
    rollout(group, policy, generator=torch.Generator().manual_seed(0))
    weights = []
    for coefficient in (1e-12, 0.):
        trainer = GRPOTrainer(policy.frozen_copy(), RLConfig(kl_coeff=coefficient))
        trainer.reference = trainer.reference if coefficient else None
        trainer.policy.model.requires_grad_(True)
        trainer.learn([group])
        weights.append(torch.cat([p.flatten() for p in trainer.policy.model.parameters()]))
    assert torch.allclose(*weights, atol=1e-6)

@pytest.mark.parametrize('rewards,won,score', [([0, 1], True, 1), ([0, 0], True, 1), ([10], True, 1),
                                               ([.3, .4], False, .7), ([-1], False, 0), ([], False, 0)])
def test_a_score_lies_between_0_and_1(rewards, won, score):
    e = tries(1)[0].start()
    for r in rewards:
        e.done = False
        e.act('buy shirt 1').reward = float(r)
    e.won = won
    assert e.score == pytest.approx(score)

def test_a_reward_that_is_no_number_is_refused_by_name():
    group = tries(2)
    for e in group:
        e.start()
        e.act('buy shirt 1').reward = math.nan
        e.rows = [StepRow([1], [2], [-1.])]
    with pytest.raises(ValueError, match=r'returns\[0\] is nan'):
        _scored_rows([group])

# ---- what the trainer passes on from its config and its rows ----

def bought(policy, n=4):
    "Rows of a group of `n` episodes that `policy` played"
    group = tries(n)
    rollout(group, policy, generator=torch.Generator().manual_seed(1))
    return _scored_rows([group])[0] or [replace(row, advantage=1.) for e in group for row in e.rows]

def test_a_gradient_that_is_no_number_moves_nothing(policy):
    trainer = GRPOTrainer(policy, RLConfig())
    before = [p.detach().clone() for p in policy.model.parameters()]
    row = bought(policy)[0]
    lp, _ = policy.logps([row.prompt_ids], [row.reply_ids])
    (math.inf*lp).sum().backward()
    with pytest.raises(FloatingPointError, match='the gradient norm is .* lower rl.learning_rate'):
        trainer._step()
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters()))

def test_gradients_of_earlier_training_do_not_reach_the_first_step(policy):
    lp, _ = policy.logps([[5, 6]], [[7]])
    lp.sum().backward()
    assert all(p.grad is None for p in GRPOTrainer(policy, RLConfig()).policy.model.parameters())
