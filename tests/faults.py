"""A server on the loopback that speaks OpenAI's words and misbehaves as told:
`with FaultServer(error(429), said('mug')) as s: ... s.url`

What a request gets is an `Answer`, or a function of the request that returns one. The script is used up in
the order in which requests come; then `rest` answers, a good reply if nothing else is said. A request is a
dict: path, headers (lower case), body, key. `{key}` in an answer becomes the key the client sent.
`s.requests` holds every one that came, `s.most` how many were in work at once."""
import json, secrets, socket, struct, threading
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

@dataclass
class Answer:
    body:object = ''           # Dict, text or bytes
    status:int = 200
    headers:dict = field(default_factory=dict)
    delay:float = 0.           # Seconds before the first byte; ends early when the server closes
    breaks:str = ''            # 'reset': the connection is torn before an answer; 'cut': in the middle of it
    drips: str = (
        ''  # 'body' or 'headers' come a byte every 50 ms, until the client hangs up or the server closes
    )

def said(text='A mug goes into the sink first.', finish='stop', usage=(11, 7), choices=1,
         **message):
    "A chat reply as servers send it; `usage=None` leaves the count out"
    choice = dict(index=0, finish_reason=finish, message=dict(role='assistant', content=text) | message)
    count = ({}
    if usage is None
    else dict(usage=dict(prompt_tokens=usage[0], completion_tokens=usage[1], total_tokens=sum(usage))))
    return Answer(
        dict(id='c1', object='chat.completion', created=0, model='m', choices=[choice] * choices) | count)

def error(status, message='', code=None, **headers):
    "A refusal as OpenAI words it; `retry_after='2'` becomes the header Retry-After"
    body = dict(
        error=dict(message=message or f'the server says {status}', type='error', param=None, code=code))
    return Answer(body, status, {k.replace('_', '-'): v for k,v in headers.items()})

def slow(seconds, answer=None):
    return replace(answer or said(), delay=seconds)
def truncated(n=40):
    "The first `n` bytes of a good reply, sent as if they were all of it"
    return Answer(json.dumps(said().body)[:n])

def drips(what):
    return Answer(drips=what)

RESET, CUT = Answer(breaks='reset'), replace(said(), breaks='cut')

def vectors(request, d=3):
    "Embeddings of the texts asked for, in reverse order: length of the text, its place, halves"
    texts = request['body']['input']
    rows = [dict(object='embedding', index=i, embedding=[len(t), i, *[.5]*(d-2)]) for i,t in enumerate(texts)]
    return Answer(
        dict(object='list', model='m', data=rows[::-1],
             usage=dict(prompt_tokens=len(texts), total_tokens=len(texts)))
    )

def good(request):
    return vectors(request) if 'input' in request['body'] else said()

class _Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_POST(self):
        data = self.rfile.read(int(self.headers.get('Content-Length', 0)))
        headers = {k.lower(): v for k,v in self.headers.items()}
        key = headers.get('api-key') or headers.get('authorization', '').removeprefix('Bearer ')
        owner = self.server.owner
        if not self.path.startswith(owner.path):
            return self.send_error(404)
        path, body = self.path.removeprefix(owner.path[:-1]), json.loads(data or b'{}')
        request = dict(path=path, headers=headers, body=body, key=key)
        with owner.at_work():
            self.send(owner.next(request), key)

    def do_GET(self):
        self.send(self.server.owner.models, '')

    def send(self, a, key):
        self.server.owner.over.wait(a.delay)
        if a.breaks=='reset':
            return self.tear()
        if a.drips:
            return self.drip(a.drips)
        text = a.body if isinstance(a.body, (str, bytes)) else json.dumps(a.body)
        data = text if isinstance(text, bytes) else text.replace('{key}', key).encode()
        self.send_response(a.status)
        for k,v in (dict(content_type='application/json', content_length=str(len(data))) | a.headers).items():
            self.send_header(k.replace('_', '-'), v)
        self.end_headers()
        self.wfile.write(data[:len(data)//2] if a.breaks else data)
        self.wfile.flush()
        if a.breaks:
            self.tear()

    def drip(self, what):
        "Say nothing to an end, at leisure"
        self.wfile.write(
            b'HTTP/1.1 200 OK\r\n' + (b'X-Mug: ' if what == 'headers' else b'Content-Length: 9999999\r\n\r\n')
        )
        while not self.server.owner.over.wait(.05):
            self.wfile.write(b'.')
            self.wfile.flush()

    def tear(self):
        self.close_connection = True
        if not self.wfile.closed:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        self.connection.close()

    def log_message(self, *args):
        pass

class _Http(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 128
    def handle_error(self, request, client_address):
        pass # A client that gave up waiting

class FaultServer:
    "Runs in a thread until it is closed; use it in a `with`"
    def __init__(self, *script, rest=good):
        self.script, self.rest = list(script), rest
        self.path = f'/{secrets.token_hex(4)}/' # Unknown to a late client of a server that had this port
        self.requests = []
        self.models = Answer(dict(object='list', data=[])) # What any GET brings
        self.over = threading.Event()
        self.lock = threading.Lock()
        self.now = self.most = 0
        self.http = _Http(('127.0.0.1', 0), _Handler)
        self.http.owner = self
        threading.Thread(target=self.http.serve_forever, args=(.02,), daemon=True).start()

    @property
    def url(self):
        return f'http://127.0.0.1:{self.http.server_address[1]}{self.path}v1'
    @property
    def count(self):
        return len(self.requests)

    def next(self, request):
        with self.lock:
            self.requests.append(request)
            a = self.script.pop(0) if self.script else self.rest
        return a(request) if callable(a) else a

    def at_work(self):
        return _AtWork(self)
    def close(self):
        self.over.set()
        self.http.shutdown(), self.http.server_close()
    def __enter__(self):
        return self
    def __exit__(self, *args):
        self.close()

class _AtWork:
    def __init__(self, owner):
        self.owner = owner
    def __enter__(self):
        with self.owner.lock:
            self.owner.now += 1
            self.owner.most = max(self.owner.most, self.owner.now)
    def __exit__(self, *args):
        with self.owner.lock:
            self.owner.now -= 1
