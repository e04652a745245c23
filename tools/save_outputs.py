"""Run All in a real kernel, and keep what the notebooks print and draw: `save_outputs.py [--check] [NOTEBOOK …]`

`--check` writes nothing and fails if what a reader would read has changed. Words and whole numbers must be the same; numbers with a
decimal point may differ by 1 %, for the last digits of a training run depend on the processor; pictures are not compared."""
import math, os, re, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# What is saved must not depend on the machine: one thread, no optional data, one way to draw
os.environ.update(IN_TEST='1', MPLBACKEND='module://matplotlib_inline.backend_inline', COLUMNS='100', OMP_NUM_THREADS='1')
for k in ('ALFWORLD_DATA', 'SKILLRL_REAL_DATA', 'OPENAI_API_KEY'): os.environ.pop(k, None)

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbdev.clean import clean_nb
from nbdev.config import get_config
from nbdev.process import extract_directives

WIDGET = 'application/vnd.jupyter.widget-view+json'
KERNEL = dict(display_name='Python 3 (ipykernel)', language='python', name='python3')
LIMIT = 600 # Seconds for a cell

def keeps_its_output(cell, skip):
    "Is what stands below `cell` an example, which a run here does not replace?"
    flags = extract_directives(cell, remove=False) or {}
    return 'nbdev_export(' in cell.source or flags.get('eval:', [''])[0] == 'false' or bool(skip & flags.keys())

def fresh(fn):
    "Notebook `fn` with the outputs of a run just made"
    nb, skip = nbformat.read(fn, as_version=4), set(get_config().tst_flags.split())
    kept = {c.id: c.outputs for c in nb.cells if c.cell_type == 'code' and keeps_its_output(c, skip)}
    client = NotebookClient(nb, timeout=LIMIT, kernel_name='python3', coalesce_streams=True,
                            resources=dict(metadata=dict(path=str(fn.parent))),
                            extra_arguments=['--InlineBackend.figure_formats=retina', '--log-level=ERROR'])
    try: client.execute()
    except CellExecutionError as e: sys.exit(f'{fn.name}: {e}')
    for c in nb.cells:
        if c.cell_type == 'code': c.outputs = kept.get(c.id, [o for out in c.outputs for o in shown(out, nb)])
    nb.metadata = dict(kernelspec=KERNEL)
    clean_nb(nb)
    return nb

def shown(output, nb):
    "What is left of `output` on a page: of a widget the picture in it, of lines of progress nothing"
    if output.get('name') == 'stderr': return []
    if WIDGET not in output.get('data', {}): return [output]
    models = nb.metadata.widgets['application/vnd.jupyter.widget-state+json'].state.values() # A page has one widget at most
    return [nbformat.from_dict(o) for m in models if m.model_name == 'OutputModel' for o in m.state.outputs]

def reading(nb):
    "What each code cell shows a reader, pictures aside"
    join = lambda o: ''.join(o) if isinstance(o, list) else str(o)
    def texts(o): return [join(o.get('text', ''))] + [join(v) for k,v in sorted(o.get('data', {}).items()) if k.startswith('text/')]
    return {c.id: '\n'.join(t for o in c.get('outputs', []) for t in texts(o) if t) for c in nb.cells if c.cell_type=='code'}

_decimal = re.compile(r'-?\d+\.\d*(?:e[-+]?\d+)?')

def same(a, b):
    "Do texts `a` and `b` agree, but for the last digits of decimals?"
    if _decimal.sub('#', a)!=_decimal.sub('#', b): return False
    pairs = zip(_decimal.findall(a), _decimal.findall(b))
    return all(math.isclose(float(x), float(y), rel_tol=0.01, abs_tol=1e-3) for x,y in pairs)

def one(fn, check):
    "Save or check a single notebook; returns a message when it is stale"
    nb = fresh(fn)
    if not check: return nbformat.write(nb, fn)
    old, new = reading(nbformat.read(fn, as_version=4)), reading(nb)
    bad = next((k for k in new if not same(old.get(k, ''), new[k])), None)
    if bad: return f'{fn.name}, cell {bad}: saved\n{old.get(bad, "")}\nbut a fresh run gives\n{new[bad]}'

def main(args):
    check, single = '--check' in args, '--single' in args
    names = [Path(a).resolve() for a in args if not a.startswith('--')] or sorted(Path(get_config().nbs_path).rglob('[!.]*.ipynb'))
    if single: return one(names[0], check)
    # a process for each notebook, so that none sees what another left behind
    def start(fn): return subprocess.run([sys.executable, __file__, '--single', fn, *['--check'] * check], stderr=subprocess.PIPE, text=True)
    with ThreadPoolExecutor(min(len(names), os.cpu_count(), 8)) as pool: done = list(pool.map(start, names))
    bad = [(fn.name, p.stderr) for fn,p in zip(names, done) if p.returncode]
    if bad: return '\n'.join(err for _,err in bad) + '\nSaved outputs are stale, or a notebook fails: ' + ' '.join(n for n,_ in bad)
    print(f'{len(names)} notebooks {"checked" if check else "saved"}')

if __name__=='__main__': sys.exit(main(sys.argv[1:]))
