"""The order of the house.

The loop is told in reading order (pages 01 to 11), the appendices by room. A module imports only from its own
room and from those below it, an appendix only from pages with lower numbers, nothing goes round in a circle,
and what must start fast loads nothing heavy."""
import ast, subprocess, sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
import pytest
from pages import name_of, NBS, pages, ROOMS, spine
import skillrl

root = Path(__file__).parent.parent
heavy = 'torch transformers trl peft bitsandbytes accelerate matplotlib'.split()

ORDER = ROOMS[:-1] # No module extends
ADDRESSES = {'types', 'envs.qa'} # Of skillrl 1.0.0, which hand names on

@cache
def modules():
    "Module name → its place in the order of reading, for every notebook that exports one"
    here = [p for p in pages() if '"#| export' in p.read_text(encoding='utf-8')]
    return {name_of(p): i for i, p in enumerate(here)}

def on_the_spine():
    return {name_of(p) for p in spine()}

def path_of(module):
    return root/'skillrl'/(module.replace('.', '/') + '.py')

def names_of(node, package):
    "What the statement `node` in `package` may import, from the root"
    if isinstance(node, ast.Import):
        return [a.name for a in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = package[:len(package) - node.level + 1] if node.level else []
    stem = '.'.join([*base, *filter(None, [node.module])])
    return [stem, *(f'{stem}.{a.name}' for a in node.names)]

def imported(module):
    "The modules of this library that `module` imports anywhere, inside functions too"
    package = ['skillrl', *module.split('.')[:-1]]
    for node in ast.walk(ast.parse(path_of(module).read_text(encoding='utf-8'))):
        names = names_of(node, package)
        yield from (n.removeprefix('skillrl.') for n in names if n.startswith('skillrl.'))

def part_of(module):
    "Room that `module` stands in"
    return module.split('.')[0]

def known_imports(module):
    return sorted(set(imported(module)) & modules().keys())

def in_reading_order():
    return sorted(modules(), key=modules().get)

def test_every_notebook_has_a_module():
    "Where one has none, its default_exp is another name than its file's"
    assert [m for m in in_reading_order() if not path_of(m).exists()]==[]

def test_imports_point_backwards():
    place = {m: ORDER.index(part_of(m)) for m in modules()}
    forward = [f'{m} imports {other}, which stands in a higher part'
               for m in in_reading_order() for other in known_imports(m) if place[other] > place[m]]
    assert forward==[]

def test_an_appendix_imports_lower_numbers():
    number = modules()
    appendices = [m for m in in_reading_order() if m not in on_the_spine()]
    near = [(m, other) for m in appendices for other in known_imports(m) if part_of(other)==part_of(m)]
    later = [f'{m} imports {other}, which comes later in its part'
             for m, other in near if number[other] >= number[m]]
    assert near and later==[]

def test_no_import_goes_round():
    try:
        list(TopologicalSorter({m: known_imports(m) for m in modules()}).static_order())
    except CycleError as e:
        pytest.fail(f'these import each other: {" → ".join(e.args[1])}')

def test_the_number_of_a_page_is_its_place_in_its_folder():
    folders = {p.parent for p in pages()} - {NBS}
    names = {folder: sorted(p.name for p in folder.glob('*.ipynb')) for folder in folders}
    assert {f: [name[:3] for name in ns] for f, ns in names.items()} == {
        f: [f'{i:02d}_' for i in range(1, len(ns) + 1)] for f, ns in names.items()}

def test_every_module_stands_in_a_room():
    paths = [p.relative_to(root/'skillrl').parts for p in (root/'skillrl').rglob('[!_]*.py')]
    assert {parts[0] for parts in paths} == {*ORDER, 'types.py'}

def test_every_module_has_a_notebook():
    paths = [p.relative_to(root/'skillrl').with_suffix('') for p in (root/'skillrl').rglob('[!_]*.py')]
    here = {p.as_posix().replace('/', '.') for p in paths}
    assert here - modules().keys() == ADDRESSES

def modules_after(statement):
    out = subprocess.run([sys.executable, '-c', f'{statement}; import sys; print(*sys.modules)'],
                         capture_output=True, text=True)
    assert out.returncode==0, out.stderr
    return out.stdout.split()

def loaded_by(statement):
    return {m.split('.')[0] for m in modules_after(statement)}

LIGHT = [m for m in in_reading_order() if not m.startswith(('llm', 'training'))]

FIRST_TO_LOAD = """
import importlib, sys
for name in sys.argv[1].split():
    importlib.import_module(f'skillrl.{name}')
    heavy = sorted(set(sys.argv[2].split()) & sys.modules.keys())
    if heavy:
        sys.exit(f'{name} loads {heavy}')
"""

def test_no_light_module_loads_anything_heavy():
    command = [sys.executable, '-c', FIRST_TO_LOAD, ' '.join(LIGHT), ' '.join(heavy)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode==0, done.stderr

def test_the_package_alone_loads_no_module_of_its_own():
    assert [m for m in modules_after('import skillrl') if m.startswith('skillrl.')]==[]

def test_names_of_the_package_come_when_asked_for():
    assert set(skillrl.__all__) == set(dir(skillrl))
    stub = ast.parse((root/'skillrl'/'__init__.pyi').read_text(encoding='utf-8'))
    listed, = [ast.literal_eval(node.value) for node in stub.body if isinstance(node, ast.Assign)]
    assert sorted(listed) == skillrl.__all__ # What a type checker is told
    assert all(getattr(skillrl, name) is not None for name in skillrl.__all__)
    light = [name for name in skillrl.__all__ if name not in ('Policy', 'GRPOTrainer')] # These are torch's
    assert sorted(loaded_by(f'from skillrl import {", ".join(light)}') & {*heavy, 'openai'})==[]

def test_a_name_the_package_does_not_have():
    with pytest.raises(AttributeError, match='SkillBonk'):
        skillrl.SkillBonk

def defined_in(path):
    "Names that a file has outside functions"
    for node in ast.parse(path.read_text(encoding='utf-8')).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        names = node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else ()
        yield from (a.asname or a.name for a in names)
        yield from (n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))

SCRIPTS = sorted(p for p in root.glob('*/*.py') if p.parent.name in ('benchmarks', 'examples', 'tools'))

@pytest.mark.parametrize('path', SCRIPTS, ids=lambda path: path.name)
def test_what_scripts_import_is_there(path):
    "Nothing else would notice a name that has moved"
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.ImportFrom):
            places = [(root/folder/node.module.replace('.', '/')).with_suffix('.py')
                      for folder in ('.', 'benchmarks', 'tools')]
            for file in filter(Path.is_file, places):
                missing = {a.name for a in node.names} - {*defined_in(file)}
                assert not missing, f'{file} has no {missing}'
