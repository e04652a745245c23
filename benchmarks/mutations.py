"""Do the tests notice when the core is wrong? Lines are changed at random, one at a time.

    python benchmarks/mutations.py [--seed 0] [--number 300] [--jobs 2] [--only skills.trials] [--who]

First the whole suite runs once under coverage, which says which tests run which line; that is kept in
`runs/mutations/` until the library or the tests change. Then mutations are drawn from the syntax trees of
the modules below: an operator, a constant, a bound, a pair of arguments or a statement is changed, on lines
that some test runs. Each is tried in a copy of the tree: the tests that run its line, the fastest first,
then the module's own page. Prints each one that survives, and exits 1 when fewer than 90 of 100 are
killed. With `--who` the fastest tests run to their end although one of them failed, and those that kill
nothing alone are printed instead."""
import argparse, ast, hashlib, json, multiprocessing, os, random, re, shutil, signal, subprocess, sys
import tempfile
import xml.etree.ElementTree as xml
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from coverage import CoverageData
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT/'runs'/'mutations'
TARGET = .9
PARTS = ('skillrl', 'tests', 'data', 'configs', 'benchmarks', 'nbs', 'tools', 'pyproject.toml',
         'settings.ini', 'setup.py', 'README.md', 'MANIFEST.in', 'mkdocs.yml', '.ci')
JUDGED = ('skills/trials', 'skills/evolution', 'training/*', 'core/stats', 'envs/*/reward', 'llm/decoding',
          'llm/adapter')
MOST_SECONDS = 120 # Of tests for one mutation, as long as they took under coverage
WHO_SECONDS = 15  # Where no test stops the others
# Imported once: each trial is a fork of a process that has these, and none of the library
PRELOADED = ['torch', 'transformers', 'peft', 'openai', 'pydantic', 'matplotlib', 'pytest', 'nbdev.test']

# (line, changed line) → why nothing that a test could see changes
EQUIVALENT = {
    ('return sum(math.comb(n, k) for k in range(wins, n + 1))/2**n',
     'return sum(math.comb(n, k) for k in range(wins, n + 2))/2**n'): 'comb(n, n + 1) is 0',
    ('step = (max(xs) - floor)/_GRID or 1.',
     'step = (max(xs) - floor)/_GRID or 2.0'): 'where all are at the floor, every step counts 0 of them',
    ('self.steps = 0    # Taken by this object',
     'self.steps = 1    # Taken by this object'): 'only compared with itself',
    ('if _tango_score(wins, losses, n, mid) > z:',
     'if _tango_score(wins, losses, n, mid)  >=  z:'): 'no score is exactly z',
    ('clipped = (r<1-low) & (a<0) | (r>1+high) & (a>0)',
     'clipped = (r <= 1-low) & (a<0) | (r>1+high) & (a>0)'): 'no ratio is exactly at the end of the band',
    ('clipped = (r<1-low) & (a<0) | (r>1+high) & (a>0)',
     'clipped = (r<1-low) & (a<0) | (r >= 1+high) & (a>0)'): 'likewise',
    ('low, high = -1., (wins - losses)/max(1, n)',
     'low, high = -1., (wins  +  losses)/max(1, n)'): 'the bound is as well found between wider ends',
    ("current = {o.id for o in bank.items('active', PROBATION)}",
     "current = {o.id for o in bank.items(PROBATION, 'active')}"): 'a set',
    ('use_reentrant=False))', 'use_reentrant=True))'): 'another way to the same gradient',
    ('if effect.interval(_HARM)[1] < 0:', 'if effect.interval(_HARM)[1]  <=  0:'): 'no bound is exactly 0',
    ("remedy if sum(plan.values()) > free else '')",
     "remedy if sum(plan.values())  >=  free else '')"): 'no plan is exactly what is free',
    ('return torch.min(r*a, clipped*a)*mask', 'return torch.min(clipped*a, r*a)*mask'): 'symmetric',
    ('return _group_stats(returns, groups)[1] >= eps',
     'return _group_stats(returns, groups)[1]  >  eps'): 'no spread is exactly eps',
    ('if size < 2 or o.id in waiting or o.status != PROBATION and rng.random() >= share:',
     'if size < 2 or o.id in waiting or o.status != PROBATION and rng.random()  >  share:'):
     'no draw is exactly the share',
    ("_more('max_new_tokens', m.max_new_tokens or 32, 2*longest.reply_tokens))]",
     "_more('max_new_tokens', m.max_new_tokens or 33, 2*longest.reply_tokens))]"): 'what is wanted is even',
    ('return _Known(effect, mean.interval(_CLEAR)[0] > 0 and effect.interval(1/3)[0] > 0)',
     'return _Known(effect, mean.interval(_CLEAR)[0] > 0 and effect.interval(1/3)[0]  >=  0)'): 'likewise',
}

