"Commands chosen by their score: against one reading for each, in four architectures, and exact for GRPO"
from copy import deepcopy
from random import Random
import pytest, torch
from skillrl.agent import Episode, Limits, PromptContext, demonstrate, rollout, step_messages
from skillrl.builders import rollout_limits
from skillrl.config import AgentConfig, RLConfig, SkillRLConfig
from skillrl.contract import parse_reply
from skillrl.envs.alfworld.households import Household
from skillrl.envs.alfworld.suites import HouseholdSuite
from skillrl.envs.base import world
from skillrl.llm.decoding import Choices
from skillrl.llm.local import Policy
from skillrl.llm.scoring import Candidates, candidate_scores, choice_logps, reply_tree
from skillrl.llm.tiny import word_tokenizer
from skillrl.store import data_path
from skillrl.training.rl import GRPOTrainer, ScoredRow, play

PLACES = ['cabinet 1', 'cabinet 2', 'fridge 1']
COMMANDS = [f'go to {place}' for place in PLACES] + [f'open {place}' for place in PLACES] + ['look']
TOKENIZER = word_tokenizer('task : go to open look <action> </action>'.split() + PLACES)
PROMPTS = ['task : open cabinet 1', 'task : look', 'task : go to fridge 1 look look look']
SCORED = Limits(decode='score')
ACTS = AgentConfig(reply='action')

def small(name):
    "A random policy of an architecture"
    import transformers as t
    kinds = dict(llama=(t.LlamaConfig, t.LlamaForCausalLM), qwen2=(t.Qwen2Config, t.Qwen2ForCausalLM),
                 qwen3=(t.Qwen3Config, t.Qwen3ForCausalLM), gemma=(t.GemmaConfig, t.GemmaForCausalLM))
    config, model = kinds[name]
    torch.manual_seed(0)
    c = config(vocab_size=len(TOKENIZER), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
               num_attention_heads=4, num_key_value_heads=2, head_dim=8, initializer_range=.3)
    return Policy(model(c).eval(), TOKENIZER)

@pytest.fixture(scope='module')
def shipped():
    return Policy.load(data_path('base'))

def allowed(n, **kw):
    return [Choices(COMMANDS, thinks=False, scored=True, **kw)]*n

def one_by_one(policy, prompt, replies, length_norm=False):
    "The score of each reply, with a whole reading for it"
    out = []
    for ids in replies:
        z = policy.model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0].float().log_softmax(-1)
        lps = [z[len(prompt) - 1 + k, token] for k, token in enumerate(ids)]
        out.append(sum(lps)/(len(lps) if length_norm else 1))
    return torch.stack(out)

@pytest.fixture(scope='module', params=['llama', 'qwen2', 'qwen3', 'gemma'])
def policy(request):
    return small(request.param)

@pytest.mark.parametrize('at_once', [2**25, 1])
@pytest.mark.parametrize('length_norm', [False, True])
def test_scores_are_those_of_one_reading_for_each(policy, length_norm, at_once, monkeypatch):
    "Prompts of three lengths in one batch, and trees of two sizes"
    monkeypatch.setattr('skillrl.llm.scoring.MOST_SCORES', at_once)
    prompts = [policy.encode(text) for text in PROMPTS]
    replies = [policy.form.endings(c, thinks=False) for c in (COMMANDS, COMMANDS[:2], COMMANDS)]
    choices = [Candidates(tuple((*ids, 2) for ids in r), length_norm) for r in replies]
    with torch.no_grad():
        for prompt, c, got in zip(prompts, choices, candidate_scores(policy.model, prompts, choices)):
            want = one_by_one(policy, prompt, c.replies, length_norm)
            torch.testing.assert_close(got, want, atol=1e-4, rtol=0)

@pytest.mark.parametrize('at_once', [2**25, 1])
def test_the_gradient_of_a_choice_is_that_of_one_reading_for_each(policy, at_once, monkeypatch):
    monkeypatch.setattr('skillrl.llm.scoring.MOST_SCORES', at_once)
    prompt = policy.encode(PROMPTS[0])
    r, = policy.generate([prompt], generator=torch.manual_seed(0), allowed=allowed(1))
    replies = r.allowed.replies
    chosen = one_by_one(policy, prompt, replies).argmin()
    def gradient(loss):
        policy.model.zero_grad()
        loss.backward()
        return torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])
    lp, mask = policy.logps([prompt], [replies[chosen]], [r.allowed])
    ours = gradient((lp*mask).sum())
    plain = gradient(one_by_one(policy, prompt, replies).log_softmax(0)[chosen])
    torch.testing.assert_close(ours, plain, atol=2e-4, rtol=1e-3)
    assert plain.abs().max() > .1

