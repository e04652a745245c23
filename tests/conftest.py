"What holds for all tests"
import signal

def pytest_configure(config):
    "Ctrl-C works in tests; a job in the background begins without its handler"
    signal.signal(signal.SIGINT, signal.default_int_handler)
