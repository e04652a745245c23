"""How long the first answer takes.

`import skillrl`, and `skillrl inspect` of a bank and of a run, each the best of some fresh processes; all
should stay below half a second.

    python benchmarks/startup.py
"""
import subprocess, sys, tempfile, time
from pathlib import Path
from skillrl.skills.bank import Skill, SkillBank

TARGET = .5 # Seconds

def best(*args, tries=7):
    "Seconds of the fastest of `tries` fresh interpreters"
    def once():
        started = time.perf_counter()
        subprocess.run([sys.executable, *args], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - started
    return min(once() for _ in range(tries))

def command(*words):
    "What runs `skillrl` with these words"
    return '-c', f'import sys; from skillrl.cli.main import main; sys.exit(main({list(words)}))'

def make_bank(path):
    skills = [Skill(f'gen_{i:03}', f'Skill {i}', f'Look for mug in cabinet {i}.', 'a mug is needed')
              for i in range(100)]
    SkillBank(skills).save(path)

def make_run(path):
    settings = ['num_epochs=1', 'final_passes=0', 'eval_test=false']
    best(*command('optimize', '--set', *settings, '--output', path), tries=1)

if __name__ == '__main__':
    with tempfile.TemporaryDirectory() as folder:
        make_bank(Path(folder)/'bank.json')
        make_run(f'{folder}/run')
        empty = best('-c', '')
        times = {
            'import skillrl': best('-c', 'import skillrl'),
            'skillrl inspect BANK': best(*command('inspect', f'{folder}/bank.json')),
            'skillrl inspect RUN': best(*command('inspect', f'{folder}/run')),
        }
    print(f'python -c "": {empty:.3f} s')
    for what, t in times.items():
        verdict = 'ok' if t <= TARGET else 'MISSED'
        print(f'{what}: {t:.3f} s ({t/empty:.1f} × an empty interpreter; target {TARGET} s) {verdict}')
    sys.exit(any(t > TARGET for t in times.values()))
