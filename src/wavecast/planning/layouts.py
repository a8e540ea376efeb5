"""The ways to spread a training step over a number of GPUs, and what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from wavecast.footprint.memory import Memory
from wavecast.parallel.strategy import Parallel, option_of
from wavecast.showing import Shown
from wavecast.steps.prediction import Prediction

TOO_LARGE = "does not fit: "
SLOWER = "slower than those shown, by its lower bound"
INTERRUPTED = "not tried: the search was interrupted"
OVERDUE = "not tried: the time for the search was over"


@dataclass(frozen=True)
class Layout(Shown):
    """One way to spread the step, and what became of it."""

    strategy: Parallel
    micro_batch: int
    """Samples of one micro-batch on one replica."""
    recompute: str = "none"
    """What the backward pass recomputes: none, selective or full."""
    memory: Memory | None = None
    """The memory of the fullest rank. None when it was clear before that it cannot fit."""
    prediction: Prediction | None = None
    """None when it does not fit, cannot be done, or was not played."""
    least_s: float | None = None
    """The least time that it could take, where it was not played because others are faster."""
    least_bytes: float | None = None
    """The least memory of the fullest rank, where it does not fit."""
    reason: str = ""
    """Why it cannot be used, or what it loses time with."""

    @property
    def seconds(self) -> float | None:
        """The time of one optimizer step; None when it cannot be used or was not played."""
        return None if self.prediction is None else self.prediction.seconds

    @property
    def fits(self) -> bool:
        """Whether it was not refused for its memory."""
        return not self.reason.startswith(TOO_LARGE)

    @property
    def summary(self) -> str:
        """Its time and itself, in one line."""
        seconds = "not known" if self.seconds is None else f"{self.seconds:.3g} s"
        return f"{seconds} with {option_of(self.strategy)}, micro-batch {self.micro_batch}"

    @property
    def is_tried(self) -> bool:
        """Whether the search came to it before it was stopped."""
        return self.reason not in (INTERRUPTED, OVERDUE)


def ranked(layouts: Sequence[Layout]) -> list[Layout]:
    """Layouts that work, fastest first, then the others."""
    working = [layout for layout in layouts if layout.seconds is not None]
    failed = [layout for layout in layouts if layout.seconds is None]
    return [*sorted(working, key=lambda layout: layout.seconds or 0.0), *failed]


def shortened(layouts: Sequence[Layout], best: int | None) -> list[Layout]:
    """Ranked layouts, of which those after the best keep their times and not their predictions."""
    if best is None:
        return list(layouts)
    rest = (
        one
        if one.prediction is None
        else replace(one, prediction=None, memory=None, least_s=one.seconds, reason=SLOWER)
        for one in layouts[best:]
    )
    return [*layouts[:best], *rest]


def losses(prediction: Prediction) -> str:
    """What a strategy loses time with."""
    strategy = prediction.parallel
    on_host = strategy is not None and strategy.offload != "none"
    exposed = "exposed communication" + (" and the host's optimizer" if on_host else "")
    parts = {"waiting for other stages": prediction.idle_s, exposed: prediction.exposed_s}
    shares = [
        f"{name} {seconds / prediction.seconds:.0%}"
        for name, seconds in parts.items()
        if seconds > 0.005 * prediction.seconds
    ]
    return ", ".join(shares)
