"Intervals where they were measured, colours that differ for everybody"
import json, re, subprocess, sys
from pathlib import Path
from pages import name_of, pages
import numpy as np
from skillrl.core.plots import PALETTE, band, bars, figure, name_line

def test_a_legend_names_each_line_and_a_band_has_its_colour():
    fig, ax = figure()
    band(ax, [0, 1], [0, 1], [0, 1], [0, 1], 'first')
    band(ax, [0, 1], [1, 0], [1, 0], [1, 0], 'second', PALETTE['green'])
    ax.plot([0, 1], [1, 1])
    name_line(ax, 'third')
    assert [t.get_text() for t in ax.get_legend().texts] == ['first', 'second', 'third']
    assert [c.get_facecolor()[0][:3].tolist() for c in ax.collections] == [rgb('blue'), rgb('green')]

def test_a_band_holds_its_interval_and_may_have_gaps():
    fig, ax = figure()
    band(ax, [0, 1, 2], [.5, .5, .5], [.4, float('nan'), .3], [.6, float('nan'), .8])
    ys = np.concatenate([p.vertices[:, 1] for p in ax.collections[0].get_paths()])
    assert set(np.round(ys[np.isfinite(ys)], 6)) == {.4, .6, .3, .8}
    band(ax, [], [], [], [], 'nothing measured yet')

def test_bars_span_their_intervals():
    fig, ax = figure()
    bars(ax, ['a', 'b'], [.5, .25], [.4, .1], [.6, .5], [PALETTE['blue'], PALETTE['grey']])
    spans, dots = ax.collections
    assert [s.tolist() for s in spans.get_segments()] == [[[.4, 0], [.6, 0]], [[.1, 1], [.5, 1]]]
    assert dots.get_offsets().tolist() == [[.5, 0], [.25, 1]]
    assert [t.get_text() for t in ax.texts] == ['0.50', '0.25']
    assert [t.get_text() for t in ax.get_yticklabels()] == ['a', 'b']
    top, bottom = (ax.transData.transform((0, y))[1] for y in (0, 1))
    assert top > bottom
    assert [c[:3].tolist() for c in spans.get_colors()] == [rgb('blue'), rgb('grey')]

def test_a_figure_is_closed_and_has_two_spines_and_the_palette():
    import matplotlib.pyplot as plt
    fig, axes = figure(7, 3, panels=2)
    assert plt.get_fignums() == [] and fig.get_size_inches().tolist() == [7, 3]
    for ax in axes:
        assert [s for s in ax.spines if ax.spines[s].get_visible()] == ['left', 'bottom']
        assert [ax.plot([0, n])[0].get_color() for n in range(7)] == [*PALETTE.values()]

# --- the colours, as somebody sees them who lacks one kind of cone (Viénot et al. 1999, linear RGB)

def rgb(name):
    from matplotlib.colors import to_rgb
    return list(to_rgb(PALETTE[name]))

def test_matplotlib_is_loaded_by_the_first_figure_only():
    told = 'import sys, skillrl.core.plots; print("matplotlib" in sys.modules)'
    assert subprocess.check_output([sys.executable, '-c', told], text=True).strip() == 'False'

# --- one style

ROOT = Path(__file__).parent.parent
OWN_STYLE = [r'(import|from) matplotlib', r'\bplt\.', r'\.spines', 'fill_between', r'\.legend\(',
             'tight_layout', r"color='(C\d|#|tab:)"]
DRAWS = re.compile('|'.join(OWN_STYLE))
ALONE = {'core.plots', 'viewers.page'} # The style itself, and how a figure becomes SVG

def own_style(page):
    "What `page` draws with that is a style of its own"
    cells = json.loads(page.read_text(encoding='utf-8'))['cells']
    code = [''.join(c['source']) for c in cells if c['cell_type'] == 'code']
    return [found[0] for source in code for found in DRAWS.finditer(source)]

def test_no_page_has_a_style_of_its_own():
    others = [p for p in pages() if name_of(p) not in ALONE]
    own = {name_of(p): found for p in others if (found := own_style(p))}
    assert len(others) > 100
    assert own == {}, 'draw through skillrl.core.plots'
