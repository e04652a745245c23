"Decoding among admissible commands: any tokenizer, exact log-probs, no repetition"
from copy import deepcopy
from dataclasses import replace
import pytest, torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from skillrl.agent.episode import Episode, rollout
from skillrl.core.config import AgentConfig, RLConfig, SkillRLConfig
from skillrl.agent.contract import parse_reply, write_reply
from skillrl.envs.alfworld.households import Household
from skillrl.envs.alfworld.world import HouseholdSuite
from skillrl.envs.base import TextEnv, world
from skillrl.llm.decoding import _command_ids, _ReplyDraft, _unfinished_tag, NextTokens, ReplyForm
from skillrl.llm.local import Policy, tiny_model, word_tokenizer
from skillrl.core.store import data_path
from skillrl.training.rl import GRPOTrainer

SUITES = [HouseholdSuite(Household(name, ('kitchen', 'living'))) for name in ('train-003', 'test-001')]
NO_REPEAT = AgentConfig(decode='no_repeat')
ADMISSIBLE = AgentConfig(decode='admissible')

def seeded(n):
    return torch.Generator().manual_seed(n)

def episodes(n=4, max_steps=6, agent=AgentConfig()):
    return [Episode(s.env(g, max_steps), g, agent=agent) for s in SUITES for g in s.games('train', n)]

@pytest.fixture(scope='module')
def shipped():
    return Policy.load(data_path('base'))

@pytest.fixture(scope='module')
def asked(shipped):
    "Prompts and their commands"
    live = [e.start() for e in episodes()]
    return [shipped.encode(e.messages()) for e in live], [e.admissible for e in live]

def written(policy, prompts, allowed, temperature=1.5, **kw):
    return policy.generate(prompts, temperature, seeded(0), allowed=allowed, **kw)

def gap(policy, replies, allowed=None):
    "Largest difference between the log-probs of sampling and those computed afresh"
    lp, mask = policy.logps([r.prompt_ids for r in replies], [r.reply_ids for r in replies],
                            allowed or [r.allowed for r in replies])
    noted = torch.zeros_like(lp)
    for i, r in enumerate(replies):
        noted[i, :len(r.logprobs)] = torch.tensor(r.logprobs)
    return ((lp - noted)*mask).abs().max().item()

# ---- a byte-pair tokenizer, whose tags are several tokens ----

COMMANDS = ['go to fridge 1', 'go to fridge 12', 'go to cabinet 2', 'take egg 1 from fridge 1', 'look']

def byte_pairs(split=True, eos='<|end|>'):
    "Trained here; with `split` off its tokens run over spaces and brackets"
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split)
    tok.decoder = decoders.ByteLevel()
    texts = [write_reply('find the egg', c) for c in COMMANDS] + ['a<b', 'x > y', 'so</think>\n\n']*3
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=[eos], initial_alphabet=alphabet,
                                  show_progress=False)
    tok.train_from_iterator(texts*5, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tok, eos_token=eos)

@pytest.fixture(scope='module', params=[True, False], ids=['words apart', 'glued'])
def babbler(request):
    "Knows nothing: any token is about as likely as any other"
    tokenizer = byte_pairs(request.param)
    return Policy(tiny_model(len(tokenizer), hidden=32), tokenizer)

@pytest.mark.parametrize('room', [24, 40, 60])
def test_a_policy_that_knows_nothing_keeps_the_contract_with_byte_pairs(babbler, room):
    prompts = [babbler.encode(f'Now: {c}') for c in COMMANDS]*20
    need = _ReplyDraft(babbler.form, COMMANDS, 100).reserve + len(babbler.form.opening)
    replies = written(babbler, prompts, [COMMANDS]*100, max_new_tokens=max(room, need))
    assert all(parse_reply(r.text, COMMANDS).ok for r in replies)
    assert {parse_reply(r.text, COMMANDS).action for r in replies} == set(COMMANDS)
    assert all(r.token_ids[-1] in babbler.eos_ids for r in replies)
    assert len({parse_reply(r.text, COMMANDS).thought for r in replies}) > 50 or room == 24

