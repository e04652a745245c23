"""How the library reads, in numbers.

    python tools/measure.py [MODULE …]

Without modules it measures all, with the notebooks, tests, tools and benchmarks, the size of the whole
(`tools/whole.py`) and its names (`tools/names.py`), and exits 1 beyond a bound.
Tokens are counted on code lines only: without comments, docstrings and other text that spans lines. Methods
added by `@patch` count for their class. `tests/test_api.py` and `tests/test_names.py` assert the same."""
import argparse, ast, io, json, math, re, sys, tokenize
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from pages import NBS, pages
from whole import whole

ROOT = Path(__file__).resolve().parent.parent
BOUNDS = {
    'tokens a line': 9.06, # 9
    'tokens a line of the densest module': 10.5,
    'modules above 450 lines': 0,
    'classes above 12 methods': 0,
    'functions above 7 arguments': 0,
    'functions above 25 lines': 0,
    'exported functions not fully typed': 0,
    'exceptions not named': 0,
    'shapes not said': 0,
    'units not said': 0,
    'exported cells above 30 lines': 0,
    'lines above 110 columns': 0,
    'values picked by and/or': 0,
    'three or more values assigned at once': 0,
    'lambdas with a name': 0,
    'retired words': 0,
}
# Of the whole: what there was when a commit last said that it moves a bound. A change may go AIR beyond, so
# that it need not delete what has nothing to do with it
STANDING = {
    'code lines': 25_220,
    'tokens': 227_500,
    'modules': 125,
    'modules in the root': 1,
    'modules under 60 lines': 2,
    'modules that one other imports': 20,
    'names of two modules': 0,
    'classes above 20 methods, functions that take them included': 0,
    'code lines that only SkillOpt uses': 2_682,
    'settings of a run': 58,
    'settings of a proof': 14,
    'settings of SkillOpt': 21,
    'commands': 16,
    'flags': 53,
    'tokens of tests': 268_800,
    'notebooks': 129,
    'words of prose': 60_240,
    'cells of a page of the loop': 90,
    'words of a page of the loop': 900,
    'share of names that are participles': .002,
    'private numbers': 108,
    'shown cells that define a private name': 650,
    'untyped seams': 242,
}
AIR = .03
WIDTH = 110

# The field's own words stand in their place: phases, objects, learning, evidence, concurrency
RETIRED = set('''imitate reinforce judge retold siblings live_groups shelf player base_policy policy_for
teacher_for retriever_for likeness doubles by_standing objection doubts barred complaint leash ceiling hearing
harm sealed void both_ways flying land lasting watched'''.split())
ALLOWED = { # (word, part of a path) → why it stands there
    ('shelf', 'alfworld'): 'a piece of furniture',
    ('shelf', 'make_base'): 'a piece of furniture',
    ('judge', 'proof'): 'a model that grades what code cannot',
    ('judge', 'cli/'): 'the same',
    ('judge', 'viewers/03_report'): 'the same',
    ('judge', 'test_prove'): 'the same',
}

# An argument with one of these words in its name, and a number as its type, says its unit or range beside
# it, unless another word of the name does
MEASURES = set('''timeout wait delay idle deadline age pause size width height length limit capacity budget
reserve share rate fraction trust threshold margin alpha level power temperature noise slack penalty strength
epsilon'''.split())
NAMED_UNITS = set('''seconds minutes tokens chars bytes usd steps calls lines words items rows edits epochs
rounds games'''.split())
UNIT = re.compile(r'''second|minute|hour|token|character|byte|KB|MB|GB|USD|dollar|step|call|line|word|item|row
    |edit|task|game|episode|entr(y|ies)|skill|example|run|pair|epoch|round|column|pixel|inch|unit|number of
    |how many|share|probabilit|chance|rate|per cent|%|\d''', re.X | re.I)
SHAPE = re.compile(r'shape|scalar|one number|\(\w+,( ?\w+)?(, ?\w+)*\)|like `\w+`', re.I)

