"""The documentation without a network.

    python tools/site.py build     makes `_site/`
    python tools/site.py check     follows every link in it
    python tools/site.py readme    writes README.md, and nbs/llms.txt, the pages for a reader that is a model

nbdev runs what `show_doc` needs of each notebook and prepares its cells; here they become Markdown pages
(`_proc_md/`) for Zensical, the formulas as MathML, so that the result needs no script and no network.
Page and anchor names are those `nbdev_docs` gives."""
import argparse, base64, inspect, os, re, shutil, subprocess, sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit
import fastcore.docments
import yaml
from execnb.nbio import read_nb
from latex2mathml.converter import convert
from nbdev.config import get_config
from nbdev.serve import FilterDefaults
from pages import NBS, ROOMS, WINGS, name_of, room_of
from pages import pages as all_pages

def lenient_signature(f, eval_str=False, **kw):
    "The signature of `f`; a type that its module imports for readers only stays as it is written"
    try:
        return inspect.signature(f, eval_str=eval_str, **kw)
    except NameError:
        return inspect.signature(f, **kw)

fastcore.docments.signature = lenient_signature
os.environ['IN_TEST'] = '1' # What a page shows to its reader only is not run
cfg = get_config()
root = cfg.config_path
pages, dest = root/'_proc_md', root/'_site'
CHAPTERS = { # Room → chapter
    'core': 'Core', 'llm': 'Language models', 'skills': 'Skills', 'envs': 'Environments',
    'agent': 'The agent', 'training': 'Training and judging', 'worlds': 'Worlds', 'sessions': 'Sessions',
    'proof': 'Proof', 'skillopt': 'SkillOpt', 'serve': 'Serving', 'viewers': 'Viewers', 'cli': 'Commands',
}
GOALS = { # What users want to do → the page that does it
    'Know whether a skill helps your agent': 'proof.prove',
    'Know whether your agent opens a skill when it should': 'proof.triggers',
    'Prove all skills of a repository, or what a branch changes': 'proof.family',
    'Find skills in the sessions of your agent': 'sessions.habits',
    'Run it: every command, flag and setting': 'cli.main',
    'Know what a run will take, and whether this machine is fit': 'training.plan',
    'Train, and read the report': 'training.pipeline',
    'Go one step at a time': 'cli.steps',
    'Look at banks and runs': 'viewers.inspection',
    'Edit a skill for an agent': 'cli.jobs',
    'Make tools of your own a world': 'worlds.mcp.world',
    'Bring a world of your own': 'extending.your_own_world',
    'Bring questions of your own': 'skillopt.your_own_questions',
    'Serve games to other agents': 'serve.krill',
}

# ---- Markdown ----

def joined(text):
    return ''.join(text) if isinstance(text, list) else text

def fence(text, lang=''):
    "`text` as a block of code, between more backticks than any row of them in it"
    longest = max(map(len, re.findall('`+', text)), default=0)
    marks = '`' * max(3, longest + 1)
    return f'{marks}{lang}\n{text.strip()}\n{marks}'

CODE = r'(```.*?```|`[^`\n]*`)'
MATHS = re.compile(CODE + r'|\$\$(.+?)\$\$|(?<![\\\w$])\$(?!\s)([^$\n]+?)(?<!\s)\$(?!\d)', re.DOTALL)

def formula(latex, display):
    "`latex` as MathML, in which Markdown finds nothing of its own"
    out = convert(latex, display=display)
    return re.sub(r'[*_|]', lambda c: f'&#{ord(c[0])};', out)

def mathml(text):
    "`text` with its dollar maths as MathML"
    def replaced(m):
        code, block, inline = m.groups()
        if code:
            return code
        if block:
            return f'\n\n<div class="math">{formula(block, "block")}</div>\n\n'
        return f'<span class="math">{formula(inline, "inline")}</span>'
    return MATHS.sub(replaced, text)

def without_links(block):
    return re.sub(r'\[(`[^`\n]+`)\]\([^)\n]*\)', r'\1', block)

def links(text, folder=NBS):
    "Links of a page in `folder`, and nbdev's to names, as links between Markdown files; none inside code"
    text = re.sub(r'(`{3,}).*?\1', lambda m: without_links(m[0]), text, flags=re.DOTALL)
    home = re.escape((cfg.doc_host + cfg.doc_baseurl).rstrip('/'))

    def to_page(m):
        return f']({name_of((folder/m[1]).resolve())}.md{m[2] or ""})'

    def to_name(m):
        return f']({m[1].replace("/", ".")}.md{m[2] or ""})'
    text = re.sub(r'\]\(([\w./-]+\.ipynb)(#[\w.-]+)?\)', to_page, text)
    return re.sub(rf'\]\((?:{home})?/?([\w./-]+)\.html(#[\w.]+)?\)', to_name, text)

# ---- the cells of a processed notebook ----

def anchored(m):
    "A heading of `show_doc` with its anchor"
    marks, name = m.groups()
    return f'{marks} {name} {{#{name.lower()}}}'.replace('__', r'\_\_')

