"""What does a server of ours stand? `python benchmarks/serving.py`

Starts `skillrl serve` in a process of its own and lets 32 clients play there over loopback, 10,000 requests
in all. They open episodes, leave some and take others up again on a new connection. Each plays games of its
own, and every answer is compared with the same episode played here, so that nobody can act in another's. Then
come those who send nonsense, too much or too slowly, and a server that is killed. Exits with 1 if a target is
missed. It takes a minute, half of which is spent on waiting until slow clients are dropped."""
import argparse, http.client, json, random, resource, selectors, socket, subprocess, sys, time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from skillrl.core.config import SkillRLConfig
from skillrl.envs.base import world
from skillrl.serve.krill import _SESSION, RemoteEnv, _step_answer
from skillrl.serve.sessions import _ASK, _BODY
from skillrl.worlds.search.retrieve import RemoteLibrary

CLIENTS, REQUESTS = 32, 10_000
RATE = 400            # Requests a second of clients that think between two
RATE_TARGET = 300     # Requests a second
P99_TARGET = 20.      # Milliseconds
GROWTH_TARGET = 2.    # MB between two rounds of equal length
SESSIONS, IDLE = 1024, 3 # Of the server
GAMES = 3             # Of each client
LEAVE, RESUME = .03, .05 # Chances after a step
RUN = [sys.executable, '-c', 'from skillrl.cli.main import main; raise SystemExit(main())', 'serve']

class Report:
    "Lines with a verdict each"
    def __init__(self):
        self.missed = 0

    def line(self, what, ok):
        self.missed += not ok
        print(f'{"ok    " if ok else "MISSED"} {what}', flush=True)

# ---- the server ----

