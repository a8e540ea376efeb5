"""The time of a step at a batch size that does not fit, extrapolated from smaller ones.

Habitat, section 6.1.3: predict at three or more batch sizes that fit, fit a line, extrapolate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wavecast.errors import InvalidInput
from wavecast.results import Shown, checked
from wavecast.steps.prediction import Prediction
from wavecast.traces.step import Trace

FEWEST = 3
"""The fewest batch sizes to fit a line to; with two, nothing would show that it is not a line."""

# Student's t at 95% (one-sided), for 1, 2, 3, ... degrees of freedom: gives a 90% range.
_T95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
_T95_MANY = 1.645


@dataclass(frozen=True, repr=False)
class LargerBatch(Shown):
    """The time of a step at a batch size, from a line fitted at smaller ones.

    `extrapolate_batch` makes it.
    """

    batch: int
    """The batch size, in samples."""
    seconds: float
    """The extrapolated time of one step."""
    low_s: float
    """The low end of the 90% range of `seconds`."""
    high_s: float
    """The high end of the 90% range of `seconds`."""
    per_sample_s: float
    """The slope of the line: seconds per sample."""
    fixed_s: float
    """The line at batch size 0: the part of the step that does not depend on it, in seconds."""
    points: Mapping[int, float]
    """The seconds that the line was fitted to, by batch size."""

    def __post_init__(self) -> None:
        what = f"the line through the batches {', '.join(map(str, self.points))} at {self.batch}"
        checked(self, what, ("seconds", "low_s", "high_s", "per_sample_s", "fixed_s", "points"))

    @property
    def throughput(self) -> float:
        """Samples per second."""
        return self.batch / self.seconds


def extrapolate_batch(known: Mapping[int, Prediction | float], batch: int) -> LargerBatch:
    """The time of a step at a batch size for which there is no trace.

    >>> round(extrapolate_batch({8: 0.012, 16: 0.020, 32: 0.036}, 128).seconds, 3)
    0.132

    Args:
        known: predictions on one GPU, or seconds, by batch size; at least three.
        batch: the batch size to extrapolate to.

    Raises:
        InvalidInput: the known times are too few, of several GPUs, or do not grow with the batch.
    """
    if len(known) < FEWEST:
        raise InvalidInput(
            f"{len(known)} batch size{'s are' if len(known) != 1 else ' is'} too few for a line: "
            f"predict at {FEWEST} batches or more, then extrapolate to {batch}"
        )
    if batch < 1 or min(known) < 1:
        raise InvalidInput(
            f"a batch has at least one sample; asked for {batch}, from {', '.join(map(str, known))}"
        )
    devices = {time.device.id for time in known.values() if isinstance(time, Prediction)}
    if len(devices) > 1:
        raise InvalidInput(
            f"these are predictions on several GPUs: {', '.join(sorted(devices))}; give one GPU's"
        )
    points = {
        size: time.seconds if isinstance(time, Prediction) else float(time)
        for size, time in sorted(known.items())
    }
    if not all(0 < seconds < math.inf for seconds in points.values()):
        raise InvalidInput(
            f"the time of a step must be positive and finite; these are {_listed(points)}"
        )
    sizes, times = np.array(list(points), dtype=float), np.array(list(points.values()))
    # In units of a power of two near the longest time, the squares of no time overflow.
    unit_s = 2.0 ** (math.frexp(float(times.max()))[1] - 1)
    slope, fixed = (unit_s * float(part) for part in np.polyfit(sizes, times / unit_s, 1))
    seconds = fixed + slope * batch
    if seconds <= 0:
        raise InvalidInput(
            f"the line through these batches is not above 0 s at {batch}: their times do not grow "
            f"with the batch ({_listed(points)})"
        )
    residuals = [time_s - (fixed + slope * size) for size, time_s in points.items()]
    off_s = _uncertainty(sizes, residuals, batch)
    return LargerBatch(
        batch=batch,
        seconds=seconds,
        low_s=max(seconds - off_s, 0.0),
        high_s=seconds + off_s,
        per_sample_s=slope,
        fixed_s=fixed,
        points=points,
    )


def _uncertainty(sizes: np.ndarray, residuals: Sequence[float], batch: int) -> float:
    """Half the width of the 90% prediction interval of a straight-line fit at a batch size."""
    freedom = len(sizes) - 2
    t = _T95[freedom - 1] if freedom <= len(_T95) else _T95_MANY
    noise = math.hypot(*residuals) / math.sqrt(freedom)
    spread = float(((sizes - sizes.mean()) ** 2).sum())
    return t * noise * math.sqrt(1 + 1 / len(sizes) + (batch - float(sizes.mean())) ** 2 / spread)


def _listed(points: Mapping[int, float]) -> str:
    return ", ".join(f"{size}: {seconds:.3g} s" for size, seconds in points.items())


def by_samples(traces: Iterable[tuple[str, Trace]]) -> dict[int, Trace]:
    """Traces of one step at several batches, by the number of samples that a step takes.

    Args:
        traces: each with the name that messages call it by.

    Raises:
        InvalidInput: a trace does not say its samples, or two have the same number.
    """
    by_number: dict[int, Trace] = {}
    for name, trace in traces:
        if trace.samples is None:
            raise InvalidInput(
                f"{name} does not say how many samples a step takes; measure or trace it with "
                "--batch"
            )
        if trace.samples in by_number:
            raise InvalidInput(f"two of these traces take {trace.samples} {trace.unit} a step")
        by_number[trace.samples] = trace
    return by_number
