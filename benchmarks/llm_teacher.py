"""A capable language model in both places of the loop: it teaches two unseen households, and plays in one

    python benchmarks/llm_teacher.py --url URL [--policy-url URL] --model NAME [--runs DIR] [--save FILE]
    python benchmarks/llm_teacher.py --replay FILE [--save FILE]

In each household the embedded policy plays 16 episodes without skills, and two teachers write a bank from
them: the counting one and the model, each for the embedded policy. In the first household both then propose
in six rounds of evolution. In the second the model plays 18 games, both teachers write from these, and the
model plays test games with a bank of its own. Every other bank is judged with the embedded policy, on test
games and on goals that are new. Answers are kept below DIR, and the command goes on from what is there. FILE
holds them too, so that `--replay` needs no model. Prints what was measured beside what is aimed at, and exits
1 where it is missed.
"""
import argparse, sys
from pathlib import Path
from tempfile import TemporaryDirectory
from skillrl.core.config import SkillRLConfig
from skillrl.core.stats import wilson
from skillrl.core.store import JsonlLog, read_json, write_json
from skillrl.core.trajectory import success_rate
from skillrl.envs.alfworld.households import Household
from skillrl.envs.alfworld.world import HouseholdSuite
from skillrl.envs.base import world
from skillrl.skills.bank import shown_entries
from skillrl.skills.distillation import distill
from skillrl.skills.facts import facts_of
from skillrl.skills.retrieval import advice
from skillrl.training.builders import (
    build_episodes, build_local_policy, build_policy, build_teacher, derive_seed, play_episodes)
from skillrl.training.phases import collect_games, evolve_bank
from placebo import true_sentences

HOUSEHOLDS = 'test-140', 'test-141' # No run and no other benchmark plays here
EPISODES = dict(policy=16, model=18)
GAMES, PLAYED = 32, 12 # Of each split, by the embedded policy and by the model
ROUNDS = 6
WORLD = world('alfworld')

class Run:
    "One model in both places; what it said is kept in `folder`"
    def __init__(self, model, url, policy_url, folder, served=None):
        self.folder = Path(folder)
        self.served = served # What the servers said of the model, None to ask them
        asked = {'model.teacher_model_id': model, 'model.teacher_api_base': url}
        self.config = SkillRLConfig().merged({'env.episodes': EPISODES['policy']} | asked)
        self.chat = self.config.merged({'env.episodes': EPISODES['model'], 'model.policy_model_id': model,
                                        'model.policy_api_base': policy_url})
        self.policy = build_local_policy(self.config)

    def teachers(self, config):
        "The counting teacher and the model, which writes for who plays by `config`"
        teacher = build_teacher(config, self.folder/'teacher')
        return dict(counting=WORLD.teacher(), model=self.known(teacher))

    def known(self, asked):
        "`asked`, a teacher or a policy, whose chat looks for replies of the model that was recorded"
        if self.served is not None:
            asked.chat.served = self.served
        return asked

    def won(self, suite, bank, config=None, policy=None, games=GAMES):
        "By split the games of `suite`, 1 for one that was won; the embedded policy plays if none is named"
        config = config or self.config
        out = {}
        for split in suite.tests:
            episodes = build_episodes(suite, suite.games(split, games), bank, config)
            seed = derive_seed(config.seed, 'eval')
            trajs = play_episodes(policy or self.policy, episodes, suite, config, seed, temperature=.4)
            out[split] = ''.join(str(int(t.success)) for t in trajs)
        return out

    def judged(self, suite, bank):
        "What a bank says, what of that is true, and what is won with it"
        return dict(bank=bank.to_dict(), **told(suite, bank), won=self.won(suite, bank))

def truth_of(suite, o):
    "True, False, or None where an entry states no place and no step before another"
    facts = [fact for fact in facts_of(o) if fact.kind in ('place', 'before')]
    if not facts:
        return None
    true = {line.lower() for line in true_sentences('alfworld', suite)}
    return all(fact.sentence.lower() in true for fact in facts)

def told(suite, bank):
    "How many of the entries of `bank` that prompts show are true and false, and of all that are true"
    truths = [(o, truth_of(suite, o)) for o in bank.items('active', 'probation', 'retired')]
    shown = {o.id for o in shown_entries(bank.items())}
    return dict(true=sum(t is True for _, t in truths),
                true_shown=sum(t is True and o.id in shown for o, t in truths),
                true_active=sum(t is True and o.status == 'active' for o, t in truths),
                false_active=sum(t is False and o.status == 'active' for o, t in truths),
                general=[advice(o) for o, _ in truths if o.category == 'general'])

def taught(run, suite):
    "Both teachers on episodes of the embedded policy"
    played = collect_games(run.policy, suite, run.config)
    out = dict(household=suite.name, won=success_rate(played).mean, none=run.won(suite, None))
    for name, teacher in run.teachers(run.config).items():
        out[name] = run.judged(suite, distill(played, teacher, WORLD.categories, WORLD.router))
    return out

