"""Do the tests notice when the core is wrong? One line is changed at a time, and the tests that should notice are run on the copy.

    python benchmarks/mutations.py [--only WORD] [--jobs 2]

Prints each mutation with `killed` or `SURVIVED`; exits 1 when fewer than 97 of 100 are killed, or when a line to change is no longer there."""
import argparse, os, shlex, shutil, subprocess, sys, tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
TARGET = .97
PARTS = 'skillrl', 'tests', 'data', 'configs', 'benchmarks', 'nbs', 'tools', 'pyproject.toml', 'settings.ini', 'setup.py', 'README.md', 'MANIFEST.in'

@dataclass(frozen=True)
class Mutation:
    "One wrong line"
    name: str
    module: str  # Below skillrl/, such as `training/grpo.py`
    old: str     # Text that stands there once
    new: str     # What it is replaced by
    tests: str   # Arguments of pytest

CORE = 'tests/test_core.py'
LOSS = f'{CORE} tests/test_grpo.py'
RL = f'{CORE} tests/test_rl.py tests/test_grpo.py'
GATE = f'{CORE} tests/test_evolution.py tests/test_intervals.py'
SUITES = f'{CORE} tests/test_suites.py tests/test_suites.py'
STORE = 'tests/test_store.py tests/test_power_loss.py'
ADAPTER = 'tests/test_adapter.py'
LOOP = f'{CORE} tests/test_phases.py'
DECODING = 'tests/test_decoding.py'
RELATIVES = 'tests/test_loss_options.py'
PREFIXES = 'tests/test_prefixes.py'
CONVERSATION = 'tests/test_conversation.py'
PLANNER = 'tests/test_planner.py'
TINKER = 'tests/test_tinker.py'
TRACKING = 'tests/test_tracking.py'
DAGGER = 'tests/test_dagger.py'
TRIALS = 'tests/test_trials.py'
ORIGINAL = 'tests/test_original_engine.py'
MONEY = 'tests/test_llm.py tests/test_openai_client.py'
REWARD = 'tests/test_webshop.py -k "85_per or fifth"'

