"Edits of a skill document: what skillrl 1.0.0 did right, and each of its faults"
import random, subprocess, sys
from pathlib import Path
from types import SimpleNamespace
import pytest
from skillrl.skillopt.editor import apply_patch_with_report, bare, Edit, OPS, Patch, skill_hash, spans, states
from skillrl.skillopt.proposal import _patched_skill

# ---- edits ----

ABC = 'A\nB\nC\n'
BOLD = '# Rules\n\n- Be **concise** here.\n* Check the mug.\n'


def edit(op, content='', target=''):
    return dict(op=op, content=content, target=target)


def apply(doc, edits, **kw):
    "The document after `edits`, written by a model, and the report"
    return apply_patch_with_report(doc, Patch.from_dict(dict(edits=edits)), **kw)


def one(doc, e, **kw):
    "The document after one edit, and its row of the report"
    e = Edit.from_dict(e) if str(e['op']).strip().lower() in OPS else Edit(**e)
    new, report = apply_patch_with_report(doc, Patch([e]), **kw)
    assert len(report) == 1 and report[0]['index'] == 1
    return new, report[0]


def status(doc, e, **kw):
    return one(doc, e, **kw)[1]['status']


# --- results and statuses as recorded from skillrl 1.0.0 ---

SAME = [  # document, operation, content, target, result, status
    (ABC, 'append', ' X\n', '', 'A\nB\nC\n\nX\n', 'applied_append'),
    ('A\nB\nC', 'append', 'X', '', 'A\nB\nC\n\nX\n', 'applied_append'),
    ('A\n\n\n', 'append', 'X', '', 'A\n\nX\n', 'applied_append'),
    ('A  \nB  \n', 'append', 'X', '', 'A  \nB\n\nX\n', 'applied_append'),
    ('', 'append', 'X', '', '\n\nX\n', 'applied_append'),
    (ABC, 'append', 'X\n\n- Y\n', 'B', 'A\nB\nC\n\nX\n\n- Y\n', 'applied_append'),
    (ABC, 'insert_after', 'X', 'A', 'A\n\nX\nB\nC\n', 'applied_insert_after'),
    (ABC, 'insert_after', ' X ', 'B', 'A\nB\n\nX\nC\n', 'applied_insert_after'),
    (ABC, 'insert_after', 'X', 'C', 'A\nB\nC\n\nX\n', 'applied_insert_after'),
    ('A\nB\nC', 'insert_after', 'X', 'C', 'A\nB\nC\nX\n', 'applied_insert_after'),
    ('A\nB\nC', 'insert_after', 'X', 'B', 'A\nB\n\nX\nC', 'applied_insert_after'),
    (ABC, 'insert_after', 'X', 'A\nB', 'A\nB\n\nX\nC\n', 'applied_insert_after'),
    ('A B\nC D\n', 'insert_after', 'X', 'B\nC', 'A B\nC D\n\nX\n', 'applied_insert_after'),
    ('A\n\nB\n', 'insert_after', 'X', 'A', 'A\n\nX\n\nB\n', 'applied_insert_after'),
    ('A\nBB B\nC\n', 'insert_after', 'X', 'B', 'A\nBB B\n\nX\nC\n', 'applied_insert_after'),
    (ABC, 'insert_after', 'X', '', 'A\nB\nC\n\nX\n', 'applied_insert_after_fallback_append'),
    (ABC, 'insert_after', 'X', 'zz', 'A\nB\nC\n\nX\n', 'applied_insert_after_fallback_append'),
    ('', 'insert_after', 'X', 'A', '\n\nX\n', 'applied_insert_after_fallback_append'),
    (ABC, 'replace', ' X ', 'B', 'A\nX\nC\n', 'applied_replace'),
    (ABC, 'replace', 'X', 'A\nB', 'X\nC\n', 'applied_replace'),
    (ABC, 'replace', 'X\nY', 'B', 'A\nX\nY\nC\n', 'applied_replace'),
    (ABC, 'replace', 'B', 'B', ABC, 'applied_replace'),
    (ABC, 'replace', '', 'B', 'A\n\nC\n', 'applied_replace'),
    ('B B B\n', 'replace', 'X', 'B', 'X B B\n', 'applied_replace'),
    ('Be **concise**.', 'replace', 'kind', 'concise', 'Be **kind**.', 'applied_replace'),
    (ABC, 'replace', 'X', '', ABC, 'skipped_replace_missing_target'),
    (ABC, 'replace', 'X', 'zz', ABC, 'skipped_replace_target_not_found'),
    (ABC, 'replace', 'X', 'b', ABC, 'skipped_replace_target_not_found'),
    (ABC, 'delete', '', 'B', 'A\n\nC\n', 'applied_delete'),
    (ABC, 'delete', '', 'B\n', 'A\nC\n', 'applied_delete'),
    (ABC, 'delete', '', '\nB', 'A\nC\n', 'applied_delete'),
    ('A B C', 'delete', '', ' B', 'A C', 'applied_delete'),
    ('A B C', 'delete', 'ignored', 'B ', 'A C', 'applied_delete'),
    (ABC, 'delete', '', '', ABC, 'skipped_delete_missing_target'),
    (ABC, 'delete', 'B', '', ABC, 'skipped_delete_missing_target'),
    (ABC, 'delete', '', 'zz', ABC, 'skipped_delete_target_not_found'),
    (ABC, 'reflect', 'X', 'B', ABC, 'skipped_unknown_op'),
]


