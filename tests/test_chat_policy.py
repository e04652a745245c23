"""A model behind a server that plays.

Room for its reply, what it is asked and told, what is kept and paid, and when it is stopped."""
import json, os, random, re, subprocess, sys
import pytest
from faults import FaultServer, said
from skillrl.agent.contract import write_reply
from skillrl.core.config import SkillRLConfig
from skillrl.llm.ledger import BudgetExceeded
from skillrl.training import builders
from skillrl.training.builders import build_episodes, build_policy, build_teacher, play_episodes
from skillrl.skills.bank import Skill, SkillBank
from skillrl.core.store import data_path
from skillrl.envs.base import world

KEY = 'Zq7-mug-and-spoon-0123456789'

def with_keys(settings):
    c = SkillRLConfig().merged(settings)
    c.model.policy_api_key = c.model.teacher_api_key = KEY
    return c

def config(server, **over):
    own = {'model.policy_model_id': 'mini', 'model.policy_api_base': server.url, 'env.train_suites': 1}
    return with_keys(own | over)

def asked(r):
    return r['body']['messages'][-1]['content']
def walks(r):
    "Goes to the first place that it was not sent to"
    past, _, now = asked(r).partition('Now:')
    new = [place for place in re.findall('^- (go to .*)', now, re.M) if place not in past]
    return said(f'<action>{new[0] if new else "look"}</action>', usage=(100, 20))

def play(policy, c, n=2, steps=3, bank=None, seed=0, same=False):
    suite = world('alfworld').suites(c.env)[0][0]
    games = suite.games('collect', 1)*n if same else suite.games('collect', n)
    return play_episodes(policy, build_episodes(suite, games, bank, c, steps), suite, c, seed)

@pytest.fixture
def server():
    with FaultServer(rest=walks) as s:
        yield s

# ---- room ----

def limits_of(s):
    return {r['body'].get('max_completion_tokens') or r['body'].get('max_tokens') for r in s.requests}

def test_a_chat_policy_has_room_for_a_whole_reply(server):
    "32 tokens, the limit of the shipped policy, cut every real model's reply"
    play(build_policy(c := config(server)), c)
    assert limits_of(server) == {512}

def test_the_limit_that_is_set_is_sent(server):
    play(build_policy(c := config(server, **{'model.max_new_tokens': 100})), c)
    assert limits_of(server) == {100}

def test_weights_keep_their_own_room():
    "With nothing set, an untrained policy's garbage is 32 tokens long, and does not stop the rollout"
    from skillrl.llm.local import Policy, tiny_model
    shipped = build_policy(SkillRLConfig())
    untrained = Policy(tiny_model(len(shipped.tokenizer), hidden=32, seed=0), shipped.tokenizer)
    trajs = play(untrained, SkillRLConfig(), n=8, steps=2)
    assert max(len(s.token_ids) for t in trajs for s in t.steps) == 32
    assert not any(s.ok for t in trajs for s in t.steps)

# ---- replies that nobody can read ----

