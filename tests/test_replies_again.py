"A reply that was of no use is asked for again, and what comes from a cache is said"

import time
from pathlib import Path
import pytest
from faults import Answer, FaultServer, RESET, error, said
from skillrl.cli.main import COMMANDS, main
from skillrl.llm.chat import ScriptedChat
from skillrl.llm.ledger import ReplyCache
from skillrl.llm.openai_client import OpenAIChatClient

NOTHING = '[]'  # There is nothing to be learnt: an answer like any other


@pytest.fixture
def played(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main('collect --episodes 4 --output t.json'.split()) == 0
    capsys.readouterr()


def distill(url, *more):
    line = 'distill --trajectories t.json --output bank.json --teacher mug --teacher-url'
    return main([*line.split(), url, *more])


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


def evaluate(url, *more):
    line = 'eval --set env.test_tasks=1 env.max_steps=2 --policy-model mug --policy-url'
    return main([*line.split(), url, *more])


def models(**said):
    return Answer(dict(object='list', data=[dict(id='mug', object='model', **said)]))


LOOKS = said('<action>look</action>')


def test_fresh_asks_again_and_keeps_what_is_answered(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with FaultServer(rest=LOOKS) as s:
        assert evaluate(s.url) == 0
        once = s.count
        assert evaluate(s.url) == 0
        assert s.count == once and '--fresh' in capsys.readouterr().err
        assert evaluate(s.url, '--fresh') == 0
        assert s.count == 2 * once and 'is not asked' not in capsys.readouterr().err
        assert evaluate(s.url) == 0
        assert s.count == 2 * once


def test_every_command_that_calls_takes_fresh():
    takes = [c.name for c in COMMANDS if '--fresh' in c.flags]
    assert takes == 'train collect distill sft rl evolve eval'.split()


def test_fresh_reaches_the_teacher(played):
    with FaultServer(rest=said(NOTHING)) as s:
        assert distill(s.url) == 0
        once = s.count
        assert distill(s.url, '--fresh') == 0
        assert s.count == 2 * once


def test_a_fresh_cache_serves_what_this_run_was_answered(tmp_path):
    ask = [dict(role='user', content='Where is the mug?')]
    ScriptedChat(['Old.'], cache=ReplyCache(tmp_path)).reply(ask)
    chat = ScriptedChat(['New.'], cache=ReplyCache(tmp_path, fresh=True))
    assert [chat.reply(ask).text for _ in range(2)] == ['New.', 'New.']


def test_a_model_replaced_behind_its_name_is_asked_anew(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with FaultServer(rest=LOOKS) as s:
        s.models = models(created=1_700_000_000, owned_by='mug', root='/weights/one')
        assert evaluate(s.url) == evaluate(s.url) == 0
        once = s.count
        s.models = models(created=1_700_000_000, owned_by='mug', root='/weights/two')
        assert evaluate(s.url) == 0
        assert s.count == 2 * once
    kept = b''.join(p.read_bytes() for p in tmp_path.rglob('*') if p.is_file())
    assert b'/weights' not in kept


def test_a_date_that_is_the_time_of_the_question_names_no_model(tmp_path):
    with FaultServer(rest=LOOKS) as s:
        names = []
        for seconds in (0, 3):
            s.models = models(created=time.time() + seconds, root='/weights/one')
            names.append(OpenAIChatClient('mug', base_url=s.url).served)
    assert names[0] and names[0] == names[1]


NO_LISTS = error(404), RESET, Answer('<h1>'), Answer('[1]'), Answer(dict(data=3)), Answer(dict(data=[3]))


@pytest.mark.parametrize('list_of_models', NO_LISTS)
def test_a_server_without_a_list_of_models_is_asked_as_before(tmp_path, list_of_models):
    ask = [dict(role='user', content='Where is the mug?')]
    with FaultServer(rest=LOOKS) as s:
        s.models = list_of_models
        for _ in range(2):
            chat = OpenAIChatClient('mug', base_url=s.url, cache=ReplyCache(tmp_path))
            assert chat.reply(ask).ok
        assert s.count == 1 and 'served' not in chat.new_call(ask, {}).request


def test_a_reply_without_a_command_is_asked_for_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with FaultServer(LOOKS, said('Hm.'), rest=LOOKS) as s:
        assert evaluate(s.url) == 0
        once = s.count
        assert evaluate(s.url) == 0
        assert s.count == once + 1
        assert evaluate(s.url) == 0
        assert s.count == once + 1


def test_what_is_forgotten_was_asked_at_the_clients_own_temperature(tmp_path):
    ask = [dict(role='user', content='Where is the mug?')]
    with FaultServer(rest=LOOKS) as s:
        chat = OpenAIChatClient('mug', base_url=s.url, default_temperature=0.5, cache=ReplyCache(tmp_path))
        chat.reply(ask)
        chat.forget(ask)
        assert not chat.reply(ask).cached and s.count == 2
