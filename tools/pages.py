"""The pages in the order in which they are read: the spine, and then room by room from the bottom to the top.

A room is a folder of `nbs/` and a package of `skillrl/`. Several rooms make a wing."""
import re
from pathlib import Path

NBS = Path(__file__).resolve().parent.parent/'nbs'
WINGS = { # Wing → its rooms, bottom to top
    'The loop, in depth': ['core', 'llm', 'skills', 'envs', 'agent', 'training'],
    'The worlds': ['worlds'],
    'The workshop': ['sessions', 'proof', 'skillopt'],
    'The shell': ['serve', 'viewers', 'cli'],
    'Extending': ['extending'],
}
ROOMS = [room for rooms in WINGS.values() for room in rooms]

def name_of(
    path:Path, # Of a page
)->str: # `skills.trials` for `nbs/skills/10_trials.ipynb`, `skills.bank` for `nbs/04_skills.bank.ipynb`
    "Name of the module that the page exports, or of the page alone"
    *folders, stem = path.relative_to(NBS).with_suffix('').parts
    return '.'.join([*folders, re.sub(r'^\d+_', '', stem)])

def room_of(
    path:Path, # Of a page
)->str: # '' on the spine
    "Folder of `nbs/` in which the page lies"
    folders = path.relative_to(NBS).parent.parts
    return folders[0] if folders else ''

def _place(path):
    room = room_of(path)
    return 1 + ROOMS.index(room) if room else 0, path

def pages()->list[Path]:
    "All pages, in the order in which they are read"
    return sorted((p for p in NBS.rglob('*.ipynb') if '.ipynb_checkpoints' not in p.parts), key=_place)

def spine()->list[Path]:
    "The pages that tell the story"
    return [p for p in pages() if not room_of(p)]
