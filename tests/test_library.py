"Every notebook's checks once more, against the module as it is shipped instead of the cells it came from"
import os
from pathlib import Path
import pytest
from execnb.shell import CaptureShell
from fastcore.xtras import working_directory
from nbdev.config import get_config
from nbdev.process import NBProcessor

cfg = get_config()
notebooks = sorted(Path(cfg.nbs_path).rglob('[!.]*.ipynb'))
exports = {'export', 'exports', 'exporti'}

def stand_in(module):
    "Source that brings in all of `module`, its private names too"
    return f'import {module} as _m; globals().update({{k: v for k,v in vars(_m).items() if not k.startswith("__")}})'

def shipped(nb):
    "`nb` with its exported cells replaced by one import of the module they became"
    skip, module, brought = set(cfg.tst_flags.split()), None, False
    for c in nb.cells:
        if c.cell_type!='code': continue
        flags = getattr(c, 'directives_', None) or {}
        if 'default_exp' in flags: module = f"{cfg.lib_path.name}.{flags['default_exp'][0]}"
        if exports & flags.keys(): c.source, brought = '' if brought else stand_in(module), True
        elif skip & flags.keys() or flags.get('eval:', [''])[0]=='false' or 'nbdev_export'+'(' in c.source: c.source = ''
    return nb

@pytest.mark.parametrize('fn', notebooks, ids=lambda p: p.stem)
def test_notebook(fn, monkeypatch):
    monkeypatch.setitem(os.environ, 'IN_TEST', '1')
    nb, shell = shipped(NBProcessor(fn, rm_directives=False, process=True).nb), CaptureShell(fn)
    with working_directory(fn.parent):
        try: shell.run_all(nb, exc_stop=True)
        except Exception: pytest.fail(shell.prettytb(fname=fn), pytrace=False)