# Calls whose first two arguments may change places
SYMMETRIC = 'min', 'max', 'token_set_ratio'

# ---- what can be changed ----

OTHER = {ast.Lt: '<=', ast.LtE: '<', ast.Gt: '>=', ast.GtE: '>', ast.Eq: '!=', ast.NotEq: '==',
         ast.In: 'not in', ast.NotIn: 'in', ast.Is: 'is not', ast.IsNot: 'is', ast.Add: '-', ast.Sub: '+',
         ast.Mult: '/', ast.Div: '*', ast.FloorDiv: '*', ast.Pow: '*', ast.And: 'or', ast.Or: 'and'}

@dataclass(frozen=True)
class Mutation:
    "One place that is wrong"
    file: Path  # Of the library
    line: int   # Where it begins, from 1
    start: int  # In the bytes of the file
    end: int
    new: str    # What stands there instead

    @property
    def lines(self):
        "The first line as it is and as it becomes"
        text = self.file.read_bytes()
        changed = self.applied(text)
        return tuple(t.split(b'\n')[self.line - 1].decode().strip() for t in (text, changed))

    def applied(self, text):
        "The bytes of the file with the mistake in them"
        return text[:self.start] + self.new.encode() + text[self.end:]

class Drawer(ast.NodeVisitor):
    "Collects (node or pair of nodes that bound a gap, new text)"
    def __init__(self, path):
        self.path, self.text = path, path.read_bytes()
        self.starts = [0]
        for line in self.text.split(b'\n'):
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.found = []
        self.visit(ast.parse(self.text))

    def offset(self, line, column):
        return self.starts[line - 1] + column

    def span(self, node):
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def source(self, node):
        start, end = self.span(node)
        return self.text[start:end].decode()

    def add(self, line, start, end, new):
        self.found.append(Mutation(self.path, line, start, end, new))

    def replace(self, node, new):
        self.add(node.lineno, *self.span(node), new)

    def operator(self, left, right, op):
        "Change the operator between two nodes"
        start, end = self.span(left)[1], self.span(right)[0]
        gap = self.text[start:end].decode()
        if type(op) in OTHER and '#' not in gap and '\n' not in gap:
            inner = gap.strip(' ()')
            self.add(left.end_lineno, start, end, gap.replace(inner, f' {OTHER[type(op)]} ', 1))

    def visit_Compare(self, node):
        for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators):
            self.operator(left, right, op)
        self.generic_visit(node)

    def visit_BinOp(self, node):
        self.operator(node.left, node.right, node.op)
        self.generic_visit(node)

    def visit_BoolOp(self, node):
        for left, right in zip(node.values, node.values[1:]):
            self.operator(left, right, node.op)
        self.generic_visit(node)

    def visit_UnaryOp(self, node):
        if isinstance(node.op, ast.Not):
            self.replace(node, self.source(node.operand))
        self.generic_visit(node)

    def visit_Constant(self, node):
        if isinstance(node.value, bool):
            self.replace(node, str(not node.value))
        elif isinstance(node.value, int):
            self.replace(node, str(node.value + 1))
        elif isinstance(node.value, float):
            self.replace(node, repr(2*node.value) if node.value else '1.')

    def visit_Slice(self, node):
        for bound in (node.lower, node.upper):
            if bound is not None and not isinstance(bound, ast.Constant):
                self.replace(bound, f'({self.source(bound)}) + 1')
        self.generic_visit(node)

    def visit_Call(self, node):
        if getattr(node.func, 'id', '') == 'range' and not isinstance(node.args[-1], ast.Constant):
            self.replace(node.args[-1], f'({self.source(node.args[-1])}) - 1')
        plain = [a for a in node.args if not isinstance(a, (ast.Starred, ast.GeneratorExp))]
        either = getattr(node.func, 'id', '') in SYMMETRIC
        if len(node.args) > 1 and plain[:2] == node.args[:2] and not either:
            first, second = node.args[:2]
            start, end = self.span(first)[0], self.span(second)[1]
            between = self.text[self.span(first)[1]:self.span(second)[0]].decode()
            self.add(first.lineno, start, end, self.source(second) + between + self.source(first))
        self.generic_visit(node)

    def visit_Expr(self, node):
        if not isinstance(node.value, ast.Constant):
            self.replace(node, 'pass')
            self.generic_visit(node)

    def visit_AugAssign(self, node):
        self.replace(node, 'pass')
        self.generic_visit(node)

    def visit_If(self, node):
        self.replace(node.test, 'False')
        self.generic_visit(node)

    def visit_AnnAssign(self, node):
        if node.value is not None:
            self.visit(node.value)

    def visit_Assign(self, node):
        if getattr(node.targets[0], 'id', '') != '__all__':
            self.visit(node.value)

    def visit_FunctionDef(self, node):
        for part in (*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body):
            self.visit(part)

    def visit_ClassDef(self, node):
        for part in node.body:
            self.visit(part)

    def visit_JoinedStr(self, node):
        pass # Where its parts stand, older Pythons do not say

