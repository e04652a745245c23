"A small run from its first phase to its last, and all that it did"
import json, sys
from pathlib import Path
from skillrl.core.config import SkillRLConfig
from skillrl.skills.bank import SkillBank
from skillrl.skills.retrieval import advice
from skillrl.training.pipeline import train
from test_planner import require_alike

KEPT = Path(__file__).with_name('run.json') # What `python tests/test_outline.py FOLDER` writes
OUTLINED = SkillRLConfig().merged({
    'env.train_suites': 1, 'env.test_suites': 3, 'env.episodes': 6, 'env.test_tasks': 1, 'sft.games': 4,
    'sft.steps': 3, 'rl.iterations': 2, 'rl.tasks_per_iteration': 3, 'rl.group_size': 4,
    'evolution.validation_interval': 2})
LABELS = 'phase', 'suite', 'condition', 'split', 'iteration', 'group', 'tried', 'hidden'

def outline(folder):
    "What a run did and learnt, without what was said in its episodes"
    rows = {p.stem: [json.loads(line) for line in p.read_text().splitlines()] for p in folder.glob('*.jsonl')}
    played = [[t['game'], t['success'], len(t['steps']), {k: t['metadata'].get(k) for k in LABELS}]
              for t in rows['trajectories']]
    banks = {f'{p.parent.name}/{p.name}': [[o.id, o.status, advice(o)] for o in SkillBank.load(p).items()]
             for p in sorted(folder.glob('bank/*/*.json'))}
    state = json.loads((folder/'state.json').read_text())['state']
    return dict(state=state, played=played, rows=len(rows['sft']),
                metrics=rows['metrics'], rounds=rows['evolution'], banks=banks,
                report=(folder/'report.md').read_text().splitlines())

def test_a_run_does_what_it_did(tmp_path):
    "The phases, the seeds and the record of a run change only on purpose"
    now = outline(train(OUTLINED, tmp_path/'run'))
    require_alike(json.loads(json.dumps(now)), json.loads(KEPT.read_text()), rel=.02, abs=1e-3)

if __name__ == '__main__':
    KEPT.write_text(json.dumps(outline(train(OUTLINED, sys.argv[1])), indent=1))
