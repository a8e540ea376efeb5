"""Which arithmetic unit of a GPU runs what an op asks for."""

from __future__ import annotations

from wavecast.hardware.device import RATE_UNITS, Device
from wavecast.ops import Unit, fallbacks


def available(unit: Unit, device: Device) -> Unit | None:
    """The unit on which this GPU runs what asks for `unit`: itself, or what stands in for it."""
    for candidate in (unit, *fallbacks(unit)):
        if candidate in RATE_UNITS and device.rate(candidate) is not None:
            return candidate
    return None
