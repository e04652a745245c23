"What strangers write cannot move a terminal: no command prints a control character of theirs"

import io, json
import pytest
from skillrl.cli.main import COMMANDS, main
from skillrl.cli.flags import Progress
from skillrl.core.config import SkillRLConfig
from skillrl.core.runfolder import RunFolder
from skillrl.skills.bank import SkillBank
from skillrl.skills.bank import Skill

EVIL = '\x1b[2J\x1b]0;mine\x07\x9b31m\u202egpj\u2066\u200b\r\x08'
OBEYED = set(EVIL) - set('[2J]0;mine31mgpj')
NAME = EVIL.replace('/', '')

def printed(capsys, *words):
    try:
        main(list(words))
    except SystemExit:
        pass
    got = capsys.readouterr()
    return got.out + got.err

@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    skill = Skill('a', f'Eggs {EVIL}', f'Look {EVIL} in fridge 1.', source_tasks=[EVIL])
    SkillBank([skill]).save('bank.json')
    (tmp_path/'one').mkdir()
    (tmp_path/'one/SKILL.md').write_text(f'---\nname: one\ndescription: d\n---\n{EVIL} text\n')
    with RunFolder(tmp_path/'run', SkillRLConfig().to_dict()) as run:
        run.commit(dict(phase=f'rl {EVIL}', done=0, versions={}))
    told = f'## Success\n\n| a |\n|---|\n| {EVIL} |\n\n## What changed\n\n{EVIL}\n'
    (tmp_path/'run/report.md').write_text(told)
    row = json.dumps(dict(id=EVIL, task=EVIL, category=EVIL, steps=[]))
    (tmp_path/'episodes.jsonl').write_text(row + '\n')
    (tmp_path/'config.json').write_text(json.dumps({'rl': {EVIL: 1}}))
    return tmp_path

SHOWN = ['inspect one', 'inspect run', 'inspect bank.json', 'inspect bank.json --find a',
         'inspect episodes.jsonl', 'inspect config.json']

@pytest.mark.parametrize('line', SHOWN)
def test_control_characters_in_what_is_inspected_are_spelled_out(here, capsys, line):
    seen = printed(capsys, *line.split())
    assert '\\x1b' in seen or 'gpj' in seen
    assert not OBEYED & set(seen)

@pytest.mark.parametrize('command', [c.name for c in COMMANDS if c.name != 'serve'])
def test_control_characters_in_a_sentence_of_any_command_are_spelled_out(here, capsys, command):
    for words in ([NAME], [f'--{NAME}'], ['--config', NAME], ['--config', 'config.json'], ['--seed', NAME]):
        seen = printed(capsys, command, *words)
        assert seen and not OBEYED & set(seen)

class Terminal(io.StringIO):
    def isatty(self):
        return True

def test_our_own_bars_still_move_the_cursor(monkeypatch):
    from skillrl.cli.main import _Screen
    out = Terminal()
    with Progress(out=_Screen(out)) as shown:
        shown('rl', 1, 2)
        shown('rl', 2, 2)
    assert '\r' in out.getvalue() and '\\r' not in out.getvalue() and '100%' in out.getvalue()
