"Where skillrl 1.0.0 had it"
from ..skillopt.qa import SimpleQAEnv

__all__ = ["SimpleQAEnv"]
