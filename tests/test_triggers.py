"""Does the agent open the skill when it should?

The eight published causes of a recall of 0, as streams and as agents that print them; queries as people have
them; intervals that hold; runs that are cut short or stopped."""
import json, os, random, sys
from dataclasses import replace
from functools import cache
from pathlib import Path
import pytest
from skillrl.cli.main import main
from skillrl.core.stats import Rate, lower_bound
from skillrl.core.store import JsonlLog, read_json
from skillrl.llm.reply import RunStopped
from skillrl.proof.agents import AGENTS, openings
from skillrl.proof.runs import ProofConfig
from skillrl.proof.triggers import _level, _rates, _share, _verdict, load_queries, prove_triggers

NAMES = 'pdf', 'pdf-forms', 'docx'
USAGE = dict(input_tokens=90, output_tokens=9)

# ---- what Claude Code 2.1 and Codex print ----
IDS = dict(session_id='02bd67b3', uuid='c6a7f66f')

def claude(*messages, start=True):
    "A stream of Claude Code with a message for each list of pairs (tool, input)"
    records = [dict(type='system', subtype='init', tools=['Bash', 'Read', 'Skill'], **IDS)]*start
    for n, calls in enumerate(messages):
        blocks = [dict(type='tool_use', id=f't{n}{i}', name=tool, input=given)
                  for i, (tool, given) in enumerate(calls)]
        told = [dict(type='tool_result', tool_use_id=b['id'], content='done') for b in blocks]
        records += [dict(type='assistant', message=dict(id=f'm{n}', role='assistant', content=blocks), **IDS),
                    dict(type='user', message=dict(role='user', content=told), **IDS)]
    return [*records, dict(type='result', subtype='success', is_error=False, result='Done.', usage=USAGE,
                           total_cost_usd=.01, permission_denials=[], **IDS)]

def codex(*messages, start=True):
    "A stream of Codex with a turn for each list of shell commands"
    records = [dict(type='thread.started', thread_id='01a2'), dict(type='turn.started')]*start
    for n, command in enumerate(c for calls in messages for c in calls):
        item = dict(id=f'item_{n}', type='command_execution', command=f"/bin/bash -lc '{command}'",
                    aggregated_output='', exit_code=None, status='in_progress')
        records += [dict(type='item.started', item=item),
                    dict(type='item.completed', item=item | dict(exit_code=0, status='completed'))]
    said = dict(id='item_9', type='agent_message', text='See SKILL.md of pdf.')
    return [*records, dict(type='item.completed', item=said), dict(type='turn.completed', usage=USAGE)]

def skill(name='pdf'):
    return 'Skill', dict(skill=name)

def read(path):
    return 'Read', dict(file_path=path)

def cat(name='pdf', home='$HOME/.agents'):
    return f'cat {home}/skills/{name}/SKILL.md'

ALWAYS = 'Always use pdf: {"type": "tool_use", "name": "Skill", "input": {"skill": "pdf"}}'
HOOK = dict(type='system', subtype='hook_response', hook_name='SessionStart', stdout=ALWAYS, **IDS)
TALK = dict(type='user', message=dict(role='user', content='Read ~/.claude/skills/pdf/SKILL.md'), **IDS)
LOOK = 'Bash', dict(command='git status; ls ~/.claude/skills; find . -name SKILL.md | head')
DO = 'Fill in the form'

# Cause → query, stream of Claude, stream of Codex, is `pdf` opened?
CAUSES = {
    'bash first': (DO, claude([LOOK], [LOOK], [skill()]), codex(['ls; git status'], ['rg x'], [cat()]), True),
    'another skill first': (DO, claude([skill('pdf-forms')], [skill()]), codex([cat('docx'), cat()]), True),
    'installed twice': (DO, claude([skill('tools:pdf')]), codex([cat(home='.codex')]), True),
    'slow start': (DO, claude([skill()])[:-1], codex([cat()])[:-1], True),
    'read for a review': ('Review the wording of the skill in skills/pdf',
                          claude(*([read(f'{at}/skills/pdf/SKILL.md')] for at in ('/work', '/h/.claude'))),
                          codex(['cat skills/pdf/SKILL.md', cat()]), False),
    'calls in parallel': (DO, claude([LOOK, skill('docx'), skill(), read('a.txt')]),
                          codex([f'{cat("docx")} && {cat()}; ls']), True),
    'resumed': (DO, claude([skill()]) + claude([LOOK]), codex([cat()]) + codex(['ls']), False),
    'a plugin that answers always': (DO, [HOOK, *claude([LOOK]), TALK],
                                     codex(['echo use pdf/SKILL.md']), False),
}