def mutations_of(path):
    "All that can be changed in the module at `path`"
    found = [m for m in Drawer(path).found if m.lines[0] != m.lines[1]]
    return [m for m in found if m.lines not in EQUIVALENT]

# ---- which tests run which line ----

UNSEEN = shutil.ignore_patterns('__pycache__', '.ipynb_checkpoints')

def copy_tree(to):
    for part in PARTS:
        source = ROOT/part
        if source.is_dir():
            shutil.copytree(source, to/part, ignore=UNSEEN)
        elif source.exists():
            shutil.copy(source, to/part)

def environment(tree):
    return os.environ | dict(PYTHONPATH=str(tree), OMP_NUM_THREADS='1', PYTHONDONTWRITEBYTECODE='1')

def state():
    "A name for what the library and its tests are now"
    digest = hashlib.sha256()
    for folder in ('skillrl', 'tests'):
        for path in sorted((ROOT/folder).rglob('*.py')):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]

def node_of(case):
    "What pytest calls a test in its report"
    return f"{case.get('classname').replace('.', '/')}.py::{case.get('name')}"

def trace(folder, jobs):
    "Run all tests once: which runs which line, and how long each takes"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as d:
        copy_tree(Path(d))
        command = [sys.executable, '-m', 'pytest', '-q', f'-n{jobs}', '-p', 'no:cacheprovider',
                   '--cov=skillrl', '--cov-context=test', '--cov-report=', '--junitxml=times.xml', 'tests']
        subprocess.run(command, cwd=d, env=environment(d))
        cases = [*xml.parse(f'{d}/times.xml').iter('testcase')]
        seconds = {node_of(case): float(case.get('time')) for case in cases}
        broken = {node_of(case) for case in cases if {'failure', 'error'} & {part.tag for part in case}}
        data = CoverageData(f'{d}/.coverage')
        data.read()
        lines = {}
        for file in data.measured_files():
            path = Path(file).relative_to(Path(d).resolve()).as_posix()
            lines[path] = {n: sorted({c.split('|')[0] for c in contexts if c} - broken)
                           for n, contexts in data.contexts_by_lineno(file).items()}
    if broken:
        print(f'{len(broken)} tests fail without any mutation, so they are left out: {sorted(broken)[:5]}')
    (folder/'lines.json').write_text(json.dumps(lines))
    (folder/'seconds.json').write_text(json.dumps(seconds))

@cache
def traced(jobs):
    "(file → line → tests, test → seconds)"
    folder = KEPT/state()
    if not (folder/'seconds.json').exists():
        trace(folder, jobs)
    return tuple(json.loads((folder/f'{name}.json').read_text()) for name in ('lines', 'seconds'))

def tests_of(m, lines, seconds, most):
    "The tests that run the line of `m`, or its module where the line runs at the import, the fastest first"
    known = lines.get(m.file.relative_to(ROOT).as_posix(), {})
    here = known.get(str(m.line)) or [t for tests in known.values() for t in tests]
    chosen, total = [], 0
    for test in sorted(set(here), key=lambda t: (seconds.get(t, 1.), t)):
        total += seconds.get(test, 1.)
        if total > most and chosen:
            break
        chosen.append(test)
    return chosen

def drawn(number, seed, only, lines):
    "`number` mutations of lines that run, by `seed`"
    paths = [p for pattern in JUDGED for p in sorted((ROOT/'skillrl').glob(f'{pattern}.py'))
             if not p.name.startswith('_') and only in '.'.join(p.with_suffix('').parts)]
    every = [m for p in paths for m in mutations_of(p)
             if str(m.line) in lines.get(p.relative_to(ROOT).as_posix(), {})]
    return random.Random(seed).sample(every, min(number, len(every)))

# ---- trying one ----

def page_of(m):
    "(The page that exports the line of `m`, the cell's id, the line's number in it)"
    text = m.file.read_text(encoding='utf-8').split('\n')
    at = max(i for i, line in enumerate(text[:m.line]) if line.startswith('# %% '))
    name, cell = re.fullmatch(r'# %% \S*nbs/(\S+\.ipynb) #(\S+)', text[at]).groups()
    return name, cell, m.line - at - 2

def spoil_page(tree, m, changed):
    "Make the same mistake in the page"
    name, cell, n = page_of(m)
    path = tree/'nbs'/name
    page = json.loads(path.read_text(encoding='utf-8'))
    source = next(c for c in page['cells'] if c.get('id') == cell)
    lines = ''.join(source['source']).split('\n')
    head = sum(line.startswith('#|') for line in lines)
    before = m.file.read_text(encoding='utf-8').split('\n')
    after = changed.decode().split('\n')
    first = m.line - 1
    last = next(i for i in range(len(before)) if before[len(before) - 1 - i] != after[len(after) - 1 - i])
    lines[head + n:head + n + len(before) - last - first] = after[first:len(after) - last]
    source['source'] = '\n'.join(lines).splitlines(True)
    path.write_text(json.dumps(page), encoding='utf-8')
    return path

