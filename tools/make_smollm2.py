"""Teach smollm2 to act by what a prompt says, in households that no run plays in: `data/smollm2`.

    skillrl fetch smollm2
    python tools/make_smollm2.py --out runs/reader
    python tools/make_smollm2.py --policy runs/reader --out runs/reader --part 1

It plays the part that `tools/make_base.py` plays for the policy in `data/base`, with a language model to
begin with: the expert acts in random households, half of which want a step before they heat or clean, and
believes a note six times in ten. A tenth of the episodes name places to look at, as rounds of evolution do;
the others show what a bank might say. An episode is a conversation, in which the model learns to write the
command alone, chosen among those on offer. It is saved every 20 updates; each part goes on from the adapter
that it is given.

The adapter in `data/smollm2` was made in three parts, 100 minutes on two cores and 5 GB: 160 updates at a
rate of 1e-3 and 60 at 3e-3 with a quarter of such places, all rows of blind search and 20 steps an episode,
then 140 of 160 at 2.5e-3 as it is now.
"""
import argparse, random
from itertools import chain, count, islice
from pathlib import Path
from statistics import fmean
from safetensors.torch import load_file, save_file
from make_base import TRUST, share
from mixture import episodes, way_episodes
from pretraining import demonstrated
from skillrl.core.config import AgentConfig, ModelConfig
from skillrl.core.store import read_json, write_json
from skillrl.envs.alfworld.expert import AlfworldExpert
from skillrl.envs.alfworld.preconditions import DECISIVE
from skillrl.llm.adapter import is_adapter, load_policy, new_adapter
from skillrl.llm.models import find_model
from skillrl.training.builders import build_placement
from skillrl.training.sft import FullOptions, encode_rows, full_sft

PASS = 256 # Rows drawn together
RANK = 6   # Of the adapter: 1.8 M numbers
SHOWN = dict(home=.9, scattered=.1)
TOKENS = 2_048 # In a forward pass at most
MAX_STEPS = 14
BLIND = .2 # Of the rows of blind search, of which few are kept anyway
AGENT = AgentConfig(reply='action', decode='admissible', conversation='appended')

def places_to_look_at(game, rng):
    "Three lines that send an agent somewhere, right or wrong"
    places = rng.sample([r.name for r in game.scene.receptacles], 3)
    return [f'Look for {game.goal.thing} in {place}.' for place in places]

def shown(number):
    "Demonstration rows of pass `number`, from households of its own"
    rng, name = random.Random(f'reader {number}'), f'reader-{number}'
    def strays(action, admissible):
        return [rng.choice(admissible)] if rng.random() < .1 else []
    def kept(thought, action):
        if thought in DECISIVE.values(): # Not on offer
            return False
        hinted = ' in ' in thought or not any(word in thought for word in ('search', 'find'))
        return rng.random() < share(thought, action)*(1 if hinted else BLIND)
    for e in chain.from_iterable(zip(way_episodes(name, rng), episodes(SHOWN, name, rng))):
        e.agent, e.env.max_steps = AGENT, MAX_STEPS
        if rng.random() < .1:
            e.skills = places_to_look_at(e.game, rng)
        yield from demonstrated(e, AlfworldExpert(e.start().task, rng, TRUST), strays, kept)

def begun(policy):
    "The adapter in the folder `policy`, to go on with; a new one beside a model; and the name of its base"
    placement = build_placement(ModelConfig())
    if is_adapter(policy):
        return load_policy(policy, placement), read_json(Path(policy)/'base.json')['base']
    return new_adapter(find_model(policy), RANK, 0, 0, placement), policy

def save(learner, base, out):
    "Write the adapter in half precision, and its base by name, wherever that lies here"
    folder = learner.save(out)
    file = folder/'adapter_model.safetensors'
    save_file({name: numbers.half() for name, numbers in load_file(file).items()}, file, {'format': 'pt'})
    for file, key in ('adapter_config.json', 'base_model_name_or_path'), ('base.json', 'base'):
        write_json(folder/file, read_json(folder/file) | {key: base})

def main(policy, out, part, steps, batch, rate):
    learner, base = begun(policy)
    passes = count(1000*part)
    def rows():
        return encode_rows(list(islice(shown(next(passes)), PASS)), learner)
    losses = []
    def told(step, loss):
        losses.append(loss)
        if step % 20 == 19:
            save(learner, base, out)
            print(f'update {step + 1} of {steps}: loss {fmean(losses[-20:]):.3f}', flush=True)
    full_sft(rows, learner, FullOptions(steps, rate, batch, 0, TOKENS), told)
    save(learner, base, out)

def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--policy', default='smollm2', help='a model, or the folder of an adapter to go on with')
    p.add_argument('--out', default='data/smollm2')
    p.add_argument('--part', type=int, default=0, help='each has households of its own')
    p.add_argument('--steps', type=int, default=320, help='updates')
    p.add_argument('--batch', type=int, default=16, help='rows of an update at least')
    p.add_argument('--rate', type=float, default=3e-3, help='peak of the learning rate')
    return p.parse_args()

if __name__ == '__main__':
    main(**vars(arguments()))