def api_box(text, source_follows):
    "What `show_doc` wrote, in a box whose heading is the anchor"
    text = re.sub(r'^---\n\n', '', text)
    text = re.sub(r'^(#{2,5}) ([\w.]+)$', anchored, text, flags=re.MULTILINE)
    link = r'<a class="source" href="\1">source</a>' if cfg.git_url else ''
    text = re.sub(r'\[source\]\((.*?)\)\{.*?\}\n*', link, text)
    text = text.replace('*Call self as a function.*', '') # What nbdev says where a function says nothing
    signatures = ''.join(re.findall(r'```python\n.*?```', text, flags=re.DOTALL))
    words = set(re.findall(r'\w+', signatures)) # An argument is no link
    text = re.sub(r'\[(`([a-z]\w*)`)\]\([^)\n]*\)', lambda m: m[1] if m[2] in words else m[0], text)
    if source_follows:
        text = re.sub(r'```python\n.*?```\n*', '', text, count=1, flags=re.DOTALL)
    return f'<div class="api" markdown>\n\n{text.strip()}\n\n</div>'

def output_of(output, name, folder):
    "A saved output as Markdown; a picture goes into `folder`"
    data = output.get('data', {})
    if 'image/png' in data:
        (folder/f'{name}.png').write_bytes(base64.b64decode(joined(data['image/png'])))
        return f'![]({name}.png)'
    for kind in ('image/svg+xml', 'text/markdown', 'text/html'):
        if kind in data:
            return joined(data[kind])
    text = joined(output.get('text') or data.get('text/plain') or output.get('traceback', ''))
    text = re.sub(r'\x1b\[[0-9;]*m', '', text)
    if not text.strip():
        return ''
    return f'<div class="output" markdown>\n\n{fence(text, "text")}\n\n</div>'

def is_api(cell):
    return cell.cell_type == 'code' and 'show_doc(' in cell.source

def is_source(cell):
    return cell.cell_type == 'code' and 'code-fold' in cell.source

def code_cell(cell, name, folder, source_follows):
    "The Markdown parts of a code cell: its source if shown, then its outputs"
    body = '\n'.join(line for line in cell.source.splitlines() if not line.startswith('#|'))
    if body.strip() and 'echo: false' not in cell.source:
        yield fence(body, 'python')
    for i, output in enumerate(cell.get('outputs', [])):
        text = output_of(output, f'{name}_{i}', folder)
        if text:
            yield api_box(text, source_follows) if is_api(cell) else text

def head_of(cell):
    "Title and Markdown of the front matter that nbdev makes of the first cell"
    head = yaml.safe_load(cell.source.strip().strip('-'))
    tagline = f'*{head["description"]}*{{.tagline}}' if 'description' in head else ''
    return head['title'], [f'# {head["title"]}', tagline]

def processed(path):
    "The cells of the notebook at `path` as nbdev prepares them for its docs"
    nb = read_nb(path)
    FilterDefaults()(nb)
    return nb.cells

def page(path, folder, maths=mathml):
    "Stem, title and Markdown of the notebook at `path`; its pictures go into `folder`"
    cells, name = processed(path), name_of(path)
    title, parts = '', []
    for i, cell in enumerate(cells):
        if cell.cell_type == 'raw' and not title:
            title, parts = head_of(cell)
        elif cell.cell_type == 'markdown':
            parts.append(maths(cell.source))
        elif cell.cell_type == 'code':
            follower = next((c for c in cells[i:] if not is_api(c)), None)
            source_follows = follower is not None and is_source(follower)
            parts += code_cell(cell, f'{name}_{i}', folder, source_follows)
    return name, title, links('\n\n'.join(filter(None, parts)), path.parent) + '\n'

def relinked(name, texts):
    """Page `name`, with links to its own boxes where it has them

    nbdev links every name it knows, also private ones without a box: these become plain code again."""
    def target(m):
        code, page, anchor = m.groups()
        home = next((p for p in (name, page) if f'{{#{anchor}}}' in texts.get(p, '')), None)
        return f'[{code}]({home}.md#{anchor})' if home else code
    return re.sub(r'\[(`[^`\n]+`)\]\(([\w.]+)\.md#([\w.]+)\)', target, texts[name])

# ---- the site and the README ----

def nav(titles):
    "What users want to do, the spine, and then the other pages, room by room"
    tasks = {'What do you want to do?': [{goal: f'{name}.md'} for goal, name in GOALS.items()]}
    rooms = {room: [] for room in ['', *ROOMS]}
    for path, (name, title) in titles.items():
        if name != 'index' and name not in GOALS.values():
            rooms[room_of(path)].append({title: f'{name}.md'})
    wings = [{wing: chapters(rooms, names)} for wing, names in WINGS.items()]
    return ['index.md', tasks, {'The loop': rooms['']}, *wings]

