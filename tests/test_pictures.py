"A picture that a function of ours returns is shown in a real kernel: once, with nothing imported for it"

SHOWN = {
    'from skillrl.training.evaluate import plot_learning; plot_learning({"one": [0, 1]})': 1,
    'fig = plot_learning({"one": [0, 1]})': 0,
}

def test_shown():
    import nbformat # Slow, and above it would be loaded by every worker
    from nbclient import NotebookClient
    nb = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, SHOWN)])
    NotebookClient(nb, kernel_name='python3', timeout=120).execute()
    assert [sum('image/png' in o.get('data', {}) for o in c.outputs) for c in nb.cells] == [*SHOWN.values()]
