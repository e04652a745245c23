"""Does our engine say what the real one said? `python benchmarks/conformance.py alfworld FILE…`

A file holds recorded games, one JSON object a line (gzip or plain): `pddl_problem`, `task` and a `transcript` whose rows are
`cmd` (null for the reset), `obs`, `admissible`, `won`, `reward`, `done`. Prints steps and mismatches; any mismatch exits with 1."""
import gzip, json, sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from skillrl.envs.alfworld.engine import AlfworldEnv
from skillrl.envs.alfworld.files import game_from_pddl

def rows_of(path):
    "Recorded games of a file"
    with (gzip.open if str(path).endswith('.gz') else open)(path, 'rt', encoding='utf-8') as f:
        yield from (json.loads(line) for line in f if line.strip())

def play(game, rows):
    "What our engine answers to the commands of `rows`, in the same shape"
    style = 'move' if 'help' in rows[0].get('admissible', ['help']) else 'put'  # `help` came with the verb `move`
    end = next((i for i, r in enumerate(rows) if r.get('done')), len(rows))
    same = lambda r: (r['obs'], r.get('admissible')) == (rows[end]['obs'], rows[end].get('admissible'))
    # Recorders differ: most stop or freeze at the end of an episode, one that drives the bare engine plays on, without a limit
    bare = not all(map(same, rows[end:])) or any(not r.get('done') for r in rows[51:])
    env = AlfworldEnv([game], style, max_steps=10**9 if bare else 50)
    for i, r in enumerate(rows):
        if r['cmd'] is None:
            obs, info = env.reset(options={'game': 0})
            yield dict(obs=obs, admissible=info['admissible_commands'], won=info['won'], reward=0, done=False)
        else:
            if bare: env._last = None
            obs, reward, terminated, truncated, info = env.step(r['cmd'])
            done = terminated or truncated
            yield dict(obs=obs, admissible=info['admissible_commands'], won=info['won'], reward=reward, done=done)

def alfworld(paths, show=10):
    "Replay every game of `paths`; number of mismatches"
    games = steps = bad = 0
    where = Counter()
    for path in paths:
        for row in rows_of(path):
            games += 1
            rows = row['transcript']
            for i, (real, ours) in enumerate(zip(rows, play(game_from_pddl(row, row['id']), rows))):
                steps += 1
                wrong = [k for k in ours if k in real and real[k] != ours[k]]
                bad += bool(wrong)
                where.update(wrong)
                if wrong and bad <= show:
                    print(f"{path} {row['id']} row {i} {real['cmd']!r}")
                    for k in wrong: print(f'  {k}: real {real[k]!r}\n  {k}: ours {ours[k]!r}')
    print(f"alfworld: {games} games, {steps} steps, {bad} mismatches {dict(where) if bad else ''}".rstrip())
    return bad if steps else 1

if __name__ == '__main__':
    kinds = dict(alfworld=alfworld)
    if len(sys.argv) < 3 or sys.argv[1] not in kinds: sys.exit(f"usage: conformance.py {'|'.join(kinds)} FILE…")
    missing = [p for p in sys.argv[2:] if not Path(p).is_file()]
    if missing: sys.exit(f"{missing[0]} is not a file: name recorded games (.jsonl or .jsonl.gz)")
    sys.exit(1 if kinds[sys.argv[1]](sys.argv[2:]) else 0)