@pytest.mark.parametrize('doc, op, content, target, result, said', SAME)
def test_as_in_1_0_0(doc, op, content, target, result, said):
    new, row = one(doc, edit(op, content, target))
    assert (new, row['status']) == (result, said)


def test_a_report_has_the_rows_of_1_0_0():
    edits = Edit('append', ' ' + 'y' * 300, 'z' * 300), Edit('replace', 'X', 'B'), Edit('reflect', 'Q', 'R')
    new, report = apply_patch_with_report(ABC, Patch(edits))
    assert report[0] == dict(
        index=1, op='append', target='z' * 200, content_preview='y' * 200, status='applied_append'
    )
    assert [(o['index'], o['op'], o['status']) for o in report[1:]] == [
        (2, 'replace', 'applied_replace'),
        (3, 'reflect', 'skipped_unknown_op'),
    ]
    assert new == 'A\nX\nC\n\n' + 'y' * 300 + '\n'


def test_edits_see_what_the_ones_before_them_wrote():
    edits = [
        edit('append', '## Lamps'),
        edit('insert_after', '- Use them.', '## Lamps'),
        edit('replace', 'Use both.', 'Use them.'),
    ]
    assert apply(ABC, edits)[0] == ABC + '\n## Lamps\n\n- Use both.\n'
    assert apply(ABC, None)[0] == apply_patch_with_report(ABC, Patch())[0] == ABC


@pytest.mark.parametrize(
    'text, name', [('', 'e3b0c44298fc1c14'), (None, 'e3b0c44298fc1c14'), ('A', '559aead08264d579')]
)
def test_hashes_of_1_0_0(text, name):
    assert skill_hash(text) == name


def test_a_hash_of_half_a_character_is_no_error():
    assert len(skill_hash('a\ud83d')) == 16


def test_edits_and_patches_as_dicts():
    assert Edit('append', 'x').to_dict() == dict(op='append', content='x')
    whole = dict(op='append', content='c', target='t')
    assert Edit('append', 'c', 't').to_dict() == whole == Edit.from_dict(whole).to_dict()
    assert Edit.from_dict({}) == Edit('append') and Patch().to_dict() == dict(reasoning='', edits=[])
    assert Edit.from_dict(dict(content='x', colour='red')) == Edit('append', 'x')


# --- C4, C6: what models send ---


def test_C4_bad_elements_are_dropped_with_a_reason():
    patch = Patch.from_dict(
        dict(
            reasoning=None,
            edits=['append: x', edit('append', 'X'), None, ['x'], edit('append', ['x']), edit('reflect')],
        )
    )
    assert patch.edits == [Edit('append', 'X')] and patch.reasoning == ''
    assert [set(o) for o in patch.dropped] == [{'element', 'reason'}] * 5
    assert [o['reason'].split(':')[0] for o in patch.dropped] == [
        "an edit is str 'append",
        "an edit is NoneType 'None'",
        'an edit is list "[\'x\']"',
        'content of an edit is list "[\'x\']"',
        "op of an edit is str 'reflect'",
    ]
    assert Patch.from_dict(patch.to_dict()) == patch


