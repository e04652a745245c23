"""Is a policy on a real Tinker server the policy we would have here?

    python benchmarks/tinker_engine.py [--server-python PYTHON] [--iterations 12] [--one-process]

Starts SkyRL's server on this machine's CPU, with its JAX engine and a tiny base that is trained here first.
`TinkerPolicy` is compared with torch: log-probs of the same rows, one GRPO update of the same adapter, a step
after a checkpoint. Then it learns, and a second server with two processes repeats the update. Exits with 1 if
a bound is missed. SkyRL lives in an environment of its own, which is made once, 2.2 GB in the user's cache,
unless one is named. Here it takes `pip install -e '.[tinker]'`."""
import argparse, json, logging, os, random, signal, socket, subprocess, sys, tarfile, tempfile, time
import urllib.request, venv
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import torch
from safetensors.torch import load_file
from skillrl.agent.episode import Episode, rollout
from skillrl.core.config import RLConfig
from skillrl.envs.base import TextEnv
from skillrl.llm.local import Policy, tiny_model, word_tokenizer
from skillrl.training.rl import GRPOTrainer
from skillrl.training.sft import FullOptions, adamw_step, encode_rows, full_sft
from skillrl.training.tinker import TinkerPolicy, open_service

LOGPROBS, UPDATE = 1e-4, 1e-3    # Largest differences allowed
RESUME, PROCESSES = 1e-6, 1e-4
RISE = .1       # Success of the last five iterations over that of the first five
PACKAGES = 'torch<2.14', 'skyrl[tinker,jax]==0.3.0'
ADAPTERS = dict(max_lora_adapters=8, max_lora_rank=8, train_micro_batch_size=32, sample_max_num_sequences=32)
START = 600     # Seconds that a server may take to answer
SERVER = Path(__file__).with_name('tinker_server.py')
CONFIG = RLConfig(learning_rate=1e-3, minibatch=32)

class Report:
    "Lines with a verdict each, and the seconds since the start"
    def __init__(self):
        self.missed, self.start = 0, time.perf_counter()

    def line(self, what, value, ok):
        self.missed += not ok
        seconds = time.perf_counter() - self.start
        print(f'{"ok    " if ok else "MISSED"} {seconds:6.1f} s  {what}: {value}', flush=True)

    def below(self, what, gap, bound):
        self.line(what, f'{gap:.1e} (at most {bound:.0e})', gap <= bound)

# ---- the task, and a base that knows how a reply looks ----

class Drawers:
    "Four drawers; the key is in the third"
    won = False
    def reset(self):
        return 'You see a drawer 1, a drawer 2, a drawer 3, and a drawer 4.'
    def admissible(self):
        return [f'open drawer {i}' for i in (1, 2, 3, 4)]
    def step(self, command):
        self.won = command == 'open drawer 3'
        return 'You find the key.' if self.won else 'Nothing happens.'

class Hunt:
    category, task = 'find', 'find the key.'
    id = 'key'

class HuntEnv(TextEnv):
    def start(self, game):
        return Drawers()

def groups():
    return [[Episode(HuntEnv([Hunt()], max_steps=1)) for _ in range(8)] for _ in range(4)]

def reply(i):
    return f'<think> look </think> <action> open drawer {i} </action>'

def make_base(folder):
    words = 'task find key actions open now see nothing happens look did skill holding'.split()
    words += ['<think>', '</think>', '<action>', '</action>', ':'] + [f'drawer {i}' for i in (1, 2, 3, 4)]
    tokenizer, rng = word_tokenizer(words), random.Random(0)
    base = Policy(tiny_model(len(tokenizer), hidden=64, seed=0), tokenizer)
    prompt = groups()[0][0].messages()
    demos = [dict(prompt=prompt, completion=reply(rng.randint(1, 4))) for _ in range(64)]
    full_sft(encode_rows(demos, base), base, FullOptions(steps=150, lr=5e-3, batch_size=16))
    return base.save(folder)

# ---- the server ----

