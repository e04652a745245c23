"""Does our Search environment do what the original one did? `python benchmarks/conformance_search.py FILE…`

A file is a JSON object with what was recorded by running SkillRL's own code against a stub of a retrieval
server: `projection`, `em`, `compute_score`, `episodes`. Prints cases and mismatches; any
mismatch exits with 1. `search_cases` is for the table by which `conformance.py webshop DIR` finds checks."""
import json, sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
from skillrl.worlds.search.engine import _exact_match, _last_answer
from skillrl.worlds.search.engine import SearchQuestion, SearchEngine
from skillrl.worlds.search.engine import is_valid, projected
from skillrl.worlds.search.retrieve import _read_hits

def projection(case):
    "What a reply asks for"
    return dict(result=projected(case['action']), valid=int(is_valid(case['action'])))

def _targets(case):
    "The good answers of a case, of which there may be one"
    target = case['target']
    return [target] if isinstance(target, str) else list(map(str, target))

def em(case):
    "An answer and its targets"
    return dict(em=int(_exact_match(case['prediction'], _targets(case))))

def compute_score(case):
    "The last answer in a text"
    answer = _last_answer(case['solution'])
    if answer is None:
        return dict(em=0)
    return em(dict(prediction=answer, target=case['target']))

# ---- episodes ----

def _document(i, query):
    return dict(document=dict(contents=f'"Title {i}"\nText {i} about {query}'), score=1. - .1*i)

REPLIES = { # Mode of the stub → what it replies to a query
    'ok': lambda query, k: dict(result=[[_document(i, query) for i in range(k)]]),
    'empty': lambda query, k: dict(result=[])}

class Stub:
    "The original's retrieval server in one of its modes"
    def __init__(self, mode):
        self.mode = mode

    def search(self, query, k):
        "What is read in its reply"
        reply = REPLIES.get(self.mode, REPLIES['empty'])
        return _read_hits(reply(query, k))

def played(episode):
    "What our engine answers to the actions of a recorded episode, in the same shape"
    question = SearchQuestion(episode['name'], '', _targets(episode))
    turns = episode.get('max_turns', episode.get('max_steps', 4))
    engine = SearchEngine(question, Stub(episode['mode']), turns, compat=True)
    for step in episode['steps']:
        action = projected(step['action'])
        observation = engine.step(step['action'])
        yield dict(projected=action, valid=int(engine.valid), obs=observation, reward=engine.reward,
                   done=engine.done, won=engine.won, tool_calling=not engine.done)

# ---- all of a file ----

class Case(NamedTuple):
    "One thing the original said"
    name: str
    got: Any
    expected: Any

def _case(name, recorded, ours):
    "What we say, against the same fields of what was recorded"
    return Case(name, ours, {field: recorded.get(field, value) for field, value in ours.items()})

def search_cases(folder: Path, recorded: dict) -> Iterator[Case]:
    "Everything about searching that a file holds; `folder` is where it lies"
    for section in (projection, em, compute_score):
        for i, case in enumerate(recorded.get(section.__name__, [])):
            yield _case(f'{section.__name__} {i}', case, section(case))
    for episode in recorded.get('episodes', []):
        for i, (step, ours) in enumerate(zip(episode['steps'], played(episode))):
            if episode['mode'] not in REPLIES: # Ours raises an error where a server answers in another shape
                del ours['obs']
            yield _case(f'episode {episode["name"]}, step {i}', step, ours)

def mismatches(path, shown=10):
    "Print what differs in the file `path`; number of mismatches, 1 if it holds nothing"
    cases = list(search_cases(Path(path).parent, json.loads(Path(path).read_text(encoding='utf-8'))))
    wrong = [case for case in cases if case.got != case.expected]
    for case in wrong[:shown]:
        print(f'{case.name}\n  real {case.expected!r}\n  ours {case.got!r}')
    print(f'search: {Path(path).name}: {len(cases)} cases, {len(wrong)} mismatches')
    return len(wrong) if cases else 1

if __name__ == '__main__':
    missing = [p for p in sys.argv[1:] if not Path(p).is_file()]
    if missing or len(sys.argv) < 2:
        sys.exit(f'{missing[0]} is not a file' if missing else 'usage: conformance_search.py FILE…')
    sys.exit(1 if sum(mismatches(path) for path in sys.argv[1:]) else 0)