@pytest.mark.parametrize(
    'edits', ['append: x', [[]], [{'op': {}}], [{'target': {}}], [{'content': True}]]
)
def test_C4_no_shape_of_edits_is_an_error(edits):
    patch = Patch.from_dict(dict(edits=edits, dropped=edits, reasoning=['x']))
    assert all(isinstance(e, Edit) for e in patch.edits)
    assert all(o['status'] != 'applied_append' for o in apply_patch_with_report(ABC, patch)[1])


@pytest.mark.parametrize('no_patch', [None, 'x', 3, [edit('append', 'X')]])
def test_what_is_no_patch_is_named(no_patch):
    with pytest.raises(ValueError, match='a patch is .*: write an object with reasoning and edits'):
        Patch.from_dict(no_patch)


# --- C15: line ends ---


@pytest.mark.parametrize(
    'doc, e, result',
    [
        (ABC, edit('replace', 'X', '\nB\n'), 'A\nX\nC\n'),
        ('A\r\nB\r\nC\r\n', edit('replace', 'X\n', 'B\n'), 'A\r\nX\r\nC\r\n'),
        ('A\n  - B\nC\n', edit('replace', '  - X\n', '  - B\n'), 'A\n  - X\nC\n'),
        ('one two three', edit('replace', ' 2 ', ' two '), 'one 2 three'),
        ('A x\nB\n', edit('delete', '', 'x\n'), 'A \nB\n'),
        ('Ax\nB\n', edit('delete', '', 'x\n'), 'A\nB\n'),
        ('A  \nB\n  C\n', edit('delete', '', '\nB\n'), 'A  \n  C\n'),
        ('A\r\nB\r\nC\r\n', edit('delete', '', '\nB\n'), 'A\r\nC\r\n'),
        (ABC, edit('insert_after', 'X', 'B\n'), 'A\nB\n\nX\nC\n'),
    ],
)
def test_C15_lines_are_not_glued(doc, e, result):
    assert one(doc, e)[0] == result


@pytest.mark.parametrize('target', ['\n', ' ', ' \n\t'])
def test_C15_white_space_is_no_target(target):
    assert status(ABC + ' \n\t', edit('replace', 'X', target)) == 'skipped_replace_missing_target'
    assert status(ABC + ' \n\t', edit('delete', '', target)) == 'skipped_delete_missing_target'
    assert status(ABC, edit('insert_after', 'X', target)) == 'applied_insert_after_fallback_append'


# --- C15b: nothing to write ---


@pytest.mark.parametrize('op', ['append', 'prepend', 'insert_after'])
@pytest.mark.parametrize('content', ['', '  \n', None])
def test_C15b_empty_content_changes_nothing(op, content):
    for doc in (ABC, '', 'A\n\n\n', 'A  '):
        assert one(doc, edit(op, content, 'B'))[0] == doc
    assert status(ABC, edit(op, content, 'B')) == 'skipped_empty_content'


# --- C15c: twice the same, twice the anchor, line ends, markup, names, non-text ---


@pytest.mark.parametrize(
    'op, target',
    [('append', ''), ('prepend', ''), ('insert_after', 'Rules'), ('insert_after', 'no such line')],
)
@pytest.mark.parametrize(
    'content',
    [
        '- Be **concise** here.',
        'be concise here.',
        '1. Be concise  here.',
        '- Be concise here.\n\n- Check the mug.',
        '# Rules',
    ],
)
def test_C15c_what_is_said_already_is_not_said_again(op, target, content):
    for doc in (BOLD, BOLD.replace('\n', '\r\n')):
        assert (one(doc, edit(op, content, target))[0], status(doc, edit(op, content, target))) == (
            doc,
            'skipped_duplicate',
        )


