"""The package `alfworld` as a world of ours, where it is installed: the same text, a thousand times slower.

    skillrl collect --env tools/original_engine.py:OriginalAlfworld --output collected.json

Our engine follows the original rule by rule. Whoever wants to be sure plays the original itself: here it has
every game, of a generated household or of an official file. Notes, expert, teacher and prompt are those of
`skillrl.envs.alfworld`, for the two say the same.

The package is an extra of this project, `pip install -e '.[alfworld]'`. It compiles a planner for some
minutes, takes 0.4 GB, runs on Python 3.11 and 3.12, and brings code under the GPL; so it is never installed
unasked."""
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from alfworld_pddl import pddl_problem
from skillrl.envs.alfworld.scene import Game
from skillrl.envs.alfworld.world import Alfworld
from skillrl.envs.base import TextEnv

PACKAGES = 'alfworld', 'textworld', 'fast_downward'

def missing_packages()->list[str]:
    "Modules of the original engine that are not installed"
    return [name for name in PACKAGES if find_spec(name) is None]

def rules_of_the_original()->tuple[str, str]: # ValueError if the package is missing
    "Domain and grammar, as the package has them"
    missing = missing_packages()
    if missing:
        raise ValueError(f"the original engine is not installed (no module {', '.join(missing)}): "
                         "install it with pip install -e '.[alfworld]'")
    folder = Path(find_spec('alfworld').submodule_search_locations[0], 'data')
    return tuple((folder/name).read_text('utf-8') for name in ('alfred.pddl', 'alfred.twl2'))

def original_file(
    game:Game,
    domain:str,  # Rules in PDDL
    grammar:str, # Wording, in which the goal is still unknown
)->dict:         # ValueError if the original would number its things otherwise
    "What `game.tw-pddl` holds for a game"
    return dict(pddl_domain=domain, grammar=grammar.replace('UNKNOWN GOAL', game.task),
                pddl_problem=pddl_problem(game), solvable=True)

class OriginalEngine:
    "The original engine with one game; ValueError if it is not installed"
    def __init__(self, game:Game):
        "Translates the problem, which takes a second, and so does each reset; a step takes some 70 ms"
        rules = rules_of_the_original()
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld.envs import PddlEnv
        wanted = textworld.EnvInfos(won=True, admissible_commands=True)
        self.game = game
        self.env = AlfredDemangler(PddlEnv(wanted))
        self.env.load(original_file(game, *rules))

    def reset(self)->str: # First observation
        "Start over"
        self.state = self.env.reset()
        return self.state.feedback

    def step(self, command:str)->str: # Observation
        "Do what `command` says, if it is possible"
        self.state, *_ = self.env.step(command)
        return self.state.feedback

    def admissible(self)->list[str]: # Sorted as text
        "Commands that would be accepted now"
        return list(self.state['admissible_commands'])

    @property
    def won(self)->bool:
        "Whether the goal is reached"
        return bool(self.state['won'])

class OriginalEnv(TextEnv):
    "ALFWorld as a text environment, played by the original engine"
    world = 'alfworld'

    def start(self, game:Game)->OriginalEngine:
        "Engine that plays `game`; the last one if it is the same game"
        if self.engine is not None and self.engine.game is game:
            return self.engine
        return OriginalEngine(game)

def _play(game, max_steps):
    return OriginalEnv([game], max_steps)

def _with_original(suite):
    "`suite`, whose games the original engine plays from now on"
    suite.env = _play
    return suite

def _require_playable(config):
    "ValueError if the engine is not installed, or `config` asks for more than it has"
    if config.variant or config.url:
        raise ValueError('the original engine plays in this process and in its own words: '
                         'leave env.variant empty, and name no server')
    rules_of_the_original()

class OriginalAlfworld(Alfworld):
    "ALFWorld, in generated households and official game files, played by the original engine"
    def suites(self, config:Any)->tuple[list, list]: # ValueError as in `_require_playable`
        "The suites of a run"
        _require_playable(config)
        learn, judged = super().suites(config)
        return [_with_original(s) for s in learn], [_with_original(s) for s in judged]

    def suite(self, config:Any, name:str|None=None)->Any: # ValueError as in `_require_playable`
        "One suite of a run"
        _require_playable(config)
        return _with_original(super().suite(config, name))
