"""PyTorch: from a step on fake tensors to a Trace."""

from wavecast.frameworks.pytorch.capture import DEFAULT_CAPABILITY, capture

__all__ = ["DEFAULT_CAPABILITY", "capture"]
