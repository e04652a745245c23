"What is active in a bank stays so until trials speak against it; what was played before is remembered"
import json
from dataclasses import replace
import pytest
from skillrl.training.builders import build_episodes, build_policy, build_teacher
from skillrl.cli.main import main
from skillrl.core.config import SkillRLConfig
from skillrl.envs.base import world
from skillrl.training.evaluate import evaluate
from skillrl.skills.bank import Mistake, Proposal, Skill, SkillBank, version_path, versions
from skillrl.skills.distillation import distill
from skillrl.skills.trials import Round, consider
from skillrl.skills.trials import settle_trials
from skillrl.core.formats import load_trajectories
from skillrl.core.store import JsonlLog
from skillrl.training import phases
from skillrl.training.phases import evolve_bank
from skillrl.training.phases import collect_games
from skillrl.training.pipeline import train
from skillrl.core.trajectory import success_rate
from skillrl.viewers.bank_view import fates

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
    assert 'entries active' in shown and 'with a bank was shown ' in shown and 'Warning' not in shown
    for o in after.items():
        o.status = 'probation'
    after.save(tmp_path/'none.json')
    shown = skillrl(capsys, *judged, tmp_path/'none.json')
    assert f'0 of {len(after.items())} entries active and {len(after.items())} on probation' in shown
    assert 'Warning: no entry was shown in "bank"' in shown

EVOLVE = 'evolve', '--suite', 'train-000', '--skill-bank'

def files(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}

def test_rounds_in_several_calls_write_what_rounds_in_one_call_write(here, tmp_path, capsys):
    "The folder keeps the episodes that were given and those that were played; none of them twice"
    first = *EVOLVE, here/'bank.json', '--trajectories', here/'t.json'
    small = '--set', 'env.test_tasks=6', '--output'
    skillrl(capsys, *first, '--rounds', 3, *small, tmp_path/'a')
    skillrl(capsys, *first, '--rounds', 1, *small, tmp_path/'b')
    skillrl(capsys, 'evolve', '--suite', 'train-000', '--rounds', 1, *small, tmp_path/'b')
    skillrl(capsys, 'evolve', '--suite', 'train-000', '--rounds', 1, *first[-2:], *small, tmp_path/'b')
    assert files(tmp_path/'a') == files(tmp_path/'b')
    records = JsonlLog(tmp_path/'a'/'evolution.jsonl').read()
    kept = load_trajectories(tmp_path/'a'/'trajectories.jsonl')
    assert kept[:24] == load_trajectories(here/'t.json')
    assert sum(map(len, kept[24:])) == sum(r['steps'] for r in records)

def test_evolve_makes_the_bank_that_a_run_makes(tmp_path, capsys):
    config = SkillRLConfig().merged(dict(
        env=dict(train_suites=1, test_suites=1, episodes=12, test_tasks=6),
        sft=dict(epochs=0), rl=dict(iterations=0)))
    run = train(config, tmp_path/'run')
    rows = JsonlLog(run/'trajectories.jsonl').read()
    before = [row for row in rows if row['metadata']['phase'] == 'collect']
    JsonlLog(tmp_path/'t.jsonl').append(row for row in before if row['metadata']['suite'] == 'test-000')
    banks = run/'bank'/'test-000'
    skillrl(capsys, 'evolve', '--suite', 'test-000', '--skill-bank', banks/'v0000.json', '--rounds', 6,
            '--trajectories', tmp_path/'t.jsonl', '--output', tmp_path/'b', '--set', 'env.test_tasks=6')
    versions = files(banks)
    assert len(versions) == 7 and versions == {name: files(tmp_path/'b')[name] for name in versions}