SKILLOPT = 'tests/test_skillopt_drafts.py'
MUTATIONS = [
    # GRPO's loss
    Mutation('KL coefficient ignored', 'training/grpo.py', 'if o.beta and lp_ref is not None:', 'if False:', LOSS),
    Mutation('KL doubled', 'training/grpo.py', 'x + o.beta*kl_tokens', 'x + 2*o.beta*kl_tokens', LOSS),
    Mutation('KL estimate without its square term', 'training/grpo.py', 'return d.expm1() - d', 'return -d', LOSS),
    Mutation('old log-probs ignored by the loss', 'training/grpo.py', 'if lp_old is None:', 'if True:', LOSS),
    Mutation('advantage with the wrong sign', 'training/grpo.py', 'x = -clipped_objective(', 'x = clipped_objective(', LOSS),
    Mutation('no clip', 'training/grpo.py', 'r.clamp(1-epsilon, 1+high)', 'r', LOSS),
    Mutation('clip range not asymmetric', 'training/grpo.py', 'clipped = r.clamp(1-epsilon, 1+high)', 'clipped = r.clamp(1-high, 1+high)', LOSS),
    Mutation('clip from above only', 'training/grpo.py', 'return torch.min(r*a, clipped*a)*mask', 'return clipped*a*mask', LOSS),
    Mutation('prompt and padding count in the loss', 'training/grpo.py', 'x, mask = x.masked_fill(mask==0, 0), mask.to(x.dtype)', 'x, mask = x, torch.ones_like(x)', LOSS),
    Mutation('padding reaches exp', 'training/grpo.py', 'return d if mask is None else d.masked_fill(mask==0, 0)', 'return d', LOSS),
    Mutation('total of the minibatch ignored', 'training/grpo.py', 'return x.sum()/(n if total is None else total)', 'return x.sum()/n', LOSS),
    Mutation('temperature ignored in log-probs', 'training/grpo.py', '(logits/temperature).log_softmax(-1)', 'logits.log_softmax(-1)', LOSS),
    # Advantages
    Mutation('advantage not centred', 'training/grpo.py', 'centred = r - total(r)/n', 'centred = r', LOSS),
    Mutation('advantage not scaled', 'training/grpo.py', 'torch.where(std<eps, 0., centred/unit)', 'torch.where(std<eps, 0., centred)', LOSS),
    Mutation('zero-variance groups are noise', 'training/grpo.py', 'torch.where(std<eps, 0., centred/unit)', '(centred + 1e-3)/unit', LOSS),
    Mutation('groups mixed up', 'training/grpo.py', 'numbers.setdefault(o, len(numbers))', '0', LOSS),
    Mutation('invalid-action penalty ignored', 'training/grpo.py', 'return adv[episode] - penalty*torch.as_tensor(invalid).float()', 'return adv[episode]', RL),
    Mutation('invalid actions are rewarded', 'training/grpo.py', 'return adv[episode] - penalty*', 'return adv[episode] + penalty*', RL),
    Mutation('loss that is no number is taken', 'training/grpo.py', 'if torch.isfinite(value).all():', 'if True:', RL),
    # The RL step
    Mutation('penalty of the config not handed on', 'training/rl.py', 'scored_rows(groups, c.invalid_action_penalty, ', 'scored_rows(groups, 0., ', RL),
    Mutation('KL coefficient of the config not handed on', 'training/rl.py', 'beta=c.kl_coeff', 'beta=0.', RL),
    Mutation('clip range of the config not handed on', 'training/rl.py', 'epsilon=c.clip_epsilon,', 'epsilon=9.,', RL),
    Mutation('old log-probs not those of sampling', 'training/rl.py', 'lp_old = _rectangle([r.row.logprobs for r in chunk], lp)', 'lp_old = lp.detach()', RL),
    Mutation('reference is the policy itself', 'training/rl.py', 'lp_ref, _ = _read(self.reference', 'lp_ref, _ = _read(self.policy', RL),
    Mutation('score is won or nothing', 'training/rl.py', 'scores = [e.score for e in episodes]', 'scores = [float(e.won) for e in episodes]', RL),
    Mutation('rows of zero-variance groups stay', 'training/rl.py', "if varied[i] or (a and algorithm != 'dapo')]", 'if True]', RL),
    Mutation('rows lost', 'training/rl.py', 'rng.sample(conversations, len(conversations))', 'rng.sample(conversations, len(conversations)//2)', RL),
    Mutation('gradient not clipped', 'training/rl.py', 'clip_grad_norm_(self.model.parameters(), max_norm)', 'clip_grad_norm_(self.model.parameters(), 1e9)', RL),
    Mutation('gradients not cleared', 'training/rl.py', '    self.optimizer.zero_grad()\n    return', '    return', RL),
    Mutation('learning rate of the config not handed on', 'training/rl.py', 'self.policy.step(self.config.learning_rate, max_norm=1.)', 'self.policy.step(1e-9, max_norm=1.)', RL),
    Mutation('optimizer not saved', 'training/rl.py', 'if self.optimizer is not None:', 'if False:', RL + ' tests/test_steps.py'),
    Mutation('optimizer saved and not loaded', 'training/rl.py', 'if not file.exists():', 'if True:', RL + ' tests/test_steps.py'),
    # Decoding
    Mutation('reference keeps its adapter on', 'llm/adapter.py', 'self._copied_adapter() if learned else None', '_MOVING', ADAPTER),
    Mutation('reference after SFT is the base', 'llm/adapter.py', 'self._copied_adapter() if learned else None', 'None', ADAPTER),
    Mutation('moments of an adapter not restored', 'training/rl.py', '.restore(folder)\n    self._load_moments(folder)', '.restore(folder)', ADAPTER),
    Mutation('weights of 16 bits', 'llm/local.py', 'load_model(folder, dtype=torch.float32)', 'load_model(folder, dtype=torch.bfloat16)', ADAPTER),
    Mutation('the best is the newest', 'training/pipeline.py', 'if won[-1] <= max(won[:-1], default=-1):', 'if False:', ADAPTER),
    Mutation('log-probs forget what could be chosen', 'llm/local.py', 'if allowed is not None:', 'if False:', DECODING),
    Mutation('a reply may end before its command', 'llm/decoding.py', 'broken.union(self.end_ids)', 'broken', DECODING),
    Mutation('a command is withheld whatever was learnt', 'agent/episode.py', 'sent = self.sent.get(self.knowledge, ())', 'sent = set().union(*self.sent.values())', DECODING),
    Mutation('demonstrations think though replies do not', 'agent/episode.py', 'write_reply(thought, action, episode.agent.reply)', 'write_reply(thought, action)', 'tests/test_agent.py'),
    Mutation('a published prompt asks for a thought', 'agent/episode.py', "if agent.reply == 'action':", 'if False:', 'tests/test_agent.py'),
    Mutation('a tag inside a command', 'llm/decoding.py', 'right and spelled and not _TAG.search(spelled)', 'right and spelled', f'{DECODING} -k tag_in_it'),
    Mutation('alpha is the rank', 'llm/adapter.py', 'lora_alpha=2.*self.rank', 'lora_alpha=self.rank', f'{ADAPTER} -k alpha_by'),
    Mutation('the bits of a base are forgotten', 'llm/adapter.py', "else base, known['bits']", 'else base, 0', f'{ADAPTER} -k as_many_bits'),
    # Relatives of GRPO
    Mutation('Dr. GRPO divides by the spread', 'training/rl.py', "scale=kind != 'dr_grpo'", 'scale=True', RELATIVES),
    Mutation('GiGPO without its steps', 'training/rl.py', "if kind == 'gigpo':", 'if False:', RELATIVES),
    Mutation('moments of other groups are compared', 'training/rl.py', '(group, step.observation)', 'step.observation', RELATIVES),
    Mutation('returns to go without discount', 'training/grpo.py', 'total = r + gamma*total', 'total = r + total', RELATIVES),
    Mutation('the score of an episode is not paid', 'training/rl.py', 'rewards[-1] += e.score - sum(rewards)', 'pass', RELATIVES),
    Mutation('row sums are divided by tokens', 'training/rl.py', "if algorithm != 'dr_grpo' else len(rows)", "if True else len(rows)", RELATIVES),
    Mutation('upper clip of the config not handed on', 'training/rl.py', ', epsilon_high=wider', '', RELATIVES),
    # Who plays what
    Mutation('the wrong bank is the own one', 'training/pipeline.py', '(i+2) % len(p.test)', 'i', LOOP),
    Mutation('"after" plays the policy from before RL', 'training/pipeline.py', "trained = when=='after' and", "trained = False and", LOOP),
    Mutation('"bank" is the evolved bank', 'training/pipeline.py', "version=None if 'evolved' in what else 0", 'version=None', LOOP),
    Mutation('every round reuses the same games', 'training/phases.py', 'fresh = suite.games(split, n, number*n)', 'fresh = suite.games(split, n)', LOOP),
    Mutation('training draws from the test games', 'training/phases.py', "s.draw('train', rng)", "s.draw('test', rng)", LOOP),
    Mutation('real-folder training draws from test files', 'envs/alfworld/suites.py', 'rng.choice(self.files_of(split))', "rng.choice(self.files_of('test'))", LOOP + ' ' + SUITES),
    Mutation('household training draws from test', 'envs/alfworld/suites.py', 'self.house.game(split, n, rng.choice(', "self.house.game('test', n, rng.choice(", LOOP + ' ' + SUITES),
    Mutation('each iteration has the same tasks', 'training/phases.py', "seeded(config.seed, 'tasks', iteration)", "seeded(config.seed, 'tasks')", LOOP + ' tests/test_pipeline.py -k "not killed"'),
    Mutation('as many demonstrations as episodes', 'training/phases.py', "for e in build_episodes(suite, suite.games('collect', config.sft.games), bank, config):", "for e in build_episodes(suite, suite.games('collect', config.env.episodes), bank, config):", LOOP),
    Mutation('a group of different tasks', 'training/phases.py', 'return build_episodes(suite, [game]*size, bank, config, max_steps)', "return build_episodes(suite, [suite.game('train', i) for i in range(size)], bank, config, max_steps)", LOOP),
    # Worlds and splits
    Mutation('no step limit', 'envs/base.py', 'truncated = not over and self.steps >= self.max_steps', 'truncated = False', 'tests/test_alfworld.py tests/test_suites.py'),
    Mutation('one step too many', 'envs/base.py', 'self.steps >= self.max_steps', 'self.steps > self.max_steps', 'tests/test_alfworld.py tests/test_suites.py'),
    Mutation('an official test is dealt to training', 'envs/alfworld/suites.py', "if 'train' not in split}", "if 'unseen' in split}", SUITES),
    Mutation('a game in two splits is taken', 'envs/alfworld/suites.py', 'if other != split:', 'if False:', SUITES),
    Mutation('part of a test instead of all of it', 'envs/alfworld/suites.py', "wanted = slice(None) if split in ('test', *self.tests) else slice(start, last)", 'wanted = slice(start, last)', SUITES),
    Mutation('deal counts from 0', 'envs/base.py', 'enumerate(ordered, 1)', 'enumerate(ordered)', 'tests/test_worlds.py -k dealt'),
    # `token_set_ratio` above 80 changes nothing: it finds alike whatever difflib finds alike above 85
    Mutation('words are the same above 80', 'envs/webshop/reward.py', '_greedy_ratio(first, second) > SAME_ABOVE', '_greedy_ratio(first, second) > 80', REWARD),
    Mutation('hardly is at most a tenth', 'envs/webshop/reward.py', 'self.title_score < _HARDLY', 'self.title_score <= _HARDLY', REWARD),
    # Trials
    Mutation('probation is shown', 'skills/bank.py', 'if not statuses or o.status in statuses]', 'if not statuses or o.status in (*statuses, PROBATION)]', TRIALS),
    Mutation('the sign of an effect', 'skills/trials.py', "(('with', 1), ('without', -1))", "(('with', -1), ('without', 1))", TRIALS),
    Mutation('who did without is counted as with', 'skills/trials.py', "if o.id in t.metadata['hidden'] else 'with'", "if False else 'with'", TRIALS),
    Mutation('nobody is sceptical', 'skills/trials.py', '_SCEPTICAL = Effect(0., .05**2)', '_SCEPTICAL = Effect(0., 9.)', TRIALS),
    Mutation('a form that differs vouches', 'skills/trials.py', 'mean.var + between', 'mean.var', TRIALS),
    Mutation('general after one category', 'skills/trials.py', 'len({c for c, _ in places}) > 1', 'len({c for c, _ in places}) > 0', TRIALS),
    Mutation('what harms stays', 'skills/trials.py', '    if high < 0:\n', '    if False:\n', TRIALS),
    Mutation('a new goal was practised', 'envs/alfworld/households.py', 'if pair not in practised]', 'if True]', TRIALS),
    Mutation('tests ask for what was practised', 'envs/alfworld/households.py', 'return self.new_goals if split == NEW else self.goals', 'return self.goals', TRIALS),
    Mutation('share of retrials inverted', 'skills/trials.py', 'rng.random() >= share', 'rng.random() < share', TRIALS),
    Mutation('one other entry suffices as witness', 'skills/trials.py', '_LEAST_OTHERS = 3', '_LEAST_OTHERS = 1', TRIALS),
    Mutation('two other entries suffice as witnesses', 'skills/trials.py', '_LEAST_OTHERS = 3', '_LEAST_OTHERS = 2', TRIALS),
    Mutation('a form vouches at alpha', 'skills/trials.py', 'mean.interval(alpha/10)', 'mean.interval(alpha)', TRIALS),
    Mutation('a form vouches in three of four cases', 'skills/trials.py', 'interval(1/3)', 'interval(1/4)', TRIALS),
    # `high <= 0` for `high < 0` changes nothing: a bound of counts is never 0 to the last digit
    Mutation('one group too many', 'skills/trials.py', 'groups >= _ENOUGH_GROUPS', 'groups > _ENOUGH_GROUPS', TRIALS),
    Mutation('an entry is its own witness', 'skills/trials.py', 'if f == its_form and e and p is not o]', 'if f == its_form and e]', TRIALS),
    Mutation('a late win counts in a trial', 'training/phases.py', 'bool(t.success) and len(t) <= config.env.max_steps', 'bool(t.success)', LOOP),
    Mutation('only the first test split is held out', 'training/phases.py', 'for split in suite.tests for g', 'for split in suite.tests[:1] for g', LOOP),
    Mutation('own effects come in as those of others', 'training/pipeline.py', 'if other != name else ()', 'if True else ()', LOOP),
    Mutation('rounds in test suites play pairs', 'training/pipeline.py', 'tries = 1 if p.config.rl.iterations else TRIES', 'tries = TRIES', LOOP),
    Mutation('probation ends for all at the first bank', 'training/pipeline.py', 'p.save_bank(suite, put_on_probation(bank))', 'p.save_bank(suite, bank)', LOOP),
    # Evolution and its gate
    Mutation('no threshold for weak categories', 'skills/evolution.py', 'if r.n and r.mean < threshold]', 'if r.n]', GATE),
    Mutation('games of a proposal may be in its gate', 'skills/evolution.py', 'assert_fresh(games.gate, used)', 'pass', GATE),
    Mutation('what was seen may be a gate game', 'skills/evolution.py', '[*games.evidence, *games.seen]', 'games.evidence', GATE),
    Mutation('held-out games may be played', 'skills/evolution.py', "assert_fresh(pool, held_out, role, 'held out for the final test')", 'pass', GATE),
    Mutation('the report plays games of the gate', 'skills/evolution.py', 'decided = used | {g.id for g in games.gate}', 'decided = used', GATE),
    Mutation('untrusted text is tried', 'skills/evolution.py', 'findings = examine(p.item) if isinstance(p.item, (Skill, Mistake)) else []', 'findings = []', GATE),
    Mutation('a second attempt is as easy as the first', 'skills/trials.py', 'ALPHA/2**refused.get(refused_as(row), 0)', 'ALPHA', GATE),
    Mutation('no test of non-inferiority', 'skills/trials.py', 'if len(alters) > len(best):', 'if False:', GATE),
    Mutation('general skills from one category', 'skills/trials.py', 'if len(about) > 1:', 'if about:', GATE),
    Mutation('the gate forgets what its analyses spent', 'core/gate.py', "row['bound'] = bound(gains, level - spent)", "row['bound'] = bound(gains, level)", GATE),
    Mutation('the gate keeps whatever gains', 'core/gate.py', "keep = wins - losses >= row['need'] and gain > 0", 'keep = gain > 0', GATE),
    Mutation('error spent all at once', 'core/gate.py', 'alpha*(end/n)**2', 'alpha', GATE),
    Mutation('interval of a rate too narrow', 'core/stats.py', 'z:float=1.959964', 'z:float=1.2', 'tests/test_core.py tests/test_intervals.py'),
    Mutation('losses not counted against wins', 'core/stats.py', 'b = (2*n - wins + losses)*d - wins - losses', 'b = (2*n - wins)*d - wins', GATE),
    Mutation('nearly all categories are weak', 'skills/evolution.py', 'threshold:float=.4,', 'threshold:float=.9,', GATE),
    # Skills
    Mutation('threshold of retrieval ignored', 'skills/ranking.py', 'if scores[o.id] > self.threshold]', ']', 'tests/test_retrieval.py tests/test_embedding.py'),
    Mutation('the guard examines nothing', 'skills/guard.py', 'def suspicions(', 'def suspicions(*args): return []\ndef _suspicions(', 'tests/test_poisoning.py'),
    # Files, keys and money
    Mutation('files are not synced', 'core/store.py', '    os.fsync(f.fileno())', '    pass', STORE),
    Mutation('folders are not synced', 'core/store.py', '        os.fsync(fd)', '        pass', STORE),
    Mutation('keys that are known are shown', 'llm/reply.py', 'known = [s for s in secrets if s]', 'known = []', MONEY),
    Mutation('keys that look like keys are shown', 'llm/reply.py', 'text = pattern.sub(instead, text)', 'pass', MONEY),
    Mutation('the budget does not bind', 'llm/ledger.py', 'if left <= 0 or left < need[unit]:', 'if False:', MONEY),
    Mutation('calls under way do not count', 'llm/ledger.py', "held = sum(h[unit] for h in self.held.values())", 'held = 0', MONEY),
    Mutation('what is written costs what is read', 'llm/ledger.py', 'return (read * prompt_tokens + write * completion_tokens) / 1e6', 'return read * (prompt_tokens + completion_tokens) / 1e6', MONEY),
    Mutation('failures are cached', 'llm/ledger.py', 'if not reply.ok:', 'if False:', MONEY),
    # DAgger
    Mutation('DAgger plays the expert only', '../tools/dagger.py', 'rng.random() < options.helped', 'True', DAGGER),
    Mutation('the expert never helps', '../tools/dagger.py', 'w.refused >= options.refusals', 'False', DAGGER),
    Mutation('a stuck prompt is labelled for ever', '../tools/dagger.py', 'if w.seen[said] <= options.repeats:', 'if True:', DAGGER),
    Mutation('numbers change in the prompt only', '../tools/dagger.py', 'for ids in (row.prompt_ids, row.reply_ids))', 'for ids in (row.prompt_ids, ()))', DAGGER),
    Mutation('what the bank has wrong stays wrong', 'skills/distillation.py', "home = self.home(new, old, evidence, categories) if self.unasked else ''", "home = ''", 'tests/test_skills.py -k refine'),
    Mutation('no try looks around', 'training/phases.py', 'around = tries == 1 and k % 2 == 1', 'around = False', LOOP),
    Mutation('who looks around goes anywhere', 'envs/alfworld/teacher.py', 'order.sort(key=lambda place: looked[room, place])', 'pass', LOOP),
    Mutation('all who look around go to one place', 'envs/alfworld/teacher.py', 'looked.update((room, place) for place in order[:PLACES])', 'pass', LOOP),
    Mutation('one row fewer of a prompt', '../tools/dagger.py', 'w.seen[said] <= options.repeats', 'w.seen[said] < options.repeats', DAGGER),
    # The original engine and its data
    Mutation('what is in a cup is not written', '../tools/alfworld_pddl.py', 'for name in thing.inside:', 'for name in ():', ORIGINAL),
    Mutation('every door is written as open', '../tools/alfworld_pddl.py', '        if r.open:', '        if r.openable:', ORIGINAL),
    Mutation('types of the rules are not declared', '../tools/alfworld_pddl.py', 'sorted(found[group].union(named))', 'sorted(found[group])', ORIGINAL),
    Mutation('a folder that lacks a file is of the large set', 'envs/webshop/catalogue.py', 'small = len(missing_files(folder)) <= len(missing_files(folder, small=False))', 'small = not missing_files(folder)', 'tests/test_webshop_data.py'),
    # Rows that begin alike, and conversations that grow
    Mutation('a node of a tree looks ahead', 'llm/prefixes.py', 'device=device) <= at[..., None]', 'device=device) <= at[..., None] + 1', PREFIXES),
    Mutation('nodes of a tree count from 0', 'llm/prefixes.py', 'tree.depths += range(n, len(rows[i]))', 'tree.depths += range(len(rows[i]) - n)', PREFIXES),
    Mutation('a row reads the nodes of the row before', 'llm/prefixes.py', 'path = path[:n] + list(', 'path = path[:n + 1] + list(', PREFIXES),
    Mutation('a grown prompt need not go on', 'llm/reply.py', 'if self[:len(known)] != known or len(self) == len(known):', 'if len(self) == len(known):', CONVERSATION),
    Mutation('the end token is asked for twice', 'llm/reply.py', 'rest = rest.lstrip().removeprefix(end) if end else rest', 'rest = rest.lstrip()', CONVERSATION),
    # Planner, engines elsewhere, trackers
    Mutation('each micro-batch of fine-tuning has a mean of its own', 'training/sft.py', '(lp*mask).sum()/learnt', '(lp*mask).sum()/mask.sum()', 'tests/test_sft.py -k one_row'),
    Mutation('planned passes are those of all rows', 'training/costs.py', 'min(learns, _MOST_ROWS, most)', 'min(learns, _MOST_ROWS)', PLANNER),
    Mutation('activations of one layer are planned', 'training/costs.py', 'kept = shape.layers*layer', 'kept = layer', PLANNER),
    Mutation('the planned cache holds keys alone', 'training/costs.py', 'cache = 2*shape.layers*shape.keys*width', 'cache = shape.layers*shape.keys*width', PLANNER),
    Mutation('a gate plays once', 'training/plan.py', 'rounds*2*pairs', 'rounds*pairs', PLANNER),
    Mutation('rent of one device', 'training/plan.py', "f'{hours*d.usd:,.{", "f'{hours/n*d.usd:,.{", PLANNER),
    Mutation('mean weight without the rows', 'training/tinker.py', 'len(r)*total if self.mean', 'len(r) if self.mean', TINKER),
    Mutation('gradients of old log-probs leave', 'training/tinker.py', 'if ctx.steps != ctx.policy.steps:', 'if False:', TINKER),
    Mutation('requests to an engine are not filled up', 'training/tinker.py', 'full = rows + [filler]*(-len(rows) % size)', 'full = rows', TINKER),
    Mutation('a tracker is told all again', 'core/tracking.py', 'if number >= self.known:', 'if True:', TRACKING),
    Mutation('an ablation without RL tries nothing', 'training/pipeline.py', 'tries = 1 if p.config.rl.iterations else TRIES', 'tries = 1', 'tests/test_phases.py'),
    # SkillOpt: drafts, edits that are missed, closing
    Mutation('SkillOpt asks the gate at every step', 'skillopt/selection.py', 'if not why and _is_too_early(session):', 'if False:', SKILLOPT),
    Mutation('SkillOpt keeps edits that are not missed', 'skillopt/proposal.py', "if row.get('gained'):", 'if False:', SKILLOPT),
    Mutation('SkillOpt ships idle lines', 'skillopt/selection.py', 'if not _is_missed(session, lines, k):', 'if False:', SKILLOPT),
    Mutation('SkillOpt tests each line alone', 'skillopt/selection.py', 'if n != k or some)', 'if n == k and some)', SKILLOPT),
    Mutation('SkillOpt keeps nothing back for closing', 'skillopt/session.py', 'return measured + gate_plays(n) + _CARE_FOR_LINE*len(session.draft.state.needed)', 'return measured', SKILLOPT),
    Mutation('SkillOpt does not count what closing plays', 'skillopt/selection.py', 'session.finals[path.name] = known', 'pass', SKILLOPT),
]

