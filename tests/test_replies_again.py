"A reply that was of no use is asked for again, and what comes from a cache is said"

from pathlib import Path
import pytest
from faults import FaultServer, said
from skillrl.cli import main

NOTHING = '[]'  # There is nothing to be learnt: an answer like any other


@pytest.fixture
def played(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main('collect --episodes 4 --output t.json'.split()) == 0
    capsys.readouterr()


def distill(url):
    line = 'distill --trajectories t.json --output bank.json --teacher mug --teacher-url'
    return main([*line.split(), url])


def test_a_mended_server_is_asked_again(played, capsys):
    with FaultServer(rest=said('I would rather not.')) as s:
        assert distill(s.url) == 1
        asked = s.count
        s.rest = said(NOTHING)
        assert distill(s.url) == 0
        assert s.count == 2 * asked
        capsys.readouterr()
        assert distill(s.url) == 0
        assert s.count == 2 * asked
    assert str(Path('bank.teacher') / 'cache') in capsys.readouterr().err