def server_python():
    "Python of the environment with the server, which is made at the first call"
    caches = Path(os.environ.get('XDG_CACHE_HOME') or Path.home()/'.cache')
    folder = caches/'skillrl'/'skyrl-0.3.0'
    python, made = folder/'bin'/'python', folder/'made'
    if not made.exists():
        print(f'making an environment in {folder}', flush=True)
        venv.create(folder, clear=True, with_pip=True)
        for package in PACKAGES: # torch first, so that the one for CPUs stays where there is one
            subprocess.run([python, '-m', 'pip', 'install', '-q', package], check=True)
        made.touch()
    return python

def free_port():
    "Below the ports that a system hands out by itself: a server binds late, when another could have got it"
    for port in random.sample(range(20_000, 32_000), 100):
        with suppress(OSError), socket.create_server(('127.0.0.1', port)):
            return port
    raise SystemExit('no port is free between 20000 and 32000')

def started(command, env, log):
    how = dict(stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    return subprocess.Popen(list(map(str, command)), env=env, **how)

def answers(url, process):
    "Wait until the server at `url` answers"
    for _ in range(START):
        if process.poll() is not None:
            raise SystemExit('the server ended before it answered')
        try:
            return urllib.request.urlopen(f'{url}/api/v1/healthz', timeout=1).status == 200
        except OSError:
            time.sleep(1)
    raise SystemExit(f'the server did not answer within {START} seconds')

@contextmanager
def serving(python, model, folder, processes=1):
    "A server of `model` on `processes` processes, with its files in `folder`; its address"
    folder.mkdir()
    port, config = free_port(), dict(ADAPTERS)
    env = os.environ | dict(JAX_CPU_COLLECTIVES_IMPLEMENTATION='gloo')
    meeting = f'127.0.0.1:{free_port()}'
    if processes > 1:
        config |= dict(coordinator_address=meeting, num_processes=processes,
                       fully_sharded_data_parallel_size=processes)
    command = [python, SERVER, '--port', port, '--base-model', model, '--backend', 'jax', '--backend-config',
               json.dumps(config), '--database-url', f'sqlite:///{folder}/tinker.db',
               '--checkpoints-base', folder/'checkpoints']
    with open(folder/'log', 'w') as log:
        running = [started(command, env, log)]
        for number in range(1, processes):
            running.append(started([python, SERVER, 'worker', meeting, processes, number], env, log))
        url = f'http://127.0.0.1:{port}'
        try:
            answers(url, running[0])
            yield url
        finally:
            for process in running: # With their children; a worker waits for ever for one that is gone
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

# ---- what is compared ----

def gap(a, b, mask):
    return ((a - b)*mask).abs().max().item()

class Unclipped(Policy):
    "Takes steps as SkyRL does, which drops the clipping of gradients"
    optimizer, moves_itself = None, True

    def step(self, lr):
        if self.optimizer is None:
            moving = [p for p in self.model.parameters() if p.requires_grad]
            self.optimizer = torch.optim.AdamW(moving, weight_decay=0.)
        adamw_step(self.optimizer, lr, float('inf'))

def same_adapter(policy, model, folder):
    "The policy's adapter in torch, from the file that the server writes"
    import peft
    policy.client.save_weights_for_sampler('start').result()
    file, = (folder/'checkpoints').rglob('start*.tar.gz')
    with tarfile.open(file) as tar:
        tar.extractall(folder/'adapter', filter='data')
    twin = Policy.load(model)
    lora = peft.LoraConfig(r=8, lora_alpha=32, lora_dropout=0., task_type='CAUSAL_LM',
                           target_modules='all-linear')
    twin.model = peft.get_peft_model(twin.model, lora).eval()
    peft.set_peft_model_state_dict(twin.model, load_file(folder/'adapter'/'adapter_model.safetensors'))
    for layer in twin.model.base_model.model.model.layers: # One first matrix for all that read the same
        attention, mlp = layer.self_attn, layer.mlp
        attention.k_proj.lora_A = attention.v_proj.lora_A = attention.q_proj.lora_A
        mlp.up_proj.lora_A = mlp.gate_proj.lora_A
    return Unclipped(twin.model, twin.tokenizer)

def read(policy, rows):
    with torch.no_grad():
        return policy.logps([r.prompt_ids for r in rows], [r.reply_ids for r in rows])

def compare(report, policy, base, model, folder):
    "Log-probs, one update and a checkpoint; the groups played, and log-probs after the update"
    trainer = GRPOTrainer(policy, CONFIG, base)
    played = groups()
    rollout([e for group in played for e in group], policy, generator=torch.Generator().manual_seed(0))
    rows = [row for group in played for e in group for row in e.rows]
    (here, mask), (there, _) = read(base, rows), read(policy, rows)
    report.below('log-probs of rows', gap(here, there, mask), LOGPROBS)
    drawn = torch.nn.utils.rnn.pad_sequence([torch.tensor(r.logprobs) for r in rows], batch_first=True)
    report.below('log-probs with replies', gap(here, drawn, mask), LOGPROBS)
    twin = same_adapter(policy, model, folder)
    losses = [t.learn(played, 0)['loss'] for t in (trainer, GRPOTrainer(twin, CONFIG, base))]
    report.below('loss of one update', abs(losses[0] - losses[1]), LOGPROBS)
    (torch_after, _), (after, _) = read(twin, rows), read(policy, rows)
    moved = gap(after, there, mask)
    report.line('the update moved log-probs by', f'{moved:.2f}', moved > .05)
    report.below('log-probs after one update', gap(after, torch_after, mask), UPDATE)
    again = TinkerPolicy.open(policy.service, policy.save(folder/'saved'), policy.mean)
    report.below('log-probs after loading', gap(read(again, rows)[0], after, mask), RESUME)
    for one in (policy, again):
        GRPOTrainer(one, CONFIG, base).learn(played, 1)
    ends = [read(one, rows)[0] for one in (policy, again)]
    report.below('one more step after loading', gap(*ends, mask), RESUME)
    return played, after

def learn(report, policy, base, iterations):
    trainer = GRPOTrainer(policy, CONFIG, base)
    success = [trainer.iterate(groups(), seed=i)['success'] for i in range(iterations)]
    first, last = sum(success[:5])/5, sum(success[-5:])/5
    report.line(f'success in {iterations} iterations', f'{first:.2f} → {last:.2f}', last - first >= RISE)

def repeat(report, policy, base, played, after):
    "The same update on a server with two processes"
    GRPOTrainer(policy, CONFIG, base).learn(played, 0)
    lp, mask = read(policy, [row for group in played for e in group for row in e.rows])
    report.below('two processes against one', gap(lp, after, mask), PROCESSES)

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--server-python', type=Path, help='Python of an environment with skyrl 0.3.0')
    p.add_argument('--iterations', type=int, default=12)
    p.add_argument('--one-process', action='store_true', help='leave the second server out')
    args = p.parse_args()
    python, report = args.server_python or server_python(), Report()
    torch.set_num_threads(1)
    logging.getLogger('tinker').setLevel(logging.CRITICAL) # A session outlives its server here
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1)) # So that servers end with this
    with tempfile.TemporaryDirectory() as d:
        folder = Path(d)
        model = make_base(folder/'base')
        base = Policy.load(model)
        with serving(python, model, folder/'one') as url:
            policy = TinkerPolicy.open(open_service(url), model)
            report.line('a server with one process answers', url, True)
            played, after = compare(report, policy, base, model, folder/'one')
            learn(report, policy, base, args.iterations)
        if not args.one_process:
            with serving(python, model, folder/'two', 2) as url:
                policy = TinkerPolicy.open(open_service(url), model)
                report.line('a server with two processes answers', url, True)
                repeat(report, policy, base, played, after)
    return 1 if report.missed else 0

if __name__ == '__main__':
    raise SystemExit(main())