@pytest.mark.parametrize('cause', CAUSES)
@pytest.mark.parametrize('program', [1, 2])
def test_a_recorded_stream_is_read_right(cause, program):
    query, is_open = CAUSES[cause][0], CAUSES[cause][3]
    assert ('pdf' in openings(CAUSES[cause][program], NAMES, query)) == is_open

def test_no_opening_counts_for_another_skill():
    assert openings(claude([skill('pdf-forms')]), NAMES) == ['pdf-forms']
    assert openings(codex([cat('pdf-forms'), cat('docx')]), NAMES) == ['pdf-forms', 'docx']
    assert openings(codex(['cat ~/.agents/skills/*/SKILL.md']), NAMES) == [*NAMES]

@pytest.mark.parametrize('command', [
    'git diff {}', 'find {}', 'wc -l {}', 'grep x {}', 'echo x > {}', 'ls {}', 'sed -i s/a/b/ {}'])
def test_a_file_that_is_searched_or_written_is_not_opened(command):
    assert openings(codex([command.format('~/.agents/skills/pdf/SKILL.md')]), NAMES) == []

def test_the_streams_of_gemini_and_opencode_are_read():
    call = dict(type='tool_use', tool_name='activate_skill', tool_id='a', parameters=dict(name='pdf'))
    gemini = [dict(type='init', session_id='b1'), call]
    state = dict(status='completed', input=dict(name='docx'), output='…')
    part = dict(type='tool', tool='skill', callID='c', state=state)
    opencode = [dict(type='tool_use', sessionID='s', part=part)]
    assert openings(gemini, NAMES) == ['pdf'] and openings(opencode, NAMES) == ['docx']

def test_a_damaged_stream_opens_nothing_and_stops_nothing():
    odd = [dict(type='assistant', message=dict(content=[4, dict(type='tool_use'), dict(name=1, input=[])])),
           dict(item=dict(type='command_execution', command=None)), dict(type='x', subtype='init'),
           dict(part=dict(tool=1, state=dict(input=3))), dict(tool_name='Read', parameters='pdf')]
    assert openings(odd, NAMES) == []

WILD = os.environ.get('SKILLRL_REAL_DATA')

@pytest.mark.skipif(not WILD or not Path(WILD).with_name('wild').exists(), reason='no recorded runs')
@pytest.mark.parametrize('file', ['claude_code/with_skill.stream.jsonl', 'codex/with_skill.exec.jsonl',
                                  'gemini/with_skill.stream.jsonl', 'opencode/with_skill.run.jsonl'])
def test_what_real_programs_printed_is_read(file):
    records = JsonlLog(Path(WILD).with_name('wild')/file).read(bad=[])
    assert openings(records, ['release-notes', 'notes']) == ['release-notes']

# ---- agents that print them ----
AGENT = '''import json, sys, time
from pathlib import Path
prompt, plays, calls = sys.argv[1:]
with open(calls, 'a') as f: f.write(prompt + chr(10))
skills = sorted(p.parent.name for p in Path.home().glob('.*/skills/*/SKILL.md'))
play = json.loads(Path(plays).read_text())
play = play.get(prompt, play.get(''))
for record in play['stream']:
    print(json.dumps(record).replace('{skills}', ' '.join(skills)), flush=True)
time.sleep(play.get('sleep', 0))
'''

@pytest.fixture
def pdf(tmp_path):
    "The folder of a skill between two others"
    for name in NAMES:
        (tmp_path/'skills'/name/'evals').mkdir(parents=True)
        (tmp_path/'skills'/name/'SKILL.md').write_text(
            f'---\nname: {name}\ndescription: For {name.replace("-", " ")} files.\n---\nDo it.\n')
        (tmp_path/'skills'/name/'evals'/'evals.json').write_text('THE ANSWERS')
    return tmp_path/'skills'/'pdf'

QUERIES = [dict(query=f'Fill in form {n} of the pdf', should_trigger=True) for n in range(6)]
QUERIES += [dict(query=f'Write letter {n}', should_trigger=False) for n in range(6)]

def asked(pdf, queries=QUERIES):
    (pdf/'evals'/'eval_queries.json').write_text(json.dumps(queries))
    return pdf

