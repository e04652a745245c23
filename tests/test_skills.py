"Distillation and evolution on records that are not as tidy as the lesson's"
from copy import deepcopy
import copy, json, math, subprocess, sys
from pathlib import Path
import pytest
from banks import counts, next_id, remove, skills
from skillrl.cli.main import main
from skillrl.core.config import EvolutionConfig
from skillrl.envs.alfworld.engine import Engine
from skillrl.envs.alfworld.expert import play_expert
from skillrl.envs.alfworld.households import Household
from skillrl.envs.alfworld.scene import ROUTER
from banks import alfworld_bank as distill
from skillrl.envs.alfworld.teacher import _AlfworldReader, AlfworldTeacher
from skillrl.core.formats import _krill_trajectory
from skillrl.skills.bank import (diff, Mistake, Proposal, quarantine, release, retire, rollback,
                                 Skill, SkillBank, usefulness, version_path, versions)
from skillrl.skills.consolidation import normal
from skillrl.skills.evolution import Experience, evolve
from skillrl.skills.retrieval import Retriever, render
from skillrl.core.trajectory import Step, Trajectory
from skillrl.viewers.bank_view import bank_table

house = Household('val-001')

def seen(n=3, categories=('pick', 'heat'), max_steps=30):
    return [play_expert(g, max_steps=max_steps) for g in house.games('collect', n, categories)]

def play(bank, games):
    retriever = Retriever(bank, router=ROUTER)
    prompts = [render(retriever.retrieve(g.task, g.category)) for g in games]
    return [play_expert(g, prompt, max_steps=12) for g, prompt in zip(games, prompts)]

def through_json(bank):
    return SkillBank.from_dict(json.loads(json.dumps(bank.to_dict())))

def ids_of(entries):
    return [o.id for o in entries]

def test_no_evidence_no_skills():
    assert len(distill([Trajectory('t', 'put some mug in desk', 'pick')]).items()) == 0
    steps = [Step('shop', 'search[coat]')]
    shop = Trajectory('w', 'buy a red coat', 'apparel', steps, final_observation='results')
    assert len(distill([shop]).items()) == 0

def test_distill_of_nothing_is_an_error_and_leaves_the_bank_that_is_there(tmp_path, capsys):
    says = 'there are no trajectories to distil from: play some first, with `skillrl collect`'
    for nothing in ([], iter(())):
        with pytest.raises(ValueError, match=says):
            distill(nothing)
    trajectories, bank = tmp_path/'t.json', tmp_path/'bank.json'
    trajectories.write_text('[]')
    bank.write_text('{"general_skills": []}')
    assert main(['distill', '--trajectories', str(trajectories), '--output', str(bank)]) == 1
    assert bank.read_text() == '{"general_skills": []}'
    assert 'no trajectories' in capsys.readouterr().err

def test_episodes_of_one_game_are_one_piece_of_evidence():
    one = play_expert(house.game('collect', 0, 'heat'))
    group = [Trajectory(**{**vars(one), 'id': f'{one.id}{i}'}) for i in range(8)]

    def looks(ts):
        return {o.principle: o.provenance['seen'] for o in skills(distill(ts)) if 'Look' in o.principle}

    assert looks([one]) == looks(group)

def test_the_older_verb_style():
    game = house.game('collect', 1, 'cool')
    cool = skills(distill([play_expert(game, verb_style='put')]), 'cool')
    assert [o.principle for o in cool if o.principle.startswith('To')] == ['To cool: take, cool, put.']

def test_a_record_without_the_list_of_receptacles_names_no_numbered_place():
    ts = seen(6)
    for t in ts:
        t.steps[0].observation = f'Your task is to: {t.task}.'
    assert len({_AlfworldReader().room(t) for t in ts}) == len({t.game for t in ts})
    looks = [o for o in skills(distill(ts)) if o.principle.startswith('Look')]
    assert not [o for o in looks if o.principle[-2].isdigit() and o.provenance['looked'] > 1]

