"""How well the router and the readers do on the official SkillRL data: `SKILLRL_REAL_DATA=DIR python benchmarks/retrieval.py`

DIR holds the folders alfworld, webshop and search of the official repository's `memory_data`. Exits with 1 when a target is missed."""
import os, sys, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from skillrl.skills.bank import SkillBank
from skillrl.skills.retrieval import Retriever, canonical, route
from skillrl.trajectory import load_memories

MEMORIES = {'alfworld/generated_memories_alfworld_total.json': 223, 'webshop/generated_memories_webshop_100.json': 100,
            'webshop/generated_memories_webshop_101-200.json': 100, 'search/generated_memories_search.json': 196}
BANKS = {'alfworld/claude_style_skills.json': dict(general=12, pick_and_place=5, look_at_obj_in_light=5, clean=6, heat=5, cool=5, examine=6, mistakes=11),
         'webshop/claude_style_skills.json': dict(general=15, apparel=6, footwear=5, home_decor=6, electronics=6, accessories=5, beauty_health=5,
                                                  other=6, mistakes=12),
         'search/claude_style_skills_search.json': dict(general=10, direct_retrieval=5, multi_hop_reasoning=5, entity_attribute_lookup=5, comparison=5,
                                                        mistakes=11)}
ROUTED = 222

def per_goal(retriever, goals):
    "Milliseconds of CPU time a goal takes"
    start = time.process_time()
    for g in goals: retriever.retrieve(g)
    return 1e3*(time.process_time() - start)/len(goals)

def main(root):
    missed = []
    def say(ok, line):
        print(f'{"ok    " if ok else "MISSED"} {line}')
        if not ok: missed.append(line)

    memories = {name: load_memories(root/name) for name in MEMORIES}
    for name, n in MEMORIES.items(): say(len(memories[name]) == n, f'{name}: {len(memories[name])} of {n} memories')
    say(sum(map(len, memories.values())) == 619, f'{sum(map(len, memories.values()))} of 619 memories in all')

    alf = memories['alfworld/generated_memories_alfworld_total.json']
    wrong = [m for m in alf if route(m.goal) != m.category]
    right = len(alf) - len(wrong)
    say(right >= ROUTED, f'router: {right}/{len(alf)} get the type their description records (target {ROUTED})')
    for m in wrong: print(f'         {m.goal!r}: recorded as {m.category or "nothing"}, routed to {route(m.goal)}')

    for name, counts in BANKS.items():
        bank = SkillBank.load(root/name)
        say(bank.counts() == counts, f'{name}: {bank}')
        goals = sorted({m.goal for f, ms in memories.items() if f.split('/')[0] == name.split('/')[0] for m in ms})
        r = Retriever(bank)
        ms, again = per_goal(r, goals), per_goal(r, goals)
        fit = [canonical(o.category) == r.shelf(f.category) for f in map(r.retrieve, goals) for o in f.task_specific]
        print(f'       {len(goals)} goals: {ms:.3f} ms each, {again:.4f} ms from the cache; {sum(fit)/len(fit):.3f} of the task-specific skills are of the routed kind')
    return 1 if missed else 0

if __name__ == '__main__':
    real = os.environ.get('SKILLRL_REAL_DATA')
    if not real or not Path(real).is_dir():
        print('set SKILLRL_REAL_DATA to a folder with the official memories and banks in alfworld/, webshop/ and search/', file=sys.stderr)
        sys.exit(2)
    sys.exit(main(Path(real)))
