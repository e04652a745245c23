"""Demonstrations in the states that the policy itself gets into, with numbers that cannot be memorised.

An expert's demonstrations show states that experts get into. A young policy gets into others: it sends a
command that is refused, and nothing it was shown says what to do then. DAgger (Ross et al., 2011) lets the
policy play, and asks the expert at each step what it would have done. Three rules keep the rows useful. The
expert acts itself in a share of the steps, and after some refusals in a row, so that episodes get beyond the
first trap. The same prompt is labelled twice at most, since a policy that is stuck meets it again and again.

More than half of the first mistakes of a policy trained on 200 official games name the right kind of thing
with a number that this room does not show. If every row gives the things of each kind new numbers, the same
in prompt and reply, remembering them is worth nothing and reading everything.
"""
import random, re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
import torch
from skillrl.agent.episode import Episode, StepRow
from skillrl.agent.contract import write_reply

@dataclass
class RelabelOptions:
    "How the policy is let loose, and when the expert steps in"
    temperature:float = .4 # Of the policy's replies
    helped:float = .1      # Share of steps that the expert takes
    refusals:int = 3       # In a row, after which it takes one
    repeats:int = 2        # Rows with the same prompt in one episode, at most

@dataclass
class _Pupil:
    "An episode with its expert"
    episode:Episode
    expert:Any
    refused:int = 0 # Commands in a row
    seen:Counter = field(default_factory=Counter) # Prompt → times labelled

def _labelled(pupil, prompt):
    "What the expert would do now, as a row"
    e = pupil.episode
    thought, action = pupil.expert.act(e.admissible, e.memory, e.skills)
    return dict(prompt=prompt, completion=write_reply(thought, action, e.agent.reply))

def _turn(live, policy, options, rng, generator):
    "One step of each of `live`; a row for each prompt that is not yet known well enough"
    prompts = [w.episode.messages() for w in live]
    labels = [_labelled(w, prompt) for w, prompt in zip(live, prompts)]
    encoded = [policy.encode(prompt) for prompt in prompts]
    replies = policy.generate(encoded, options.temperature, generator)
    rows = []
    for w, label, reply in zip(live, labels, replies):
        said = label['prompt'][-1]['content']
        w.seen[said] += 1
        if w.seen[said] <= options.repeats:
            rows.append(label)
        helps = w.refused >= options.refusals or rng.random() < options.helped
        step = w.episode.play(label['completion'] if helps else reply)
        w.refused = 0 if helps or step.ok else w.refused + 1
    return rows

def relabel(
    episodes:Sequence[Episode], # Unplayed
    policy:Any,          # A `Policy`, which plays
    expert_of:Callable[[str, random.Random], Any], # Task and source of chance → expert for one episode
    seed:int=0,
    options:RelabelOptions=RelabelOptions(),
)->list[dict]: # Rows of `prompt` and `completion`
    "What an expert would have done in each state that `policy` gets into"
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    live = [_Pupil(e, expert_of(e.start().task, random.Random(rng.random()))) for e in episodes]
    rows = []
    while live:
        rows += _turn(live, policy, options, rng, generator)
        live = [w for w in live if not w.episode.done]
    return rows

def numbered_words(
    tokenizer:Any, # One whose tokens are whole words, such as `word_tokenizer` makes
)->dict[int, list[int]]: # Token of a numbered thing → all of its kind, ascending
    "A numbered word among all of its kind"
    kinds = {}
    for word, i in sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1]):
        named = re.fullmatch(r'([a-z]+) \d+', word)
        if named:
            kinds.setdefault(named[1], []).append(i)
    return {i: ids for ids in kinds.values() for i in ids}

def renumber(
    row:StepRow,
    alike:dict[int, list[int]], # From `numbered_words`
    rng:random.Random,
)->StepRow:
    "`row` with other numbers, the same in prompt and reply"
    used = {}
    for i in dict.fromkeys(row.prompt_ids + row.reply_ids):
        if i in alike:
            used.setdefault(alike[i][0], []).append(i)
    new = {}
    for ids in used.values():
        new |= zip(ids, rng.sample(alike[ids[0]], len(ids)))
    prompt, reply = ([new.get(i, i) for i in ids] for ids in (row.prompt_ids, row.reply_ids))
    return StepRow(prompt, reply)
