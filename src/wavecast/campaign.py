"""The suite measured on this machine's GPU: many steps, one row each, resumable.

Each step runs until it is stable and is sampled then (TBD, section III-D2); one more look at it
gives utilisation and memory. The file grows by whole rows: what it has is not measured again.
"""

from __future__ import annotations

import csv
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from wavecast import suite
from wavecast.analysis import Profile, profile_measured, profile_predicted
from wavecast.append_file import append, appending, line_of
from wavecast.columns import peak_bytes
from wavecast.devices import Device
from wavecast.errors import InvalidInput
from wavecast.families import family
from wavecast.prediction import predict
from wavecast.stability import ENOUGH, is_enough, settled_from
from wavecast.workspaces.estimate import with_workspaces


@dataclass(frozen=True, slots=True)
class Configuration:
    """A step of the suite."""

    model: str
    batch: int
    precision: str


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured of a step; None where it did not run, or the measurement does not say."""

    model: str
    batch: int
    precision: str
    gpu: str
    status: str
    """"ok", "oom" (it did not fit) or "predicted"."""
    unit: str = "samples"
    seconds: float | None = None
    """The median iteration of the stable phase."""
    throughput_per_s: float | None = None
    gpu_utilisation: float | None = None
    fp32_utilisation: float | None = None
    tensor_utilisation: float | None = None
    cpu_utilisation: float | None = None
    gpu_s: float | None = None
    host_s: float | None = None
    weights_bytes: int | None = None
    weight_gradients_bytes: int | None = None
    feature_maps_bytes: int | None = None
    workspace_bytes: int | None = None
    dynamic_bytes: int | None = None
    peak_bytes: int | None = None
    reserved_bytes: int | None = None
    warm_up: int | None = None
    """Iterations before the stable phase."""
    iterations: int | None = None
    """Iterations of the stable phase."""
    software: str = ""

    @property
    def configuration(self) -> Configuration:
        """What was asked for."""
        return Configuration(self.model, self.batch, self.precision)


COLUMNS = tuple(field.name for field in fields(Result))


def configurations(
    models: Sequence[str], precisions: Sequence[str], scales: Sequence[float] = (0.25, 0.5, 1.0)
) -> tuple[Configuration, ...]:
    """Each model at several batches, parts of its default one, in each precision.

    Args:
        models: names of the suite; all of it if empty.
        precisions: of `suite.PRECISIONS`.
        scales: of the default batch.
    """
    chosen = [suite.benchmark(name) for name in models] or list(suite.benchmarks())
    found = (
        Configuration(each.name, max(each.smallest_batch, round(each.default_batch * scale)), p)
        for each in chosen
        for p in precisions
        for scale in scales
    )
    return tuple(dict.fromkeys(found))


def run(
    wanted: Iterable[Configuration],
    path: Path,
    measure: Callable[[Configuration], Result],
    *,
    gpu: str,
    again: Callable[[Result], Result] | None = None,
    progress: Callable[[int, int, float], None] = lambda done, total, remaining_s: None,
    failed: Callable[[Configuration, Exception], None] | None = None,
) -> tuple[Result, ...]:
    """Measure what the file does not have yet; gives all its rows.

    Args:
        wanted: the steps.
        path: the CSV file, made when missing, continued when it is of this GPU.
        measure: measures a step.
        gpu: the id of the GPU that measures.
        again: samples once more a step whose row has fewer than `ENOUGH` stable iterations; the
            new row counts.
        progress: told how many are done, how many there are, and how long the rest takes.
        failed: told of a step that could not be measured, which then has no row, so that the next
            run tries again; without it the error ends the run.
    """
    asked = tuple(wanted)
    began = time.monotonic()
    with appending(path) as file:
        known = _resume(file, path, gpu)
        missing = [
            each for each in asked if each not in known or (again and _is_short(known[each]))
        ]
        for number, each in enumerate(missing, start=1):
            try:
                found = again(known[each]) if again and each in known else measure(each)
                append(file, line_of(_values(found)))
            except Exception as error:  # hours of other steps must not be lost to one
                if failed is None:
                    raise
                failed(each, error)
            spent_s = time.monotonic() - began
            done = len(asked) - len(missing) + number
            progress(done, len(asked), spent_s / number * (len(missing) - number))
    return read_results(path)


def read_results(path: Path) -> tuple[Result, ...]:
    """The rows of a file, the last one of each step; a torn last line does not count.

    Raises:
        InvalidInput: it is not a file that `run` wrote; says which line and why.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read ({error})") from None
    lines = text.split("\n")[:-1]  # no value of ours has a line end; other breaks may be in one
    if lines and tuple(next(csv.reader(lines[:1]))) != COLUMNS:
        raise InvalidInput(f"{path}: is not a file of suite results; its columns are others")
    rows = (_result(line, number, path) for number, line in enumerate(lines[1:], start=2))
    return tuple({row.configuration: row for row in rows}.values())


