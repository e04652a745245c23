"""How fast is the ALFWorld engine, and can the official games be won? `python benchmarks/envs.py --real DIR`

DIR holds split folders of official games (default `$ALFWORLD_DATA`). Loads every game, wins each with the
expert, then times random play on one core. Exits with 1 if a game fails or a target is missed."""
import argparse, importlib, os, random, sys, time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from skillrl.envs.alfworld.engine import AlfworldEnv
from skillrl.envs.alfworld.expert import play_expert
from skillrl.envs.alfworld.world import find_games, load_game

STEPS_PER_S, RESET_MS = 20_000, 1.
OTHERS = dict(webshop='webshop_speed', search='search_speed') # World → module that measures it
CHEAP = 'go', 'look', 'examine', 'inventory', 'help' # Commands that change nothing in the house

def load(folder):
    "Games below `folder`, and how many could not be read"
    games, broken = [], []
    start = time.process_time()
    for path in find_games(folder):
        try:
            games.append(load_game(path))
        except ValueError as e:
            broken.append(str(e))
    spent = time.process_time() - start
    each = 1e3*spent/max(len(games), 1)
    print(f'loaded {len(games)} games in {spent:.2f} s ({each:.2f} ms each), {len(broken)} refused')
    for reason in broken[:5]:
        print('  ' + reason)
    return games, len(broken)

def win(games, style):
    "How many games the expert wins"
    won, lengths = Counter(), Counter()
    for game in games:
        played = play_expert(game, verb_style=style)
        won[game.category] += played.success
        lengths[game.category] += len(played)
    total = Counter(game.category for game in games)
    shown = [f'{c} {won[c]}/{n} (mean length {lengths[c]/n:.1f})' for c, n in sorted(total.items())]
    print(f"expert ({style}): won {won.total()} of {len(games)}: {', '.join(shown)}")
    return won.total()

def choose(commands, rng):
    "A random command; half of the time one that changes the house, for walking and looking are cheap"
    changing = [c for c in commands if not c.startswith(CHEAP)]
    if changing and rng.random() < .5:
        return rng.choice(changing)
    return rng.choice(commands)

def speed(games, style, steps):
    "Steps per second of random play, admissible list included, and milliseconds per reset"
    env, rng = AlfworldEnv(games, style), random.Random(0)
    n = resets = 0
    stepping = resetting = 0.
    while n < steps:
        start = time.process_time()
        _, info = env.reset()
        resetting += time.process_time() - start
        resets += 1
        done = False
        while not done:
            action = choose(info['admissible_commands'], rng)
            start = time.process_time()
            _, _, terminated, truncated, info = env.step(action)
            stepping += time.process_time() - start
            n += 1
            done = terminated or truncated
    rate, reset = n/stepping, 1e3*resetting/resets
    print(f'random play ({style}): {rate:,.0f} steps/s incl. admissible list on one core '
          f'(target {STEPS_PER_S:,}), reset {reset:.3f} ms (target {RESET_MS:g}), {n:,} steps')
    return rate, reset

def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument('--real', default=os.environ.get('ALFWORLD_DATA'), help='folder with official games')
    p.add_argument('--steps', type=int, default=50_000, help='steps of random play to time')
    p.add_argument('--world', default='alfworld', choices=('alfworld', *OTHERS), help='which world to time')
    args = p.parse_args()
    if args.world in OTHERS:
        return importlib.import_module(OTHERS[args.world]).main()
    if not args.real or not Path(args.real).is_dir():
        sys.exit(f'--real {args.real!r} is not a folder: name one, or set ALFWORLD_DATA')
    games, broken = load(args.real)
    if not games:
        sys.exit(f'--real {args.real!r} holds no game.tw-pddl that can be won')
    ok = not broken
    for style in ('move', 'put'):
        ok &= win(games, style) == len(games)
        rate, reset = speed(games, style, args.steps)
        ok &= rate >= STEPS_PER_S and reset <= RESET_MS
    print('all targets met' if ok else 'a target was missed')
    return 0 if ok else 1

if __name__ == '__main__':
    sys.exit(main())
