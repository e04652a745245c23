"Is every number in a sentence measured? It stands in the page's code or outputs, or in a data file it names."
import json, re
from functools import cache
from pathlib import Path
import pytest
from pages import name_of, pages

root = Path(__file__).parent.parent
NUMBER = re.compile(r'(?<![\w.,/#-])(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?![\w/]|[.,]\d)')

# What is counted on fingers or common to all pages: the paper's 95 %, the weights of the base that ships
CONSTANTS = {str(n) for n in [*range(13), 100, 1000]} | {'.5', '.95', '95', '145,280'}

# page → numbers of the literature, of other programs, or of data that no clone holds
ELSEWHERE = {
    'core.config': '4,096 768 5,000 700 256 15',         # Settings of four published systems
    'skills.retrieval': '35', # Things of a house
    'core.store': '20',                                 # kB of a row, which the code writes as bytes
    'training.tracking': '32',                              # Bits of TensorBoard's numbers
    'core.formats': '619',                              # Memories of the official repository
    'llm.placement': '1.008 1.002 1,024',               # Arithmetic of bfloat16, a default of oneDNN
    'llm.local': '150,000',                             # Words of a usual vocabulary
    'llm.adapter': '140',                               # 5 times 28 GB
    'skills.skill_md': '64',                            # agentskills' rule
    'skillopt.qa': '1.2 37',                                # An example of a dialogue
    'worlds.bm25': '33',                                  # Stop words of Lucene
    'envs.alfworld.scene': '223 190 222',               # Official memories
    'envs.alfworld.memory': '2,000',                    # Twice the thousand of the code
    'worlds.search.retrieve': '21',                       # Million passages of Search-R1
    'worlds.webshop.catalogue': '192',                    # Processes of the original
    'worlds.webshop.goals': '200 161',                     # The original's requests
    'worlds.webshop.engine': '30',                         # ms of the original
    'envs.alfworld.world': '4,613 48 200',              # `.ci/differential`, official games
    'agent.prompt': '100,000 404 72',                   # Published by others; a long line
    'training.costs': '256',                            # Arithmetic of NF4
    'training.plan': '128 24,000',                      # The paper's episodes; characters of a question
    'training.ablation': '55',                                   # Entries of the paper's first bank
    'skillopt.selection': '19 38',                      # Shares of 40 items; simulated with the verdict
    'extending.your_own_world': '600',                            # Words of the shipped tokenizer
    'index': '2,200'}                                       # Lines of nine modules

YEAR = r'\b(?:19|20)\d\d\b'
QUOTED = r'```.*?```', r'`[^`]*`', r'\$\$.*?\$\$', r'\$[^$]*\$'
PLACE = r'(?:section|equation|table|figure|pages?|version|Python|seed) [\d.]+'

def numbers_in(text):
    return [m[0] for m in NUMBER.finditer(text) if m[0]]

def plain(text):
    "`text` without code, links, formulas, addresses and sections of papers"
    for pattern in (YEAR, *QUOTED, r'\]\([^)]*\)', r'https?://\S+', r'arXiv[: ]\S+', PLACE):
        text = re.sub(pattern, ' ', text, flags=re.S | re.I)
    return text

def texts_of(cell):
    "Source and outputs of a code cell, pictures left out"
    yield ''.join(cell['source'])
    for output in cell['outputs']:
        yield ''.join(output.get('text', []))
        for kind, text in output.get('data', {}).items():
            if not kind.startswith('image'):
                yield ''.join(text)

@cache
def data_text(name):
    path = root/'data'/name
    return path.read_text(encoding='utf-8') if path.is_file() else ''

def known(page):
    "All numbers that the page's code, outputs and data files hold"
    text = '\n'.join(t for c in page['cells'] if c['cell_type'] == 'code' for t in texts_of(c))
    text += '\n'.join(data_text(name) for name in set(re.findall(r'\w+\.json', text)))
    sources = '\n'.join(''.join(c['source']) for c in page['cells'])
    text += '\n'.join(re.findall(r'`[^`]*`|\$[^$]*\$', sources))
    return {float(m.replace(',', '').replace('_', '')) for m in re.findall(r'\d[\d,_]*\.?\d*|\.\d+', text)}

def told(number, values):
    "Is `number` one of `values`, rounded as it is, or a share written as a percentage?"
    digits = len(number.partition('.')[2])
    n = float(number.replace(',', ''))
    half = .5*10**-digits + 1e-9
    return any(abs(v - n) <= half or abs(100*v - n) <= .5 and v < 1 for v in values)

def untold(page):
    values = known(page)
    for cell in page['cells']:
        if cell['cell_type'] == 'markdown':
            for number in numbers_in(plain(''.join(cell['source']))):
                if number not in CONSTANTS and not told(number, values):
                    yield number

@pytest.mark.parametrize('path', pages(), ids=name_of)
def test_every_number_in_a_sentence_is_on_its_page(path):
    found = [*untold(json.loads(path.read_text(encoding='utf-8')))]
    assert [n for n in found if n not in ELSEWHERE.get(name_of(path), '').split()] == []

def test_an_exception_that_no_page_needs_goes():
    "Nothing is excepted that its page shows by now"
    missing = {name_of(path): {*untold(json.loads(path.read_text(encoding='utf-8')))} for path in pages()}
    spare = {name: {*numbers.split()} - missing.get(name, set()) for name, numbers in ELSEWHERE.items()}
    assert {name: numbers for name, numbers in spare.items() if numbers} == {}
