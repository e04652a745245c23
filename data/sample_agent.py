"""An agent without a model: it writes what a prompt asks for, and keeps those rules of a skill that it finds.

`skillrl prove --sample` runs this text with a prompt and with the folder of a skill, or nothing for that. No brace
stands around a word here, for in the command of an agent it would be filled in."""
import re, sys
from hashlib import sha256
from pathlib import Path

prompt, skill = sys.argv[1], ''.join(sys.argv[2:])
rules = Path(skill, 'SKILL.md').read_text(encoding='utf-8') if skill else ''
name, does, price = re.search(r'tag of (.*?), which (.*?) and costs (\d+)', prompt).groups()

def keeps(rule):
    "Agents forget: this one a rule in eight, the same with the same prompt"
    return sha256((rule + ' ' + prompt).encode()).digest()[0] >= 32

code = re.search(r'`(\[\w+-\d\])`', rules)
things = re.split(' and |, ', does)
first = '# ' + name.capitalize()
if code and keeps('code'):
    first += ' ' + code[1]
body = 'It ' + does + '.'
if 'bullet' in rules and keeps('bullets') or len(things) > 2:
    body = '\n'.join('- ' + thing for thing in things)
last = 'EUR ' + price + '.00' if 'two decimals' in rules and keeps('price') else price + ' euros'
Path('TAG.md').write_text('\n\n'.join([first, body, last]) + '\n', encoding='utf-8')
print('The tag is in TAG.md.')