@pytest.mark.parametrize(
    'content', ['concise here.', 'Check the mug.\nBe concise here.', '***']
)
def test_C15c_a_part_or_another_order_is_no_duplicate(content):
    assert not states(BOLD, content) and status(BOLD, edit('append', content)) == 'applied_append'


def windows(text):
    return text.replace('\n', '\r\n')


def test_C15c_windows_line_ends_are_kept():
    cases = [case for case in SAME if '\n' in case[0]]
    assert len(cases) > 30
    for doc, op, content, target, result, said in cases:
        for c, t in ((content, target), (windows(content), windows(target))):
            new, row = one(windows(doc), edit(op, c, t))
            assert (new, row['status']) == (windows(result), said), (doc, op, c, t)


@pytest.mark.parametrize(
    'doc, target, found',
    [
        ('Be concise.', '**Be concise**', 'Be concise'),
        ('**Be concise**', 'Be concise', 'Be concise'),
        ('**Be** concise.', 'Be concise', '**Be** concise'),
        ('- Be concise.', '* Be concise.', '- Be concise.'),
        ('  - Be concise.', '* Be concise.', '- Be concise.'),
        ('2. Be concise.', '1) Be concise.', '2. Be concise.'),
        ('### Tools', '# Tools', '# Tools'),
        ('# Tools', '### Tools', '# Tools'),
        ('Be\nconcise.', 'Be concise.', 'Be\nconcise.'),
        ('Be concise.', ' Be\tconcise. ', 'Be concise.'),
        ('run `ls -a` now', 'run ls -a now', 'run `ls -a` now'),
        ('use pick_two now', 'use  pick\\_two now'.replace('\\', ''), 'use pick_two now'),
        ('* Be concise.', '- Be concise', '* Be concise'),
        ('- a\n- b **c**\n', '* a\n* b c', '- a\n- b **c**'),
        ('> Be concise.', '- Be concise.', '> Be concise.'),
    ],
)
def test_C15c_anchors_are_found_without_their_markup(doc, target, found):
    assert [doc[a:b] for a, b in spans(doc, target)] == [found]


@pytest.mark.parametrize(
    'doc, target',
    [
        ('Be concise.', 'be concise'),
        ('unbe concise', 'be  concise'),
        ('be conciseness', 'be  concise'),
        ('say go now', '- go  now'),
        ('The rules of the house', '## The rules'),
        ('A', '**'),
        ('A', '- '),
        ('', 'A'),
        ('A B', 'B A'),
    ],
)
def test_C15c_what_is_not_there_is_not_found(doc, target):
    assert spans(doc, target) == []


def test_C15c_markup_is_left_whole():
    assert (
        one('- **Be concise**, please.', edit('replace', '**Be kind**', '__Be concise__'))[0]
        == '- **Be kind**, please.'
    )
    assert one('* Be concise.\n', edit('replace', '- Be kind.', '- Be concise.'))[0] == '- Be kind.\n'
    assert one('**Be** concise now.', edit('delete', '', 'Be concise'))[0] == ' now.'


@pytest.mark.parametrize('said, means', [(' APPEND ', 'append'), ('add', ''), ('', ''), (None, ''), ([], '')])
def test_C15c_names_of_operations(said, means):
    row = one(ABC, edit(said, 'X', 'B'))[1]
    assert row['status'] == (f'applied_{means}' if means else 'skipped_unknown_op')
    assert row['op'] == (means or said)


@pytest.mark.parametrize(
    'doc, result',
    [
        (ABC, 'X\n\nA\nB\nC\n'),
        ('', 'X\n'),
        ('\n\nA', 'X\n\nA'),
        ('  A', 'X\n\n  A'),
        ('---\nname: a\n---\n\nA\n', '---\nname: a\n---\n\nX\n\nA\n'),
        ('---\nname: a\n---', '---\nname: a\n---\nX\n'),
        ('---\nA\n', 'X\n\n---\nA\n'),
        ('---\r\nname: a\r\n---\r\nA\r\n', '---\r\nname: a\r\n---\r\n\r\nX\r\n\r\nA\r\n'),
    ],
)
def test_C15c_prepend_writes_at_the_top(doc, result):
    assert one(doc, edit('prepend', 'X'))[0] == result