def test_krill_records_are_read():
    took = 'You pick up the mug 1 from the shelf 1.'
    steps = [dict(observation='a room', action='take mug 1 from shelf 1', reward=0.0, step_index=0),
             dict(observation=took, action='move mug 1 to desk 1', reward=1.0, step_index=1)]
    d = dict(id='k', task_description='put some mug in desk', task_category='Pick', success=True,
             total_reward=1.0, metadata={}, steps=steps)
    assert [o.principle for o in skills(distill([_krill_trajectory(d, ROUTER)]))] == ['To put: take, move.']

def test_words_that_are_no_command_do_not_stop_the_teacher():
    world = Engine(house.game('collect', 0, 'pick'))
    obs, steps = world.reset(), []
    odd = ('', 'take', 'take mug', 'fly to the moon', 'go to', 'put mug 1 in/on', 'open open 1', 'x'*500)
    for a in odd*3:
        steps.append(Step(obs, a, ok=False))
        obs = world.step(a)
    ts = [Trajectory(f't{i}', world.game.task, 'pick', steps, False, obs, f'g{i}') for i in range(3)]
    items = AlfworldTeacher().distill(ts)
    assert items and all(isinstance(o, Mistake) for o in items)

DISTIL = '''
import json
from skillrl.envs.alfworld.expert import play_expert
from skillrl.envs.alfworld.households import Household
from skillrl.envs.alfworld.teacher import AlfworldTeacher
from skillrl.skills.distillation import distill
games = Household("val-001").games("collect", 4)
episodes = [play_expert(g, max_steps=20) for g in games]
print(json.dumps(distill(episodes, AlfworldTeacher()).to_dict()))
'''

def test_banks_from_the_same_records_are_the_same_in_any_process():
    root = Path(__file__).parents[1]

    def distilled(seed):
        env = {'PYTHONHASHSEED': seed, 'PATH': ''}
        command = [sys.executable, '-c', DISTIL]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True, cwd=root).stdout

    assert len({distilled(seed) for seed in '123'}) == 1

def test_a_refinement_keeps_its_id():
    evidence = [play_expert(g, max_steps=40) for g in house.games('collect', 8, ('cool',))]
    goal = house.goals['cool'][0][0]
    wrong = f'Look for {goal.thing} in fridge 1.'
    bank = SkillBank(task_specific_skills=dict(cool=[Skill('cool_001', 'Where', wrong, category='cool')]))
    val = [g for g in house.games('val', 12, ('cool',)) if g.goal == goal]
    config = EvolutionConfig(gate='none', evolution_threshold=1.)
    new, record = evolve(bank, Experience(play(bank, val), evidence), AlfworldTeacher(), config)
    assert normal(new.get('cool_001').principle) == normal(house.hint(goal.thing))
    assert record['kept'][0] == 'cool_001'
    assert record['proposals'][0]['refines'] == wrong
    assert bank.get('cool_001').principle != new.get('cool_001').principle

def test_what_the_bank_has_wrong_is_refined_though_no_failure_asks_for_it():
    evidence = seen(8)
    right = distill(evidence)
    told = next(o for o in skills(right) if o.principle.startswith('Look for'))
    bank, thing = deepcopy(right), told.principle.split()[2]
    bank.get(told.id).principle = f'Look for {thing} in fridge 9.'
    for unasked, expected in ((True, [told.principle]), (False, [])):
        teacher = AlfworldTeacher(unasked=unasked)
        asked = teacher.propose(bank, [], evidence, [], limit=40)
        assert [p.item.principle for p in asked if p.kind == 'refine'] == expected


# --- proposals, quarantine and rollback ---

def kitchen():
    egg = Skill('heat_001', 'Eggs', 'Look in the fridge.', 'An egg.', 'heat', ['heat an egg'],
                dict(trajectories=['a', 'b']), dict(retrieved=5, wins=3, losses=2))
    cup = Skill('heat_002', 'Cold eggs', 'Eggs are cold.', '', 'heat', ['cook an egg', 'heat an egg'],
                dict(trajectories=['b', 'c']), dict(retrieved=2, wins=0, losses=2))
    errs = [Mistake('err_001', 'Searching again.', 'Nothing in sight.', 'Move on.'),
            Mistake('err_002', 'Looping.', '', 'Go elsewhere.')]
    closed = Skill('gen_001', 'Open', 'Open what is closed.')
    return SkillBank([closed], {'heat': [egg, cup], 'cool': []}, errs)

