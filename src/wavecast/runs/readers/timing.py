"""Timed runs from the times in a log, without wrong times, warm-up and pauses.

A stretch is the time between two logged iterations. If its iterations took a tenth of the usual
time, the step numbers jumped; if they took ten times as long, there was a pause. Both are left out
with a warning. A log with time stamps before and after its iterations also gives the time of the
whole run (`totals`).
"""

from __future__ import annotations

import math
import re
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wavecast.errors import InvalidInput, prefixed
from wavecast.runs.readers.text import Doubts, number_of, whole_of
from wavecast.runs.run import WINDOW, Run, check, stable_from

if TYPE_CHECKING:
    pass


SMALLEST_WINDOW = 5
"""The least number of stretches in a window; with fewer, one slow stretch would decide."""
PAUSE = 10.0
"""A stretch this many times as long as the median holds something else: a checkpoint, a test, a
suspended machine, or a clock that was set."""
JUMP = 10.0
"""A stretch whose iterations took less than the median by this factor holds fewer iterations than
its step numbers say: the numbers jumped."""
FEWEST = 3
"""The fewest stretches of which one can be called unusual."""
MOST_UNUSUAL, MOST_UNUSUAL_SHARE = 3, 0.05
"""How many stretches may be unusual. If there are more, times come in bursts: the host runs ahead
of the GPU and then waits for it."""

MOST_SET_BACK, MOST_SET_BACK_SHARE = 3, 0.02
"""How often a clock may go back: a count, and a share of all times. The end of summer time and a
correction or two are normal."""


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


@dataclass(frozen=True, slots=True)
class Training:
    """One training in a log: what lies between its marks."""

    stretches: tuple[Stretch, ...]
    first: Mark
    last: Mark
    breaks: tuple[Stretch, ...] = ()
    """The stretches in which something else happened as well, such as a test."""
    is_sound: bool = True
    """Whether the clock never went back."""

    @property
    def iterations(self) -> int:
        """All iterations up to the last mark. Those before the first mark are as many as usual."""
        usual = round(statistics.median(stretch.iterations for stretch in self.stretches))
        return self.last.iteration - self.first.iteration + min(self.first.iteration, usual)


def trainings(marks: Iterable[Mark], doubts: Doubts) -> list[Training]:
    """The trainings in a log, with the stretches between their marks.

    When the iterations start again, another training begins. Repeated marks, and stretches in
    which the clock went back, are left out with a warning. A mark with the same time as the one
    before, from a coarse clock, does not end a stretch.

    Raises:
        InvalidInput: the clock goes back so often that no time can be trusted.
    """
    parts = [_Part()]
    seen = 0
    for mark in marks:
        seen += 1
        last = parts[-1].last
        if last is not None and mark.iteration < last.iteration:
            _tell_restart(mark, last, doubts)
            parts.append(_Part())
        parts[-1].take(mark, doubts)
    back, last = sum(part.back for part in parts), parts[-1].last
    if last is not None and back > max(MOST_SET_BACK, MOST_SET_BACK_SHARE * seen):
        raise InvalidInput(
            f"{doubts.path}: {last.place}: the clock goes back at {back} of {seen} times up to "
            "here, so none of these times can be trusted"
        )
    return [training for part in parts if (training := part.training()) is not None]


