"""The order of the house.

A module imports only from notebooks with lower numbers, and what must start fast loads nothing heavy."""
import ast, re, subprocess, sys
from pathlib import Path
import pytest
import skillrl

root = Path(__file__).parent.parent
heavy = 'torch transformers trl peft bitsandbytes accelerate matplotlib'.split()

def source_of(nb): return ''.join(''.join(c['source']) + '\n' for c in nb['cells'] if c['cell_type']=='code')

def modules():
    "Module name → number, for every notebook that exports one"
    pages = [p for p in (root/'nbs').glob('*.ipynb') if '"#| export' in p.read_text(encoding='utf-8')]
    return {m[2]: int(m[1]) for p in pages if (m := re.fullmatch(r'(\d+)_(.+)', p.stem))}

def path_of(module): return root/'skillrl'/(module.replace('.', '/') + '.py')

def imported(module):
    "The modules of this library that `module` imports anywhere, inside functions too"
    package = ['skillrl', *module.split('.')[:-1]]
    for node in ast.walk(ast.parse(path_of(module).read_text(encoding='utf-8'))):
        if isinstance(node, ast.Import): names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[:len(package) - node.level + 1] if node.level else []
            stem = '.'.join([*base, *([node.module] if node.module else [])])
            names = [stem, *(f'{stem}.{a.name}' for a in node.names)]
        else: continue
        yield from (n.removeprefix('skillrl.') for n in names if n.startswith('skillrl.'))

@pytest.mark.parametrize('module', sorted(modules(), key=modules().get))
def test_imports_point_backwards(module):
    number = modules()
    assert path_of(module).exists(), f'{module} has a notebook but no module: is its default_exp {module}?'
    forward = sorted({m for m in imported(module) if m in number and number[m] >= number[module]})
    assert not forward, f'{number[module]:02}_{module} imports {forward}, which come later in the book'

def test_every_module_has_a_notebook():
    paths = [p.relative_to(root/'skillrl').with_suffix('') for p in (root/'skillrl').rglob('[!_]*.py')]
    here = {p.as_posix().replace('/', '.') for p in paths}
    assert here - modules().keys() == set()

def modules_after(statement):
    out = subprocess.run([sys.executable, '-c', f'{statement}; import sys; print(*sys.modules)'],
                         capture_output=True, text=True)
    assert out.returncode==0, out.stderr
    return out.stdout.split()

def loaded_by(statement): return {m.split('.')[0] for m in modules_after(statement)}

LIGHT = [m for m in sorted(modules(), key=modules().get) if not m.startswith(('llm', 'training'))]

@pytest.mark.parametrize('module', ['', *LIGHT])
def test_loads_nothing_heavy(module):
    name = f'skillrl.{module}'.rstrip('.')
    assert sorted(loaded_by(f'import {name}') & set(heavy)) == []

def test_the_package_alone_loads_no_module_of_its_own():
    assert [m for m in modules_after('import skillrl') if m.startswith('skillrl.')]==[]

@pytest.mark.parametrize('name', skillrl.__all__)
def test_names_of_the_package_come_when_asked_for(name):
    assert name in dir(skillrl) and getattr(skillrl, name) is not None
    assert sorted(loaded_by(f'from skillrl import {name}') & {*heavy, 'openai'})==[]

def test_a_name_the_package_does_not_have():
    with pytest.raises(AttributeError, match="no attribute 'SkillBonk'"): skillrl.SkillBonk