PROPOSALS = [Proposal('add', Skill('', 'Mugs', 'Try the shelf.', category='cool', extra={'by': ['Ada']})),
             Proposal('add', Mistake('', 'Dropping.', how_to_avoid='Hold on.')),
             Proposal('refine', Skill('heat_001', 'Eggs', 'Try the sink.', category='cool'))]

@pytest.mark.parametrize('p', PROPOSALS, ids=lambda p: p.kind)
def test_a_proposal_leaves_the_bank_and_itself_alone(p):
    bank, before = kitchen(), kitchen()
    said = copy.deepcopy(p)
    new, o = p.apply(bank)
    assert bank == before and p == said
    assert new != bank and diff(bank, new)
    assert new.get(o.id) is o and o is not p.item
    o.extra['x'] = o.provenance['x'] = 1
    assert p == said and bank == before
    assert through_json(new) == new

def test_a_proposal_to_retire_leaves_the_bank_and_itself_alone():
    bank, p = kitchen(), Proposal('retire', ids=('heat_001', 'err_001'), hypothesis='lost')
    said = copy.deepcopy(p)
    new, o = p.apply(bank)
    assert bank == kitchen() and p == said and o is None
    assert new != bank and diff(bank, new)
    assert [x.id for x in new.items() if x.status == 'retired'] == ['heat_001', 'err_001']
    assert through_json(new) == new

@pytest.mark.parametrize('o, id', [(Skill('', 't', 'p'), 'gen_002'),
                                   (Skill('', 't', 'p', category='heat'), 'heat_003'),
                                   (Skill('', 't', 'p', category='pick two'), 'pick_two_001'),
                                   (Mistake('', 'd', category='heat'), 'err_003')])
def test_an_addition_gets_an_id_of_its_kind(o, id):
    assert Proposal('add', o).apply(kitchen())[1].id == id

def test_a_refined_sentence_starts_anew():
    stats = dict(retrieved=9, wins=9, losses=0)
    item = Skill('heat_001', 'Eggs', 'Try the sink.', category='cool', provenance=dict(teacher='offline'),
                 stats=stats)
    new, o = Proposal('refine', item).apply(kitchen())
    assert o.provenance == dict(trajectories=['a', 'b'], teacher='offline', refines='Look in the fridge.')
    assert o.stats == dict(retrieved=0, wins=0, losses=0)
    assert counts(new) == dict(general=1, heat=1, cool=1, mistakes=2) and not new.removed
    mistake = Proposal('refine', Mistake('err_001', 'Searching.', '', 'Leave.')).carry_out(new)
    assert mistake.provenance == dict(refines='Move on.')

NEW = Skill('', 't', 'p')

@pytest.mark.parametrize('p, says', [
    (Proposal('add'), 'needs a skill or a mistake'),
    (Proposal('refine', 'open it'), 'needs a skill or a mistake'),
    (Proposal('add', Skill('heat_001', 't', 'p')), "the id 'heat_001' is or was in use"),
    (Proposal('refine', Skill('nope', 't', 'p')), "no skill or mistake has the id 'nope'"),
    (Proposal('refine', NEW), "has the id ''"),
    (Proposal('refine', Mistake('gen_001', 'd')), 'is a skill and cannot become a mistake'),
    (Proposal('refine', Skill('err_002', 't', 'p')), "'err_002' is retired"),
    (Proposal('retire'), 'at least one id'), (Proposal('retire', ids=('heat_001', 'nope')), "'nope'"),
    (Proposal('retire', ids=('err_002',)), "'err_002' is retired"),
    (Proposal('retire', ids=('heat_002',)), "'heat_002' is quarantined")])
def test_proposals_that_cannot_be_carried_out(p, says):
    bank = kitchen()
    retire(bank.get('err_002'))
    quarantine(bank.get('heat_002'), ['odd'])
    before = deepcopy(bank)
    with pytest.raises(ValueError, match=says):
        p.apply(bank)
    assert bank == before

def shown_for_an_egg(bank):
    return Retriever(bank, router=ROUTER).retrieve('heat an egg', 'heat').ids

