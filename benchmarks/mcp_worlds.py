"""What skills are worth with two real MCP servers, from their packages.

    python benchmarks/mcp_worlds.py --sqlite mcp-server-sqlite --git mcp-server-git [--tasks N] [--save FILE]

Each server gets so many tasks of two categories. A scripted model behind an OpenAI-compatible server plays
them as a chat policy. It knows what each tool takes, but neither the names in a database, nor where the
repository is, nor which tools a task needs before the last: it tries others at random, until a skill says.
The offline teacher distils what was won while collecting; then each held-out task is played without the bank
and with it. What a model of yours would gain is another question: this measures the way from calls to skills
and back. mcp-server-sqlite needs `mcp<2`, so an environment of its own."""
import argparse, json, random, re, shlex, sys, tempfile, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from skillrl.agent.contract import write_reply
from skillrl.core.config import SkillRLConfig
from skillrl.core.store import write_json
from skillrl.core.trajectory import success_rate
from skillrl.envs.base import world
from skillrl.skills.distillation import distill
from skillrl.skills.retrieval import advice
from skillrl.training.builders import build_episodes, build_policy, build_teacher, rollout_limits
from skillrl.training.evaluate import compare, evaluate, paired_difference
from skillrl.training.phases import collect_games

PEOPLE = 'Ada Bo Cleo Dan Eve Finn Gus Hal'.split()
SEED = 'import sqlite3; sqlite3.connect("shop.db").executescript(open("seed.sql").read())'
WHEN = '"@1767225600 +0000"' # Equal hashes in all runs
INIT = (f'export GIT_AUTHOR_DATE={WHEN} GIT_COMMITTER_DATE={WHEN} && '
        'git init -q -b main && git config user.name A && git config user.email a@b && '
        'git commit -qm x --allow-empty')

def of_database(i, rng):
    "How often somebody is in a table, or to take them out of it"
    who, table = PEOPLE[i % 8], f'purchases_{rng.choice("abcd")}'
    buyers = [who]*rng.randint(1, 5) + rng.choices([p for p in PEOPLE if p != who], k=6)
    values = ', '.join(f"('{buyer}')" for buyer in buyers)
    same = dict(files={'seed.sql': f'CREATE TABLE {table}(buyer); INSERT INTO {table} VALUES {values}'})
    if i % 2:
        left = f'read_query {{"query": "SELECT COUNT(*) AS n, SUM(buyer = \'{who}\') AS m FROM {table}"}}'
        return same | dict(prompt=f'Cancel all that {who} ordered (case {i}).', category='cancel_orders',
                           check=[dict(call=left, matches="'n': 6, 'm': 0")])
    return same | dict(prompt=f'How often did {who} order (case {i})?', category='count_orders',
                       check=[dict(matches=f'^{buyers.count(who)}$')])

def of_repository(i, rng):
    "A commit, or a branch to be on"
    word, same = f'case-{i}', dict(files={'list.txt': f'{i}'})
    if i % 2:
        shows = f'test "$(git show --format=%s --name-only | xargs)" = "{word} list.txt"'
        return same | dict(prompt=f'Commit list.txt with the message {word}', category='commit_files',
                           check=[dict(command=['sh', '-c', shows])])
    branch = f'test "$(git branch --show-current)" = {word}'
    return same | dict(prompt=f'Switch to a new branch {word}', category='start_branches',
                       check=[dict(command=['sh', '-c', branch])])

# ---- the model ----

LAST = dict(Cancel='write_query', How='read_query', Commit='git_commit', Switch='git_checkout')

def arguments(tool, task, seen, skills):
    "What it gives a tool: names that it has seen, and guesses"
    table, column = [(re.findall(r"'name': '(\w+)'", seen.get(name, '')) + ['orders'])[0]
                     for name in ('list_tables', 'describe_table')]
    word, who = task.split()[-1], (re.findall('(?:did|that) (.*?) ', task) + [''])[0]
    rows = f"FROM {table} WHERE {column} = '{who}'"
    repo = '.' if 'repo_path "."' in skills or '/repo' in seen.get('error', '') else '/repo'
    known = dict(describe_table=dict(table_name=table), read_query=dict(query=f'SELECT COUNT(*) AS n {rows}'),
                 write_query=dict(query=f'DELETE {rows}'), create_table=dict(query='CREATE TABLE x(y)'),
                 append_insight=dict(insight='All is well.'), git_add=dict(files=['list.txt']),
                 git_commit=dict(message=word), git_create_branch=dict(branch_name=word),
                 git_checkout=dict(branch_name=word), git_diff=dict(target='main'),
                 git_show=dict(revision='HEAD'), git_branch=dict(branch_type='local')).get(tool, {})
    return dict(repo_path=repo) | known if tool.startswith('git_') else known