@pytest.fixture
def memories(monkeypatch):
    "Episodes that the teacher may use, and those by which games are chosen, round for round"
    out = dict(evidence=[], chosen_by=[])
    def proposed(bank, experience, *args, real=phases.evolve):
        out['evidence'].append(len(experience.evidence))
        return real(bank, experience, *args)
    def chosen(games, n, retriever, reader, played, real=phases.choose_games):
        out['chosen_by'].append(len(played))
        return real(games, n, retriever, reader, played)
    monkeypatch.setattr(phases, 'evolve', proposed)
    monkeypatch.setattr(phases, 'choose_games', chosen)
    return out

@pytest.mark.parametrize('gate, chosen', [('probation', [24, 28]), ('none', [])])
def test_teacher_and_choice_of_games_remember_what_was_played(here, tmp_path, capsys, memories, gate, chosen):
    skillrl(capsys, *EVOLVE, here/'bank.json', '--trajectories', here/'t.json', '--output', tmp_path/'b',
            '--set', 'env.test_tasks=4', f'evolution.gate={gate}')
    assert memories == dict(evidence=[24, 28], chosen_by=chosen)

def test_rl_remembers_too(here, tmp_path, capsys, memories, monkeypatch):
    pasts = []
    def drawn(*args, real=phases.draw_groups):
        pasts.append(len(args[-1](None)))
        return real(*args)
    monkeypatch.setattr(phases, 'draw_groups', drawn)
    (here/'small.json').write_text(json.dumps({
        'rl': {'iterations': 4, 'tasks_per_iteration': 3, 'group_size': 4}}))
    skillrl(capsys, 'rl', '--config', here/'small.json', '--suite', 'train-000', '--output', tmp_path/'p',
            '--skill-bank', here/'bank.json', '--trajectories', here/'t.json',
            '--set', 'evolution.validation_interval=2')
    assert pasts == [24, 36, 48, 60] and memories['evidence'] == [24, 48]
    bank, first = SkillBank.load(tmp_path/'p.bank'), SkillBank.load(version_path(tmp_path/'p.bank', 0))
    assert versions(tmp_path/'p.bank') == [0, 1, 2]
    assert len(bank.items('active')) > .9*len(first.items('active'))

def test_evolve_tells_the_fate_of_each_proposal_and_of_each_entry_that_changed(here, tmp_path, capsys):
    bank = SkillBank.load(here/'bank.json')
    old = bank.items('active')[0]
    old.stats |= LOSES
    bank.save(tmp_path/'bank.json')
    said = skillrl(capsys, *EVOLVE, tmp_path/'bank.json', '--output', tmp_path/'b', '--rounds', 1)
    record, = JsonlLog(tmp_path/'b'/'evolution.jsonl').read()
    added = [row for row in record['proposals'] if row['kept']]
    assert added
    for row in added:
        assert f"\n  {row['kind']} {row['id']} '{row['principle']}': on probation\n" in said
    stats = SkillBank.load(tmp_path/'b').get(old.id).stats
    counts = [f"{stats[f'wins_{arm}']} of {stats[f'tries_{arm}']} {arm} it" for arm in ('with', 'without')]
    assert f"\n  active → retired {old.id} '{old.principle}': won {', '.join(counts)}; it loses 0." in said

def test_fates_are_refused_kept_or_retired_with_their_reason():
    row = dict(kind='add', ids=[], principle='Look.\nNow.', kept=False, reason='pick_001 says so already')
    gone = dict(kind='retire', id='cool_001', ids=['cool_001'], principle='Wait.', kept=True, reason='')
    better = dict(id='cool_001', before='probation', status='active', principle='Wait.', reason='')
    record = dict(rule='none', proposals=[row, row | dict(kept=True, id='x_1'), gone], verdicts=[better])
    assert fates(record, entry(wins_with=3, tries_with=4, tries_without=4)) == [
        "add 'Look. Now.': refused: pick_001 says so already", "add x_1 'Look. Now.': kept",
        "retire cool_001 'Wait.': now active",
        "probation → active cool_001 'Wait.': won 3 of 4 with it, 0 of 4 without it"]

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