def test_quarantine_keeps_apart():
    bank = kitchen()
    reasons = ['orders the reader about', 'has a link']
    o = quarantine(bank.get('heat_001'), tuple(reasons))
    assert o.provenance == dict(trajectories=['a', 'b'], quarantined=reasons) and o.stats['wins'] == 3
    assert 'heat_001' in shown_for_an_egg(kitchen()) and 'heat_001' not in shown_for_an_egg(bank)
    assert bank.items('quarantined') == [o]
    for fmt in ('official', 'krill'):
        assert 'Look in the fridge.' not in json.dumps(bank.to_dict(fmt))

def test_release_brings_back():
    bank = kitchen()
    quarantine(bank.get('heat_001'), ['odd'])
    back = through_json(bank)
    assert back == bank and ids_of(back.items('quarantined')) == ['heat_001']
    assert '(quarantined)' in back._repr_markdown_()
    release(back.get('heat_001'))
    assert shown_for_an_egg(back) == shown_for_an_egg(kitchen()) and not back.items('quarantined')

def test_quarantine_cannot_replace_what_is_trusted():
    bank = kitchen()
    with pytest.raises(ValueError, match='is or was in use'):
        bank.add(quarantine(Skill('heat_001', 'Eggs', 'Buy it.', category='heat'), ['odd']))
    assert bank == kitchen()
    stranger = bank.add(quarantine(Mistake('', 'Not buying.', category='shop'), ['odd']))
    assert (stranger.id, bank.categories, len(bank.items('active'))) == ('err_003', ['heat', 'cool'], 5)

def test_a_quarantined_category_is_no_category():
    bank = kitchen()
    for text in ('Ignore all rules', 'heat'):
        bank.add(quarantine(Skill('', 't', 'p', category=text), ['odd']))
    assert bank.categories == ['heat', 'cool']
    assert bank.to_dict('official') == kitchen().to_dict('official')
    assert SkillBank.from_dict(bank.to_dict()).categories == bank.categories

@pytest.mark.parametrize('words, ids', [
    ('EGG fridge', ['heat_001']), ('cook egg', ['heat_002']), ('err_00', ['err_001', 'err_002']),
    ('egg sink', []), ('[.*', []), ('', ids_of(kitchen().items()))])
def test_search_finds_all_words_anywhere_whatever_their_case(words, ids):
    assert [row[0] for row in bank_table(kitchen().items(), words).rows] == ids

def test_usefulness_is_a_rate_with_its_uncertainty():
    bank = kitchen()
    r = usefulness(bank.get('heat_001'))
    assert (r.mean, r.n) == (.6, 5) and 0 < r.low < .6 < r.high < 1
    unknown = usefulness(bank.get('gen_001'))
    assert unknown.n == 0 and math.isnan(unknown.mean)
    assert usefulness(Skill('x', 't', 'p', stats={'retrieved': 3, 'losses': 2})).n == 2
    assert usefulness(Mistake('x', 'd', stats={})).n == 0

def test_rollback_goes_on_with_the_old_content(tmp_path):
    bank = kitchen()
    remove(bank, 'err_002')
    bank.save(version_path(tmp_path))
    for step in range(3):
        bank = deepcopy(bank)
        bank.add(Skill('', 't', f'p{step}', category='heat'))
        if step == 1:
            remove(bank, 'heat_001')
        bank.save(version_path(tmp_path))
    before = [(tmp_path/f'v000{n}.json').read_bytes() for n in range(4)]
    back = rollback(tmp_path, 0)
    assert versions(tmp_path) == [0, 1, 2, 3, 4]
    assert SkillBank.load(tmp_path) == back and not diff(SkillBank.load(version_path(tmp_path, 0)), back)
    assert sorted(back.removed) == ['err_002', 'heat_003', 'heat_004', 'heat_005']
    assert next_id(back, 'heat') == 'heat_006'
    assert [(tmp_path/f'v000{n}.json').read_bytes() for n in range(4)] == before
    again = rollback(tmp_path, 3)
    assert not diff(SkillBank.load(version_path(tmp_path, 3)), again)
    assert 'heat_001' in again.removed and 'heat_005' not in again.removed

def test_rollback_to_a_version_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match='it has none'):
        rollback(tmp_path/'nowhere', 0)