def evolved(run, suite):
    "Both teachers in rounds of evolution, each from its own first bank"
    out = dict(household=suite.name)
    for name, teacher in run.teachers(run.config).items():
        played = collect_games(run.policy, suite, run.config)
        bank = distill(played, teacher, WORLD.categories, WORLD.router)
        rounds = []
        for number in range(ROUNDS):
            bank, record = evolve_bank(run.policy, suite, bank, run.config, teacher, number, played)
            asked = [{key: row[key] for key in ('kind', 'principle', 'kept', 'reason')}
                     for row in record['proposals']]
            rounds.append(dict(proposals=asked, verdicts=record['verdicts'], **told(suite, bank)))
        out[name] = run.judged(suite, bank) | dict(rounds=rounds)
    return out

def played_by_model(run, suite):
    "Both teachers on episodes of the model, and the model with the bank that it wrote"
    acting = run.known(build_policy(run.chat, folder=run.folder/'policy'))
    played = collect_games(acting, suite, run.chat)
    out = dict(household=suite.name, won=success_rate(played).mean, steps=sum(map(len, played)),
               none=run.won(suite, None))
    for name, teacher in run.teachers(run.config).items():
        bank = distill(played, teacher, WORLD.categories, WORLD.router)
        out[name] = run.judged(suite, bank)
    for_itself = run.teachers(run.chat)['model'] # Told that a chat model reads
    theirs = distill(played, for_itself, WORLD.categories, WORLD.router)
    out['chat'] = dict(bank=theirs.to_dict(), won=run.won(suite, theirs, run.chat, acting, PLAYED))
    return out

def success(*won):
    "Rate over the splits of several records"
    games = ''.join(''.join(its.values()) for its in won)
    return wilson(games.count('1'), len(games))

def rows(found):
    "Name, rate and what is aimed at, for each thing that was measured"
    taught_ = found['taught']
    played, evolved_ = found['played'], found['evolved']
    both = {name: success(*(t[name]['won'] for t in taught_)) for name in ('counting', 'model')}
    yield '16 episodes, no bank', success(*(t['none'] for t in taught_)), 0
    yield '16 episodes, counting teacher', both['counting'], 0
    yield '16 episodes, model as teacher', both['model'], both['counting'].mean - .05
    for name in ('counting', 'model'):
        yield f'six rounds, {name}', success(evolved_[name]['won']), 0
    yield '18 episodes of the model, no bank', success(played['none']), 0
    yield '18 episodes of the model, counting teacher', success(played['counting']['won']), 0
    yield '18 episodes of the model, model as teacher', success(played['model']['won']), .6
    yield 'the same, the model plays', success(played['chat']['won']), .85

def report(found):
    "Print what was measured; 0 if it is what is aimed at"
    met = []
    for name, rate, aim in rows(found):
        met.append(rate.mean >= aim)
        aimed = f'  (at least {aim:.2f})' if aim else ''
        print(f'{name:45} {rate.mean:.2f} [{rate.low:.2f}, {rate.high:.2f}] of {rate.n}{aimed}')
    last = found['evolved']['model']
    print(f"true sentences {last['true']}, shown {last['true_shown']}, active {last['true_active']}; "
          f"false and active {last['false_active']}; general {len(last['general'])}")
    met += [2*last['true_active'] >= last['true'], not last['false_active'], bool(last['general'])]
    return 0 if all(met) else 1

def kept_replies(folder):
    "Key → reply, of both places"
    return {file.stem: read_json(file) for file in sorted(folder.glob('*/cache/*.json'))}

def unpack(replies, folder):
    "Write `replies` where both places look for them"
    for role in ('teacher', 'policy'):
        for key, reply in replies.items():
            write_json(folder/role/'cache'/f'{key}.json', reply)

def exchanges(folder):
    "The first question for a bank and the first for proposals, with their answers"
    first = {}
    for row in JsonlLog(folder/'teacher'/'exchanges.jsonl').read():
        rules, question = (message['content'] for message in row['messages'])
        kind = 'proposals' if 'The question: what should change' in rules else 'lessons'
        first.setdefault(kind, dict(rules=rules, question=question, answer=row['text']))
    return first

def main(model, url, policy_url, folder, save, replay):
    "Measure, save and print; 1 where something that is aimed at is missed"
    known = {}
    if replay:
        known = read_json(replay)
        model = known['model']
        url, policy_url = known['urls']
        unpack(known['replies'], folder)
    run = Run(model, url, policy_url, folder, known.get('served'))
    suites = [HouseholdSuite(Household(name)) for name in HOUSEHOLDS]
    urls = [url, policy_url]
    found = dict(model=model, urls=urls, taught=[taught(run, suite) for suite in suites],
                 evolved=evolved(run, suites[0]), played=played_by_model(run, suites[1]))
    if save:
        shown = known.get('shown') or exchanges(folder)
        served = run.teachers(run.config)['model'].chat.served
        write_json(save, found | dict(served=served, shown=shown, replies=kept_replies(folder)))
    return report(found)

if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--model', default='')
    p.add_argument('--url', default='http://127.0.0.1:9/v1')
    p.add_argument('--policy-url', help='where the model acts, that of --url if left out')
    p.add_argument('--runs', type=Path)
    p.add_argument('--save', type=Path)
    p.add_argument('--replay', type=Path)
    args = p.parse_args()
    if not (args.model or args.replay):
        p.error('name a model and its address, or a file to replay')
    with TemporaryDirectory() as tmp:
        sys.exit(main(args.model, args.url, args.policy_url or args.url, args.runs or Path(tmp),
                      args.save, args.replay))
