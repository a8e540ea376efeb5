"""When a run has warmed up: the stable phase of its iterations (TBD, section III-D2).

Frameworks try algorithms and fill caches first, so the first iterations say little. The paper
samples "once throughput is stable" and gives no detector. The rule here: the median over windows
of 50 iterations is compared with that of the run's last third; stable is what follows the whole of
the last window that is off by more than the tolerance. A median does not see a warm-up of less than
half a window, so within the first half window single iterations are compared as well.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from wavecast.errors import InvalidInput

WINDOW = 50
TOLERANCE = 0.05
ENOUGH = 50
"""Stable iterations to sample at least, as TBD does."""
NOISIEST = 0.07
"""Iterations that scatter more hide where warm-up ends: at 10% the rule was seen to fail."""
_UNLIKELY = 4
"""So many standard deviations off, an iteration is not noise."""


def stable_from(seconds: Sequence[float], window: int = WINDOW) -> int:
    """The first iteration of the stable phase.

    Args:
        seconds: of each iteration, in order.
        window: iterations whose median is compared; fewer for a run of few iterations.

    Raises:
        InvalidInput: too few iterations, too much noise, or no stable phase; says which.
    """
    if len(seconds) < 6 * window:
        raise InvalidInput(
            f"{len(seconds)} iterations are too few to tell where warm-up ends; run at least "
            f"{6 * window}"
        )
    tail = sorted(seconds[-(len(seconds) // 3) :])
    settled = statistics.median(tail)
    # Half of the spread between the quartiles is 0.67 standard deviations.
    noise = (tail[3 * len(tail) // 4] - tail[len(tail) // 4]) / 2 / 0.674 / settled
    if noise > NOISIEST:
        raise InvalidInput(
            f"the iterations scatter by {noise:.0%}, which hides where warm-up ends; close other "
            "programs, or give the number of warm-up iterations yourself"
        )
    last_off = -1
    for begin in range(0, len(seconds) - window + 1):
        middle = statistics.median(seconds[begin : begin + window])
        if abs(middle / settled - 1) > TOLERANCE:
            last_off = begin
    if last_off < 0:
        far = max(TOLERANCE, _UNLIKELY * noise)
        early = range(window // 2 + 1)
        return max((n + 1 for n in early if abs(seconds[n] / settled - 1) > far), default=0)
    start = last_off + 1 + window
    if start > len(seconds) - window:
        raise InvalidInput("the iterations do not become stable; run longer")
    return start


def settled_from(seconds: Sequence[float]) -> int:
    """Where warm-up ends in a run however short; of one too noisy to tell, after its first third.

    The window shrinks with the run, so this says less than `stable_from`.
    """
    window = max(5, min(WINDOW, len(seconds) // 6))
    try:
        return stable_from(seconds, window)
    except InvalidInput:
        return len(seconds) // 3


def is_enough(seconds: Sequence[float]) -> bool:
    """Whether a run has as many stable iterations as a sample needs."""
    return len(seconds) - settled_from(seconds) >= ENOUGH


def stable_seconds(seconds: Sequence[float], window: int = WINDOW) -> float:
    """The median iteration of the stable phase."""
    return statistics.median(seconds[stable_from(seconds, window) :])
