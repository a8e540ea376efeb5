"""Files that torch.profiler (Kineto) wrote, read as measured traces."""

from wavecast.frameworks.kineto.trace_reader import read_kineto

__all__ = ["read_kineto"]
