"""Every mode of the trainer from end to end, with a scripted optimizer and an agent without luck.

At the end, programs for skillrl 1.0.0 run as they stand, against a real server on the loopback. Those of its
README are read from it: SKILLRL_PEER_README names the METADATA file of that package, or its README."""
import json, os, re, subprocess, sys, threading
from bisect import bisect_left
from pathlib import Path
import pytest
import skillrl
from faults import FaultServer, said
from replies import sections
from skillrl import SkillOptConfig, SkillOptTrainer
from skillrl.core.concurrency import ThreadExecutor
from skillrl.llm.ledger import BudgetExceeded
from skillrl.skillopt import proposal, selection, trainer as report
from skillrl.skillopt.eval_env import program_chat
from skillrl.skillopt.reflect import _load_prompts, FORMS
from skillrl.skillopt.ruleworld import _minded, INVOICE_RULES, needed, RuleWorld
from skillrl.skillopt.selection import close_run
from skillrl.skillopt.session import Session
from skillrl.skillopt.types import RolloutResult, SkillEnv
from skillrl.viewers.report import _describe_worth, outcome_text, read_run, report_sections

# ---- modes ----

HURRY = '- Hurry 7.'

def spent(user, text):
    return dict(prompt_tokens=len(user.split()), completion_tokens=len(text.split()), calls=1)

class Clerk:
    "Right if the skill minds all the rules that the invoice needs, and does not hurry"
    model = 'clerk'
    def __init__(self):
        self.asked = []
    def chat(self, *, system, user, **kw):
        rules, hurries = _minded(system)
        text = 'right' if needed(user) <= rules and not hurries else 'wrong'
        self.asked.append((system, user))
        return text, spent(user, text)

class Tutor:
    "Answers each prompt, by its name, with what `says` returns, or with the edits that would help"
    model = 'tutor'
    def __init__(self, **says):
        self.says, self.asked = says, []
    def chat(self, *, system, user, stage='', **kw):
        name = next(k for k in FORMS if _load_prompts()[k] == system)
        self.asked.append((name, user))
        said = self.says.get(name, {'analyst_error': lacking}.get(name, {}))
        text = said(user) if callable(said) else said
        text = text if isinstance(text, str) else json.dumps(text)
        return text, spent(user, text)
    def told(self, name):
        return [user for n, user in self.asked if n == name]

def lacking(user, most=2):
    "Edits for the first rules that are needed and not there"
    parts = sections(user)
    rules = sorted(needed(parts['Trajectories']) - _minded(parts['Current skill'])[0])[:most]
    return dict(reasoning='These are needed.',
                edits=[dict(op='append', content=f'- Mind the {r}.') for r in rules])

def edits(*contents, **kw):
    return dict(edits=[dict(op='append', content=c, **kw) for c in contents])

def trainer(tutor=None, clerk=None, world=None, **kw):
    more = {k: kw.pop(k) for k in ['initial_skill'] if k in kw}
    settings = dict(num_epochs=2, batch_size=6, minibatch_size=3, edit_budget=4, workers=2,
                    verbose=False, out_root='run')
    return SkillOptTrainer(config=SkillOptConfig(**settings | kw),
                           env=world or RuleWorld(train=12, val=24, test=12, seed=2),
                           optimizer_client=tutor or Tutor(), target_client=clerk or Clerk(), **more)

def read(name):
    return json.loads((Path('run')/name).read_text())
def text(name):
    return (Path('run')/name).read_text()
def record(n):
    return read(f'steps/step_{n:04}/step_record.json')
def actions():
    return [r['action'] for r in read('history.json')]
def snapshot(d='run', without=('.lock', 'events.jsonl')):
    return {p.relative_to(d).as_posix(): p.read_bytes() for p in sorted(Path(d).rglob('*')) if p.is_file()
            and p.name not in without}

@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

def inside(folder, fn):
    "What `fn` returns in a new folder beside this one"
    Path(folder).mkdir()
    was = os.getcwd()
    os.chdir(folder)
    try:
        return fn()
    finally:
        os.chdir(was)

def test_a_plain_run_learns():
    summary = trainer(num_epochs=4).train()
    assert summary['test_hard'] > summary['baseline_test_hard']
    assert summary['total_accepts'] >= 2
    assert summary['stopped'] is None
    assert read('runtime_state.json')['last_completed_step'] == 8
    assert text('best_skill.md') == text(f'skills/skill_v{summary["best_step"]:04}.md')

def test_no_test_and_no_snapshots_where_none_are_wanted():
    summary = trainer(num_epochs=1, eval_test=False, save_every_step=False).train()
    assert summary['test_hard'] is None and not any(k.startswith(('test_eval', 'skills')) for k in snapshot())

