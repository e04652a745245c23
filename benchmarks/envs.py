"""How fast is the ALFWorld engine, and can the real games be won? `python benchmarks/envs.py --real DIR`

DIR holds split folders of official games (default `$ALFWORLD_DATA`). Loads every game, wins each with the oracle through the
environment, then times random play on one core. Exits with 1 if a game fails or a target is missed."""
import argparse, os, random, sys, time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from skillrl.envs.alfworld.engine import AlfworldEnv
from skillrl.envs.alfworld.files import Unsolvable, find_games, load_game, oracle

STEPS_PER_S, RESET_MS = 20_000, 1.

def load(folder):
    "Games below `folder`, and what went wrong"
    games, marked, broken, spent = [], 0, [], time.process_time()
    for path in find_games(folder):
        try: games.append(load_game(path))
        except Unsolvable: marked += 1
        except ValueError as e: broken.append(str(e))
    spent = time.process_time() - spent
    print(f"loaded {len(games)} games in {spent:.2f} s ({1e3*spent/max(len(games), 1):.2f} ms each, oracle check included), "
          f"{marked} not solvable, {len(broken)} broken")
    for e in broken[:5]: print('  ' + e)
    return games, len(broken)

def win(games, style):
    "How many games the oracle's plan wins, step by step through the environment"
    env, won, lengths = AlfworldEnv(games, style), Counter(), Counter()
    for g in games:
        env.reset(options={'game': g})
        plan = oracle(g, style)
        for action in plan: _, reward, done, *_ = env.step(action)
        won[g.category] += done and reward == 1
        lengths[g.category] += len(plan)
    total = Counter(g.category for g in games)
    print(f"oracle ({style}): won {sum(won.values())} of {len(games)}: " +
          ', '.join(f'{k} {won[k]}/{n} (mean plan {lengths[k]/n:.1f})' for k, n in sorted(total.items())))
    return sum(won.values())

def speed(games, style, steps):
    "Steps per second of random play, admissible list included, and milliseconds per reset"
    env, rng, n, resets, t_step, t_reset = AlfworldEnv(games, style), random.Random(0), 0, 0, 0., 0.
    while n < steps:
        t = time.process_time()
        _, info = env.reset()
        t_reset += time.process_time() - t
        resets += 1
        done = False
        while not done:
            # Walking and looking are cheap, so half of the steps change the house where that is possible
            cmds = info['admissible_commands']
            busy = [c for c in cmds if not c.startswith(('go', 'look', 'examine', 'inventory', 'help'))]
            action = rng.choice(busy if busy and rng.random() < .5 else cmds)
            t = time.process_time()
            _, _, terminated, truncated, info = env.step(action)
            t_step += time.process_time() - t
            n += 1
            done = terminated or truncated
    rate, reset = n/t_step, 1e3*t_reset/resets
    print(f"random play ({style}): {rate:,.0f} steps/s incl. admissible list on one core (target {STEPS_PER_S:,}), "
          f"reset {reset:.3f} ms (target {RESET_MS:g}), {n:,} steps")
    return rate, reset

if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument('--real', default=os.environ.get('ALFWORLD_DATA'), help='folder that holds split folders of official games')
    p.add_argument('--steps', type=int, default=50_000, help='steps of random play to time')
    a = p.parse_args()
    if not a.real or not Path(a.real).is_dir(): sys.exit(f"--real {a.real!r} is not a folder: name one, or set ALFWORLD_DATA")
    games, broken = load(a.real)
    if not games: sys.exit(f"--real {a.real!r} holds no game.tw-pddl that can be won")
    ok = not broken
    for style in ('move', 'put'):
        ok &= win(games, style) == len(games)
        rate, reset = speed(games, style, a.steps)
        ok &= rate >= STEPS_PER_S and reset <= RESET_MS
    print('all targets met' if ok else 'a target was missed')
    sys.exit(0 if ok else 1)
