"""Store times in seconds as integers from which exactly the same floats are computed again.

Profilers count time in whole units. Durations are in nanoseconds. Time stamps are microseconds in a
double; at today's dates these are multiples of 2**-11 us. A trace holds the floats that were
computed from these numbers. As doubles they take seven bytes each even when compressed, because
their last digits look random. The integers behind them take one or two bytes.

`compress` finds these integers and checks that `expand` returns every float exactly. A float that
no integer reproduces ("odd") is kept as it is, with its position.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

UNITS = ("dur", "ns", "ts", "scaled")
"""The units, by how an integer n becomes seconds (`_seconds`):

dur: n / 1000 / 1e6, a duration of n nanoseconds that Kineto wrote in microseconds.
ns: n / 1e9.
ts: n / 2048 / 1e6, the difference of two of Kineto's time stamps.
scaled: n / 2048 * 1e-6 * factor, the host time of an op. One factor for the whole trace
    corrects for the cost of the profiler (`wavecast.frameworks.pytorch.measurement.iteration`).
"""
_NUMBERS_A_SECOND = {"dur": 1e9, "ns": 1e9, "ts": 2048e6, "scaled": 2048e6}
_LARGEST_NUMBER = 1 << 22
"""The largest integer of a reference time in the search for a factor: 2 ms."""
_REFERENCES = 5
_ULPS = 6
"""How many neighbouring doubles are tried on each side of the estimated factor."""


@dataclass(frozen=True, eq=False)
class ExactTimes:
    """The times of one trace as integers in a unit, and the odd floats with their positions."""

    unit: str
    factor: float
    numbers: Integers
    odd_positions: Integers
    odd_values: Floats


def compress(seconds: Floats) -> ExactTimes:
    """The exact form of some times that leaves the fewest floats odd."""
    plain = [_in_unit(seconds, unit, 1.0) for unit in ("dur", "ns", "ts")]
    best = min(plain, key=lambda times: len(times.odd_values))
    if len(best.odd_values) > len(seconds) // 4:
        scaled = (_in_unit(seconds, "scaled", factor) for factor in _factors(seconds))
        best = min((best, *scaled), key=lambda times: len(times.odd_values))
    return best


def expand(times: ExactTimes) -> Floats:
    """The times in seconds, equal to the last digit to those that `compress` was given."""
    seconds = _seconds(times.numbers, times.unit, times.factor)
    seconds[times.odd_positions] = times.odd_values
    return seconds


def _seconds(numbers: Integers, unit: str, factor: float) -> Floats:
    # The order of the operations matters: it decides the last digit.
    if unit == "dur":
        return numbers / 1000 / 1e6
    if unit == "ns":
        return numbers / 1e9
    if unit == "ts":
        return numbers / 2048 / 1e6
    return numbers / 2048 * 1e-6 * factor


def _in_unit(seconds: Floats, unit: str, factor: float) -> ExactTimes:
    numbers = np.rint(seconds * _NUMBERS_A_SECOND[unit] / factor).astype(np.int64)
    (odd,) = np.nonzero(_seconds(numbers, unit, factor) != seconds)
    numbers[odd] = 0
    return ExactTimes(unit, factor, numbers, odd.astype(np.int64), seconds[odd])


def _factors(seconds: Floats) -> list[float]:
    """Candidates for the factor of the unit "scaled".

    The ratio of two times is a ratio of two integers. Take the ratio of a time to a reference time,
    as a fraction in lowest terms: its denominator divides the reference's integer. The least common
    multiple of the denominators over a few times is that integer, which gives the factor. Several
    references are tried, because a reference may be an odd value.
    """
    usable = np.sort(seconds[seconds > 0])
    factors: list[float] = []
    for place in range(1, _REFERENCES + 1):
        if len(usable) < 2 * _REFERENCES:
            break
        reference = float(usable[len(usable) * place // (2 * _REFERENCES)])
        number = _number_of(reference, usable)
        if number is None:
            continue
        estimate = reference * 2048e6 / number
        fits = [_in_unit(seconds, "scaled", factor) for factor in _neighbours(estimate)]
        best = min(fits, key=lambda times: len(times.odd_values))
        factors.append(best.factor)
        if len(best.odd_values) < len(seconds) // 10:
            break
    return factors


def _number_of(reference: float, seconds: Floats) -> int | None:
    """The integer of a reference time, or None when the times share no unit."""
    number = 1
    for value in seconds[:: max(1, len(seconds) // 24)].tolist():
        ratio = Fraction(value / reference).limit_denominator(_LARGEST_NUMBER)
        common = math.lcm(number, ratio.denominator)
        if common <= _LARGEST_NUMBER and abs(float(ratio) * reference / value - 1) < 1e-15:
            number = common
    multiples = seconds / reference * number
    close = np.abs(multiples - np.rint(multiples)) < 1e-4
    return number if close.mean() > 0.75 else None


def _neighbours(value: float) -> list[float]:
    below, above = [value], [value]
    for _ in range(_ULPS):
        below.append(float(np.nextafter(below[-1], 0.0)))
        above.append(float(np.nextafter(above[-1], np.inf)))
    return [*below, *above[1:]]
