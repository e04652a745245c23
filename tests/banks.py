"What tests ask of a bank"
import re
from copy import deepcopy
from skillrl.envs.alfworld.scene import CATEGORIES, ROUTER
from skillrl.envs.alfworld.teacher import AlfworldTeacher
from skillrl.skills.bank import Skill
from skillrl.skills.distillation import distill
from skillrl.skills.skill_md import split_text

def alfworld_bank(trajs, teacher=None):
    "What ALFWorld's teacher, or another one, makes of `trajs`"
    return distill(trajs, teacher or AlfworldTeacher(), tuple(CATEGORIES), ROUTER)

def skills(bank, category=None):
    "The skills of `bank`, or those of one category, 'general' included"
    return [o for o in bank.items() if isinstance(o, Skill) and category in (None, o.category)]

def counts(bank):
    "Section → number of entries"
    specific = {c: len(its) for c, its in bank.task_specific_skills.items()}
    return dict(general=len(bank.general_skills)) | specific | dict(mistakes=len(bank.common_mistakes))

def next_id(bank, category):
    "The id that the next skill of `category` gets"
    return deepcopy(bank).add(Skill('', 't', 'p', category=category)).id

def remove(bank, id):
    "Take the entry called `id` out of `bank`; the id stays reserved"
    for its in (bank.general_skills, *bank.task_specific_skills.values(), bank.common_mistakes):
        its[:] = [o for o in its if o.id != id]
    bank.removed.append(id)

def rule_breaks(folder):
    "What breaks the agentskills rules in the `SKILL.md` of `folder`, or in those of the folders in it"
    own = folder/'SKILL.md'
    return [f for f in ([own] if own.exists() else sorted(folder.glob('*/SKILL.md'))) if not follows_rules(f)]

def follows_rules(file):
    front = split_text(file.read_text(encoding='utf-8'))[0]
    name, about = front.get('name', ''), front.get('description', '')
    named = re.fullmatch(r'[^\W_]+(-[^\W_]+)*', name) and name == name.lower() == file.resolve().parent.name
    fields = {'name', 'description', 'license', 'compatibility', 'metadata', 'allowed-tools'}
    texts = all(isinstance(v, str) for v in front['metadata'].values())
    return bool(named and len(name) <= 64 and 0 < len(about.strip()) and len(about) <= 1024 and texts
                and front.keys() <= fields)