@pytest.mark.parametrize('name', ['content', 'target'])
@pytest.mark.parametrize('value', [['x'], {'x': 1}, 5, True, 1.5])
def test_C15c_what_is_not_text_is_not_written(name, value):
    with pytest.raises(ValueError, match=f'{name} of an edit is {type(value).__name__}'):
        Edit.from_dict(dict(op='replace', content='X', target='B') | {name: value})


def test_half_characters_are_not_written():
    new = one(ABC, edit('append', 'lamp \ud83d'))[0]
    assert new.encode() and new.endswith('lamp \ufffd\n')


# --- C15d, D11: nothing left, and too much ---

FRONT = '---\nname: a\n---\n'


@pytest.mark.parametrize(
    'doc, target',
    [(ABC, ABC.strip()), ('\n A \n', 'A'), (FRONT + ABC, ABC), (FRONT + ABC, FRONT + ABC)],
)
@pytest.mark.parametrize('op', ['delete', 'replace'])
def test_C15d_something_is_left(doc, target, op):
    new, row = one(doc, edit(op, '', target))
    assert (new, row['status']) == (doc, 'skipped_would_empty')


def test_C15d_line_by_line_the_last_line_stays():
    new, report = apply(ABC, [edit('delete', '', c) for c in 'ABC'])
    assert new.strip() == 'C' and [o['status'] for o in report] == [
        'applied_delete',
        'applied_delete',
        'skipped_would_empty',
    ]


def test_the_head_of_a_skill_stays():
    head = '---\nname: kitchen\ndescription: Find things in a kitchen.\n---\n'
    for op, content, target in (('replace', 'bath', 'kitchen'), ('delete', '', head)):
        e = edit(op, content, target)
        assert one(head + 'Eggs: fridge.\n', e)[1]['status'] == 'skipped_front_matter'
    assert one('Look.\n', edit('prepend', head))[1]['status'] == 'skipped_front_matter'
    assert one(head + 'Eggs: fridge.\n', edit('replace', 'drawer', 'fridge'))[0] == head + 'Eggs: drawer.\n'


HEADS = ['\n', '\n \n', '\ufeff', '\ufeff\n']


@pytest.mark.parametrize('end', ['\n', '\r\n', '\r'])
@pytest.mark.parametrize('before', ['', *HEADS])
def test_the_head_stays_behind_empty_lines_and_with_other_line_ends(before, end):
    doc = f'{before}---\nname: kitchen\ndescription: Find things.\n---\nEggs: fridge.\n'.replace('\n', end)
    for e in (edit('replace', 'bath', 'kitchen'), edit('delete', '', 'name: kitchen')):
        assert one(doc, e) == (doc, one(doc, e)[1]) and status(doc, e) == 'skipped_front_matter'
    new = one(doc, edit('prepend', 'Look.\nAsk.'))[0]
    assert new.replace('\r\n', '\n').replace('\r', '\n').endswith('---\n\nLook.\nAsk.\n\nEggs: fridge.\n')
    assert new.startswith(doc[: doc.index('Eggs')]) and new.count(end) >= new.count('\n')


GROWTH = [(25_000, 4_000, True), (25_000, 6_000, False), (100, 19_000, True)]


