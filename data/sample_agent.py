"""An agent without a model: it writes what a prompt asks for, and keeps those rules of a skill that it finds.

`skillrl prove --sample` runs it with a prompt and with the folder of a skill, or with nothing for that."""
import re, sys
from hashlib import sha256
from pathlib import Path

prompt, skill = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ''
rules = Path(skill, 'SKILL.md').read_text(encoding='utf-8') if skill else ''
name, does, price = re.search(r'tag of (.*?), which (.*?) and costs (\d+)', prompt).groups()

def keeps(rule):
    "Agents forget: this one a rule in eight, the same with the same prompt"
    return sha256(f'{rule} {prompt}'.encode()).digest()[0] >= 32

code = re.search(r'`(\[\w+-\d\])`', rules)
things = re.split(' and |, ', does)
first = f'# {name.capitalize()}'
if code and keeps('code'):
    first += f' {code[1]}'
listed = 'bullet' in rules and keeps('bullets') or len(things) > 2
body = '\n'.join(f'- {thing}' for thing in things) if listed else f'It {does}.'
last = f'EUR {price}.00' if 'two decimals' in rules and keeps('price') else f'{price} euros'
Path('TAG.md').write_text(f'{first}\n\n{body}\n\n{last}\n', encoding='utf-8')
print('The tag is in TAG.md.')
