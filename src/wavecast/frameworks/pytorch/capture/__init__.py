"""Capture: a training step written for CUDA becomes a Trace on a machine with no GPU."""

from wavecast.frameworks.pytorch.capture.tracing import DEFAULT_CAPABILITY, capture

__all__ = ["DEFAULT_CAPABILITY", "capture"]