class Served:
    "A server in a process of its own"
    def __init__(self, name, *flags):
        self.process = subprocess.Popen([*RUN, '--env', name, '--port', '0', *flags],
                                        stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip().rpartition(' ')[2]
        self.port = int(self.url.rpartition(':')[2])

    def ask(self, route, body=None, method='POST', **headers):
        "Status and answer of one request on a connection of its own"
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        c = http.client.HTTPConnection('127.0.0.1', self.port, timeout=10)
        c.request(method, route, data, {'Content-Type': 'application/json'} | headers)
        r = c.getresponse()
        said = r.status, json.loads(r.read())
        c.close()
        return said

    def sessions(self):
        return self.ask('/health', b'', 'GET')[1]['sessions']

    def measure(self):
        "MB of memory and number of threads, as the system counts them"
        lines = Path(f'/proc/{self.process.pid}/status').read_text().splitlines()
        found = dict(line.split(':', 1) for line in lines)
        return int(found['VmRSS'].split()[0])/1024, int(found['Threads'])

    def stop(self):
        "Exit status and seconds until it had ended"
        start = time.perf_counter()
        self.process.terminate()
        return self.process.wait(20), time.perf_counter() - start

# ---- its clients ----

def walk(suite, id, rng):
    "An episode played here with random actions: (route, body, the answer that is right) of each request"
    split, number = id.split('-')
    env = suite.env(suite.game(split, int(number)), 50)
    obs, info = env.reset()
    answer = _step_answer(obs, 0., False, False, info)
    requests = [('/reset', json.dumps(dict(task_id=id)).encode(), answer)]
    while not answer['done']:
        action = rng.choice(answer['available_actions'])
        answer = _step_answer(*env.step(action))
        requests.append(('/step', json.dumps(dict(action=action)).encode(), answer))
    return requests

class Client:
    "Plays games of its own, and keeps every answer"
    def __init__(self, n, suite, port):
        self.rng, self.port = random.Random(n), port
        self.walks = [walk(suite, f'train-{n + CLIENTS*i}', self.rng) for i in range(GAMES)]
        self.session, self.rest = '', []
        self.answers, self.did = [], Counter()
        self.socket = None
        self.connect()

    def connect(self):
        if self.socket:
            self.socket.close()
        self.socket = socket.create_connection(('127.0.0.1', self.port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.got = b''

    def send(self):
        "The next request"
        if not self.rest:
            self.rest = list(self.rng.choice(self.walks))
            self.did['opened'] += 1
        route, body, self.expected = self.rest.pop(0)
        head = (f'POST {route} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n'
                f'Content-Length: {len(body)}\r\n{_SESSION}: {self.session or "new"}\r\n\r\n')
        self.socket.sendall(head.encode() + body)

    def receive(self):
        "Is the answer complete?"
        self.got += self.socket.recv(65536)
        head, end, body = self.got.partition(b'\r\n\r\n')
        if not end:
            return False
        headers = dict(line.split(': ', 1) for line in head.decode().lower().split('\r\n')[1:])
        if len(body) < int(headers['content-length']):
            return False
        self.session = headers.get(_SESSION.lower(), self.session)
        self.answers.append((body, self.expected))
        self.got = b''
        return True

    def leave(self):
        "Give the episode up, and tell nobody"
        self.rest, self.session = [], ''
        self.did['abandoned'] += 1

    def go_on(self):
        "Play on, leave the episode, or take it up on a new connection"
        chance = self.rng.random()
        if not self.rest:
            self.did['finished'] += 1
        elif chance < LEAVE:
            self.leave()
            self.connect()
        elif chance < LEAVE + RESUME:
            self.did['resumed'] += 1
            self.connect()

    def wrong(self):
        "Answers that differ from those of the same episode here"
        return [body.decode()[:200] for body, expected in self.answers if json.loads(body) != expected]

def play(clients, requests, rate=None):
    "Seconds of each request from when it was due, sorted, and of all; without `rate` nobody thinks meanwhile"
    ready, start = selectors.DefaultSelector(), time.perf_counter()
    gap = len(clients)/rate if rate else 0
    due = {c: start + gap*i/len(clients) for i, c in enumerate(clients)}
    waiting, took = set(clients), []
    left = requests
    while len(took) < requests:
        for c in [c for c in waiting if due[c] <= time.perf_counter()][:left]:
            waiting.discard(c)
            if not gap:
                due[c] = time.perf_counter()
            c.send()
            ready.register(c.socket, selectors.EVENT_READ, c)
            left -= 1
        pause = 1
        if left and waiting:
            pause = max(0, min(due[c] for c in waiting) - time.perf_counter())
        found = ready.select(pause)
        answered = [(key.data, time.perf_counter()) for key, _ in found if key.data.receive()]
        for c, at in answered:
            ready.unregister(c.socket)
            took.append(at - due[c])
            c.go_on()
            due[c] += gap
            waiting.add(c)
    ready.close()
    return sorted(took), time.perf_counter() - start

def percentile(sorted_values, share):
    return sorted_values[min(len(sorted_values) - 1, int(share*len(sorted_values)))]

def told(name, took, seconds):
    p50, p99 = [1e3*percentile(took, share) for share in (.5, .99)]
    return (f'{name}: {len(took)/seconds:,.0f} requests/s, half within {p50:.1f} ms, '
            f'99 % within {p99:.1f} ms, the slowest {1e3*took[-1]:.0f} ms')

def thinking(clients, report, name):
    "How many requests were sent; up to three rounds are played, for the machine may have been busy in one"
    for n in range(1, 4):
        took, seconds = play(clients, 2000, RATE)
        ok = 1e3*percentile(took, .99) <= P99_TARGET and len(took)/seconds >= RATE_TARGET
        if ok:
            break
    target = f'target {RATE_TARGET} requests/s, 99 % within {P99_TARGET:g} ms; round {n}'
    report.line(f'{told(name, took, seconds)} ({target})', ok)
    return n*len(took)

# ---- those who do not behave ----

class Dripping:
    "Connections that send a byte a second and never finish"
    def __init__(self, port, n=16):
        self.open = {socket.create_connection(('127.0.0.1', port), timeout=10) for _ in range(n)}
        self.began, self.n = time.monotonic(), n
        for c in self.open:
            c.sendall(b'POST /reset HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90\r\n\r\n')

    def drip(self):
        "Send a byte where somebody still reads it"
        for c in list(self.open):
            try:
                c.sendall(b' ')
            except OSError:
                self.open.discard(c)

    def wait(self, seconds):
        "Drip until all are dropped, or `seconds` after the beginning, and for 3 s at least"
        until = max(self.began + seconds, time.monotonic() + 3)
        while self.open and time.monotonic() < until:
            self.drip()
            time.sleep(.5)
        return time.monotonic() - self.began

def refused(server, report):
    "What makes no sense gets a status and a sentence"
    cases = {
        'malformed bodies': [(b'{"task_id": ', 400), (b'[]', 400), (b'\xff', 400), (b'['*50_000, 400),
                             ({'task_id': 7}, 400), ({'task_id': 'nothing'}, 404)],
        'bodies that are too large': [(b' '*(_BODY + 1), 413), (b' '*(8*_BODY), 413)]}
    for name, tries in cases.items():
        said = [server.ask('/reset', body) for body, _ in tries]
        right = sum(status == want and len(answer['error']) > 10
                    for (status, answer), (_, want) in zip(said, tries))
        report.line(f'{name}: {right} of {len(tries)} refused with a sentence, such as: '
                    f'{said[0][1]["error"]}', right == len(tries))
    strangers = [server.ask('/step', {'action': 'look'}, **{_SESSION: id}) for id in ('new', 'x'*32, '')]
    report.line(f'unknown sessions: {[status for status, _ in strangers]}, {strangers[0][1]["error"]}',
                all(status == 400 for status, _ in strangers))
    foreign = [server.ask('/reset', {}, **headers)[0]
               for headers in (dict(Host='evil.example'), dict(Origin='http://x'))]
    report.line(f'foreign names and pages: {foreign}', foreign == [403, 403])

def killed(name, report):
    "A server that dies in the middle of an episode, and one that is full"
    server = Served(name, '--sessions', '4')
    envs = [RemoteEnv(server.url, timeout=5) for _ in range(5)]
    for env in envs[:4]:
        env.reset()
    report.line(f'a full server: {_error(envs[4].reset)}', '503' in _error(envs[4].reset))
    server.process.kill()
    server.process.wait()
    start = time.perf_counter()
    said = _error(lambda: envs[0].step('look'))
    spent = time.perf_counter() - start
    report.line(f'a killed server, told after {spent:.2f} s: {said}', 'ConnectionError' in said and spent < 2)
    again = Served(name, '--port', str(server.port))
    lost, begun = _error(lambda: envs[1].step('look')), _error(envs[2].reset)
    report.line(f'one in its place: a lost episode says {lost}; a new one begins',
                not begun and '400' in lost)
    status, seconds = again.stop()
    report.line(f'kill with clients: exit status {status} after {seconds:.2f} s', status == 0 and seconds < 3)

def _error(f):
    "What `f` raises, in words; empty if nothing"
    try:
        f()
    except (OSError, ValueError, RuntimeError) as e:
        return f'{type(e).__name__}, {e}'
    return ''

def retrieval(report, n=300):
    "Searches on a server find what they find here"
    server, search = Served('search'), world('search')
    suite = search.suite(SkillRLConfig().merged({'env.name': 'search'}).env)
    queries = [game.task for game in suite.games('train', n)]
    far, near = RemoteLibrary(server.url), suite.env(suite.games('train', 1)[0], 4).retriever
    start = time.perf_counter()
    found = [far.search(query, 3) for query in queries]
    spent = time.perf_counter() - start
    same = sum(near.search(query, 3) == some for query, some in zip(queries, found))
    report.line(f'/retrieve: {same} of {len(queries)} searches as here, {len(queries)/spent:,.0f} a second '
                'by one client on new connections', same == len(queries))
    server.stop()

def expired(server):
    "Sessions held, those left once episodes that nobody plays are forgotten (at the next reset), and MB then"
    held = server.sessions()
    time.sleep(IDLE + .2)
    server.ask('/reset', {}, **{_SESSION: 'new'})
    return held, server.sessions(), server.measure()[0]

def load(clients, server, report):
    "10,000 requests and more: with pauses, beside slow clients, without pauses; the slow clients"
    sent = 20*CLIENTS
    play(clients, sent) # Games are made once
    _, threads = server.measure()
    sent += thinking(clients, report, f'{CLIENTS} clients that think')
    slow = Dripping(server.port)
    sent += thinking(clients, report, f'the same beside {slow.n} slow ones')
    rounds = []
    for _ in range(3):
        took, seconds = play(clients, 3000)
        slow.drip()
        sent += len(took)
        report.line(told('without a pause', took, seconds) + f' (target {RATE_TARGET} requests/s)',
                    len(took)/seconds >= RATE_TARGET)
        for c in clients:
            c.leave()
        rounds.append(expired(server))
    did = sum((c.did for c in clients), Counter())
    wrong = [answer for c in clients for answer in c.wrong()]
    report.line(f'{sent:,} requests, {", ".join(f"{n:,} episodes {what}" for what, n in did.items())}: '
                f'{len(wrong)} answers of another episode or none', sent >= REQUESTS and not wrong)
    print(*[f'       {answer}\n' for answer in wrong[:3]], sep='', end='')
    held, left, sizes = zip(*rounds)
    report.line(f'sessions: {max(held)} held, {left[-1]} left once the abandoned ones had expired',
                max(held) > CLIENTS and set(left) == {1})
    shown = ', '.join(f'{size:.1f}' for size in sizes)
    report.line(f'memory then: {shown} MB (target: the last of the three rounds adds {GROWTH_TARGET:g} MB at '
                'most)', sizes[2] - sizes[1] <= GROWTH_TARGET)
    return slow, threads

def leftovers(clients, server, report, threads):
    "What is left when everybody has gone"
    for c in clients:
        c.socket.close()
    _, now = server.measure()
    report.line(f'threads: {threads} at the beginning, {now} at the end', now <= threads)
    status, seconds = server.stop()
    report.line(f'kill: exit status {status} after {seconds:.2f} s', status == 0)

def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument('--world', default='alfworld', help='what is served')
    args = p.parse_args()
    report = Report()
    server = Served(args.world, '--sessions', str(SESSIONS), '--idle', str(IDLE))
    suite = world(args.world).suite(SkillRLConfig().merged({'env.name': args.world}).env)
    clients = [Client(n, suite, server.port) for n in range(CLIENTS)]
    slow, threads = load(clients, server, report)
    refused(server, report)
    spent = slow.wait(_ASK + 10)
    report.line(f'slow clients: {slow.n - len(slow.open)} of {slow.n} dropped, after {spent:.0f} s',
                not slow.open)
    leftovers(clients, server, report, threads)
    killed(args.world, report)
    retrieval(report)
    used = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f'{sum(u.ru_utime + u.ru_stime for u in used):.0f} CPU seconds')
    print('all targets met' if not report.missed else f'{report.missed} missed')
    return int(report.missed > 0)

if __name__ == '__main__':
    sys.exit(main())
