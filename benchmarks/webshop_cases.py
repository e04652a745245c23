"""What was recorded on the original WebShop, compared with ours; `conformance.py webshop FOLDER` runs it.

Each function of `CASES` takes the folder and the content of one file in it, and yields cases: what they are
called, what ours gives and what the original gave."""
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from conformance_search import search_cases
from skillrl.agent.contract import parse_reply
from skillrl.worlds.bm25 import tokens
from skillrl.worlds.webshop.catalogue import load_catalogue
from skillrl.worlds.webshop.engine import Shop, ShopEngine
from skillrl.worlds.webshop.goals import Goals
from skillrl.worlds.webshop.reward import measure_purchase

class Case(NamedTuple):
    "One thing the original said"
    name: str
    got: Any
    expected: Any

@cache
def catalogue(folder: Path):
    "Catalogue beside the cases, the small one if there are both"
    return load_catalogue(folder)

# ---- the reward ----

def facts(purchase):
    "A purchase in the words of the original; options and price stand only where they were wanted"
    wishes = purchase.n
    told = dict(
        reward=purchase.reward, num_attr_matches=purchase.attributes, num_option_matches=purchase.options,
        r_type=purchase.kind.factor, query_match=purchase.kind.query_match,
        category_match=purchase.kind.category_match, title_score=purchase.kind.title_score,
        r_att=purchase.attributes/purchase.n_attributes, w_att=purchase.n_attributes/wishes,
        r_price=purchase.in_budget, w_price=1/wishes)
    if purchase.n_options:
        told |= dict(r_option=purchase.options/purchase.n_options, w_option=purchase.n_options/wishes)
    return told

def tagger(case):
    "The nouns that the case was recorded with"
    nouns = {case['product']['name']: case['product_nouns'], case['goal']['name']: case['goal_nouns']}
    return nouns.__getitem__

def reward_cases(folder: Path, recorded: dict) -> Iterator[Case]:
    "Purchases and what they were worth"
    for case in recorded['cases']:
        sold, wanted = case['product'], case['goal']
        product = SimpleNamespace(
            name=sold['name'], title=sold.get('Title', sold['name']), query=sold['query'],
            path=sold['product_category'], attributes=sold['Attributes'],
            bullets=sold.get('BulletPoints', []), description=sold.get('Description', ''))
        aim = SimpleNamespace(name=wanted['name'], query=wanted['query'], path=wanted['product_category'])
        goal = SimpleNamespace(
            product=aim, attributes=wanted['attributes'], options=wanted['goal_options'],
            price_upper=wanted['price_upper'])
        purchase = measure_purchase(product, case['options'], case['price'], goal, tagger(case))
        told = facts(purchase)
        yield Case(case['id'], {key: told.get(key) for key in case['expected']}, case['expected'])

# ---- episodes ----

def recorded_nouns(title):
    "Nouns by the stub that stood in for spaCy when episodes were recorded"
    found = re.findall(r"[A-Za-z]+(?:[.'][A-Za-z]+)*|\d+[\w.]*|\S", title)
    return [word.lower() for word in found if word[0].isalpha()]

def goal_facts(goal):
    "A goal in the words of the original"
    product = goal.product
    return dict(asin=product.asin, category=product.department, query=product.query, name=product.name,
                product_category=product.path, instruction_text=goal.task, attributes=list(goal.attributes),
                price_upper=goal.price_upper, goal_options=goal.options)

def without_weight(goal):
    "A recorded goal without its weight in a draw, which ours don't have"
    return {key: value for key, value in goal.items() if key != 'weight'}

@cache
def shop(folder: Path, human: bool, seed: int):
    "A shop as one worker of the original had it"
    found = catalogue(folder)
    return Shop(found, Goals(found, seed, human), recorded_nouns)

def goal_cases(folder, recorded):
    "Lists of goals: how many there are, the first of them, and the prices"
    for key, listed in recorded.items():
        settings = dict(pair.split('=') for pair in key.split(','))
        ours = shop(folder, settings['human'] == '1', int(settings['seed'])).goals
        yield Case(f'{key}: number of goals', len(ours), listed['n'])
        for i, goal in enumerate(listed['first']):
            yield Case(f'{key}: goal {i}', goal_facts(ours[i]), without_weight(goal))
        if 'prices' in listed:
            yield Case(f'{key}: prices', ours.prices, listed['prices'])

def answer(engine, command):
    "What one command gives, as episodes are recorded"
    before = engine.purchase
    obs = engine.step(command)
    paid = engine.purchase.reward if engine.done and before is None else 0
    return dict(obs=obs, reward=paid, done=engine.done, available=engine.available())

def episode_cases(folder, episode, seed, name):
    "One episode, step by step; after the last purchase the original had begun another"
    played = shop(folder, bool(episode['human']), seed)
    goal = played.goals[episode['session']]
    engine = ShopEngine(played, goal, episode['mode'])
    yield Case(f'{name}: goal', goal_facts(goal), without_weight(episode['goal']))
    yield Case(f'{name}: first page', (engine.reset(), engine.available()),
               (episode['reset_obs'], episode['reset_available']))
    for i, step in enumerate(episode['steps']):
        got = answer(engine, step['action'])
        keys = ['obs', 'reward', 'done'] + ['available']*(not step['done'])
        yield Case(f'{name}: step {i} {step["action"]}', {key: got[key] for key in keys},
                   {key: step[key] for key in keys})
        if step['done']:
            break

def episodes(folder: Path, recorded: dict) -> Iterator[Case]:
    "Goals, first pages and steps of recorded episodes"
    yield from goal_cases(folder, recorded.get('goals', {}))
    seeds = {int(key.split('seed=')[1]) for key in recorded.get('goals', {})} or {42}
    for i, episode in enumerate(recorded['episodes']):
        yield from episode_cases(folder, episode, episode.get('seed', min(seeds)), f'episode {i}')

# ---- the search engine ----

def searches(folder: Path, recorded: dict) -> Iterator[Case]:
    "Words that texts are indexed by, and lists of results; scores were recorded to four decimals"
    for text, expected in recorded['analyzer']:
        yield Case(f'words of {text!r}', tokens(text), expected)
    found = catalogue(folder)
    for case in recorded['searches']:
        ours = found.index.search(case['query'], 50)
        ids = [found.products[place].asin for place, _ in ours]
        yield Case(f'results of {case["query"]!r}', ids, [asin for asin, _ in case['hits']])
        far = max((abs(score - real) for (_, score), (_, real) in zip(ours, case['hits'])), default=0)
        yield Case(f'scores of {case["query"]!r}', far < 2e-4, True)

# ---- replies ----

def replies(folder: Path, recorded: dict) -> Iterator[Case]:
    "What was read in replies, recorded beside the cases of the Search environment"
    for case in recorded.get('webshop_projection', []):
        read = parse_reply(case['action'], mode='official')
        ours = dict(valid=read.ok, result=read.action)
        if '<action>' not in case['action'].lower(): # Without a block they show another number of characters
            del ours['result']
        yield Case(f'reply {case["action"]!r}', ours, {key: case[key] for key in ours})

CASES = { # File → what yields its cases
    'reward_cases.json': [reward_cases],
    'episodes.json': [episodes],
    'search.json': [searches],
    'search_env_cases.json': [replies, search_cases],
}
