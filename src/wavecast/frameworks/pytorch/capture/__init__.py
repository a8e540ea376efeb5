"""Traces of training steps written for CUDA, made on a machine without a GPU."""

from wavecast.frameworks.pytorch.capture.tracing import DEFAULT_CAPABILITY, capture

__all__ = ["DEFAULT_CAPABILITY", "capture"]
