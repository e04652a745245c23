"""Does our engine say what the real one said?

    python benchmarks/conformance.py alfworld FILE…
    python benchmarks/conformance.py webshop FOLDER…

`alfworld`: a file holds recorded games, one JSON object a line (gzip or plain): `pddl_problem`, `task` and a
`transcript` whose rows are `cmd` (null for the reset), `obs`, `admissible`, `won`, `reward`, `done`.
`webshop`: a folder holds a catalogue in the three files of the benchmark, and beside them what was recorded
on it: any of `reward_cases.json`, `episodes.json`, `search.json`, `search_env_cases.json`.
Prints cases and mismatches; any mismatch exits with 1."""
import gzip, json, sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from skillrl.envs.alfworld.engine import AlfworldEnv
from skillrl.envs.alfworld.world import _game_from_pddl

def rows_of(path):
    "Recorded games of a file"
    open_file = gzip.open if str(path).endswith('.gz') else open
    with open_file(path, 'rt', encoding='utf-8') as f:
        yield from (json.loads(line) for line in f if line.strip())

def plays_on(rows):
    """Was the bare engine driven beyond the end of the episode, without a limit?

    Most recorders stop or freeze at the end."""
    end = next((i for i, row in enumerate(rows) if row.get('done')), len(rows))
    frozen = [(row['obs'], row.get('admissible')) for row in rows[end:]]
    moved = any(row != frozen[0] for row in frozen)
    return moved or any(not row.get('done') for row in rows[51:])

def play(game, rows):
    "What our engine answers to the commands of `rows`, in the same shape"
    commands = rows[0].get('admissible', ['help'])
    style = 'move' if 'help' in commands else 'put'  # `help` came with the verb `move`
    bare = plays_on(rows)
    env = AlfworldEnv([game], style, max_steps=10**9 if bare else 50)
    for row in rows:
        reward, done = 0, False
        if row['cmd'] is None:
            obs, info = env.reset(options={'game': 0})
        else:
            if bare:
                env._last = None
            obs, reward, terminated, truncated, info = env.step(row['cmd'])
            done = terminated or truncated
        yield dict(obs=obs, admissible=info['admissible_commands'], won=info['won'], reward=reward, done=done)

def show(place, real, ours, wrong):
    "Print the fields that differ in one row"
    print(f"{place} {real['cmd']!r}")
    for k in wrong:
        print(f'  {k}: real {real[k]!r}\n  {k}: ours {ours[k]!r}')

def alfworld(paths, shown=10):
    "Replay every game of `paths`; number of mismatches"
    games = steps = bad = 0
    fields = Counter()
    for path in paths:
        for recorded in rows_of(path):
            games += 1
            rows = recorded['transcript']
            answers = play(_game_from_pddl(recorded, recorded['id']), rows)
            for i, (real, ours) in enumerate(zip(rows, answers)):
                steps += 1
                wrong = [k for k in ours if k in real and real[k] != ours[k]]
                bad += bool(wrong)
                fields.update(wrong)
                if wrong and bad <= shown:
                    show(f"{path} {recorded['id']} row {i}", real, ours, wrong)
    found = dict(fields) if bad else ''
    print(f'alfworld: {games} games, {steps} steps, {bad} mismatches {found}'.rstrip())
    return bad if steps else 1

def webshop(folders):
    "Check what was recorded in `folders`; number of mismatches, 1 if nothing was"
    from webshop_cases import CASES
    tried = bad = 0
    for folder in map(Path, folders):
        for name, checks in CASES.items():
            if not (folder/name).is_file():
                continue
            recorded = json.loads((folder/name).read_text('utf-8'))
            cases = [case for check in checks for case in check(folder, recorded)]
            wrong = [case for case in cases if case.got != case.expected]
            for case in wrong[:10]:
                print(f'{folder/name} {case.name}\n  real {case.expected!r}\n  ours {case.got!r}')
            print(f'webshop: {name}: {len(cases)} cases, {len(wrong)} mismatches')
            tried += len(cases)
            bad += len(wrong)
    return bad if tried else 1

if __name__ == '__main__':
    kinds = dict(alfworld=alfworld, webshop=webshop)
    if len(sys.argv) < 3 or sys.argv[1] not in kinds:
        sys.exit("usage: conformance.py alfworld FILE…, or conformance.py webshop FOLDER…")
    folders = sys.argv[1] == 'webshop'
    missing = [p for p in sys.argv[2:] if not (Path(p).is_dir() if folders else Path(p).is_file())]
    if missing:
        what = 'a folder: name one that holds a catalogue and recorded cases' if folders else (
            'a file: name recorded games (.jsonl or .jsonl.gz)')
        sys.exit(f'{missing[0]} is not {what}')
    sys.exit(1 if kinds[sys.argv[1]](sys.argv[2:]) else 0)
