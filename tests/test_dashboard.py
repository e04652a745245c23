"The report of a SkillOpt run: what it says of any folder, damaged or hostile"
import json, re, shutil
from html.parser import HTMLParser
from pathlib import Path
import pytest
from skillrl.skillopt.ruleworld import RuleOptimizer, RuleTarget, RuleWorld
from skillrl.skillopt.settings import SkillOptConfig
from skillrl.skillopt.trainer import SkillOptTrainer
from skillrl.viewers.page import diff_html
from skillrl.viewers.report import _why, _describe_worth, outcome_text
from skillrl.viewers.report import _plot_scores, read_run, _skill_at, write_page

def train(root, epochs=1, target=None, world=RuleWorld(seed=2, val=60), **kw):
    config = SkillOptConfig(num_epochs=epochs, batch_size=10, minibatch_size=4, workers=1, verbose=False,
                            out_root=str(root), **kw)
    return SkillOptTrainer(config=config, env=world, optimizer_client=RuleOptimizer(.7, seed=2),
                           target_client=target or RuleTarget(seed=2)).train()

@pytest.fixture(scope='module')
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp('dashboard')/'run'
    train(root)
    return root

@pytest.fixture
def root(finished, tmp_path):
    "A finished run that may be damaged"
    return Path(shutil.copytree(finished, tmp_path/'run'))

# --- what the folder says is text

hostile = ('<script>window.pwned=1</script><img src=x onerror="window.pwned=1"></pre></style>'
           '<svg onload=window.pwned=1>\'"&$x$ \u2028\x1b[31m' + 'w'*3000)

def poisoned(root):
    "A run in which every text a model or an item could have written is hostile"
    def w(name, o):
        (root/name).parent.mkdir(parents=True, exist_ok=True)
        (root/name).write_text(o if isinstance(o, str) else json.dumps(o), encoding='utf-8')
    usage = {hostile: {hostile: dict(calls=3, prompt_tokens=4, completion_tokens=5)}}
    steps = [dict(step=n, epoch=1, action=action + hostile, reason=hostile, candidate_gate_score=.5,
                  current_score=.5, best_score=.5, best_step=1, skill_len=90, usage=usage)
             for n, action in enumerate(('accept', 'reject'), 1)]
    w('config.json', dict(edit_budget=1, prices={hostile: [1, 2]}, **{hostile: hostile}))
    w('history.json', steps)
    w('runtime_state.json', dict(best_step=1, best_score=.5, usage=usage))
    w('summary.json', dict(total_steps=2, stopped=hostile, usage=usage, best_step=1, best_selection_score=.5,
                           usd=1, test_gain=dict(mean=.1, interval=[-.1, .3])))
    events = [dict(step=2, stage=hostile, event=event, seconds=1, n=4) for event in ('end', 'begin')]
    w('events.jsonl', '\n'.join(map(json.dumps, events)))
    w('best_skill.md', hostile)
    for n in range(3):
        w(f'skills/skill_v{n:04}.md', f'Write the invoice.\n{hostile*bool(n)}\n')
    for n in (1, 2):
        w(f'steps/step_{n:04}/selection_eval/results.json',
          [dict(id=hostile, hard=1, soft=1., fail_reason=hostile)])
    return root

class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.attrs = [], []
        self.feed(page)
    def handle_starttag(self, tag, attrs):
        self.tags.append(tag), self.attrs.extend(attrs)

def test_a_hostile_skill_stays_text_in_the_report(tmp_path):
    page = write_page(poisoned(tmp_path/'<b onclick=x>run')).read_text(encoding='utf-8')
    seen = Tags(page)
    assert not {'script', 'img', 'iframe', 'object', 'form', 'a', 'b', 'base'} & set(seen.tags)
    assert seen.tags.count('link') == 1
    assert [v for k, v in seen.attrs if k in ('src', 'href') and not v.startswith(('#', 'data:,'))] == []
    assert not [k for k, _ in seen.attrs if k.startswith('on')]
    assert page.count('&lt;script&gt;window.pwned') > 10

