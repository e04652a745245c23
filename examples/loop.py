"""The whole of SkillRL in one file: play, distill, fine-tune, reinforce, evolve, judge.

    python examples/loop.py [--seed 0] [--iterations 12]

A policy of 0.145 M weights learns in eight generated households of ALFWorld and is judged in six others, on
one CPU core, in some minutes. What belongs to a world, a bank and a policy comes from the library; the loop
itself, from the prompt to the loss, stands here. `skillrl train` is the same with more games, trials of each
skill, checkpoints, servers and a report. The paper is SkillRL, arXiv 2602.08234."""
import argparse, random
from dataclasses import dataclass, field
import torch
from skillrl.agent.contract import parse_reply, write_reply
from skillrl.agent.prompt import PromptContext, step_messages
from skillrl.core.config import SkillRLConfig
from skillrl.core.store import data_path
from skillrl.core.tables import Table
from skillrl.core.trajectory import Step, Trajectory
from skillrl.envs.base import world
from skillrl.llm.local import Policy
from skillrl.skills.bank import SkillBank
from skillrl.skills.distillation import distill
from skillrl.skills.retrieval import Retriever, render

ALFWORLD = world('alfworld')
TEACHER = ALFWORLD.teacher()
MAX_STEPS = 14      # Actions of an episode
GROUP = 8           # G, tries of one task
TASKS = 12          # Tasks of an iteration
EPSILON = .2        # Clip range
BETA = .01          # Price of drifting from the reference
PENALTY = .5        # Off the advantage of a step that was no valid command
LEARNING_RATE = 5e-4
ROWS = 128          # Steps of a minibatch

# ---- an episode ----

@dataclass
class Try:
    "One try at one game, under way or over"
    house:object         # A suite of games that share one bank
    game:object
    bank:SkillBank|None
    steps:list = field(default_factory=list)   # `Step`s
    rows:list = field(default_factory=list)    # (prompt ids, reply ids, log-probs, valid) of each step
    history:list = field(default_factory=list) # (command, what it brought)

    def __post_init__(self):
        self.env = self.house.env(self.game, MAX_STEPS)
        self.observation, info = self.env.reset()
        self.admissible = info['admissible_commands']
        self.task, self.category = info['task'], info['category']
        self.memory = ALFWORLD.memory(self.observation)
        self.skills = []
        if self.bank:
            self.skills = render(Retriever(self.bank, router=ALFWORLD.router).retrieve(self.task))
        self.done = self.won = False

    def prompt(self):
        "What the policy reads: task, skills, what was seen, commands"
        context = PromptContext(self.task, self.observation, self.admissible, self.history, self.skills,
                                self.memory)
        return step_messages(context)

    def take(self, text):
        "Take the step that the reply `text` asks for; was it a valid command?"
        _, command, valid = parse_reply(text, self.admissible)
        self.steps.append(Step(self.observation, command, reply=text, ok=valid, admissible=self.admissible))
        self.observation, _, terminated, truncated, info = self.env.step(command)
        self.history.append((command, self.observation))
        self.memory.see(command, self.observation)
        self.admissible, self.won = info['admissible_commands'], info['won']
        self.done = terminated or truncated
        return valid

    def trajectory(self):
        return Trajectory(f'{self.game.id}#{id(self)}', self.task, self.category, self.steps, self.won,
                          self.observation, self.game.id)

def play(policy, tries, generator=None):
    "Play all `tries` side by side, one batch of replies for each turn; the trajectories"
    live = list(tries)
    while live:
        prompts = [policy.encode(t.prompt()) for t in live]
        replies = policy.generate(prompts, temperature=1. if generator else 0., generator=generator)
        for t, reply in zip(live, replies):
            valid = t.take(reply.text)
            t.rows.append((reply.prompt_ids, reply.token_ids, reply.logprobs, valid))
        live = [t for t in live if not t.done]
    return [t.trajectory() for t in tries]

# ---- cold start: demonstrations that act by what their bank says ----

def demonstrations(house, bank, games, seed):
    "(prompt, reply) of each step of an expert who believes nine of ten skills"
    rng, rows = random.Random(f'{house.name} {seed}'), []
    for game in house.games('collect', games):
        t = Try(house, game, bank)
        expert = ALFWORLD.expert(t.task, rng, .9)
        while not t.done:
            thought, command = expert.act(t.admissible, t.memory, t.skills)
            rows.append((t.prompt(), write_reply(thought, command, 'think+action')))
            t.take(rows[-1][1])
    return rows

def fine_tune(policy, rows, steps, seed):
    "Make the replies of `rows` likelier: cross-entropy on reply tokens alone"
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=LEARNING_RATE, betas=(.9, .98))
    rng, end = random.Random(seed), policy.tokenizer.eos_token_id
    for _ in range(steps):
        batch = rng.sample(rows, min(32, len(rows)))
        prompts = [policy.encode(prompt) for prompt, _ in batch]
        replies = [policy.encode(reply) + [end] for _, reply in batch]
        logprobs, mask = policy.logps(prompts, replies)
        descend(policy, optimizer, -(logprobs*mask).sum()/mask.sum())

def descend(policy, optimizer, loss):
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.)
    optimizer.step()
    optimizer.zero_grad()

