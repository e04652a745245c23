"""How large the whole is: what `tools/measure.py` counts over all modules, pages, tests and settings.

A module's importers are found in its text, wherever the import stands. What only SkillOpt uses is the folder
`skillopt`, the commands that run it, and every module that these alone import, again until none is added."""
import ast, json
from collections import Counter, defaultdict
from dataclasses import fields as fields_of, is_dataclass
from pathlib import Path
from names import participles, private_cells, private_numbers, untyped_seams
from pages import pages as all_pages, spine

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT/'skillrl'
WORLDS = 'alfworld', 'webshop', 'search', 'mcp'
ADDRESSES = 'types', 'envs.qa' # Of skillrl 1.0.0, which hand names on
OF_SKILLOPT = 'cli.jobs',

def dotted(path):
    "`training.rl` for its file"
    return '.'.join(path.relative_to(LIBRARY).with_suffix('').parts)

def targets(node, name):
    "Dotted names that the import `node` in the module `name` may be about"
    if isinstance(node, ast.Import):
        return [a.name.removeprefix('skillrl.') for a in node.names if a.name.startswith('skillrl.')]
    base = node.module or ''
    if node.level:
        above = name.split('.')[:-node.level]
        base = '.'.join([*above, *filter(None, [base])])
    elif base.split('.')[0] != 'skillrl':
        return []
    base = base.removeprefix('skillrl').lstrip('.')
    return [base, *('.'.join(filter(None, [base, a.name])) for a in node.names)]

def importers(paths):
    "Name of each module → names of the modules that import it"
    trees = {dotted(p): ast.parse(p.read_text(encoding='utf-8')) for p in paths}
    found = defaultdict(set)
    for name, tree in trees.items():
        nodes = [n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))]
        for target in {t for n in nodes for t in targets(n, name)} & trees.keys() - {name}:
            found[target].add(name)
    return found

def only_skillopt(users, names):
    "The modules that SkillOpt, its commands and nobody else use"
    own = {n for n in names if n.startswith('skillopt.') or n in OF_SKILLOPT}
    while True:
        more = {n for n in names if users[n] and users[n] <= own} - own
        if not more:
            return own
        own |= more

def same_names(names):
    "Last parts that two modules outside the worlds share, addresses of skillrl 1.0.0 left out"
    outside = [n.split('.')[-1] for n in names if not set(n.split('.')) & set(WORLDS) and n not in ADDRESSES]
    return sorted(word for word, count in Counter(outside).items() if count > 1)

def leaves(config):
    "How many settings a config has, those of its sections included"
    values = [getattr(config, f.name) for f in fields_of(config)]
    return sum(leaves(v) if is_dataclass(v) else 1 for v in values)

def length(path):
    "(cells, words in its text cells) of the page at `path`"
    cells = json.loads(path.read_text(encoding='utf-8'))['cells']
    texts = [''.join(c['source']) for c in cells if c['cell_type'] == 'markdown']
    return len(cells), sum(len(text.split()) for text in texts)

def annotated(f):
    "The class that the first argument of the function `f` is an object of"
    first = (f.args.posonlyargs + f.args.args)[:1]
    if first and isinstance(first[0].annotation, ast.Name):
        return first[0].annotation.id

DOOR = 'Invocation', # Every command takes it

def many_hands(paths, most=20):
    "Classes with more than `most` methods, where a function that takes one of them first counts as a method"
    trees = [ast.parse(p.read_text(encoding='utf-8')) for p in paths]
    methods = Counter()
    for node in (n for tree in trees for n in tree.body):
        if isinstance(node, ast.ClassDef):
            methods[node.name] += sum(isinstance(b, ast.FunctionDef) for b in node.body)
    for f in (n for tree in trees for n in tree.body if isinstance(n, ast.FunctionDef)):
        if annotated(f) in methods:
            methods[annotated(f)] += 1
    return [f'{name} {n}' for name, n in methods.most_common() if n > most and name not in DOOR]

def sizes(modules, users):
    "Name of each bound on the library → what was found, places to look at"
    lines = {dotted(ROOT/m.name): m.lines for m in modules}
    root = [n for n in lines if '.' not in n and n != '__init__']
    short = [f'{n} {k}' for n, k in lines.items() if k < 60 and n not in ('__init__', *ADDRESSES)]
    lonely = [n for n in lines if len(users[n]) == 1]
    alike, hands = same_names(lines), many_hands([ROOT/m.name for m in modules])
    return {
        'code lines': (sum(lines.values()), []),
        'tokens': (sum(m.tokens for m in modules), []),
        'modules': (len(modules), []),
        'modules in the root': (len(root), root),
        'modules under 60 lines': (len(short), short),
        'modules that one other imports': (len(lonely), lonely),
        'names of two modules': (len(alike), alike),
        'classes above 20 methods, functions that take them included': (len(hands), hands),
        'code lines that only SkillOpt uses': (sum(lines[n] for n in only_skillopt(users, lines)), []),
    }

def choices():
    "Name of each bound on what a user may choose → how much there is of it"
    from skillrl.cli.main import COMMANDS
    from skillrl.core.config import SkillRLConfig
    from skillrl.proof.prove import ProofConfig
    from skillrl.skillopt.settings import SkillOptConfig
    return {
        'settings of a run': (leaves(SkillRLConfig()), []),
        'settings of a proof': (leaves(ProofConfig()), []),
        'settings of SkillOpt': (leaves(SkillOptConfig()), []),
        'commands': (len(COMMANDS), []),
        'flags': (len({flag for c in COMMANDS for flag in c.flags if flag.startswith('--')}), []),
    }

def prose():
    "Name of each bound on pages → how long they are"
    lengths = {p: length(p) for p in all_pages()}
    loop = [lengths[p] for p in spine()]
    return {
        'notebooks': (len(lengths), []),
        'words of prose': (sum(words for _, words in lengths.values()), []),
        'cells of a page of the loop': (max(cells for cells, _ in loop), []),
        'words of a page of the loop': (max(words for _, words in loop), []),
    }

def wording(modules):
    "Name of each bound on names and types → what was found, places to look at"
    paths = [ROOT/m.name for m in modules]
    trees = {p.relative_to(LIBRARY).as_posix(): ast.parse(p.read_text(encoding='utf-8')) for p in paths}
    share, bare = participles(trees)
    places = {
        'private numbers': private_numbers(trees),
        'shown cells that define a private name': private_cells(),
        'untyped seams': untyped_seams(trees),
    }
    counts = {name: (len(rows), rows) for name, rows in places.items()}
    return {'share of names that are participles': (share, bare)} | counts

def whole(modules, test_tokens):
    "Name of each bound on the whole → what was found, places to look at"
    users = importers([ROOT/m.name for m in modules])
    tests = {'tokens of tests': (test_tokens, [])}
    return sizes(modules, users) | choices() | tests | prose() | wording(modules)
