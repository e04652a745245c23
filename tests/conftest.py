"What holds for all tests"
import logging, os, signal, sys, tempfile
import pytest
from lives import Lives

os.environ.setdefault('SKILLRL_SANDBOX', 'off') # Scripts of tests count their runs beside themselves

# One part of the library after another, all in under two minutes on two cores: `pytest -m smoke`
SMOKE = {
    'imports': ['test_imports.py::test_no_import_goes_round',
                'test_imports.py::test_imports_point_backwards'],
    'core': ['test_core.py', 'test_smoke.py'],
    'store': ['test_store.py'],
    'config': ['test_config.py'],
    'statistics': ['test_intervals.py'],
    'bank': ['test_skills.py'],
    'retrieval': ['test_retrieval.py'],
    'alfworld': ['test_alfworld.py'],
    'agent': ['test_agent.py'],
    'grpo': ['test_grpo.py'],
    'rl': ['test_rl.py', 'test_phases.py'],
    'evolution': ['test_evolution.py'],
    'skillopt': ['test_skillopt_text.py', 'test_skillopt_gate.py'],
    'cli': ['test_cli.py::test_stdout_holds_results_only',
            'test_cli.py::test_every_flag_says_what_holds_without_it',
            'test_own_world.py'],
}

def is_smoke(nodeid):
    "Is the test `nodeid` in the short list above?"
    name = nodeid.split('[')[0].removeprefix('tests/')
    listed = [entry for entries in SMOKE.values() for entry in entries]
    return name in listed or name.split('::')[0] in listed

def pytest_collection_modifyitems(items):
    "Tests of the short list get the marker `smoke`"
    for item in items:
        if is_smoke(item.nodeid):
            item.add_marker('smoke')

class Announced(logging.Handler):
    "Fails where a library logs that a name we use will go"
    def emit(self, record):
        if 'deprecated' in record.getMessage():
            raise FutureWarning(record.getMessage())

def pytest_configure(config):
    "Ctrl-C works in tests, though a job in the background begins without its handler; old names are errors"
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.pop('PYTHONDONTWRITEBYTECODE', None) # Programs that tests start compile torch once
    sys.dont_write_bytecode = False
    os.environ['XDG_STATE_HOME'] = tempfile.mkdtemp(prefix='skillrl-state-') # Programs that tests let run
    os.fsync = abs # Nobody pulls this machine's plug; `tests/disk.py` pulls that of its own
    for library in ('transformers', 'peft', 'trl'):
        logging.getLogger(library).addHandler(Announced())

@pytest.fixture(scope='session')
def lives():
    "Where commands run in processes of their own"
    made = Lives()
    yield made
    made.close()

def pytest_xdist_auto_num_workers():
    "One worker more than there are cores, for many tests wait for a server, a disk or a time limit"
    return os.cpu_count() + 1
