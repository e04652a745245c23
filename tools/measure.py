"""How the library reads, in numbers: `python tools/measure.py [MODULE …]`; without modules it measures all, and exits 1 beyond a bound.

Tokens are counted on code lines only: without comments, docstrings and other text that spans lines. Methods added by `@patch` count for their class."""
import ast, io, sys, tokenize
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BOUNDS = {'tokens a line': 9., 'tokens a line of the densest module': 10.5, 'modules above 400 lines': 0, 'modules above 300 lines': 5,
          'classes above 12 methods': 0, 'lines above 110 columns': 0, 'functions above 7 arguments': 0,
          'functions not fully typed': 0, 'values picked by and/or': 0, 'three or more values assigned at once': 0,
          'lambdas with a name': 0, 'retired words': 0}
# The field's own words stand in their place: phases, evidence, concurrency
RETIRED = set('''imitate reinforce judge retold siblings live_groups shelf player players base_policy likeness doubles by_standing
objection doubts barred complaint leash ceiling hearing hearings harm sealed void both_ways flying land lasting watched'''.split())
QUIET = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING}

@dataclass
class Module:
    "What was counted in one file"
    name: str
    tokens: int = 0
    lines: int = 0
    wide: list = field(default_factory=list)
    classes: Counter = field(default_factory=Counter)
    many: list = field(default_factory=list)
    untyped: list = field(default_factory=list)
    picks: list = field(default_factory=list)
    multiple: list = field(default_factory=list)
    lambdas: list = field(default_factory=list)
    retired: Counter = field(default_factory=Counter)

    @property
    def density(self): return self.tokens/max(1, self.lines)

def count_tokens(source, m):
    "Tokens and code lines of `source`, into `m`"
    lines = Counter()
    for t in tokenize.generate_tokens(io.StringIO(source).readline):
        spans = t.type == tokenize.STRING and t.start[0] != t.end[0]
        if t.type not in QUIET and not spans: lines[t.start[0]] += 1
    m.tokens, m.lines = sum(lines.values()), len(lines)

def names_in(source):
    "The identifiers of `source`; prose and patterns may use any word"
    return [t for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.NAME]

def own_arguments(f):
    "The arguments of a function that its caller gives"
    return [a for a in f.args.posonlyargs + f.args.args + f.args.kwonlyargs if a.arg not in ('self', 'cls')]

def patched_class(f):
    "The class that `@patch` adds `f` to"
    first = f.args.args[0] if f.args.args else None
    if first is not None and first.arg in ('self', 'cls') and first.annotation is not None: return ast.unparse(first.annotation)

def see_function(f, m):
    arguments, where = own_arguments(f), f'{m.name}:{f.lineno} {f.name}'
    if patched_class(f): m.classes[patched_class(f)] += 1
    if len(arguments) > 7: m.many.append(f'{where} ({len(arguments)})')
    if f.name.startswith('_'): return
    if f.returns is None or any(a.annotation is None for a in arguments): m.untyped.append(where)

def picks_a_value(value):
    "Is it `a and b or c`?"
    mixed = isinstance(value, ast.BoolOp) and isinstance(value.op, ast.Or)
    return mixed and any(isinstance(v, ast.BoolOp) for v in value.values)

def see_assignment(node, m):
    target, where = node.targets[0], f'{m.name}:{node.lineno}'
    tuples = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
    if tuples and len(target.elts) > 2: m.multiple.append(where)
    if isinstance(node.value, ast.Lambda): m.lambdas.append(where)

def measure(path):
    "What is counted in the module at `path`"
    path = Path(path).resolve()
    m, source = Module(str(path.relative_to(ROOT))), path.read_text(encoding='utf-8')
    count_tokens(source, m)
    m.wide = [f'{m.name}:{i}' for i, line in enumerate(source.splitlines(), 1) if len(line) > 110 and not line.startswith('__all__')]
    retired = RETIRED - {'shelf'} if 'alfworld' in m.name else RETIRED  # A shelf is a piece of furniture there
    m.retired = Counter(t.string for t in names_in(source) if t.string in retired)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef): m.classes[node.name] += sum(isinstance(b, ast.FunctionDef) for b in node.body)
        if isinstance(node, ast.FunctionDef): see_function(node, m)
        if isinstance(node, (ast.Assign, ast.Return)) and picks_a_value(node.value): m.picks.append(f'{m.name}:{node.lineno}')
        if isinstance(node, ast.Assign): see_assignment(node, m)
    return m

def totals(modules):
    "Name of each bound → what was found, places to look at"
    def places(key): return [place for m in modules for place in getattr(m, key)]
    def above(n): return [f'{m.name} {m.lines}' for m in modules if m.lines > n]
    classes = [f'{name} {n} ({m.name})' for m in modules for name, n in m.classes.items() if n > 12]
    words = sum((m.retired for m in modules), Counter())
    densest = max(modules, key=lambda m: m.density)
    mean = sum(m.tokens for m in modules)/sum(m.lines for m in modules)
    found = {'tokens a line': (mean, []), 'tokens a line of the densest module': (densest.density, [densest.name]),
             'retired words': (words.total(), [f'{w} {n}' for w, n in words.most_common()])}
    lists = {'modules above 400 lines': above(400), 'modules above 300 lines': above(300), 'classes above 12 methods': classes,
             'lines above 110 columns': places('wide'), 'functions above 7 arguments': places('many'),
             'functions not fully typed': places('untyped'), 'values picked by and/or': places('picks'),
             'three or more values assigned at once': places('multiple'), 'lambdas with a name': places('lambdas')}
    return found | {name: (len(rows), rows) for name, rows in lists.items()}

def main(paths):
    some = [Path(p) for p in paths]
    everything = [p for p in (ROOT/'skillrl').rglob('*.py') if p.name != '_modidx.py' and p.stat().st_size]
    modules = [measure(p) for p in some or sorted(everything)]
    found, missed = totals(modules), 0
    print(f'{len(modules)} modules, {sum(m.lines for m in modules)} code lines')
    for name, bound in BOUNDS.items():
        value, where = found[name]
        missed += value > bound
        shown = where if paths else where[:4]
        rest = f' and {len(where) - len(shown)} more' if len(where) > len(shown) else ''
        detail = f': {", ".join(shown)}{rest}' if where else ''
        print(f'{"ok" if value <= bound else "MISSED":6} {name} {value:.4g} (at most {bound:g}){detail}')
    return min(missed, 1) if not paths else 0

if __name__ == '__main__': sys.exit(main(sys.argv[1:]))
