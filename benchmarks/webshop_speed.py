"""How fast and how large is a generated shop? `python benchmarks/envs.py --world webshop`

Makes a shop, indexes it, plays requests with the expert, who has the shop's skills, and by chance on one
core, and times searches. Exits with 1 if a target is missed. Each size runs in a process of its own, so that
memory is its own."""
import random
import resource
import subprocess
import sys
import time
from dataclasses import dataclass

@dataclass(frozen=True)
class Target:
    "What must hold for a number of products"
    steps_per_s: float = 0.
    load_s: float = float('inf')
    search_ms: float = float('inf')
    peak_mb: float = float('inf')
    expert: float = .98  # Share of requests won, at least
    chance: float = .15  # At most

TARGETS = {
    1_000: Target(steps_per_s=10_000, load_s=.5, peak_mb=60),
    100_000: Target(search_ms=5, peak_mb=500)}
STEPS = 15  # Of an episode

def spent(work):
    "Seconds of this process that `work` takes, and what it gives"
    start = time.process_time()
    result = work()
    return time.process_time() - start, result

def play(shop, goals, choose):
    "Share of `goals` won, and steps a second; `choose` makes the player of an engine"
    from skillrl.worlds.webshop.engine import ShopEngine
    won = n = 0
    seconds = 0.
    for goal in goals:
        engine = ShopEngine(shop, goal)
        engine.reset()
        act = choose(engine)
        for _ in range(STEPS):
            command = act()
            took, text = spent(lambda: (engine.step(command), engine.admissible())[0])
            act.see(command, text)
            seconds += took
            n += 1
            if engine.done:
                break
        won += engine.won
    return won/len(goals), n/seconds

class Expert:
    "The expert, who knows the shop"
    def __init__(self, engine, lines):
        from skillrl.worlds.webshop.expert import ShopExpert
        from skillrl.worlds.webshop.memory import ShopMemory
        self.memory, self.lines = ShopMemory(engine.text()), lines
        self.expert = ShopExpert(engine.goal.task, 0)

    def __call__(self):
        return self.expert.act([], self.memory, self.lines)[1]

    def see(self, command, text):
        self.memory.see(command, text)

class Chance:
    "Any command, and a search for the request"
    def __init__(self, engine, rng):
        self.engine, self.rng = engine, rng

    def __call__(self):
        command = self.rng.choice(self.engine.admissible())
        return f'search[{self.engine.goal.task}]' if command.startswith('search') else command

    def see(self, command, text):
        pass

def measure(n):
    "Measure a shop of `n` products; were its targets met?"
    from skillrl.worlds.webshop.shop import conventions, generate_shop
    target, rng = TARGETS[n], random.Random(0)
    load, shop = spent(lambda: generate_shop('bench', n))
    index, _ = spent(lambda: shop.catalogue.index)
    goals = [shop.goals[rng.randrange(len(shop.goals))] for _ in range(300)]
    lines = conventions('bench').sentences()
    search, _ = spent(lambda: [shop.catalogue.search(goal.task) for goal in goals])
    expert, _ = play(shop, goals, lambda engine: Expert(engine, lines))
    chance, rate = play(shop, goals, lambda engine: Chance(engine, rng))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/1024
    ms = 1e3*search/len(goals)
    print(f'{n:,} products, {len(shop.goals):,} goals: made in {load:.2f} s and indexed in {index:.2f} s, '
          f'{ms:.2f} ms a search, {rate:,.0f} steps/s, process at most {peak:.0f} MB; '
          f'expert wins {expert:.3f}, chance {chance:.3f}')
    return (rate >= target.steps_per_s and load + index <= target.load_s and ms <= target.search_ms
            and peak <= target.peak_mb and expert >= target.expert and chance < target.chance)

def main():
    "Measure all sizes; 0 if every target was met"
    met = [subprocess.run([sys.executable, __file__, str(n)]).returncode == 0 for n in TARGETS]
    print('all targets met' if all(met) else 'a target was missed')
    return 0 if all(met) else 1

if __name__ == '__main__':
    sys.exit(0 if measure(int(sys.argv[1])) else 1)