# ---- GRPO ----

def advantages(tries):
    "How far each try of one task lies above the mean of its group, in standard deviations"
    won = torch.tensor([float(t.won) for t in tries])
    spread = won.std(correction=0)
    return (won - won.mean())/spread if spread > 0 else torch.zeros(len(tries))

def rows_of(groups):
    "(prompt, reply, old log-probs, advantage) of each step that has something to teach"
    for group in groups:
        for t, advantage in zip(group, advantages(group).tolist()):
            for prompt, reply, old, valid in t.rows:
                credit = advantage - PENALTY*(not valid)
                if credit:
                    yield prompt, reply, old, credit

def padded(rows, like):
    "Lists of numbers in the shape of `like`"
    out = torch.zeros_like(like)
    for i, row in enumerate(rows):
        out[i, :len(row)] = torch.tensor(row)
    return out

def grpo_loss(policy, reference, rows):
    "Clipped objective and KL penalty, averaged over reply tokens (the paper's equation 9)"
    prompts, replies, old, credit = zip(*rows)
    new, mask = policy.logps(prompts, replies)
    with torch.no_grad():
        wanted, _ = reference.logps(prompts, replies)
    ratio = (new - padded(old, new)).exp()
    credit = torch.tensor(credit)[:, None]
    gain = torch.min(ratio*credit, ratio.clamp(1 - EPSILON, 1 + EPSILON)*credit)
    drift = wanted - new
    penalty = drift.exp() - drift - 1 # Schulman's k3, never negative
    return -((gain - BETA*penalty)*mask).sum()/mask.sum()

def learn(policy, reference, optimizer, groups, rng):
    "One pass over the steps of `groups`"
    rows = list(rows_of(groups))
    rng.shuffle(rows)
    for i in range(0, len(rows), ROWS):
        descend(policy, optimizer, grpo_loss(policy, reference, rows[i:i + ROWS]))

# ---- evolution ----

def weak_categories(trajectories, threshold=.9):
    "Categories of which too few were won (δ of the paper)"
    won = {}
    for t in trajectories:
        won.setdefault(t.category, []).append(t.success)
    return [c for c, results in won.items() if sum(results)/len(results) < threshold]

def evolved(bank, trajectories):
    "S ← S ∪ S_new: what the teacher learns from all that was played, where the policy fails"
    weak = weak_categories(trajectories)
    return distill(trajectories, TEACHER) if weak else bank

# ---- the loop ----

def success(policy, houses, banks, games=8):
    "Share of test games won, `games` in each house, at temperature 0"
    tries = [Try(h, g, banks.get(h.name)) for h in houses for g in h.games('test', games)]
    won = sum(t.success for t in play(policy, tries))
    return f'{won/len(tries):.2f}'

def main(seed, iterations):
    torch.manual_seed(seed)
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    config = SkillRLConfig().merged(dict(seed=seed, env=dict(train_suites=8, test_suites=6)))
    houses, unseen = ALFWORLD.suites(config.env)
    policy = Policy.load(data_path('base'))
    policy.model.requires_grad_()

    # 1. Collect: play without skills
    played = {h.name: play(policy, [Try(h, g, None) for g in h.games('collect', 8)], generator)
              for h in houses + unseen}
    # 2. Distill: S = M_T(T)
    first = {name: distill(trajectories, TEACHER) for name, trajectories in played.items()}
    table = [['base', success(policy, unseen, {}), success(policy, unseen, first)]]
    # 3. Cold start on demonstrations that have the bank in their prompts
    rows = [row for h in houses for row in demonstrations(h, first[h.name], 8, seed)]
    fine_tune(policy, rows, 100, seed)
    table.append(['after SFT', success(policy, unseen, {}), success(policy, unseen, first)])
    # 4. GRPO, in which the banks evolve every four iterations
    banks = dict(first)
    reference = policy.frozen_copy()
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=LEARNING_RATE, weight_decay=0.)
    for iteration in range(iterations):
        groups = []
        for house in rng.choices(houses, k=TASKS):
            game = house.draw('train', rng)
            groups.append([Try(house, game, banks[house.name]) for _ in range(GROUP)])
        tries = [t for group in groups for t in group]
        for t, trajectory in zip(tries, play(policy, tries, generator)):
            played[t.house.name].append(trajectory)
        learn(policy, reference, optimizer, groups, rng)
        print(f'iteration {iteration + 1}: {sum(t.won for t in tries)/len(tries):.2f} won')
        if iteration % 4 == 3:
            banks = {h.name: evolved(banks[h.name], played[h.name]) for h in houses}
    table.append(['after RL', success(policy, unseen, {}), success(policy, unseen, first)])
    # 5. Evolve in the unseen houses, where no weight moves
    banks = dict(first)
    for number in range(3):
        for h in unseen:
            games = h.games('val', 8, 8*number)
            played[h.name] += play(policy, [Try(h, g, banks[h.name]) for g in games], generator)
            banks[h.name] = evolved(banks[h.name], played[h.name])
    table.append(['after RL, evolved banks', '', success(policy, unseen, banks)])
    print(Table(['unseen households', 'no bank', 'own bank'], table))

if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--iterations', type=int, default=12)
    args = parser.parse_args()
    main(args.seed, args.iterations)
