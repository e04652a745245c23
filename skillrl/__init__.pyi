# The loop
from .training.pipeline import train
from .core.config import SkillRLConfig, load_config
from .viewers.inspection import success_table

# Its parts, in the order of the loop
from .envs.base import World, TextEnv, register, world
from .agent.episode import Episode, rollout
from .core.trajectory import Trajectory, success_rate
from .core.formats import load_trajectories
from .skills.bank import Skill, SkillBank
from .skills.retrieval import Retriever
from .skills.distillation import distill
from .llm.local import Policy
from .training.builders import build_policy
from .training.rl import GRPOTrainer

# The workshop
from .proof.agents import find_agent
from .proof.prove import prove
from .proof.runs import ProofConfig
from .sessions.session_logs import harvest

# SkillOpt, as skillrl 1.0.0 documents it
from .skillopt.settings import SkillOptConfig
from .skillopt.trainer import SkillOptTrainer
from .skillopt.editor import Edit, Patch
from .skillopt.gate import GateAction, GateResult
from .skillopt.reflect import RawPatch
from .skillopt.types import RolloutResult

__all__ = ['train', 'SkillRLConfig', 'load_config', 'success_table', 'World', 'TextEnv', 'register', 'world',
           'Episode', 'rollout', 'Trajectory', 'success_rate', 'load_trajectories', 'Skill', 'SkillBank',
           'Retriever', 'distill', 'Policy', 'build_policy', 'GRPOTrainer', 'find_agent', 'prove', 'ProofConfig',
           'harvest', 'SkillOptConfig', 'SkillOptTrainer', 'Edit', 'Patch', 'RawPatch', 'GateAction',
           'GateResult', 'RolloutResult']
__version__: str
def register_worlds() -> None: ...
