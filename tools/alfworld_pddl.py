"""Any game of ours as a planning problem, which the original ALFWorld engine reads.

That engine plays planning problems: ids, facts that hold at the start, and a goal in logic.
`skillrl.envs.alfworld.world` reads them; this file writes them, so that both engines can be given the same
game and be compared. Upper and lower case are the same in a planning problem, so types keep their names."""
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from skillrl.envs.alfworld.world import _ABILITY_FACTS, _STATE_FACTS, _printed_names
from skillrl.envs.alfworld.memory import kind
from skillrl.envs.alfworld.scene import STATES, TOOLS, Game, Goal, Scene

# ---- ids ----

# The engine sorts all ids and hands the numbers out from the top, so an id that counts places in our lists
# gets the number that the list has. A basin's id is the sink's, with *basin* behind it. The name decides, not
# the type: one official bathroom has a *bathtubbasin 1* that counts as a sink's basin.
_BASIN = 'basin'

def _numbered_id(type, n):
    if type.endswith(_BASIN):
        return f'{type.removesuffix(_BASIN)}_bar_{n:04}_bar_{type}'
    return f'{type}_bar_{n:04}'

def problem_ids(
    scene:Scene,
)->dict[str, str]: # Printed name → id; ValueError if the engine would print another name
    "Ids for the receptacles and things of a scene"
    ids = {}
    for n, listed in enumerate([*scene.receptacles, *scene.things]):
        ids[listed.name] = _numbered_id(kind(listed.name), n)
    printed = _printed_names(ids.values())
    for name, id in ids.items():
        if printed[id] != name:
            raise ValueError(f'the original engine would print {printed[id]!r} for {name!r}: number the '
                             'things of each type from 1 up, and list the highest number first')
    return ids

def location_ids(
    scene:Scene,
)->dict[int, str]: # Location → id
    "Ids for the places where one can stand"
    found = {scene.start}
    found.update(r.location for r in scene.receptacles)
    for thing in scene.things:
        found.update(thing.spots)
    downwards = sorted(found, reverse=True)
    return {at: _numbered_id('loc', n) for n, at in enumerate(downwards)}

# ---- facts ----

_ABLE = {word: predicate for predicate, word in _ABILITY_FACTS.items()}
_IS = {word: predicate for predicate, word in _STATE_FACTS.items()}

def _type(name):
    return f'{name}type'

def _receptacle_facts(scene, ids, places):
    for r in scene.receptacles:
        id = ids[r.name]
        yield 'receptacletype', id, _type(r.type)
        yield 'receptacleatlocation', id, places[r.location]
        if r.openable:
            yield 'openable', id
        if r.open:
            yield 'opened', id

def _thing_facts(scene, ids, places):
    for thing in scene.things:
        id = ids[thing.name]
        yield 'objecttype', id, _type(thing.type)
        for word in sorted(thing.can):
            yield _ABLE[word], id
        for word in sorted(thing.state):
            yield _IS[word], id
        for name in thing.places:
            yield 'inreceptacle', id, ids[name]
        for at in thing.spots:
            yield 'objectatlocation', id, places[at]
        for name in thing.inside:
            yield 'inreceptacleobject', ids[name], id

def scene_facts(scene:Scene)->Iterator[tuple]: # Predicate and its arguments; ValueError as in `problem_ids`
    "Everything that holds at the start"
    ids, places = problem_ids(scene), location_ids(scene)
    yield from _receptacle_facts(scene, ids, places)
    yield from _thing_facts(scene, ids, places)
    for receptacle, thing in sorted(scene.holds):
        yield 'cancontain', _type(receptacle), _type(thing)
    yield 'atlocation', 'agent1', places[scene.start]

# ---- the goal ----

_STORED = '''(exists (?r - receptacle) (exists (?o - object) (and {treated}
    (inreceptacle ?o ?r) (objecttype ?o {thing}) (receptacletype ?r {target}))))'''
_PAIR = '''(exists (?r - receptacle) (exists (?o1 - object) (and
    (objecttype ?o1 {thing}) (receptacletype ?r {target}) (inreceptacle ?o1 ?r)
    (exists (?o2 - object) (and (not (= ?o1 ?o2))
        (objecttype ?o2 {thing}) (receptacletype ?r {target}) (inreceptacle ?o2 ?r))))))'''
_LIT = '''(exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and
    (objecttype ?ot {target}) (toggleable ?ot) (istoggled ?ot)
    (receptacleatlocation ?r ?l) (atlocation ?a ?l) (inreceptacle ?ot ?r)))
  (exists (?o - object ?a - agent) (and (objecttype ?o {thing}) (holds ?a ?o)))'''
_SHAPES = dict(look=_LIT, pick_two=_PAIR)

def goal_formula(goal:Goal)->str:
    "A goal in the words of a planning problem"
    treated = ''
    if goal.category in TOOLS:
        treated = f'({_ABLE[goal.category]} ?o) ({_IS[STATES[goal.category]]} ?o)'
    shape = _SHAPES.get(goal.category, _STORED)
    filled = shape.format(treated=treated, thing=_type(goal.thing), target=_type(goal.target))
    return f'(and {filled})'

# ---- the problem ----

# Types that the rules name, which must be declared even in a room that has none of them
_IN_THE_RULES = dict(rtype=('sinkbasin', 'microwave', 'fridge'), otype=('knife', 'butterknife'))

def _types(scene): # Group of types → their names
    receptacles = {r.type for r in scene.receptacles} | {r for r, _ in scene.holds}
    things = {t.type for t in scene.things} | {t for _, t in scene.holds}
    found = dict(rtype=receptacles, otype=things)
    return {group: sorted(found[group].union(named)) for group, named in _IN_THE_RULES.items()}

def _declared(names:Iterable[str], group):
    return [f'{name} - {group}' for name in names]

def _declarations(scene):
    ids = problem_ids(scene)
    lines = _declared(['agent1'], 'agent')
    for group, names in _types(scene).items():
        lines += _declared(map(_type, names), group)
    lines += _declared([ids[t.name] for t in scene.things], 'object')
    lines += _declared([ids[r.name] for r in scene.receptacles], 'receptacle')
    return lines + _declared(location_ids(scene).values(), 'location')

def pddl_problem(game:Game)->str: # ValueError as in `problem_ids`
    "Planning problem of a game, as an official file holds one"
    objects = '\n    '.join(_declarations(game.scene))
    facts = '\n    '.join(f'({" ".join(fact)})' for fact in scene_facts(game.scene))
    return (f'(define (problem game)\n  (:domain alfred)\n  (:objects\n    {objects})\n'
            f'  (:init\n    {facts})\n  (:goal {goal_formula(game.goal)}))\n')

def write_game(
    game:Game,
    folder:Path,
    **more, # Further fields, such as `solvable`
)->None:    # ValueError as in `problem_ids`
    "Write `game.tw-pddl` into `folder`"
    folder.mkdir(parents=True, exist_ok=True)
    fields = dict(pddl_problem=pddl_problem(game), task=game.task, **more)
    (folder/'game.tw-pddl').write_text(json.dumps(fields))
