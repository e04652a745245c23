"Files of questions: what is asked once, what is asked again in other words, and what a slip costs"

import json, random
import pytest
from skillrl.cli.main import main
from skillrl.skillopt import qa as questions
from skillrl.skillopt.qa import question_env, _read_questions, _split_questions

ASKED = ['What is the capital of France?', 'Who wrote Hamlet?', 'How many legs has a spider?',
         'What is the boiling point of water at sea level?', 'Which metal is liquid at room temperature?']
ANSWERS = ['Paris', 'Shakespeare', '8', '100', 'mercury']


def item(k, question=None, **kw):
    return dict(question=question or ASKED[k], answers=[ANSWERS[k]], **kw)


def write(path, items):
    path.write_text(json.dumps(items))
    return path


def where(splits):
    return {split: {ANSWERS.index(i['answers'][0]) for i in some} for split, some in splits.items()}


def assert_apart(splits):
    sets = list(where(splits).values())
    assert all(sets) and sum(map(len, sets)) == len(set.union(*sets))


def test_repeated_questions_stay_in_one_split(tmp_path):
    "40 rows with 5 distinct questions leaked all five"
    rows = [item(k % 5) for k in range(40)]
    for seed in range(5):
        assert_apart(_split_questions(_read_questions(write(tmp_path / 'q.json', rows)), seed=seed))
    env = question_env(tmp_path / 'q.json')
    assert_apart(env.splits)
    assert sum(map(len, env.splits.values())) == 40 and '40 rows, 5 distinct questions' in env.about


SPELLINGS = [
    str.upper,
    str.lower,
    lambda q: q[:-1],
    lambda q: f'  {q.replace(" ", "  ")} ',
    lambda q: q.replace('a', 'á'),
    lambda q: q.replace('the ', ''),
    lambda q: q[:-1] + ' ?!',
    lambda q: q.replace(' is ', ' is, '),
]


def test_questions_that_differ_in_spelling_stay_in_one_split(tmp_path):
    rows = [item(k, spell(ASKED[k])) for k in range(5) for spell in SPELLINGS]
    for seed in range(5):
        assert_apart(_split_questions(_read_questions(write(tmp_path / 'q.json', rows)), seed=seed))
    assert len(questions._same_questions(rows)) == 5


def test_questions_that_differ_in_a_word_of_ten_stay_in_one_split():
    long = 'In which year did the first human being set foot on the surface of the moon in the last century'
    rows = [
        dict(question=q, answers='1969') for q in (long, long + ' exactly', long.replace('In which', 'Which'))
    ] + [item(k) for k in range(4)]
    for seed in range(5):
        splits = _split_questions([dict(r, id=i) for i, r in enumerate(rows)], seed=seed)
        assert len([s for s, some in splits.items() if any('1969' in i['answers'] for i in some)]) == 1


def test_many_questions_are_compared_quickly():
    rng, words = random.Random(0), [f'w{i}' for i in range(3000)]
    rows = [dict(question=' '.join(rng.sample(words, 20)), answers='yes') for _ in range(4000)]
    twins = [dict(rows[i], question=rows[i]['question'] + ' indeed') for i in range(0, 4000, 40)]
    assert len(questions._same_questions(rows + twins)) == 4000


def test_an_array_on_one_line_loads(tmp_path):
    items = _read_questions(write(tmp_path / 'q.json', [item(k) for k in range(5)]))
    assert len({i['id'] for i in items}) == 5 and '\n' not in (tmp_path / 'q.json').read_text()
    (tmp_path / 'q.jsonl').write_text('\n\n'.join(json.dumps(item(k)) for k in range(5)))
    assert [i['id'] for i in _read_questions(tmp_path / 'q.jsonl')] == [i['id'] for i in items]
    with pytest.raises(ValueError, match="several items have the id 'x'"):
        _read_questions(write(tmp_path / 'q.json', [item(0, id='x'), item(1, id='x')]))


@pytest.mark.parametrize(
    'bad,says',
    [(dict(question='Who?', answer='I'), 'item 3 has no `answers`, but `question`, `answer`'),
     (dict(Question='Who?', answers='I'), 'item 3 has no `question`, but `Question`, `answers`'),
     (dict(question='Who?', gold='I'), 'item 3 has no `answers`, but `question`, `gold`'),
     (dict(question='Who?', answers=None), 'item 3 has the answers None')],
)
def test_a_wrong_field_is_named(tmp_path, capsys, bad, says):
    write(tmp_path / 'q.json', [item(0), item(1), item(2), bad])
    assert (
        main(['optimize', '--questions', str(tmp_path / 'q.json'), '--policy-model', 'm', '--policy-url',
         'http://127.0.0.1:9/v1', '--teacher', 't', '--teacher-url', 'http://127.0.0.1:9/v1',
         '--output', str(tmp_path / 'run')])
        == 1
    )
    err = capsys.readouterr().err
    assert says in err and len(err.strip().splitlines()) == 1


