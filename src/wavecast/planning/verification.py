"""On which GPUs predictions can be believed: those of generations on which ops were measured."""

from __future__ import annotations

from functools import cache

from wavecast.hardware.device import Device
from wavecast.hardware.devices import devices
from wavecast.predictors.base import Familiarity
from wavecast.steps.request import default_predictor

_SEEN = (Familiarity.MEASURED, Familiarity.PARTLY)


def is_verified(device: Device) -> bool:
    """Whether a GPU of the same vendor and generation was measured."""
    return (device.vendor, device.architecture) in _measured_generations()


@cache
def _measured_generations() -> frozenset[tuple[str, str]]:
    familiar = default_predictor().familiarity
    return frozenset((one.vendor, one.architecture) for one in devices() if familiar(one) in _SEEN)
