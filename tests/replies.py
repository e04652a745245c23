"What a language model answers when it is asked for lessons, and how a question to one is read"
import re

def skill(**fields):
    "A lesson; `fields` replace those named or add to them"
    return dict(title='Heat, then carry', principle='Heat the thing before you carry it.',
                when_to_apply='It should be hot.', category='heat', evidence=[1]) | fields

def mistake(**fields):
    return dict(description='Leaves it cold', why_it_happens='The microwave is far.',
                how_to_avoid='Heat it first.', category='heat', evidence=[1]) | fields

def episodes_in(messages):
    "Kind, number and whether it was won, of each episode in a question to a teacher"
    tops = re.findall(r'^Episode (\d+), of the kind "(.*?)", was (won|lost)', messages[-1]['content'], re.M)
    return [(kind, int(number), end == 'won') for number, kind, end in tops]

_FENCED = re.compile(r'\A(`{3,})markdown\n(?s:(.*))\n\1\Z')
_HEADING = re.compile(r'^(`{3,})(?!`)(?s:.*?)\n\1$|^## (.*)$', re.M) # Or a fence, in which no heading counts

def sections(user):
    "A question to the optimizer taken apart: text by heading, the skill without its fence"
    heads = [m for m in _HEADING.finditer(user) if m[2] is not None]
    ends = [*(m.start() for m in heads[1:]), len(user)]
    found = {m[2]: user[m.end():end].strip('\n') for m, end in zip(heads, ends)}
    return {name: _FENCED.sub(r'\2', text) for name, text in found.items()}
