"Sessions of agents: plain counts of logs, damaged and hostile ones, secrets, signals, `skillrl harvest`"

import json, os, random, re, string, subprocess, sys, zipfile
from collections import Counter
from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path
import pytest
from skillrl.cli.main import main
from skillrl.core.formats import load_trajectories, save_trajectories
from skillrl.sessions.agent_sessions import AgentSession, to_trajectories, tool_table
from skillrl.core.secrets import redact
from skillrl.sessions.session_logs import find_sessions, read_sessions
from skillrl.core.trajectory import Step, Trajectory

# --- plain counts, from the raw JSON alone ---
def objects(path):
    text, found = path.read_bytes().decode('utf-8-sig', 'replace'), []
    for value in [text] if text.startswith('{\n') else text.splitlines():
        with suppress(ValueError):
            found.append(json.loads(value))
    return found

def count_claude(rows):
    seen, humans = set(), 0
    calls, results = [], {}
    usage = {}
    marks = '<command-', '<local-command', 'Caveat:', '[Request interrupted'
    for r in rows:
        message = r.get('message') if isinstance(r, dict) else None
        if not isinstance(message, dict) or 'content' not in message or r['uuid'] in seen:
            continue
        seen.add(r['uuid'])
        blocks = message['content'] if isinstance(message['content'], list) else [message['content']]
        blocks = [b if isinstance(b, dict) else dict(type='text', text=b) for b in blocks]
        answers = [b for b in blocks if b['type'] == 'tool_result']
        results |= {b['tool_use_id']: bool(b.get('is_error')) for b in answers}
        if r['type'] == 'assistant' and not r.get('isApiErrorMessage'):
            calls += [b['id'] for b in blocks if b['type'] == 'tool_use']
            usage[message['id']] = message.get('usage') or {}
        elif r['type'] == 'user' and not (answers or r.get('isMeta')):
            text = blocks[0].get('text', '')
            aside = r.get('isSidechain') or r.get('isCompactSummary')
            humans += not aside and not text.startswith(marks)
    spent = [(u.get('input_tokens', 0), u.get('output_tokens', 0)) for u in usage.values()]
    return humans, calls, results, spent

def count_items(items):
    frames = '<environment_context>', '# AGENTS.md'
    kinds = 'function_call', 'custom_tool_call', 'local_shell_call'
    calls = [p['call_id'] for p in items if p['type'] in kinds]
    users = [p['content'][0]['text'] for p in items if p.get('role') == 'user']
    results = {}
    for p in items:
        if p['type'].endswith('_output'):
            code = re.search(r'exited with code (\d+)|"exit_code":(\d+)', p['output'])
            results[p['call_id']] = bool(code) and code[1] != '0' and code[2] != '0'
    return sum(not u.startswith(frames) for u in users), calls, results

def count_codex(rows):
    usage = [r['payload']['usage'] for r in rows if r['type'] == 'token_usage_record']
    spent = [(u['input_tokens'], u['output_tokens']) for u in usage]
    return *count_items([r['payload'] for r in rows if r['type'] == 'response_item']), spent

def count_responses(rows):
    return *count_items(rows[-1]['request']['input'] + rows[-1]['response']['output']), []

def count_messages(rows):
    humans, calls = 0, []
    results, spent = {}, []
    for n, d in enumerate(rows):
        for m in d if isinstance(d, list) else d.get('messages') or d.get('conversations') or ():
            humans += m.get('role', m.get('from')) in ('user', 'human')
            calls += [f'{n}{c["id"]}' for c in m.get('tool_calls') or ()]
            calls += [f'{n}{m["function_call"]["name"]}'] if m.get('function_call') else []
            if m.get('role') in ('tool', 'function'):
                code = re.search(r'"returncode": ([1-9])', m['content'])
                results[f'{n}{m.get("tool_call_id") or m["name"]}'] = bool(code or m.get('error'))
            usage = ((m.get('extra') or {}).get('response') or {}).get('usage')
            spent += [(usage['prompt_tokens'], usage['completion_tokens'])] if usage else []
    return humans, calls, results, spent