@dataclass
class _Part:
    """The marks of one training, as far as they have been read."""

    first: Mark | None = None
    last: Mark | None = None
    stretches: list[Stretch] = field(default_factory=list)
    breaks: list[Stretch] = field(default_factory=list)
    back: int = 0
    """How often the clock went back."""

    def take(self, mark: Mark, doubts: Doubts) -> None:
        """Add a mark, whose iteration is not before the last one."""
        last = self.last
        if last is None:
            self.first = self.last = mark
        elif mark.iteration == last.iteration:
            _tell_twice(mark, last, doubts)
            self.last = replace(mark, time_s=max(mark.time_s, last.time_s))
        elif mark.time_s < last.time_s:
            _tell_clock(mark, last, doubts)
            self.back += 1
            self.last = mark
        elif mark.after_break or mark.time_s > last.time_s:
            kind = self.breaks if mark.after_break else self.stretches
            kind.append(_between(last, mark))
            self.last = mark

    def training(self) -> Training | None:
        """The training. None if nothing in it is timed."""
        if self.first is None or self.last is None or not self.stretches:
            return None
        parts = (tuple(self.stretches), self.first, self.last, tuple(self.breaks))
        return Training(*parts, is_sound=self.back == 0)


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
    timed: Sequence[Training],
    facts: Facts,
    given: Given,
    doubts: Doubts,
    span: LogSpan | None = None,
) -> list[Run]:
    """One run for each training.

    Args:
        facts: what the log says about the runs.
        given: what the user says about them.
        doubts: takes warnings about trainings that are left out.
        span: the first and last stamp of the log, if there are such. They belong to a run if the
            log has only one training.

    Raises:
        InvalidInput: no training can be used; says why the first cannot.
    """
    runs: list[Run] = []
    refused: list[tuple[str, str]] = []
    for training in timed:
        where = training.stretches[0].place
        alone = span if len(timed) == 1 else None
        try:
            used, totals = _used(training, alone, given.warm_up, doubts)
        except InvalidInput as error:
            refused.append((where, str(error)))
            continue
        iterations = sum(stretch.iterations for stretch in used)
        seconds = math.fsum(stretch.seconds for stretch in used)
        place = f"{doubts.path}: {where}"
        runs.append(make_run(facts, given, iterations, seconds, place, totals=totals))
    if not runs:
        if not refused:
            raise InvalidInput(f"{doubts.path}: does not give the times of two iterations")
        where, why = refused[0]
        raise InvalidInput(f"{doubts.path}: {where}: {why}")
    for where, why in refused:
        doubts.tell(
            where,
            f"the training that begins here is left out: {why}",
            "a training is left out",
        )
    return runs


class _TooShort(InvalidInput):
    """The end of warm-up cannot be found, because a training has too few times."""


def _used(
    training: Training, span: LogSpan | None, warm_up: int | None, doubts: Doubts
) -> tuple[Sequence[Stretch], RunTotals]:
    """The stretches to time a training by, and the times of the whole run.

    If no stable part is found, the whole training is used, with its warm-up, provided that it is
    short or that the time of the whole run is known.
    """
    stretches = _without_jumps(training.stretches, doubts)
    if warm_up is None:
        _refuse_bursts(stretches)
    try:
        used = stable_part(stretches, warm_up, doubts)
    except InvalidInput as error:
        has_total = span is not None and len(stretches) == len(training.stretches)
        enough = isinstance(error, _TooShort) and len(stretches) >= FEWEST
        if warm_up is not None or not (has_total or enough):
            raise
        doubts.tell(
            stretches[0].place,
            f"{error}. The run is used whole, with its warm-up",
            "a run is used whole, with its warm-up",
        )
        used = stretches
        if isinstance(error, _TooShort):
            used = [stretches[0], *_without_pauses(stretches[1:], doubts)]
    if span is None:
        return used, RunTotals()
    usual_s = statistics.median(stretch.iteration_s for stretch in stretches)
    jumps = [b for b in training.breaks if b.seconds * JUMP < usual_s * b.iterations]
    for jump in jumps:
        _tell_jump(jump, usual_s, doubts)
    if jumps or len(stretches) < len(training.stretches) or not training.is_sound:
        doubts.tell(
            training.last.place,
            "the time of the whole run is unknown: its step numbers or its clock cannot be trusted",
        )
        return used, RunTotals()
    left_out_s = math.fsum(s.seconds for s in _pauses(stretches[1:]))
    return used, totals_of(span, training, left_out_s, doubts)


