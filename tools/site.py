"""The documentation without a network: `site.py build` makes `_site/`, `site.py check` follows every link in it, `site.py readme` writes README.md

nbdev runs the notebooks for its docs and leaves them in `_proc/`; here they become Markdown pages (`_proc_md/`) for Zensical, the
formulas as MathML, so that the result needs no script and no network. Page and anchor names are those `nbdev_docs` gives."""
import base64, inspect, os, re, shutil, subprocess, sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit
import fastcore.docments
import yaml
from execnb.nbio import read_nb
from latex2mathml.converter import convert
from nbdev.config import get_config
from nbdev.serve import proc_nbs

def lenient_signature(f, eval_str=False, **kw):
    "The signature of `f`; a type that its module imports for readers only stays as it is written"
    try: return inspect.signature(f, eval_str=eval_str, **kw)
    except NameError: return inspect.signature(f, **kw)

fastcore.docments.signature = lenient_signature
cfg = get_config()
root = cfg.config_path
pages, dest = root/'_proc_md', root/'_site'
chapters = {'0': 'The loop', '1': 'The loop', '2': 'A. Foundations', '3': 'B. Language models', '4': 'C. Skills', '5': 'D. Worlds',
            '6': 'E. Training and judging', '7': 'F. SkillOpt', '8': 'G. Commands', '9': 'H. Extending'}

# ---- a processed notebook as Markdown ----

def joined(o): return ''.join(o) if isinstance(o, list) else o

def fence(s, lang=''):
    "`s` as a block of code, between more backticks than any row of them in it"
    marks = '`' * max(3, 1 + max(map(len, re.findall('`+', s)), default=0))
    return f'{marks}{lang}\n{s.strip()}\n{marks}'

_code = r'(```.*?```|`[^`\n]*`)'
_maths = re.compile(_code + r'|\$\$(.+?)\$\$|(?<![\\\w$])\$(?!\s)([^$\n]+?)(?<!\s)\$(?!\d)', re.DOTALL)

def mathml(s):
    "Dollar maths in `s` as MathML, in which Markdown finds nothing of its own"
    def one(m):
        if m[1]: return m[1]
        out = convert(m[2] or m[3], display='block' if m[2] else 'inline')
        out = re.sub(r'[*_|]', lambda c: f'&#{ord(c[0])};', out)
        return f'\n\n<div class="math">{out}</div>\n\n' if m[2] else f'<span class="math">{out}</span>'
    return _maths.sub(one, s)

def links(s):
    "Absolute links into the docs as links between Markdown files; none inside code"
    s = re.sub(r'(`{3,}).*?\1', lambda m: re.sub(r'\[(`[^`\n]+`)\]\([^)\n]*\)', r'\1', m[0]), s, flags=re.DOTALL)
    home = re.escape((cfg.doc_host + cfg.doc_baseurl).rstrip('/'))
    return re.sub(rf'\]\((?:{home})?/?([\w.-]+)\.(?:html|ipynb)(#[\w.]+)?\)', lambda m: f']({stem(m[1])}.md{m[2] or ""})', s)

def stem(name): return re.sub(r'^\d+\w?_', '', name)

def api_box(s, source_follows):
    "What `show_doc` wrote, in a box whose heading is the anchor"
    s = re.sub(r'^---\n\n', '', s)
    s = re.sub(r'^(#{2,5}) ([\w.]+)$', lambda m: f'{m[1]} {m[2]} {{#{m[2].lower()}}}'.replace('__', r'\_\_'), s, flags=re.MULTILINE)
    link = r'<a class="source" href="\1">source</a>' if cfg.git_url else ''
    s = re.sub(r'\[source\]\((.*?)\)\{.*?\}\n*', link, s)
    s = s.replace('*Call self as a function.*', '') # What nbdev says where a function says nothing
    words = set(re.findall(r'\w+', ''.join(re.findall(r'```python\n.*?```', s, flags=re.DOTALL)))) # An argument is no link
    s = re.sub(r'\[(`([a-z]\w*)`)\]\([^)\n]*\)', lambda m: m[1] if m[2] in words else m[0], s)
    if source_follows: s = re.sub(r'```python\n.*?```\n*', '', s, count=1, flags=re.DOTALL)
    return f'<div class="api" markdown>\n\n{s.strip()}\n\n</div>'

def output(o, name, folder):
    "A saved output as Markdown; a picture goes into `folder`"
    d = o.get('data', {})
    if 'image/png' in d:
        (folder/f'{name}.png').write_bytes(base64.b64decode(joined(d['image/png'])))
        return f'![]({name}.png)'
    for k in ('image/svg+xml', 'text/markdown', 'text/html'):
        if k in d: return joined(d[k])
    txt = re.sub(r'\x1b\[[0-9;]*m', '', joined(o.get('text') or d.get('text/plain') or o.get('traceback', '')))
    return f'<div class="output" markdown>\n\n{fence(txt, "text")}\n\n</div>' if txt.strip() else ''

def is_api(c): return c.cell_type=='code' and 'show_doc(' in c.source
def is_source(c): return c.cell_type=='code' and 'code-fold' in c.source

def code_cell(c, name, folder, source_follows):
    "The Markdown parts of a code cell: its source if shown, then its outputs"
    body = '\n'.join(l for l in c.source.splitlines() if not l.startswith('#|'))
    if body.strip() and 'echo: false' not in c.source: yield fence(body, 'python')
    for j,o in enumerate(c.get('outputs', [])):
        s = output(o, f'{name}_{j}', folder)
        if s: yield api_box(s, source_follows) if is_api(c) else s