def count_atif(rows):
    steps = [s for s in rows[0]['steps'] if not s.get('is_copied_context')]
    answers = [a for s in steps for a in s.get('observation', {}).get('results', []) if 'source_call_id' in a]
    results = {a['source_call_id']: 'code 0' not in a['content'] for a in answers}
    spent = [tuple(s['metrics'].values())[:2] for s in steps if 'metrics' in s]
    calls = [c['tool_call_id'] for s in steps for c in s.get('tool_calls', [])]
    return sum(s['source'] == 'user' for s in steps), calls, results, spent

def count_gemini(rows):
    told = {}
    for r in rows:
        if isinstance(r, dict):
            told |= {m['id']: m for m in [*r.get('$set', {}).get('messages', []), r] if 'id' in m}
    texts = [part.get('text') for m in told.values() if m['type'] == 'user' for part in m['content']]
    calls = [c for m in told.values() for c in m.get('toolCalls', [])]
    spent = [(m['tokens']['input'], m['tokens']['output']) for m in told.values() if 'tokens' in m]
    humans = sum(bool(text) and not text.startswith('<session_context>') for text in texts)
    return humans, [c['id'] for c in calls], {c['id']: c['status'] == 'error' for c in calls}, spent

def count_opencode(rows):
    parts = [r['part'] for r in rows if isinstance(r, dict) and 'part' in r]
    results = {p['callID']: p['state']['status'] == 'error' for p in parts if 'state' in p}
    tokens = [p['tokens'] for p in parts if 'tokens' in p]
    return 0, [*results], results, [(spent['input'], spent['output']) for spent in tokens]

COUNTS = {'claude': count_claude, 'codex': count_codex, 'responses': count_responses, 'atif': count_atif,
          'gemini': count_gemini, 'opencode': count_opencode,
          'mini-swe-agent': count_messages, 'chat': count_messages}

def read(path, *more):
    return [*read_sessions(path, *more)]

def counted(sessions):
    "The same numbers, as the reader finds them"
    calls = [c for s in sessions for c in s.calls]
    humans = sum(t.role == 'user' for s in sessions if not s.sidechain for t in s.turns)
    paired = [c for c in calls if c.result is not None]
    tokens = [sum(t.tokens.get(k, 0) for s in sessions for t in s.turns) for k in ('input', 'output')]
    return humans, len(calls), len(paired), sum(bool(c.is_error or c.exit_code) for c in calls), *tokens

def expected(path, kind):
    humans, calls, results, spent = COUNTS[kind](objects(path))
    paired = [c for c in calls if c in results]
    return humans, len(calls), len(paired), sum(results[c] for c in paired), *map(sum, zip((0, 0), *spent))

WILD = Path(os.environ.get('SKILLRL_REAL_DATA', 'unset')).parent/'wild'
KINDS = {'claude_code/': 'claude', 'traps/claude': 'claude', 'codex/': 'codex', 'traps/codex': 'codex',
         'atif/': 'atif', 'mini_swe_agent/': 'mini-swe-agent', 'openai/chat': 'chat',
         'traps/openai': 'chat', 'openai/responses': 'responses',
         'gemini/': 'gemini', 'opencode/': 'opencode'}
PRINTED = {'claude_code/with_skill.stream.jsonl': '"type":"tool_use"',
           'gemini/with_skill.stream.jsonl': '"tool_use"', 'codex/with_skill.exec.jsonl': '"exit_code":0'}
SAMPLES = {p: kind for start, kind in KINDS.items() for p in sorted(WILD.glob(f'{start}*'))
           if p.is_file() and not re.search('exec|stream|result', p.name)} # Printed
SAMPLES |= {p: 'atif' for p in WILD.glob('harbor_trial/*/*.json')}
needs_samples = pytest.mark.skipif(not WILD.is_dir(), reason='no sample logs: set SKILLRL_REAL_DATA')

@needs_samples
@pytest.mark.parametrize('path', SAMPLES, ids=lambda p: str(p)[-40:])
def test_a_sample_holds_what_a_plain_count_says(path):
    assert counted(read(path)) == expected(path, SAMPLES[path])