@pytest.mark.parametrize('text, ends', [('a </think>', True), ('a </think>\n', True), ('a </THINK', False),
                                        ('a < /think>', False), ('</think', False)])
def test_a_thought_ends_with_its_tag_however_that_is_cut(text, ends):
    tokenizer = byte_pairs()
    draft = _ReplyDraft(ReplyForm(tokenizer, {tokenizer.eos_token_id}), COMMANDS, 200)
    for token in [*draft.form.opening, *tokenizer(text)['input_ids']]:
        draft.add(token)
    assert draft.rule.excluded is not ends

@pytest.mark.parametrize('begun, ruled_out', [
    ('a <action', True), ('a </ACTION', True), ('a </THINK', True), ('a </think', False), ('1 ', False)])
def test_no_other_tag_is_completed_in_a_thought(begun, ruled_out):
    tokenizer = byte_pairs()
    draft = _ReplyDraft(ReplyForm(tokenizer, {tokenizer.eos_token_id}), COMMANDS, 200)
    for token in [*draft.form.opening, *tokenizer(begun)['input_ids']]:
        draft.add(token)
    bracket = tokenizer.convert_tokens_to_ids('>')
    assert (bracket in draft.rule.ids) is ruled_out

@pytest.mark.parametrize('tag', ['<think>', '</THINK>', '<action>', '</action>'])
def test_a_command_with_a_tag_in_it_cannot_be_written(tag):
    tokenizer = byte_pairs()
    form = ReplyForm(tokenizer, {tokenizer.eos_token_id})
    for thinks in (True, False):
        assert _command_ids(form, f'search {tag[1:-1]} lamp', thinks)
        assert _command_ids(form, f'search {tag} lamp', thinks) == ()
        assert _command_ids(form, ' ', thinks) == ()

def test_commands_are_tokenised_as_in_a_whole_reply():
    tokenizer = byte_pairs()
    form = ReplyForm(tokenizer, {tokenizer.eos_token_id})
    whole = tokenizer(write_reply('find the egg', COMMANDS[0]))['input_ids']
    ids = _command_ids(form, COMMANDS[0])
    assert tuple(whole[-len(ids):]) == ids
    assert form.read([*ids, tokenizer.eos_token_id]).strip() == f'<action> {COMMANDS[0]} </action>'

# ---- every reply, whatever the temperature ----

@pytest.mark.parametrize('temperature', [0, .4, 1.5, 5.])
def test_every_reply_is_admissible(shipped, asked, temperature):
    prompts, allowed = asked
    replies = written(shipped, prompts*10, allowed*10, temperature)
    assert all(parse_reply(r.text, a).ok for r, a in zip(replies, allowed*10))
    assert all(r.token_ids[-1] in shipped.eos_ids for r in replies)

def test_a_reply_under_way_may_not_end_before_its_command(shipped):
    draft = _ReplyDraft(shipped.form, ['look'], 32)
    for token in shipped.encode('<think> egg'):
        draft.add(token)
    assert shipped.eos_ids <= set(draft.rule.ids) and draft.rule.excluded
    for token in shipped.encode('</think> <action> look'):
        draft.add(token)
        assert not shipped.eos_ids & set(draft.rule.ids)
    draft.add(*shipped.encode('</action>'))
    assert set(draft.rule.ids) == shipped.eos_ids

def test_one_seed_gives_one_reply_whatever_the_batch(shipped, asked):
    def said(**kw):
        return [(r.token_ids, r.allowed) for r in written(shipped, *asked, **kw)]
    assert said() == said() == said(batch_size=3) == said(batch_size=1)

def test_rows_do_not_depend_on_the_lists_of_others(shipped, asked):
    prompts, allowed = asked
    alike = written(shipped, prompts, [allowed[0]] + [['look']]*(len(prompts) - 1))
    assert alike[0].token_ids == written(shipped, prompts, allowed)[0].token_ids
    assert all('<action> look </action>' in r.text for r in alike[1:])

