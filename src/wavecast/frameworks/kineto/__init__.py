"""Files that torch.profiler (Kineto) wrote, read as measured traces."""

from wavecast.frameworks.kineto.events import kernel_of, read_events
from wavecast.frameworks.kineto.trace_reader import read_kineto

__all__ = ["kernel_of", "read_events", "read_kineto"]