def quietly(run, tree, what):
    "Call `run` on `what` in the folder `tree`, with the library that stands there; exits 0 where it passes"
    os.setsid()
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    os.chdir(tree)
    os.environ.update(environment(tree))
    sys.path.insert(0, str(tree))
    sys.exit(not run(what))

KILLERS = Path('killers.txt')

class Killers:
    "Writes down which tests fail"
    def pytest_runtest_logreport(self, report):
        if report.failed:
            with KILLERS.open('a') as f:
                print(report.nodeid, file=f)

def tests_pass(names):
    import pytest
    return pytest.main(['-q', '-x', '-n0', '-p', 'no:cacheprovider', *names]) == 0

def all_tests_pass(names):
    import pytest
    return pytest.main(['-q', '-n0', '-p', 'no:cacheprovider', *names], [Killers()]) == 0

def page_passes(page):
    from nbdev.test import test_nb
    return test_nb(page, basepath=Path('.'))[0]

def ran_well(run, tree, what, seconds):
    "Did it pass? One that hangs did not"
    process = multiprocessing.get_context('forkserver').Process(target=quietly, args=(run, tree, what))
    process.start()
    process.join(seconds)
    if process.is_alive():
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return process.exitcode == 0

def survives(m, trees, lines, seconds, who):
    "Do the tests of `m` and its page pass although its line is wrong? And `who` did not"
    run, most = (all_tests_pass, WHO_SECONDS) if who else (tests_pass, MOST_SECONDS)
    tests = tests_of(m, lines, seconds, most)
    tree = trees.get()
    file, right = tree/m.file.relative_to(ROOT), m.file.read_bytes()
    changed = m.applied(right)
    page = tree/'nbs'/page_of(m)[0]
    kept = page.read_bytes()
    try:
        file.write_bytes(changed)
        limit = 30 + 5*sum(seconds.get(t, 1.) for t in tests)
        if tests and not ran_well(run, tree, tests, limit):
            return False, killers_in(tree)
        spoil_page(tree, m, changed)
        return ran_well(page_passes, tree, page, 300), set()
    finally:
        file.write_bytes(right)
        page.write_bytes(kept)
        trees.put(tree)

def killers_in(tree):
    path = tree/KILLERS
    found = set(path.read_text().split('\n')[:-1]) if path.exists() else set()
    path.unlink(missing_ok=True)
    return found

def tell_who(killers):
    "Of the tests that killed some mutation, those that another could stand in for; the cases of one are one"
    killers = [{test.partition('[')[0] for test in some} for some in killers]
    alone = {test for some in killers if len(some) == 1 for test in some}
    kills = Counter(test for some in killers for test in some)
    print(f'{len(kills)} tests kill something, {len(alone)} of them something that no other does. The rest:')
    for test, n in kills.most_common():
        if test not in alone:
            print(f'{n:6} {test}')

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--seed', type=int, default=0)
    p.add_argument('--number', type=int, default=300)
    p.add_argument('--only', default='', metavar='MODULE', help='part of a module\'s name')
    p.add_argument('--jobs', type=int, default=2)
    p.add_argument('--who', action='store_true', help='say which tests kill nothing alone')
    args = p.parse_args()
    lines, seconds = traced(args.jobs)
    os.environ['OMP_NUM_THREADS'] = '1'
    multiprocessing.get_context('forkserver').set_forkserver_preload(PRELOADED)
    chosen = drawn(args.number, args.seed, args.only, lines)
    with tempfile.TemporaryDirectory() as d, ThreadPoolExecutor(args.jobs) as pool:
        trees = SimpleQueue()
        for i in range(args.jobs):
            (tree := Path(d)/str(i)).mkdir()
            copy_tree(tree)
            trees.put(tree)
        tried = pool.map(lambda m: survives(m, trees, lines, seconds, args.who), chosen)
        alive, killers = [], []
        for m, (left, some) in zip(chosen, tqdm(tried, total=len(chosen))):
            alive.append(left)
            killers.append(some)
            if left and not args.who:
                where = f'{m.file.relative_to(ROOT)}:{m.line}'
                print(f'SURVIVED {where}\n    {m.lines[0]}\n    {m.lines[1]}', flush=True)
    if args.who:
        return tell_who(killers)
    killed = alive.count(False)
    print(f'{killed} of {len(chosen)} killed')
    sys.exit(killed < TARGET*len(chosen))

if __name__ == '__main__':
    main()
