"""Damaged files of every kind that commands and viewers read: each must end in a page or in one sentence.

    python benchmarks/fuzz.py [--documents 5000] [--seed 0]

A valid document of each kind is made by the library itself and damaged: wrong types, nulls, missing and
doubled keys, huge numbers, NaN, deep nesting, torn tails, bytes that are not UTF-8. Then the
commands and viewers that read such a file are called in this process.
The table counts what came of it; the exit status is 1 if anything
but a sentence of `main` was raised."""

import argparse, contextlib, functools, io, json, random, shlex, shutil, sys, traceback
from collections import Counter
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch
from skillrl.cli import main as cli
from skillrl.core.config import SkillRLConfig
from skillrl.worlds.mcp.world import _load_tasks
from skillrl.core.formats import load_trajectories, save_trajectories
from skillrl.core.runfolder import RunFolder
from skillrl.skills.bank import SkillBank, version_path
from skillrl.skills.skill_md import to_skill_md
from skillrl.core.store import JsonlLog, data_path, to_json
from skillrl.core.tables import Table
from skillrl.viewers.bank_view import checked_round, evolution_table, round_text
from skillrl.viewers.report import finals
from skillrl.viewers.watch import _SECTIONS, _RunPage

SENTENCES = ValueError, OSError, RuntimeError, ArithmeticError, ImportError  # What `main` makes one line of

# --- valid documents

CALL = dict(
    messages=[dict(role='user', content='Which mug?')],
    reply='The white one',
    model='m',
    status='ok',
    prompt_tokens=5,
    completion_tokens=3,
)
PROPOSAL = dict(
    kind='add',
    id='g1',
    principle='Open the fridge.',
    hypothesis='It is closed.',
    kept=True,
    reason='',
)
MEMORY = dict(
    memory_id='m1',
    contextual_description='A mug was cooled.',
    tags=dict(environment='alfworld', outcome='Success'),
    content=dict(
        task_meta=dict(original_goal='cool a mug'),
        refined_trajectory=[
            dict(
                step_index=0,
                action='open fridge 1',
                critical_observation='It is open.',
                reasoning='It was closed.',
            )
        ],
        strategic_guidelines=dict(
            mistakes_to_avoid=[dict(trigger_condition='a', bad_action='b')],
            planning_pattern='Take, cool, put.',
        ),
    ),
)
LOST = MEMORY | dict(memory_id='m2', tags=dict(environment='alfworld', outcome='Failure'))
KRILL = dict(
    id='k1',
    task_description='cool a mug',
    task_category='cool',
    success=True,
    total_reward=1.0,
    steps=[dict(observation='a', action='look', reward=0.0, step_index=0)],
    metadata={},
)


def round_record(number):
    rate = dict(mean=0.5, low=0.2, high=0.8, n=12)
    return dict(
        round=number,
        suite='train-000',
        weak=['cool'],
        kept=['g1'],
        refused=[dict(principle='a', reason='b')],
        proposals=[PROPOSAL, PROPOSAL | dict(kept=False, reason='no')],
        rates_before={'all': rate},
        told='12 fresh games',
    )


def log(path, rows):
    JsonlLog(path).append(rows)


def small_bank():
    "A general skill, one of a task and a mistake of the sample bank"
    d = SkillBank.load(data_path('sample_bank.json')).to_dict()
    d['general_skills'] = d['general_skills'][:1]
    d['common_mistakes'] = d['common_mistakes'][:1]
    category, skills = next(iter(d['task_specific_skills'].items()))
    d['task_specific_skills'] = {category: skills[:1]}
    return SkillBank.from_dict(d)


