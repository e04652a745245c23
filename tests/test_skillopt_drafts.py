"Drafts that run ahead of the best skill, edits that have to be missed, and the test of each line at the end"
import json
from pathlib import Path
import pytest
from replies import sections
from skillrl.skillopt.ruleworld import INVOICE_RULES, RuleWorld, _minded, needed
from skillrl.skillopt.selection import close_run
from skillrl.skillopt.settings import SkillOptConfig
from skillrl.skillopt.reflect import FORMS, _load_prompt
from skillrl.skillopt.session import Session
from skillrl.skillopt.trainer import SkillOptTrainer

IDLE = 'Of two drafts, the older one is to be kept.'

class Clerk:
    "Right if the skill minds all the rules that the invoice needs"
    model = 'clerk'
    def __init__(self):
        self.calls = 0
    def chat(self, *, system, user, **kw):
        self.calls += 1
        text = 'right' if needed(user) <= _minded(system)[0] else 'wrong'
        return text, dict(prompt_tokens=9, completion_tokens=1, calls=1)

class Tutor:
    "Proposes two rules that are lacking, with a line that nothing depends on between them"
    model = 'tutor'
    def chat(self, *, system, user, **kw):
        name = next(k for k in FORMS if _load_prompt(k) == system)
        said = {}
        if name == 'analyst_error':
            parts = sections(user)
            lacking = sorted(needed(parts['Trajectories']) - _minded(parts['Current skill'])[0])
            lines = [f'Mind the {r}.' for r in lacking[:2]]
            lines.insert(1, IDLE)
            said = dict(reasoning='so', edits=[dict(op='append', content=f'- {line}') for line in lines])
        return json.dumps(said), dict(prompt_tokens=9, completion_tokens=9, calls=1)

@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

def trainer(clerk=None, **kw):
    settings = dict(num_epochs=2, batch_size=6, minibatch_size=3, workers=1, verbose=False, out_root='run')
    return SkillOptTrainer(config=SkillOptConfig(**settings | kw), env=RuleWorld(train=12, val=24, seed=2),
                           optimizer_client=Tutor(), target_client=clerk or Clerk())

def read(name):
    return json.loads((Path('run')/name).read_text())
def text(name):
    return (Path('run')/name).read_text()

def test_a_draft_runs_ahead_of_the_best_skill_and_no_gate_is_paid_for_it():
    trainer().train()
    first = read('steps/step_0001/step_record.json')
    assert (first['action'], first['best_step']) == ('accept', 0) and 0 < first['proven'] < 1
    assert 'gate' not in first and 'selection' not in first['usage']['target']
    assert _minded(text('skills/skill_v0001.md'))[0]
    assert read('history.json')[-1]['gate']  # The last step asks it
    assert read('summary.json')['best_step'] == 4

def test_an_edit_that_is_not_missed_does_not_even_reach_the_draft():
    trainer(num_epochs=1).train()
    said = [e['content'] for row in read('steps/step_0001/raw_patches.json') for e in row['patch']['edits']]
    assert f'- {IDLE}' in said
    assert IDLE not in text('skills/skill_v0001.md') and _minded(text('skills/skill_v0001.md'))[0]
    gained = [row for row in read('steps/step_0001/screen.json') if row.get('gained')]
    assert gained and all(row['n_edits_kept'] == 2 and row['missed'] for row in gained)

def test_closing_drops_an_idle_line_and_keeps_rules_that_only_help_together():
    "No rule solves an item alone here"
    session = Session(SkillOptConfig(verbose=False, workers=1, out_root='run'), RuleWorld(2, val=24, seed=2),
                      Clerk(), Tutor())
    with session.open():
        session.begin(final=True)
        s = session.draft.state
        rules = INVOICE_RULES[:4]
        for rule in rules:
            of_items = [needed(item['question']) for item in session.batches.items]
            places = [k for k, of_item in enumerate(of_items) if rule in of_item <= set(rules)]
            session.draft.note_needed(f'- Mind the {rule}.', places)
        s.skill += ''.join(f'- Mind the {rule}.\n' for rule in rules)
        s.skill += f'- {IDLE}\n'
        s.best, useful = s.skill, [rule for rule in rules if f'- Mind the {rule}.' in s.needed]
        session.state = s
        close_run(session)
    assert len(useful) >= 2
    assert _minded(session.state.best)[0] == set(useful)
    assert f'- {IDLE}' in session.finals['final_document']['gone'] and IDLE not in session.state.best

def test_what_closing_plays_is_paid_for_once_and_within_the_budget():
    clerk = Clerk()
    settings = dict(num_epochs=9, max_target_calls=200, final_passes=1)
    summary = trainer(clerk, **settings).train()
    assert 'max_target_calls' in summary['stopped']
    stages = summary['usage']['target']
    assert stages['lines']['calls'] > 0  # The limit has left something for the test of the lines
    assert sum(stage['calls'] for stage in stages.values()) == clerk.calls <= 200
    assert summary['best_selection_score'] is not None  # The final passes were kept back
    again = Clerk()
    assert trainer(again, **settings).train() | dict(stopped=0) == summary | dict(stopped=0)
    assert again.calls == 0

def closed(text, out_root='run'):
    "A session that has ended with `text` in its best skill"
    session = Session(SkillOptConfig(verbose=False, workers=1, out_root=out_root),
                      RuleWorld(2, val=24, seed=2), Clerk(), Tutor())
    with session.open():
        session.begin(final=True)
        s = session.draft.state
        s.skill += text
        s.best, session.state = s.skill, s
        close_run(session)
    return session

RULES = ''.join(f'- Mind the {rule}.\n' for rule in INVOICE_RULES)

@pytest.mark.parametrize('head', ['# Rules\n', '## Rules\n\n', '## Rules\n### Of invoices\n'])
def test_a_heading_stays_with_the_text_below_it(head):
    assert closed(f'\n{head}{RULES}').state.best == f'Write the invoice.\n\n{head}{RULES}'

@pytest.mark.parametrize('text', [f'## Rules\n- {IDLE}\n', '## Rules\n### Of invoices\n', '## Rules'])
@pytest.mark.parametrize('after', ['', '## Invoices\n'])
def test_a_heading_whose_section_is_empty_goes(text, after):
    rest = f'{after}{RULES}'.strip() if after else ''
    best = closed(f'\n{text}' + (f'\n{rest}\n' if rest else '')).state.best
    assert '## Rules' not in best and best.rstrip().endswith(rest) and '###' not in best

def lines_of(text, **kw):
    "Rollouts that the test of the lines of `text` takes"
    session = closed(text, **kw)
    return session.finals['final_document']['usage']['target'].get('lines', {}).get('calls', 0)

def test_what_the_test_of_the_lines_costs():
    "A line that nothing depends on is left out once on each of its items, and texts are played once a round"
    items = 20
    assert lines_of('## Rules\n', out_root='a') == 0
    assert lines_of(f'- {IDLE}\n', out_root='b') == 2*items
    idle = ''.join(f'- Of {n} drafts, keep the oldest.\n' for n in range(2, 6))
    assert lines_of(idle, out_root='c') == (4 + 1)*items