def test_free_replies_are_what_they_were(shipped, asked):
    free = shipped.generate(asked[0], 1.5, seeded(0))
    assert all(r.allowed is None for r in free)
    whole = shipped.logps([r.prompt_ids for r in free], [r.token_ids for r in free])[0]
    unruled = shipped.logps([r.prompt_ids for r in free], [r.token_ids for r in free], [None]*len(free))[0]
    assert torch.equal(whole, unruled)

# ---- room ----

def test_a_tag_may_be_unfinished():
    ends = {'a < b': '', 'so <Act': '<Act', 'so <': '<', 'a </act': '</act'}
    assert {text: _unfinished_tag(text) for text in ends} == ends

def test_a_thought_is_closed_when_the_room_just_suffices(babbler):
    draft = _ReplyDraft(babbler.form, COMMANDS, 60)
    need = len(babbler.form.opening) + draft.reserve
    for room in (need, need + 1, need + 7):
        replies = written(babbler, [babbler.encode('Now:')]*30, [COMMANDS]*30, max_new_tokens=room)
        assert all(parse_reply(r.text, COMMANDS).ok for r in replies)
        assert max(len(r.token_ids) for r in replies) <= room
    with pytest.raises(ValueError, match=f'has no room .* raise model.max_new_tokens to {need}'):
        written(babbler, [babbler.encode('Now:')], [COMMANDS], max_new_tokens=need - 1)

def test_commands_beyond_the_tokenizer_are_left_out_or_refused(shipped, asked):
    prompts, allowed = asked
    replies = written(shipped, prompts, [['fly to moon', 'look']]*len(prompts))
    assert all('look' in r.text for r in replies)
    with pytest.raises(ValueError, match='can write none of the 1 admissible commands'):
        written(shipped, prompts, [['fly to moon']]*len(prompts))
    with pytest.raises(ValueError, match='give one for each'):
        written(shipped, prompts, allowed[1:])

# ---- the ratio is one ----

@pytest.fixture(scope='module')
def groups(shipped):
    "Two groups of four in households, played at the temperature of training"
    games = [s.games('train', 1)[0] for s in SUITES]
    made = [[Episode(s.env(g, 8), g, agent=ADMISSIBLE) for _ in range(4)] for s, g in zip(SUITES, games)]
    rollout([e for group in made for e in group], shipped, generator=torch.Generator().manual_seed(0))
    return made

def rows_of(groups):
    return [row for group in groups for e in group for row in e.rows]

def test_the_log_probs_of_a_rollout_are_those_computed_afresh(shipped, groups):
    rows = rows_of(groups)
    assert len(rows) > 40 and all(row.valid for row in rows)
    with torch.no_grad():
        assert gap(shipped, rows) < 1e-4
        assert gap(shipped, rows, [None]*len(rows)) > 1e-2

@pytest.mark.parametrize('temperature', [1., 2.])
def test_they_are_exact_with_byte_pairs(babbler, temperature):
    replies = written(babbler, [babbler.encode(c) for c in COMMANDS]*4, [COMMANDS]*20, temperature,
                      max_new_tokens=60)
    for r in replies:
        r.reply_ids = r.token_ids
    with torch.no_grad():
        assert gap(babbler, replies) < 1e-4

def test_the_first_update_has_ratio_one_and_a_finite_gradient(shipped, groups):
    policy = Policy(deepcopy(shipped.model).requires_grad_(), shipped.tokenizer)
    trainer = GRPOTrainer(policy, RLConfig())
    chunk = [replace(row, advantage=1. if i % 2 else -1.) for i, row in enumerate(rows_of(groups)[:32])]
    loss, stats = trainer.loss(chunk)
    loss.backward()
    gradients = [p.grad for p in policy.model.parameters() if p.grad is not None]
    assert stats['ratio'] == pytest.approx(1., abs=1e-4)
    assert stats['clip_fraction'] == 0 and stats['kl'] == pytest.approx(0, abs=1e-6)
    assert all(g.isfinite().all() for g in gradients) and any(g.any() for g in gradients)
    trainer.update([chunk])

