"""Run All in a real kernel, and keep what the notebooks print and draw.

    python tools/save_outputs.py [--check] [NOTEBOOK …]

`--check` writes nothing and fails if what a reader would read has changed. Words and whole numbers must be
the same; numbers with a decimal point may differ by 1 %, for the last digits of a training run depend on the
processor; pictures are not compared."""
import argparse, asyncio, importlib, math, multiprocessing, os, re, sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

# What is saved must not depend on the machine: one thread, one set of instructions, no optional data
os.environ.update(IN_TEST='1', COLUMNS='100', OMP_NUM_THREADS='1',
                  MKL_CBWR='AVX2', ATEN_CPU_CAPABILITY='avx2',
                  MPLBACKEND='module://matplotlib_inline.backend_inline')
for name in ('ALFWORLD_DATA', 'SKILLRL_REAL_DATA', 'OPENAI_API_KEY'):
    os.environ.pop(name, None)

import nbformat
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import LocalProvisioner
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbdev.clean import clean_nb
from nbdev.config import get_config
from nbdev.process import extract_directives

WIDGET = 'application/vnd.jupyter.widget-view+json'
WIDGET_STATE = 'application/vnd.jupyter.widget-state+json'
KERNEL = dict(display_name='Python 3 (ipykernel)', language='python', name='python3')
LIMIT = 240 # Seconds for a cell

# ---- a process for each notebook and one for its kernel ----

FORK = multiprocessing.get_context('fork') # A forked process has what its parent loaded
LARGE = ['ipywidgets', 'matplotlib.pyplot', 'torch', 'transformers.models.qwen3.modeling_qwen3']
MANY = 8 # Notebooks for which loading these once takes less time than it saves

def run_kernel(args, folder):
    "The kernel itself; it ends when the process that it was forked from does"
    from ipykernel.kernelapp import IPKernelApp
    asyncio.set_event_loop(asyncio.new_event_loop()) # The one that was forked belongs to the client
    sys.path.remove(str(Path(__file__).parent))
    sys.argv[1:] = [*args, f'--IPKernelApp.parent_handle={os.getppid()}']
    os.chdir(folder)
    IPKernelApp.launch_instance()

class ForkedProcess:
    "A forked process with what a provisioner expects of `subprocess.Popen`"
    stdin = stdout = stderr = None

    def __init__(self, target, *args):
        self.process = FORK.Process(target=target, args=args)
        self.process.start()
        self.pid = self.process.pid

    def poll(self):
        return self.process.exitcode

    def wait(self):
        self.process.join()
        return self.process.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)

class ForkedKernel(LocalProvisioner):
    "Forks a kernel in place of starting Python anew"
    async def launch_kernel(self, cmd, **kwargs):
        args = cmd[cmd.index('-f'):]
        self.process = ForkedProcess(run_kernel, args, kwargs['cwd'])
        self.pid = self.process.pid
        return self.connection_info

class ForkedKernels(AsyncKernelManager):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.provisioner = ForkedKernel(kernel_id='', kernel_spec=self.kernel_spec, parent=self)

# ---- running a notebook ----

def code_cells(nb):
    return [cell for cell in nb.cells if cell.cell_type == 'code']

def keeps_its_output(cell, skip):
    "Is what stands below `cell` an example, which a run here does not replace?"
    flags = extract_directives(cell, remove=False) or {}
    if 'nbdev_export(' in cell.source or flags.get('eval:') == ['false']:
        return True
    return bool(skip & flags.keys())

def client_for(nb, folder):
    "A kernel that runs `nb` in `folder`"
    return NotebookClient(nb, timeout=LIMIT, kernel_name='python3', coalesce_streams=True,
                          kernel_manager_class=ForkedKernels,
                          resources=dict(metadata=dict(path=str(folder))),
                          extra_arguments=['--InlineBackend.figure_formats=retina', '--log-level=ERROR'])

def executed(path):
    """The notebook at `path`, run; once more if its kernel fell silent or died

    A message may get lost, and two kernels that begin together may be given one port."""
    nb = nbformat.read(path, as_version=4)
    try:
        client_for(nb, path.parent).execute()
    except (CellTimeoutError, RuntimeError):
        nb = nbformat.read(path, as_version=4)
        client_for(nb, path.parent).execute()
    return nb