@dataclass
class Module:
    "What was counted in one module"
    name: str
    tokens: int = 0
    lines: int = 0
    classes: Counter = field(default_factory=Counter)
    many: list = field(default_factory=list)
    tall: list = field(default_factory=list)
    untyped: list = field(default_factory=list)
    raises: list = field(default_factory=list)
    shapes: list = field(default_factory=list)
    units: list = field(default_factory=list)

    @property
    def density(self):
        return self.tokens/max(1, self.lines)

@dataclass
class Habits:
    "Places in what was written by hand: cells of notebooks, tests, tools and benchmarks"
    long: list = field(default_factory=list)
    wide: list = field(default_factory=list)
    picks: list = field(default_factory=list)
    multiple: list = field(default_factory=list)
    lambdas: list = field(default_factory=list)
    retired: list = field(default_factory=list)

# ---- size ----

QUIET = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
         tokenize.ENDMARKER, tokenize.ENCODING}

FSTRING_START, FSTRING_END = (getattr(tokenize, f'FSTRING_{end}', None) for end in ('START', 'END'))

def tokens_of(source):
    "The tokens of `source`, an f-string as one, which it is to every Python before 3.12"
    out, begun = [], []
    for t in tokenize.generate_tokens(io.StringIO(source).readline):
        if t.type == FSTRING_START:
            begun.append(t.start)
        elif t.type == FSTRING_END:
            t = t._replace(type=tokenize.STRING, start=begun.pop())
        if not begun and t.type != FSTRING_START:
            out.append(t)
    return out

def count_tokens(source, m):
    "Tokens and code lines of `source`, into `m`"
    lines = Counter()
    for t in tokens_of(source):
        spans = t.type == tokenize.STRING and t.start[0] != t.end[0]
        if t.type not in QUIET and not spans:
            lines[t.start[0]] += 1
    m.tokens, m.lines = sum(lines.values()), len(lines)

def own_arguments(f):
    "The arguments of a function that its caller gives by name"
    return [a for a in f.args.posonlyargs + f.args.args + f.args.kwonlyargs if a.arg not in ('self', 'cls')]

def patched_class(f):
    "The class that `@patch` adds `f` to"
    first = f.args.args[0] if f.args.args else None
    if first is not None and first.arg in ('self', 'cls') and first.annotation is not None:
        return ast.unparse(first.annotation)

def see_function(f, lines, m):
    "Its class, its arguments and the lines of its body, into `m`"
    n = len(own_arguments(f))
    height = sum(bool(line.strip()) for line in lines[f.body[0].lineno - 1:f.end_lineno])
    if patched_class(f):
        m.classes[patched_class(f)] += 1
    if n > 7:
        m.many.append(f'{m.name}:{f.lineno} {f.name} ({n})')
    if height > 25:
        m.tall.append(f'{m.name}:{f.lineno} {f.name} ({height})')

def count_members(tree, lines, m):
    "Methods of each class, and functions with many arguments or lines, into `m`"
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            m.classes[node.name] += sum(isinstance(b, ast.FunctionDef) for b in node.body)
        if isinstance(node, ast.FunctionDef):
            see_function(node, lines, m)

# ---- what a public function says of itself ----

def exported_names(tree):
    "The names in `__all__` of the module `tree`"
    assigned = [n for n in tree.body if isinstance(n, ast.Assign)]
    lists = [n.value for n in assigned if ast.unparse(n.targets[0]) == '__all__']
    return {name.value for value in lists for name in value.elts if isinstance(name, ast.Constant)}

def is_public(f):
    return f.name in ('__init__', '__post_init__', '__call__') or not f.name.startswith('_')

def public_functions(tree):
    "(class or None, function) of every exported function and of the public methods of every exported class"
    exported = exported_names(tree)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            cls = patched_class(node)
            if (cls or node.name) in exported and is_public(node):
                yield cls, node
        if isinstance(node, ast.ClassDef) and node.name in exported:
            yield from ((node.name, f) for f in node.body if isinstance(f, ast.FunctionDef) and is_public(f))

def fields(tree):
    "(class, field) of every exported dataclass and the like: what the caller gives to make one"
    exported = exported_names(tree)
    for c in tree.body:
        if isinstance(c, ast.ClassDef) and c.name in exported:
            yield from ((c, f) for f in c.body if isinstance(f, ast.AnnAssign))

