"Banks that others published, where SKILLRL_REAL_DATA names a folder with them"
import os
from pathlib import Path
import pytest

PUBLISHED_BANKS = ('alfworld/claude_style_skills.json', 'webshop/claude_style_skills.json',
                   'search/claude_style_skills_search.json', '../krill/sample_skill_bank.json')

def published_bank(name):
    "Path of one of `PUBLISHED_BANKS`; the test is skipped where it is not there"
    folder = os.environ.get('SKILLRL_REAL_DATA')
    if not folder:
        pytest.skip('SKILLRL_REAL_DATA is not set: it should name a folder with the official data')
    path = Path(folder)/name
    if not path.exists():
        pytest.skip(f'{name} is not beside SKILLRL_REAL_DATA')
    return path