def lay_out(here):
    "A folder with one valid document of every kind"
    bank = small_bank()
    for fmt in ('skillrl', 'official', 'krill'):
        bank.save(here / f'{fmt}.json', fmt)
    to_skill_md(bank, here / 'packages')
    bank.save(version_path(here / 'versions'))
    bank.save(version_path(here / 'versions'))
    log(here / 'versions/evolution.jsonl', map(round_record, range(3)))
    episodes = load_trajectories(data_path('sample_trajectories.jsonl'))[:4]
    save_trajectories(episodes, here / 'episodes.json')
    save_trajectories(episodes, here / 'episodes.jsonl')
    (here / 'krill_episodes.json').write_text(to_json([KRILL, KRILL | dict(id='k2')], indent=1))
    (here / 'memories.json').write_text(to_json([MEMORY, LOST], indent=1))
    log(
        here / 'questions.jsonl',
        [dict(id=str(n), question=f'What is {n}?', answers=[str(n)]) for n in range(4)],
    )
    (here / 'config.json').write_text(to_json(SkillRLConfig().to_dict(), indent=1))
    log(here / 'calls/exchanges.jsonl', [CALL, CALL | dict(cached=True)])
    log(here / 'calls/rejected.jsonl', [dict(reason='no JSON', reply='mug')] * 2)
    train_run(here / 'run', episodes, bank)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert cli.main(['optimize', '--smoke', '--output', str(here / 'opt')]) == 0
    lay_out_proof(here)


EVALS = dict(
    skill_name='mugs',
    evals=[
        dict(
            id=n,
            prompt='Write.',
            expected_output='A text.',
            files=['a.txt'],
            assertions=[dict(text='It is there', check=dict(file='out.txt', contains='mug', seconds=9))],
        )
        for n in (1, 2)
    ],
)
TASK = dict(id='t1', prompt='Write.', checks=[dict(file='out.txt')], files={'a.txt': 'mug'})
SESSIONS = {
    'chat': [dict(messages=[dict(role='user', content='Go'), dict(role='assistant', content='Done')])],
    'claude': [
        dict(type='user', sessionId='a', uuid='1', cwd='/x', message=dict(role='user', content='Go')),
        dict(
            type='assistant',
            sessionId='a',
            uuid='2',
            parentUuid='1',
            message=dict(
                role='assistant',
                content=[dict(type='tool_use', id='c', name='Bash', input=dict(command='pytest'))],
            ),
        ),
    ],
    'codex': [
        dict(type='session_meta', payload=dict(id='a', cwd='/x')),
        dict(type='response_item', payload=dict(type='message', role='user', content='Go')),
    ],
}


def lay_out_proof(here):
    "A skill with evals, a scripted agent, a proof that is not at its end, sessions and tasks"
    skill = here / 'proof/mugs'
    (skill / 'evals').mkdir(parents=True)
    front = '---\nname: mugs\ndescription: About mugs.\n---\n\n'
    (skill / 'SKILL.md').write_text(f'{front}Wash them.\n')
    (skill / 'a.txt').write_text('mug')
    (skill / 'evals/evals.json').write_text(to_json(EVALS, indent=1))
    (here / 'proof/agent.py').write_text("open('out.txt', 'w').write('mug')\nprint('Done.')\n")
    for name, records in SESSIONS.items():
        log(here / f'sessions/{name}.jsonl', records)
    log(here / 'tasks/tasks.jsonl', [TASK, TASK | dict(id='t2')])
    assert prove_again(here) in (0, 1)
    shutil.copytree(here / 'proof/mugs-workspace', here / 'proof/whole')


def prove_again(here):
    agent = shlex.join([sys.executable, str(here / 'proof/agent.py')])
    words = ['--agent', f'{agent} {{prompt}}', '--set', 'rounds=2', 'parallel=1', '--sandbox', 'off']
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return cli.main(['prove', str(here / 'proof/mugs'), *words]) # Its status is also the verdict


def damaged_proof(here, name):
    "A proof is read where it goes on: as if it had not come to its end"
    workspace = here / 'proof/mugs-workspace'
    if not name.endswith('proof.json'):
        (workspace / 'iteration-1/proof.json').unlink()
    try:
        return prove_again(here)
    finally:
        shutil.rmtree(workspace)
        shutil.copytree(here / 'proof/whole', workspace)


def train_run(run, episodes, bank):
    with RunFolder(run, SkillRLConfig().to_dict()) as r:
        r.commit(dict(phase='rl', done=1, total=4, versions={}))
    shutil.copy(data_path('sample_metrics.jsonl'), run / 'metrics.jsonl')
    log(run / 'evolution.jsonl', map(round_record, range(3)))
    log(
        run / 'trajectories.jsonl',
        [t.to_dict() | dict(metadata=dict(phase='eval', suite='s')) for t in episodes],
    )
    log(run / 'teacher/exchanges.jsonl', [CALL] * 2)
    bank.save(version_path(run / 'bank/s'))


