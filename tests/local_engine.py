"""A Tinker server in this process: what one does with rows, losses and steps, on weights that are here.

Servers do not agree on what becomes of many tokens and many rows. Tinker's own service and SkyRL's training
workers add their losses up. SkyRL's JAX engine takes the mean over the tokens of a row, those of the prompt
too, and then the mean over the rows since the last step.

SkyRL's JAX engine has one place for an adapter: sampling with an older sampler loads the older weights over
those in training. So does this one, so that a client that does it is found out."""
import copy
from dataclasses import dataclass
from typing import Any
import torch
from tinker.types import (ForwardBackwardOutput, GetServerCapabilitiesResponse, OptimStepResponse,
                          SampledSequence, SampleResponse, SaveWeightsResponse, SupportedModel, TensorData)
from skillrl.llm.local import Policy
from skillrl.training.sft import adamw_step

class Learner(Policy):
    "A policy that moves its own weights"
    moves_itself = True
    optimizer = None # Made at the first step

    def step(self, lr, max_norm=1.):
        "One AdamW step on the gradients that `backward` left; the length of the gradient before it was cut"
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), weight_decay=0.)
        return dict(grad_norm=adamw_step(self.optimizer, lr, max_norm).item())

@dataclass
class Answer:
    "What the SDK calls a future; here it is known at once"
    value:Any

    def result(self):
        return self.value

def _read(policy, data):
    "Log-probs (B,T) of the target tokens of `data`, and their mask"
    first = [[d.model_input.to_ints()[0]] for d in data]
    targets = [d.loss_fn_inputs['target_tokens'].tolist() for d in data]
    return policy.logps(first, targets)

def _column(data, name, like):
    "The input `name` of all rows as a tensor like `like`, zero where a row has none"
    out = torch.zeros_like(like)
    for i, d in enumerate(data):
        values = d.loss_fn_inputs[name].tolist() if name in d.loss_fn_inputs else []
        out[i, :len(values)] = torch.tensor(values)
    return out

def _read_out(data, lp):
    "The reply to a request that has read rows"
    lengths = [d.model_input.length for d in data]
    outputs = [dict(logprobs=TensorData.from_torch(row[:n].detach())) for row, n in zip(lp, lengths)]
    return Answer(ForwardBackwardOutput('scalar', outputs))

def _copied(policy, with_optimizer=True):
    "The policy as it is, which the other will not move"
    optimizer = policy.optimizer if with_optimizer else None
    model, optimizer = copy.deepcopy((policy.model, optimizer))
    new = Learner(model.requires_grad_(), policy.tokenizer)
    new.optimizer = optimizer
    return new

class LocalTraining:
    "Weights in training, with the methods of the SDK's training client"
    def __init__(self,
        policy,           # A `Learner`, whose weights will move
        mean=True,        # Take means over tokens and rows; False adds up
        states=None,      # Path of a checkpoint → its policy; None begins a new one
        name='local-0',   # In the paths of its checkpoints
    ):
        self.policy, self.mean = policy, mean
        self.states = {} if states is None else states
        self.name, self.rows = name, 0 # Rows of which gradients have come since the last step

    def forward(self, data, loss_fn='cross_entropy'):
        with torch.no_grad():
            return _read_out(data, _read(self.policy, data)[0])

    def forward_backward(self, data, loss_fn):
        "Add the gradient of `data` to those that have come before"
        if loss_fn != 'importance_sampling':
            raise ValueError(f'loss_fn is {loss_fn!r}: send importance_sampling')
        lp, mask = _read(self.policy, data)
        ratio = (lp - _column(data, 'logprobs', lp)).exp()
        losses = -(ratio*_column(data, 'advantages', lp)*mask).sum(1)
        if self.mean:
            losses = losses/mask.sum(1)
        losses.sum().backward()
        self.rows += len(data)
        return _read_out(data, lp)

    def optim_step(self, params):
        "One Adam step on the gradient that has come, which is cleared"
        used = [p for p in self.policy.model.parameters() if p.grad is not None]
        for p in used if self.mean else ():
            p.grad /= self.rows
        self.rows = 0
        max_norm = params.grad_clip_norm or float('inf')
        done = self.policy.step(params.learning_rate, max_norm=max_norm)
        return Answer(OptimStepResponse(metrics={'grad_norm': done['grad_norm']}))

    def save_weights_and_get_sampling_client(self):
        return LocalSampler(self)

    def save_state(self, name):
        "Keep weights and optimizer"
        path = f'tinker://{self.name}/weights/{name}'
        self.states[path] = _copied(self.policy)
        return Answer(SaveWeightsResponse(path=path))

class LocalSampler:
    "The weights of a `LocalTraining` as they are now, with the method of the SDK's sampling client"
    def __init__(self, training):
        self.training = training
        self.weights = copy.deepcopy(training.policy.model.state_dict())
        self.asked = [] # `LaterAnswer`s that nobody has waited for

    def sample(self,
        prompt,      # `ModelInput`
        num_samples, # 1
        params,      # `SamplingParams`, alike but for the seed in all that are asked for together
    ):
        assert num_samples == 1
        self.asked.append(LaterAnswer(self, prompt.to_ints(), params))
        return self.asked[-1]

    def write(self):
        "Write all that was asked for; the seeds make one"
        asked, self.asked = self.asked, []
        policy, params = self.training.policy, asked[0].params
        policy.model.load_state_dict(self.weights)
        generator = torch.Generator().manual_seed(sum(a.params.seed for a in asked))
        prompts = [a.prompt for a in asked]
        written = policy.generate(prompts, params.temperature, generator, params.max_tokens)
        for a, reply in zip(asked, written):
            reason = 'stop' if reply.token_ids[-1] in policy.eos_ids else 'length'
            said = SampledSequence(reason, _tokens_list=reply.token_ids, _logprobs_list=reply.logprobs)
            a.value = SampleResponse([said])

@dataclass
class LaterAnswer:
    "A reply that is written when somebody waits for it"
    sampler:LocalSampler
    prompt:list[int]
    params:Any
    value:Any = None

    def result(self):
        if self.value is None:
            self.sampler.write()
        return self.value

class LocalEngine:
    "A Tinker service, with the methods of the SDK's service client; all weights move"
    def __init__(self,
        base,            # The `Policy` where every training begins
        mean=True,       # Take means over tokens and rows, as SkyRL's JAX engine does; False adds up
        name='tiny-base',
    ):
        self.base, self.mean = base, mean
        self.name = name
        self.states = {} # Path of a checkpoint → its policy
        self.clients = []

    def _train(self, policy):
        name = f'local-{len(self.clients)}'
        self.clients.append(LocalTraining(policy, self.mean, self.states, name))
        return self.clients[-1]

    def get_server_capabilities(self):
        return GetServerCapabilitiesResponse(supported_models=[SupportedModel(model_name=self.name)])

    def create_lora_training_client(self, base_model, rank=32, seed=None):
        start = {self.name: Learner(self.base.model, self.base.tokenizer)}[base_model]
        return self._train(_copied(start))

    def create_training_client_from_state(self, path):
        return self._train(_copied(self.states[path], with_optimizer=False))

    def create_training_client_from_state_with_optimizer(self, path):
        return self._train(_copied(self.states[path]))
