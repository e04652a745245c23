"""What holds for the repository as a whole.

Notebooks in shape, README and checks in step, nothing that belongs to one machine. A test of all notebooks
lists every place that breaks its rule."""
import ast, json, re
from configparser import ConfigParser
from functools import cache
from pathlib import Path
from pages import name_of, pages

root = Path(__file__).parent.parent

@cache
def notebooks():
    "Name of each page → the notebook"
    return {name_of(path): json.loads(path.read_text(encoding='utf-8')) for path in pages()}

def code_cells():
    "(place, cell) of all code cells, a place like `agent.episode, cell 4`"
    for stem, notebook in notebooks().items():
        for i, c in enumerate(notebook['cells']):
            if c['cell_type']=='code':
                yield f'{stem}, cell {i}', c

def in_outputs(pattern):
    "Places and what matches `pattern` in their outputs"
    found = [(place, re.findall(pattern, json.dumps(c['outputs']))) for place, c in code_cells()]
    return [(place, seen) for place, seen in found if seen]

def settings():
    ini = ConfigParser(delimiters=['='])
    ini.read(root/'settings.ini', encoding='utf-8')
    return ini['DEFAULT']

def test_notebooks_open_with_title_and_promise():
    title = r'# [^\n]+\n+> [^\n]+'
    firsts = {stem: ''.join(n['cells'][0]['source']).strip() for stem, n in notebooks().items()}
    odd = [stem for stem, first in firsts.items() if not re.fullmatch(title, first)]
    assert firsts
    assert not odd, 'the first cell is a title and one quoted line'

def test_the_second_cell_names_the_module():
    seconds = {stem: ''.join(n['cells'][1]['source']).strip() for stem, n in notebooks().items()}
    del seconds['index']
    assert not [s for s, second in seconds.items() if second != f'#| default_exp {s}']

def test_kernel_is_the_only_metadata():
    more = [stem for stem, n in notebooks().items() if list(n['metadata']) != ['kernelspec']]
    assert not more, 'run tools/save_outputs.py on them'

def mixes_an_import_with_code(source):
    exported, magic = (re.search(p, source, re.M) for p in (r'^#\|\s*export', r'^\s*[%!]'))
    if exported or magic or 'nbdev_export(' in source:
        return False
    body = ast.parse(source).body
    other = [n for n in body if not isinstance(n, (ast.Import, ast.ImportFrom, ast.Try))]
    imports = [n for b in body for n in ast.walk(b) if isinstance(n, (ast.Import, ast.ImportFrom))]
    return bool(other and imports)

def test_imports_live_alone():
    "nbdev runs every cell with an import when it builds the docs, out of the context it needs"
    assert not [place for place, c in code_cells() if mixes_an_import_with_code(''.join(c['source']))]

def test_outputs_name_no_machine():
    assert not in_outputs(r'/(?:home|root|tmp|Users|private|work)/\w+')

def test_no_cell_was_saved_with_an_error():
    assert not in_outputs(r'"output_type": "error"')

def test_outputs_hold_no_key():
    assert not in_outputs(r'\bsk-[\w-]{6,}|Bearer (?!\[redacted)\S+')

def test_one_test_command():
    "The README has one line that tests; the checks run that very line"
    lines = [l for l in (root/'README.md').read_text(encoding='utf-8').splitlines() if 'nbdev_test' in l]
    assert len(lines)==1
    assert lines[0].startswith('python3 -m venv .venv') and lines[0].endswith('nbdev_test && pytest')
    assert "grep -m1 'nbdev_test' README.md" in (root/'.ci'/'run').read_text()

def test_no_invented_addresses():
    assert not [k for k in ('user', 'doc_host', 'git_url') if settings()[k]]
    for fn in (root/'settings.ini', root/'mkdocs.yml', root/'pyproject.toml', root/'README.md'):
        invented = r'example\.(org|com|net)|example\.github|github\.com/example'
        assert not re.search(invented, fn.read_text(encoding='utf-8')), fn.name

def test_shipped_data_is_small_and_explained():
    files = [p for p in (root/'data').rglob('*') if p.is_file() and p.name!='README.md']
    said = (root/'data'/'README.md').read_text(encoding='utf-8')
    for p in files:
        assert p.stat().st_size < 4e6, f'{p.name} is larger than 4 MB'
        path = p.relative_to(root/'data')
        names = [path.as_posix(), *(f'{q.as_posix()}/' for q in path.parents)]
        assert any(f'`{n}`' in said for n in names), f'data/README.md does not say how {names[0]} is made'

def test_versions_agree():
    assert f'__version__ = "{settings()["version"]}"' in (root/'skillrl'/'__init__.py').read_text()

def test_tools_that_are_run_say_how():
    "argparse prints `--help`, and does nothing else then"
    run = [text for p in root.glob('tools/*.py') if "__name__ == '__main__'" in (text := p.read_text())]
    assert len(run) > 4 and all('.parse_args()' in text for text in run)

def test_only_the_command_line_knows_flags():
    "Below it nothing takes `args`, and nothing imports argparse or the commands"
    for path in (root/'skillrl').rglob('*.py'):
        if path.parent.name == 'cli':
            continue
        tree = ast.parse(path.read_text(encoding='utf-8'))
        heads = [n for n in ast.walk(tree) if isinstance(n, ast.arguments)]
        taken = [ast.unparse(a) for n in heads for a in n.posonlyargs + n.args] # `args:tuple` is a call's own
        imported = [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
        imported += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
        assert not {'args', 'args: Namespace', 'args: Any'} & {*taken}, path
        assert 'argparse' not in imported, path
        assert not any('cli' in (name or '').split('.') for name in imported), path
