"""From moments in a log to a timed run: doubtful times out, warm-up out, pauses out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from wavecast.errors import InvalidInput
from wavecast.runs.readers.facts import Facts, Given, make_run
from wavecast.runs.readers.text import Doubts
from wavecast.runs.run import Run
from wavecast.runs.stability import WINDOW, stable_from

SMALLEST_WINDOW = 5
"""Stretches whose median is compared; with fewer, one slow stretch decides."""
PAUSE = 10.0
"""A stretch this many times as long as the median holds something else: a checkpoint, a test, a
suspended machine, a clock that was set."""

MOST_SET_BACK, MOST_SET_BACK_SHARE = 3, 0.02
"""Times that a clock may go back, in number and as a share of the moments: summer time and a
correction or two."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment at which an iteration was reached."""

    iteration: int
    time_s: float
    place: str
    after_break: bool = False
    """Something other than iterations happened since the mark before: a test, a snapshot."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Iterations and how long they took, with nothing else in between."""

    iterations: int
    seconds: float
    place: str

    @property
    def each_s(self) -> float:
        """One iteration of it."""
        return self.seconds / self.iterations


def trainings(marks: Iterable[Mark], doubts: Doubts) -> list[list[Stretch]]:
    """The stretches between marks, of each training: one that begins again is another.

    Marks that are there twice, and stretches over which the clock went back, are left out, and
    told. Marks at the same moment as the one before (a coarse clock) do not end a stretch.

    Raises:
        InvalidInput: the clock goes back again and again, so that no time can be believed.
    """
    found: list[list[Stretch]] = [[]]
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
            found.append([])
            last = mark
        elif mark.time_s < last.time_s:
            _tell_clock(mark, last, doubts)
            back += 1
            last = mark
        elif mark.after_break or mark.time_s > last.time_s:
            if not mark.after_break:
                found[-1].append(_between(last, mark))
            last = mark
    if last is not None and back > max(MOST_SET_BACK, MOST_SET_BACK_SHARE * seen):
        raise InvalidInput(
            f"{doubts.path}: {last.place}: the clock goes back at {back} of {seen} moments up to "
            "here; none of these times can be believed"
        )
    return [each for each in found if each]


def _between(last: Mark, mark: Mark) -> Stretch:
    return Stretch(mark.iteration - last.iteration, mark.time_s - last.time_s, mark.place)


def _tell_twice(mark: Mark, last: Mark, doubts: Doubts) -> None:
    if mark.after_break:  # a training that goes on after a test says again where it is
        return
    if mark.time_s == last.time_s:
        doubts.tell(mark.place, "is there twice; the second one is left out")
    else:
        doubts.tell(
            mark.place,
            f"iteration {mark.iteration} is there twice, at two times; the later one is taken",
            "an iteration is there twice, at two times",
        )


def _tell_restart(mark: Mark, last: Mark, doubts: Doubts) -> None:
    doubts.tell(
        mark.place,
        f"goes back from iteration {last.iteration} to {mark.iteration}; what follows is taken as "
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
    each_training: Sequence[Sequence[Stretch]], facts: Facts, given: Given, doubts: Doubts
) -> list[Run]:
    """A run of each training that is long enough.

    Raises:
        InvalidInput: none is; says why the first is not.
    """
    found: list[Run] = []
    refused: list[tuple[str, str]] = []
    for stretches in each_training:
        where = stretches[0].place
        try:
            stable = stable_part(stretches, given.warm_up, doubts)
        except InvalidInput as error:
            refused.append((where, str(error)))
            continue
        found.append(
            make_run(
                facts,
                given,
                sum(each.iterations for each in stable),
                math.fsum(each.seconds for each in stable),
                f"{doubts.path}: {where}",
            )
        )
    if not found:
        if not refused:
            raise InvalidInput(
                f"{doubts.path}: has no two iterations with the time at which they were reached"
            )
        where, why = refused[0]
        raise InvalidInput(f"{doubts.path}: {where}: {why}")
    for where, why in refused:
        doubts.tell(where, f"the training from here is left out: {why}")
    return found


def stable_part(
    stretches: Sequence[Stretch], warm_up: int | None, doubts: Doubts
) -> Sequence[Stretch]:
    """The stretches after warm-up, without pauses.

    Args:
        stretches: of one training, in order.
        warm_up: iterations to drop; None to find them (TBD-4).
        doubts: are told of pauses.

    Raises:
        InvalidInput: it is not known where warm-up ends, or nothing follows it.
    """
    if warm_up is None:
        # The rule is for 50 iterations; those of a stretch are averaged already.
        usual = statistics.median(each.iterations for each in stretches)
        window = max(SMALLEST_WINDOW, min(math.ceil(WINDOW / usual), len(stretches) // 6))
        if len(stretches) < 6 * window:
            raise InvalidInput(
                f"{len(stretches)} timed stretches of iterations are too few to tell where warm-up "
                f"ends, which takes {6 * window}; give the iterations of warm-up yourself: "
                "warm_up=..., or --warm-up on the command line"
            )
        # A median does not see a warm-up of less than half its window, so one goes in any case.
        begin = max(window, stable_from([each.each_s for each in stretches], window))
        stable = stretches[begin:]
    else:
        stable = _after(stretches, warm_up)
    usual_s = statistics.median(each.each_s for each in stable)
    kept = []
    for each in stable:
        if each.each_s > PAUSE * usual_s:
            doubts.tell(
                each.place,
                f"{each.seconds:.4g} s for what usually takes {usual_s * each.iterations:.4g} s: a "
                "pause, left out",
                "a pause, left out",
            )
        else:
            kept.append(each)
    return kept


def _after(stretches: Sequence[Stretch], warm_up: int) -> Sequence[Stretch]:
    done = 0
    for index, each in enumerate(stretches):
        if done >= warm_up:
            return stretches[index:]
        done += each.iterations
    raise InvalidInput(f"has {done} timed iterations, and all are within the warm-up of {warm_up}")
