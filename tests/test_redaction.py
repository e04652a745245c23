"""No key reaches what is kept: one that we know in any spelling, and what looks like one.

`secret_kinds.txt` holds how secrets stand in everyday text, `ordinary_texts.txt` what only looks like it."""
import random, re, string
from base64 import b64encode, urlsafe_b64encode
from collections import Counter
from pathlib import Path
import pytest
from skillrl.sessions.agent_sessions import AgentSession
from skillrl.core.secrets import redact, without_secrets
from skillrl.llm.service import _shown

KEYS = 'mug-0123456789abcdef', 'p?>~p?>~lantern/+??>>', 'k' * 31

@pytest.mark.parametrize('key', KEYS)
@pytest.mark.parametrize('before', ['', 'x', 'xy', 'Bearer ', '{"k": "'])
@pytest.mark.parametrize('after', ['', '"}', 'z'])
def test_a_key_in_base64_or_hex_is_blotted_out(key, before, after):
    "Wherever it begins among the bytes that are encoded, in both alphabets and in digits of both cases"
    raw = (before + key + after).encode()
    for form in (b64encode(raw).decode(), urlsafe_b64encode(raw).decode(), raw.hex(), raw.hex().upper()):
        told = redact(f'you sent {form} to us', [key])
        assert '[redacted]' in told
        assert form not in told
        assert len(told) < len(f'you sent {form} to us') - len(key)//2
        assert form not in str(without_secrets({'error': [form]}, [key]))

def test_all_that_base64_holds_of_a_key_goes_and_no_more():
    "`xymug-0` begins with two other bytes, which end within the third character"
    assert redact('eHltdWctMA==', ['mug-0']) == 'eHl[redacted]A=='

def test_what_is_no_key_is_left_as_it_is():
    text = 'egg 1 in the fridge, 6567672031, 6a616d'
    assert redact(text, [KEYS[0], 'k', 'jam', '']) == text # Three bytes are too few to be known in hex

def test_a_key_in_an_address_is_not_told():
    assert _shown(f'https://me:{KEYS[2]}@mug/{KEYS[0]}/v1?key={KEYS[2]}', KEYS) == 'https://mug/[redacted]/v1'

# --- keys that nobody has told us ---
LETTERS = {'': string.ascii_letters + string.digits, 'x': string.hexdigits[:16],
           'U': string.ascii_uppercase + '234567', 'b': string.ascii_letters + string.digits + '+/'}

def rows(name):
    lines = (Path(__file__).parent/name).read_text(encoding='utf-8').splitlines()
    return [line.replace('⏎', '\n').replace('␛', '\x1b') for line in lines if not line.startswith('# ')]

def filled(line, rng):
    "(text, secrets in it) of a row"
    secrets = []
    def some(m):
        digit = '' if m[2] else rng.choice(string.digits) # Without one it may be a word
        secrets.append(''.join(rng.choices(LETTERS[m[2]], k=int(m[1]) - len(digit))) + digit)
        return secrets[-1]
    return re.sub(r'\{(\d+)([xUb]?)\}', some, line), secrets

KINDS = rows('secret_kinds.txt')

def is_there(secret, text):
    "Is it, or all but its ends, in `text`?"
    bare = re.sub('\x1b\\[[0-9;]*m|\u200b', '', text)
    return any(part in bare for part in [secret, secret[3:-2]] if len(part) > 3)

@pytest.mark.parametrize('seed', range(3))
def test_no_everyday_kind_of_secret_passes(seed):
    rng = random.Random(seed)
    found = [(line, *filled(line, rng)) for line in KINDS]
    assert len(KINDS) > 220 and all(secrets for _, _, secrets in found)
    for before, after in (('', ''), ('$ ', '\nok'), ('It said:\n', '\n3 passed')):
        passed = [line for line, text, secrets in found
                  if any(is_there(s, redact(before + text + after)) for s in secrets)]
        assert passed == []
    assert [line for line, text, _ in found if redact(redact(text)) != redact(text)] == []

def test_what_only_looks_like_a_secret_stays():
    texts = rows('ordinary_texts.txt')
    assert len(texts) > 120 and [text for text in texts if redact(text) != text] == []
    whole = '\n'.join(texts)
    assert redact(whole) == whole

@pytest.mark.parametrize('width', [60, 72, 80, 100, 120])
def test_a_key_that_a_terminal_has_wrapped_goes_whole(width):
    rng = random.Random(width)
    bearer = 'Authorization: Bearer eyJ{30}.{200}.{43}'
    for line in ('export OPENAI_API_KEY={120}', bearer, 'remote: ghp_{150}'):
        text, secrets = filled(line, rng)
        wrapped = '\n'.join(text[i:i + width] for i in range(0, len(text), width))
        out = redact(f'$ env\n{wrapped}\n3 passed\n')
        assert not any(s[i:i + 8] in out for s in secrets for i in range(0, len(s) - 8, 4)), out
        assert out.endswith('3 passed\n')
    lines = 'A line that is longer than a terminal is wide, and ends with TOKEN=a1b2c3d4e5\ndone\n'
    assert redact(lines).endswith('\ndone\n')

@pytest.mark.parametrize('inner', ['export API_KEY=8f2c99ab01', 'sk-0a1b2c3d4e5f6071',
                                   'ada:x\npassword: tulip77'])
def test_base64_is_no_lock(inner):
    for code in (b64encode(inner.encode()).decode(), urlsafe_b64encode(f'{inner}\n'.encode()).decode()):
        assert redact(f'echo {code} | base64 -d') == 'echo [redacted] | base64 -d'
    plain = b64encode(b'a mug is in the sink, and the tea is cold').decode()
    assert redact(f'echo {plain} | base64 -d') == f'echo {plain} | base64 -d'

def test_a_known_key_is_found_under_colours():
    key = 'teapot and spoon'
    assert redact('it was tea\x1b[1mpot and\u200b spoon!', [key]) == 'it was [redacted]!'
    assert redact('a \x1b[1mmug', [key]) == 'a \x1b[1mmug'
    assert redact(f'{key} 7', ['teapot', key, 'spoon 7']) == '[redacted] 7' # The longest goes first

@pytest.mark.parametrize('at', range(0, 40, 5))
def test_no_half_of_a_secret_stays_where_a_long_text_is_cut(at):
    "Its shape needs both ends, and other secrets before and behind it shrink to little"
    secret = 'tulip-77-and-mug-4417'
    shrinks = ('ghp_' + 'Ab3dEf7hIj'*9 + ' ')*90
    text = f'{shrinks[:8000 - at]} https://ada:{secret}@git.example.com {"z "*9000}'
    out = AgentSession('a', 'b').clean(text) + AgentSession('a', 'b').clean(text[::-1].replace(
        secret[::-1], secret).replace(':ada//:sptth', '@x').replace('moc.elpmaxe.tig@', ' https://ada:'))
    assert not any(secret[i:i + 8] in out for i in range(len(secret) - 8))

def test_homes_are_masked_only_where_that_is_asked():
    path = '/home/ada/shop/cart.py'
    assert (redact(path), redact(path, homes=True)) == (path, '~/shop/cart.py')
    found = Counter()
    redact(f'{path} /home/ada/x key: sk-0a1b2c3d4e5f60718293 password: tulip77', counts=found, homes=True)
    assert +found == dict(home=2, key=1, password=1)
