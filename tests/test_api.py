"""What an exported name says of itself.

Every argument and result has a type; every exception that a function raises is named in its docstring or
beside its arguments; a tensor has its shape and a time, size or share its unit or range beside it.
`python tools/measure.py` counts the same."""
import ast
import pytest
import measure as m

def lacks(path):
    "What the exported names of the module at `path` do not say"
    seen = m.measure(path)
    lacking = dict(types=seen.untyped, exceptions=seen.raises, shapes=seen.shapes, units=seen.units)
    return {what: places for what, places in lacking.items() if places}

def test_exported_names_say_what_they_take_and_give():
    paths = list(m.all_modules())
    lacking = {str(p.relative_to(m.ROOT/'skillrl')): found for p in paths if (found := lacks(p))}
    assert len(paths) > 100
    assert lacking == {}

def seen_in(source):
    "What the checks say of a module with this source"
    seen = m.Module('shop.py')
    m.see_api(ast.parse(source), source, seen)
    return dict(untyped=seen.untyped, raises=seen.raises, shapes=seen.shapes, units=seen.units)

NOTHING = dict(untyped=[], raises=[], shapes=[], units=[])

LACKING = {
    'untyped': ['def price(mug)->float: ...', 'def price(mug:str): ...', 'def price(*mugs)->float: ...',
                'def price(**mugs)->float: ...', '@patch\ndef cost(self:Shop, mug)->float: ...',
                'class Shop:\n    def cost(self, mug)->float: ...',
                'class Shop:\n    def __init__(self, mugs): ...'],
    'raises': ['def price()->float: raise ValueError("no price")', 'def price()->float: raise ValueError',
               'def price()->float:\n    "KeyError if there is none"\n    raise ValueError()',
               'class Shop:\n    "Mugs"\n    def __post_init__(self): raise shop.Closed()'],
    'shapes': ['def price(x:Tensor)->float: "Of all"', 'def price()->"np.ndarray": ...',
               'class Shop:\n    prices:Tensor # In USD'],
    'units': ['def price(timeout:float=1)->float: ...', 'class Shop:\n    size:int # Of the shop',
              'def price(\n    min_rate:float, # Of success\n    size:str,\n)->float: "Price"'],
}

@pytest.mark.parametrize('what, source', [(what, s) for what, sources in LACKING.items() for s in sources])
def test_what_is_not_said_is_seen(what, source):
    lacking = seen_in(f"__all__ = ['price', 'Shop']\n{source}\n")
    assert len(lacking[what]) == 1
    assert lacking == NOTHING | {what: lacking[what]}

SAID = ['def price(mug:str)->float: "Its price"', 'def _price(mug): raise ValueError()',
        'class Shop:\n    def _cost(self, mug): ...', 'class Till:\n    def cost(self, mug): ...',
        'def price(\n    mug:str,\n)->float: # ValueError if there is none\n    raise ValueError()',
        'def price()->float:\n    try: raise ValueError()\n    except ValueError: return 0.',
        'def price()->float: raise NotImplementedError()',
        'class Shop:\n    "Mugs; Closed at night"\n    def __post_init__(self): raise Closed()',
        'def price(\n    x:Tensor, # (B, T)\n)->Tensor: # One number\n    "Sum"',
        'def price(timeout_seconds:float, prompt_tokens:int)->float: ...',
        'def price(\n    timeout:float, # Seconds\n    rate:float,    # From 0 to 1\n)->float: "Price"']

@pytest.mark.parametrize('source', SAID)
def test_what_is_said_is_accepted(source):
    assert seen_in(f"__all__ = ['price', 'Shop']\n{source}\n") == NOTHING
