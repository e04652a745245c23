"""Make the base policy of Search that ships in `data/search`.

    python tools/make_search_base.py [--out data/search] [--recalls 1500] [--whole 800]
        [--steps 3000 3200 2600]

Thirteen minutes on a core that others use too. First the policy learns to copy names of two pieces: what two
or three sentences tell, all to be repeated in another order. Then, over thousands of small encyclopedias, it
learns to follow a question step by step: what it looks for, on which page its skills say the truth is, what
that page tells, which cover is to be opened before.
The demonstrator believes a skill six times in ten, and shown are true skills, none, or those of another
encyclopedia, at times with false sentences on covers. None that is made here is met again in training or
tests.
"""
import argparse, random, re
from itertools import count
from pretraining import Stage, demonstrated, fresh_rows, pretrain, rows_twice
from skillrl.agent.episode import Episode
from skillrl.worlds.search.encyclopedia import (
    ARTICLE_FIELDS, ARTICLE_KINDS, before, COVERS, Encyclopedia, EncyclopediaEnv, Statement, _FIRST_NAMES,
    MAX_STEPS, _MOODS, _NAME_ENDS, _NAME_MIDDLES, _NAME_STARTS, PAGES, sentence, _THEMES)
from skillrl.worlds.search.expert import SearchExpert
from skillrl.worlds.search.retrieve import Library
from skillrl.worlds.search.memory import offered
from skillrl.worlds.search.questions import COMPARED, book_questions, kinds_along, read_question
from skillrl.llm.local import _DROPPED, _SPECIAL, _USER, Policy, tiny_model
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

WORDS = '''Task Skill Read Now Look look turn want answer says for in it may be anything or 1 2 3 4 :
Before before search after nothing Opened
<think> </think> <action> </action> <search> </search> <answer> </answer>'''
HABITS = ['Choose among the actions listed.', 'Do not repeat an action that changed nothing.']
TRUST = .6  # Share of skills that the demonstrator believes
STRAY = .1  # Share of moves that are random and not taught
SIZES = 6, 14 # Fewest and most articles of a kind in an encyclopedia
ASKED = 8   # Questions of each form about one

def vocabulary():
    "Words of questions, values, names and prompts"
    asked = [text for field in ARTICLE_FIELDS.values() for text in (*field.asks, field.phrase)]
    said = re.findall('[A-Za-z]+', ' '.join([*asked, *COMPARED.values(), *HABITS]))
    values = [word for field in ARTICLE_FIELDS.values() for word in (field.name, *field.value.split())]
    years = map(str, range(1700, 2000))
    return [*WORDS.split(), *said, *values, *years, *ARTICLE_KINDS, *PAGES, *COVERS, *_NAME_STARTS,
            *_FIRST_NAMES, *_MOODS, *_THEMES]

ENDINGS = [middle + end for middle in _NAME_MIDDLES for end in _NAME_ENDS] # What invented names go on with

def ways(book, kinds, rng):
    "Lines on covers: those of `book`, and at times some that are false about one of `kinds`"
    lines = [before(kind, cover) for kind, cover in book.preconditions.items() if rng.random() < .85]
    kind, n = rng.choice(kinds), rng.choice((0, 0, 0, 1, 2))
    return list(dict.fromkeys(lines + [before(kind, cover) for cover in rng.sample(COVERS, n)]))

def shown(book, other, kinds, rng):
    "Lines of skills for `kinds` of articles: usually those of `book`, at times none or those of `other`"
    told = rng.choices([book, other, None], [.65, .15, .2])[0]
    hints = [line for line in told.hints() if line.startswith('Look')] if told else []
    lines = [line for line in hints if rng.random() < .85]
    lines = rng.sample(lines, min(3, len(lines))) + ways(told or other, kinds, rng)*(told is not None)
    return rng.sample(lines, len(lines)) + rng.sample(HABITS, rng.choice((0, 0, 1)))

NAMED = [field for field in ARTICLE_FIELDS.values() if field.value in ('river', *ARTICLE_KINDS)]

def invented(kind, rng):
    "A name as encyclopedias have them"
    name = rng.choice(_NAME_STARTS) + rng.choice(ENDINGS)
    return f'{rng.choice(_FIRST_NAMES)} {name}' if kind == 'person' else name

