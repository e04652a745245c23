"Every mode of the trainer from end to end, with a scripted optimizer and an agent without luck"
import json, os, re, sys, threading
from bisect import bisect_left
from pathlib import Path
import pytest
from replies import sections
from skillrl.skillopt.ruleworld import INVOICE_RULES, RuleWorld, _minded, needed
from skillrl.llm.ledger import BudgetExceeded
from skillrl.skillopt.eval_env import program_chat
from skillrl.skillopt.settings import SkillOptConfig
from skillrl.viewers.report import _describe_worth, outcome_text, read_run, report_sections
from skillrl.skillopt.reflect import FORMS, _load_prompt
from skillrl.core.concurrency import ThreadExecutor
from skillrl.skillopt import proposal, selection, trainer as report
from skillrl.skillopt.trainer import SkillOptTrainer

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
        name = next(k for k in FORMS if _load_prompt(k) == system)
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
    more = {k: kw.pop(k) for k in ('initial_skill', 'executor') if k in kw}
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

def test_a_plain_run_learns_and_leaves_the_files_of_1_0_0():
    summary = trainer(num_epochs=4).train()
    assert summary['test_hard'] > summary['baseline_test_hard']
    assert summary['total_accepts'] >= 2
    assert summary['stopped'] is None
    files = {re.sub(r'\d{4}', 'NNNN', k) for k in snapshot()}
    step = ('rollout_results raw_patches merged_patch ranked_patch edit_apply_report step_record '
            'selection_eval/results selection_eval/summary')
    assert files >= {f'steps/step_NNNN/{k}.json'
                     for k in step.split()} | {'steps/step_NNNN/candidate_skill.md', 'skills/skill_vNNNN.md'}
    assert files >= {'config.json', 'best_skill.md', 'current_skill.md', 'history.json', 'runtime_state.json',
                     'summary.json'}
    assert files >= {f'{k}/{f}.json'
                     for k in ('baseline_selection_eval', 'test_eval_baseline', 'test_eval_best')
                     for f in ('results', 'summary')}
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
    assert '`missed_on`' in _load_prompt('merge_final')

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

class Backwards:
    "An executor of one's own: one job after the other, the last first"
    def __init__(self):
        self.runs, self.done = 0, 0
    def run(self, fn, jobs, done=None):
        self.runs, out = self.runs + 1, [None]*len(jobs)
        for i in reversed(range(len(jobs))):
            try:
                out[i] = fn(jobs[i])
            except Exception as e:
                out[i] = e
            self.done += 1
            if done and done(i, out[i]):
                break
        return out

def test_an_executor_of_ones_own():
    mine = Backwards()
    summary = trainer(executor=mine).train()
    inside('threads', lambda: trainer().train())
    assert mine.runs > 8 and mine.done == sum(u['calls'] for u in summary['usage']['target'].values())
    assert snapshot() == snapshot('threads/run')

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
            return super().chat(system=_load_prompt('analyst_error') if system == 'Say what was wrong.'
                                else system, **kw)
    tutor = Hears()
    SkillOptTrainer(config=SkillOptConfig(num_epochs=1, batch_size=6, verbose=False, out_root='run'),
                    env=RuleWorld(train=6, val=6, test=6), optimizer_client=tutor,
                    target_client=Clerk(), prompt_overrides=dict(analyst_error='Say what was wrong.')).train()
    assert 'Say what was wrong.' in tutor.systems and _load_prompt('analyst_error') not in tutor.systems

def test_all_patches_are_screened_in_one_go_each_on_its_own_items():
    runs = []
    class Seen(ThreadExecutor):
        def run(self, fn, jobs, done=None):
            runs.append([(job.skill, job.item['id'], job.key[3]) for job in jobs])
            return super().run(fn, jobs, done)
    trainer(executor=Seen(2), num_epochs=1).train()
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
