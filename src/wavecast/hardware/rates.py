"""The arithmetic unit on which a GPU runs an op."""

from __future__ import annotations

from wavecast.hardware.device import RATE_UNITS, Device
from wavecast.ops import Unit, fallbacks

AMPERE_SHARE = {9: 0.63, 10: 0.63}
"""The share of a tensor core's peak that kernels with Ampere's instructions (`mma.sync`) attain, by
the major compute capability of GPUs with faster ones: 62.9% on average on Hopper (Luo et al.,
"Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", 2024). Blackwell's is taken to be
alike."""


def available(unit: Unit, device: Device) -> Unit | None:
    """The unit on which this GPU runs ops meant for `unit`: that unit, else a fallback.

    None when the GPU has neither.
    """
    for candidate in (unit, *fallbacks(unit)):
        if candidate in RATE_UNITS and device.rate(candidate) is not None:
            return candidate
    return None