def fresh(path):
    "The notebook at `path` with the outputs of a run just made"
    nb = nbformat.read(path, as_version=4)
    skip = set(get_config().tst_flags.split())
    kept = {c.id: c.outputs for c in code_cells(nb) if keeps_its_output(c, skip)}
    nb = executed(path)
    for cell in code_cells(nb):
        new = [shown for output in cell.outputs for shown in what_is_shown(output, nb)]
        cell.outputs = kept.get(cell.id, new)
    nb.metadata = dict(kernelspec=KERNEL)
    clean_nb(nb)
    return nb

def what_is_shown(output, nb):
    "What is left of `output` on a page: of a widget the picture in it, of lines of progress nothing"
    if output.get('name') == 'stderr':
        return []
    if WIDGET not in output.get('data', {}):
        return [output]
    models = nb.metadata.widgets[WIDGET_STATE].state.values() # A page has one widget at most
    pictures = [m.state.outputs for m in models if m.model_name == 'OutputModel']
    return [nbformat.from_dict(o) for outputs in pictures for o in outputs]

# ---- comparing two runs ----

def joined(text):
    return ''.join(text) if isinstance(text, list) else str(text)

def texts(output):
    "What `output` shows a reader, pictures aside"
    data = output.get('data', {})
    return [joined(output.get('text', '')), *(joined(data[k]) for k in sorted(data) if k.startswith('text/'))]

def reading(nb):
    "Id of each code cell → what it shows a reader"
    return {c.id: '\n'.join(t for o in c.get('outputs', []) for t in texts(o) if t) for c in code_cells(nb)}

DECIMAL = re.compile(r'-?\d+\.\d*(?:e[-+]?\d+)?')

def same(a, b):
    "Do texts `a` and `b` agree, but for the last digits of decimals?"
    if DECIMAL.sub('#', a) != DECIMAL.sub('#', b):
        return False
    pairs = zip(DECIMAL.findall(a), DECIMAL.findall(b))
    return all(math.isclose(float(x), float(y), rel_tol=0.01, abs_tol=1e-3) for x, y in pairs)

def stale(path, nb):
    "What is wrong with the saved outputs at `path`, if `nb` is a fresh run of it"
    old, new = reading(nbformat.read(path, as_version=4)), reading(nb)
    for cell, text in new.items():
        saved = old.get(cell, '')
        if not same(saved, text):
            return f'{path.name}, cell {cell}: saved\n{saved}\nbut a fresh run gives\n{text}'

# ---- one notebook, and all of them ----

def save_or_check(path, check):
    "Save or check a single notebook; returns a message when it is stale or fails"
    try:
        nb = fresh(path)
    except CellExecutionError as e:
        return f'{path.name}: {e}'
    if check:
        return stale(path, nb)
    nbformat.write(nb, path)

def in_a_process(path, check):
    "What `save_or_check` returns in a process of its own, so that no notebook sees what another left behind"
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=lambda: sender.send(save_or_check(path, check)))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        return f'{path.name}: the process that ran it died'
    finally:
        process.join()

def main(names, check):
    paths = [Path(name).resolve() for name in names]
    paths = paths or sorted(Path(get_config().nbs_path).rglob('[!.]*.ipynb'))
    importlib.import_module('ipykernel.kernelapp')
    if len(paths) >= MANY:
        for library in LARGE:
            importlib.import_module(library)
    with ProcessPoolExecutor(min(len(paths), os.cpu_count(), 8), FORK) as pool:
        messages = list(pool.map(in_a_process, paths, [check] * len(paths)))
    bad = {path.name: message for path, message in zip(paths, messages) if message}
    if bad:
        return '\n'.join([*bad.values(), f'Saved outputs are stale, or a notebook fails: {" ".join(bad)}'])
    print(f'{len(paths)} notebooks {"checked" if check else "saved"}')

if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('notebooks', nargs='*', metavar='NOTEBOOK', help='all if left out')
    parser.add_argument('--check', action='store_true', help='write nothing; fail if an output has changed')
    args = parser.parse_args()
    sys.exit(main(args.notebooks, args.check))