def stable_part(
    stretches: Sequence[Stretch], warm_up: int | None, doubts: Doubts
) -> Sequence[Stretch]:
    """The stretches after warm-up, without pauses.

    Args:
        stretches: all stretches of one training, in order.
        warm_up: how many iterations to drop. None to detect the end of warm-up.

    Raises:
        InvalidInput: the end of warm-up cannot be found, or nothing follows it.
    """
    if warm_up is not None:
        return _without_pauses(_after(stretches, warm_up), doubts)
    # A window has 50 iterations; a stretch is already the mean of several.
    usual = statistics.median(stretch.iterations for stretch in stretches)
    window = max(SMALLEST_WINDOW, min(math.ceil(WINDOW / usual), len(stretches) // 6))
    if len(stretches) < 6 * window:
        raise _TooShort(
            f"{len(stretches)} logged times are too few to find the end of warm-up; "
            f"{6 * window} are needed; give the number of warm-up iterations yourself: "
            "warm_up=..., or --warm-up on the command line"
        )
    # A median misses a warm-up shorter than half a window, so one window is always dropped.
    begin = max(window, stable_from([s.iteration_s for s in stretches], window))
    return _without_pauses(stretches[begin:], doubts)


def _without_jumps(stretches: Sequence[Stretch], doubts: Doubts) -> Sequence[Stretch]:
    """The stretches without those over which the step numbers jumped."""
    if len(stretches) < FEWEST:
        return stretches
    usual_s = statistics.median(stretch.iteration_s for stretch in stretches)
    jumps = [stretch for stretch in stretches if stretch.iteration_s * JUMP < usual_s]
    if len(jumps) > max(MOST_UNUSUAL, MOST_UNUSUAL_SHARE * len(stretches)):
        raise InvalidInput(
            f"{len(jumps)} of {len(stretches)} stretches between logged iterations took less than "
            f"a tenth of the usual {usual_s:.4g} s an iteration (the first at {jumps[0].place}); "
            "such a log does not show how long an iteration takes"
        )
    for jump in jumps:
        _tell_jump(jump, usual_s, doubts)
    return [stretch for stretch in stretches if stretch not in jumps] if jumps else stretches


def _tell_jump(jump: Stretch, usual_s: float, doubts: Doubts) -> None:
    times = (
        f"{usual_s * jump.iterations / jump.seconds:,.0f} times" if jump.seconds else "endlessly"
    )
    doubts.tell(
        jump.place,
        f"{jump.iterations:,} iterations in {jump.seconds:.4g} s would be {times} as fast as "
        "usual: the step numbers jump, and these iterations are left out",
        "the step numbers jump",
    )


def _refuse_bursts(stretches: Sequence[Stretch]) -> None:
    """Refuse a training with many stretches that are far too slow.

    Raises:
        InvalidInput: there are many. Either the host runs ahead of the GPU and waits now and then,
            or the step numbers began to count something else.
    """
    pauses = _pauses(stretches)
    lost_s, whole_s = (math.fsum(s.seconds for s in some) for some in (pauses, stretches))
    many = max(MOST_UNUSUAL, MOST_UNUSUAL_SHARE * len(stretches))
    if len(pauses) > many:
        usual_s = statistics.median(stretch.iteration_s for stretch in stretches)
        raise InvalidInput(
            f"{len(pauses)} of {len(stretches)} stretches between logged iterations took more than "
            f"ten times the usual {usual_s:.4g} s an iteration, {lost_s:.4g} of {whole_s:.4g} s in "
            f"all (the first at {pauses[0].place}); such a log does not show how long an iteration "
            "takes; use a metric that is logged less often (metric=..., or --metric), or say how "
            "many iterations are warm-up (warm_up=..., or --warm-up) to leave slow stretches out"
        )


def _pauses(stretches: Sequence[Stretch]) -> list[Stretch]:
    """The stretches that took too long to be iterations alone."""
    if not stretches:
        return []
    usual_s = statistics.median(stretch.iteration_s for stretch in stretches)
    return [stretch for stretch in stretches if stretch.iteration_s > PAUSE * usual_s]


def _without_pauses(stretches: Sequence[Stretch], doubts: Doubts) -> Sequence[Stretch]:
    """The stretches without pauses. A warning names each pause."""
    pauses = _pauses(stretches)
    if not pauses:
        return stretches
    usual_s = statistics.median(stretch.iteration_s for stretch in stretches)
    for pause in pauses:
        doubts.tell(
            pause.place,
            f"took {pause.seconds:.4g} s instead of the usual {usual_s * pause.iterations:.4g} s: "
            "a pause, left out",
            "a pause, left out",
        )
    return [stretch for stretch in stretches if stretch not in pauses]


def _after(stretches: Sequence[Stretch], warm_up: int) -> Sequence[Stretch]:
    done = 0
    for index, stretch in enumerate(stretches):
        if done >= warm_up:
            return stretches[index:]
        done += stretch.iterations
    raise InvalidInput(f"all {done} timed iterations are within the warm-up of {warm_up}")


# The time of whole runs: from the first to the last stamp of a log.
#
# The end-to-end models of Gianniti et al. regress this time. It includes start-up, warm-up, tests
# and checkpoints, which the time of single iterations leaves out.


MOST_PAUSED = 0.5
"""If pauses are more than this share of a run, its total says nothing about other runs."""


@dataclass(frozen=True, slots=True)
class LogSpan:
    """The first and last stamp of a run in its log, and the tests in between."""

    begin_s: float
    end_s: float
    tests: tuple[tuple[float, float], ...] | None = None
    """When each test began and ended. None if the log does not say."""
    iterations: int | None = None
    """All iterations of the run, if the log says more than its logged iterations do."""


@dataclass(frozen=True, slots=True)
class RunTotals:
    """The iterations and times of a whole run. None when unknown."""

    total_iterations: int | None = None
    total_s: float | None = None
    training_s: float | None = None
    testing_s: float | None = None

    def known(self) -> dict[str, Any]:
        """The known values by name."""
        values = {name: getattr(self, name) for name in RunTotals.__slots__}
        return {name: value for name, value in values.items() if value is not None}


def totals_of(span: LogSpan, training: Training, paused_s: float, doubts: Doubts) -> RunTotals:
    """The times of a whole run; unknown, with a warning, if its time stamps do not agree.

    Args:
        span: its first and last stamp.
        paused_s: the seconds of pauses in it.
        doubts: takes the warning if the times are unknown.
    """
    first, last = training.first, training.last
    total_s = span.end_s - span.begin_s
    if not (span.begin_s <= first.time_s <= last.time_s <= span.end_s and total_s > 0):
        doubts.tell(
            first.place,
            "the time of the whole run is unknown: the first stamp of the log is "
            f"{first.time_s - span.begin_s:.6g} s before its first iteration, and the last stamp "
            f"{span.end_s - last.time_s:.6g} s after its last iteration",
            "the time of the whole run is unknown",
        )
        return RunTotals()
    if paused_s > MOST_PAUSED * total_s:
        doubts.tell(
            first.place,
            f"the time of the whole run is unknown: {paused_s:.4g} s of its {total_s:.4g} s are "
            "pauses, or its clock was set",
            "the time of the whole run is unknown",
        )
        return RunTotals()
    iterations = span.iterations or training.iterations
    if span.tests is None:
        return RunTotals(iterations, total_s)
    within = (end - begin for begin, end in span.tests if first.time_s <= begin <= last.time_s)
    training_s = last.time_s - first.time_s - math.fsum(within)
    testing_s = math.fsum(end - begin for begin, end in span.tests)
    return RunTotals(iterations, total_s, max(0.0, training_s), testing_s)


# The model, batch and GPU of a run: given by the user, or found among a log's settings.


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a run apart from its time. None when unknown."""

    model: str | None = None
    batch: int | None = None
    gpu: str | None = None
    gpus: int | None = None
    precision: str | None = None
    framework: str | None = None
    inner_modules: int | None = None

    def known(self) -> dict[str, Any]:
        """The known facts by name."""
        values = {name: getattr(self, name) for name in Facts.__slots__}
        return {name: value for name, value in values.items() if value is not None}

    def corrected(self, given: Given) -> Facts:
        """The facts with those that the user gives instead."""
        return replace(self, **given.known())


@dataclass(frozen=True, slots=True)
class Given(Facts):
    """The facts that the user gives. They replace those that the file says."""

    warm_up: int | None = None
    """How many iterations to drop. None to detect the end of warm-up."""
    metric: str | None = None
    """The metric whose times are used, if a file has several."""


def make_run(
    facts: Facts,
    given: Given,
    iterations: int,
    seconds: float,
    place: str,
    phase: str = "training",
    totals: RunTotals = RunTotals(),  # noqa: B008  (frozen)
) -> Run:
    """A checked run.

    Raises:
        InvalidInput: the model or the batch is unknown, or a value is impossible; says where.
    """
    corrected = facts.corrected(given)
    for name in ("model", "batch"):
        if getattr(corrected, name) is None:
            raise InvalidInput(
                f"{place}: does not say the {name}; give it as {name}=..., or --{name} on the "
                "command line"
            )
    known = {**corrected.known(), **totals.known()}
    with prefixed(f"{place}: "):
        run = Run(iterations=iterations, seconds=seconds, phase=phase, source=place, **known)
        return check(run)


# Names of these settings in scripts and frameworks, the most reliable first.
_GLOBAL_BATCH = (
    *("global_batch_size", "total_batch_size", "effective_batch_size", "total_train_batch_size"),
    "optimizer_batch_size",
)
_BATCH_OF_A_GPU = (
    *("per_device_train_batch_size", "per_gpu_train_batch_size", "batch_size_per_gpu"),
    *("micro_batch_size", "train_micro_batch_size_per_gpu", "local_batch_size"),
)
_BATCH = ("train_batch_size", "batch_size", "batch", "bs")
_GPUS = ("world_size", "num_gpus", "n_gpus", "gpus", "n_gpu", "num_devices", "devices")
_ACCUMULATED = ("gradient_accumulation_steps", "accumulate_grad_batches", "gradient_accumulation")
_MODELS = ("model_name", "model", "arch", "architecture", "model_name_or_path", "_name_or_path")
_PRECISIONS = {
    **{"fp32": "fp32", "float32": "fp32", "32": "fp32", "32-true": "fp32"},
    **{"tf32": "tf32", "fp16": "fp16", "float16": "fp16", "16": "fp16"},
    **{"16-mixed": "fp16", "16-true": "fp16", "bf16": "bf16", "bfloat16": "bf16"},
    **{"bf16-mixed": "bf16", "bf16-true": "bf16"},
}


def find_facts(settings: Mapping[str, object], given: Given, framework: str | None) -> Facts:
    """The facts among a training's settings: arguments, hyperparameters or parameters.

    The batch of one GPU is multiplied only if the number of GPUs is known. If a setting may mean
    the batch of one GPU or of all, and there are several GPUs, the batch stays unknown.
    """
    lower = {name.lower().rsplit("/", 1)[-1]: value for name, value in settings.items()}
    gpus = given.gpus or _first_whole(lower, _GPUS)
    model = next((v for name in _MODELS if isinstance(v := lower.get(name), str) and v), None)
    return Facts(
        model=model,
        batch=_batch(lower, gpus),
        gpus=gpus,
        precision=_precision(lower),
        framework=framework,
    )


def _batch(settings: Mapping[str, object], gpus: int | None) -> int | None:
    if (whole_batch := _first_whole(settings, _GLOBAL_BATCH)) is not None:
        return whole_batch
    accumulated = _first_whole(settings, _ACCUMULATED) or 1
    if (batch_of_a_gpu := _first_whole(settings, _BATCH_OF_A_GPU)) is not None:
        return None if gpus is None else batch_of_a_gpu * gpus * accumulated
    batch = _first_whole(settings, _BATCH)
    return batch if accumulated == 1 and (gpus or 1) == 1 else None


def _precision(settings: Mapping[str, object]) -> str | None:
    for name in ("bf16", "fp16", "tf32", "amp"):
        if str(settings.get(name)).lower() in ("true", "1"):
            return "fp16" if name == "amp" else name
    for name in ("precision", "dtype", "mixed_precision"):
        if precision := _PRECISIONS.get(str(settings.get(name)).lower()):
            return precision
    return None


def _first_whole(settings: Mapping[str, object], names: tuple[str, ...]) -> int | None:
    for name in names:
        number = whole_of(settings.get(name))
        if number is None and (value := number_of(settings.get(name))) is not None:
            number = int(value) if value.is_integer() else None
        if number is not None and number > 0:
            return number
    return None


# The choice of the metric whose times show how fast a training was.
#
# Trackers keep many metrics. The one with the most steps is chosen, among those that belong
# neither to a test nor to whole epochs. Time spent in a test is not training time, so a stretch in
# which a test was recorded is not timed.


_TEST = re.compile(r"(val|valid|validation|eval|evaluation|test|testing)\d*([_\-. ].*)?")
_EPOCH = re.compile(r"(.*[_\- ])?epoch([_\- ].*)?|hp_metric")


def training_marks(path: Path, marks: Mapping[str, Sequence[Mark]], given: Given) -> list[Mark]:
    """The times of the chosen metric; marks after a test say so.

    Raises:
        InvalidInput: the file lacks the given metric, or has no metric of training steps.
    """
    chosen = _choose(path, marks, given)
    tests = sorted(
        mark.time_s
        for name, its_marks in marks.items()
        if is_test(name) and name != chosen
        for mark in its_marks
    )
    return list(_broken(marks[chosen], tests))


def test_spans(
    marks: Mapping[str, Sequence[Mark]], chosen: Sequence[Mark]
) -> tuple[tuple[float, float], ...] | None:
    """When each test began and ended. None if it is unknown.

    A tracker writes the metrics of a test at its end. The test began when the training reached the
    step of these metrics, which follows from the last logged step and the usual time of a step.

    Args:
        marks: the times of all metrics.
        chosen: the times of the metric of training steps.
    """
    steps = sorted(chosen, key=lambda mark: mark.time_s)
    pairs = [(a, b) for a, b in pairwise(steps) if b.iteration > a.iteration]
    tests = sorted(
        (m for name, its in marks.items() if is_test(name) for m in its), key=lambda m: m.time_s
    )
    if not tests:
        return ()
    if not pairs:
        return None
    usual = statistics.median(b.iteration - a.iteration for a, b in pairs)
    usual_s = statistics.median(
        (b.time_s - a.time_s) / (b.iteration - a.iteration) for a, b in pairs
    )
    spans: dict[float, tuple[float, float]] = {}
    times = [mark.time_s for mark in steps]
    for test in tests:
        # At the end of a test, trackers may write a training step with the same time.
        before = bisect_left(times, test.time_s) - 1
        if before < 0:
            return None
        ahead = test.iteration - steps[before].iteration
        if not 0 <= ahead <= 2 * usual:
            return None  # the steps of the test count something else
        begin_s = times[before] + ahead * usual_s
        spans[times[before]] = (min(begin_s, test.time_s), test.time_s)
    return tuple(spans.values())


def whole_span(
    times: Sequence[float], marks: Mapping[str, Sequence[Mark]], chosen: Sequence[Mark]
) -> LogSpan | None:
    """The first and last of all stamps, with the tests. None if there are no stamps."""
    if not times:
        return None
    return LogSpan(times[0], max(times), test_spans(marks, chosen))


def is_test(name: str) -> bool:
    """Whether a metric belongs to a test or validation, by its name."""
    return any(_TEST.fullmatch(part) for part in name.lower().split("/"))


def is_training(name: str) -> bool:
    """Whether a metric is recorded at training iterations, by its name."""
    return not is_test(name) and not any(_EPOCH.fullmatch(p) for p in name.lower().split("/"))


def _choose(path: Path, marks: Mapping[str, Sequence[Mark]], given: Given) -> str:
    if given.metric is not None:
        if given.metric not in marks:
            metrics = ", ".join(sorted(marks)[:10]) or "none"
            raise InvalidInput(f'{path}: has no metric "{given.metric}"; it has {metrics}')
        return given.metric
    candidates = [name for name in marks if is_training(name)]
    if not candidates:
        metrics = f" (it has {', '.join(sorted(marks)[:10])})" if marks else ""
        raise InvalidInput(
            f"{path}: has no metric of training steps{metrics}; name one whose steps are "
            "iterations: metric=..., or --metric on the command line"
        )
    return max(candidates, key=lambda name: (len(marks[name]), name))


def _broken(marks: Iterable[Mark], tests: Sequence[float]) -> Iterable[Mark]:
    """The marks; those after a test are marked as after a break."""
    passed = 0
    for mark in marks:
        before = passed
        while passed < len(tests) and tests[passed] <= mark.time_s:
            passed += 1
        yield replace(mark, after_break=mark.after_break or passed > before)
