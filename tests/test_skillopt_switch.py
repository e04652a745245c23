"""Code that was written for skillrl 1.0.0 runs here as it stands, against a real server on the loopback.

The programs in the README of 1.0.0 are read from it, so they are not among these lines:
SKILLRL_PEER_README names the METADATA file of that package, or its README."""
import json, os, re, subprocess, sys
from pathlib import Path
import pytest
from faults import FaultServer, said
import skillrl
from skillrl import SkillOptConfig, SkillOptTrainer
from skillrl.skillopt.types import RolloutResult, SkillEnv

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
    from skillrl import (Edit, GateAction, GateResult, Patch, RawPatch, RolloutResult as Result,
                         SkillOptConfig, SkillOptTrainer, __version__)
    assert Result is RolloutResult
    assert set(dir(skillrl)) >= {'Edit', 'GateAction', 'GateResult', 'Patch', 'RawPatch', 'RolloutResult',
                                 'SkillOptConfig', 'SkillOptTrainer'}
    defaults = dict(num_epochs=4, batch_size=40, minibatch_size=8, edit_budget=4,
                    min_edit_budget=2, lr_scheduler='cosine', gate_metric='hard', workers=8, seed=42,
                    out_root='outputs/skillrl_run', selection_split='val', eval_test=True,
                    save_every_step=True, optimizer_max_completion_tokens=4096, verbose=True)
    config = SkillOptConfig()
    assert {k: getattr(config, k) for k in defaults}==defaults
    assert defaults.items() <= config.to_dict().items()
