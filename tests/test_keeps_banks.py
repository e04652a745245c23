"What is active in a bank stays so until trials speak against it, and no command makes a bank worse unsaid"
import json
from dataclasses import replace
import pytest
from skillrl.training.builders import build_episodes, build_policy, build_teacher
from skillrl.cli import steps
from skillrl.cli.main import main
from skillrl.core.config import SkillRLConfig
from skillrl.envs.base import world
from skillrl.training.evaluate import evaluate
from skillrl.skills.bank import Mistake, Proposal, Skill, SkillBank, version_path, versions
from skillrl.skills.distillation import distill
from skillrl.skills.trials import Round, consider
from skillrl.skills.trials import settle_trials
from skillrl.core.store import JsonlLog
from skillrl.training import phases
from skillrl.training.phases import Change, evolve_bank
from skillrl.training.phases import collect_games
from skillrl.core.trajectory import success_rate

def entry(status='active', **counts):
    o = Skill('cool_001', 'Where', 'Look for plate in cabinet 1.', category='cool', status=status)
    o.stats |= counts
    return SkillBank([], {'cool': [o]})

def settled(bank):
    return settle_trials(bank)[0].items()[0].status

LOSES = dict(groups=15, tries_with=60, wins_with=10, tries_without=60, wins_without=50)
EQUAL = dict(groups=99, tries_with=396, wins_with=198, tries_without=396, wins_without=198)

def test_what_is_active_stays_so_until_trials_speak_against_it():
    fates = [settled(entry(**counts)) for counts in ({}, EQUAL, LOSES)]
    assert fates == ['active', 'active', 'retired']
    proved = entry(**EQUAL)
    proved.items()[0].provenance['proved'] = 'trials'
    assert settled(proved) == 'retired'
    fates = [settled(entry('probation', **counts)) for counts in ({}, EQUAL, LOSES)]
    assert fates == ['probation', 'retired', 'retired']

def tried(bank, proposal):
    return consider(proposal, bank, Round(['cool']))[0]

def test_a_rewording_stands_on_probation_beside_what_is_active_and_replaces_what_is_not():
    said = 'Look for plate in cabinet 7.'
    for status, left in {'active': ['active', 'probation'], 'probation': ['probation']}.items():
        bank = entry(status)
        new = tried(bank, Proposal('refine', replace(bank.items()[0], principle=said)))
        assert [o.status for o in new.items()] == left and new.items()[-1].principle == said
        assert len({o.id for o in new.items()}) == len(left)
    mistake = SkillBank(common_mistakes=[Mistake('err_001', 'Hurrying', how_to_avoid='Be slow.')])
    said = Proposal('refine', replace(mistake.items()[0], how_to_avoid='Stop.'))
    new, _ = consider(said, mistake, Round(['general']))
    assert [(o.id, o.status) for o in new.items()] == [('err_001', 'active'), ('err_002', 'probation')]

# --- commands ---

@pytest.fixture(scope='module')
def here(tmp_path_factory):
    here = tmp_path_factory.mktemp('banks')
    assert main(['collect', '--episodes', '24', '--output', str(here/'t.json')]) == 0
    assert main(['distill', '--trajectories', str(here/'t.json'), '--output', str(here/'bank.json')]) == 0
    return here

def skillrl(capsys, *line):
    assert main([str(word) for word in line]) == 0
    return capsys.readouterr().out