def raised_class(node):
    "Name of the class in `raise X(…)`, '' when a function makes it"
    made = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    name = ast.unparse(made).rsplit('.', 1)[-1] if made else ''
    return name if re.fullmatch(r'[A-Z]\w+', name) else ''

def is_caught(node, f):
    "Does `f` itself catch what `node` raises?"
    for t in ast.walk(f):
        if isinstance(t, ast.Try) and any(node is n for b in t.body for n in ast.walk(b)):
            caught = ' '.join(ast.unparse(h.type) if h.type else 'Exception' for h in t.handlers)
            if re.search(rf'\b({raised_class(node)}|Exception|BaseException)\b', caught):
                return True
    return False

def raised_by(f):
    "Exception classes that leave `f`; NotImplementedError only says that a subclass writes the method"
    raises = [n for n in ast.walk(f) if isinstance(n, ast.Raise)]
    named = [n for n in raises if raised_class(n) not in ('', 'NotImplementedError')]
    return {raised_class(n) for n in named if not is_caught(n, f)}

def said_beside(f, comments):
    "All that the signature and the docstring of `f` say"
    rows = range(f.lineno, f.body[0].lineno + 1)
    return ' '.join([ast.get_docstring(f) or '', *(comments[i] for i in rows if i in comments)])

def holds_arrays(annotation):
    return 'Tensor' in annotation or 'ndarray' in annotation

def needs_unit(name, annotation):
    "Is it a number whose name is that of a time, a size or a share, and says no unit?"
    number = re.search(r'\b(int|float)\b', annotation) and not re.search(r'dict|Callable', annotation)
    words = set(name.split('_'))
    return bool(number and words & MEASURES and not words & NAMED_UNITS)

def see_value(name, annotation, said, where, m):
    "Does `said` give the shape or the unit of the argument, field or result `name`?"
    if holds_arrays(annotation) and not SHAPE.search(said):
        m.shapes.append(f'{where} {name}')
    if needs_unit(name, annotation) and not UNIT.search(said):
        m.units.append(f'{where} {name}')

def see_signature(cls, f, about_class, comments, m):
    "What the public function `f` does not say, into `m`"
    where = f'{m.name}:{f.lineno} {cls + "." if cls else ""}{f.name}'
    said = f'{about_class} {said_beside(f, comments)}'
    docstring = ast.get_docstring(f) or ''
    arguments = own_arguments(f) + [a for a in (f.args.vararg, f.args.kwarg) if a]
    returns = f.returns is not None or f.name in ('__init__', '__post_init__')
    if not returns or any(a.annotation is None for a in arguments):
        m.untyped.append(where)
    m.raises += [f'{where}: {name}' for name in sorted(raised_by(f)) if not re.search(rf'\b{name}\b', said)]
    for a in arguments:
        if a.annotation is not None:
            beside = docstring + comments.get(a.lineno, '')
            see_value(a.arg, ast.unparse(a.annotation), beside, where, m)
    if f.returns is not None:
        beside = docstring + comments.get(f.returns.end_lineno, '')
        see_value('return', ast.unparse(f.returns), beside, where, m)

def see_api(tree, source, m):
    "What the public functions and classes of a module do not say of themselves, into `m`"
    comments = {t.start[0]: t.string for t in tokens_of(source) if t.type == tokenize.COMMENT}
    classes = {c.name: ast.get_docstring(c) or '' for c in tree.body if isinstance(c, ast.ClassDef)}
    for cls, f in public_functions(tree):
        about_class = classes.get(cls, '') if f.name in ('__init__', '__post_init__') else ''
        see_signature(cls, f, about_class, comments, m)
    for c, f in fields(tree):
        said = classes[c.name] + comments.get(f.lineno, '')
        see_value(ast.unparse(f.target), ast.unparse(f.annotation), said, f'{m.name}:{f.lineno} {c.name}', m)