def test_a_hostile_skill_stays_text_elsewhere(tmp_path):
    root = poisoned(tmp_path/'run')
    change = diff_html(_skill_at(root, 0), _skill_at(root, 1))
    assert not {'script', 'img', 'svg'} & set(Tags(change).tags)
    _plot_scores(root).canvas.draw()

# --- what it says is what happened

def test_the_report_has_what_the_summary_has(root):
    page, s = write_page(root).read_text(encoding='utf-8'), json.loads((root/'summary.json').read_text())
    assert f'{s["test_gain"]["mean"]:+.3f}' in page
    assert page.split('<h2>What was refused')[0].count('<h3>Step') == s['total_accepts']
    assert page.count('<h3>Step') == s['total_steps']
    assert page.count('<svg') == 1
    assert str(root) not in page and not re.search(r'https?://(?!www\.w3\.org)', page)
    assert page == write_page(root).read_text(encoding='utf-8')

def test_words_for_each_end(root):
    v = read_run(root)
    s = v.summary
    assert f'step {s["best_step"]}. ' in _describe_worth(v)
    for interval, words in (([.1, .3], 'more than chance'), ([-.1, .3], 'includes 0, so chance may explain'),
                            ([-.3, -.1], 'worse than the first skill')):
        v.summary['test_gain'] = dict(mean=.1, interval=interval)
        assert words in _describe_worth(v)
    v.summary['test_gain'] = None
    assert 'nobody knows what it gained' in _describe_worth(v)
    v.summary['best_selection_interval'] = None
    assert 'not measured afresh' in _describe_worth(v)
    v.summary['best_step'] = 0
    assert 'No candidate was accepted' in _describe_worth(v)
    v.is_at_work = True
    assert 'has not ended' in _describe_worth(v)

def test_no_code_of_a_record_is_shown_to_a_reader(root):
    steps = json.loads((root/'history.json').read_text())
    steps[2].update(action='skip_no_patches', reason='', gate=None)
    (root/'history.json').write_text(json.dumps(steps))
    page = write_page(root).read_text(encoding='utf-8').split('<h2>Settings')[0]
    assert not re.findall(r'accept_new_best|applied_\w+|skip_no\w*|\b\w+_eval\w*|items got better', page)
    assert 'no candidate: nothing proposed was taken' in page
    assert re.search(r'\d+ of \d+ comparisons went better, \d+ worse', page)

@pytest.mark.parametrize('gate,words', [
    (dict(n=10, wins=1, losses=2, gain=-.1, low=-.3),
     '1 of 10 comparisons went better, 2 worse: mean gain -0.100'),
    (dict(n=10, wins=2, losses=2, gain=0, low=-.3),
     '2 of 10 comparisons went better, 2 worse: mean gain +0.000'),
    (dict(n=10, wins=2, losses=1, gain=.1, low=-.2),
     'mean gain +0.100, which may be luck'),
    (dict(n=10, wins=4, losses=1, gain=.3, low=.1, keep=True),
     '4 of 10 comparisons went better, 1 worse: mean gain +0.300'),
    (dict(n=0), 'told'), (None, 'told'), ('x', 'told')])
def test_why(gate, words):
    assert _why(dict(gate=gate, reason='told')).endswith(words)

def test_a_run_that_a_limit_ended_and_what_it_cost(tmp_path):
    prices = {'ruleworld-agent': (1., 1.), 'ruleworld-optimizer': (1., 1.)}
    train(tmp_path/'run', max_target_calls=450, prices=prices)
    page = write_page(tmp_path/'run').read_text(encoding='utf-8')
    usd = json.loads((tmp_path/'run'/'summary.json').read_text())['usd']
    assert usd > 0 and f'{usd:.4f} USD' in page
    assert 'Stopped early: ' in page
    assert 'raise max_target_calls' in ' '.join(outcome_text(tmp_path/'run').split())
