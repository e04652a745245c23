"Where skillrl 1.0.0 had it"
from .skillopt.types import RolloutResult

__all__ = ["RolloutResult"]
