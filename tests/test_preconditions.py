"Preconditions of houses, shops and encyclopedias: what they hide, what meets them, who finds them"
from dataclasses import replace
import pytest
from alfworld_pddl import write_game
from skillrl.agent.episode import demonstrate, Episode
from skillrl.core.config import EnvConfig
from skillrl.envs.alfworld.engine import Engine
from skillrl.envs.alfworld.expert import play_expert
from skillrl.envs.alfworld.households import households
from skillrl.envs.alfworld.scene import CATEGORIES
from skillrl.envs.alfworld.preconditions import (
    DECISIVE, decided_at, HouseholdEnv, precondition_choices, PreconditionEngine)
from skillrl.envs.alfworld.world import FolderSuite, HouseholdSuite
from skillrl.envs.base import seeded, world
from skillrl.worlds.search.encyclopedia import COVERS, EncyclopediaEnv
from skillrl.worlds.webshop.shop import conventions
from skillrl.llm.chat import ScriptedChat
from skillrl.skills.bank import SkillBank
from skillrl.skills.distillation import distill
from skillrl.skills.teachers import LLMTeacher

def truths(suite): # True sentences: on preconditions, and on all else
    if hasattr(suite, 'house'):
        house = suite.house
        return set(map(house.precondition, house.preconditions)), [house.hint(thing) for thing in house.homes]
    lines = suite.book.hints() if hasattr(suite, 'book') else conventions(suite.name).sentences()
    return {x for x in lines if x.startswith('Before')}, [x for x in lines if not x.startswith('Before')]

def played(name, suite, game, lines): # By the expert
    episode = Episode(suite.env(game, 30), game, skills=list(lines))
    return demonstrate(episode, world(name).expert(game.task, seeded('ways', game.id)))[0]

def told(name, played): # What a world's teacher says of preconditions
    found = world(name).teacher().distill(played)
    return {o.principle for o in found if 'opened' in o.provenance and o.title.startswith('Before')}

def experimented(name, suite, games, past=()): # Eight rounds of an expert that knows all but preconditions
    past, (_, facts) = list(past), truths(suite)
    for _ in range(8):
        experiment, known = world(name).experimenter(past), [*facts, *told(name, past)]
        starts = [Episode(suite.env(g, 30), g).start() for g in games]
        past += [played(name, suite, g, [*known, *experiment(e)]) for g, e in zip(games, starts)]
    return past

@pytest.mark.parametrize('house', households('train', 2), ids=lambda h: h.name)
def test_a_house_hides_the_decisive_command_and_nothing_else(house):
    hidden, verbs = 0, tuple(f'{verb} ' for verb in house.preconditions)
    for game in house.games('train', 1):
        plain, insisting = Engine(game), PreconditionEngine(game)
        assert plain.reset() == insisting.reset()
        for action in [s.action for s in play_expert(game).steps[:-1]]*2:
            refused = set(plain.admissible()) - set(insisting.admissible())
            assert all(c.startswith(verbs) for c in refused)
            assert {insisting.step(c) for c in refused} <= {'Nothing happens.'}
            hidden += len(refused)
            command = 'look' if action in refused else action
            assert plain.step(command) == insisting.step(command)
    assert hidden > 3

@pytest.mark.parametrize('verb', ['heat', 'cool', 'clean'])
def test_each_kind_of_precondition_opens_and_no_other_does(verb):
    house, opened = households('train', 1)[0], set()
    game, place = house.game('train', 0, verb), decided_at(house)[verb][1]
    plan = [s.action for s in play_expert(game, [house.hint(game.goal.thing)]).steps]
    plan = plan[:next(i for i, c in enumerate(plan) if c.startswith(f'{verb} '))]
    preconditions = [[c for c in some if c not in plan][-1] for some in precondition_choices(house, verb)]
    leads = dict(open=[f'close {place}'], close=[f'open {place}'])
    for way, step in [(way, step) for way in preconditions for step in preconditions]:
        engine = PreconditionEngine(replace(game, preconditions=((verb, way),)))
        engine.reset()
        commands = [*leads.get(step.split()[0], []), step] + [f'go to {place}']*step.startswith('go ')
        replies = {c: engine.step(c) for c in [*plan, *commands]}
        done = [c for c in commands if replies[c] != 'Nothing happens.']
        assert any(c.startswith(f'{verb} ') for c in engine.options()) == (way in done)
        opened |= {way} & set(done)
    assert len(preconditions) > 3 and opened == set(preconditions)