# ---- no command twice in one state of knowledge ----

def repetitions(trajectory):
    "Commands sent a second time in one state of knowledge although others were left, as the record tells"
    seen = [s.observation for s in trajectory.steps] + [trajectory.final_observation]
    memory = world('alfworld').memory(seen[0])
    sent, again = {}, 0
    for step, answer in zip(trajectory.steps, seen[1:]):
        known = sent.setdefault(memory.state(), set())
        again += step.action in known and not known >= set(step.admissible)
        known.add(step.action)
        memory.see(step.action, answer)
    return again

def test_no_command_is_sent_twice_before_something_was_learnt(shipped):
    def again(agent):
        played = rollout(episodes(8, 40, agent), shipped, .4, seeded(0))
        return sum(map(repetitions, played))
    assert again(ADMISSIBLE) > 5
    assert again(NO_REPEAT) == 0

def wary(**kw):
    game = SUITES[0].games('train', 1)[0]
    return Episode(SUITES[0].env(game, 12), game, agent=AgentConfig(decode='no_repeat', **kw)).start()

def test_to_and_fro_teaches_nothing():
    e = wary()
    there, back = [a for a in e.admissible if a.startswith(('go to countertop', 'go to sinkbasin'))][:2]
    for action in (there, back, there):
        e.act(action)
    assert there not in e.choices()

def test_when_all_were_sent_all_are_offered():
    e = wary()
    e.sent[e.knowledge] = set(e.admissible)
    assert e.choices() == e.admissible

class Hall:
    "A room without notes, which answers by counting, and says nothing new"
    won = False
    id = 'hall'
    task, category = 'leave.', 'go'
    def reset(self):
        return 'You are in a hall.'
    def admissible(self):
        return ['look', 'wait']
    def step(self, command):
        return 'You are in a hall.' if command == 'look' else 'You wait.'

class HallEnv(TextEnv):
    def start(self, game):
        return Hall()

def test_without_notes_knowledge_is_what_is_seen():
    e = Episode(HallEnv([Hall()], max_steps=9), agent=NO_REPEAT).start()
    e.act('look')
    assert e.choices() == ['wait']
    e.act('wait')
    assert e.choices() == ['look', 'wait']

# ---- settings ----

@pytest.mark.parametrize('over, says', [
    ({'agent.decode': 'admissible', 'model.policy_model_id': 'mini'}, 'policy_model_id .* leave the model'),
    ({'agent.decode': 'best'}, 'agent.decode is .best.: give it one of free, admissible')])
def test_what_cannot_be_had_is_refused(over, says):
    with pytest.raises(ValueError, match=says):
        SkillRLConfig().merged(over)

def test_a_world_that_lists_no_commands_is_refused(shipped):
    class Mute(Hall):
        def admissible(self):
            return []
    class MuteEnv(TextEnv):
        def start(self, game):
            return Mute()
    with pytest.raises(ValueError, match='the world lists no admissible .* set agent.decode to free'):
        rollout([Episode(MuteEnv([Mute()]), agent=ADMISSIBLE)], shipped)

def test_a_rule_names_those_that_may_come_or_those_that_may_not():
    assert NextTokens((1,)) != NextTokens((1,), excluded=True)
    assert len({NextTokens((1,)), NextTokens((1,), excluded=True)}) == 2

def test_a_tokenizer_without_tags_writes_freely_only():
    tokenizer = word_tokenizer(['look'])
    policy = Policy(tiny_model(len(tokenizer), hidden=32), tokenizer)
    assert policy.generate([[4]], max_new_tokens=3)
    with pytest.raises(ValueError, match='can write none'):
        policy.generate([[4]], allowed=[['look']])
