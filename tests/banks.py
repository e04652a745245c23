"What tests ask of a bank"
from skillrl.skills.bank import Skill

def skills(bank, category=None):
    "The skills of `bank`, or those of one category, 'general' included"
    return [o for o in bank.items() if isinstance(o, Skill) and category in (None, o.category)]

def counts(bank):
    "Section → number of entries"
    specific = {c: len(its) for c, its in bank.task_specific_skills.items()}
    return dict(general=len(bank.general_skills)) | specific | dict(mistakes=len(bank.common_mistakes))

def next_id(bank, category):
    "The id that the next skill of `category` gets"
    return bank.copy().add(Skill('', 't', 'p', category=category)).id

def remove(bank, id):
    "Take the entry called `id` out of `bank`; the id stays reserved"
    for its in (bank.general_skills, *bank.task_specific_skills.values(), bank.common_mistakes):
        its[:] = [o for o in its if o.id != id]
    bank.removed.append(id)
