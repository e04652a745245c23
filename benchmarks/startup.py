"""How long the first answer takes: `import skillrl` (target 0.3 s) and `skillrl inspect BANK` (0.6 s), each the best of some fresh processes.

    python benchmarks/startup.py
"""
import subprocess, sys, tempfile, time
from pathlib import Path
from skillrl.skills.bank import Skill, SkillBank

def best(*args, tries=7):
    "Seconds of the fastest of `tries` fresh interpreters"
    def once():
        t = time.perf_counter()
        subprocess.run([sys.executable, *args], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - t
    return min(once() for _ in range(tries))

if __name__=='__main__':
    with tempfile.TemporaryDirectory() as d:
        bank = SkillBank([Skill(f'gen_{i:03}', f'Skill {i}', f'Look for mug in cabinet {i}.', 'a mug is needed') for i in range(100)])
        bank.save(Path(d)/'bank.json')
        empty = best('-c', '')
        times = {'import skillrl': (best('-c', 'import skillrl'), .3),
                 'skillrl inspect BANK': (best('-c', f'from skillrl.cli import main; main(["inspect", "{d}/bank.json"])'), .6)}
    print(f'python -c "": {empty:.3f} s')
    for what, (t, target) in times.items(): print(f'{what}: {t:.3f} s ({t/empty:.1f} × an empty interpreter; target {target} s) {"ok" if t <= target else "MISSED"}')
    sys.exit(any(t > target for t, target in times.values()))
