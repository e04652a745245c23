"""The memory that training and playing need, as planned and as measured.

    python benchmarks/planner.py [CASE …]

Each case is a random model in a process of its own, on one thread. Planned memory comes from the
model's sizes alone (`skillrl.training.costs`); measured is the most that the process ever held. Exits 1 where
a plan is off by more than 20 %.

The environment is as it comes: glibc keeps freed blocks below 32 MB for later, which
`nbs/training/07_costs.ipynb` explains. `many lengths` are forty updates on rows of other lengths before the
batch that is planned for."""
import json, os, random, subprocess, sys

LLAMA = dict(model_type='llama', hidden_size=576, intermediate_size=1536, num_hidden_layers=4,
             num_attention_heads=9, num_key_value_heads=3, vocab_size=16_384, tie_word_embeddings=True,
             max_position_embeddings=4096)
QWEN3 = dict(LLAMA, model_type='qwen3', hidden_size=384, head_dim=64, num_attention_heads=6,
             num_key_value_heads=2, intermediate_size=1152)
QWEN2 = dict(LLAMA, model_type='qwen2', num_hidden_layers=2, vocab_size=49_152)
SMOLLM2 = dict(LLAMA, num_hidden_layers=30, vocab_size=49_152) # As `skillrl fetch smollm2` brings it
LEARN, PLAY = (8, 160, 16), (8, 192, 24)
CASES = {
    'llama, all weights': dict(config=LLAMA, learns=LEARN),
    'qwen3, all weights': dict(config=QWEN3, learns=LEARN),
    'qwen2, large vocabulary': dict(config=QWEN2, learns=(8, 80, 40)),
    'llama, checkpointing': dict(config=LLAMA, learns=LEARN, checkpointing=True),
    'llama, bfloat16': dict(config=LLAMA, learns=LEARN, computes='bfloat16'),
    'llama, adapter': dict(config=LLAMA, learns=LEARN, rank=16),
    'qwen3, adapter': dict(config=QWEN3, learns=LEARN, rank=16),
    'llama, playing': dict(config=LLAMA, plays=PLAY),
    'qwen3, playing': dict(config=QWEN3, plays=PLAY),
    'SmolLM2, all weights': dict(config=SMOLLM2, learns=LEARN),
    'SmolLM2, bfloat16': dict(config=SMOLLM2, learns=(8, 300, 24), computes='bfloat16'),
    'SmolLM2, adapter': dict(config=SMOLLM2, learns=LEARN, rank=16),
    'SmolLM2, playing': dict(config=SMOLLM2, plays=(64, 192, 24)),
    'SmolLM2, many lengths': dict(config=SMOLLM2, learns=(8, 600, 40), computes='bfloat16', updates=40),
}
LIMIT = .2 # How far a plan may be off, as a share of what was measured
ENVIRONMENT = dict(OMP_NUM_THREADS='1')

# ---- in a process of its own ----

def peak_bytes():
    import resource
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss*1024

def build(case, storage):
    "A random model, with an adapter or checkpointing where the case asks for it"
    import torch
    from skillrl.llm.placement import checkpoint_gradients
    from skillrl.llm.local import Policy, word_tokenizer
    from transformers import AutoConfig, AutoModelForCausalLM
    config = dict(case['config'])
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config.pop('model_type'), **config))
    if storage.rank:
        from peft import LoraConfig, get_peft_model
        lora = LoraConfig(r=storage.rank, target_modules='all-linear', task_type='CAUSAL_LM')
        model = get_peft_model(model, lora)
    if storage.checkpointing:
        checkpoint_gradients(model)
    if storage.computes == 'bfloat16':
        model.autocast_dtype = torch.bfloat16
    return Policy(model.train(), word_tokenizer(['a mug']))

def scored(prompt_tokens, reply_tokens, rng):
    "A row of random tokens to learn from"
    from skillrl.agent.episode import StepRow
    def ids(n):
        return [rng.randrange(3, 10_000) for _ in range(n)]
    return StepRow(ids(prompt_tokens), ids(reply_tokens), [-9.]*reply_tokens, advantage=1.)

def rows_of(batch):
    "Rows that fill `batch`"
    rng = random.Random(1)
    return [scored(batch.prompt_tokens, batch.reply_tokens, rng) for _ in range(batch.rows)]

def shorter_rows(batch, updates):
    "For each update its rows, of a sixth to the whole of the prompt and a fifth to the whole of the reply"
    rng = random.Random(2)
    def row():
        prompt_tokens = rng.randint(batch.prompt_tokens//6, batch.prompt_tokens)
        return scored(prompt_tokens, rng.randint(batch.reply_tokens//5, batch.reply_tokens), rng)
    return [[row() for _ in range(batch.rows)] for _ in range(updates)]

def learning(policy, storage, batch, updates):
    "A step of GRPO on `batch`, after some on others; the reference is a copy, or the adapter switched off"
    from skillrl.core.config import RLConfig
    from skillrl.training.rl import GRPOTrainer
    class Base:
        def logps(self, *args, **kw):
            with policy.model.disable_adapter():
                return policy.logps(*args, **kw)
    trainer = GRPOTrainer(policy, RLConfig(), Base() if storage.rank else None)
    for rows in shorter_rows(batch, updates):
        trainer.update([rows])
    longest = rows_of(batch)
    return lambda: trainer.update([longest])

def playing(policy, batch):
    import torch
    prompts = [r.prompt_ids for r in rows_of(batch)]
    return lambda: policy.generate(prompts, 1., torch.Generator().manual_seed(0), batch.reply_tokens)

def child(case):
    "Planned and measured bytes of one case"
    import torch
    from skillrl.training.costs import Batch, Storage, memory_plan, _shape_from, memory_text
    torch.set_num_threads(1)
    storage = Storage(rank=case.get('rank', 0), checkpointing=case.get('checkpointing', False),
                computes=case.get('computes', 'float32'))
    shape, policy = _shape_from(case['config']), build(case, storage)
    learns = 'learns' in case
    batch = Batch(*case['learns' if learns else 'plays'])
    if learns:
        work = learning(policy, storage, batch, case.get('updates', 0))
    else:
        work = playing(policy, batch)
    for _ in range(2): # AdamW makes its moments in the first step
        work()
    plan = memory_plan(shape, storage, batch if learns else None, None if learns else batch)
    return dict(planned=sum(plan.values()), measured=peak_bytes(), formula=memory_text(plan))

# ---- the table ----

def measured(case):
    "What `child` says of a case, from a process that did nothing else"
    command = [sys.executable, __file__, '--child', json.dumps(case)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | ENVIRONMENT)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])

def line(name, result):
    "One line of the table, and whether the plan holds"
    planned, measured = result['planned'], result['measured']
    ratio = planned/measured
    holds = abs(ratio - 1) <= LIMIT
    verdict = 'ok' if holds else 'MISSED'
    sizes = f'{planned/1e9:6.2f} GB planned {measured/1e9:6.2f} measured'
    return f'{name:24}   {sizes} {ratio:5.2f}   {verdict}', holds

def main(names):
    unknown = set(names) - CASES.keys()
    if unknown:
        sys.exit(f'there is no case {unknown.pop()!r}: choose one of {", ".join(CASES)}')
    results = []
    for name in names or CASES:
        result = measured(CASES[name])
        text, holds = line(name, result)
        print(text, f'\n    {result["formula"]}', flush=True)
        results.append(holds)
    return int(not all(results))

if __name__ == '__main__':
    if sys.argv[1:2] == ['--child']:
        print(json.dumps(child(json.loads(sys.argv[2]))))
    else:
        sys.exit(main(sys.argv[1:]))