@needs_samples
@pytest.mark.parametrize('name', PRINTED)
def test_what_a_program_prints_holds_what_a_plain_count_says(name):
    n = (WILD/name).read_text().count(PRINTED[name])
    assert counted(read(WILD/name))[1:4] == (n, n, 0) and n > 1

@needs_samples
def test_samples_of_inspect_and_the_folder_as_a_whole():
    pytest.importorskip('zstandard')
    sums = read(WILD/'inspect'/'sums.eval')
    assert [t.success for s in sums for t in to_trajectories(s)] == [True, False, False]
    trajs = [t for s in find_sessions([WILD]) for t in to_trajectories(s)]
    text = json.dumps([t.to_dict() for t in trajs])
    assert 'EXAMPLE' not in text and '/home/user' not in text and 'iVBORw0' not in text

# --- small logs of our own, whole and damaged ---
def lines(path, *records, end='\n'):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = end.join(r if isinstance(r, str) else json.dumps(r) for r in records)
    path.write_bytes(text.encode(errors='replace'))
    return path

def claude(n, parent, kind, content, **more):
    message = dict(role=kind, content=content) | more.pop('message', {})
    return dict(type=kind, uuid=f'u{n}', parentUuid=parent and f'u{parent}', sessionId='s', message=message,
                cwd='/home/ada/shop', timestamp=f'2026-11-{n:02}T10:00:00Z') | more

def reply(n, parent, text='', **call):
    blocks = [dict(type='text', text=text)] + ([dict(type='tool_use', name='Bash') | call] if call else [])
    return claude(n, parent, 'assistant', blocks, message=dict(id=f'm{n}', usage=USAGE))

def answer(n, parent, id, text, **more):
    return claude(n, parent, 'user', [dict(type='tool_result', tool_use_id=id, content=text, **more)])

def said(role, text):
    return dict(type='message', role=role, content=[dict(type='input_text', text=text)])

USAGE = dict(input_tokens=5, output_tokens=1)
CLAUDE = [claude(1, None, 'user', 'Fix the cart'), reply(2, 1, 'ok', id='a', input={'command': 'pytest'}),
          answer(3, 2, 'a', 'Exit code 1\nKeyError', is_error=True), reply(4, 3, 'Done.'),
          claude(5, 4, 'user', 'No, it still fails'), reply(6, 5, id='b', input={'command': 'pytest -q'}),
          answer(7, 6, 'b', '3 passed'), claude(8, 7, 'user', 'perfect, thanks')]
ITEMS = [said('user', '<environment_context>'), said('user', 'Count'),
         dict(type='function_call', name='shell', call_id='k', arguments='{"command": ["sh", "-lc", "ls"]}'),
         dict(type='function_call_output', call_id='k', output='Process exited with code 2\nOutput:\nno')]
CODEX = [dict(type='session_meta', payload=dict(id='c', cwd='/home/ada/shop')),
         *(dict(type='response_item', payload=p) for p in ITEMS),
         dict(type='token_usage_record', payload=dict(usage=USAGE)),
         dict(type='event_msg', payload=dict(type='token_count', info=dict(total_token_usage=USAGE)))]
LOOK = [dict(role='user', content='Look'), dict(role='assistant', content=None, tool_calls=[
    dict(id='l', function=dict(name='look', arguments='{"at": "mug"}'))])]
GONE = dict(role='tool', tool_call_id='l', content='{"returncode": 3, "output": "gone"}')
CHAT = [dict(messages=[dict(role='developer', content='be brief'), *LOOK, GONE], reward=1)]
MINI = [dict(trajectory_format='mini-swe-agent-1.1', info=dict(exit_status='LimitsExceeded'),
             messages=[*LOOK, GONE | dict(extra=dict(returncode=3, raw_output='gone'))])]
