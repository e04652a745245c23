"""Hindsight: is what a lost episode reached what the engine says, and does it think as the expert would?"""
from collections import Counter
from dataclasses import replace
import pytest
from skillrl.config import SkillRLConfig
from skillrl.contract import write_reply
from skillrl.envs.alfworld.engine import Engine
from skillrl.envs.alfworld.expert import AlfworldExpert, play_expert
from skillrl.envs.alfworld.hindsight import reached, reached_goals, thoughts
from skillrl.envs.alfworld.households import Household, households
from skillrl.envs.alfworld.notes import AlfworldNotes, kind, read_goal
from skillrl.envs.alfworld.scene import CATEGORIES, Goal
from skillrl.envs.base import seeded, world
from skillrl.runfolder import RunFolder
from skillrl.skills.bank import SkillBank
from skillrl.training import pipeline
from skillrl.training.phases import demonstrations
from skillrl.training.pipeline import Pipeline
from skillrl.trajectory import Step, Trajectory, select

HOUSES = households('train', 8)
HOUSES += [Household('bath', ('kitchen', 'bathroom')), Household('odd', ('living', 'kitchen'), 0)]
GAMES = [g for house in HOUSES for g in house.games('collect', 4)][:204]
CHANGING = 'take', 'move', 'put', 'heat', 'cool', 'clean', 'open', 'use'

def whims(game, rng):
    "Goals that somebody might have in the house of `game`, and the one that is asked for"
    things = [t.type for t in game.scene.things if 'take' in t.can]
    targets = [r.type for r in game.scene.receptacles]
    stored = [c for c in CATEGORIES if c != 'look']
    goals = [Goal(rng.choice(stored), rng.choice(things), rng.choice(targets)) for _ in range(6)]
    return [*goals, Goal('look', rng.choice(things), 'desklamp'), game.goal]

def stumble(game, style='move', steps=30, wisdom=.8):
    "An episode, mostly the moves of an expert who may want something else, the rest at random"
    rng = seeded('stumble', game.id)
    engine, out = Engine(game, style), []
    seen = engine.reset()
    notes = AlfworldNotes(seen)
    wanted = whims(game, rng)
    expert = AlfworldExpert(wanted[0].sentence(), rng)
    while len(out) < steps and not engine.won:
        can = engine.admissible()
        if rng.random() < .08:
            expert = AlfworldExpert(rng.choice(wanted).sentence(), rng)
        busy = [a for a in can if a.startswith(CHANGING)]
        action = rng.choice(busy if busy and rng.random() < .7 else can)
        if rng.random() < wisdom:
            _, action = expert.act(can, notes)
        if rng.random() < .05:
            action = 'go to nowhere 1'
        out.append(Step(seen, action, admissible=can))
        seen = engine.step(action)
        notes.see(action, seen)
    return Trajectory(f'{game.id}#0', game.task, game.category, out, engine.won, seen, game.id)

def shown(game, t):
    "`game` without the things that the episode never names: nothing it read could tell the difference"
    lines = [line for s in t.steps for line in (s.observation, *s.admissible)]
    text = '\n'.join([*lines, t.final_observation])
    named = tuple(thing for thing in game.scene.things if thing.name in text)
    return replace(game, scene=replace(game.scene, things=named))

def goals_won(engine, goals):
    "Those of `goals` that the engine calls won as it stands"
    won, game = set(), engine.game
    for goal in goals:
        engine.game, engine._won = replace(game, goal=goal), None
        if engine.won:
            won.add(goal)
    engine.game, engine._won = game, None
    return won

def possible_goals(game, t):
    "Every goal about a thing of a type that the agent took; of other types nothing changes"
    commands = [s.action for s in t.steps if s.action.startswith('take')]
    taken = {kind(command.split(' from ')[0].removeprefix('take ')) for command in commands}
    targets = {r.type for r in game.scene.receptacles}
    lamps = {o.type for o in game.scene.things if 'use' in o.can}
    hows = [c for c in CATEGORIES if c != 'look']
    stored = [Goal(how, thing, target) for how in hows for thing in taken for target in targets]
    return stored + [Goal('look', thing, lamp) for thing in taken for lamp in lamps]

def truth(game, t):
    "Number of a step → goals that the engine first calls won after it"
    engine, goals = Engine(game), possible_goals(game, t)
    out, seen = {}, [s.observation for s in t.steps] + [t.final_observation]
    assert engine.reset() == seen[0]
    before = goals_won(engine, goals)
    for i, step in enumerate(t.steps):
        assert engine.step(step.action) == seen[i+1]
        new = goals_won(engine, set(goals) - before)
        before |= new
        if new:
            out[i] = new
    return out

def most(goals):
    return max(goals, key=lambda g: (list(CATEGORIES).index(g.category), g.thing, g.target))

@pytest.fixture(scope='module')
def episodes():
    return [(game, stumble(game)) for game in GAMES]

def test_hindsight_finds_what_the_engine_says_and_nothing_else(episodes):
    found = Counter()
    for game, t in episodes:
        expected = {i: most(goals) for i, goals in truth(shown(game, t), t).items()}
        assert reached_goals(t) == expected, t.id
        found.update(goal.category for goal in expected.values())
    assert len(episodes) >= 200, len(episodes)
    assert min(found[c] for c in CATEGORIES) >= 5, found

