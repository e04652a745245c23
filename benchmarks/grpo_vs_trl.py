"""How fast is a step of GRPO? `python benchmarks/grpo_vs_trl.py`

The shipped policy plays one iteration, 12 tasks of 8 episodes, in conversations that grow. Rows of it go to
TRL's `GRPOTrainer` and to ours: the same rows, advantages, old log-probs, reference and loss, in the same
minibatches of 128, whose gradients are compared first. Then replies are written, by `generate` of
transformers turn by turn and by ours. Last comes one group of 8, read row by row and by conversation. Times
are CPU-seconds of one thread, the better of two runs; a busy machine slows both sides. It takes about two
minutes of CPU time, and exits with 1 if a ratio is below its target. `--head` measures the memory of
log-probs under 152,064 words."""
import argparse, os, resource, subprocess, sys, time
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ['TRL_EXPERIMENTAL_SILENCE'] = '1'
os.environ.setdefault('OMP_NUM_THREADS', '1')
import torch
from torch.nn.utils.rnn import pad_sequence
from skillrl.agent.episode import rollout
from skillrl.agent.prompt import Limits
from skillrl.training.builders import build_episodes, build_teacher
from skillrl.core.config import SkillRLConfig
from skillrl.envs.base import world
from skillrl.llm.decoding import chunked_logps
from skillrl.llm.local import Policy
from skillrl.llm.placement import quietly
from skillrl.llm.reply import Actor
from skillrl.skills.distillation import distill
from skillrl.core.store import data_path
from skillrl.training.phases import collect_games, draw_groups
from skillrl.training.rl import GRPOTrainer, _scored_rows
from skillrl.training.sft import by_conversation, micro_batches

STEP_TARGET = 3.
WRITE_TARGET = 3.
SHARE_TARGET = 3.
GRADIENT_TOLERANCE = 1e-3 # Of the length of the difference to the length of the gradient
SIZE = 128                # Rows of a minibatch
ROUNDS = 2
SUITES = 6
LIMITS = Limits(max_prompt_tokens=960)

class Report:
    "Lines with a verdict each"
    def __init__(self):
        self.missed = 0

    def line(self, what, ok=True):
        self.missed += not ok
        print(f'{"ok    " if ok else "MISSED"} {what}', flush=True)

def cpu_seconds(f):
    start, wall = time.process_time(), time.perf_counter()
    f()
    return time.process_time() - start, time.perf_counter() - wall

def base():
    return Policy.load(data_path('base'))

# ---- one iteration of episodes ----

def played(config):
    "Groups of finished episodes"
    policy, where = base(), world('alfworld')
    suites = where.suites(config.env)[0][:SUITES]
    banks = {}
    for s in suites:
        games = collect_games(policy, s, config)
        banks[s.name] = distill(games, build_teacher(config), where.categories, where.router)
    groups, _ = draw_groups(suites, banks, config, 0)
    generator = torch.Generator().manual_seed(1)
    rollout([e for group in groups for e in group], policy, generator=generator, limits=LIMITS)
    return suites, groups

# ---- the step ----

def rectangle(rows, left=False, dtype=torch.long):
    side = 'left' if left else 'right'
    return pad_sequence([torch.tensor(r, dtype=dtype) for r in rows], batch_first=True, padding_side=side)

def ones(rows):
    return [[1]*len(r) for r in rows]

def trl_batch(rows):
    "`rows` as the trainer of TRL wants them"
    prompts, replies = [r.prompt_ids for r in rows], [r.reply_ids for r in rows]
    mask = rectangle(ones(replies))
    return dict(prompt_ids=rectangle(prompts, left=True), prompt_mask=rectangle(ones(prompts), left=True),
                completion_ids=rectangle(replies), completion_mask=mask, num_items_in_batch=mask.sum(),
                old_per_token_logps=rectangle([r.logprobs for r in rows], dtype=torch.float),
                advantages=torch.tensor([r.advantage for r in rows]))