ATIF = [dict(schema_version='ATIF-v1.8', session_id='t', steps=[
    dict(step_id=1, source='user', message=[dict(type='text', text='Look')]),
    dict(step_id=2, source='agent', message='', metrics=dict(prompt_tokens=3, completion_tokens=1),
         tool_calls=[dict(tool_call_id='l', function_name='look', arguments={})],
         observation=dict(results=[dict(source_call_id='l', content='Process exited with code 1\n')])),
    dict(step_id=3, source='agent', message='copied', is_copied_context=True)])]
RESPONSES = [dict(request=dict(model='m', input=ITEMS[:2]), response=dict(output=[ITEMS[2]])),
             dict(request=dict(model='m', input=ITEMS), response=dict(output=[]))]
SAID = dict(id='2', type='gemini', content='I look.', tokens=dict(input=9, output=2), model='g')
LOOKED = dict(id='l', name='look', args=dict(at='mug'), status='error', result=[dict(functionResponse=dict(
    id='l', response=dict(error='functionResponse: gone')))])
PLACE = '<session_context>\n- **Workspace Directories:**\n  - /home/ada/shop\n'
GEMINI = [dict(sessionId='g', projectHash='f0', kind='main'),
          {'$set': dict(messages=[dict(id='0', type='user', content=[dict(text=PLACE)])])},
          dict(id='1', type='user', content=[dict(text='What is a functionResponse?')]), SAID,
          {'$set': dict(lastUpdated='now')}, SAID | dict(toolCalls=[LOOKED]),
          dict(id='3', type='user', content=LOOKED['result']), SAID | dict(id='4', content='Gone.')]
OPENCODE = [dict(type='tool_use', sessionID='o', part=dict(type='tool', tool='bash', callID=id, state=state))
            for id, state in dict(a=dict(status='completed', input=dict(command='ls'), output='x'),
                                  b=dict(status='error', input=dict(command='rm'), error='no')).items()]
OPENCODE += [dict(type='step_finish', sessionID='o', part=dict(tokens=dict(input=7, output=1)))]
LOGS = {'claude': CLAUDE, 'codex': CODEX, 'chat': CHAT, 'mini-swe-agent': MINI, 'atif': ATIF,
        'responses': RESPONSES, 'gemini': GEMINI, 'opencode': OPENCODE}

@pytest.mark.parametrize('kind', LOGS)
def test_a_log_holds_what_a_plain_count_says_whole_and_damaged(kind, tmp_path):
    whole = lines(tmp_path/'a.jsonl', *LOGS[kind])
    told = counted(read(whole))
    assert told == expected(whole, kind) and told[3] == 1
    junk = ['42', '[1]', '"text"', '{"type": "of the future"}', '\0\0\0', '{"torn": ', '[' * 9000]
    damaged = lines(tmp_path/'b.jsonl', '\ufeff' + json.dumps(LOGS[kind][0]), *junk, *LOGS[kind][1:],
                    '{"type": "user", "mess', end='\r\n')
    skipped = Counter()
    assert counted(read(damaged, set(), skipped)) == told
    assert skipped['damaged lines'] >= 3

@pytest.mark.parametrize('kind', LOGS)
def test_no_record_of_another_shape_stops_the_others(kind, tmp_path):
    rng = random.Random(0)
    odd = [None, 7, -1.5, '', 'x', [], {}, [None], {'type': []}, float('nan'), '\ud800', 1e400, [[]], True]

    def spoil(value):
        if rng.random() < .06:
            return rng.choice(odd)
        if isinstance(value, dict):
            return {k: spoil(v) for k, v in value.items() if rng.random() > .02}
        return [spoil(v) for v in value] if isinstance(value, list) else value

    for n in range(150):
        path = lines(tmp_path/f'{n}.jsonl', *LOGS[kind][:-1][:1], *map(spoil, LOGS[kind]))
        try:
            for s in read(path):
                json.dumps([t.to_dict() for t in to_trajectories(s)])
        except ValueError as e:
            assert 'no session that we can read' in str(e)