def test_a_run_keeps_what_it_could_not_read_of_its_optimizer():
    trainer(Tutor(analyst_error='No idea.'), num_epochs=1).train()
    for n in (1, 2):
        patch, *_ = (row['patch'] for row in read(f'steps/step_000{n}/raw_patches.json'))
        assert patch['dropped'][0]['element'] == 'No idea.' and not patch['edits']

def test_nothing_proposed_is_a_step_without_patches():
    trainer(Tutor(analyst_error=edits()), num_epochs=1).train()
    assert actions() == ['skip_no_patches']*2

class Training(RuleWorld):
    "Who hurries solves what is trained on, and nothing else"
    def rollout_one(self, *, item, skill, target_client):
        said = super().rollout_one(item=item, skill=skill, target_client=target_client)
        hard = int((HURRY in skill) == item['id'].startswith('train'))
        return said | dict(hard=hard, soft=float(hard))

def test_refused_edits_are_told_to_later_steps_of_their_epoch_and_after_a_restart():
    tutor = Tutor(analyst_error=edits(HURRY))
    settings = dict(batch_size=4, world=Training(train=12, val=48, test=12, seed=2))
    trainer(tutor, **settings).train()
    assert actions() == ['reject']*6
    contexts = [sections(u).get('Context', '') for u in tutor.told('analyst_error')]
    steps = [set(map(int, re.findall(r'^Step (\d+): reject', c, re.M))) for c in contexts]
    seen = list(dict.fromkeys(map(tuple, map(sorted, steps))))
    assert seen == [(), (1,), (1, 2), (4,), (4, 5)]
    assert all('Hurry 7.' in c for c in contexts if c)

    def broken():
        first = Tutor(analyst_error=edits(HURRY))
        class Stop(Clerk):
            def chat(self, **kw):
                if len(first.told('analyst_error')) > 4:
                    raise KeyboardInterrupt
                return super().chat(**kw)
        with pytest.raises(KeyboardInterrupt):
            trainer(first, Stop(), **settings).train()
        second = Tutor(analyst_error=edits(HURRY))
        trainer(second, **settings).train()
        return first.asked, second.asked, snapshot()
    first, second, files = inside('broken', broken)
    assert files == snapshot() and sorted(set(first) | set(second)) == sorted(set(tutor.asked))
    assert 0 < len(second) < len(tutor.asked)

class Half(RuleWorld):
    "Half right is worth something"
    def rollout_one(self, *, item, skill, target_client):
        said = super().rollout_one(item=item, skill=skill, target_client=target_client)
        return said | dict(hard=0, soft=.5*said['hard'])

@pytest.mark.parametrize('metric,accepted', [('hard', False), ('soft', True), ('mixed', True)])
def test_the_metric_of_the_gate(metric, accepted):
    trainer(world=Half(train=12, val=12, test=6, seed=2), gate_metric=metric,
            num_epochs=1, edit_budget=8).train()
    assert any(a.startswith('accept') for a in actions()) == accepted

def test_a_merge_is_told_what_screening_found_of_each_edit():
    tutor = Tutor()
    trainer(tutor, num_epochs=1, edit_budget=8).train()
    questions = tutor.told('merge_final')
    assert questions and all('### Group 1: failure, 3 tasks' in question for question in questions)
    of_lines = [json.loads(line)['missed_on'] for question in questions
                for line in sections(question)['Edits'].splitlines() if line.startswith('{')]
    merged = [r['step'] for r in read('history.json') if r['n_patches_kept'] > 1]
    rows = [row for n in merged for row in read(f'steps/step_{n:04}/screen.json')]
    assert 0 < min(of_lines) and sum(of_lines) == sum(len(row.get('missed', [])) for row in rows)
    assert '`missed_on`' in _load_prompts()['merge_final']

# What ends a run early

PRICES = dict(clerk=(100., 200.), tutor=(300., 400.))

def total(summary, key, *roles):
    return sum(u[key] for r in roles or summary['usage'] for u in summary['usage'][r].values())

def stops_and_goes_on(limit, **more):
    """A run stopped by `limit`, and what it says.

    Then without one, where it must end like a run that never had it."""
    more = dict(num_epochs=3, prices=PRICES, optimizer_max_completion_tokens=200, final_passes=1) | more
    whole = inside('never', lambda: trainer(**more).train())
    limit, clerk = limit(whole), Clerk()
    stopped = trainer(clerk=clerk, **more, **limit).train()
    assert stopped['stopped']
    assert 0 < stopped['total_steps'] < 6
    assert read('summary.json') == json.loads(json.dumps(stopped))
    left = trainer(**more).train()
    assert left == whole and left['stopped'] is None and left['total_steps'] == 6
    assert snapshot() == snapshot('never/run')
    return stopped, limit, len(clerk.asked)

