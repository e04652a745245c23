"""What holds for the repository as a whole.

Notebooks in shape, README and checks in step, nothing that belongs to one machine."""
import ast, json, re
from configparser import ConfigParser
from pathlib import Path
import pytest

root = Path(__file__).parent.parent
notebooks = sorted((root/'nbs').glob('*.ipynb'))
nbs = pytest.mark.parametrize('fn', notebooks, ids=lambda p: p.stem)

def cells(fn, kind=None):
    "(place, source, cell) of the cells of `fn`"
    for i,c in enumerate(json.loads(fn.read_text(encoding='utf-8'))['cells']):
        if kind in (None, c['cell_type']):
            yield i, ''.join(c['source']), c

def settings():
    ini = ConfigParser(delimiters=['='])
    ini.read(root/'settings.ini', encoding='utf-8')
    return ini['DEFAULT']

@nbs
def test_opens_with_title_and_promise(fn):
    (_, first, _), *rest = cells(fn)
    title = r'# [^\n]+\n+> [^\n]+'
    assert re.fullmatch(title, first.strip()), 'the first cell is a title and one quoted line'
    if fn.stem!='index':
        assert rest[0][1].strip()==f"#| default_exp {fn.stem.split('_', 1)[1]}"

@nbs
def test_kernel_is_the_only_metadata(fn):
    metadata = json.loads(fn.read_text(encoding='utf-8'))['metadata']
    assert list(metadata)==['kernelspec'], 'run tools/save_outputs.py on it'

@nbs
def test_imports_live_alone(fn):
    "nbdev runs every cell with an import when it builds the docs, out of the context it needs"
    for i,src,_ in cells(fn, 'code'):
        exported, magic = (re.search(p, src, re.M) for p in (r'^#\|\s*export', r'^\s*[%!]'))
        if exported or magic or 'nbdev_export(' in src:
            continue
        body = ast.parse(src).body
        mixed = [n for n in body if not isinstance(n, (ast.Import, ast.ImportFrom, ast.Try))]
        imports = [n for b in body for n in ast.walk(b) if isinstance(n, (ast.Import, ast.ImportFrom))]
        assert not (mixed and imports), f'cell {i} mixes an import with other code:\n{src}'

@nbs
def test_outputs_name_no_machine(fn):
    for i,_,c in cells(fn, 'code'):
        seen = re.findall(r'/(?:home|root|tmp|Users|private|work)/\w+', json.dumps(c['outputs']))
        assert not seen, f'the output of cell {i} holds {seen}'
        assert not [o for o in c['outputs'] if o['output_type']=='error'], f'cell {i} was saved with an error'

@nbs
def test_outputs_hold_no_key(fn):
    for i,_,c in cells(fn, 'code'):
        seen = re.findall(r'\bsk-[\w-]{6,}|Bearer (?!\[redacted)\S+', json.dumps(c['outputs']))
        assert not seen, f'the output of cell {i} shows {seen}'

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