def trl_trainer(rows, config, folder, clock):
    "TRL's trainer, whose episodes are `rows`; it takes one step for each `SIZE` of them, `ROUNDS` times"
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer as Theirs
    class Clock(TrainerCallback):
        def on_step_begin(self, *a, **kw):
            clock.append((time.process_time(), time.perf_counter()))
        def on_train_end(self, *a, **kw):
            clock.append((time.process_time(), time.perf_counter()))
    class OfRows(Theirs):
        def _generate_and_score_completions(self, inputs):
            batch = trl_batch(rows)
            ids = torch.cat([batch['prompt_ids'], batch['completion_ids']], 1)
            mask = torch.cat([batch['prompt_mask'], batch['completion_mask']], 1)
            with torch.no_grad():
                lp_ref, *_ = self._get_per_token_logps_and_entropies(
                    self.ref_model, ids, mask, batch['completion_ids'].shape[1], batch_size=SIZE)
            return batch | dict(ref_per_token_logps=lp_ref)
    steps, rl = len(rows)//SIZE, config.rl
    what = 'activation' if hasattr(GRPOConfig, 'activation_checkpointing') else 'gradient'
    args = GRPOConfig(
        folder, per_device_train_batch_size=SIZE, steps_per_generation=steps, num_generations=rl.group_size,
        max_steps=steps*ROUNDS, learning_rate=rl.learning_rate, beta=rl.kl_coeff, epsilon=rl.clip_epsilon,
        loss_type='bnpo', use_bias_correction_kl=False, bf16=False, use_cpu=True, report_to='none',
        save_strategy='no', logging_strategy='no', lr_scheduler_type='constant', weight_decay=0.,
        max_grad_norm=1., shuffle_dataset=False, disable_tqdm=True,
        **{f'{what}_checkpointing': False})
    data = Dataset.from_dict({'prompt': ['go']*len(rows)})
    def reward(prompts, **kw):
        return [0.]*len(prompts)
    with quietly():
        return OfRows(model=str(data_path('base')), reward_funcs=[reward], args=args, train_dataset=data,
                      processing_class=base().tokenizer, callbacks=[Clock()])

def gradient(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])

def compare_gradients(theirs, ours, rows, report):
    batch = trl_batch(rows)
    ids = torch.cat([batch['prompt_ids'], batch['completion_ids']], 1)
    mask = torch.cat([batch['prompt_mask'], batch['completion_mask']], 1)
    with torch.no_grad():
        lp_ref, *_ = theirs._get_per_token_logps_and_entropies(
            theirs.ref_model, ids, mask, batch['completion_ids'].shape[1])
    theirs.model.train()
    theirs.current_gradient_accumulation_steps = 1
    theirs._compute_loss(theirs.model, batch | dict(ref_per_token_logps=lp_ref)).backward()
    ours.loss(rows)[0].backward()
    a, b = gradient(theirs.model), gradient(ours.policy.model)
    theirs.model.zero_grad()
    ours.policy.model.zero_grad()
    apart = ((a - b).norm()/a.norm()).item()
    report.line(f'gradients of {len(rows)} rows differ by {apart:.1e} of their length '
                f'(at most {GRADIENT_TOLERANCE:g})', apart <= GRADIENT_TOLERANCE)

def our_step(trainer, rows):
    for k in range(0, len(rows), SIZE):
        trainer.update(micro_batches(rows[k:k+SIZE], trainer.tokens))

def tokens_of(rows):
    "Tokens row by row, and by conversation"
    return sum(r.length for r in rows), sum(talk[-1].length for talk in by_conversation(rows))

def compare_steps(groups, config, report):
    rows, _ = _scored_rows(groups, config.rl.invalid_action_penalty)
    rows = rows[:2*SIZE]
    raw, once = tokens_of(rows)
    report.line(f'{len(rows)} rows, {raw:,} tokens, {once:,} in conversations: {raw/once:.1f}')
    with TemporaryDirectory() as folder:
        clock = []
        theirs = trl_trainer(rows, config, folder, clock)
        compare_gradients(theirs, GRPOTrainer(base(), config.rl), rows[:SIZE], report)
        ours = GRPOTrainer(base(), config.rl)
        spent = {'ours': [cpu_seconds(lambda: our_step(ours, rows)) for _ in range(ROUNDS)]}
        theirs.train()
    marks = clock[::len(rows)//SIZE]
    spent['TRL'] = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(marks, marks[1:])]
    cpu = {name: min(c for c, _ in pairs) for name, pairs in spent.items()}
    wall = {name: min(w for _, w in pairs) for name, pairs in spent.items()}
    times = cpu['TRL']/cpu['ours']
    said = ', '.join(f'{name} {cpu[name]:.2f} CPU-s and {wall[name]:.2f} s' for name in spent)
    report.line(f'step: {said}: {times:.1f} times as fast (at least {STEP_TARGET:g})', times >= STEP_TARGET)

# ---- writing ----

class TurnByTurn(Actor):
    "A policy whose replies come from `generate` of transformers, which reads every prompt from its beginning"
    def __init__(self, policy):
        self.policy = policy
        self.tokenizer, self.eos_ids = policy.tokenizer, policy.eos_ids
        self.encode = policy.encode

    @torch.no_grad()
    def generate(self, prompts, temperature=1., generator=None, max_new_tokens=32):
        from skillrl.llm.local import Reply
        ids, mask = rectangle(prompts, left=True), rectangle(ones(prompts), left=True)
        out = self.policy.model.generate(
            input_ids=ids, attention_mask=mask, do_sample=True, top_k=0, temperature=temperature,
            max_new_tokens=max_new_tokens, return_dict_in_generate=True, output_logits=True,
            eos_token_id=sorted(self.eos_ids), pad_token_id=0)
        written = out.sequences[:, ids.shape[1]:]
        lps = torch.stack(out.logits, 1).log_softmax(-1).gather(-1, written[..., None])[..., 0]
        replies = []
        for prompt, row, lp in zip(prompts, written.tolist(), lps.tolist()):
            n = next((i + 1 for i, token in enumerate(row) if token in self.eos_ids), len(row))
            text = self.tokenizer.decode(row[:n], skip_special_tokens=True)
            replies.append(Reply(text, row[:n], lp[:n], list(prompt)))
        return replies