def test_a_limit_on_calls_keeps_the_final_measurement_back():
    def half(whole):
        return dict(max_target_calls=2*total(whole, 'calls', 'target')//3)
    said, limit, called = stops_and_goes_on(half, eval_test=True)
    assert f"of {limit['max_target_calls']} target calls are made" in said['stopped']
    assert said['stopped'].endswith('raise max_target_calls')
    assert called == total(said, 'calls', 'target') <= limit['max_target_calls']
    assert said['usage']['target']['final_selection_eval']['calls'] == 24
    low, high = said['best_selection_interval']
    assert 0 <= low <= said['best_selection_score'] <= high <= 1

def test_a_limit_on_tokens():
    said, limit, _ = stops_and_goes_on(lambda whole: dict(max_tokens=total(whole, 'total_tokens')//2 + 8300))
    assert re.search('tokens of [0-9,]+ are left and .* of clerk may take .*: raise max_tokens$',
                     said['stopped'])
    assert total(said, 'total_tokens') <= limit['max_tokens']

def test_a_limit_on_dollars():
    said, limit, _ = stops_and_goes_on(lambda whole: dict(max_usd=whole['usd']/2 + 1.66))
    assert 'usd of' in said['stopped']
    assert 'raise max_usd' in said['stopped']
    assert 0 < said['usd'] <= limit['max_usd']

def test_a_limit_below_the_first_measurement_is_said_at_once():
    with pytest.raises(BudgetExceeded, match='raise max_target_calls'):
        trainer(max_target_calls=5).train()
    with pytest.raises(BudgetExceeded, match='raise max_tokens'):
        trainer(max_tokens=5).train()
    clerk = Clerk()
    with pytest.raises(ValueError, match="'tutor' has no price, so max_usd cannot be kept"):
        trainer(clerk=clerk, max_usd=1., prices=dict(clerk=(1, 1))).train()
    assert not clerk.asked

class Twice(RuleWorld):
    "Asks for a plan before it asks for the answer"
    def rollout_one(self, *, item, skill, target_client):
        target_client.chat(system=skill, user=f'Plan: {item["question"]}')
        return super().rollout_one(item=item, skill=skill, target_client=target_client)

class Flaky(Clerk):
    "Raises at every `n`th call, which is made all the same"
    def __init__(self, n):
        self.n, self.lock = n, threading.Lock()
        super().__init__()
    def chat(self, **kw):
        said = super().chat(**kw)
        with self.lock:
            if len(self.asked) % self.n == 0:
                raise ConnectionError('reset by peer')
        return said

def both(limit, clerk, tutor, **kw):
    "What a run under `limit` says and what it really took, at each of three launches"
    said = [(trainer(tutor, clerk, **kw, **limit).train(), len(clerk.asked), len(tutor.asked))
            for _ in range(3)]
    assert all(s['stopped']
               and (total(s, 'calls', 'target'), total(s, 'calls', 'optimizer'))==(called, asked) for s,
               called, asked in said)
    assert len({(called, asked) for _, called, asked in said})==1
    return said[-1][0]

@pytest.mark.parametrize('most', range(250, 420, 110))
@pytest.mark.parametrize('world', [RuleWorld, Twice])
def test_a_limit_on_calls_is_never_passed_and_started_again_costs_nothing(world, most):
    said = both(dict(max_target_calls=most), Clerk(), Tutor(), world=world(train=12, val=12, test=6, seed=2),
                num_epochs=99)
    assert total(said, 'calls', 'target') <= most

@pytest.mark.parametrize('most', [120, 200])
def test_calls_that_raise_count_for_the_limit(most, monkeypatch):
    monkeypatch.setattr('skillrl.skillopt.rollout.sleep', lambda s: None)
    clerk = Flaky(7)
    said = trainer(clerk=clerk, world=RuleWorld(train=12, val=12, test=6, seed=2), num_epochs=20,
                   max_target_calls=most, workers=1).train()
    assert said['stopped'] and len(clerk.asked)==total(said, 'calls', 'target') <= most

def test_a_final_measurement_that_another_one_replaces_is_remembered():
    "A run that goes on epoch by epoch, with a final measurement after each"
    clerk = Clerk()
    for n in range(1, 9):
        said = trainer(clerk=clerk, num_epochs=n, max_target_calls=450).train()
    assert said['stopped'] and len(clerk.asked)==total(said, 'calls', 'target') <= 450
    run = trainer(clerk=clerk, num_epochs=9)
    run.train()
    assert sum(u['calls'] for u in run.session.paid()['target'].values())==len(clerk.asked)

@pytest.mark.parametrize('most', [11000, 13000])
def test_what_the_optimizer_took_in_a_stage_that_was_broken_off_is_told(most):
    class Long(Tutor):
        def chat(self, **kw):
            text, _ = super().chat(**kw)
            return text, dict(prompt_tokens=300, completion_tokens=200, calls=1)
    said = both(dict(max_tokens=most), Clerk(), Long(), num_epochs=9, minibatch_size=1,
                optimizer_max_completion_tokens=200, workers=1)
    assert total(said, 'calls', 'optimizer') and total(said, 'total_tokens') <= most

@pytest.mark.parametrize('limit', [dict(max_tokens=20000), dict(max_usd=4.), dict(max_target_calls=500)],
                         ids=lambda l: next(iter(l)))
def test_any_limit_keeps_the_final_measurement_back(limit):
    said = trainer(num_epochs=99, prices=PRICES, optimizer_max_completion_tokens=200, final_passes=3,
                   **limit).train()
    low, high = said['best_selection_interval']
    assert said['stopped'] and said['total_accepts'] and low <= said['best_selection_score'] <= high
    assert said['usage']['target']['final_selection_eval']['calls']==24*3
    assert total(said, 'total_tokens') <= limit.get('max_tokens', 1e9)
    assert said['usd'] <= limit.get('max_usd', 1e9)

def ending(world, kind, most):
    "Was a budget refused after five rollouts, or are both skills measured in full, and was anything learnt?"
    clerk = Clerk()
    run = trainer(clerk=clerk, world=world(train=12, val=12, test=48, seed=2), num_epochs=99, prices=PRICES,
                  optimizer_max_completion_tokens=200, final_passes=1, **{kind: most})
    try:
        said = run.train()
    except BudgetExceeded as e:
        assert str(e).endswith(f'raise {kind}') and len(clerk.asked) <= 5*(1 + (world is Twice))
        return 'refused'
    assert said['stopped'] and None not in (said['baseline_test_hard'], said['test_hard'])
    assert said['best_selection_interval'], 'the best skill was not measured afresh'
    for name in ('baseline', 'best'):
        assert [r['status'] for r in read(f'test_eval_{name}/results.json')] == ['ok']*48
    calls, tokens = len(clerk.asked), total(said, 'total_tokens')
    spent = dict(max_target_calls=calls, max_tokens=tokens, max_usd=said['usd'])
    assert spent[kind] <= most and total(said, 'calls', 'target') == calls
    return 'learnt' if said['total_accepts'] else 'stopped'

@pytest.mark.parametrize('kind,high,unit', [('max_target_calls', 800, 1), ('max_tokens', 36_000, 1),
                                            ('max_usd', 8_000, .001)])
@pytest.mark.parametrize('world', [RuleWorld, Twice])
def test_D12_both_skills_are_tested_in_full_or_the_budget_is_refused_at_once(world, kind, high, unit):
    "Above all where a budget just suffices to begin, and where it just suffices to learn"
    def end(most):
        return inside(f'{os.urandom(4).hex()}', lambda: ending(world, kind, most*unit))
    least = bisect_left(range(high), True, key=lambda most: end(most) != 'refused')
    learns = bisect_left(range(high), True, lo=least, key=lambda most: end(most) == 'learnt')
    assert 0 < least < learns < high

def test_what_a_step_had_paid_for_when_a_limit_broke_it_off_is_not_paid_again():
    clerk, tutor = Clerk(), Tutor()
    settings = dict(world=RuleWorld(train=12, val=12, test=6, seed=2), num_epochs=1)
    whole = inside('never', lambda: trainer(**settings).train())
    said = trainer(tutor, clerk, max_target_calls=120, **settings).train()
    assert said['stopped'] and not said['total_steps'] and tutor.asked
    left = trainer(tutor, clerk, **settings).train()
    assert left == whole and len(clerk.asked) == total(whole, 'calls', 'target')
    assert len(tutor.asked) == total(whole, 'calls', 'optimizer')

def test_a_draft_has_no_score_until_the_gate_has_seen_it(capsys):
    trainer(num_epochs=4, verbose=True).train()
    lines = capsys.readouterr().out.splitlines()
    drafts = [r for r in read('history.json') if r['action'] == 'accept']
    assert drafts and all(r['current_score'] is None for r in drafts)
    assert all(('draft that is not measured' in line) == (r['current_score'] is None)
               for r, line in zip(read('history.json'), lines))
    assert all(f"best {r['best_score']:.3f}" in line
               for r, line in zip(read('history.json'), lines) if r['current_score'] is None)
    assert 'not measured' not in outcome_text('run')
    assert '–: not measured' in report_sections(read_run('run'))['Steps']

def test_a_score_that_was_not_measured_afresh_is_not_reported(monkeypatch, capsys):
    "Where the limit was lowered after the steps, the lucky score of the gate stays under its own name"
    measure = report._measure_final
    def late(session, folder, *a):
        return None if folder == 'final_selection_eval' else measure(session, folder, *a)
    monkeypatch.setattr(report, '_measure_final', late)
    said = trainer(verbose=True).train()
    assert said['total_accepts'] and said['best_selection_score'] is said['best_selection_interval'] is None
    assert 0 < said['gate_score'] <= 1
    assert 'best selection score not measured afresh' in capsys.readouterr().out
    assert 'not measured afresh' in _describe_worth(read_run('run'))
    assert 'best_skill.md' in outcome_text('run')

def test_calls_of_a_process_that_was_killed_count_for_the_limit():
    "It could not write how its stage ended, but its journal tells what was answered"
    class Stop(Clerk):
        def chat(self, **kw):
            if len(self.asked) == 40:
                os._exit(9)
            return super().chat(**kw)
    if not (pid := os.fork()):
        trainer(clerk=Stop(), workers=1).train()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    clerk = Clerk()
    said = trainer(clerk=clerk, workers=1, max_target_calls=200, num_epochs=9).train()
    assert said['stopped'] and 40 + len(clerk.asked)==total(said, 'calls', 'target') <= 200

# Other models and machines

AGENT = '''
import re, sys
text = sys.stdin.read()
need = re.search('needs: (.*)', text)[1].split(', ')
print('right' if all(f'Mind the {r}.' in text for r in need) else 'wrong')
'''

def test_a_command_line_agent_as_target():
    Path('agent.py').write_text(AGENT)
    agent = program_chat(f'{sys.executable} -S {Path("agent.py").resolve()}')
    world = dict(train=4, val=4, test=2, seed=2)
    settings = dict(num_epochs=1, batch_size=4, edit_budget=8)
    every = edits(' '.join(f'Mind the {r}.' for r in INVOICE_RULES))
    summary = trainer(Tutor(analyst_error=every), agent, RuleWorld(**world), **settings).train()
    assert (summary['total_accepts'], summary['baseline_test_hard'], summary['test_hard']) == (1, 0, 1)
    inside('direct', lambda: trainer(Tutor(analyst_error=every), world=RuleWorld(**world),
                                     **settings).train())
    assert text('best_skill.md') == Path('direct/run/best_skill.md').read_text()


@pytest.mark.parametrize('workers', [1, 2, 16])
def test_the_number_of_workers_changes_nothing(workers):
    trainer(workers=workers).train()
    inside('two', lambda: trainer(workers=2).train())
    one, two = snapshot(), snapshot('two/run')
    assert {k for k in one if one[k] != two[k]} <= {'config.json', 'summary.json'}
    assert dict(read('summary.json'), config=0) == dict(json.loads(two['summary.json']), config=0)

def test_prompts_of_ones_own_are_what_the_optimizer_hears():
    class Hears(Tutor):
        def chat(self, *, system, **kw):
            self.systems = getattr(self, 'systems', set()) | {system}
            return super().chat(system=_load_prompts()['analyst_error'] if system == 'Say what was wrong.'
                                else system, **kw)
    tutor = Hears()
    SkillOptTrainer(config=SkillOptConfig(num_epochs=1, batch_size=6, verbose=False, out_root='run'),
                    env=RuleWorld(train=6, val=6, test=6), optimizer_client=tutor,
                    target_client=Clerk(), prompt_overrides=dict(analyst_error='Say what was wrong.')).train()
    assert 'Say what was wrong.' in tutor.systems and _load_prompts()['analyst_error'] not in tutor.systems

def test_all_patches_are_screened_in_one_go_each_on_its_own_items():
    runs = []
    class Seen(ThreadExecutor):
        def run(self, fn, jobs, done=None):
            runs.append([(job.skill, job.item['id'], job.key[3]) for job in jobs])
            return super().run(fn, jobs, done)
    one = trainer(num_epochs=1)
    one.session.executor = Seen(2)
    one.train()
    several = [run for run in runs if len({skill for skill, *_ in run}) > 1]
    screens = [run for run in several if run[0][2] in ('step 1', 'step 2')] # What follows takes patches apart
    assert len(screens)==2  # One for each step
    for run in screens:
        of = {skill: [i for s, i, _ in run if s==skill] for skill, *_ in run}
        assert len(run)==len({i for _, i, _ in run}) and max(len(ids) for ids in of.values())==3

def mend_before_the_gate(monkeypatch, broken):
    compare = selection._compare_with_rival
    def mended(session, candidate):
        broken.clear()
        return compare(session, candidate)
    monkeypatch.setattr(selection, '_compare_with_rival', mended)

def test_a_patch_whose_rollouts_were_lost_is_left_to_the_gate(monkeypatch):
    "The others are screened as ever"
    monkeypatch.setattr('skillrl.skillopt.rollout.sleep', lambda s: None)
    before, down = [], []
    class Deaf(Clerk):
        def chat(self, *, system, **kw):
            if down and system in down:
                raise ConnectionError('no route to host')
            return super().chat(system=system, **kw)
    t = trainer(clerk=Deaf(), num_epochs=1, batch_size=12)
    patched, n = proposal._patched_skill, len(t.env.get_items('train'))//3
    def noted(session, p):
        before.append(patched(session, p))
        if len(before)==n:
            down.append(before[-1])  # The last, since a run whose first five items are lost ends there
        return before[-1]
    monkeypatch.setattr(proposal, '_patched_skill', noted)
    mend_before_the_gate(monkeypatch, down)
    t.train()
    rows = read('steps/step_0001/screen.json')
    assert [bool(r.get('lost')) for r in rows]==[False]*(n - 1) + [True]
    assert rows[-1]['kept']
    assert rows[-1]['gain']==0
    assert len(set(before))==n
    assert any(r['gain'] > 0 for r in rows[:-1])

def test_a_patch_that_breaks_every_rollout_is_no_outage(monkeypatch):
    "The first patch fails whenever it is played; the others are screened all the same"
    monkeypatch.setattr('skillrl.skillopt.rollout.sleep', lambda s: None)
    bad = []
    class Censored(Clerk):
        def chat(self, *, system, **kw):
            if system in bad:
                raise ConnectionError('the prompt was filtered')
            return super().chat(system=system, **kw)
    t = trainer(clerk=Censored(), num_epochs=1, batch_size=12, minibatch_size=6)
    patched = proposal._patched_skill
    def noted(session, p):
        if not bad:
            bad.append(patched(session, p))
        return patched(session, p)
    monkeypatch.setattr(proposal, '_patched_skill', noted)
    mend_before_the_gate(monkeypatch, bad)
    t.train()
    first, *rest = read('steps/step_0001/screen.json')
    assert first['lost'] and rest
    assert not any('lost' in r for r in rest)
    assert any(r['gain'] > 0 for r in rest)

# ---- drafts ----

IDLE = 'Of two drafts, the older one is to be kept.'

def with_an_idle_line(user):
    "Two rules that are lacking, with a line that nothing depends on between them"
    first, *rest = lacking(user)['edits']
    return dict(reasoning='so', edits=[first, *edits(f'- {IDLE}')['edits'], *rest])

def drafts(clerk=None, **kw):
    "A trainer whose tutor proposes an idle line in each edit"
    return trainer(Tutor(analyst_error=with_an_idle_line), clerk, RuleWorld(train=12, val=24, seed=2),
                   workers=1, **kw)

def test_a_draft_runs_ahead_of_the_best_skill_and_no_gate_is_paid_for_it():
    drafts().train()
    first = read('steps/step_0001/step_record.json')
    assert (first['action'], first['best_step']) == ('accept', 0) and 0 < first['proven'] < 1
    assert 'gate' not in first and 'selection' not in first['usage']['target']
    assert _minded(text('skills/skill_v0001.md'))[0]
    assert read('history.json')[-1]['gate']  # The last step asks it
    assert read('summary.json')['best_step'] == 4

def test_an_edit_that_is_not_missed_does_not_even_reach_the_draft():
    drafts(num_epochs=1).train()
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
    summary = drafts(clerk, **settings).train()
    assert 'max_target_calls' in summary['stopped']
    stages = summary['usage']['target']
    assert stages['lines']['calls'] > 0  # The limit has left something for the test of the lines
    assert sum(stage['calls'] for stage in stages.values()) == len(clerk.asked) <= 200
    assert summary['best_selection_score'] is not None  # The final passes were kept back
    again = Clerk()
    assert drafts(again, **settings).train() | dict(stopped=0) == summary | dict(stopped=0)
    assert again.asked == []

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

# ---- programs for 1.0.0 ----

CAPITALS = dict(France='Paris', Japan='Tokyo', Italy='Rome', Spain='Madrid', Peru='Lima')
RULE = 'Name the capital city.'
LEARNED = json.dumps(dict(reasoning='No answer names a city.', edits=[dict(op='append', content=RULE)]))

def two_models(request):
    "gpt-4o edits; gpt-4o-mini knows its capitals, and names them when it is told to"
    system, user = [m['content'] for m in request['body']['messages']][-2:]
    if request['body']['model']=='gpt-4o':
        return said(LEARNED if 'rajector' in user else 'Nothing to merge.')
    city = next((c for country, c in CAPITALS.items() if country in user), 'Pacific Ocean')
    return said(city if RULE in system else 'A fine question!')

def program(source, folder, server):
    "What the Python program `source` prints, with the service of the environment's choice"
    environment = os.environ | dict(OPENAI_BASE_URL=server.url, OPENAI_API_KEY='a-key',
                                    PYTHONPATH=str(Path(__file__).parents[1]))
    done = subprocess.run([sys.executable, '-c', source], cwd=folder, env=environment, capture_output=True,
                          text=True, timeout=300)
    assert done.returncode==0, done.stderr[-2000:]
    return done.stdout

def readme(word):
    "The program in the README of 1.0.0 that has `word` in it"
    file = os.environ.get('SKILLRL_PEER_README')
    if not file:
        pytest.skip('SKILLRL_PEER_README is unset: name the METADATA file of skillrl 1.0.0 from PyPI')
    return next(b for b in re.findall(r'```python\n(.*?)```', Path(file).read_text(encoding='utf-8'), re.S)
                if word in b)

STEP = ('rollout_results.json raw_patches.json merged_patch.json ranked_patch.json '
        'edit_apply_report.json step_record.json candidate_skill.md '
        'selection_eval/results.json selection_eval/summary.json').split()
RUN = ('config.json best_skill.md current_skill.md history.json runtime_state.json summary.json '
       'skills/skill_v0000.md skills/skill_v0001.md').split()

def complete(root, steps):
    "All files that 1.0.0 leaves behind are there, and those of JSON can be read"
    names = RUN + [f'steps/step_{n:04}/{f}' for n in steps for f in STEP]
    names += [f'{d}/{f}.json' for d in ('baseline_selection_eval', 'test_eval_baseline', 'test_eval_best')
              for f in ('results', 'summary')]
    assert not [n for n in names if not (root/n).is_file()]
    for n in names:
        if n.endswith('.json'):
            json.loads((root/n).read_text(encoding='utf-8'))

def test_the_quick_start_of_1_0_0_runs_unchanged(tmp_path):
    with FaultServer(rest=two_models) as s:
        out = program(readme('SimpleQAEnv('), tmp_path, s)
        assert {r['body']['model'] for r in s.requests}=={'gpt-4o', 'gpt-4o-mini'}
        assert {r['key'] for r in s.requests}=={'a-key'}
    assert out.splitlines()[-1]=='1.0 1.0'
    root = tmp_path/'outputs'/'qa_demo'
    complete(root, [1])
    assert RULE in (root/'best_skill.md').read_text()
    assert json.loads((root/'summary.json').read_text())['baseline_test_hard']==0

OURS = """
from skillrl import SkillOptConfig, SkillOptTrainer
from skillrl.skillopt.qa import SimpleQAEnv
from skillrl.llm.openai_client import OpenAIChatClient
def asks(*lands):
    return [dict(id=l, question=f'What is the capital of {l}?', answers=[CAPITALS[l]], task_type='capitals')
            for l in CAPITALS if l in lands]
env = SimpleQAEnv(train_items=asks('France', 'Spain', 'Peru'), val_items=asks('Japan'),
                  test_items=asks('Italy'))
config = SkillOptConfig(num_epochs=1, batch_size=3, out_root='outputs/ours')
trainer = SkillOptTrainer(config=config, env=env, optimizer_client=OpenAIChatClient(model='gpt-4o'),
                          target_client=OpenAIChatClient('gpt-4o-mini'), initial_skill='Be kind.')
summary = trainer.train()
print(summary['best_selection_score'], summary['baseline_test_hard'], summary['test_hard'],
      summary['test_delta_hard'], summary['total_accepts'])
"""

def test_a_program_for_1_0_0_runs_and_goes_on(tmp_path):
    source = f'CAPITALS = {CAPITALS!r}{OURS}'
    with FaultServer(rest=two_models) as s:
        assert program(source, tmp_path, s).splitlines()[-1]=='1.0 0.0 1.0 1.0 1'
        paid, root = s.count, tmp_path/'outputs'/'ours'
        complete(root, [1])
        assert program(source, tmp_path, s).splitlines()[-1]=='1.0 0.0 1.0 1.0 1' and s.count==paid

class Asks:
    "A client as 1.0.0 describes it"
    model = 'm'
    def __init__(self, answer):
        self.answer, self.calls = answer, []
    def chat(self, *, system, user, max_completion_tokens=4096, temperature=None, stage='', retries=3, **kw):
        self.calls.append((stage, system, user))
        return self.answer(system, user, stage), dict(prompt_tokens=1, completion_tokens=1, total_tokens=2)

def test_an_environment_for_1_0_0_runs(tmp_path):
    space = {}
    exec(readme('class MyEnv'), space)
    class Played(space['MyEnv']):
        "The README's, with its dots filled in: two turns, a conversation, a fraction for the soft score"
        _splits = {s: [dict(id=f'{s}-{c}', country=l, city=c) for l, c in CAPITALS.items()]
                   for s in ('train', 'val', 'test')}
        def rollout_one(self, *, item, skill, target_client):
            said = [target_client.chat(system=skill, user=f"{q} {item['country']}?", stage='rollout')[0]
                    for q in ('Where is', 'And the capital of')]
            hard = int(item['city'] in said[1])
            return RolloutResult(id=item['id'], hard=hard, soft=.5 + hard/2, n_turns=2,
                                 fail_reason='' if hard else 'names no city',
                                 conversation=[dict(role='assistant', content=t) for t in said])
    target = Asks(lambda system, user,
                  stage: next(c for l, c in CAPITALS.items() if l in user) if RULE in system else 'Far away.')
    config = SkillOptConfig(num_epochs=1, batch_size=5, gate_metric='mixed', out_root=str(tmp_path),
                            verbose=False)
    summary = SkillOptTrainer(config=config, env=Played(), optimizer_client=Asks(lambda *a: LEARNED),
                              target_client=target).train()
    assert (summary['env'], summary['baseline_selection_score'], summary['best_selection_score'],
            summary['test_soft'])==('my_env', .25, 1, 1)
    assert (tmp_path/'best_skill.md').read_text().startswith(space['MyEnv'].get_initial_skill(None))

def test_prompts_for_1_0_0_are_used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path('my_prompts').mkdir()
    for name in ('analyst_error', 'ranking'):
        Path(f'my_prompts/{name}.md').write_text(f'My own {name}.')
    def edits(*contents):
        return json.dumps(dict(edits=[dict(op='append', content=c) for c in contents]))
    def answer(system, user, stage):
        if stage=='merge':
            return edits(RULE, 'Be quick.', 'Be kind.')
        return edits(f'{RULE} {user.count("Id:")}') if stage=='analyst' else '{"selected_indices": [0]}'
    opt = Asks(answer)
    tgt = Asks(lambda system, user,
               stage: next(c for l, c in CAPITALS.items() if l in user) if RULE in system else 'Far away.')
    def items(n):
        some = [*CAPITALS.items()][:n]
        return [dict(id=str(i), question=f'Capital of {l}?', answers=[c]) for i, (l, c) in enumerate(some)]
    from skillrl.skillopt.qa import SimpleQAEnv
    env = SimpleQAEnv(train_items=items(5), val_items=items(3), test_items=items(2))
    cfg = SkillOptConfig(num_epochs=1, minibatch_size=2, edit_budget=2, verbose=False, out_root='run')
    space = dict(SkillOptTrainer=SkillOptTrainer, cfg=cfg, env=env, opt=opt, tgt=tgt)
    exec(readme('prompt_overrides'), space)
    assert space['trainer'].train()['best_selection_score']==1
    assert {s for stage, s, _ in opt.calls if stage=='analyst'}=={'My own analyst_error.'}
    assert {s for stage, s, _ in opt.calls if stage=='ranking'}=={'My own ranking.'}
    assert {s for stage, s,
            _ in opt.calls if stage=='merge'}.isdisjoint({'My own analyst_error.', 'My own ranking.'})

WORDS = 'amber birch cedar daisy elder'.split()

class Words(SkillEnv):
    name = 'words'
    items = {s: [dict(id=f'{s}-{i}', word=WORDS[(3*i + k)%5]) for i in range(n)] for k,
             (s, n) in enumerate(dict(train=14, val=5, test=3).items())}
    def get_items(self, split):
        return self.items[split]
    def get_initial_skill(self):
        return 'Know word-elder.'
    def rollout_one(self, *, item, skill, target_client):
        text, _ = target_client.chat(system=skill, user=item['word'], stage='rollout', retries=2)
        hard = int('word-' + item['word'] in skill)
        return RolloutResult(id=item['id'], hard=hard, soft=float(hard),
                             fail_reason='' if hard else f'lacks {item["word"]}', predicted_answer=text,
                             question=item['id'])

class Target:
    model = 'm'
    def __init__(self, log):
        self.log = log
    def chat(self, *, system, user, **kw):
        self.log.append(('target', 0))
        return user, dict(prompt_tokens=1, completion_tokens=1, total_tokens=2)

def test_edits_that_change_nothing_cost_no_validation(tmp_path):
    target = Target([])
    config = SkillOptConfig(num_epochs=2, batch_size=4, eval_test=False, verbose=False,
                            out_root=str(tmp_path))
    class Four(Words):
        items = {k: v[:4] for k, v in Words.items.items()}
    nothing = Asks(lambda *a: json.dumps(dict(edits=[dict(op='replace', target='no such line',
                                                          content='x')])))
    SkillOptTrainer(config=config, env=Four(), optimizer_client=nothing, target_client=target).train()
    assert len(target.log)==4 + 8  # As 1.0.0: the baseline, and two batches

def test_names_of_1_0_0_are_there():
    names = ('Edit Patch RawPatch RolloutResult GateAction GateResult SkillOptConfig '
             'SkillOptTrainer').split()
    assert all(hasattr(skillrl, name) for name in ['__version__', *names]) and {*names} <= {*dir(skillrl)}
    assert skillrl.RolloutResult is RolloutResult
    defaults = dict(num_epochs=4, batch_size=40, minibatch_size=8, edit_budget=4,
                    min_edit_budget=2, lr_scheduler='cosine', gate_metric='hard', workers=8, seed=42,
                    out_root='outputs/skillrl_run', selection_split='val', eval_test=True,
                    save_every_step=True, optimizer_max_completion_tokens=4096, verbose=True)
    config = SkillOptConfig()
    assert {k: getattr(config, k) for k in defaults}==defaults
    assert defaults.items() <= config.to_dict().items()
