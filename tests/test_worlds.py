"""What a world knows stays in its folder.

The words by which a benchmark can be recognised are read off the worlds themselves: names, categories,
receptacles. Outside `skillrl/envs/NAME/` they may stand in no identifier and in no string. Docstrings count
too: they are the reference that users of other worlds read. Comments do not: examples in them are welcome."""
import ast, re
from functools import cache
from pathlib import Path
import pytest
import skillrl
from skillrl.envs.alfworld.scene import CATEGORIES, HOLDS
from skillrl.envs.base import world, world_names

root = Path(skillrl.__file__).parent
PLAYED = 'alfworld', 'search', 'webshop'
DATA_SETS = 'triviaqa popqa hotpotqa musique bamboogle 2wikimultihopqa searchr1'.split()
OFFICIAL = {*CATEGORIES.values(), 'pick_and_place'}
TWO_MEANINGS = {'safe', 'cart', 'desk', 'bed', 'shelf'} # Receptacles that are other words as well
EVERYDAY = {'other', 'pick', 'look', 'clean', 'search', 'comparison', 'accessories', 'electronics'}

def categories():
    return {c for name in PLAYED for c in world(name).categories} | OFFICIAL

# Found anywhere in an identifier or a string, as whole words
WORDS = ({'alfworld', 'webshop', 'household', 'households', 'receptacle', 'receptacles', 'desklamp'}
         | {*DATA_SETS} | HOLDS.keys() - TWO_MEANINGS | categories() - EVERYDAY)
# Too common for that: found where they are the whole of a string, or a key of a dict
WHOLE = EVERYDAY - {'other'} | {'examine'}

# (module, word) → why it may stand there
ALLOWED = {('core.config', 'alfworld'): 'the default of env.name',
           ('cli.flags', 'alfworld'): 'whose server has an address that Krill documents',
           ('cli.flags', 'webshop'): 'the same',
           ('skills.guard', 'alfworld'): 'capitalised words of published banks that are no brands',
           ('skills.guard', 'webshop'): 'capitalised words of published banks that are no brands'}

def modules():
    "Name → file of every module outside the folders of the benchmarks"
    for path in sorted(root.rglob('*.py')):
        parts = path.relative_to(root).with_suffix('').parts
        if path.name != '_modidx.py' and not (len(parts) > 2 and parts[1] in PLAYED):
            yield '.'.join(parts), path

def texts(tree):
    "Pairs (identifier or string, is it a string or the key of a dict?)"
    exported = {id(name) for node in ast.walk(tree) if isinstance(node, ast.Assign)
                for name in ast.walk(node.value) if getattr(node.targets[0], 'id', '') == '__all__'}
    for node in ast.walk(tree):
        if id(node) in exported:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, True
        for field in ('id', 'attr', 'name', 'arg', 'asname', 'module'):
            name = getattr(node, field, None)
            if isinstance(name, str):
                yield name, isinstance(node, ast.keyword)

def words_in(text):
    "The forbidden words in an identifier or a string; categories with an underscore are one word"
    plain, spaced = text.lower(), re.sub(r'(?<=[a-z])(?=[A-Z])', ' ', text).lower()
    found = {*re.findall(r'[a-z0-9]+', f'{plain} {spaced}')}
    return found & WORDS | {word for word in WORDS if '_' in word and word in plain}

@cache
def told_by(source):
    "All forbidden words in the source of a module"
    found = set()
    for text, whole in texts(ast.parse(source)):
        found |= words_in(text)
        if whole and text.strip().lower() in WHOLE:
            found.add(text.strip().lower())
    return found

def known_words():
    "Pairs (module, forbidden word in it)"
    return {(name, word) for name, path in modules() for word in told_by(path.read_text(encoding='utf-8'))}

def test_no_benchmark_is_known_outside_its_folder():
    "What is found goes to the folder of that world; an exception that nothing needs any more goes too"
    assert len(list(modules())) > 80
    assert sorted(known_words()) == sorted(ALLOWED)

@pytest.mark.parametrize('source, word', [
    ('import skillrl.envs.alfworld.scene', 'alfworld'), ('class AlfworldPrompt: pass', 'alfworld'),
    ('def f(household): pass', 'household'), ("x = f'go to microwave {n}'", 'microwave'),
    ("kinds = {'pick_two': 2}", 'pick_two'), ('kinds = dict(look=1)', 'look'), ("kind = 'pick'", 'pick'),
    ("names = 'pick_heat_then_place_in_recep x'", 'pick_heat_then_place_in_recep'),
    ('heat = 1', 'heat'), ("if source == 'triviaqa': pass", 'triviaqa'),
    ('"Docstring about a countertop"', 'countertop'), ('f(env="search")', 'search')])
def test_every_way_to_name_one_is_seen(source, word):
    assert word in told_by(source)

@pytest.mark.parametrize('source', [
    "re.search('x', y)", 'games.pick(3)', "# ALFWorld's microwave\nx = 1", "say('look at the clean copy')"])
def test_everyday_words_are_not_meant(source):
    assert told_by(source) == set()

def test_the_worlds_of_this_library():
    assert set(PLAYED) <= set(world_names())
