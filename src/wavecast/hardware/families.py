"""Families of GPUs that run the same attention kernels, so that one trace serves all of them.

A family is named by a compute capability.
"""

from __future__ import annotations

from wavecast.hardware.device import Device

Family = tuple[int, int]

# Capabilities whose GPUs are a family alone.
_EXACT = ((9, 0), (10, 0))
# All other GPUs belong to the first of these that is not newer than they are.
_FROM = ((8, 0), (7, 5), (7, 0), (5, 0), (0, 0))


def family(gpu: Device) -> Family:
    """The family of a GPU."""
    # AMD and others run flash attention, as an A100 does.
    return family_of(gpu.compute_capability or (8, 0))


def family_of(capability: tuple[int, int]) -> Family:
    """The family of the GPUs with a compute capability."""
    if capability in _EXACT:
        return capability
    return next(first for first in _FROM if capability >= first)
