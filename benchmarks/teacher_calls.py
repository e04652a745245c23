"""What waiting for a teacher costs.

64 questions to a service that takes 50 ms for each, one at a time and with `replies` (target: 8 times as
fast); and the offline teacher, which has nothing to wait for: a bank from 100 trajectories (target: 2 s).
Each the best of three. Exits 1 when a target is missed.

    python benchmarks/teacher_calls.py [--questions 64] [--parallel 16] [--ms 50]
"""
import argparse, sys, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]/'tests'))
from faults import FaultServer, said, slow
from skillrl.core.config import SkillRLConfig
from skillrl.llm.openai_client import OpenAIChatClient
from skillrl.envs.alfworld.teacher import AlfworldTeacher
from skillrl.skills.distillation import distill
from skillrl.envs.base import world
from skillrl.training.builders import build_policy
from skillrl.training.phases import collect_games

RATIO, SECONDS = 8, 2.

def best(f, tries=3):
    "Seconds of the fastest of `tries` runs of `f`"
    def once():
        t = time.perf_counter()
        f()
        return time.perf_counter() - t
    return min(once() for _ in range(tries))

def ask(i):
    return [dict(role='user', content=f'Why was episode {i} lost?')]

def answer(ms):
    return lambda r: slow(ms/1000, said(f"About {r['body']['messages'][0]['content']}"))

def waiting(n, parallel, ms):
    "Seconds for `n` questions, one at a time and `parallel` at a time"
    with FaultServer(rest=answer(ms)) as server:
        client = OpenAIChatClient('teacher', base_url=server.url, parallel=parallel)
        batch = [ask(i) for i in range(n)]
        one = [client.reply(q).text for q in batch]
        right = [r.text for r in client.replies(batch)] == one and len(set(one)) == n
        assert right, 'a reply went to the wrong question'
        one_by_one = best(lambda: [client.reply(q) for q in batch])
        together = best(lambda: client.replies(batch))
        return one_by_one, together, server.most

def trajectories(n):
    "`n` episodes of the base policy in the first training household"
    cfg = SkillRLConfig().merged({'env': {'episodes': n}})
    return collect_games(build_policy(cfg), world('alfworld').suites(cfg.env)[0][0], cfg)

if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for k, v in dict(questions=64, parallel=16, ms=50).items():
        p.add_argument(f'--{k}', type=int, default=v)
    o = p.parse_args()
    one, many, most = waiting(o.questions, o.parallel, o.ms)
    trajs = trajectories(100)
    took = best(lambda: distill(trajs, AlfworldTeacher()))
    good = one/many >= RATIO, len(trajs)==100 and took <= SECONDS
    words = ['ok' if ok else 'MISSED' for ok in good]
    print(f'{o.questions} questions of {o.ms} ms: {one:.2f} s one at a time, {many:.2f} s with replies '
          f'({most} at once): {one/many:.1f} times as fast (target {RATIO}) {words[0]}')
    print(f'{len(trajs)} trajectories of {sum(map(len, trajs))} steps distilled offline: {took:.2f} s, '
          f'{len(distill(trajs, AlfworldTeacher()).items())} skills (target {SECONDS:g} s) {words[1]}')
    sys.exit(not all(good))