def test_a_replys_tokens_share_the_log_prob_of_its_choice(policy):
    prompts = [policy.encode(text) for text in PROMPTS]*4
    for kw in ({}, dict(length_norm=True)):
        replies = policy.generate(prompts, 1.5, torch.manual_seed(1), allowed=allowed(12, **kw))
        with torch.no_grad():
            lp, mask = policy.logps(prompts, [r.token_ids for r in replies], [r.allowed for r in replies])
            for i, (prompt, r) in enumerate(zip(prompts, replies)):
                scores = one_by_one(policy, prompt, r.allowed.replies, **kw)
                want = scores.log_softmax(0)[r.allowed.replies.index(tuple(r.token_ids))].item()
                assert sum(r.logprobs) == pytest.approx(want, abs=1e-4)
                assert (lp*mask)[i].sum().item() == pytest.approx(want, abs=1e-4)
                assert len(r.logprobs) == len(r.token_ids) == mask[i].sum()

def test_long_prompts_are_read_a_few_at_a_time(policy, monkeypatch):
    from skillrl.llm import scoring
    prompts = [policy.encode(text) for text in PROMPTS]
    read, counts = scoring.node_logps, []
    def counted(model, some, trees):
        counts.append(len(some))
        return read(model, some, trees)
    monkeypatch.setattr(scoring, 'node_logps', counted)
    monkeypatch.setattr(scoring, 'MOST_READ', 2*max(map(len, prompts)))
    policy.generate(prompts, generator=torch.manual_seed(0), allowed=allowed(3))
    assert counts == [2, 1]

def test_temperature_0_takes_the_likeliest_and_1_draws_as_the_scores_say(policy):
    prompt = policy.encode(PROMPTS[0])
    greedy, = policy.generate([prompt], 0, allowed=allowed(1))
    with torch.no_grad():
        chances = one_by_one(policy, prompt, greedy.allowed.replies).softmax(0)
    assert greedy.allowed.replies[chances.argmax()] == tuple(greedy.token_ids)
    for temperature in (1., 3.):
        flat = chances.pow(1/temperature)
        flat = flat/flat.sum()
        drawn = policy.generate([prompt]*2000, temperature, torch.manual_seed(0), allowed=allowed(2000))
        counts = [sum(tuple(r.token_ids) == ids for r in drawn) for ids in greedy.allowed.replies]
        for p, n in zip(flat.tolist(), counts):
            assert abs(n/2000 - p) < 4*(p*(1 - p)/2000)**.5 + 1e-3

def test_one_token_commands_share_no_log_prob_with_their_beginnings():
    "Ten commands begin with the same tag: it decides nothing"
    scores = torch.tensor([1., 2., 3.])
    lps = choice_logps(scores, [(9, 1, 5), (9, 2, 5), (9, 2, 6)], 1)
    assert lps[0] == 0
    assert lps[1].item() == pytest.approx((scores[1:].logsumexp(0) - scores.logsumexp(0)).item())
    assert lps[2].item() == pytest.approx((scores[1] - scores[1:].logsumexp(0)).item())

def test_a_tree_keeps_each_beginning_once():
    tree = reply_tree([(9, 1, 5), (9, 2, 5), (9, 2, 6), (9, 1, 5)])
    assert len(tree.tokens) == 6 and tree.paths[0] == tree.paths[3]

# ---- playing and learning ----

def kitchen(n=4, max_steps=6, agent=ACTS):
    suites = [HouseholdSuite(Household(name, ('kitchen', 'living'))) for name in ('train-003', 'test-001')]
    return [Episode(s.env(g, max_steps), g, agent=agent) for s in suites for g in s.games('train', n)]

def test_every_choice_is_admissible_and_says_nothing_else(shipped):
    played = rollout(kitchen(), shipped, 1., torch.manual_seed(0), limits=SCORED)
    assert all(step.ok and step.action in step.admissible for t in played for step in t.steps)
    assert all(step.reply == f'<action> {step.action} </action>' for t in played for step in t.steps)

def test_one_seed_gives_one_choice_whatever_the_batch(shipped):
    live = [e.start() for e in kitchen()]
    prompts = [shipped.encode(e.messages()) for e in live]
    asked = [Choices(e.admissible, False, True) for e in live]
    def said(n):
        replies = shipped.generate(prompts, 1., torch.manual_seed(0), batch_size=n, allowed=asked)
        return [r.token_ids for r in replies]
    assert said(64) == said(64) == said(3) == said(1)

