"A chat client travels to another process: as its settings, without its key"

import pickle
import pytest
from faults import FaultServer, said
from skillrl.llm.ledger import Ledger, ReplyCache
from skillrl.llm.openai_client import OpenAIChatClient, OpenAIEmbedder
from skillrl.core.store import JsonlLog

KEY = 'travel-7f3a9c51d2'


@pytest.fixture
def server():
    with FaultServer(rest=said('In the sink.')) as s:
        yield s


def client(server, tmp_path, **kw):
    kept = dict(cache=ReplyCache(tmp_path / 'cache'), log=JsonlLog(tmp_path / 'log.jsonl'))
    kept['ledger'] = Ledger({'mug': (1, 2)})
    return OpenAIChatClient('mug', base_url=server.url, retries=1, **kept, **kw)


def test_a_client_travels_by_its_settings(server, tmp_path, monkeypatch):
    monkeypatch.setenv('OPENAI_API_KEY', KEY)
    chat = client(server, tmp_path)
    chat.chat(system='', user='Where is the fork?')
    sent = pickle.dumps(chat)
    assert KEY.encode() not in sent
    there = pickle.loads(sent)
    assert there.chat(system='', user='Where is the mug?')[0] == 'In the sink.'
    assert [r['key'] for r in server.requests] == [KEY, KEY]
    assert there.secrets == (KEY,)
    assert (there.service.retries, there.endpoint) == (1, chat.endpoint)
    assert there.ledger.usd == 2 * chat.ledger.usd
    embedder = pickle.loads(pickle.dumps(OpenAIEmbedder('mug', base_url=server.url)))
    assert embedder.service.secrets == (KEY,)


def test_a_key_that_no_variable_holds_stays_here(server, tmp_path, monkeypatch):
    monkeypatch.delenv('OPENAI_API_KEY', raising=False)
    with pytest.raises(ValueError, match='is in no environment variable'):
        pickle.dumps(client(server, tmp_path, api_key=KEY))
    monkeypatch.setenv('SKILLRL_TEACHER_API_KEY', KEY)
    assert pickle.loads(pickle.dumps(client(server, tmp_path, api_key=KEY))).secrets == (KEY,)
