"""A grid of whole runs, measured on this machine's GPU: batches and numbers of iterations.

It is the campaign of Gianniti, Zhang and Ardagna 2019 (section 4.3). The runs that a model will be
fitted on are runs of their own, each with its own start-up, in random order. Longer ones are read
off one run for each batch, as from a log that prints the time now and then, unless all are to be
separate. The file grows by whole runs, and what it has is not measured again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from wavecast import suite
from wavecast.campaigns.progress import Progress, refuse_another_gpu, work_off
from wavecast.errors import InvalidInput
from wavecast.files import GrowingTable
from wavecast.runs.regression.end_to_end import Split
from wavecast.runs.run import COLUMNS, TEXTS, WHOLE, Run, check, record

_SEED = 7


@dataclass(frozen=True)
class Start:
    """One start of a model, and the numbers of iterations at which its time is read."""

    model: str
    batch: int
    lengths: tuple[int, ...]
    precision: str = "fp32"


TimesOfStart = tuple[float, Sequence[float]]
"""The start-up time, and the time of the iterations until each length."""


def scaled(iterations: Iterable[int], share: float) -> tuple[int, ...]:
    """A share of each number of iterations, without repeats."""
    if not 0 < share <= 1:
        raise InvalidInput(f"a share of the iterations is above 0 and at most 1, not {share:g}")
    return tuple(dict.fromkeys(max(1, round(number * share)) for number in iterations))


def scaled_split(split: Split, share: float) -> Split:
    """A threshold at a share of its iterations."""
    return Split(split.batch, max(1, round(split.iterations * share)))


def plan(
    models: Sequence[str],
    batches: Sequence[int],
    iterations: Sequence[int],
    splits: Sequence[Split],
    *,
    precision: str = "fp32",
    separate: bool = False,
) -> tuple[Start, ...]:
    """The starts of a campaign, in random order with a fixed seed.

    Args:
        models: names of models of the suite.
        splits: the thresholds that will divide the runs; those below any are separate runs.
        precision: one of `suite.PRECISIONS`.
        separate: whether every run has its own start-up.
    """
    if precision not in suite.PRECISIONS:
        raise InvalidInput(f"unknown precision {precision!r}; known: {', '.join(suite.PRECISIONS)}")
    for name, numbers in (("batch", batches), ("number of iterations", iterations)):
        if not numbers or min(numbers) < 1:
            raise InvalidInput(f"a {name} is a whole number of at least 1")
    lengths = sorted(set(iterations))
    starts: list[Start] = []
    for model in models:
        for batch in dict.fromkeys(batches):
            alone = [
                length
                for length in lengths
                if separate or any(batch <= s.batch and length <= s.iterations for s in splits)
            ]
            starts += (Start(model, batch, (length,), precision) for length in alone)
            if read_off := tuple(length for length in lengths if length not in alone):
                starts.append(Start(model, batch, read_off, precision))
    random.Random(_SEED).shuffle(starts)
    return tuple(starts)


def run(
    starts: Sequence[Start],
    path: Path,
    measure: Callable[[Start], TimesOfStart],
    *,
    gpu: str,
    software: str,
    phase: str = "training",
    limit_s: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    failed: Callable[[Start, Exception], None] | None = None,
) -> tuple[Run, ...]:
    """Measure the runs that a file does not have yet, and return all its runs.

    Args:
        starts: what to measure, from `plan`.
        path: the CSV file. It is created if missing, and continued if it is of the same GPU.
        software: the software that runs it, as `Run.framework`.
        phase: "training" or "testing".
        failed: called with a start that could not be measured, and the error. It gets no rows, so
            the next run tries it again. If None, the error ends the campaign.
    """
    with TABLE.growing(path, lambda rows: refuse_another_gpu(path, gpu, rows)) as (rows, add):
        known = {_key(row) for row in rows}
        todo = []
        for start in starts:
            key = start.model, start.batch, start.precision, phase
            left = tuple(n for n in start.lengths if (*key, n) not in known)
            if left:
                todo.append(replace(start, lengths=left))
        done = len(starts) - len(todo)

        def work(start: Start) -> None:
            for run in runs_of(start, measure(start), gpu=gpu, software=software, phase=phase):
                add(run)

        work_off(todo, work, already_done=done, report=progress, limit_s=limit_s, failed=failed)
    return TABLE.read(path)


def measure_here(
    start: Start,
    device: str = "cuda",
    *,
    graph: bool = False,
    phase: str = "training",
    **options: object,
) -> TimesOfStart:
    """Time one start on this machine.

    Args:
        device: "cuda", or "cpu" to try it out.
        graph: whether each iteration is one CUDA graph.
        phase: "training", or "testing" for the forward pass alone.
        options: of the model, such as `image`.
    """
    from wavecast.frameworks.pytorch.measurement import whole_runs

    def make_step() -> Callable[[], object]:
        step = suite.benchmark(start.model).make_step(
            start.batch, start.precision, device=device, **options
        )
        return whole_runs.testing_step(step, start.precision) if phase == "testing" else step

    timed = whole_runs.time_run(make_step, start.lengths, device=device, graph=graph)
    return timed.startup_s, timed.seconds


def runs_of(
    start: Start, timed: TimesOfStart, *, gpu: str, software: str, phase: str
) -> Iterator[Run]:
    """The runs of one start: one for each of its lengths."""
    startup_s, seconds = timed
    for length, taken_s in zip(start.lengths, seconds, strict=True):
        yield Run(
            *(start.model, start.batch, length, round(taken_s, 7)),
            phase=phase,
            gpu=gpu,
            precision=start.precision,
            framework=software,
            total_iterations=length,
            total_s=round(startup_s + taken_s, 7),
        )


def _key(run: Run) -> tuple[object, ...]:
    return (run.model, run.batch, run.precision, run.phase, run.iterations)


def _to_texts(run: Run) -> dict[str, str]:
    return {name: "" if value is None else str(value) for name, value in record(run).items()}


def _from_texts(texts: dict[str, str]) -> Run:
    values = {
        name: text if name in TEXTS else (int(text) if name in WHOLE else float(text))
        for name, text in texts.items()
        if text
    }
    return check(Run(**values))  # type: ignore[arg-type]


TABLE = GrowingTable("runs", COLUMNS, _to_texts, _from_texts)  # type: ignore[arg-type]
