"""The arithmetic unit on which a GPU runs an op."""

from __future__ import annotations

from wavecast.hardware.device import RATE_UNITS, Device
from wavecast.ops import Unit, fallbacks


def available(unit: Unit, device: Device) -> Unit | None:
    """The unit on which this GPU runs ops meant for `unit`: that unit, else a fallback.

    None when the GPU has neither.
    """
    for candidate in (unit, *fallbacks(unit)):
        if candidate in RATE_UNITS and device.rate(candidate) is not None:
            return candidate
    return None
