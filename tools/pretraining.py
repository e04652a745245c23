"""What the commands that make a base policy share: stages of fine-tuning on fresh rows, with one bar."""
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from skillrl.agent.episode import Episode, StepRow
from skillrl.agent.contract import write_reply
from skillrl.llm.local import Policy
from skillrl.training.sft import FullOptions, encode_rows, full_sft

PASS = 512 # Rows in a pass

@dataclass
class Stage:
    "Updates on one source of rows"
    rows:Callable # Gives encoded rows for each pass
    steps:int
    lr:float      # Peak learning rate
    batch_size:int = 32

def fresh_rows(stream:Iterator[dict], policy:Policy)->Callable:
    "Rows of `stream` for a stage, none twice"
    def one_pass():
        return encode_rows([next(stream) for _ in range(PASS)], policy)
    return one_pass

def rows_twice(stream:Iterator[dict], policy:Policy, whole:bool=False)->Callable:
    "Rows of `stream` for a stage, each in two passes; `whole` ones teach to write the prompt as well"
    last = []
    def one_pass():
        new = encode_rows([next(stream) for _ in range(PASS//2)], policy)
        if whole:
            texts = [row.prompt_ids + row.reply_ids for row in new]
            new = [StepRow(text[:1], text[1:]) for text in texts]
        both = new + last
        last[:] = new
        return both
    return one_pass

def pretrain(policy:Policy, stages:list[Stage], out:str)->None:
    "Train `policy` in `stages`, and save it"
    import torch
    from tqdm import tqdm
    torch.set_num_threads(1)
    with tqdm(total=sum(stage.steps for stage in stages)) as bar:
        def show(step, loss):
            bar.update()
            if step % 100 == 99:
                bar.set_postfix(loss=f'{loss:.3f}')
        for stage in stages:
            options = FullOptions(stage.steps, stage.lr, stage.batch_size)
            losses = full_sft(stage.rows, policy, options, show)
    last = losses[-500:]
    print(f'{policy}: loss {sum(last)/len(last):.3f}, saved in {policy.save(out)}')

def demonstrated(episode:Episode, expert:object, strays:Callable, kept:Callable)->Iterator[dict]:
    """Rows of what `expert` would do in `episode`

    `strays(action, admissible)` gives moves to make in its place, which are not taught; `kept(thought,
    action)` says whether a row is."""
    prompt, said = episode.messages(), ''
    while not episode.done:
        thought, action = expert.act(episode.admissible, episode.memory, episode.skills)
        moves = strays(action, episode.admissible)
        said = write_reply(thought, action, episode.agent.reply)
        if not moves and kept(thought, action):
            yield dict(prompt=prompt, completion=said)
        for move in moves or [action]:
            if not episode.done:
                said = write_reply('', move, episode.agent.reply) if moves else said
                episode.act(move)
                prompt = episode.messages(previous_prompt=prompt, previous_reply=said)
