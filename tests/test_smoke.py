"The short list of `pytest -m smoke` names tests that are there"
import ast
from pathlib import Path
from conftest import SMOKE

here = Path(__file__).parent

def names_tests(entry):
    "Is there a test that `entry` means?"
    file, _, name = entry.partition('::')
    body = ast.parse((here/file).read_text(encoding='utf-8')).body
    tests = [f.name for f in body if isinstance(f, ast.FunctionDef) and f.name.startswith('test_')]
    return name in tests if name else bool(tests)

def test_every_entry_names_tests():
    listed = [entry for entries in SMOKE.values() for entry in entries]
    assert [entry for entry in listed if not names_tests(entry)] == []

def test_the_list_gives_its_marker(request):
    assert request.node.get_closest_marker('smoke')

