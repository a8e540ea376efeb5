"""GPUs that choose the same kernels, by the compute capability that stands for them.

Attention has other kernels on some GPUs than on others; one trace serves a whole family.
"""

from __future__ import annotations

from wavecast.hardware.device import Device

_EXACT = ((9, 0), (10, 0))
_FROM = ((8, 0), (7, 5), (7, 0), (5, 0), (0, 0))


def family(gpu: Device) -> tuple[int, int]:
    """The family of a GPU."""
    # AMD and others: flash attention, as on an A100.
    return family_of(gpu.compute_capability or (8, 0))


def family_of(capability: tuple[int, int]) -> tuple[int, int]:
    """The family of the GPUs of a compute capability."""
    if capability in _EXACT:
        return capability
    return next(first for first in _FROM if capability >= first)