def test_the_first_update_has_ratio_one_and_prefers_what_was_rewarded(shipped):
    policy = Policy(deepcopy(shipped.model).requires_grad_(), shipped.tokenizer)
    game = kitchen(1)[0].game
    suite = HouseholdSuite(Household('train-003', ('kitchen', 'living')))
    group = [Episode(suite.env(game, 5), game, agent=ACTS) for _ in range(4)]
    play([group], policy, seed=0, limits=SCORED)
    rows = [ScoredRow(row, 1. if i % 2 else -1.) for i, row in enumerate(r for e in group for r in e.rows)]
    trainer = GRPOTrainer(policy, RLConfig(learning_rate=1e-3))
    loss, stats = trainer.loss(rows)
    assert stats['ratio'] == pytest.approx(1., abs=1e-4) and stats['clip_fraction'] == 0
    def gain():
        with torch.no_grad():
            parts = [r.row for r in rows]
            lp, mask = policy.logps([r.prompt_ids for r in parts], [r.reply_ids for r in parts],
                                    [r.allowed for r in parts])
        return (torch.tensor([r.advantage for r in rows])*(lp*mask).sum(1)).sum().item()
    before = gain()
    for _ in range(3):
        trainer.update([rows])
    assert gain() > before + 1

# ---- the form of a reply, from settings to rows ----

@pytest.mark.parametrize('prompt', ['ours', 'official'])
def test_no_prompt_and_no_demonstration_thinks_where_no_thought_is_wanted(prompt):
    agent = AgentConfig(prompt, history_length=2, reply='action')
    e = kitchen(1, 30, agent)[0]
    _, rows = demonstrate(e, world('alfworld').expert(e.start().task, Random(0)), Random(0))
    said = [m['content'] for row in rows for m in row['prompt']] + [row['completion'] for row in rows]
    assert not any('think' in text or 'reason' in text for text in said)
    assert all('<action> </action>' in row['prompt'][0]['content'] for row in rows)
    assert all(step.ok for step in e.steps) and len(rows) > 2

@pytest.mark.parametrize('name', ['alfworld', 'webshop', 'search'])
def test_every_published_prompt_can_do_without_a_thought(name):
    tasks = dict(alfworld='put a mug in cabinet.', webshop='find me a lamp', search='who was it?')
    context = PromptContext(tasks[name], 'You see a lamp.', ['look'], [('look', 'You see a lamp.')],
                            first=f'Your task is to: {tasks[name]}')
    for history in ([], context.history):
        context.history = history
        with_thought = step_messages(context, AgentConfig('official'), world(name))[0]['content']
        agent = AgentConfig('official', reply='action')
        without = step_messages(context, agent, world(name))[0]['content']
        assert '<think>' in with_thought and '<think>' not in without and 'reasoning' not in without
        kept = without.split('turn to')[0]
        assert with_thought.startswith(kept) and len(kept) > 20

def test_the_config_decides_how_commands_are_weighed():
    over = {'model.decode': 'score', 'agent.reply': 'action', 'model.length_norm': True}
    config = SkillRLConfig().merged(over)
    limits = rollout_limits(HouseholdSuite(Household('train-003', ('kitchen',))), config)
    assert (limits.decode, limits.length_norm) == ('score', True)

def test_scores_with_a_thought_before_them_are_refused():
    says = 'model.decode is score and agent.reply is think.action, .* set agent.reply to action'
    with pytest.raises(ValueError, match=says):
        SkillRLConfig().merged({'model.decode': 'score'})

def test_what_cannot_be_scored_is_refused():
    policy = small('qwen3')
    def ask(commands, **kw):
        policy.generate([[4]], allowed=[Choices(commands, False, True)], **kw)
    with pytest.raises(ValueError, match='can write none of the 1 admissible commands'):
        ask(['fly to moon'])
    with pytest.raises(ValueError, match='raise model.max_new_tokens to 6'):
        ask(COMMANDS, max_new_tokens=5)
    with pytest.raises(ValueError, match='give one for each'):
        policy.generate([[4], [4]], allowed=allowed(1))

def test_a_reply_without_a_thought_is_read_as_the_setting_says():
    said = '<action> look </action>'
    assert parse_reply(said, ['look'], form='action').ok and not parse_reply(said, ['look']).ok
    assert not parse_reply(said + ' now', ['look'], form='action').ok
