"A picture that a function of ours returns is shown in a real kernel: once, with nothing imported for it"
import nbformat
from nbclient import NotebookClient

SHOWN = {
    'from skillrl.training.evaluate import plot_learning; plot_learning({"one": [0, 1]})': 1,
    'fig = plot_learning({"one": [0, 1]})': 0,
    'from skillrl.skills.bank import Skill, SkillBank\n'
    'from skillrl.viewers.bank_view import plot_usefulness\n'
    'bank = SkillBank([Skill("gen_001", "Look", "Look first.", stats=dict(retrieved=2, wins=1, losses=1))])\n'
    'plot_usefulness(bank)': 1,
}

def test_shown():
    nb = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, SHOWN)])
    NotebookClient(nb, kernel_name='python3', timeout=120).execute()
    assert [sum('image/png' in o.get('data', {}) for o in c.outputs) for c in nb.cells] == [*SHOWN.values()]
