"Commands in processes that can be killed, forked where the library is loaded already"
import json, os, subprocess, sys, threading
from contextlib import suppress

PROGRAM = '''
import json, os, signal, sys
from skillrl.builders import build_policy
from skillrl.cli import main
from skillrl.config import SkillRLConfig
import matplotlib.pyplot, skillrl.training.pipeline
build_policy(SkillRLConfig())
for line in sys.stdin:
    pid = os.fork()
    if pid:
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        continue
    code = 1
    try:
        # A shell that runs the tests in its background has it ignored
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(2, 1)
        code = main(json.loads(line))
    finally:
        os._exit(code)
'''

class Lives:
    "Runs one command after another, each in a process of its own"
    def __init__(self, **env):
        env = os.environ | env | dict(OMP_NUM_THREADS='1') # Threads of torch do not outlive a fork
        self.parent = subprocess.Popen(
            [sys.executable, '-c', PROGRAM], text=True, env=env,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )

    def run(self, *args, sig=None, seconds=None):
        "Exit status of `skillrl` with these `args`; `sig` is sent after so many `seconds`"
        self.parent.stdin.write(json.dumps(args) + '\n')
        self.parent.stdin.flush()
        pid = int(self.parent.stdout.readline())

        def kill():
            with suppress(ProcessLookupError):
                os.kill(pid, sig)
        timer = threading.Timer(seconds or 0, kill)
        if sig:
            timer.start()
        status = int(self.parent.stdout.readline())
        timer.cancel()
        return status

    def close(self):
        self.parent.stdin.close()
        self.parent.wait()
        self.parent.stdout.close()
