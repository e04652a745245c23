"The relatives of GRPO against loops that follow their papers, in float64, and what the trainer hands on"
import math, random
from types import SimpleNamespace
import pytest, torch
from skillrl.agent.episode import StepRow
from skillrl.core.config import RLConfig
from skillrl.llm.reply import Learner
from skillrl.training.grpo import LossOptions, grpo_loss
from skillrl.training.rl import GRPOTrainer, _scored_rows

# ---- the loss, token by token ----

def one_token(lp, old, ref, a, o):
    "The objective of one token, less its KL penalty"
    r = math.exp(lp - old)
    high = o.epsilon if o.epsilon_high is None else o.epsilon_high
    gain = min(r*a, max(1 - o.epsilon, min(1 + high, r))*a)
    return gain - o.beta*(math.exp(ref - lp) - (ref - lp) - 1)

def naive_loss(lp, old, ref, adv, lengths, o):
    "The loss of rows of differing `lengths`, by loops"
    rows = []
    for i, n in enumerate(lengths):
        rows.append([one_token(lp[i][t], old[i][t], ref[i][t], adv[i], o) for t in range(n)])
    if o.loss_type == 'token-mean':
        return -sum(map(sum, rows))/sum(lengths)
    return -sum(map(sum, rows))/len(rows)

LENGTHS = [5, 1, 3, 4]

def log_probs(seed):
    "Of the policy, the one that sampled, and the reference; far enough apart for every clip"
    g = torch.Generator().manual_seed(seed)
    lp = -3*torch.rand(4, 5, generator=g, dtype=torch.float64) - .1
    return [lp] + [lp + by*torch.randn(4, 5, generator=g, dtype=torch.float64) for by in (1.2, .3)]

ADV = torch.tensor([1.5, -1., .5, -2.], dtype=torch.float64)
MASK = torch.tensor([[float(t < n) for t in range(5)] for n in LENGTHS], dtype=torch.float64)

OPTIONS = {'grpo': LossOptions(), 'dapo': LossOptions(epsilon_high=.28),
           'dr_grpo': LossOptions(loss_type='row-sum'),
           'no KL': LossOptions(beta=0.), 'all': LossOptions(.1, .2, 'row-sum', .5)}

@pytest.mark.parametrize('name', OPTIONS)
def test_the_loss_is_that_of_a_loop(name):
    for seed in range(5):
        lp, old, ref = log_probs(seed)
        got, _ = grpo_loss(lp, old, ref, ADV, MASK, OPTIONS[name])
        want = naive_loss(lp.tolist(), old.tolist(), ref.tolist(), ADV.tolist(), LENGTHS, OPTIONS[name])
        assert got.item() == pytest.approx(want, abs=1e-12)

# ---- advantages ----

def episode(score, seen, rewards=None, valid=True):
    "A played episode: what was seen before each step, what each earned, what the whole is worth"
    rewards = [0.]*len(seen) if rewards is None else rewards
    steps = [SimpleNamespace(observation=o, reward=r) for o, r in zip(seen, rewards)]
    rows = [StepRow([1], [2], [-1.], valid) for _ in seen]
    return SimpleNamespace(id='e', score=score, won=score == 1, steps=steps, rows=rows)

def random_groups(seed):
    "Three groups of four episodes that walk through few places, with scores that are paid in part"
    rng = random.Random(seed)
    places = ['hall', 'kitchen', 'bath']
    def one():
        seen = ['hall'] + [rng.choice(places) for _ in range(rng.randint(0, 4))]
        rewards = [rng.choice([0., .1]) for _ in seen]
        return episode(rng.choice([0., .5, 1.]), seen, rewards, rng.random() < .8)
    return [[one() for _ in range(4)] for _ in range(3)]

def spread(values):
    mean = sum(values)/len(values)
    return mean, math.sqrt(sum((v - mean)**2 for v in values)/len(values))

def to_go(e, t, gamma=.95):
    "What the episode earned from step `t` on; what its score has beyond the rewards is paid at its end"
    rewards = [s.reward for s in e.steps]
    rewards[-1] += e.score - sum(rewards)
    return sum(gamma**(k - t)*rewards[k] for k in range(t, len(rewards)))

def relative(value, values, scaled=True):
    mean, std = spread(values)
    if std < 1e-8:
        return 0.
    return (value - mean)/std if scaled else value - mean

def naive_advantages(groups, kind, penalty):
    "One for each step, by loops over episodes and moments"
    out = []
    for group in groups:
        scores = [e.score for e in group]
        for e in group:
            for t, step in enumerate(e.steps):
                a = relative(e.score, scores, kind != 'dr_grpo') - penalty*(not e.rows[t].valid)
                if kind == 'gigpo':
                    alike = [to_go(o, k) for o in group for k, s in enumerate(o.steps)
                             if s.observation == step.observation]
                    a += relative(to_go(e, t), alike)
                out.append(a)
    return out