@pytest.fixture
def skillrl(tmp_path, monkeypatch, capsys):
    "Runs a command in an empty folder; its exit status, what it printed, and what it printed to stderr"
    from skillrl.cli.main import main
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path/'cache'))
    for name in ('OPENAI_API_KEY', 'SKILLRL_TEACHER_API_KEY', 'OPENAI_BASE_URL'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('SKILLRL_POLICY_API_KEY', KEY)
    monkeypatch.chdir(tmp_path)
    return lambda *args: (main([str(a) for a in args]), *capsys.readouterr())

def at(server):
    return '--policy-model', 'mini', '--policy-url', server.url

def test_a_rollout_of_replies_that_are_cut_off_stops_and_shows_one(skillrl, tmp_path):
    "It went on for 180 of 180 steps, and the report said success 0.00"
    talk = f'Well, {KEY} may be in the fridge, ' + 'so I look there '*100
    with FaultServer(rest=said(talk, finish='length')) as s:
        code, out, err = skillrl('collect', *at(s), '--episodes', 10, '--output', 't.json')
    assert code == 1 and s.count == 10
    line, = [l for l in err.splitlines() if 'cannot be read' in l]
    assert '10 of the first 10 replies of mini' in line
    assert 'raise model.max_new_tokens' in line
    assert 'may be in the fridge' in line and KEY not in out + err and len(line) < 600
    assert not (tmp_path/'t.json').exists()

def test_eight_replies_decide_when_one_game_is_played_at_a_time():
    from skillrl.agent.episode import rollout
    from skillrl.agent.prompt import Limits
    refused = pytest.raises(RuntimeError, match='8 of the first 8 replies .* keeps to the format')
    with FaultServer(rest=said('I would open the fridge.')) as s, refused:
        suite = world('alfworld').suites((c := config(s)).env)[0][0]
        episodes = build_episodes(suite, suite.games('collect', 3), None, c, 5)
        rollout(episodes, build_policy(c), limits=Limits(parallel=1))
    assert s.count == 8

def test_a_model_that_is_read_half_of_the_time_plays_on():
    with FaultServer(*[said('Hm.'), walks]*4, rest=walks) as s:
        assert len(play(build_policy(c := config(s)), c, n=8)) == 8

def test_commands_that_are_not_admissible_are_understood():
    "They are mistakes in the game, which is what is to be measured"
    with FaultServer(rest=said('<action>fly to moon</action>')) as s:
        assert len(play(build_policy(c := config(s)), c, n=8)) == 8

# ---- log, cache, ledger, resume ----

def test_what_a_chat_policy_was_asked_is_kept_and_not_paid_twice(server, tmp_path):
    first = play(build_policy(c := config(server), folder=tmp_path), c)
    rows = [json.loads(l) for l in (tmp_path/'exchanges.jsonl').read_text().splitlines()]
    assert len(rows) == server.count == 6 and KEY not in (tmp_path/'exchanges.jsonl').read_text()
    assert {r['messages'][-1]['content'] for r in rows} == set(map(asked, server.requests))
    assert not any('try' in r['body'] for r in server.requests)
    again = play(build_policy(c, folder=tmp_path), c)
    assert server.count == 6 and [t.to_dict() for t in again] == [t.to_dict() for t in first]

def test_a_rollout_that_was_stopped_pays_only_for_what_is_missing(server, tmp_path):
    play(build_policy(c := config(server), folder=tmp_path), c, n=1)
    play(build_policy(c, folder=tmp_path), c)
    assert server.count == 2*3

def test_another_try_at_a_game_is_another_call(server, tmp_path):
    "Two episodes of one game begin with the same prompt; so do two rollouts with different seeds"
    play(build_policy(c := config(server), folder=tmp_path), c, n=3, steps=1, same=True)
    assert server.count == 3
    play(build_policy(c, folder=tmp_path), c, n=3, steps=1, same=True, seed=1)
    assert server.count == 6

def test_the_budget_counts_what_was_spent_before_a_stop(server, tmp_path):
    (tmp_path/'prices.json').write_text('{"mini": [1000, 1000]}')
    c = config(server, **{'model.prices': str(tmp_path/'prices.json'), 'model.budget_usd': 1.5,
                          'model.max_new_tokens': 100})
    with pytest.raises(BudgetExceeded):
        play(build_policy(c, folder=tmp_path/'calls'), c, n=1, steps=20)
    spent = server.count
    assert 0 < spent < 20
    with pytest.raises(BudgetExceeded):
        play(build_policy(c, folder=tmp_path/'calls'), c, n=1, steps=20)
    assert server.count == spent

def test_policy_and_teacher_share_one_budget(server, tmp_path):
    c = config(server, **{'model.teacher_model_id': 'mini', 'model.teacher_api_base': server.url})
    teacher = build_teacher(c, tmp_path/'teacher')
    play(build_policy(c, teacher.chat.ledger, tmp_path/'collector'), c)
    assert teacher.chat.ledger.tokens == 6*120
    assert build_policy(c, build_teacher(c).chat.ledger, tmp_path/'collector').chat.ledger.tokens == 6*120

def test_commands_keep_the_calls_of_a_chat_policy(server, skillrl, tmp_path):
    for command in (('collect', '--episodes', 2, '--output', 't.json'),
                    ('eval', '--set', 'env.test_tasks=2', 'env.max_steps=2')):
        before = server.count
        first = skillrl(*command, *at(server))
        asked_first = server.count
        again = skillrl(*command, *at(server))
        assert first[:2] == again[:2] and first[0] == 0 and server.count == asked_first > before
    assert (tmp_path/'t.policy'/'exchanges.jsonl').exists()
    assert (tmp_path/'data'/'eval.policy'/'exchanges.jsonl').exists()

# ---- the length of a prompt ----

def test_the_limit_of_a_prompt_counts_tokens_and_takes_old_answers_first(server):
    "It counted messages, of which there are two"
    def last(**over):
        play(build_policy(c := config(server, **over)), c, n=1, steps=12)
        return asked(server.requests[-1])
    whole = last()
    room = len(whole)//3 # Tokens, at three characters each, without those of the contract
    short = last(**{'model.max_prompt_tokens': room})
    assert len(short) < len(whole) and 0 < short.count('Did: ') < 11
    assert ('shortened' in short, 'shortened' in whole) == (True, False)
    commands = re.findall('Did: (.*)', whole)
    assert short.partition('for want of room: ')[2].startswith('; '.join(commands[:3]))
    c = config(server)
    tiny = c.merged({'model.max_prompt_tokens': 20})
    with pytest.raises(ValueError, match='more than max_prompt_tokens 20'):
        play(build_policy(tiny), tiny, n=1)

# ---- what it knows of its episode ----

def test_a_chat_policy_sees_all_of_its_past_the_steps_left_and_what_was_where(server):
    t, = play(build_policy(c := config(server)), c, n=1, steps=12)
    first, last = asked(server.requests[0]), asked(server.requests[-1])
    past = [f'Did: {s.action}\nSaw: {after.observation}' for s, after in zip(t.steps, t.steps[1:-1])]
    assert '\n'.join(past) in last and last.count('Did: ') == 11 # `agent.history_length` is 3
    assert 'Steps left: at most 12 of 12\n' in first and 'Steps left: at most 1 of 12\n' in last
    assert 'Where a command that the task needs is not offered, another step has to come first' in first
    assert 'Seen: ' not in first
    seen, = re.findall('^Seen: (.*)', last, re.M)
    for place, things in re.findall(r'On the (\w+ \d+), you see (.*)\.', last):
        assert f'{place}: ' + ', '.join(re.findall(r'\w+ \d+|nothing', things)) in seen

def test_the_latest_sighting_of_a_place_counts():
    from skillrl.agent.prompt import PromptContext, step_messages
    from skillrl.envs.alfworld.memory import AlfworldMemory
    memory = AlfworldMemory()
    memory.see('go to shelf 1', 'You arrive at shelf 1. On the shelf 1, you see a mug 1, and a book 2.')
    memory.see('take mug 1 from shelf 1', 'You pick up the mug 1 from the shelf 1.')
    said = step_messages(PromptContext('look', 'Mug.', memory=memory), usual='chat')[1]['content']
    assert 'Seen: shelf 1: book 2' in said.splitlines()

def test_it_is_told_where_skills_come_from_if_there_are_some(server):
    for bank in (None, BANK):
        play(build_policy(c := config(server)), c, n=1, steps=1, bank=bank)
    without, told = (asked(r).splitlines() for r in server.requests)
    assert 'in this very place, which stays as it is' in told[told.index(FULL) - 1]
    assert not any(line.startswith('Skill') for line in without)

def test_a_conversation_that_grows_tells_the_steps_left(server):
    play(build_policy(c := config(server, **{'agent.conversation': 'appended'})), c, n=1, steps=4)
    assert [re.search('Steps left: .*', asked(r))[0][20:] for r in server.requests] == [
        f'{n} of 4' for n in (4, 3, 2, 1)]

def test_the_prompts_of_sft_are_those_of_play_in_the_chat_wording_too():
    from skillrl.training.phases import demonstrations
    c = SkillRLConfig().merged({'agent.prompt': 'chat', 'env.name': 'search'})
    suite = world('search').suites(c.env)[0][0]
    e, = build_episodes(suite, suite.games('collect', 1), None, c)
    expert, prompts = world('search').expert(e.start().task, random.Random(0)), []
    while not e.done:
        prompts.append(e.messages())
        e.play(write_reply(*expert.act(e.admissible, e.memory, [])))
    t = e.trajectory()
    t.success = True
    assert [r['prompt'] for r in demonstrations(suite, None, c, [t])] == prompts
    assert 'of 7\n' in prompts[0][-1]['content']

# ---- what a prompt shows of a skill ----

BANK = SkillBank([Skill('gen_001', 'Search order', 'Look in closed places last.',
                        'Nothing is in sight yet.', fact=dict(
                            kind='habit', about='closed places', value='look in closed places last'))])
FULL = 'Skill: Search order: Look in closed places last. (Apply when: Nothing is in sight yet.)'
SHORT = 'Skill: Look in closed places last.'

def test_a_chat_policy_reads_title_principle_and_occasion(server):
    play(build_policy(c := config(server)), c, n=1, steps=1, bank=BANK)
    assert FULL in asked(server.requests[0]).splitlines()

def test_the_shipped_policy_and_its_descendants_keep_the_short_form(tmp_path):
    c = SkillRLConfig()
    build_policy(c).save(tmp_path/'trained')
    own, foreign = ['', str(tmp_path/'trained'), str(data_path('base'))], 'Qwen/Qwen2.5-7B-Instruct'
    forms = [builders._skill_form(c.merged({'model.checkpoint': p})) for p in (*own, foreign)]
    assert forms == ['fact']*3 + ['full']
    suite = world('alfworld').suites(c.env)[0][0]
    prompt = build_episodes(suite, suite.games('collect', 1), BANK, c)[0].messages()[-1]['content']
    assert SHORT in prompt.splitlines()

def test_room_for_skills_counts_what_is_shown():
    from skillrl.envs.alfworld.scene import ROUTER
    from skillrl.skills.retrieval import Retriever, render
    r = Retriever(BANK, router=ROUTER, prompt_chars=40, show='full').retrieve('put a hot egg in fridge.')
    assert render(r) == []

def test_demonstrations_show_skills_as_the_rollouts_do():
    "One builder for SFT, RL and evaluation"
    from skillrl.training.phases import demonstrations, _sft_rows
    from skillrl.training.builders import build_retriever
    c = SkillRLConfig().merged({'sft.games': 1, 'agent.history_length': 2})
    suite = world('alfworld').suites(c.env)[0][0]
    rows = demonstrations(suite, BANK, c)
    assert all(SHORT in r['prompt'][-1]['content'] for r in rows)
    t, = play(build_policy(c), c, n=1, steps=8, bank=BANK)
    e, = build_episodes(suite, suite.games('collect', 1), BANK, c)
    prompts = []
    for s in t.steps:
        prompts.append(e.messages())
        e.act(s.action)
    told = _sft_rows(t, build_retriever(BANK, c), ['t']*len(t), c)
    assert [r['prompt'] for r in told] == [p for p, s in zip(prompts, t.steps) if s.ok] and told

# ---- the official prompt and parser ----

OFFICIAL = {'agent.prompt': 'official', 'agent.history_length': 2}

def test_the_official_prompt_is_reached_by_config(server):
    "Byte for byte what the published templates give for this game"
    def goes(r):
        return said('<action>Go to Fridge 1</action>')
    with FaultServer(rest=goes) as s:
        t, = play(build_policy(c := config(s, **OFFICIAL)), c, n=1, steps=2, bank=BANK)
    first, second = (r['body']['messages'] for r in s.requests)
    assert [m['role'] for m in first + second] == ['user', 'user']
    def offered(step):
        return "\n ".join(f"'{a}'" for a in step.admissible if a != 'help')
    said_first, can = t.steps[0].observation, offered(t.steps[0])
    asks = ("Now it's your turn to take an action.\n"
            "You should first reason step-by-step about the current situation. "
            "This reasoning process MUST be enclosed within <think> </think> tags.{}\n"
            "Once you've finished your reasoning, you should choose an admissible action "
            "for current step and present it within <action> </action> tags.\n")
    assert first[0]['content'] == (
        '\nYou are an expert agent operating in the ALFRED Embodied Environment.\n'
        f'Your current observation is: {said_first}\n'
        f'Your admissible actions of the current situation are: [{can}].\n\n' + asks.format(' '))
    goal, can = said_first.split('Your task is to: ')[1], offered(t.steps[1])
    assert second[0]['content'] == (
        '\nYou are an expert agent operating in the ALFRED Embodied Environment. '
        f'Your task is to: {goal}\n\n'
        '## Retrieved Relevant Experience\n\n'
        '### General Principles\n- **Search order**: Look in closed places last.\n\n'
        '## Current Progress\n\n'
        'Prior to this step, you have already taken 1 step(s). '
        'Below are the most recent 1 observations and the corresponding actions you took: '
        f"[Observation 1: '{said_first}', Action 1: 'go to fridge 1']\n"
        f'You are now at step 2 and your current observation is: {t.steps[1].observation}\n'
        f'Your admissible actions of the current situation are: [{can}].\n\n' + asks.format(''))

def test_the_official_parser_is_reached_by_config():
    with FaultServer(rest=said('Well: <action>Go to Fridge 1</action> it is.')) as s:
        t, = play(build_policy(c := config(s, **{'agent.prompt': 'official'})), c, n=1, steps=1)
        strict, = play(build_policy(c := config(s)), c, n=1, steps=1)
    assert (t.steps[0].action, t.steps[0].ok, strict.steps[0].action) == ('go to fridge 1', True, '')

# ---- checkpoints are data ----

def test_a_checkpoint_is_only_read(tmp_path):
    "`transformers` asks whether to run the code in a folder, and a 'y' meant for something else ran it"
    folder = tmp_path/'evil'
    folder.mkdir()
    (folder/'evil.py').write_text(f'open({str(tmp_path/"ran")!r}, "w").close()')
    auto = dict(AutoConfig='evil.Config', AutoModelForCausalLM='evil.Model',
                AutoTokenizer=['evil.T', 'evil.T'])
    (folder/'config.json').write_text(json.dumps(dict(model_type='evil', auto_map=auto)))
    (folder/'tokenizer_config.json').write_text(json.dumps(dict(tokenizer_class='T', auto_map=auto)))
    code = f'from skillrl.llm.local import Policy; Policy.load({str(folder)!r})'
    env = os.environ | dict(HF_HOME=str(tmp_path/'hf'))
    done = subprocess.run([sys.executable, '-c', code], input='y\n'*5, env=env,
                          capture_output=True, text=True, timeout=120)
    assert done.returncode and 'cannot be read' in done.stderr and not (tmp_path/'ran').exists()
