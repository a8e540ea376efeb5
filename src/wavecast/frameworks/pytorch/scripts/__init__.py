"""Training scripts, run unchanged on a machine without a GPU until their step repeats itself."""

from wavecast.frameworks.pytorch.scripts.program import Program, own_traceback
from wavecast.frameworks.pytorch.scripts.runner import run

__all__ = ["Program", "own_traceback", "run"]