def measure(path):
    "What is counted in the module at `path`"
    path = Path(path).resolve()
    m, source = Module(path.relative_to(ROOT).as_posix()), path.read_text(encoding='utf-8')
    tree = ast.parse(source)
    count_tokens(source, m)
    count_members(tree, source.splitlines(), m)
    see_api(tree, source, m)
    return m

def all_modules():
    "The modules of the library that notebooks made"
    return sorted(p for p in (ROOT/'skillrl').rglob('*.py') if p.name != '_modidx.py' and p.stat().st_size)

# ---- what was written by hand ----

def cells(path):
    "(place, source) of each code cell of the notebook at `path`; what only Jupyter understands is left out"
    for i, cell in enumerate(json.loads(path.read_text(encoding='utf-8'))['cells'], 1):
        source = ''.join(cell['source'])
        if cell['cell_type'] == 'code' and not source.startswith('%%'):
            yield f'{path.relative_to(NBS)}:cell {i}:', re.sub(r'^\s*[!%].*$', '', source, flags=re.M)

def written(module=None):
    "(place, source) of what was written by hand: for a module its page, otherwise everything"
    if module:
        page = re.search(r'File to edit: \S*(nbs/\S+\.ipynb)', module.read_text(encoding='utf-8')[:900])
        yield from cells(ROOT/page[1]) if page else [(f'{module.name}:', module.read_text(encoding='utf-8'))]
        return
    for path in pages():
        yield from cells(path)
    for folder in ('tests', 'tools', 'benchmarks', 'examples'):
        for path in sorted((ROOT/folder).glob('*.py')):
            yield f'{folder}/{path.name}:', path.read_text(encoding='utf-8')
    yield 'skillrl/__init__.py:', (ROOT/'skillrl'/'__init__.py').read_text(encoding='utf-8')

@cache
def words_in(name):
    "Retired words in the identifier or file name `name`, wherever it stands"
    whole = re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', name).lower().replace('-', '_')
    return {w for w in RETIRED if re.search(rf'(?<![a-z0-9]){w}s?(?![a-z0-9])', whole)}

def retired_in(name, where=''):
    "Those of its `words_in` that the place `where` does not allow"
    return {w for w in words_in(name) if not any(w == word and part in where for word, part in ALLOWED)}

def picks_a_value(value):
    "Is it `a and b or c`?"
    mixed = isinstance(value, ast.BoolOp) and isinstance(value.op, ast.Or)
    return mixed and any(isinstance(v, ast.BoolOp) for v in value.values)

def see_statement(node, where, h):
    "Does the statement `node` pick a value, name a lambda or assign many things at once?"
    if isinstance(node, (ast.Assign, ast.Return)) and picks_a_value(node.value):
        h.picks.append(f'{where}{node.lineno}')
    if isinstance(node, ast.Assign):
        target = node.targets[0]
        tuples = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
        if tuples and len(target.elts) > 2:
            h.multiple.append(f'{where}{node.lineno}')
        if isinstance(node.value, ast.Lambda):
            h.lambdas.append(f'{where}{node.lineno}')

def see_lines(where, source, h):
    "Wide lines, and cells of the library with too many of them, into `h`"
    lines = source.splitlines()
    for i, line in enumerate(lines, 1):
        if len(line) > WIDTH and not line.endswith('# noqa: E501'):
            h.wide.append(f'{where}{i}')
    n = sum(bool(line.strip()) and not line.startswith('#|') for line in lines)
    if re.search(r'^#\|\s*exports?\b', source, re.M) and n > 30:
        h.long.append(f'{where} {n}')

def see_text(where, source, h):
    "Wide lines, retired words and habits in `source`, into `h`"
    see_lines(where, source, h)
    names = {t.string for t in tokens_of(source) if t.type == tokenize.NAME}
    names |= set(re.findall(r'(?<![\w-])--[a-z][a-z-]+', source)) # Flags of a command
    sentences = {n for n in names if n.startswith('test_')}
    for name in sorted(names - sentences):
        h.retired += [f'{where} {name}' for _ in retired_in(name, where)]
    for node in ast.walk(ast.parse(source)):
        see_statement(node, where, h)

