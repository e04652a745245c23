"The three original files of WebShop: which set is meant, what is missing, and what is no such file"
import json, shutil
import pytest
from skillrl.core.config import SkillRLConfig
from skillrl.core.store import data_path, read_json
from skillrl.worlds.webshop.catalogue import (
    _ORIGINS, _file_names, load_catalogue, _file_origin)
from skillrl.training.plan import examine_machine

EXAMPLE = data_path('webshop_example')

def put(folder, small=True, but=()):
    "The files of the example in `folder`, without those in `but`"
    for name, source in zip(_file_names(small), _file_names()):
        if name not in but:
            shutil.copy(EXAMPLE/source, folder/name)

def seen_by_doctor(folder):
    config = SkillRLConfig().merged({'env.name': 'webshop', 'env.games': str(folder)})
    return next(f for f in examine_machine(config) if f.what == 'games')

@pytest.mark.parametrize('small', [True, False])
def test_the_folder_tells_which_set_is_meant(tmp_path, small):
    put(tmp_path, small)
    assert len(load_catalogue(tmp_path)) == 5
    assert str(seen_by_doctor(tmp_path)).startswith('ok')

@pytest.mark.parametrize('small', [True, False])
@pytest.mark.parametrize('n', range(3))
def test_what_is_missing_is_said_with_where_it_is(tmp_path, small, n):
    name = _file_names(small)[n]
    put(tmp_path, small, but=[name])
    with pytest.raises(FileNotFoundError) as e:
        load_catalogue(tmp_path)
    assert f'lacks 1 of the 3 files of the benchmark: {_file_origin(name)}' in str(e.value)
    found = seen_by_doctor(tmp_path)
    assert _ORIGINS[name][1] in found.remedy

@pytest.mark.parametrize('text', ['<html>Quota exceeded</html>', '', '"items"', '\ufeff{}', '[1, 2'])
@pytest.mark.parametrize('n', range(3))
def test_a_file_that_holds_something_else_is_named(tmp_path, n, text):
    put(tmp_path)
    name = _file_names()[n]
    (tmp_path/name).write_text(text, 'utf-8')
    with pytest.raises(ValueError, match=f'{name} holds no JSON (list|object): fetch it again'):
        load_catalogue(tmp_path)

@pytest.mark.parametrize('field', ['asin', 'name', 'query', 'category', 'customization_options'])
def test_a_product_without_a_field(tmp_path, field):
    put(tmp_path)
    items = read_json(tmp_path/_file_names()[0])
    del items[2][field]
    (tmp_path/_file_names()[0]).write_text(json.dumps(items), 'utf-8')
    with pytest.raises(ValueError, match=f"a product in .*{_file_names()[0]} has no field '{field}'"):
        load_catalogue(tmp_path)
