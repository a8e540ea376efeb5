"""The stable phase of a run, after its warm-up (TBD, section III-D2).

In the first iterations frameworks try algorithms and fill caches. The paper samples "once
throughput is stable" but gives no rule. The rule here: the median of each window of 50 iterations
is compared with the median of the run's last third. The stable phase begins after the last window
that differs by more than the tolerance. A median misses a warm-up shorter than half a window, so
the iterations of the first half window are also compared one by one.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from wavecast.errors import InvalidInput

WINDOW = 50
TOLERANCE = 0.05
ENOUGH = 50
"""The least number of stable iterations in a sample, as in TBD."""
NOISIEST = 0.07
"""The largest relative scatter for which the rule works; at 10% it was seen to fail."""
_UNLIKELY = 4
"""An iteration this many standard deviations off is more than noise."""


def stable_from(seconds: Sequence[float], window: int = WINDOW) -> int:
    """The first iteration of the stable phase.

    Args:
        seconds: the time of each iteration, in order.
        window: how many iterations a window has; fewer for a short run.

    Raises:
        InvalidInput: there are too few iterations, too much noise, or no stable phase.
    """
    if len(seconds) < 6 * window:
        raise InvalidInput(
            f"{len(seconds)} iterations are too few to find the end of warm-up; run at least "
            f"{6 * window}"
        )
    tail = sorted(seconds[-(len(seconds) // 3) :])
    settled = statistics.median(tail)
    # Half of the spread between the quartiles is 0.67 standard deviations.
    noise = (tail[3 * len(tail) // 4] - tail[len(tail) // 4]) / 2 / 0.674 / settled
    if noise > NOISIEST:
        raise InvalidInput(
            f"the iterations scatter by {noise:.0%}, too much to find the end of warm-up; close "
            "other programs, or give the number of warm-up iterations yourself"
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
    """The first iteration after warm-up, in a run of any length.

    The window shrinks with the run, so this is less reliable than `stable_from`. If the end of
    warm-up cannot be found, the first third of the run counts as warm-up.
    """
    start = _found(seconds)
    return len(seconds) // 3 if start is None else start


def settles(seconds: Sequence[float]) -> bool:
    """Whether the end of warm-up can be found, so that `settled_from` does not assume it."""
    return _found(seconds) is not None


def _found(seconds: Sequence[float]) -> int | None:
    try:
        return stable_from(seconds, max(5, min(WINDOW, len(seconds) // 6)))
    except InvalidInput:
        return None


def is_enough(seconds: Sequence[float]) -> bool:
    """Whether a run has at least `ENOUGH` stable iterations."""
    return len(seconds) - settled_from(seconds) >= ENOUGH