# --- damage

STRANGE = [
    None,
    5,
    -1,
    1.5,
    True,
    '',
    'text',
    '\ud800',
    '\x1b[2J',
    [],
    {},
    [None],
    [[]],
    {'a': None},
    [5, 'a'],
    10**400,
    -(10**30),
    float('nan'),
    float('inf'),
    {'mean': 1},
    {'all': None},
    {'all': {'mean': 'a'}},
]


def strange(rng):
    return deepcopy(rng.choice(STRANGE))


def places(o, found):
    "Every (container, key) in `o`"
    keys = list(o) if isinstance(o, dict) else range(len(o)) if isinstance(o, list) else []
    for k in keys:
        found.append((o, k))
        places(o[k], found)
    return found


def damaged_value(o, rng):
    "`o` with one to three values replaced, or left out, or moved to a strange key"
    o = json.loads(json.dumps(o))
    for _ in range(rng.randint(1, 3)):
        some = places(o, [])
        if not some or rng.random() < 0.03:
            return strange(rng)
        container, k = rng.choice(some)
        act = rng.random()
        if act < 0.75:
            container[k] = strange(rng)
        elif act < 0.9:
            del container[k]
        elif isinstance(container, dict):
            container[rng.choice(['', 'id', 'steps', 'mean'])] = deepcopy(container[k])
    return o


def damaged_text(data, rng):
    "Bytes with what no JSON writer makes"
    at = rng.randrange(len(data) + 1)
    bytes_in = rng.choice(
        [
            b'\xff',
            b'\xc3',
            b'\x00',
            b'[' * 3000,
            b'{"a":' * 3000,
            b'"',
            b'}',
            b',',
            b'\n',
            b'NaN',
            b'9' * 5000,
            b'\xef\xbb\xbf',
            b'1e999',
            b'\\ud800',
        ]
    )
    act = rng.random()
    if act < 0.35:
        return data[:at]
    if act < 0.8:
        return data[:at] + bytes_in + data[at:]
    return data.replace(b'":', b'": 5, "doubled":', 1) if act < 0.9 else bytes_in


def damaged(path, rng):
    data = path.read_bytes()
    if path.suffix not in ('.json', '.jsonl') or rng.random() < 0.25:
        return damaged_text(data, rng)
    if path.suffix == '.json':
        return json.dumps(damaged_value(json.loads(data), rng)).encode()
    rows = [json.loads(line) for line in data.splitlines() if line.strip()]
    i = rng.randrange(len(rows))
    rows[i] = damaged_value(rows[i], rng)
    return ''.join(json.dumps(r) + '\n' for r in rows).encode()


# --- who reads what

OURS = str(Path(cli.__file__).parents[1])


def is_ours(e):
    "Did our code raise it, or does it name its file? Then it is a sentence; Python's own words are none"
    last = traceback.extract_tb(e.__traceback__)[-1]
    if getattr(e, 'filename', None):
        return True
    return last.filename.startswith(OURS) and 'raise ' in last.line


def told(e, sentence=cli._sentence):
    "What `main` says of `e`, which it must not say of errors that are not ours"
    if not is_ours(e):
        raise AssertionError(str(e)) from e
    return sentence(e)



def quietly(*words):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            status = cli.main(list(map(str, words)))
        except SystemExit as e:
            status = e.code
    lines = said.getvalue().splitlines()
    assert not status or len(lines) == 1, f'{status}: {said.getvalue()}'
    return status


def inspect(path, *more):
    return lambda: quietly('inspect', path, *more)


def export(path, fmt, out):
    return lambda: quietly('export', path, '--format', fmt, '--output', out)