def act(prompt):
    "A command: the next tool of a skill; or the last one again, and three others between"
    task, skills = re.search('Task: (.*)', prompt)[1], ' '.join(re.findall('Skill: (.*)', prompt))
    seen, last = {}, LAST[task.split()[0]]
    for tool, said in re.findall(r'^Did: (\w+).*\n(?:Saw|Now): (.*)', prompt, re.M):
        failed = said == '[]' or re.match(r'(\w+ )?error', said, re.I)
        seen |= dict(error=seen.get('error', '') + said) if failed else {tool: said}
    if last in seen:
        found = re.search(r"'n': (\d+)", seen[last])
        return f'finish {json.dumps(dict(answer=found[1]) if found else {})}'
    order, rng = re.search(r'To [\w ]+: ([\w, ]+)\.', skills), random.Random(prompt)
    if order:
        tool = [tool for tool in [*order[1].split(', '), last] if tool not in seen][0]
    else:
        others = {*re.findall(r'- (\w+) \{.*\}: ', prompt)} - {*seen, last, 'finish'}
        tool = rng.choice(sorted(others)) if others and prompt.count('Did: ') % 4 else last
    return f'{tool} {json.dumps(arguments(tool, task, seen, skills))}'

class Model(BaseHTTPRequestHandler):
    "An OpenAI-compatible server"
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        said = dict(role='assistant', content=write_reply('next', act(asked['messages'][-1]['content'])))
        body = dict(id='x', object='chat.completion', created=0, model='scripted',
                    usage=dict(prompt_tokens=1, completion_tokens=1, total_tokens=2),
                    choices=[dict(index=0, message=said, finish_reason='stop')])
        self.send_response(200)
        self.send_header('Content-Type', 'application/json')
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *args): pass

# ---- the measurement ----

def measured(name, server, make, n, url, folder):
    "What is won of the held-out tasks, without a bank and with one"
    file = Path(folder)/f'{name}.jsonl'
    rows = [dict(server=server), *(make(i, random.Random(i)) for i in range(n))]
    file.write_text('\n'.join(map(json.dumps, rows)))
    config = SkillRLConfig().merged({
        'env': dict(name='mcp', games=str(file), max_steps=8, episodes=n), 'agent.history_length': 30,
        'model': dict(policy_model_id='scripted', policy_api_base=url)})
    config.model.policy_api_key = 'none'
    suite, policy = world('mcp').suite(config.env), build_policy(config)
    played = collect_games(policy, suite, config)
    bank, results = distill(played, build_teacher(config), (), world('mcp').router), {}
    for what, shown in (('no bank', None), ('bank', bank)):
        episodes = build_episodes(suite, suite.games('test', n), shown, config)
        results[what] = evaluate(policy, episodes, limits=rollout_limits(suite, config))
    gain, won = paired_difference(results['no bank'], results['bank']), success_rate(played)
    print(f'{name}: {won.mean:.2f} of {won.n} won while collecting', *map(advice, bank.items()),
          compare(results), f'gain {gain.mean:.2f} [{gain.low:.2f}, {gain.high:.2f}], n = {gain.n}\n',
          sep='\n', flush=True)
    return {what: [bool(t.success) for t in trajs] for what, trajs in results.items()}

if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--sqlite', required=True, type=shlex.split, metavar='CMD', help='starts the first')
    p.add_argument('--git', required=True, type=shlex.split, metavar='CMD', help='starts the second')
    p.add_argument('--tasks', type=int, default=160, help='of each server')
    p.add_argument('--save', metavar='FILE', help='where to keep what was won')
    args = p.parse_args()
    model = ThreadingHTTPServer(('127.0.0.1', 0), Model)
    threading.Thread(target=model.serve_forever, daemon=True).start()
    seed = shlex.join([sys.executable, '-c', SEED])
    places = dict(sqlite=(seed, [*args.sqlite, '--db-path', 'shop.db'], of_database),
                  git=(INIT, args.git, of_repository))
    with tempfile.TemporaryDirectory() as folder:
        url, found = f'http://127.0.0.1:{model.server_port}/v1', {}
        for name, (prepare, line, make) in places.items():
            server = dict(command='sh', args=['-c', f'{prepare} && exec {shlex.join(line)}'])
            found[name] = measured(name, server, make, args.tasks, url, folder)
    if args.save:
        write_json(args.save, found)