def page(fn, folder, maths=mathml):
    "Stem, title and Markdown of processed notebook `fn`; its pictures go into `folder`"
    cells, name, title, parts = read_nb(fn).cells, stem(fn.stem), '', []
    for i,c in enumerate(cells):
        if c.cell_type=='raw' and not title:
            head = yaml.safe_load(c.source.strip().strip('-'))
            title = head['title']
            parts += [f'# {title}', f'*{head["description"]}*{{.tagline}}' if 'description' in head else '']
        elif c.cell_type=='markdown': parts.append(maths(c.source))
        elif c.cell_type=='code':
            follower = next((d for d in cells[i:] if not is_api(d)), None)
            parts += code_cell(c, f'{name}_{i}', folder, follower is not None and is_source(follower))
    return name, title, links('\n\n'.join(p for p in parts if p)) + '\n'

def relinked(name, texts):
    "Page `name`, with links to its own boxes where it has them; nbdev links every name it knows, also private ones without a box: plain code again"
    def to(m):
        page = next((p for p in (name, m[2]) if f'{{#{m[3]}}}' in texts.get(p, '')), None)
        return f'[{m[1]}]({page}.md#{m[3]})' if page else m[1]
    return re.sub(r'\[(`[^`\n]+`)\]\(([\w.]+)\.md#([\w.]+)\)', to, texts[name])

# ---- the site and the README ----

def nav(titles):
    "The pages in reading order, by chapter"
    out, last = ['index.md'], None
    for fn,(name,title) in titles.items():
        number = re.match(r'\d', fn)
        if not number: continue
        chapter = chapters[number[0]]
        if chapter!=last: out.append({chapter: []})
        out[-1][chapter].append({title: f'{name}.md'})
        last = chapter
    return out

def build():
    "All notebooks as a site in `_site/`"
    for d in (pages, dest): shutil.rmtree(d, ignore_errors=True)
    pages.mkdir()
    titles, texts = {}, {}
    for fn in sorted(proc_nbs(force=True, n_workers=min(os.cpu_count(), 8)).glob('*.ipynb')):
        name, title, texts[name] = page(fn, pages)
        titles[fn.name] = name, title
    for name in texts: (pages/f'{name}.md').write_text(relinked(name, texts), encoding='utf-8')
    shutil.copy(root/'nbs'/'site.css', pages)
    conf = yaml.safe_load((root/'mkdocs.yml').read_text())
    (root/'_mkdocs.yml').write_text(yaml.safe_dump(conf | dict(nav=nav(titles)), sort_keys=False))
    try: subprocess.run([sys.executable, '-m', 'zensical', 'build', '-f', root/'_mkdocs.yml'], check=True, cwd=root)
    finally: (root/'_mkdocs.yml').unlink()
    print(f'{len(titles)} pages in {dest.name}')

def readme():
    "README.md from the index notebook; its pictures in nbs/images"
    images = root/'nbs'/'images'
    images.mkdir(exist_ok=True)
    _, _, txt = page(proc_nbs(force=True, n_workers=1, file_glob=cfg.readme_nb)/cfg.readme_nb, images, maths=lambda s: s)
    txt = re.sub(r'</?div[^>]*>\n\n|\n\n</div>', '', txt.replace('{.tagline}', ''))
    txt = re.sub(r'!\[\]\((index_\w+\.png)\)', r'![](nbs/images/\1)', txt)
    names = {stem(p.stem): p.name for p in (root/'nbs').glob('*.ipynb')}
    txt = re.sub(r'\]\(([\w.]+)\.md(?:#[\w.]+)?\)', lambda m: f'](nbs/{names[m[1]]})' if m[1] in names else m[0], txt)
    if not any(images.iterdir()): images.rmdir()
    (root/'README.md').write_text(txt, encoding='utf-8')

# ---- do all links lead somewhere? ----

class Anchors(HTMLParser):
    "The ids a page has and the links it makes"
    def __init__(self, txt):
        super().__init__()
        self.ids, self.links = set(), set()
        self.feed(txt)

    def handle_starttag(self, tag, attrs):
        d = dict(attrs)
        self.ids |= {d[k] for k in ('id', 'name') if d.get(k)}
        self.links |= {d[k] for k in ('href', 'src') if d.get(k)}

def dead(fn, seen):
    "Links on page `fn` that lead nowhere"
    for link in sorted(seen[fn].links):
        u = urlsplit(link)
        if u.scheme or u.netloc: continue
        to = fn if not u.path else (dest/u.path.lstrip('/') if u.path.startswith('/') else fn.parent/unquote(u.path)).resolve()
        if to.is_dir(): to = to/'index.html'
        if not to.exists(): yield f'{fn.name}: {link} is not there'
        elif u.fragment and to in seen and unquote(u.fragment) not in seen[to].ids: yield f'{fn.name}: {link} has no such anchor'

def check():
    "Fail if a link inside `_site/` leads nowhere"
    seen = {fn.resolve(): Anchors(fn.read_text(encoding='utf-8')) for fn in dest.rglob('*.html')}
    if not seen: sys.exit('there is no site: run `python tools/site.py build` first')
    bad = [b for fn in sorted(seen) for b in dead(fn, seen)]
    if bad: sys.exit('\n'.join(bad))
    print(f'{sum(len(a.links) for a in seen.values())} links on {len(seen)} pages lead somewhere')

if __name__=='__main__':
    for name in sys.argv[1:] or ['build', 'check']: dict(build=build, check=check, readme=readme)[name]()