def readers_of(name, here):
    "What is called for the document `name`"
    others = dict(
        proof=lambda: damaged_proof(here, name),
        sessions=lambda: quietly('harvest', here / name, '--output', here / 'out/t.jsonl'),
        tasks=lambda: _load_tasks(here / name),
    )
    if name.split('/')[0] in others:
        return [others[name.split('/')[0]]]
    file, out = here / name, here / 'out'
    top = name.split('/')[0]
    calls = [inspect(file)]
    if top in ('skillrl.json', 'official.json', 'krill.json'):
        calls += [inspect(file, '--find', 'a'), inspect(file, here / 'skillrl.json')]
        calls += [export(file, fmt, out / fmt) for fmt in ('skillrl', 'official', 'krill')]
    if top in ('versions', 'packages'):
        calls += [
            inspect(here / top),
            export(here / top, 'skillrl', out / 'bank'),
        ]
    if 'evolution' in name:

        def rows():
            return [checked_round(r) for r in JsonlLog(file).read([])]

        calls += [lambda: repr(evolution_table(rows())), lambda: list(map(round_text, rows()))]
    if 'episodes' in name:
        calls += [lambda: quietly('distill', '--trajectories', file, '--output', out / 'b.json')]
    if top == 'memories.json':
        calls += [lambda: quietly('distill', '--trajectories', file, '--output', out / 'b.json')]
    if top == 'questions.jsonl':
        calls += [
            lambda: quietly('optimize', '--questions', file, '--policy-model', 'a', '--policy-url', 'b')
        ]
    if top == 'config.json':
        calls += [lambda: quietly('distill', '--config', file, '--trajectories', here / 'none.json')]
    return calls + {'run': run_viewers, 'opt': opt_viewers}.get(top, lambda _: [])(here / top)


def run_viewers(run):
    parts = [lambda make=make: make(run) for name, make in _SECTIONS.items() if name != 'Learning']
    return [inspect(run), lambda: page(run), lambda: SkillBank.load(run / 'bank/s'), *parts]


def opt_viewers(run):
    return [inspect(run), lambda: page(run), lambda: finals(run)]


def page(run):
    "The page that follows a run, without its pictures"
    with (
        patch('skillrl.viewers.report.figure_html', lambda fig, label: ''),
        patch('skillrl.viewers.watch.figure_html', lambda fig, label: ''),
    ):
        return _RunPage(run).html()


# --- all of it


def tried(call):
    try:
        status = call()
        return 'refused' if status.__class__ is int and status else 'shown', ''
    except SENTENCES as e:
        return ('refused', '') if is_ours(e) else ('TRACEBACK', traceback.format_exc())
    except BaseException:
        return 'TRACEBACK', traceback.format_exc()


def place(error):
    "The line of ours that a traceback comes from"
    ours = [line for line in error.splitlines() if OURS in line and 'cli/main.py' not in line][-1:]
    return ours[0] if ours else error


def quick_main():
    "`main` with a parser that is built once, for one takes 0.2 s, and with an eye on what it says"
    return patch.multiple(cli, parser=functools.cache(cli.parser), _sentence=told)


def fuzz(documents, seed, here):
    "Counts of (kind, outcome), and the tracebacks"
    with quick_main():
        return _fuzz(documents, seed, here)


def _fuzz(documents, seed, here):
    lay_out(here)
    names = sorted(
        str(p.relative_to(here))
        for p in here.rglob('*')
        if p.suffix in ('.json', '.jsonl', '.md')
        and p.is_file()
        and not {'policy', 'whole', 'outputs'} & {*p.parts}
    )
    counts, wrong = Counter(), {}
    for n in range(documents):
        name, rng = names[n % len(names)], random.Random(f'{seed} {n}')
        path = here / name
        valid = path.read_bytes()
        path.write_bytes(damaged(path, rng))
        for call in readers_of(name, here):
            outcome, error = tried(call)
            counts[name, outcome] += 1
            if error:
                wrong.setdefault(place(error), (n, name, error))
        path.write_bytes(valid)
        shutil.rmtree(here / 'out', ignore_errors=True)
    return counts, wrong


def table(counts):
    outcomes = 'shown', 'refused', 'TRACEBACK'
    rows = [[name, *(counts[name, o] for o in outcomes)] for name in sorted({name for name, _ in counts})]
    return Table(['document', *outcomes], rows)


def run(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument('--documents', type=int, default=5000)
    p.add_argument('--seed', type=int, default=0)
    args = p.parse_args(argv)
    with TemporaryDirectory() as folder:
        counts, wrong = fuzz(args.documents, args.seed, Path(folder))
    print(table(counts))
    for n, name, error in wrong.values():
        print(f'\ndocument {n} of seed {args.seed}, {name}:\n{error}')
    print(
        f'\n{args.documents} documents, {sum(counts.values())} readings, {len(wrong)} different tracebacks'
    )
    return int(bool(wrong))


if __name__ == '__main__':
    sys.exit(run())
