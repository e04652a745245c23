"""The half of benchmarks/skillopt.py that runs where PyPI's skillrl 1.0.0 and gepa are installed.

Reads its jobs from stdin, prints JSON."""
import importlib.util, json, sys, tempfile
from concurrent.futures import ProcessPoolExecutor
from types import SimpleNamespace

def load(path):
    spec = importlib.util.spec_from_file_location('ruleworld', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

EDITS = 3 # Of an answer, and of a candidate: what GEPA does best with

class Counted:
    "An optimizer whose calls and tokens are counted"
    def __init__(self, client):
        self.client, self.model = client, client.model
        self.calls, self.tokens = 0, 0

    def chat(self, **question):
        text, usage = self.client.chat(**question)
        self.calls += 1
        self.tokens += usage['total_tokens']
        return text, usage

def world_of(m, setting, seed):
    "Environment, agent and optimizer from the module `m`"
    needs, quality, hurry_factor, val = setting
    world = m.RuleWorld(needs, hurry_factor, 40, val, 1, seed)
    return world, m.RuleTarget(hurry_factor, seed), Counted(m.RuleOptimizer(quality, EDITS, seed))

def row(world, skill, reported, agent, optimizer):
    "True and reported success of `skill`, and what it took"
    return world.truth(skill), reported, agent.calls, optimizer.calls, optimizer.tokens

def skillrl_1(m, setting, seed, budget):
    from skillrl import SkillOptConfig, SkillOptTrainer
    world, agent, optimizer = world_of(m, setting, seed)
    with tempfile.TemporaryDirectory() as folder:
        config = SkillOptConfig(num_epochs=4, batch_size=20, minibatch_size=4, edit_budget=EDITS,
                                lr_scheduler='constant', seed=seed, eval_test=False, workers=1,
                                verbose=False, out_root=folder)
        trainer = SkillOptTrainer(config=config, env=world, optimizer_client=optimizer, target_client=agent)
        reported = trainer.train()['best_selection_score']
        return row(world, trainer.best_skill, reported, agent, optimizer)

def gepa(m, setting, seed, budget):
    from gepa import optimize
    from gepa.core.adapter import EvaluationBatch
    world, agent, optimizer = world_of(m, setting, seed)

    def evaluate(batch, candidate, capture_traces=False):
        rows = [world.rollout_one(item=i, skill=candidate['skill'], target_client=agent) for i in batch]
        scores = [r['soft'] for r in rows]
        return EvaluationBatch(outputs=rows, scores=scores, trajectories=rows if capture_traces else None)

    def reflect(candidate, batch, components):
        records = [dict(question=r['question'], score=r['soft']) for r in batch.outputs]
        return {c: records for c in components}

    def propose(candidate, records, components):
        skill = candidate['skill']
        failed = [r['question'] for r in records['skill'] if r['score'] < 1]
        asked = '\n'.join(['## Current skill', skill, '', '## Trajectories', *failed])
        text, _ = optimizer.chat(system='Improve the skill with `edits`.', user=asked, stage='analyst')
        lines = [edit['content'] for edit in json.loads(text)['edits']]
        return dict(skill=skill + '\n'.join(lines) + '\n')

    adapter = SimpleNamespace(evaluate=evaluate, make_reflective_dataset=reflect, propose_new_texts=None)
    start = dict(skill=world.get_initial_skill())
    found = optimize(start, world.get_items('train'), world.get_items('val'), adapter=adapter,
                     custom_candidate_proposer=propose, reflection_lm=lambda prompt: '',
                     reflection_minibatch_size=4, max_metric_calls=budget,
                     logger=SimpleNamespace(log=lambda *a: None), seed=seed)
    best = found.best_candidate['skill']
    return row(world, best, max(found.val_aggregate_scores), agent, optimizer)

PEERS = {'skillrl 1.0.0': skillrl_1, 'gepa 0.1.4': gepa}

def one(job):
    path, peer, *rest = job
    return PEERS[peer](load(path), *rest)

def main(asked):
    "Peer → setting → runs"
    n, runs = asked['seeds'], {}
    seeds = range(asked['first'], asked['first'] + n)
    settings = list(zip(asked['settings'], asked['budgets']))
    with ProcessPoolExecutor() as pool:
        for peer in asked['peers']:
            jobs = [(asked['world'], peer, s, seed, budget) for s, budget in settings for seed in seeds]
            found = list(pool.map(one, jobs, chunksize=5))
            runs[peer] = [found[i:i + n] for i in range(0, len(found), n)]
    return runs

if __name__ == '__main__':
    print(json.dumps(main(json.load(sys.stdin))))