@pytest.mark.parametrize('kind', ['grpo', 'dr_grpo', 'gigpo'])
def test_advantages_are_those_of_a_loop(kind):
    for seed in range(20):
        groups = random_groups(seed)
        rows, _ = _scored_rows(groups, .1, kind)
        varied = [len({e.score for e in group}) > 1 for group in groups for e in group for _ in e.steps]
        want = [a for a, v in zip(naive_advantages(groups, kind, .1), varied) if v or abs(a) > 1e-12]
        assert [r.advantage for r in rows] == pytest.approx(want, abs=1e-5)

def test_dapo_leaves_groups_without_variance_out_whole():
    clumsy = [episode(0., ['hall'], valid=False), episode(0., ['hall'])]
    varied = [episode(1., ['hall'], valid=False), episode(0., ['hall'])]
    kept, seen = _scored_rows([clumsy, varied])
    assert len(kept) == 3 and seen['skipped_groups'] == 0 and kept[0].advantage == pytest.approx(-.1)
    kept, seen = _scored_rows([clumsy, varied], .1, 'dapo')
    assert len(kept) == 2 and seen['skipped_groups'] == 1 and seen['groups'] == 2

# ---- what the trainer takes from its config ----

class Fixed(Learner):
    "A policy whose log-probs are given; `step` counts"
    moves_itself = True
    def __init__(self, lp, mask):
        self.lp, self.mask = lp.clone().requires_grad_(), mask
        self.gradient = None
    def logps(self, prompts, replies):
        rows = [p[0] for p in prompts]
        return self.lp[rows], self.mask[rows]
    def step(self, lr, max_norm=1.):
        assert (lr, max_norm) == (RLConfig().learning_rate, 1.)
        self.gradient = self.lp.grad.clone()
        self.lp.grad = None
        return {}

def trainer_and_rows(**settings):
    lp, old, ref = (x.float() for x in log_probs(2))
    rows = []
    for i, n in enumerate(LENGTHS):
        rows.append(StepRow([i], [7]*n, old[i, :n].tolist(), advantage=ADV[i].item()))
    trainer = GRPOTrainer(Fixed(lp, MASK.float()), RLConfig(**settings), Fixed(ref, MASK.float()))
    return trainer, rows, (lp, old, ref)

SETTINGS = [(dict(algorithm=name), OPTIONS[name]) for name in ('grpo', 'dapo', 'dr_grpo')]
SETTINGS += [(dict(kl_coeff=.5), LossOptions(beta=.5)), (dict(clip_epsilon=.05), LossOptions(epsilon=.05))]

@pytest.mark.parametrize('settings, options', SETTINGS)
def test_the_settings_reach_the_loss(settings, options):
    trainer, rows, (lp, old, ref) = trainer_and_rows(**settings)
    want = naive_loss(lp.tolist(), old.tolist(), ref.tolist(), ADV.tolist(), LENGTHS, options)
    assert trainer.loss(rows)[0].item() == pytest.approx(want, rel=1e-5)

def test_a_loss_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="loss_type is 'mug'"):
        grpo_loss(*[torch.ones(1, 1)]*3, torch.ones(1), torch.ones(1, 1), LossOptions(loss_type='mug'))

@pytest.mark.parametrize('algorithm', ['grpo', 'dr_grpo'])
def test_an_update_in_two_chunks_has_the_gradient_of_one(algorithm):
    gradients = []
    for cut in (4, 1):
        trainer, rows, _ = trainer_and_rows(algorithm=algorithm)
        trainer.update([rows[:cut], rows[cut:]] if cut < 4 else [rows])
        gradients.append(trainer.policy.gradient)
    torch.testing.assert_close(*gradients)

def test_the_settings_reach_the_advantages():
    groups = [[episode(1., ['hall']), episode(0., ['hall']), episode(0., ['hall']), episode(0., ['hall'])]]
    class Heard(GRPOTrainer):
        heard = ()
        def update(self, chunks):
            self.heard = sorted(r.advantage for chunk in chunks for r in chunk)
            return []
    def heard(**settings):
        trainer = Heard(Fixed(*[torch.zeros(4, 1)]*2), RLConfig(**settings), object())
        trainer.learn(groups)
        return trainer.heard
    assert heard(algorithm='dr_grpo')[-1] == .75
    assert heard()[-1] == pytest.approx(math.sqrt(3))
    assert heard(algorithm='gigpo')[-1] == pytest.approx(2*math.sqrt(3))
    for e in groups[0]:
        e.score = 0.
        e.rows[0].valid = False
    assert len(heard()) == 4 and heard(invalid_action_penalty=0.) == ()
    assert heard(algorithm='dapo') == ()