def measure_here(
    each: Configuration, device: Device, limit_s: float = 20.0, traces: Path | None = None
) -> Result:
    """Measure a step of the suite on this machine's GPU.

    Args:
        each: the step.
        device: the GPU's facts.
        limit_s: how long to sample iterations at most.
        traces: a folder in which to keep the measured traces, too.
    """
    from wavecast.frameworks.pytorch import sampling

    benchmark = suite.benchmark(each.model)
    try:
        sample = sampling.sample(
            lambda: benchmark.make_step(each.batch, each.precision),
            is_enough,
            limit_s,
            samples=round(each.batch * benchmark.units_per_sample),
            unit=benchmark.unit,
        )
    except sampling.OutOfMemory:
        return Result(each.model, each.batch, each.precision, device.id, "oom", benchmark.unit)
    assert sample.trace is not None
    if traces is not None:
        traces.mkdir(parents=True, exist_ok=True)
        sample.trace.save(traces / f"{each.model}-b{each.batch}-{each.precision}.json.gz")
    profile = profile_measured(each.model, sample.trace, device)
    whole = sample.trace.measurement
    assert whole is not None
    row = Result(
        **asdict(each),
        gpu=device.id,
        status="ok",
        unit=benchmark.unit,
        fp32_utilisation=profile.utilisation["fp32"],
        tensor_utilisation=profile.utilisation["tensor"],
        cpu_utilisation=profile.cpu_utilisation,
        gpu_s=profile.gpu_s,
        host_s=profile.host_s,
        software=f"{sample.trace.framework}, {whole.software}",
        **_memory(profile),
    )
    return _timed(row, sample.seconds, sample.peak_bytes, sample.reserved_bytes)


def run_apart(work: Callable[..., Result], *given: Any) -> Result:
    """What a function gives in a process of its own.

    Once a profiler has looked at the GPU in a process, launches there take longer ever after: steps
    that wait for the host by a quarter (docs/adr/0018). Each step must be the first.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *given).result()


def time_again(row: Result, limit_s: float = 20.0) -> Result:
    """Sample the iterations of a step once more; what was seen of its parts stays.

    As TBD has it, one short profile says what a step consists of and a longer sample how fast it
    runs: kernels take the same time again, iterations need many samples.
    """
    from wavecast.frameworks.pytorch import sampling

    benchmark = suite.benchmark(row.model)
    try:
        sample = sampling.sample(
            lambda: benchmark.make_step(row.batch, row.precision), is_enough, limit_s, look=False
        )
    except sampling.OutOfMemory:
        return row  # it ran before: what else is in the GPU's memory now is not the step's doing
    return _timed(row, sample.seconds, sample.peak_bytes, sample.reserved_bytes)


def predict_there(each: Configuration, device: Device) -> Result:
    """Predict a step of the suite on a GPU that nobody has."""
    from wavecast.frameworks.pytorch import capture

    benchmark = suite.benchmark(each.model)
    trace = capture(
        lambda: benchmark.make_step(each.batch, each.precision), capability=family(device)
    )
    profile = profile_predicted(each.model, predict(trace, device))
    return Result(
        **asdict(each),
        gpu=device.id,
        status="predicted",
        unit=benchmark.unit,
        seconds=profile.seconds,
        throughput_per_s=each.batch * benchmark.units_per_sample / profile.seconds,
        gpu_utilisation=profile.gpu_utilisation,
        fp32_utilisation=profile.utilisation["fp32"],
        tensor_utilisation=profile.utilisation["tensor"],
        gpu_s=profile.gpu_s,
        host_s=profile.host_s,
        peak_bytes=peak_bytes(with_workspaces(trace, device).allocations),
        software=trace.framework,
        **_memory(profile),
    )


def _memory(profile: Profile) -> dict[str, Any]:
    """Memory by kind under the names of the columns."""
    return {f"{kind.replace(' ', '_')}_bytes": n for kind, n in profile.memory_bytes.items()}


def _timed(row: Result, seconds: Sequence[float], peak_bytes: int, reserved_bytes: int) -> Result:
    """The row with what a sample of iterations says."""
    start = settled_from(seconds)
    median_s = statistics.median(seconds[start:])
    return replace(
        row,
        seconds=median_s,
        throughput_per_s=row.batch * suite.benchmark(row.model).units_per_sample / median_s,
        gpu_utilisation=min(1.0, row.gpu_s / median_s) if row.gpu_s is not None else None,
        peak_bytes=peak_bytes,
        reserved_bytes=reserved_bytes,
        warm_up=start,
        iterations=len(seconds) - start,
    )


def _is_short(row: Result) -> bool:
    return row.status == "ok" and (row.iterations or 0) < ENOUGH


def _resume(file: int, path: Path, gpu: str) -> dict[Configuration, Result]:
    """What the file has, after its torn line was cut off and its header is there."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if not whole:
        if not line_of(COLUMNS).startswith(content):
            raise InvalidInput(f"{path}: is not a file of suite results; choose another file")
        os.ftruncate(file, 0)
        append(file, line_of(COLUMNS))
        return {}
    known = read_results(path)
    for row in known:
        if row.gpu != gpu:
            raise InvalidInput(f"{path}: has results of {row.gpu}, not of {gpu}; choose another")
    os.ftruncate(file, whole)  # only now: a file that is refused stays as it is
    return {row.configuration: row for row in known}


def _values(result: Result) -> list[str]:
    values = (getattr(result, name) for name in COLUMNS)
    return ["" if v is None else f"{v:.6g}" if isinstance(v, float) else str(v) for v in values]


_WHOLE = {"batch", "warm_up", "iterations"} | {n for n in COLUMNS if n.endswith("_bytes")}
_TEXTS = {"model", "precision", "gpu", "status", "unit", "software"}


def _result(line: str, number: int, path: Path) -> Result:
    try:
        values = dict(zip(COLUMNS, next(csv.reader([line])), strict=True))
        return Result(**{name: _value(name, text) for name, text in values.items()})
    except (ValueError, StopIteration) as error:
        raise InvalidInput(f"{path}: line {number} is not a result: {error}") from None


def _value(name: str, text: str) -> Any:
    if name in _TEXTS:
        return text
    if not text:
        return None
    return int(text) if name in _WHOLE else float(text)