def playing(tmp_path, name, plays):
    "The agent `name`, which prints a stream for each query; that of '' for any other"
    (tmp_path/'agent.py').write_text(AGENT)
    (tmp_path/'plays.json').write_text(json.dumps(plays))
    files = f'{tmp_path/"plays.json"} {tmp_path/"calls.txt"}'
    return replace(AGENTS[name], command=f'{sys.executable} {tmp_path/"agent.py"} {{prompt}} {files}')

def lines(path):
    return path.read_text().splitlines() if path.exists() else []

QUICK = ProofConfig(rounds=2, parallel=4, effect=.5)

@pytest.mark.parametrize('cause', CAUSES)
@pytest.mark.parametrize('program', ['claude', 'codex'])
def test_an_agent_that_opens_the_skill_in_an_odd_way_is_right(pdf, tmp_path, cause, program):
    query, *streams, is_open = CAUSES[cause]
    idle = dict(claude=claude([LOOK]), codex=codex(['ls']))[program]
    stream = dict(stream=streams[program == 'codex'], sleep=60*(cause == 'slow start'))
    # What should open the skill in this test is what does, so that each mistake of the reader shows
    queries = [dict(query=query, should_trigger=is_open), dict(query='Write', should_trigger=not is_open)]
    good = dict(claude=claude([skill()]), codex=codex([cat()]))[program]
    plays = {query: stream, 'Write': dict(stream=idle if is_open else good)}
    config = replace(QUICK, rounds=1, timeout=3. if cause == 'slow start' else 60.)
    proof = prove_triggers(asked(pdf, queries), playing(tmp_path, program, plays), config=config)
    assert (proof.facts['recall']['mean'], proof.facts['false_opens']['mean']) == (1, 0)
    assert [q['unknown'] for q in proof.facts['queries']] == [0, 0]

def test_a_run_that_was_cut_before_it_opened_anything_is_not_a_zero(pdf, tmp_path):
    agent = playing(tmp_path, 'claude', {'': dict(stream=claude()[:1], sleep=60)})
    config = replace(QUICK, rounds=1, timeout=1., parallel=12)
    proof = prove_triggers(asked(pdf), agent, config=config)
    recall = proof.facts['recall']
    assert (recall['low'], recall['high'], recall['n'], proof.code) == (0, 1, 0, 1)
    assert all(q['unknown'] == 1 for q in proof.facts['queries']) and "unknown" in str(proof)

def good(opens=('pdf',), wrongly=()):
    "Streams that are right, but for the queries that open wrongly"
    return {q['query']: dict(stream=claude([skill(name) for name in (
        opens if q['should_trigger'] else wrongly)])) for q in QUERIES}

@pytest.mark.parametrize('plays, code', [
    (good(), 0), (good(['docx']), 2), (good(wrongly=['pdf']), 2), (good(wrongly=['docx']), 0)])
def test_the_exit_status_is_the_verdict(pdf, tmp_path, plays, code):
    proof = prove_triggers(asked(pdf), playing(tmp_path, 'claude', plays), config=replace(QUICK, rounds=4))
    assert proof.code == code

def test_a_table_says_which_skill_each_query_opened(pdf, tmp_path):
    agent = playing(tmp_path, 'claude', good(['docx', 'pdf'], ['pdf-forms']))
    proof = prove_triggers(asked(pdf), agent, config=QUICK)
    first, last = proof.facts['queries'][0], proof.facts['queries'][-1]
    n = first['runs']
    assert first['opened'] == dict(docx=n, pdf=n) and last['opened'] == {'pdf-forms': n}
    assert read_json(proof.folder/'proof.json')['queries'][0] == first
    assert f'{n} docx, {n} pdf ' in str(proof) and f'\n{n} pdf-forms ' in str(proof)

def test_precision_is_the_share_of_openings_that_are_right(pdf, tmp_path):
    plays = good() | {q['query']: dict(stream=claude([skill()])) for q in QUERIES[-2:]}
    proof = prove_triggers(asked(pdf), playing(tmp_path, 'claude', plays), config=replace(QUICK, effect=.2))
    assert proof.facts['precision']['mean'] == pytest.approx(6/8)
    assert proof.facts['false_opens']['mean'] == pytest.approx(1/3) and proof.code == 1


def test_the_neighbours_are_installed_and_their_evals_are_not(pdf, tmp_path):
    (pdf.parent/'.hidden').mkdir()
    (pdf.parent/'.hidden'/'SKILL.md').write_text('no')
    agent = playing(tmp_path, 'claude', {'': dict(stream=claude([skill()]))})
    (tmp_path/'agent.py').write_text(f"""{AGENT}
home = Path.home()/'.claude'/'skills'
names = sorted(p.relative_to(home).as_posix() for p in home.rglob('*'))
Path({str(tmp_path/'seen.txt')!r}).write_text(' '.join(names))""")
    prove_triggers(asked(pdf), agent, config=replace(QUICK, rounds=1))
    names = 'docx docx/SKILL.md pdf pdf-forms pdf-forms/SKILL.md pdf/SKILL.md'
    assert (tmp_path/'seen.txt').read_text() == names

