"""What is true in a suite, which of its games want a way, and banks in which nothing is true

A placebo bank has as many sentences as the bank it is made from, of the same form, length and status: what
one sentence says of a thing, another says of it in the placebo, and no sentence holds in that suite."""
import re
from collections import defaultdict
from copy import deepcopy
from skillrl.envs.alfworld.preconditions import DECISIVE
from skillrl.envs.base import seeded
from skillrl.worlds.webshop.goals import shop_category
from skillrl.worlds.webshop.shop import conventions
from skillrl.skills.bank import Mistake
from skillrl.skills.retrieval import advice

def has_way(world, suite, game):
    "Does `suite` want a step before the one that decides `game`?"
    if world == 'alfworld':
        return DECISIVE.get(game.category) in dict(game.preconditions)
    if world == 'webshop':
        return shop_category(game.product.query) in suite.preconditions
    # A cover hides what is no year
    return any(hop.kind in suite.book.preconditions and not hop.value.isdigit() for hop in game.hops)

def true_sentences(world, suite):
    "All that skills can say of `suite` and that holds there"
    if world == 'alfworld':
        house = suite.house
        return {*map(house.hint, house.homes), *map(house.precondition, house.preconditions)}
    if world == 'webshop':
        return set(conventions(suite.name).sentences())
    habits = suite.book.habits.items()
    pages = {f'Look for {kind} in {page}.' for kind, habit in habits for page in habit.true}
    return pages | set(suite.book.hints())

# What a sentence is about; the rest is what another sentence of its form may say as well
ABOUT = (r'Look for .+? in ', r'Before (?P<kind>\w+): search (?P=kind) ', r'Before .+?: ', r'To .+?: ',
         r'Size .+? = ', r'[^=]+ = ')

def taken_apart(text):
    "The form of a sentence, what it is about and what it says of that; no form, for one that has none"
    for form in ABOUT:
        found = re.fullmatch(f'(?P<about>{form})(?P<fact>.+)[.]', text)
        if found:
            return form, found['about'], found['fact']
    return '', '', text

def facts_of(entries):
    "Form → what `entries` say of things"
    out = defaultdict(list)
    for form, _, fact in map(taken_apart, map(advice, entries)):
        out[form].append(fact)
    return out

def say(entry, text):
    "Let `entry` say `text`, and carry no fact beside it"
    if isinstance(entry, Mistake):
        entry.how_to_avoid = text
    else:
        entry.principle, entry.fact = text, {}

def backwards(text):
    return ' '.join(reversed(text.split()))

def placebo(bank, true, elsewhere, rng):
    """A copy of `bank` in which each sentence says what another one of its form does, and none is in `true`:
    what `elsewhere` says, by form, where the bank itself has nothing false left"""
    new, avoid = deepcopy(bank), true | set(map(advice, bank.items()))
    left = {form: rng.sample(facts, len(facts)) for form, facts in facts_of(bank.items()).items()}
    spare = {form: rng.sample(facts, len(facts)) for form, facts in elsewhere.items()}
    for entry in new.items():
        form, about, _ = taken_apart(advice(entry))
        known = [*left[form], *spare.get(form, ())] if form else []
        false = [fact for fact in known if f'{about}{fact}.' not in avoid]
        if false and false[0] in left[form]:
            left[form].remove(false[0])
        say(entry, f'{about}{false[0]}.' if false else backwards(advice(entry)))
    return new

def placebos(world, suites, banks):
    "Name of a suite → a placebo of its bank"
    entries = [entry for suite in suites for entry in banks[suite.name].items()]
    methods = {text for text in map(advice, entries) if text.startswith('To ')} # True everywhere
    return {suite.name: placebo(banks[suite.name], true_sentences(world, suite) | methods, facts_of(entries),
                                seeded('placebo', suite.name)) for suite in suites}