def place(m): return ROOT/'skillrl'/m.module

def missing(m):
    "Is the line to change not there, or there more than once?"
    return place(m).read_text(encoding='utf-8').count(m.old) != 1

def copy_tree(to):
    for part in PARTS:
        source = ROOT/part
        if source.is_dir(): shutil.copytree(source, to/part, ignore=shutil.ignore_patterns('__pycache__', '.ipynb_checkpoints'))
        elif source.exists(): shutil.copy(source, to/part)

def passes(tree, tests):
    "Do `tests` pass in the copy `tree`? RuntimeError if they could not run"
    env = os.environ | dict(PYTHONPATH=str(tree), OMP_NUM_THREADS='1', PYTHONDONTWRITEBYTECODE='1')
    command = [sys.executable, '-m', 'pytest', '-q', '-x', '-n0', '-p', 'no:cacheprovider', *shlex.split(tests)]
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=900)
    if done.returncode in (0, 1): return done.returncode == 0
    if done.returncode == 2 and 'error' in done.stdout.lower(): return False  # The module could not even be imported
    raise RuntimeError(f'pytest {tests} could not run: {done.stdout[-500:]}{done.stderr[-500:]}')

def survives(m):
    "Do the tests of `m` pass although its line is wrong?"
    with tempfile.TemporaryDirectory() as d:
        tree = Path(d)
        copy_tree(tree)
        if m.old != m.new:
            file = tree/'skillrl'/m.module
            file.write_text(file.read_text(encoding='utf-8').replace(m.old, m.new), encoding='utf-8')
        return passes(tree, m.tests)

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--only', default='', metavar='WORD', help='only mutations whose name holds this word')
    p.add_argument('--jobs', type=int, default=2)
    args = p.parse_args()
    chosen = [m for m in MUTATIONS if args.only in m.name]
    gone = [m.name for m in chosen if missing(m)]
    if gone: sys.exit(f'the line to change is gone, or there twice: {"; ".join(gone)}')
    with ThreadPoolExecutor(args.jobs) as pool: alive = list(tqdm(pool.map(survives, chosen), total=len(chosen)))
    for m, left in zip(chosen, alive): print(f'{"SURVIVED" if left else "killed  "} {m.name} ({m.module})')
    killed = alive.count(False)
    print(f'{killed} of {len(chosen)} killed')
    sys.exit(killed < TARGET*len(chosen))

if __name__ == '__main__': main()