def test_it_goes_on_where_it_was_stopped_and_pays_for_no_run_twice(pdf, tmp_path):
    agent, calls = playing(tmp_path, 'claude', good()), tmp_path/'calls.txt'
    config = replace(QUICK, effect=.2, rounds=4, max_runs=5, parallel=1)
    part = prove_triggers(asked(pdf), agent, config=config)
    assert part.code == 1 and 'max_runs' in part.facts['limit'] and len(lines(calls)) == 5
    assert 'It ended early: max_runs' in str(part)
    (part.folder/'proof.json').unlink() # As if it had been killed
    whole = prove_triggers(pdf, agent, config=replace(config, max_runs=0, parallel=2))
    assert whole.folder == part.folder and whole.code == 0
    assert len(lines(calls)) == sum(q['runs'] for q in whole.facts['queries']) == 48

def test_an_agent_that_cannot_start_is_no_verdict(pdf, tmp_path):
    agent = replace(playing(tmp_path, 'claude', {}), command='no-such-program {prompt}')
    with pytest.raises(RunStopped, match='there is no program'):
        prove_triggers(asked(pdf), agent, config=replace(QUICK, parallel=1))

@pytest.mark.parametrize('command', ['mini', f'{sys.executable} -c 1'])
def test_an_agent_without_a_stream_is_refused(pdf, capsys, command):
    assert main(['prove', str(asked(pdf)), '--agent', command, '--triggers']) not in (0, 2)
    words = capsys.readouterr().err
    assert 'does not say what it opens: name claude, codex, opencode or gemini' in words
    assert words.count('\n') == 1

def test_the_command_takes_a_file_and_prints_json(pdf, tmp_path, capsys, monkeypatch):
    agent = playing(tmp_path, 'claude', good())
    (tmp_path/'bin').mkdir()
    line = agent.command.replace('{prompt}', '"$prompt"')
    (tmp_path/'bin'/'claude').write_text(f'#!/bin/sh\nfor prompt; do :; done\nexec {line}\n')
    (tmp_path/'bin'/'claude').chmod(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path/"bin"}{os.pathsep}{os.environ["PATH"]}')
    file = tmp_path/'mine.json'
    file.write_text(json.dumps(QUERIES))
    words = ['prove', str(pdf), '--triggers', str(file), '--set', 'effect=.5', 'rounds=4']
    words += ['--output', str(tmp_path/'o')]
    assert main(words) == 0 and 'pdf: opens as it should' in capsys.readouterr().out
    assert main([*words, '--json']) == 0
    assert json.loads(capsys.readouterr().out)['recall']['mean'] == 1
    assert (tmp_path/'o'/'pdf-workspace'/'triggers'/'iteration-1'/'proof.json').exists()

# ---- queries ----
WAZA = '''skill: pdf
should_trigger_prompts:
  - prompt: "Fill in the form"
    reason: "what it is for"
    confidence: high
should_not_trigger_prompts:
  - prompt: "Write a letter"
'''
BOTH = {'Fill in the form': True, 'Write a letter': False}
LIST = json.dumps([dict(query=q, should_trigger=s, expected_skill='x') for q, s in BOTH.items()])

@pytest.mark.parametrize('name, text', [
    ('evals/trigger_tests.yaml', WAZA), ('trigger_tests.yaml', WAZA), ('evals/trigger_eval.json', LIST),
    ('evals/eval_queries.json', f'\ufeff{LIST}')])
def test_queries_are_found_as_people_have_them(pdf, name, text):
    (pdf/name).write_text(text, encoding='utf-8')
    assert load_queries(pdf) == BOTH

YES = '{"query": "a", "should_trigger": true}'
NO = YES.replace('true', 'false')

@pytest.mark.parametrize('text, wrong', [
    ('[{"should_trigger": true}]', '`query` is missing'), (f'[{YES.replace("a", "", 1)}]', 'query'),
    (f'[{YES.replace("true", "4")}, {NO}]', 'needs queries with'), (f'[{YES}]', 'needs queries with'),
    ('[]', 'needs queries with'), (f'[{YES}, {NO}]', 'needs queries with'),
    (f'[{YES}, {NO}, {YES.replace("a", "b", 1)}]', 'needs queries with'),
    ('[{"query": "a", "should_trigger": []}]', 'does not hold queries'),
    ('{"evals": []}', 'needs queries with'), ('4', 'does not hold queries'),
    ('["a"]', 'does not hold queries'), ('[', 'JSON')])
