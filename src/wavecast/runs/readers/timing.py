"""Timed runs from the times in a log, without wrong times, warm-up and pauses."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from wavecast.errors import InvalidInput
from wavecast.runs.readers.doubts import Doubts
from wavecast.runs.readers.facts import Facts, Given, make_run
from wavecast.runs.run import Run
from wavecast.runs.stability import WINDOW, stable_from

SMALLEST_WINDOW = 5
"""The least number of stretches in a window; with fewer, one slow stretch would decide."""
PAUSE = 10.0
"""A stretch this many times as long as the median holds something else: a checkpoint, a test, a
suspended machine, or a clock that was set."""

MOST_SET_BACK, MOST_SET_BACK_SHARE = 3, 0.02
"""How often a clock may go back, in number and as a share of all times. The end of summer time and
a correction or two are normal."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The time at which an iteration was reached."""

    iteration: int
    time_s: float
    place: str
    """Where in the file: "line 12"."""
    after_break: bool = False
    """Whether something other than iterations, such as a test, happened since the last mark."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Successive iterations and the time they took, with nothing else in between."""

    iterations: int
    seconds: float
    place: str

    @property
    def iteration_s(self) -> float:
        """Seconds of one iteration."""
        return self.seconds / self.iterations


def trainings(marks: Iterable[Mark], doubts: Doubts) -> list[list[Stretch]]:
    """The stretches between marks, as one list for each training.

    When the iterations start again, another training begins. Repeated marks, and stretches in
    which the clock went back, are left out with a warning. A mark with the same time as the one
    before, from a coarse clock, does not end a stretch.

    Raises:
        InvalidInput: the clock goes back so often that no time can be trusted.
    """
    stretches: list[list[Stretch]] = [[]]
    last: Mark | None = None
    seen = back = 0
    for mark in marks:
        seen += 1
        if last is None:
            last = mark
        elif mark.iteration == last.iteration:
            _tell_twice(mark, last, doubts)
            last = replace(mark, time_s=max(mark.time_s, last.time_s))
        elif mark.iteration < last.iteration:
            _tell_restart(mark, last, doubts)
            stretches.append([])
            last = mark
        elif mark.time_s < last.time_s:
            _tell_clock(mark, last, doubts)
            back += 1
            last = mark
        elif mark.after_break or mark.time_s > last.time_s:
            if not mark.after_break:
                stretches[-1].append(_between(last, mark))
            last = mark
    if last is not None and back > max(MOST_SET_BACK, MOST_SET_BACK_SHARE * seen):
        raise InvalidInput(
            f"{doubts.path}: {last.place}: the clock goes back at {back} of {seen} times up to "
            "here, so none of these times can be trusted"
        )
    return [training for training in stretches if training]


def _between(last: Mark, mark: Mark) -> Stretch:
    return Stretch(mark.iteration - last.iteration, mark.time_s - last.time_s, mark.place)


def _tell_twice(mark: Mark, last: Mark, doubts: Doubts) -> None:
    if mark.after_break:  # after a test, logs repeat the last iteration
        return
    if mark.time_s == last.time_s:
        doubts.tell(mark.place, "appears twice; the second one is left out")
    else:
        doubts.tell(
            mark.place,
            f"iteration {mark.iteration} appears twice, at different times; the later one is used",
            "an iteration appears twice, at different times",
        )


def _tell_restart(mark: Mark, last: Mark, doubts: Doubts) -> None:
    doubts.tell(
        mark.place,
        f"goes back from iteration {last.iteration} to {mark.iteration}; what follows is read as "
        "another training",
        "goes back to an earlier iteration",
    )


def _tell_clock(mark: Mark, last: Mark, doubts: Doubts) -> None:
    doubts.tell(
        mark.place,
        f"the clock went back by {last.time_s - mark.time_s:.6g} s; the iterations up to here are "
        "left out",
        "the clock went back",
    )


def runs_of(
    timed: Sequence[Sequence[Stretch]], facts: Facts, given: Given, doubts: Doubts
) -> list[Run]:
    """One run for each training that is long enough.

    Args:
        timed: the stretches of each training.
        facts: what the log says about the runs.
        given: what the user says about them.
        doubts: takes warnings about trainings that are left out.

    Raises:
        InvalidInput: no training is long enough; says why the first is not.
    """
    runs: list[Run] = []
    refused: list[tuple[str, str]] = []
    for stretches in timed:
        where = stretches[0].place
        try:
            stable = stable_part(stretches, given.warm_up, doubts)
        except InvalidInput as error:
            refused.append((where, str(error)))
            continue
        runs.append(
            make_run(
                facts,
                given,
                sum(stretch.iterations for stretch in stable),
                math.fsum(stretch.seconds for stretch in stable),
                f"{doubts.path}: {where}",
            )
        )
    if not runs:
        if not refused:
            raise InvalidInput(f"{doubts.path}: does not give the times of two iterations")
        where, why = refused[0]
        raise InvalidInput(f"{doubts.path}: {where}: {why}")
    for where, why in refused:
        doubts.tell(where, f"the training that begins here is left out: {why}")
    return runs


def stable_part(
    stretches: Sequence[Stretch], warm_up: int | None, doubts: Doubts
) -> Sequence[Stretch]:
    """The stretches after warm-up, without pauses.

    Args:
        stretches: all stretches of one training, in order.
        warm_up: how many iterations to drop. None to detect the end of warm-up.
        doubts: takes warnings about pauses.

    Raises:
        InvalidInput: the end of warm-up cannot be found, or nothing follows it.
    """
    if warm_up is None:
        # A window has 50 iterations; a stretch is already the mean of several.
        usual = statistics.median(stretch.iterations for stretch in stretches)
        window = max(SMALLEST_WINDOW, min(math.ceil(WINDOW / usual), len(stretches) // 6))
        if len(stretches) < 6 * window:
            raise InvalidInput(
                f"{len(stretches)} logged times are too few to find the end of warm-up; "
                f"{6 * window} are needed; give the number of warm-up iterations yourself: "
                "warm_up=..., or --warm-up on the command line"
            )
        # A median misses a warm-up shorter than half a window, so one window is always dropped.
        begin = max(window, stable_from([s.iteration_s for s in stretches], window))
        stable = stretches[begin:]
    else:
        stable = _after(stretches, warm_up)
    usual_s = statistics.median(stretch.iteration_s for stretch in stable)
    kept = []
    for stretch in stable:
        if stretch.iteration_s > PAUSE * usual_s:
            usually_s = usual_s * stretch.iterations
            doubts.tell(
                stretch.place,
                f"took {stretch.seconds:.4g} s instead of the usual {usually_s:.4g} s: a pause, "
                "left out",
                "a pause, left out",
            )
        else:
            kept.append(stretch)
    return kept


def _after(stretches: Sequence[Stretch], warm_up: int) -> Sequence[Stretch]:
    done = 0
    for index, stretch in enumerate(stretches):
        if done >= warm_up:
            return stretches[index:]
        done += stretch.iterations
    raise InvalidInput(f"all {done} timed iterations are within the warm-up of {warm_up}")