def test_a_message_of_gemini_counts_as_it_was_last_told_and_its_place_is_known(tmp_path):
    s, = read(lines(tmp_path/'a.jsonl', *GEMINI))
    assert [t.text for t in s.turns] == ['What is a functionResponse?', 'I look.', 'Gone.']
    assert (s.id, s.project, s.model, s.calls[0].result) == ('g', '~/shop', 'g', 'functionResponse: gone')
    assert read(lines(tmp_path/'b.jsonl', GEMINI[0] | dict(kind='subagent'), *GEMINI[1:]))[0].sidechain

# --- what is told of Claude Code's logs ---
def test_the_chain_of_parents_is_the_order_and_not_the_file_or_the_clock(tmp_path):
    mixed = [CLAUDE[i] for i in (0, 3, 2, 1, 7, 6, 5, 4)]
    a, b = (read(lines(tmp_path/f'{name}.jsonl', *rows))[0] for name, rows in dict(a=mixed, b=CLAUDE).items())
    assert a.turns == b.turns

def test_resumed_and_forked_sessions_add_only_what_is_new(tmp_path):
    lines(tmp_path/'a.jsonl', *CLAUDE)
    more = [*CLAUDE, claude(9, 8, 'user', 'and the docs')]
    lines(tmp_path/'b.jsonl', *(r | dict(sessionId='fork') for r in more))
    texts = [t.text for s in find_sessions([tmp_path]) for t in s.turns if t.role == 'user']
    assert texts == ['Fix the cart', 'No, it still fails', 'perfect, thanks', 'and the docs']

def test_what_no_human_said_is_no_task(tmp_path):
    more = [claude(9, 8, 'user', 'Base directory for this skill', isMeta=True),
            dict(type='system', subtype='compact_boundary', uuid='u10', logicalParentUuid='u9'),
            claude(11, 10, 'user', 'This session is being continued', isCompactSummary=True),
            claude(12, 11, 'user', '<command-name>/clear'), claude(13, 12, 'user', 'Caveat: none'),
            claude(14, 13, 'user', [dict(type='text', text='[Request interrupted by user]')]),
            claude(15, None, 'user', 'Find tests', isSidechain=True, agentId='x'),
            claude(16, 14, 'assistant', 'API Error: 529', isApiErrorMessage=True)]
    main_, side = read(lines(tmp_path/'a.jsonl', *CLAUDE, *more))
    assert [t.text[:5] for t in main_.turns if t.role == 'user'] == ['Fix t', 'No, i', 'perfe']
    assert side.sidechain and to_trajectories(side)[0].metadata['sidechain']
    last = to_trajectories(main_)[-1].metadata['signals']
    assert (last['interrupted'], last['outage']) == (1, 1)
    assert read(lines(tmp_path/'agent-7.jsonl', *CLAUDE))[0].sidechain

# --- Inspect ---
def test_inspect_needs_zstandard_and_says_so(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path/'a.eval', 'w') as z:
        z.writestr('header.json', '{"eval": {"eval_id": "e", "model": "m"}}')
        z.writestr('samples/1.json', '{"id": 1, "messages": [{"role": "user", "content": "attachment://f"}], '
                   '"attachments": {"f": "Hi"}, "scores": {"a": {"value": NaN}, "b": {"value": "C"}}}')
    s = read(tmp_path/'a.eval')[0]
    assert s.turns[0].text == 'Hi' and 'reward' not in s.outcome
    data = (tmp_path/'a.eval').read_bytes()
    at = data.rindex(b'PK\x01\x02')
    (tmp_path/'a.eval').write_bytes(data[:at + 10] + b'\x5d\0' + data[at + 12:])
    monkeypatch.setitem(sys.modules, 'zstandard', None)
    with pytest.raises(ImportError, match='pip install zstandard'):
        read(tmp_path/'a.eval')

