"""What trackers get of a run, read back from the files that they write.

TensorBoard is among the development requirements. Weights & Biases is optional, and its test is skipped
where it is not installed; nothing here needs a network."""
import json, os, sys
from pathlib import Path
import pytest
from skillrl.core.config import SkillRLConfig
from skillrl.cli.flags import SMOKE
from skillrl.core.store import JsonlLog
from skillrl.training.tracking import Tracker, build_reporter, points
from skillrl.training.pipeline import train

ROWS = [dict(phase='sft', rows=97, losses=[.084, .028, .048]),
        dict(phase='rl', iteration=0, success=.25, loss=.07),
        dict(phase='rl', iteration=1, success=.5, loss=.05),
        dict(phase='rl', iteration=2, success=.75, loss=.04)]
SECRET = 'sk-do-not-report-me'

def settings():
    return SkillRLConfig().fill_keys({'SKILLRL_TEACHER_API_KEY': SECRET}).to_dict()

def sent(rows):
    "(tag, step) → value, as every tracker should have it"
    return {(name, step): v for _, step, numbers in points(rows) for name, v in numbers.items()}

@pytest.fixture
def folder(tmp_path):
    return tmp_path/'run'

def follow(folder, report_to, rows):
    "What a process does that adds `rows` to the log"
    tracker = Tracker(folder, build_reporter(report_to, folder, settings()))
    tracker.follow()
    for row in rows:
        JsonlLog(folder/'metrics.jsonl').append([row])
        tracker.follow()
    tracker.follow(final=True)

def holds(folder, text):
    return [p for p in Path(folder).rglob('*') if p.is_file() and text.encode() in p.read_bytes()]

# ---- TensorBoard ----

def scalars(folder):
    "(tag, step) → value in the event files; a point that stands there twice is an error"
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    seen = EventAccumulator(str(folder/'tensorboard'), dict(scalars=0)).Reload()
    found = [((tag, e.step), e.value) for tag in seen.Tags()['scalars'] for e in seen.Scalars(tag)]
    assert len(found) == len(dict(found))
    return dict(found)

def test_tensorboard_has_each_point_once_after_a_resume(folder):
    pytest.importorskip('tensorboard')
    follow(folder, 'tensorboard', ROWS[:2])
    follow(folder, 'tensorboard', ROWS[2:])
    assert scalars(folder) == pytest.approx(sent(ROWS))

def test_tensorboard_forgets_what_was_not_committed(folder):
    pytest.importorskip('tensorboard')
    follow(folder, 'tensorboard', ROWS)
    log = JsonlLog(folder/'metrics.jsonl')
    os.truncate(log.path, log.size - 10)
    log.mend()
    follow(folder, 'tensorboard', [])
    assert scalars(folder) == pytest.approx(sent(ROWS[:-1]))

SHORT = SMOKE | {'env.train_suites': 1, 'env.test_suites': 1, 'env.episodes': 2, 'env.test_tasks': 1,
                 'sft.games': 1, 'sft.steps': 2, 'rl.iterations': 3, 'rl.tasks_per_iteration': 1,
                 'evolution.validation_interval': 0, 'report_to': 'tensorboard'}

def test_a_run_that_is_stopped_and_resumed_reports_each_point_once(folder):
    pytest.importorskip('tensorboard')
    def stop(phase, done, total):
        if (phase, done) == ('rl', 2):
            raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        train(SkillRLConfig().merged(SHORT), folder, step=stop)
    metrics = JsonlLog(folder/'metrics.jsonl')
    assert scalars(folder) == pytest.approx(sent(metrics.read()))
    assert len(metrics.read()) == 3
    train(None, folder, resume=True)
    assert scalars(folder) == pytest.approx(sent(metrics.read()))
    assert len(metrics.read()) == 4

# ---- Weights & Biases ----

def records(folder):
    "What the offline file holds: each behind 7 bytes of checksum, length and type, after a head of 7"
    from wandb.proto.wandb_internal_pb2 import Record
    file, = (folder/'wandb').glob('offline-run-*/run-*.wandb')
    data, at = file.read_bytes(), 7
    assert len(data) < 2**15 # One block of the format
    while at < len(data):
        size = int.from_bytes(data[at + 4:at + 6], 'little')
        yield Record.FromString(data[at + 7:at + 7 + size])
        at += 7 + size

def history(folder):
    "The points in it"
    for record in records(folder):
        if record.WhichOneof('record_type') == 'history':
            yield {'/'.join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}

def test_wandb_has_each_point_once_after_a_resume(folder, monkeypatch):
    wandb = pytest.importorskip('wandb', reason='pip install -e ".[wandb]" to test it')
    monkeypatch.setenv('WANDB_MODE', 'offline')
    monkeypatch.setenv('WANDB_SILENT', 'true')
    follow(folder, 'wandb', ROWS[:2])
    follow(folder, 'wandb', ROWS[2:])
    wandb.teardown() # Its service writes the file, and may not be done yet
    found = {(k, row[f'{k.split("/")[0]}/step']): v for row in history(folder) for k, v in row.items()
             if not k.startswith('_') and not k.endswith('/step')}
    assert found == pytest.approx(sent(ROWS))
    assert {record.run.host for record in records(folder)} <= {'', 'hidden'}
    made, = (folder/'wandb').glob('offline-run-*')
    assert holds(made, 'sft/loss')
    assert not holds(made, SECRET) + holds(made, sys.argv[0])

# ---- what is asked for ----

def test_a_tracker_that_is_not_installed(folder, monkeypatch):
    monkeypatch.setattr('skillrl.training.tracking.find_spec', lambda name: None)
    with pytest.raises(ImportError, match=r"report_to is 'wandb'.*pip install -e \"\.\[wandb\]\""):
        build_reporter('wandb', folder, {})

def test_no_other_tracker_is_accepted():
    with pytest.raises(ValueError, match='report_to is .mlflow.: give it one of none, tensorboard'):
        SkillRLConfig(report_to='mlflow')
