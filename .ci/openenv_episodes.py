"""Episodes in every world through OpenEnv's own client, and through verifiers where a Python that has it is named.

    python .ci/openenv_episodes.py [PYTHON]

Each world is served on loopback. OpenEnv's `GenericEnvClient` plays whole episodes; the world's expert chooses
the commands and sees what a client is sent. Then the expert stands behind an endpoint of the kind that language
models have, and verifiers' `OpenEnvTaskset` plays against both servers."""
import json, random, subprocess, sys, tempfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from os import environ
from pathlib import Path
from threading import Thread
from openenv import GenericEnvClient
from skillrl.envs.base import world, world_names
from skillrl.serve.openenv import serve_openenv

EPISODES = 5

# ---- OpenEnv's client ----

class Guide:
    "The expert of a world, for one episode"
    def __init__(self, here, seen):
        self.memory = here.memory(seen['text'])
        self.expert = here.expert(seen['task'], random.Random(0))
        self.command = None

    def next(self, seen):
        "Command to send after the observation `seen`"
        if self.command is not None:
            self.memory.see(self.command, seen['text'])
        _, self.command = self.expert.act(seen['admissible_commands'], self.memory)
        return self.command

def played(client, here, seed):
    "Steps and total reward of one episode"
    result = client.reset(seed=seed, split='test')
    guide, steps, total = Guide(here, result.observation), 0, 0.
    while not result.done:
        result = client.step({'command': guide.next(result.observation)})
        steps += 1
        total += result.reward
    return steps, total

def openenv_episodes(name, url):
    "Play with OpenEnv's client, and say what came of it"
    with GenericEnvClient(base_url=url).sync() as client:
        ends = [played(client, world(name), seed) for seed in range(EPISODES)]
    steps, rewards = zip(*ends)
    print(f'{name}: GenericEnvClient played {EPISODES} episodes to their end, {sum(steps)} steps, '
          f'rewards {[round(r, 2) for r in rewards]}', flush=True)

# ---- verifiers ----

def reply_to(here, messages):
    "The expert's command after a conversation: it plays the whole episode again"
    told = [json.loads(m['content'])['observation'] for m in messages if m['role'] == 'user']
    guide = Guide(here, told[0])
    return [guide.next(seen) for seen in told][-1]

@contextmanager
def model(here):
    "Address of an endpoint at which the expert answers as a language model would"
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
            message = dict(role='assistant', content=reply_to(here, body['messages']))
            choice = dict(index=0, message=message, finish_reason='stop')
            usage = dict(prompt_tokens=1, completion_tokens=1, total_tokens=2)
            said = json.dumps(dict(id='1', object='chat.completion', created=0, model='expert',
                                   choices=[choice], usage=usage)).encode()
            self.send_response(200)
            self.send_header('Content-Type', 'application/json')
            self.send_header('Content-Length', str(len(said)))
            self.end_headers()
            self.wfile.write(said)
        def log_message(self, *args):
            pass
    server = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f'http://127.0.0.1:{server.server_address[1]}/v1'
    finally:
        server.shutdown()

def shortest_seed(name, url, seeds=12):
    "The seed whose episode takes the expert the fewest steps: verifiers starts a program for each"
    with GenericEnvClient(base_url=url).sync() as client:
        return min((played(client, world(name), seed)[0], seed) for seed in range(seeds))

def verifiers_episode(name, url, python):
    "Have verifiers play one episode, and say what came of it"
    steps, seed = shortest_seed(name, url)
    with model(world(name)) as address, tempfile.TemporaryDirectory() as out:
        taskset = dict(id='openenv', base_url=url, resets=[dict(seed=seed, split='test')])
        config = dict(
            env=dict(taskset=taskset, player=dict(harness=dict(id='null'), runtime=dict(type='subprocess'))), serve=None,
            client=dict(base_url=address, api_key_var='MODEL_KEY'), model='expert', push=False, rich=None,
            output_dir=out)
        script = Path(__file__).with_name('verifiers_eval.py')
        done = subprocess.run([python, script, json.dumps(config)], capture_output=True, text=True, timeout=400,
                              env=environ | dict(MODEL_KEY='none', PYTHONPATH=''))
    if done.returncode:
        raise SystemExit(f'{name}: verifiers failed\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}')
    trace = json.loads(done.stdout.splitlines()[-1])
    reward = trace['rewards']['openenv_reward']['score']
    replies = sum(node['sampled'] for node in trace['nodes'])
    print(f"{name}: verifiers' OpenEnvTaskset played the episode of seed {seed} to its end, {replies} replies "
          f'(the expert takes {steps}), openenv_reward {reward}', flush=True)
    if replies != steps:
        raise SystemExit(f'{name}: verifiers did not play the whole episode')

if __name__ == '__main__':
    print('openenv', version('openenv'), flush=True)
    for name in sys.argv[2:] or world_names():
        with serve_openenv(name, port=0) as server:
            openenv_episodes(name, server.url)
            if sys.argv[1:2]:
                verifiers_episode(name, server.url, sys.argv[1])