# --- secrets ---
KEYS = '''
sk-{48} sk-ant-api03-{60}-{9}AA sk-proj-{40}_{9} AKIA{16U} ghp_{36} gho_{36} ghu_{36} ghs_{36} ghr_{36}
github_pat_{22}_{59} xoxb-1234567890-{24} xapp-1-A0-{30} AIza{35} eyJ{20}.eyJ{40}.{43} npm_{36}
pypi-AgEIcHlwaS5vcmc{60} hf_{34} sk_live_{24} rk_live_{24} whsec_{32} glpat-{20} ya29.{60} GOCSPX-{28}
SG.{22}.{43} 123456789:AA{33} SK{32x} key-{32x} {32x}-us12 shpat_{32x} dop_v1_{64x} dapi{32x} hvs.{30}
figd_{40} lin_api_{40} ntn_{40} sntrys_{60} NRAK-{27U} glsa_{32}_{8x} AGE-SECRET-KEY-1{58U} PMAK-{24x}-{34x}
dckr_pat_{27} r8_{37} gsk_{52} ATATT3xFfGF0{60} M{23}.{6}.{30} abc8Q~{34}'''
PLACES = re.split(' ¦ |\n', r'''PASSWORD={}
DB_PASSWORD={} ¦ export API_KEY="{}" ¦ password: {} ¦ {"clientSecret": "{}"} ¦ {\"api_key\": \"{}\"}
token = '{}' ¦ secret: str = "{}" ¦ Authorization: Bearer {} ¦ authorization: Basic {} ¦ X-Api-Key: {}
postgres://ada:{}@db.example.com/x ¦ redis://:{}@host:6379 ¦ Server=x;Password={};Encrypt=True
AccountName=x;AccountKey={};Suffix=y ¦ aws_secret_access_key = {} ¦ "SecretAccessKey": "{}"
//registry.npmjs.org/:_authToken={} ¦ machine h login ada password {} ¦ curl -u ada:{} https://x
tool --password {} go ¦ tool --api-key={} ¦ mysql -u root -p{} db ¦ sshpass -p '{}' ssh x
Cookie: sid={}; a=b ¦ https://hooks.slack.com/services/T0000/B0000/{} ¦ <password>{}</password>
define('DB_PASSWORD', '{}'); ¦ https://x.com/a?access_token={}&b=1
https://a.blob.core.windows.net/c?sv=1&sig={} ¦ PGPASSWORD={} psql ¦ db.example.com:5432:main:ada:{}
client-key-data: {} ¦ AWS Secret Access Key [None]: {} ¦ 'password' => '{}' ¦ docker login -u ada -p {}
smtp_pass={} ¦ os.environ["CI_TOKEN"] = "{}"
-----BEGIN RSA PRIVATE KEY-----%{}%-----END RSA PRIVATE KEY-----
     1→-----BEGIN PRIVATE KEY-----%     2→{}%     3→-----END''')
KEPT = re.split(' ¦ |\n', '''a400ba0a47a048145822b06c097abd096dbce159
02bd67b3-f99a-45ee-8bf4-d361eaed728f ¦ toolu_d312014f87d5
max_tokens=4096 ¦ "total_tokens": 113 ¦ tokenizer = gpt2 ¦ token = get_token() ¦ password: str
TOKEN=$TOKEN ./x ¦ api_key=os.environ["X"] ¦ grep -r token | head ¦ task-force-something
hf_hub_download(repo) ¦ secret_name: db ¦ npm_config_registry ¦ the password is required
src/home/components/x.tsx ¦ http://localhost:8080/x ¦ key: value ¦ git@github.com:a/b
sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 ¦ if token == other:
input_tokens=5 ¦ PWD=/usr/x''')

def invented():
    "(key, where it stands) of each kind"
    rng = random.Random(5)
    letters = {'': string.ascii_letters + string.digits, 'x': '0123456789abcdef', 'U': string.ascii_uppercase}

    def some(m):
        return ''.join(rng.choices(letters[m[2]], k=int(m[1])))
    keys = [re.sub(r'\{(\d+)([xU]?)\}', some, key) for key in KEYS.split()]
    placed = [(re.sub('(40)()', some, '40'), place) for place in PLACES]
    return [(key, text) for key in keys for text in ('{}', 'x="{}", y')] + placed