@pytest.mark.parametrize('n, more, fits', GROWTH)
def test_a_skill_of_any_length_may_grow(n, more, fits):
    skill = 'a' * (n - 1) + '\n'
    state = SimpleNamespace(initial=skill, skill=skill)
    session = SimpleNamespace(start=state, draft=SimpleNamespace(state=state))
    patch = SimpleNamespace(patch=Patch([Edit('append', 'Look. ' * (more // 6))]))
    assert bool(_patched_skill(session, patch)) is fits


def test_D11_a_document_has_a_limit():
    e = edit('append', 'x' * 100_000)
    assert status(ABC, e, max_chars=2000) == 'skipped_too_long' and one(ABC, e, max_chars=2000)[0] == ABC
    assert len(one(ABC, e)[0]) == 100_008
    assert (
        status(ABC, edit('append', 'X'), max_chars=9) == 'applied_append'
        and status(ABC, edit('append', 'XY'), max_chars=9) == 'skipped_too_long'
    )


def test_D11_a_long_document_may_shrink():
    assert (
        status(ABC, edit('delete', '', 'B\n'), max_chars=2) == 'applied_delete'
        and status(ABC, edit('replace', 'X', 'B'), max_chars=2) == 'applied_replace'
    )


# --- at random ---

words = 'open the egg fridge lamp look first then never closed mug'.split()


def random_line(r):
    return r.choice(['', '', '- ', '* ', '## ', '  - ', '1. ']) + ' '.join(
        r.choice(words + ['**egg**', '`look`']) for _ in range(r.randint(1, 5))
    )


def random_case(r):
    doc = '\n'.join(
        r.choice(['', *(random_line(r) for _ in range(3))]) for _ in range(r.randint(1, 8))
    ) + r.choice(['', '\n', '\n\n'])
    a = r.randrange(len(doc) + 1)
    target = r.choice(
        [
            '',
            random_line(r),
            doc[a : a + r.randint(1, 30)],
            r.choice(doc.split('\n')),
            bare(r.choice(doc.split('\n'))),
        ]
    )
    content = r.choice(
        ['', random_line(r), random_line(r) + '\n' + random_line(r) + '\n', r.choice(doc.split('\n'))]
    )
    return doc, edit(r.choice([*OPS, 'foo']), content, target)


def test_at_random_line_ends_make_no_difference():
    r, done = random.Random(0), 0
    for _ in range(2000):
        doc, e = random_case(r)
        if '\n' not in doc.rstrip():
            continue
        new, row = one(doc, e)
        assert one(doc.replace('\n', '\r\n'), e) == (new.replace('\n', '\r\n'), row)
        done += row['status'].startswith('applied')
    assert done > 600


def test_at_random_a_refused_edit_changes_nothing_and_an_edit_invents_nothing():
    r = random.Random(1)
    for _ in range(2000):
        doc, e = random_case(r)
        new, row = one(doc, e)
        if row['status'].startswith('skipped'):
            assert new == doc

        def letters(s):
            return sorted(c for c in s if c.isalnum())

        extra = [*letters(new)]
        for c in letters(doc):
            extra.remove(c) if c in extra else None
        assert set(extra) <= set(letters(e['content']))
        assert new.strip() or not doc.strip()


def test_at_random_insertions_keep_every_line():
    r, done = random.Random(2), 0
    for _ in range(2000):
        doc, e = random_case(r)
        new, row = one(doc, e)
        if row['op'] not in ('append', 'prepend', 'insert_after'):
            continue
        rest = iter(new.rstrip().split('\n'))
        assert all(line.rstrip() in (l.rstrip() for l in rest) for line in doc.split('\n') if line.strip())
        done += new != doc
    assert done > 450


HOSTILE = ['-' * 50_000, ' ' * 50_000, '\n' * 50_000, '*' * 50_000, '`_*' * 20_000, '<!--' + ' ' * 50_000,
           '<!-- ' * 10_000, '1. ' * 20_000, '- a\n' * 15_000, '> ' * 20_000, '---\n' * 15_000, '\r' * 50_000]

def test_no_text_makes_it_slow():
    "They take seconds, and hours where a pattern is quadratic"
    code = 'import test_skillopt_text as t; [*map(t.edit_with, t.HOSTILE)]'
    subprocess.run([sys.executable, '-c', code], cwd=Path(__file__).parent, timeout=120, check=True)

def edit_with(hostile):
    edits = [edit('append', 'X'), edit('insert_after', 'Y', 'no *line*'), edit('replace', 'Z', hostile + '!')]
    apply('A\n' + hostile, edits)
    apply(ABC, [edit('append', hostile), edit('replace', hostile, 'B'), edit('prepend', hostile)])


def test_C15c_a_repeated_anchor_is_reported():
    new, row = one('mug\nlamp\nmug\n', edit('insert_after', 'X', 'mug'))
    assert new == 'mug\n\nX\nlamp\nmug\n' and row['matches'] == 2
    assert one('go go go', edit('delete', '', 'go '))[1]['matches'] == 2
