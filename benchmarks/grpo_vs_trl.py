"""How fast is a step of GRPO? `python benchmarks/grpo_vs_trl.py`

The shipped policy plays one iteration, 12 tasks of 8 episodes. Its rows go to TRL's `GRPOTrainer` and to
ours: the same rows, advantages, old log-probs, reference and loss, in the same minibatches of 128, whose
gradients are compared first. Then replies are written, by `generate` of transformers turn by turn and by
ours. Last comes one group of 8 in conversations that grow, read row by row and as a tree. Times are
CPU-seconds of one thread, the better of two runs; a busy machine slows both sides. Exits with 1 if a ratio is
below its target. It takes about a minute of CPU time. `--head` measures the memory of log-probs under 152,064
words."""
import argparse, os, random, resource, subprocess, sys, time
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
from skillrl.llm.prefixes import prefix_tree, share_prefixes
from skillrl.skills.distillation import distill
from skillrl.core.store import data_path
from skillrl.training.phases import collect_games, draw_groups
from skillrl.training.rl import GRPOTrainer, _scored_rows

STEP_TARGET = 3.
WRITE_TARGET = 3.
SHARE_TARGET = 3.
GRADIENT_TOLERANCE = 1e-3 # Of the length of the difference to the length of the gradient
SIZE = 128                # Rows of a minibatch
ROUNDS = 2
SUITES = 6

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
    rollout([e for group in groups for e in group], policy, generator=torch.Generator().manual_seed(1))
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
    ours.read_reference(rows)
    ours.loss(rows)[0].backward()
    a, b = gradient(theirs.model), gradient(ours.policy.model)
    theirs.model.zero_grad()
    ours.policy.model.zero_grad()
    apart = ((a - b).norm()/a.norm()).item()
    report.line(f'gradients of {len(rows)} rows differ by {apart:.1e} of their length '
                f'(at most {GRADIENT_TOLERANCE:g})', apart <= GRADIENT_TOLERANCE)

def our_step(trainer, rows):
    for r in rows:
        r.reference = None
    if trainer.shares:
        trainer.read_reference(rows)
    for k in range(0, len(rows), SIZE):
        trainer.update(trainer.cut(rows[k:k+SIZE]))

def compare_steps(groups, config, report):
    rows, _ = _scored_rows(groups, config.rl.invalid_action_penalty)
    rows = random.Random(0).sample(rows, len(rows)//SIZE*SIZE)
    tree = prefix_tree([r.prompt_ids + r.reply_ids[:-1] for r in rows])
    raw = sum(map(len, tree.paths))
    report.line(f'{len(rows)} rows, {raw/len(rows):.0f} tokens each on average; raw ÷ unique tokens '
                f'{raw/len(tree.ids):.2f}')
    with TemporaryDirectory() as folder:
        clock = []
        theirs = trl_trainer(rows, config, folder, clock)
        compare_gradients(theirs, GRPOTrainer(base(), config.rl, shares=True), rows[:SIZE], report)
        ours = {name: GRPOTrainer(base(), config.rl, shares=name == 'tree') for name in ('rows', 'tree')}
        spent = {name: [cpu_seconds(lambda: our_step(t, rows)) for _ in range(ROUNDS)]
                 for name, t in ours.items()}
        theirs.train()
    marks = clock[::len(rows)//SIZE]
    spent['TRL'] = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(marks, marks[1:])]
    cpu = {name: min(c for c, _ in pairs) for name, pairs in spent.items()}
    wall = {name: min(w for _, w in pairs) for name, pairs in spent.items()}
    for name in ('rows', 'tree'):
        ok = name == 'rows' or cpu['TRL'] >= STEP_TARGET*cpu['tree']
        target = '' if name == 'rows' else f' (at least {STEP_TARGET:g})'
        times = cpu['TRL']/cpu[name]
        report.line(f"step, ours by {name}: {cpu[name]:.2f} CPU-s, {wall[name]:.2f} s; TRL {cpu['TRL']:.2f} "
                    f'and {wall["TRL"]:.2f}: {times:.1f} times as fast{target}', ok)

# ---- writing ----

class TurnByTurn:
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
    limits = Limits(max_prompt_tokens=960)
    cpu, _ = cpu_seconds(lambda: rollout(episodes, policy, 1., generator, limits=limits))
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

def compare_sharing(suites, config, report):
    c = config.merged({'agent.conversation': 'appended'})
    policy = base()
    (game,) = suites[0].games('train', 1)
    group = build_episodes(suites[0], [game]*8, None, c)
    rollout(group, policy, 1., torch.Generator().manual_seed(0), limits=Limits(max_prompt_tokens=960))
    rows = [r for e in group for r in e.rows]
    for e in group:
        for before, row in zip(e.rows, e.rows[1:]):
            known = before.prompt_ids + before.reply_ids
            anew = len(row.prompt_ids) < len(before.prompt_ids) # Where it no longer fits
            assert anew or row.prompt_ids[:len(known)] == known
    prompts, replies = [r.prompt_ids for r in rows], [r.reply_ids for r in rows]
    tree = prefix_tree([p + r[:-1] for p, r in zip(prompts, replies)])
    raw = sum(map(len, tree.paths))
    ratio = raw/len(tree.ids)
    report.line(f'a group of 8, {len(rows)} turns: {raw:,} tokens, {len(tree.ids):,} unique: '
                f'{ratio:.1f} (at least {SHARE_TARGET:g})', ratio >= SHARE_TARGET)
    sharing = base()
    share_prefixes(sharing.model)
    spent, found = {}, {}
    def both_passes(reader):
        lp, mask = reader.logps(prompts, replies)
        (lp*mask).sum().backward()
        found[reader] = lp.detach()*mask
    for name, reader in (('row by row', policy), ('as a tree', sharing)):
        pairs = [cpu_seconds(lambda: both_passes(reader)) for _ in range(ROUNDS)]
        spent[name] = [min(t) for t in zip(*pairs)]
    apart = (found[policy] - found[sharing]).abs().max().item()
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
    report, config = Report(), SkillRLConfig()
    suites, groups = played(config)
    compare_steps(groups, config, report)
    compare_writing(suites, config, report)
    compare_sharing(suites, config, report)
    return int(report.missed > 0)

if __name__ == '__main__':
    sys.exit(main())
