"Episodes as a log of Inspect, read back by Inspect; skipped where that is not installed"
from argparse import Namespace
from datetime import datetime, timezone
import pytest
from skillrl.cli.main import export
from skillrl.core.formats import write_inspect_log
from skillrl.core.store import JsonlLog
from skillrl.core.trajectory import Step, Trajectory

WHEN = datetime(2026, 5, 1, tzinfo=timezone.utc)
needs_inspect = pytest.mark.skipif('not __import__("importlib.util").util.find_spec("inspect_ai")',
                                   reason='pip install "skillrl-lab[inspect]" to test it')

def episode(game, won, condition='before, bank'):
    steps = [Step('You see a <b>fridge</b>.', 'open fridge 1', reply='<action> open fridge 1 </action>',
                  skills=['coo_001'], token_ids=[4, 5], logprobs=[-.1, -.2], advantage=.5),
             Step('A mug.\x00\ud800', 'take mug 1', reward=float(won), ok=False)]
    about = dict(phase='eval', condition=condition)
    return Trajectory(f'{game}#0', 'cool a mug', 'cool', steps, won, 'Done.', game, 3, about, end='won')

@needs_inspect
def test_what_inspect_reads_is_what_was_played(tmp_path):
    from inspect_ai.log import read_eval_log
    later = episode('g1', True, 'after, bank')
    played = [episode('g1', True), episode('g2', False), later, episode('g1', False)]
    log = read_eval_log(str(write_inspect_log(played, tmp_path/'new'/'run.eval', 'kitchen', 'tiny', WHEN)))
    assert (log.status, log.eval.task, log.eval.model) == ('success', 'kitchen', 'tiny')
    assert {(s.id, s.epoch): s.scores['success'].value for s in log.samples} == {
        ('before, bank: g1', 1): 1, ('before, bank: g2', 1): 0, ('after, bank: g1', 1): 1,
        ('before, bank: g1', 2): 0}
    first = next(s for s in log.samples if s.id == 'before, bank: g2')
    assert [m.role for m in first.messages] == ['user', 'assistant', 'user', 'assistant', 'user']
    assert first.messages[0].text == 'You see a <b>fridge</b>.'
    assert first.messages[3].text == 'take mug 1'
    assert first.metadata['skills'] == [['coo_001'], []] and first.metadata['parsed'] == [True, False]
    rates = {s.name: s.metrics['accuracy'].value for s in log.results.scores}
    assert rates == pytest.approx({'before, bank': 1/3, 'after, bank': 1})

@needs_inspect
def test_the_command_exports_the_evaluation_of_a_run(tmp_path, capsys):
    from inspect_ai.log import read_eval_log
    early = Trajectory('x#0', 'cool a mug', metadata=dict(phase='collect'))
    played = [early, episode('g1', True)]
    JsonlLog(tmp_path/'run'/'trajectories.jsonl').append([t.to_dict() for t in played])
    args = Namespace(path=str(tmp_path/'run'), format='inspect', output=str(tmp_path/'run.eval'))
    export(args)
    assert '1 episode: ' in capsys.readouterr().out
    log = read_eval_log(args.output)
    assert [s.id for s in log.samples] == ['before, bank: g1']
    export(args)
    assert read_eval_log(args.output).model_dump_json() == log.model_dump_json()

def test_without_episodes(tmp_path):
    args = Namespace(path=str(tmp_path), format='inspect', output=str(tmp_path/'run.eval'))
    with pytest.raises(FileNotFoundError):
        export(args)

def test_without_inspect(tmp_path, monkeypatch):
    monkeypatch.setattr('skillrl.core.formats.find_spec', lambda name: None)
    with pytest.raises(ImportError, match=r'pip install "skillrl-lab\[inspect\]"'):
        write_inspect_log([episode('g1', True)], tmp_path/'run.eval', 'kitchen', 'tiny', WHEN)
