"""Traces of training steps written for CUDA, made on a machine without a GPU."""

from wavecast.frameworks.pytorch.capture.tracing import capture

__all__ = ["capture"]
