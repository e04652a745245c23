"""What names say: participles, private names, numbers kept private, and seams whose type nobody wrote.

The tables of `tools/measure.py` print each as a count, and the places where it is met."""
import ast, json, re
from pages import NBS, pages

# A name says what a thing is, so a participle alone is none: `matches`, not `found`
PARTICIPLES = set('''found said told known seen asked shown kept wanted played lost held written left named
tried opened given used allowed chosen made gone paid sent drawn refused needed'''.split())

def assigned(tree):
    "(line, name) of everything that `tree` assigns or takes as an argument"
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg

def participles(trees):
    "(share of the assigned names that are bare participles, their places) in `trees`, module → tree"
    names = [(module, line, name) for module, tree in trees.items() for line, name in assigned(tree)]
    bare = [f'{module}:{line} {name}' for module, line, name in names if name in PARTICIPLES]
    return len(bare)/max(1, len(names)), bare

def is_number(node):
    "Is it a number, or arithmetic of numbers?"
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)

def private_numbers(trees):
    "Names with an underscore that a module gives to a number, in `trees`"
    places = []
    for module, tree in trees.items():
        for node in (n for n in tree.body if isinstance(n, ast.Assign)):
            name = ast.unparse(node.targets[0])
            if name.startswith('_') and is_number(node.value):
                places.append(f'{module}:{node.lineno} {name}')
    return places

def defined(tree):
    "Names that the statements of a cell define"
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        if isinstance(node, ast.Assign):
            yield from (t.id for t in node.targets if isinstance(t, ast.Name))

def shown_cells():
    "(place, tree) of every exported cell whose code a page shows"
    for path in pages():
        for i, cell in enumerate(json.loads(path.read_text(encoding='utf-8'))['cells'], 1):
            source = ''.join(cell['source'])
            if cell['cell_type'] == 'code' and re.search(r'^#\|\s*exports\b', source, re.M):
                yield f'{path.relative_to(NBS)}:cell {i}', ast.parse(source)

def private_cells():
    "Shown cells that define a private name, which a reader cannot call"
    return [place for place, tree in shown_cells() if any(name.startswith('_') for name in defined(tree))]

def asks_for_a_name(node):
    "Is it `hasattr` or `getattr` with a name that is written there?"
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id
    return called in ('hasattr', 'getattr') and len(node.args) > 1 and isinstance(node.args[1], ast.Constant)

def is_bare(annotation):
    "Does it say only that something, or some tuple, comes?"
    return annotation is not None and ast.unparse(annotation) in ('Any', 'tuple', 'Any | None')

def untyped_seams(trees):
    "Arguments and results that are `Any` or a bare tuple, and names asked of an object, in `trees`"
    places = []
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if asks_for_a_name(node):
                places.append(f'{module}:{node.lineno} {node.func.id} {node.args[1].value}')
            if isinstance(node, ast.FunctionDef):
                types = [(a.arg, a.annotation) for a in node.args.args + node.args.kwonlyargs]
                types.append(('result', node.returns))
                places += [f'{module}:{node.lineno} {node.name} {name}' for name, t in types if is_bare(t)]
    return places
