"A key that a server echoes in another spelling does not reach what is shared"

from base64 import b64encode, urlsafe_b64encode
import pytest
from skillrl.llm.reply import redact
from skillrl.llm.reply import without_secrets
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

def test_what_is_no_key_is_left_as_it_is():
    text = 'egg 1 in the fridge, 6567672031'
    assert redact(text, [KEYS[0], 'k', '']) == text

def test_a_key_in_an_address_is_not_told():
    assert _shown(f'https://me:{KEYS[2]}@mug/{KEYS[0]}/v1?key={KEYS[2]}', KEYS) == 'https://mug/[redacted]/v1'