def see_names_of_files(h):
    "Retired words among file names and the keys of config files, into `h`"
    for folder in ('nbs', 'skillrl', 'tests', 'tools', 'benchmarks', 'configs'):
        for path in sorted((ROOT/folder).rglob('*.*')):
            h.retired += [f'{folder}/{path.name}' for _ in retired_in(path.name)]
    for path in sorted((ROOT/'configs').glob('*.yaml')):
        for key in re.findall(r'([\w-]+):', path.read_text(encoding='utf-8')):
            h.retired += [f'configs/{path.name} {key}' for _ in retired_in(key)]

def habits(paths=()):
    "What is found in everything that was written by hand, or in the pages of some modules"
    h = Habits()
    texts = [text for path in paths for text in written(Path(path))] if paths else written()
    for where, source in texts:
        see_text(where, source, h)
    if not paths:
        see_names_of_files(h)
    return h

# ---- the table ----

def sizes(modules):
    "Name of each bound on size → what was found, places to look at"
    def above(n):
        return [f'{m.name} {m.lines}' for m in modules if m.lines > n]

    densest = max(modules, key=lambda m: m.density)
    mean = sum(m.tokens for m in modules)/sum(m.lines for m in modules)
    classes = [f'{name} {n} ({m.name})' for m in modules for name, n in m.classes.items() if n > 12]
    return {
        'tokens a line': (mean, []),
        'tokens a line of the densest module': (densest.density, [densest.name]),
        'modules above 450 lines': (len(above(450)), above(450)),
        'classes above 12 methods': (len(classes), classes),
    }

def found_in(modules, h):
    "Name of each bound → what was found, places to look at"
    def places(key):
        return [place for m in modules for place in getattr(m, key)]

    lists = {
        'functions above 7 arguments': places('many'),
        'functions above 25 lines': places('tall'),
        'exported functions not fully typed': places('untyped'),
        'exceptions not named': places('raises'),
        'shapes not said': places('shapes'),
        'units not said': places('units'),
        'exported cells above 30 lines': h.long,
        'lines above 110 columns': h.wide,
        'values picked by and/or': h.picks,
        'three or more values assigned at once': h.multiple,
        'lambdas with a name': h.lambdas,
        'retired words': h.retired,
    }
    return sizes(modules) | {name: (len(rows), rows) for name, rows in lists.items()}

def bound_of(name):
    "The most that there may be: BOUNDS as they are, STANDING with its air"
    if name in BOUNDS:
        return BOUNDS[name]
    most = STANDING[name]*(1 + AIR)
    return math.ceil(most) if isinstance(STANDING[name], int) else most

def remedy(name):
    "What to do about a bound that is missed"
    if name in BOUNDS:
        return 'mend these places'
    return 'remove what your change replaces, or raise STANDING in a commit that says why'

def report(name, value, places, all_places):
    "Print one line of the table; is `value` beyond its bound?"
    first = places if all_places else places[:4]
    rest = f' and {len(places) - len(first)} more' if len(places) > len(first) else ''
    detail = f': {", ".join(first)}{rest}' if places else ''
    bound = bound_of(name)
    missed = value > bound
    number = ',' if isinstance(value, int) else '.3g'
    print(f'{"MISSED" if missed else "ok":6} {name} {value:{number}} (at most {bound:{number}}){detail}')
    if missed:
        print(f'       {value - bound:{number}} too many: {remedy(name)}')
    return missed

def tokens_of_tests():
    "Tokens on the code lines of `tests/`"
    counted = Module('tests')
    total = 0
    for path in (ROOT/'tests').glob('*.py'):
        count_tokens(path.read_text(encoding='utf-8'), counted)
        total += counted.tokens
    return total

def main(paths):
    modules = [measure(p) for p in paths or all_modules()]
    found = found_in(modules, habits(paths))
    print(f'{len(modules)} modules, {sum(m.lines for m in modules)} code lines')
    if not paths:
        found |= whole(modules, tokens_of_tests())
    missed = [name for name in found if report(name, *found[name], bool(paths))]
    return int(bool(missed) and not paths)

if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('modules', nargs='*', metavar='MODULE', help='files; all of the library if left out')
    sys.exit(main(parser.parse_args().modules))
