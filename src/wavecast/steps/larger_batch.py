"""Batches that do not fit: the time of a step at a larger batch, from smaller ones.

Habitat, section 6.1.3: predict at three or more batches that fit, regress linearly, extrapolate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from wavecast.errors import InvalidInput
from wavecast.steps.prediction import Prediction

FEWEST = 3
"""Batches that a line needs before one can see whether it is one."""

# Student's t at 95% (one side), by degrees of freedom: a 90% range.
_T95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
_T95_MANY = 1.645


@dataclass(frozen=True)
class LargerBatch:
    """The line through the step's time at several batches, read at another."""

    batch: int
    seconds: float
    low_s: float
    high_s: float
    per_sample_s: float
    """The line's slope."""
    fixed_s: float
    """What the step takes whatever the batch: the line at 0."""
    points: Mapping[int, float]
    """The times it goes through, by batch."""

    @property
    def throughput(self) -> float:
        """Samples per second."""
        return self.batch / self.seconds


def extrapolate_batch(known: Mapping[int, Prediction | float], batch: int) -> LargerBatch:
    """The time of a step at a batch of which there is no trace.

    Args:
        known: by batch, predictions on one GPU (or seconds), three batches at least.
        batch: the batch that is asked for.
    """
    if len(known) < FEWEST:
        raise InvalidInput(
            f"a line through {len(known)} batch{'es' if len(known) != 1 else ''} proves nothing: "
            f"predict at {FEWEST} batches or more, then extrapolate to {batch}"
        )
    if batch < 1 or min(known) < 1:
        raise InvalidInput("a batch has at least one sample")
    devices = {each.device.id for each in known.values() if isinstance(each, Prediction)}
    if len(devices) > 1:
        raise InvalidInput(f"these are predictions on several GPUs: {', '.join(sorted(devices))}")
    points = {
        size: each.seconds if isinstance(each, Prediction) else float(each)
        for size, each in sorted(known.items())
    }
    if not all(0 < seconds < math.inf for seconds in points.values()):
        raise InvalidInput(f"a step takes some time; these take {_listed(points)}")
    sizes, times = np.array(list(points), dtype=float), np.array(list(points.values()))
    slope, fixed = np.polyfit(sizes, times, 1)
    seconds = float(fixed + slope * batch)
    if seconds <= 0:
        raise InvalidInput(
            f"the line through these batches is not above 0 at {batch}: their times do not grow "
            f"with the batch ({_listed(points)})"
        )
    off_s = _uncertainty(sizes, times - (fixed + slope * sizes), batch)
    return LargerBatch(
        batch=batch,
        seconds=seconds,
        low_s=max(seconds - off_s, 0.0),
        high_s=seconds + off_s,
        per_sample_s=float(slope),
        fixed_s=float(fixed),
        points=points,
    )


def _listed(points: Mapping[int, float]) -> str:
    return ", ".join(f"{size}: {seconds:.3g} s" for size, seconds in points.items())


def _uncertainty(sizes: np.ndarray, residuals: np.ndarray, batch: int) -> float:
    """Half the 90% prediction interval of a straight-line fit at a batch."""
    freedom = len(sizes) - 2
    t = _T95[freedom - 1] if freedom <= len(_T95) else _T95_MANY
    noise = math.sqrt(float(residuals @ residuals) / freedom)
    spread = float(((sizes - sizes.mean()) ** 2).sum())
    return t * noise * math.sqrt(1 + 1 / len(sizes) + (batch - float(sizes.mean())) ** 2 / spread)
