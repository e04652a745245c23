"""DAgger: whose states are labelled, by whom, and which games they come from"""
import random
from collections import Counter
from dagger import RelabelOptions, numbered_words, relabel, renumber
from skillrl.agent.episode import Episode, StepRow
from skillrl.training.builders import build_local_policy
from skillrl.core.config import SkillRLConfig
from skillrl.envs.alfworld.engine import AlfworldEnv
from skillrl.envs.alfworld.expert import AlfworldExpert, read_hints
from skillrl.envs.alfworld.households import households

GAMES = [h.game('train', 0, 'pick') for h in households('train', 6, strength=0)]
POLICY = build_local_policy(SkillRLConfig())

def expert_of(task, rng):
    return AlfworldExpert(task, rng)

def labelled(policy=POLICY, **options):
    "Rows, and the episodes they come from"
    episodes = [Episode(AlfworldEnv([g], max_steps=12), g) for g in GAMES]
    return relabel(episodes, policy, expert_of, seed=3, options=RelabelOptions(**options)), episodes

class Stubborn:
    "A policy that always sends the same refused command"
    encode = staticmethod(lambda messages: [1])
    def generate(self, prompts, temperature, generator):
        return ['<think> go </think> <action> go to nowhere 1 </action>']*len(prompts)

def test_the_policy_acts_and_the_expert_labels():
    rows, episodes = labelled(Stubborn(), helped=0., refusals=99, repeats=99)
    assert len(rows) == sum(len(e.steps) for e in episodes)
    assert {step.action for e in episodes for step in e.steps} == {'go to nowhere 1'}
    assert not any('nowhere' in row['completion'] for row in rows)

def test_after_refusals_in_a_row_the_expert_takes_a_step():
    _, episodes = labelled(Stubborn(), helped=0., refusals=3)
    for e in episodes:
        assert [step.ok for step in e.steps[:8]] == [False, False, False, True]*2

def test_a_prompt_is_labelled_twice_and_no_more():
    rows, _ = labelled(Stubborn(), helped=0., refusals=99)
    assert max(Counter(row['prompt'][-1]['content'] for row in rows).values()) == 2

def test_new_numbers_are_the_same_in_prompt_and_reply():
    alike = numbered_words(POLICY.tokenizer)
    def ids(text):
        return POLICY.tokenizer(text)['input_ids']
    row = StepRow(ids('Seen: egg 1 in cabinet 1, cabinet 2. Holding: nothing'), ids('go to cabinet 2'))
    changed = 0
    for seed in range(20):
        new = renumber(row, alike, random.Random(seed))
        renamed = dict(zip(row.prompt_ids, new.prompt_ids))
        assert [renamed.get(i, i) for i in row.reply_ids] == new.reply_ids
        assert len(set(new.prompt_ids)) == len(set(row.prompt_ids))
        assert all(alike.get(old) == alike.get(i) for old, i in renamed.items())
        changed += new.reply_ids != row.reply_ids
    assert changed > 10

def test_a_hint_may_name_kinds_of_places():
    lines = ['Look for egg in fridge 1.', 'Look for mug on shelf, then desk, then cabinet.', 'Open doors.']
    assert read_hints(lines) == [('egg', ('fridge 1',)), ('mug', ('shelf', 'desk', 'cabinet'))]
