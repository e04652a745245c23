"What GRPO learns from: scores between lost and won, and steps that were no valid action"
import math
from copy import deepcopy
import pytest, torch
from skillrl.agent import Episode, StepRow
from skillrl.config import RLConfig
from skillrl.envs.base import TextEnv
from skillrl.llm.local import Policy, tiny_model, word_tokenizer
from skillrl.training.grpo import group_advantage
from skillrl.training.rl import GRPOTrainer, play, scored_rows
from skillrl.training.sft import encode_rows, full_sft

SIZES = {'shirt 1': 0., 'shirt 2': .25, 'shirt 3': .5, 'shirt 4': 1.}

class Wish:
    id, task, category = 'a shirt', 'buy a shirt.', 'shop'

class Shop:
    "Four shirts, each of which is paid by how well it fits"
    won = paid = False
    def reset(self): return 'You see a shirt 1, a shirt 2, a shirt 3, and a shirt 4.'
    def admissible(self): return [f'buy {s}' for s in SIZES]
    def step(self, command):
        self.paid = SIZES.get(command.removeprefix('buy '), 0.)
        self.won = self.paid == 1
        return 'You leave.'

class ShopEnv(TextEnv):
    def start(self, game): return Shop()
    def score(self): return float(self.engine.paid)

def tries(n=8): return [Episode(ShopEnv([Wish()], max_steps=1)) for _ in range(n)]
def reply(action): return f'<think> look </think> <action> {action} </action>'

@pytest.fixture(scope='module')
def shopper():
    "Knows the form of a reply and buys anything; one reply in five is no shirt of this shop"
    words = 'task buy actions now see look did skill holding shirt <think> </think> <action> </action> :'.split()
    tokenizer = word_tokenizer([*words, *SIZES, 'shirt 9'])
    shopper, prompt = Policy(tiny_model(len(tokenizer), hidden=32), tokenizer), tries(1)[0].messages()
    rows = [dict(prompt=prompt, completion=reply(f'buy {s}')) for s in [*SIZES, 'shirt 9']*8]
    full_sft(encode_rows(rows, shopper), shopper, steps=100, lr=5e-3, batch_size=20)
    return shopper

@pytest.fixture
def policy(shopper): return Policy(deepcopy(shopper.model), shopper.tokenizer)

def chance(policy, action):
    with torch.no_grad():
        lp, mask = policy.logps([policy.encode(tries(1)[0].messages())], [policy.encode(reply(action)) + [policy.tokenizer.eos_token_id]])
    return (lp*mask).sum().item()

def test_a_reward_between_0_and_1_reaches_the_advantage(policy):
    "Today only `won` counts: three shirts that fit more or less are all worth 0"
    group = tries(4)
    for e, shirt in zip(group, SIZES):
        e.start()
        step = e.act(f'buy {shirt}')
        e.rows = [StepRow([1], [2], [-1.])]
        assert step.reward == SIZES[shirt] and e.score == SIZES[shirt] == e.trajectory().score
    rows, seen = scored_rows([group])
    assert [r.advantage for r in rows] == pytest.approx(group_advantage(list(SIZES.values()), [0]*4).tolist())
    assert (seen['success'], seen['score']) == (.25, .4375)

def test_grpo_climbs_partial_rewards(policy):
    "No try of these groups wins outright, so only the partial reward can teach"
    def ten(seed):
        groups = [tries() for _ in range(8)]
        play(groups, policy, seed=seed)
        return [[e for e in g if not e.won] for g in groups]
    trainer, before = GRPOTrainer(policy, RLConfig(learning_rate=1e-3)), chance(policy, 'buy shirt 3') - chance(policy, 'buy shirt 1')
    for seed in range(4): trainer.learn(ten(seed), seed)
    assert chance(policy, 'buy shirt 3') - chance(policy, 'buy shirt 1') > before + .5

def test_an_invalid_action_costs_something_in_a_zero_variance_group(policy):
    "Four lost episodes: three bought a shirt that does not fit, one asked for a shirt that is not there"
    def lost():
        group = tries(4)
        for e, action in zip(group, ['buy shirt 1', 'buy shirt 1', 'buy shirt 1', 'buy shirt 9']):
            prompt = policy.encode(e.messages())
            ids = policy.encode(reply(action)) + [policy.tokenizer.eos_token_id]
            with torch.no_grad(): lp, _ = policy.logps([prompt], [ids])
            step = e.act(action, ok=action in e.admissible)
            e.rows = [StepRow(prompt, ids, lp[0].tolist(), step.ok)]
        return group
    rows, seen = scored_rows([lost()], penalty=.1)
    assert [r.advantage for r in rows] == pytest.approx([-.1]) and seen['rows'] == 1 and seen['skipped_groups'] == 0
    trainer, before = GRPOTrainer(policy, RLConfig(learning_rate=1e-3)), chance(policy, 'buy shirt 9')
    for _ in range(3): trainer.learn([lost()])
    assert chance(policy, 'buy shirt 9') < before - .1

def test_a_zero_variance_group_without_invalid_steps_or_penalty_leaves_no_row(policy):
    group = tries(4)
    for e in group:
        e.start()
        e.act('buy shirt 1')
        e.rows = [StepRow([1], [2], [-1.]), StepRow([1], [3], [-1.], False)]
    rows, seen = scored_rows([group], penalty=0)
    assert rows == [] and seen['skipped_groups'] == 1

@pytest.mark.parametrize('rewards,won,score', [([0, 1], True, 1), ([0, 0], True, 1), ([10], True, 1), ([.3, .4], False, .7), ([-1], False, 0), ([], False, 0)])
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
    with pytest.raises(ValueError, match=r'returns\[0\] is nan'): scored_rows([group])