def test_evolve_keeps_a_good_bank_and_eval_says_what_was_shown(here, tmp_path, capsys):
    before = SkillBank.load(here/'bank.json')
    said = skillrl(capsys, *EVOLVE, here/'bank.json', '--output', tmp_path/'b')
    after = SkillBank.load(tmp_path/'b')
    assert f'{len(after.items("active"))} of {len(after.items())} entries active' in said
    there = [after.get(o.id) for o in before.items('active')]
    lost = [o for o in there if not o or o.status == 'probation']
    assert not lost and len(after.items('active')) > .9*len(before.items('active'))
    judged = ['eval', '--suite', 'train-000', '--set', 'env.test_tasks=4', '--skill-bank']
    shown = skillrl(capsys, *judged, tmp_path/'b')
    assert 'entries active' in shown and 'The row "bank" was shown ' in shown and 'Warning' not in shown
    for o in after.items():
        o.status = 'probation'
    after.save(tmp_path/'none.json')
    shown = skillrl(capsys, *judged, tmp_path/'none.json')
    assert f'0 of {len(after.items())} entries active and {len(after.items())} on probation' in shown
    assert 'Warning: the row "bank" was shown no entry' in shown

EVOLVE = 'evolve', '--suite', 'train-000', '--skill-bank'

def sentences(bank):
    return [(o.id, o.status, o.text) for o in bank.items()]

def worse(*args):
    return Change(12, .75, .25, 100)

def test_a_round_that_loses_games_leaves_the_old_sentences_and_says_so(here, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(phases, 'change_of', worse)
    before = SkillBank.load(here/'bank.json')
    said = skillrl(capsys, *EVOLVE, here/'bank.json', '--output', tmp_path/'b', '--rounds', 1)
    after = SkillBank.load(tmp_path/'b')
    assert 'won 0.75 before and 0.25 after: the old bank stays' in said and 'kept 0' in said
    assert sentences(after) == sentences(before)
    assert sum(o.stats.get('retrieved', 0) for o in after.items())
    record, = JsonlLog(tmp_path/'b'/'evolution.jsonl').read()
    assert record['kept'] == [] and not any(row['kept'] for row in record['proposals'])

def test_rl_writes_the_first_bank_last_where_its_rounds_made_it_worse(here, tmp_path, capsys, monkeypatch):
    (here/'small.json').write_text(json.dumps({
        'sft': {'steps': 3}, 'rl': {'iterations': 2, 'tasks_per_iteration': 3, 'group_size': 4},
        'evolution': {'validation_interval': 2}}))
    line = ['rl', '--config', here/'small.json', '--suite', 'train-000']
    line += ['--skill-bank', here/'bank.json', '--output']
    said = skillrl(capsys, *line, tmp_path/'p')
    bank = SkillBank.load(tmp_path/'p.bank')
    assert '\nbank: ' in said and versions(tmp_path/'p.bank')[:2] == [0, 1]
    first = SkillBank.load(version_path(tmp_path/'p.bank', 0))
    assert len(bank.items('active')) > .9*len(first.items('active'))
    monkeypatch.setattr(steps, 'change_of', worse)
    assert 'the old bank stays' in skillrl(capsys, *line, tmp_path/'q')
    assert versions(tmp_path/'q.bank') == [0, 1, 2]
    assert SkillBank.load(tmp_path/'q.bank') == SkillBank.load(version_path(tmp_path/'q.bank', 0))

# --- three worlds ---

@pytest.mark.parametrize('name', ['alfworld', 'webshop', 'search'])
def test_a_bank_holds_through_evolution_in_every_world(name):
    config = SkillRLConfig().merged({'env.name': name, 'env.episodes': 48})
    where = world(name)
    suite = where.suites(config.env)[0][0]
    policy = build_policy(config)
    played = collect_games(policy, suite, config)
    bank = distill(played, build_teacher(config), where.categories, where.router)
    versions = [bank]
    for number in range(2):
        versions.append(evolve_bank(policy, suite, versions[-1], config, number=number)[0])
    fresh = suite.games('test', 24)
    def won(bank):
        return success_rate(evaluate(policy, build_episodes(suite, fresh, bank, config))).mean
    none, before = won(None), won(bank)
    after = won(versions[-1])
    assert len(versions[-1].items('active')) > .8*len(bank.items('active'))
    assert before > none and after >= before - .1, (none, before, after) # Ways are still to be found
