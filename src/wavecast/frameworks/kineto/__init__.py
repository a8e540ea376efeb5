"""Files of torch.profiler (Kineto): from a recorded step to a measured Trace."""

from wavecast.frameworks.kineto.events import kernel_of, read_events
from wavecast.frameworks.kineto.trace_reader import read_kineto

__all__ = ["kernel_of", "read_events", "read_kineto"]