def episodes_of(suites, config, n):
    return [e for s in suites for e in build_episodes(s, s.games('train', n), None, config)]

def tokens_per_second(policy, suites, config):
    "Of replies, and how many there were"
    episodes = episodes_of(suites, config, 16)
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    cpu, _ = cpu_seconds(lambda: rollout(episodes, policy, 1., generator, limits=LIMITS))
    tokens = sum(len(r.reply_ids) for e in episodes for r in e.rows)
    return tokens/cpu, tokens

def compare_writing(suites, config, report):
    for kind in ('rendered', 'appended'):
        c = config.merged({'agent.conversation': kind})
        rates = {}
        for name, policy in (('generate', TurnByTurn(base())), ('ours', base())):
            rates[name] = max(tokens_per_second(policy, suites, c)[0] for _ in range(ROUNDS))
        times = rates['ours']/rates['generate']
        ok = kind == 'rendered' or times >= WRITE_TARGET
        target = '' if kind == 'rendered' else f' (at least {WRITE_TARGET:g})'
        said = ', '.join(f'{name} {rate:,.0f}' for name, rate in rates.items())
        report.line(f'reply tokens per CPU-s of whole rollouts, {kind}: {said}: '
                    f'{times:.1f} times as fast{target}', ok)

# ---- conversations that grow ----

def compare_conversations(suites, config, report):
    (game,) = suites[0].games('train', 1)
    group = build_episodes(suites[0], [game]*8, None, config)
    rollout(group, base(), 1., torch.Generator().manual_seed(0), limits=LIMITS)
    rows = [r for e in group for r in e.rows]
    raw, once = tokens_of(rows)
    report.line(f'a group of 8, {len(rows)} turns: {raw:,} tokens, {once:,} in conversations: '
                f'{raw/once:.1f} (at least {SHARE_TARGET:g})', raw >= SHARE_TARGET*once)
    policy = base()
    spent, found = {}, {}
    def both_passes(name, rows):
        lp, mask = policy.logps([r.prompt_ids for r in rows], [r.reply_ids for r in rows])
        (lp*mask).sum().backward()
        found[name] = lp.detach()*mask
    backwards = rows[::-1] # Where none goes on from another
    for name, order in (('row by row', backwards), ('by conversation', rows)):
        pairs = [cpu_seconds(lambda: both_passes(name, order)) for _ in range(ROUNDS)]
        spent[name] = [min(t) for t in zip(*pairs)]
    apart = (found['row by row'].flip(0) - found['by conversation']).abs().max().item()
    said = ', '.join(f'{name} {cpu:.2f} CPU-s and {wall:.2f} s' for name, (cpu, wall) in spent.items())
    agrees = f'log-probs differ by {apart:.0e} (at most 1e-4)'
    report.line(f'forward and backward: {said}; {agrees}', apart <= 1e-4)

# ---- a large vocabulary ----

def head_memory(pieces):
    "Peak memory in GB of log-probs and gradients of 6,000 positions under 152,064 words, in this process"
    head, states = torch.nn.Linear(64, 152_064, bias=False), torch.randn(6_000, 64, requires_grad=True)
    ids = torch.randint(152_064, (6_000,))
    scores = {} if pieces else dict(scores=2**40)
    chunked_logps(head, states, ids, **scores).sum().backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/1e6

def report_head():
    for name in ('pieces', 'whole'):
        out = subprocess.run([sys.executable, __file__, '--head', name], capture_output=True, text=True)
        peak = f'{float(out.stdout):.1f} GB' if out.returncode == 0 else f'ended with {out.returncode}'
        print(f'6,000 positions of 152,064 words, {name}: {peak}', flush=True)

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--head', nargs='?', const='both', choices=('both', 'pieces', 'whole'))
    a = parser.parse_args()
    torch.set_num_threads(1)
    if a.head == 'both':
        return report_head()
    if a.head:
        return print(head_memory(a.head == 'pieces'))
    report, config = Report(), SkillRLConfig().merged({'agent.conversation': 'appended'})
    suites, groups = played(config)
    compare_steps(groups, config, report)
    compare_writing(suites, config, report)
    compare_conversations(suites, config, report)
    return int(report.missed > 0)

if __name__ == '__main__':
    sys.exit(main())