def first_win(game, goal, actions):
    "Number of commands after which the engine calls `goal` won; None if it never does"
    engine = Engine(replace(game, goal=goal))
    engine.reset()
    wins = []
    for action in actions:
        wins.append(engine.won)
        engine.step(action)
    wins.append(engine.won)
    return (wins.index(True) if True in wins else None), wins[-1]

def test_a_relabelled_episode_is_won_by_its_last_command(episodes):
    "In the real house it may have been won before the first command, by a thing that the episode never shows"
    n = unseen = 0
    for game, t in episodes:
        for won in reached(t):
            goal = Goal(*read_goal(won.task))
            actions = [s.action for s in won.steps]
            assert first_win(shown(game, t), goal, actions) == (len(won), True), won.id
            first, last = first_win(game, goal, actions)
            assert last
            n += 1
            unseen += first < len(won)
    assert n > 100
    assert unseen < .1*n

def test_it_is_told_as_an_episode_of_the_new_goal(episodes):
    for _, t in episodes:
        for won in reached(t):
            assert won.success
            assert [s.reward for s in won.steps] == [0.]*(len(won) - 1) + [1.]
            assert AlfworldNotes(won.steps[0].observation).task == won.task != t.task
            assert t.task not in ''.join(s.observation + s.reply for s in won.steps)
            assert (won.game, won.metadata['hindsight']) == (t.game, t.task)
            assert won.category == read_goal(won.task)[0]
            assert [s.action for s in won.steps] == [s.action for s in t.steps[:len(won)]]

def test_ids_are_different_and_the_lost_episode_stays_as_it_was(episodes):
    before = [t.to_dict() for _, t in episodes]
    ids = [won.id for _, t in episodes for won in [t, *reached(t)]]
    assert len(set(ids)) == len(ids)
    assert [t.to_dict() for _, t in episodes] == before

def test_the_older_wording_of_putting_reads_the_same():
    for game in GAMES[:60]:
        t = stumble(game, 'put', wisdom=.8)
        for won in reached(t):
            assert [s.action for s in won.steps if s.action.startswith('put')] or won.category == 'look'
            assert thoughts(won)[-1] or won.category == 'look'

def test_on_the_way_of_an_expert_the_thoughts_are_the_experts():
    n = kept = 0
    for house in HOUSES[:6]:
        for game in house.games('train', 5):
            wanted = dict.fromkeys([game.goal.thing, game.goal.target])
            hints = [house.hint(thing) for thing in wanted if thing in house.homes]
            for lines in ([], hints):
                t = play_expert(game, lines)
                if not t.success:
                    continue
                said = thoughts(t, lines)
                own = [s.reply.split('</think>')[0].removeprefix('<think> ').strip() for s in t.steps]
                for thought, other in zip(said, own):
                    assert thought in (None, other), (t.id, said, own)
                n += len(own)
                kept += sum(thought is not None for thought in said)
    assert kept > .4*n

# In a run

OFF = SkillRLConfig().merged({'env.train_suites': 1, 'env.test_suites': 1, 'sft.games': 1})
ON = OFF.merged({'sft.hindsight': True})
SUITE = world('alfworld').suites(OFF.env)[0][0]

@pytest.fixture(scope='module')
def played():
    "Episodes of one suite, some of them won"
    episodes = [stumble(game) for game in SUITE.games('collect', 12)]
    assert {t.success for t in episodes} == {True, False}
    return episodes

def completions(rows):
    return Counter(row['completion'] for row in rows)

@pytest.mark.parametrize('who', ['expert', 'teacher'])
def test_rows_of_lost_episodes_come_on_top_of_the_demonstrations(played, who):
    off, on = OFF.merged({'sft.demonstrator': who}), ON.merged({'sft.demonstrator': who})
    rows = demonstrations(SUITE, None, off, played)
    more = demonstrations(SUITE, None, on, played)
    assert demonstrations(SUITE, None, on, select(played, success=True)) == rows
    assert len(more) > len(rows)
    assert [row for row in more if row in rows] == rows
    won = [won for t in select(played, success=False) for won in reached(t)]
    expected = Counter()
    for t in won:
        said = zip(thoughts(t), t.steps)
        expected.update(write_reply(thought, step.action) for thought, step in said if thought is not None)
    assert completions(more) - completions(rows) == expected

def test_rows_ask_for_the_goal_that_was_reached(played):
    lost = [t for t in select(played, success=False) if reached(t)]
    for row in demonstrations(SUITE, None, ON.merged({'sft.demonstrator': 'teacher'}), lost):
        prompt = row['prompt'][-1]['content']
        assert any(won.task in prompt for t in lost for won in reached(t))
        assert not any(t.task in prompt for t in lost)

@pytest.mark.parametrize('config, more', [(OFF, False), (ON, True)])
def test_a_bank_is_distilled_from_what_was_reached_too(tmp_path, monkeypatch, played, config, more):
    p = Pipeline(RunFolder(tmp_path/'run', config))
    p.keep(played, phase='collect', suite=SUITE.name)
    batches = []
    def write_bank(trajs, *rest):
        batches.append([t.id for t in trajs])
        return SkillBank()
    monkeypatch.setattr(pipeline, 'write_bank', write_bank)
    pipeline.distill(p)
    won = [won.id for t in select(played, success=False) for won in reached(t)] if more else []
    assert batches[0] == [t.id for t in played] + won
    assert [t.id for t in p.collected(SUITE)] == [t.id for t in played]
    p.run.close()