def chapters(rooms, names):
    "The chapters of a wing; a single one needs no title of its own"
    if len(names) == 1:
        return rooms[names[0]]
    return [{CHAPTERS[room]: rooms[room]} for room in names]

def run_zensical(settings):
    config = root/'_mkdocs.yml'
    config.write_text(yaml.safe_dump(settings, sort_keys=False))
    try:
        subprocess.run([sys.executable, '-m', 'zensical', 'build', '-f', config], check=True, cwd=root)
    finally:
        config.unlink()

def build():
    "All notebooks as a site in `_site/`"
    for folder in (pages, dest):
        shutil.rmtree(folder, ignore_errors=True)
    pages.mkdir()
    titles, texts = {}, {}
    for path in all_pages():
        name, title, text = page(path, pages)
        texts[name] = text
        titles[path] = name, title
    for name in texts:
        (pages/f'{name}.md').write_text(relinked(name, texts), encoding='utf-8')
    for file in ('site.css', 'iframe-worker.js', 'llms.txt'):
        shutil.copy(root/'nbs'/file, pages)
    settings = yaml.safe_load((root/'mkdocs.yml').read_text())
    run_zensical(settings | dict(nav=nav(titles)))
    print(f'{len(titles)} pages in {dest.name}')

def for_github(text):
    "The index page with links to the notebooks and their pictures"
    text = re.sub(r'</?div[^>]*>\n\n|\n\n</div>', '', text.replace('{.tagline}', ''))
    text = re.sub(r'!\[\]\((index_\w+\.png)\)', r'![](nbs/images/\1)', text)
    files = {name_of(p): p.relative_to(root).as_posix() for p in all_pages()}

    def target(m):
        return f']({files[m[1]]})' if m[1] in files else m[0]
    return re.sub(r'\]\(([\w.]+)\.md(?:#[\w.]+)?\)', target, text)

def readme():
    "README.md from the index notebook; its pictures in nbs/images"
    images = root/'nbs'/'images'
    images.mkdir(exist_ok=True)
    _, _, text = page(root/'nbs'/cfg.readme_nb, images, maths=str)
    if not any(images.iterdir()):
        images.rmdir()
    (root/'README.md').write_text(for_github(text), encoding='utf-8')
    (NBS/'llms.txt').write_text(index_for_models(), encoding='utf-8')

def first_cell(path):
    "Title and promise of the page at `path`"
    title, promise = re.fullmatch(r'# ([^\n]+)\n+> ([^\n]+)', read_nb(path).cells[0].source.strip()).groups()
    return title, promise

def line_for_models(path):
    title, promise = first_cell(path)
    return f'- [{title}]({path.relative_to(NBS).as_posix()}): {promise}'

def index_for_models():
    "Every page with its promise, wing by wing, as https://llmstxt.org has it"
    title, promise = first_cell(NBS/cfg.readme_nb)
    parts = [f'# {title}\n\n> {promise}']
    for wing, rooms in {'The spine': [''], **WINGS}.items():
        here = [path for path in all_pages() if room_of(path) in rooms and path.name != cfg.readme_nb]
        parts.append('\n'.join([f'## {wing}\n', *map(line_for_models, here)]))
    return '\n\n'.join(parts) + '\n'

# ---- do all links lead somewhere? ----

class Anchors(HTMLParser):
    "The ids a page has and the links it makes"
    def __init__(self, text):
        super().__init__()
        self.ids, self.links = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids |= {values[k] for k in ('id', 'name') if values.get(k)}
        self.links |= {values[k] for k in ('href', 'src') if values.get(k)}

def target_of(url, path):
    "File that `url` on the page at `path` leads to"
    if not url.path:
        return path
    base = dest/url.path.lstrip('/') if url.path.startswith('/') else path.parent/unquote(url.path)
    target = base.resolve()
    return target/'index.html' if target.is_dir() else target

def dead(path, seen):
    "Links on the page at `path` that lead nowhere"
    for link in sorted(seen[path].links):
        url = urlsplit(link)
        if url.scheme or url.netloc:
            continue
        target = target_of(url, path)
        if not target.exists():
            yield f'{path.name}: {link} is not there'
        elif url.fragment and target in seen and unquote(url.fragment) not in seen[target].ids:
            yield f'{path.name}: {link} has no such anchor'

def check():
    "Fail if a link inside `_site/` leads nowhere"
    seen = {path.resolve(): Anchors(path.read_text(encoding='utf-8')) for path in dest.rglob('*.html')}
    if not seen:
        sys.exit('there is no site: run `python tools/site.py build` first')
    bad = [problem for path in sorted(seen) for problem in dead(path, seen)]
    if bad:
        sys.exit('\n'.join(bad))
    print(f'{sum(len(a.links) for a in seen.values())} links on {len(seen)} pages lead somewhere')

COMMANDS = dict(build=build, check=check, readme=readme)

if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('commands', nargs='*', choices=COMMANDS, help='build and check if left out')
    for name in parser.parse_args().commands or ['build', 'check']:
        COMMANDS[name]()
