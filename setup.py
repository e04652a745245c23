"The package's metadata lives in settings.ini: edit that, not this."
from configparser import ConfigParser
from pathlib import Path
from setuptools import setup, find_packages

here = Path(__file__).parent
ini = ConfigParser(delimiters=['='])
ini.read(here/'settings.ini', encoding='utf-8')
cfg = ini['DEFAULT']
lib = cfg['lib_path']

def words(key): return cfg.get(key, '').split()

setup(
    name=cfg['lib_name'], version=cfg['version'], description=cfg['description'], keywords=words('keywords'),
    author=cfg['author'], license=cfg['license'].upper(), url=cfg['git_url'] or None,
    long_description=(here/'README.md').read_text(encoding='utf-8'), long_description_content_type='text/markdown',
    # data/ and configs/ lie beside the library in a clone and inside it in a wheel; `skillrl.core.store.data_path` and
    # `skillrl.core.config.settings_in` know both places
    packages=[*find_packages(include=[lib, f'{lib}.*']), f'{lib}.data', f'{lib}.configs'],
    package_dir={lib: lib, f'{lib}.data': 'data', f'{lib}.configs': 'configs'},
    package_data={lib: ['py.typed', '*.pyi'], f'{lib}.data': ['*', '*/*', '*/*/*'], f'{lib}.configs': ['*.yaml']},
    python_requires=f">={cfg['min_python']}", install_requires=words('requirements'),
    extras_require={k.removesuffix('_requirements'): words(k) for k in cfg if k.endswith('_requirements')},
    entry_points={'console_scripts': words('console_scripts'), 'nbdev': [f'{lib}={lib}._modidx:d']},
)
