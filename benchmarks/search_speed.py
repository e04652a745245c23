"""How fast and how hard is a generated encyclopedia? `python benchmarks/envs.py --world search`

Makes encyclopedias, indexes them, and answers their questions with the expert, who has the encyclopedia's
skills, and by chance on one core. Exits with 1 if a target is missed."""
import random
import sys
from webshop_speed import spent

TURNS_PER_S = 5_000
EXPERT, CHANCE = .98, .15 # Share of questions won: at least, less than
QUESTIONS = 200           # Unseen, of all books together
BOOKS = 4
ROUNDS = 5                # By chance, of each question

def play(question, library, choose):
    "Was `question` answered, turns taken, and seconds that the engine spent; `choose` makes the player"
    from skillrl.worlds.search.engine import SearchEngine
    from skillrl.worlds.search.memory import SearchMemory, offered
    engine = SearchEngine(question, library, offers=offered)
    memory = SearchMemory(engine.reset())
    act = choose(question)
    can, seconds = engine.admissible(), 0.
    while not engine.done:
        action = act(can, memory)
        took, (seen, can) = spent(lambda: (engine.step(action), engine.admissible()))
        memory.see(action, seen)
        seconds += took
    return engine.won, engine.turns, seconds

def measure(books):
    "Measure encyclopedias with their questions and libraries; were the targets met?"
    from skillrl.worlds.search.expert import SearchExpert
    rng = random.Random(0)
    won = dict(expert=[], chance=[])
    turns, seconds = 0, 0.
    for book, library, asked in books:
        hints = book.hints()
        def expert(question):
            one = SearchExpert(question.task, 0)
            return lambda can, memory: one.act(can, memory, hints)[1]
        def chance(question):
            return lambda can, memory: rng.choice(can)
        tries = [('expert', expert)] + [('chance', chance)]*ROUNDS
        for question in asked:
            for name, choose in tries:
                right, n, took = play(question, library, choose)
                won[name].append(right)
                turns += n
                seconds += took
    rate = turns/seconds
    shares = {name: sum(tries)/len(tries) for name, tries in won.items()}
    print(f'{rate:,.0f} turns/s with search and admissible list on one core (target {TURNS_PER_S:,}), '
          f'{turns:,} turns; expert wins {shares["expert"]:.3f} of {len(won["expert"])} unseen questions, '
          f'chance {shares["chance"]:.3f}')
    return rate >= TURNS_PER_S and shares['expert'] >= EXPERT and shares['chance'] < CHANCE

def main():
    "Measure; 0 if every target was met"
    from skillrl.worlds.search.world import _EncyclopediaSuite
    suites = [_EncyclopediaSuite(f'test-{i:03}', {}, ways=False) for i in range(BOOKS)]
    made, books = spent(lambda: [(s.book, s.library, s.games('test', QUESTIONS//BOOKS)) for s in suites])
    print(f'{len(books[0][1].documents):,} documents and {len(suites[0]):,} questions: made and indexed in '
          f'{made/BOOKS:.2f} s')
    met = measure(books)
    print('all targets met' if met else 'a target was missed')
    return 0 if met else 1

if __name__ == '__main__':
    sys.exit(main())
