"Commands in processes that can be stopped and killed, forked where the library is loaded already"
import json, os, subprocess, sys, threading
from contextlib import suppress

PROGRAM = '''
import json, os, signal, sys
from skillrl.training.builders import build_policy
from skillrl.cli.main import main
from skillrl.core.config import SkillRLConfig
import matplotlib.pyplot, skillrl.training.pipeline
build_policy(SkillRLConfig())

def live(args, folder, env, err):
    signal.signal(signal.SIGINT, signal.default_int_handler) # A shell in the background has it ignored
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    os.dup2(os.open(err, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    os.dup2(2, 1)
    return main(args)

for line in sys.stdin:
    pid = os.fork()
    if pid:
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        continue
    code = 1
    try:
        code = live(*json.loads(line))
    finally:
        os._exit(code)
'''

class Lives:
    "Runs one command after another, each in a process of its own, where and as the test stands"
    def __init__(self):
        env = os.environ | dict(OMP_NUM_THREADS='1') # Threads of torch do not outlive a fork
        self.parent = subprocess.Popen([sys.executable, '-c', PROGRAM], text=True, env=env,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def start(self, *args, err=os.devnull, **env):
        "Begin `skillrl` with these `args`; what it says goes into the file `err`"
        line = json.dumps([[*map(str, args)], os.getcwd(), os.environ | env, str(err)])
        self.parent.stdin.write(line + '\n')
        self.parent.stdin.flush()
        self.pid = int(self.parent.stdout.readline())

    def end(self):
        "Exit status of the command that was begun, negative for a signal"
        return int(self.parent.stdout.readline())

    def run(self, *args, sig=None, seconds=0, **env):
        "Exit status of `skillrl` with these `args`; `sig` is sent after so many `seconds`"
        self.start(*args, **env)
        timer = threading.Timer(seconds, self.send, [sig])
        if sig:
            timer.start()
        status = self.end()
        timer.cancel()
        return status

    def send(self, sig):
        with suppress(ProcessLookupError):
            os.kill(self.pid, sig)

    def running(self):
        "Has the command not ended yet?"
        with suppress(ProcessLookupError):
            os.kill(self.pid, 0)
            return True
        return False

    def close(self):
        self.parent.stdin.close()
        self.parent.wait()
        self.parent.stdout.close()
