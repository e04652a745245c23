"""Make the base policy for shops that ships in `data/webshop`.

    python tools/make_webshop_base.py [--out data/webshop] [--recalls 1500] [--steps 8000]

Seven CPU-minutes on one core. First the policy learns to find, under the name of a ware, what a line of its
prompt calls it: two or three lines, all to be repeated in another order. From 11,000 updates on
demonstrations alone it did not learn this. Then, over hundreds of random shops, it learns to act by what
its prompt says: by the shop's own skills in six episodes of ten, by those of another shop in some, and by
none in the rest. The demonstrator believes a skill nine times in ten. What a shop calls its wares, and which
pages it wants looked at, no weight can know; no shop made here is met again in training or tests.
"""
import argparse, random
from pretraining import Stage, demonstrated, fresh_rows, pretrain
from skillrl.agent.episode import Episode
from skillrl.worlds.webshop.expert import ShopExpert
from skillrl.worlds.webshop.goals import CATEGORIES, shop_category
from skillrl.worlds.webshop.shop import (_ATTRIBUTES, buying, conventions, DETAIL_PAGES, NAMES,
                                       VALUES, WARES, PRECONDITIONS, name_sentence)
from skillrl.worlds.webshop.world import ShopSuite
from skillrl.llm.local import Policy, tiny_model, word_tokenizer
from skillrl.skills.evidence import precondition_sentence
from dagger import renumber
from skillrl.training.sft import encode_rows

WORDS = '''task skill find me i am looking for that are in with color size scent flavor material oak steel
price lower than dollars look as is written <think> </think> <action> </action> : search[ click[ ] known
searched list open sold options chosen page details search want unknown see features leave no choose buy next
back stand do not repeat action changed nothing instead among actions listed before did to'''
PHRASES = ['< prev', 'buy now', 'next >', 'back to search', 'display stands']
FITS = [f'fit {n}' for n in range(2, 10)]
IDS = [f'b00000x{n:03d}' for n in range(500)]
HABITS = ['Do not repeat an action that changed nothing.', 'To buy, choose among the actions listed.']
TRUST = .9         # Share of skills that the demonstrator believes
OWN, OTHER = .6, .15 # Shares of episodes with skills of the shop, and with those of another
POOL = 24_000      # Rows; each is met again with other words in it
PASS = 3000        # Rows

def vocabulary():
    "All words of generated shops, and the ids of the first 500 products"
    values = [value for some in VALUES.values() for value in some]
    wares = [ware.query for ware in WARES]
    purchases = [word for category in CATEGORIES for word in buying(category).split()]
    commands = [*DETAIL_PAGES, *PHRASES]
    return [*WORDS.split(), *purchases, *commands, *_ATTRIBUTES, *values, *FITS, *wares, *NAMES, *IDS]

def ways_told(shop, task, rng):
    "What a bank might say of ways: those of the shop, and some that are none"
    wanted = shop_category(task)
    told = [(c, way) for c, way in shop.preconditions.items() if rng.random() < (.8 if c == wanted else .2)]
    told += [(wanted, way) for way in rng.sample(PRECONDITIONS, rng.choice((0, 0, 0, 1, 2, 3)))]
    return [precondition_sentence(buying(c), way) for c, way in dict.fromkeys(told)]

def notes(shop, task, rng):
    "What a bank might show for `task`: usually what its ware is sold as, among other sentences"
    asked = [said for said in shop.words if said in task and rng.random() < .9]
    said = dict.fromkeys(asked + rng.sample(list(shop.words), rng.randint(0, 3)))
    out = [name_sentence(one, shop.words[one]) for one in list(said)[:3]]
    if rng.random() < .8:
        request = task.split(',')[0]
        sizes = [size for size in shop.sizes if request.endswith(f' {size}') and rng.random() < .8]
        size = (sizes or rng.sample(list(shop.sizes), 1))[0]
        out.append(name_sentence(f'size {size}', shop.sizes[size]))
    out += ways_told(shop, task, rng)
    rng.shuffle(out)
    return out + rng.sample(HABITS, rng.choice((0, 0, 0, 1, 2)))

def episodes(rng):
    "Unplayed episodes of shop after shop"
    n = 0
    while True:
        suite = ShopSuite(f'base-{n}', n=240)
        own, others = conventions(suite.name), conventions(f'other than base-{n}')
        n += 1
        for _ in range(16):
            game = suite.draw(rng.choice(('train', 'collect')), rng)
            sort = rng.choices((own, others, None), (OWN, OTHER, 1 - OWN - OTHER))[0]
            shown = notes(sort, game.task, rng) if sort else ()
            yield Episode(suite.env(game, 20), game, skills=shown)

def rows(rng):
    "Demonstration rows; one step in ten is a random click, but no purchase, which is not taught"
    def strays(action, admissible):
        clicks = [a for a in admissible if a.startswith('click[') and a != 'click[buy now]']
        return [rng.choice(clicks)] if clicks and rng.random() < .1 else []
    def kept(thought, action):
        # Searches are one step of six, and with ways the steps that have to find the right skill
        return action.startswith('search[') or thought.startswith('before ') or rng.random() < .3
    for e in episodes(rng):
        yield from demonstrated(e, ShopExpert(e.start().task, rng, TRUST), strays, kept)

class Passes:
    "Rows for each pass of `full_sft`, from a growing pool; names, ids and options are exchanged at random"
    def __init__(self, policy):
        self.policy, self.rng = policy, random.Random(0)
        self.fresh, self.pool = rows(random.Random(1)), []
        known = policy.tokenizer.get_vocab()
        kinds = [sorted(known[word] for word in kind)
                 for kind in (NAMES, IDS, _ATTRIBUTES, FITS, *VALUES.values())]
        self.alike = {token: kind for kind in kinds for token in kind}

    def __call__(self):
        if len(self.pool) < POOL:
            self.pool += encode_rows([next(self.fresh) for _ in range(PASS)], self.policy)
        return [renumber(row, self.alike, self.rng) for row in self.rng.sample(self.pool, PASS)]

def recalls(rng):
    "Rows that repeat what a few lines of skills say, in another order"
    while True:
        n = rng.randint(2, 3)
        called = list(zip(rng.sample([ware.query for ware in WARES], n), rng.sample(NAMES, n)))
        lines = '\n'.join(f'Skill: {name_sentence(ware, name)}' for ware, name in called)
        said = ' '.join(f'{ware} {name}' for ware, name in rng.sample(called, n))
        prompt = [dict(role='system', content=''), dict(role='user', content=lines)]
        yield dict(prompt=prompt, completion=f'<think> {said} </think>')

def main(out, recalls_first, steps):
    tokenizer = word_tokenizer(vocabulary())
    policy = Policy(tiny_model(len(tokenizer)), tokenizer)
    first = Stage(fresh_rows(recalls(random.Random(5)), policy), recalls_first, 1e-3, batch_size=64)
    pretrain(policy, [first, Stage(Passes(policy), steps, 2e-3)], out)

if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--out', default='data/webshop')
    p.add_argument('--recalls', dest='recalls_first', type=int, default=1500, help='updates on recalling')
    p.add_argument('--steps', type=int, default=8000, help='updates on demonstrations')
    main(**vars(p.parse_args()))