def test_no_secret_survives_a_harvest(tmp_path, capsys):
    found, rows = invented(), []
    assert len(found) > 120
    for key, place in found:
        text = place.replace('{}', key).replace('%', '\n')
        call = dict(id='a', name='run', arguments=dict(command=text, dbPassword='tulip7', env=[text]))
        rows.append(dict(messages=[
            dict(role='user', content=text), dict(role='assistant', content=text, tool_calls=[call]),
            dict(role='tool', tool_call_id='a', content=f'{"line " * 3000}{text}\n{"line " * 3000}'),
            dict(role='assistant', content=f'{"x" * 7990} {text}{" y" * 9000}')]))
    lines(tmp_path/'a.jsonl', *rows)
    assert main(['harvest', str(tmp_path/'a.jsonl'), '--output', str(tmp_path/'t.jsonl')]) == 0
    written = (tmp_path/'t.jsonl').read_text() + capsys.readouterr().out
    assert [place for key, place in found if key in written or key[5:-3] in written] == []
    assert 'tulip7' not in written

def test_what_is_no_secret_stays_and_home_folders_lose_their_owner():
    assert [text for text in KEPT if redact(text, homes=True) != text] == []
    for path in ('/home/ada/x', '/Users/ada/x', r'C:\Users\ada\x', '~/x/-home-ada-shop', '/mnt/c/Users/ada'):
        assert 'ada' not in redact(path, homes=True) and '~' in redact(path, homes=True)

HOSTILE = ['token_', 'token: ', 'token:a', '://a:', '-eyJ', 'a', '-----BEGIN PRIVATE KEY-----', 'M-',
           '--pass', 'cookie: ', 'İtoken=', 'curl -u a:', 'password=\\"a', 'login ']