def test_what_is_no_list_of_queries_is_refused_in_one_sentence(pdf, text, wrong):
    (pdf/'q.json').write_text(text)
    with pytest.raises(ValueError, match=wrong) as e:
        load_queries(pdf, pdf/'q.json')
    assert 'q.json' in str(e.value) and '\n' not in str(e.value)

@pytest.mark.parametrize('text', ['a: [', 'a: &a [*a]', '\x00', 'should_trigger: 4', '- - - -'])
def test_yaml_that_will_not_do_is_refused_in_one_sentence(pdf, text):
    (pdf/'q.yaml').write_text(text)
    with pytest.raises(ValueError, match='q.yaml') as e:
        load_queries(pdf, pdf/'q.yaml')
    assert '\n' not in str(e.value)

def test_a_file_that_is_not_there_or_would_wait_is_refused(pdf):
    os.mkfifo(pdf/'q.json')
    for file in (None, pdf/'q.json', pdf):
        with pytest.raises(ValueError, match='is no file: write'):
            load_queries(pdf, file)

# ---- intervals ----
def test_a_run_of_which_nothing_is_known_widens_the_interval_at_both_ends():
    whole, part = _share([1]*9 + [0]*9, .025), _share([1]*9 + [0]*9 + [None]*6, .025)
    assert (part.mean, part.n) == (whole.mean, whole.n)
    assert part.low < whole.low - .05 and part.high > whole.high + .05

def test_both_questions_have_to_be_answered():
    sure, unsure = (Rate(.95, .9, 1, 40), Rate(.05, 0, .1, 40)), (Rate(.95, .7, 1, 9), Rate(.05, 0, .3, 9))
    for recall, false, verdict in ((*sure, 'opens as it should'), (sure[0], unsure[1], 'not enough evidence'),
                                   (unsure[0], sure[1], 'not enough evidence')):
        assert _verdict(dict(recall=recall, false_opens=false), .2) == verdict

def test_the_looks_share_the_error():
    assert sum(_level(k, 5) for k in range(1, 6)) == pytest.approx(.025)

@cache
def bound(hits, n, level):
    return lower_bound([1]*hits + [0]*(n - hits), level)

def falsely(chances, rounds, seed, tries=1500):
    "How often a recall whose mean is that of `chances` is said to be above it at some look, and below it"
    rng = random.Random(seed)
    above = below = 0
    mean, n = sum(chances)/len(chances), len(chances)
    for _ in range(tries):
        hits = 0
        high = low = False
        for k in range(1, rounds + 1):
            hits += sum(rng.random() < p for p in chances)
            level = _level(k, rounds)
            high |= bound(hits, n*k, level) > mean
            low |= 1 - bound(n*k - hits, n*k, level) < mean
        above, below = above + high, below + low
    return above/tries, below/tries

@pytest.mark.parametrize('chances', [
    [.8]*10, [1]*8 + [0]*2, [1]*5 + [.6]*5, [.9]*4 + [.3], [.5, .95], [.2]*10])
def test_the_intervals_hold_at_every_look_and_for_unequal_queries(chances):
    assert max(falsely(chances, 8, 0)) <= .025 + 3*(.025/1500)**.5

def test_good_triggers_are_found_and_middling_ones_are_not():
    rng, found = random.Random(0), []
    for chance in (.97, .8):
        n = 0
        for _ in range(40):
            rows = []
            for k in range(1, 9):
                rights = [(side, rng.random() < chance) for side in (True, False)*10]
                rows += [dict(should=side, is_open=int(right == side)) for side, right in rights]
                verdict = _verdict(_rates(rows, _level(k, 8)), .2)
                if verdict != 'not enough evidence':
                    break
            n += verdict == 'opens as it should'
        found.append(n)
    assert found[0] >= 38 and found[1] <= 2

def test_a_dry_run_begins_nothing(pdf, tmp_path, capsys):
    words = ['prove', str(asked(pdf)), '--triggers', '--dry-run', '--set', 'rounds=3']
    assert main(words) == 0 and not pdf.with_name('pdf-workspace').exists()
    assert 'pdf: 12 runs a round, at most 36 runs. Nothing was begun.' in capsys.readouterr().out
