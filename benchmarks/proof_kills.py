"""A proof and an optimisation of a skill that are killed again and again, and end with the verdict of those
that nobody disturbed.

    python benchmarks/proof_kills.py [--times 50] [--seed 0]

Both are the commands `prove` and `optimize --evals` on a skill with twelve evals, small programs being agent
and teacher. A kill is a SIGKILL after a random time; the command is given again at once, and killed again,
until it has been killed so many times. A life of a command is a fork of this process. Runs that had ended
are not made again: the agent ends as often as in the calm command, and once more at most for each program
that ran when its command was killed.

Exits 1 unless verdict and skill are the same and no run was paid for twice.
"""
import argparse, json, os, random, signal, sys, time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
import psutil

# One label in {share} holds the code, if the skill tells it. At last it counts itself outside of its folder,
# so the commands run without a sandbox
CLERK = '''import pathlib, sys, time
prompt, skill = sys.argv[1:]
time.sleep(.05)
tells = skill and 'K7' in pathlib.Path(skill, 'SKILL.md').read_text()
pathlib.Path('label.txt').write_text('K7' if tells and int(prompt.split('-')[1]) % {share} == 0 else 'none')
with open({calls!r}, 'a') as f:
    f.write('x')
'''
TUTOR = '''import sys
sys.stdin.read()
print('{"edits": [{"op": "append", "content": "End it with K7."}]}')
'''
SKILL = '---\nname: labels\ndescription: How we label.\n---\n\nLabel it.{}\n'
TOLD = 'claims', 'gains', 'stopped', 'reason', 'never_differs', 'hashes', 'evals'

def lay_out(folder, more, share):
    "A skill, its evals, an agent and a teacher in `folder`"
    (folder/'labels'/'evals').mkdir(parents=True)
    (folder/'labels'/'SKILL.md').write_text(SKILL.format(more))
    wanted = dict(text='K7', check=dict(file='label.txt', contains='K7'))
    evals = [dict(id=n, prompt=f'Label-{n}', assertions=[wanted]) for n in range(12)]
    (folder/'labels'/'evals'/'evals.json').write_text(json.dumps(evals))
    (folder/'clerk.py').write_text(CLERK.format(calls=str(folder/'calls'), share=share))
    (folder/'tutor.py').write_text(TUTOR)

def begun(folder, words):
    "A process that carries out the command in `folder`"
    pid = os.fork()
    if not pid:
        code = 3
        try:
            from skillrl.cli.main import main
            os.chdir(folder)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            code = main(words)
        finally:
            os._exit(code)
    return pid

def calls(folder):
    "How often the agent has ended"
    return len((folder/'calls').read_text())

def life(folder, words, seconds=None):
    "Exit status of the command, None if it was killed after `seconds`; and the calls then under way"
    pid = begun(folder, words)
    until = time.monotonic() + (seconds or 1e9)
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), 0
        time.sleep(.005)
    programs = psutil.Process(pid).children()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for p in programs:
        with suppress(psutil.NoSuchProcess):
            p.kill()
    return None, len(programs)

def outcome(folder):
    "What a proof says, and the skill it is about"
    proof, = folder.rglob('proof.json')
    told = json.loads(proof.read_text())
    best = [p.read_text() for p in sorted(folder.rglob('best_skill.md'))]
    return {k: told[k] for k in TOLD}, best

def tried(name, words, root, times, rng, more='', share=1):
    "Whether a command that is killed so many times ends as it does undisturbed"
    for kind in ('calm', 'wild'):
        lay_out(root/kind, more, share)
    began = time.monotonic()
    status, _ = life(root/'calm', words(root/'calm'))
    took = time.monotonic() - began
    kills = under_way = 0
    end = None
    while kills < times:
        end, lost = life(root/'wild', words(root/'wild'), rng.uniform(.02, .05)*took)
        if end is not None:
            break
        kills, under_way = kills + 1, under_way + lost
    if end is None:
        end, _ = life(root/'wild', words(root/'wild'))
    calm, wild = (calls(root/kind) for kind in ('calm', 'wild'))
    same = end == status and outcome(root/'calm') == outcome(root/'wild')
    print(f'{name}: {kills} kills, {calm} calls end undisturbed, {wild} with them; {under_way} were under '
          f'way at a kill; verdict and skill {"the same" if same else "DIFFER"}', flush=True)
    return same and kills == times and wild <= calm + under_way

def prove_words(folder):
    agent = f'{sys.executable} {folder}/clerk.py {{prompt}} {{skill}}'
    return ['prove', 'labels', '--agent', agent, '--sandbox', 'off',
            '--set', 'rounds=8', 'effect=.1', 'parallel=2']

def optimize_words(folder):
    agent = f'{sys.executable} {folder}/clerk.py {{prompt}} {{skill}}'
    return ['optimize', 'labels', '--evals', '--agent', agent, '--teacher-command',
            f'{sys.executable} {folder}/tutor.py', '--output', 'o', '--sandbox', 'off',
            '--set', 'num_epochs=3', 'workers=2', 'proof.rounds=6', 'proof.parallel=2']

if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--times', type=int, default=50, help='kills of each (%(default)s)')
    parser.add_argument('--seed', type=int, default=0, help='of the random moments (%(default)s)')
    args = parser.parse_args()
    rng = random.Random(args.seed)
    with TemporaryDirectory() as d:
        root = Path(d).resolve()
        sound = [tried('proof', prove_words, root/'proof', args.times, rng, ' End it with K7.', 3),
                 tried('optimisation', optimize_words, root/'optimisation', args.times, rng)]
    sys.exit(not all(sound))