def test_hostile_text_takes_linear_time():
    "It takes seconds, and minutes where a pattern is quadratic"
    code = 'import json, sys; from skillrl.core.secrets import redact; [*map(redact, json.load(sys.stdin))]'
    texts = json.dumps([text * (400_000 // len(text)) for text in HOSTILE])
    subprocess.run([sys.executable, '-c', code], input=texts, text=True, timeout=60, check=True)

# --- tasks and signals ---
def test_tasks_carry_signals_and_only_a_recorded_reward_is_success(tmp_path):
    session = read(lines(tmp_path/'a.jsonl', *CLAUDE))[0]
    first, second, last = to_trajectories(session)
    told, praise = (t.metadata['signals'] for t in (first, second))
    assert told.pop('tests') == [dict(command='pytest', exit_code=1)]
    assert told == dict(failed_commands=1, tool_errors=1, corrected='No, it still fails')
    assert praise == dict(thanked='perfect, thanks', tests=[dict(command='pytest -q', exit_code=0)])
    assert (first.steps[0].action, first.task) == ('Bash {"command": "pytest"}', 'Fix the cart')
    assert first.final_observation == 'Exit code 1\nKeyError' and first.metadata['answer'] == 'Done.'
    assert [t.metadata['outcome'] for t in (first, second, last)] == ['unknown'] * 3
    assert tool_table([first, second]).rows == [['Bash pytest', '2', '1', '0', 'pytest -q']]
    session.outcome = dict(reward=1.)
    assert [t.success for t in to_trajectories(session)] == [False, False, True]
    for reward, won in ((1, True), (.99, False), ('1', False), (None, False), (float('nan'), False)):
        chat, = read(lines(tmp_path/'b.jsonl', dict(messages=LOOK, reward=reward)))
        assert [t.success for t in to_trajectories(chat)] == [won]
        assert ('reward' in chat.outcome) == (isinstance(reward, float | int) and reward == reward)

@pytest.mark.parametrize('command, own', [
    ('pytest -q', True), ('cd src && pytest -q', True), ('pytest -q | head -3', False),
    ('pytest -q; echo done', False),
    ('pytest -q\necho done', False), ('echo a | wc; pytest', True), ('pytest || true', False)])
def test_the_exit_code_of_a_line_is_that_of_its_tests_only_where_they_are_last(command, own):
    s = AgentSession('a', 'b')
    s.say('user', 'Test it')
    s.call(dict(name='Bash', args=dict(command=command), id='x'))
    s.result(dict(id='x', content='2 passed', exit_code=0))
    test, = to_trajectories(s)[0].metadata['signals']['tests']
    assert test['exit_code'] == (0 if own else None)

@pytest.mark.parametrize('day, kept', [(-1, 1), (0, 1), (1, 0)])
def test_the_day_that_since_names_belongs_to_it(tmp_path, day, kept):
    lines(tmp_path/'a.jsonl', *CLAUDE)
    last = max(t.time for s in read(tmp_path/'a.jsonl') for t in s.turns)
    skipped = Counter()
    named = (date.fromisoformat(last[:10]) + timedelta(day)).isoformat()
    assert len([*find_sessions([tmp_path], named, omissions=skipped)]) == kept
    assert skipped['earlier sessions'] == 1 - kept

# --- the command ---
def test_harvest_filters_and_writes_only_when_asked(tmp_path, capsys, monkeypatch):
    for name, folder in dict(CLAUDE_CONFIG_DIR='c', CODEX_HOME='x').items():
        monkeypatch.setenv(name, str(tmp_path/folder))
    assert main(['harvest', '--dry-run']) == 1
    lines(tmp_path/'c'/'projects'/'-home-ada-shop'/'s.jsonl', *CLAUDE)
    for year in '2025', '2026':
        lines(tmp_path/'x'/'sessions'/year/'r.jsonl', *CODEX)
    lines(tmp_path/'x'/'sessions'/'package.json', dict(name='no session'))
    out = tmp_path/'t.jsonl'
    before = sorted(tmp_path.rglob('*'))
    assert main(['harvest', '--dry-run', '--output', str(out)]) == 0
    told = capsys.readouterr().out
    assert sorted(tmp_path.rglob('*')) == before and 'sessions 3' in told and 'files of other kinds 1' in told
    assert main(['harvest', '--project', 'shop', '--since', '2026-11-08', '--output', str(out)]) == 0
    trajs = load_trajectories(out)
    assert {t.metadata['project'] for t in trajs} == {'~/shop'} and len({t.id for t in trajs}) == len(trajs)
    held = out.read_bytes()
    for wrong in (['--project', 'no'], ['--since', 'monday'], [str(out)]):
        assert main(['harvest', *wrong, '--output', str(out)]) == 1
        assert len(capsys.readouterr().err.strip().splitlines()) == 1 and out.read_bytes() == held

def test_our_own_trajectories_are_passed_through_but_for_their_secrets(tmp_path, capsys):
    step = Step('tea', 'take tea', 1., token_ids=[1, 2], logprobs=[-.5, 0.], skills=['x'], advantage=.5)
    about = dict(game='g', seed=3, metadata=dict(phase='eval'), end='won')
    one = Trajectory('a', 'Take tea', 'tea', [step], True, **about)
    two = Trajectory('b', 'Show it', steps=[Step('', 'cat .env')]*2, final_observation='TOKEN=q3rf88sx')
    for name in ('own.jsonl', 'own.json'):
        own, out = save_trajectories([one, two], tmp_path/name), tmp_path/f'{name}.t.jsonl'
        lines(tmp_path/f'{name}.chat.jsonl', *CHAT)
        assert main(['harvest', str(own), str(tmp_path/f'{name}.chat.jsonl'), '--output', str(out)]) == 0
        told, (first, second, chat) = capsys.readouterr().out, out.read_text().splitlines()
        assert json.loads(first) == one.to_dict() and json.loads(chat)['metadata']['source'] == 'chat'
        assert second == json.dumps(two.to_dict() | dict(final_observation='TOKEN=[redacted]'))
        assert 'calls 4, sessions 3, tasks 3' in told and 'password 1' in told and 'take' in told
        assert main(['harvest', str(out), '--output', str(tmp_path/'again.jsonl')]) == 0
        assert (tmp_path/'again.jsonl').read_bytes() == out.read_bytes()
        capsys.readouterr()
    assert main(['harvest', str(own), '--project', 'shop', '--output', str(tmp_path/'none.jsonl')]) == 1