def recalls(rng):
    "Rows that repeat the names in a few sentences, in another order"
    while True:
        fields = rng.choices(NAMED, k=rng.randint(2, 3))
        pairs = [(field, invented(field.kind, rng), invented(field.value, rng)) for field in fields]
        statements = [Statement(field.kind, x, field.name, v, '') for field, x, v in pairs]
        told = [sentence(statement, rng.randrange(3)) for statement in statements]
        said = ' '.join(f'{x} says {v}' for _, x, v in rng.sample(pairs, len(pairs)))
        prompt = [dict(role='system', content=''), dict(role='user', content='\n'.join(told))]
        yield dict(prompt=prompt, completion=f'<think> {said} </think>')

def small_book(name, rng):
    "An encyclopedia of a few dozen articles"
    return Encyclopedia(name, {kind: rng.randint(*SIZES) for kind in ARTICLE_KINDS})

def rows(rng, first=0):
    "Demonstration rows of encyclopedia after encyclopedia, from number `first`"
    def strays(action, admissible):
        return [rng.choice(admissible)] if rng.random() < STRAY else []
    other = small_book('base', rng)
    for n in count(first):
        book = small_book(f'base-{n}', rng)
        library = Library(book.documents())
        for question in book_questions(book, ASKED):
            env = EncyclopediaEnv([question], library, MAX_STEPS, preconditions=book.preconditions,
                                  offers=offered)
            kinds = kinds_along(read_question(question.task))
            episode = Episode(env, question, skills=shown(book, other, kinds, rng))
            expert = SearchExpert(question.task, rng, TRUST)
            yield from demonstrated(episode, expert, strays, lambda thought, action: True)
        other = book

def piece_tokenizer(
    words,    # Whole words, and what invented names begin with; capitals count
    endings,  # What invented names go on with
    tight=(), # Names of tags that have no space inside: 'search'
)->PreTrainedTokenizerFast: # One token per word, two for an invented name
    "A tokenizer whose vocabulary is `words`, and names that begin with one and go on with one of `endings`"
    special = list(_SPECIAL.values())
    pieces = [*sorted(set(words) - set(special)), *sorted({f'##{ending}' for ending in endings})]
    ids = {piece: i for i, piece in enumerate(special + pieces)}
    tok = Tokenizer(models.WordPiece(ids, unk_token='<unk>', continuing_subword_prefix='##'))
    tok.normalizer = normalizers.Replace(Regex(_DROPPED), ' ')
    tok.pre_tokenizer = pre_tokenizers.Split(Regex('</?[a-z]+>|[A-Za-z]+|[0-9]+|:'), 'removed', invert=True)
    spaces = '|'.join([f'(?<=<{name}>) | (?=</{name}>)' for name in tight] or ['(?!)'])
    join = decoders.WordPiece(prefix='##', cleanup=False)
    tok.decoder = decoders.Sequence([join, decoders.Fuse(), decoders.Replace(Regex(spaces), '')])
    return PreTrainedTokenizerFast(tokenizer_object=tok, padding_side='left', chat_template=_USER, **_SPECIAL)

def main(out, recalls_first, whole, steps):
    tokenizer = piece_tokenizer(vocabulary(), ENDINGS, tight=('search', 'answer'))
    policy = Policy(tiny_model(len(tokenizer)), tokenizer)
    def stage(number, updates):
        stream = rows(random.Random(number), 100_000*number)
        return Stage(rows_twice(stream, policy, whole=number == 0), updates, 3e-3, batch_size=16)
    stages = [Stage(fresh_rows(recalls(random.Random(5)), policy), recalls_first, 1e-3, batch_size=64)]
    stages += [stage(number, updates) for number, updates in enumerate([whole, *steps])]
    pretrain(policy, stages, out)

if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--out', default='data/search')
    p.add_argument('--recalls', dest='recalls_first', type=int, default=1500, help='updates on recalling')
    p.add_argument('--whole', type=int, default=800, help='updates on prompts and replies')
    p.add_argument('--steps', type=int, nargs='+', default=[3000, 3200, 2600],
                   help='updates on replies, round by round')
    main(**vars(p.parse_args()))
