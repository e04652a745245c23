"""The official memories of shopping and searching, and the banks that were written from them.

They are read, sorted and shown, by one classifier for each world, with the figures that were counted in the
published files. `SKILLRL_REAL_DATA` names the folder that holds `webshop/` and `search/`."""
import os, sys
from collections import Counter
from functools import cache
from pathlib import Path
import pytest
from banks import skills
from skillrl.envs.base import world
from skillrl.core.formats import load_memories
from skillrl.skills.bank import SkillBank
from skillrl.skills.retrieval import Retriever, render

sys.path.insert(0, str(Path(__file__).parents[1]/'benchmarks'))
from retrieval import COUNTS, labels

REAL = os.environ.get('SKILLRL_REAL_DATA')
pytestmark = pytest.mark.skipif(
    not REAL,
    reason='SKILLRL_REAL_DATA is not set: it should name a folder with the official webshop/ and search/')

BANKS = dict(webshop='claude_style_skills.json', search='claude_style_skills_search.json')
WORLDS = list(BANKS)

@cache
def memories(name):
    files = sorted(Path(REAL, name).glob('generated_memories_*.json'))
    return [m for file in files for m in load_memories(file)]

def bank(name):
    return SkillBank.load(Path(REAL, name, BANKS[name]))

def won_and_lost(categories, name):
    n = Counter((c, m.success) for c, m in zip(categories, memories(name)))
    return {c: (n[c, True], n[c, False]) for c in sorted(set(categories))}

# ---- they load ----

@pytest.mark.parametrize('name, n, won, with_steps, steps', [
    ('webshop', 200, 120, 120, 586), ('search', 196, 132, 119, 207)])
def test_they_load(name, n, won, with_steps, steps):
    found = memories(name)
    assert (len(found), sum(m.success for m in found)) == (n, won)
    lengths = [len(m.steps) for m in found if m.steps]
    assert (len(lengths), sum(lengths)) == (with_steps, steps)

def test_questions_keep_the_set_they_come_from():
    sets = [m.data_source for m in memories('search')]
    assert won_and_lost(sets, 'search') == dict(
        triviaqa=(41, 20), hotpotqa=(29, 14), musique=(14, 7), nq=(12, 6), bamboogle=(12, 6), popqa=(11, 5),
        **{'2wikimultihopqa': (13, 6)})

# ---- one classifier ----

@pytest.mark.parametrize('name', WORLDS)
def test_what_is_distilled_and_what_is_retrieved_are_sorted_alike(name):
    "The original sorts memories by one rule and the tasks that need their skills by another"
    found, router = world(name), world(name).router
    retrieve = Retriever(bank(name), router=router).retrieve
    for m in memories(name):
        assert router(m.goal) == retrieve(m.goal).category, m.goal
        assert router(m.goal) in found.categories

def test_where_the_two_original_rules_disagree_ours_takes_the_better():
    "Loafers, jeans and blankets are other things to the rule that looks skills up; 39 of 200 requests"
    sections = bank('webshop').categories
    router = world('webshop').router
    rows = [(router.sections['official'].section(m.goal, sections), sorted_as, router(m.goal))
            for m, sorted_as in zip(memories('webshop'), labels('webshop', memories('webshop')))]
    disputed = [row for row in rows if row[0] != row[1]]
    assert len(disputed) == 39 and all(ours == sorted_as for _, sorted_as, ours in disputed)
    assert sum(ours == looked_up == sorted_as for looked_up, sorted_as, ours in rows) == 127

@pytest.mark.parametrize('name, alike, counts', [
    ('webshop', 166, dict(apparel=(81, 55), footwear=(17, 7), home_decor=(13, 11), electronics=(4, 3),
                          accessories=(0, 1), beauty_health=(5, 1), other=(0, 2))),
    ('search', 146, dict(direct_retrieval=(73, 38), multi_hop_reasoning=(30, 16),
                         entity_attribute_lookup=(11, 5), comparison=(18, 5)))])
def test_how_tasks_are_sorted(name, alike, counts):
    "The published counts hold for the published rules; where ours differ, the wording of the task decides"
    published = labels(name, memories(name))
    assert won_and_lost(published, name) == COUNTS[name]
    ours = [world(name).router(m.goal) for m in memories(name)]
    assert won_and_lost(ours, name) == counts
    assert sum(a == b for a, b in zip(ours, published)) == alike

# ---- the banks show ----

@pytest.mark.parametrize('name', WORLDS)
def test_every_task_is_shown_the_skills_of_its_kind(name):
    "All of them and no others: 5 or 6 of its own, 6 general ones, 5 mistakes"
    official = bank(name)
    router = world(name).router
    retriever = Retriever(official, 'template', router=router)
    for goal in {m.goal for m in memories(name)}:
        shown = retriever.retrieve(goal)
        wanted = skills(official, router(goal))
        assert shown.task_specific == wanted and len(wanted) in (5, 6)
        assert (len(shown.general), len(shown.mistakes)) == (6, 5)
        text = '\n'.join(render(shown))
        assert all(o.principle in text for o in [*shown.general, *wanted])

@pytest.mark.parametrize('name', WORLDS)
def test_by_words_most_of_what_is_shown_is_of_its_kind(name):
    retriever = Retriever(bank(name), router=world(name).router)
    found = [retriever.retrieve(m.goal) for m in memories(name)]
    kinds = [o.category == shown.category for shown in found for o in shown.task_specific]
    assert sum(kinds)/len(kinds) > dict(webshop=.97, search=.88)[name]