def test_a_cover_opens_its_articles_and_no_other_does():
    suite = world('search').suite(EnvConfig(name='search'), 'train-000')
    asked = next(q for q in suite.games('val', 99) if not q.hops[0].value.isdigit())
    kind, name, _, value, page = asked.hops[0]
    for way, cover in [(way, cover) for way in COVERS for cover in ('', *COVERS)]:
        engine = EncyclopediaEnv([asked], suite.library, 7, preconditions={kind: way}).start(asked)
        texts = [engine.step(f'<search>{query}</search>') for query in (f'{kind} {cover}', f'{name} {page}')]
        assert (value in texts[-1]) == (way == cover)

@pytest.mark.parametrize('name, n', [('alfworld', 40), ('webshop', 24), ('search', 40)])
def test_experiments_find_the_preconditions_and_nothing_false(name, n):
    one, two = world(name).suites(EnvConfig(name=name, train_suites=2))[0]
    for suite, other in ((one, two), (two, one)):
        preconditions, facts = truths(suite)
        games = [g for g in suite.games('val', n) if not played(name, suite, g, facts).success]
        needed = {way for way in preconditions for g in games
                  if not played(name, suite, g, [*facts, *(preconditions - {way})]).success}
        all_lines = [*facts, *preconditions]
        assert all(played(name, suite, g, all_lines).success for g in games) and len(needed) > 1
        past = experimented(name, suite, games[:12])
        assert told(name, past) == needed
        starts = [Episode(suite.env(g, 30), g).start() for g in games]
        assert {line for e in starts for line in world(name).experimenter(past)(e)} <= needed
        assert not any(map(world(name).experimenter(past, needed), starts))
        misled = [played(name, suite, g, [*facts, *truths(other)[0]]) for g in suite.games('val', n)]
        assert told(name, misled) <= preconditions

def test_a_change_is_noticed_forgotten_and_learnt():
    house, name = households('train', 3)[2], 'alfworld'
    later, teacher = house.change(), world(name).teacher()
    [verb] = [verb for verb in house.preconditions if house.preconditions[verb] != later.preconditions[verb]]
    [category] = [c for c, decided in DECISIVE.items() if decided == verb]
    before = experimented(name, HouseholdSuite(house), [house.game('val', i, category) for i in range(2)])
    assert told(name, before) == {house.precondition(verb)}
    games, suite = [later.game('val', i, category) for i in range(2)], HouseholdSuite(later)
    past = [*before, played(name, suite, games[0], [*truths(suite)[1], house.precondition(verb)])]
    bank = distill(before, teacher)
    gone = {id for p in teacher.propose(bank, past[-1:], past, [category], 9) for id in p.ids}
    assert told(name, past) == set() and house.precondition(verb) in {bank.get(id).principle for id in gone}
    assert told(name, experimented(name, suite, games, past)) == {later.precondition(verb)}

def test_official_games_have_none(tmp_path):
    suite = HouseholdSuite(households('train', 1)[0])
    game, hints = suite.house.game('train', 0, 'heat'), truths(suite)[1]
    write_game(game, tmp_path/'valid_seen'/CATEGORIES['heat']/'trial_1')
    official = FolderSuite(str(tmp_path))
    [same] = official.games('test')
    assert game.preconditions and not same.preconditions and type(HouseholdEnv([same]).start(same)) is Engine
    assert played('alfworld', official, same, hints).success
    assert not played('alfworld', suite, game, hints).success

def test_a_model_that_teaches_is_asked_what_has_to_come_before():
    name, house = 'alfworld', households('train', 3)[2]
    verb, suite = next(iter(house.preconditions)), HouseholdSuite(house)
    [category] = [c for c, decided in DECISIVE.items() if decided == verb]
    lost = played(name, suite, house.game('val', 0, category), truths(suite)[1])
    asked = []
    def reply(messages):
        asked.append(messages[-1]['content'])
        return '[]'
    reader = world(name).teacher().reader
    for teacher in (LLMTeacher(ScriptedChat(reply), reader=reader), LLMTeacher(ScriptedChat(reply))):
        teacher.propose(SkillBank(), [lost], [lost], [category], 4)
    assert ['Nobody was offered' in text for text in asked] == [True, False]
    assert house.preconditions[verb] in asked[0].partition('Not tried before it')[2].partition('Episode 1')[0]
    won = played(name, suite, house.game('val', 0, category), [*truths(suite)[1], house.precondition(verb)])
    LLMTeacher(ScriptedChat(reply), reader=reader).propose(SkillBank(), [lost], [lost, won], [category], 4)
    assert f'"{verb}" was offered after "{house.preconditions[verb]}".' in asked[-1]
