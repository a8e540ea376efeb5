"""The suite measured on this machine's GPU: many steps, one row each, resumable.

Each step runs until it is stable and is sampled then (TBD, section III-D2); one more look at it
gives utilisation and memory. The file grows by whole rows: what it has is not measured again.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from wavecast import suite
from wavecast.errors import InvalidInput
from wavecast.footprint.kinds import peak_bytes
from wavecast.footprint.workspaces.estimate import with_workspaces
from wavecast.hardware.device import Device
from wavecast.hardware.families import family
from wavecast.runs.stability import ENOUGH, is_enough, settled_from
from wavecast.runs.suite_results import TABLE, SuiteResult, SuiteStep, read_results
from wavecast.steps.prediction import predict
from wavecast.steps.profile import Profile
from wavecast.steps.profiling import profile_measured, profile_predicted


def configurations(
    models: Sequence[str], precisions: Sequence[str], scales: Sequence[float] = (0.25, 0.5, 1.0)
) -> tuple[SuiteStep, ...]:
    """Each model at several batches, parts of its default one, in each precision.

    Args:
        models: names of the suite; all of it if empty.
        precisions: of `suite.PRECISIONS`.
        scales: of the default batch.
    """
    chosen = [suite.benchmark(name) for name in models] or list(suite.benchmarks())
    found = (
        SuiteStep(each.name, max(each.smallest_batch, round(each.default_batch * scale)), p)
        for each in chosen
        for p in precisions
        for scale in scales
    )
    return tuple(dict.fromkeys(found))


def run(
    wanted: Iterable[SuiteStep],
    path: Path,
    measure: Callable[[SuiteStep], SuiteResult],
    *,
    gpu: str,
    again: Callable[[SuiteResult], SuiteResult] | None = None,
    progress: Callable[[int, int, float], None] = lambda done, total, remaining_s: None,
    failed: Callable[[SuiteStep, Exception], None] | None = None,
) -> tuple[SuiteResult, ...]:
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
    with TABLE.growing(path, partial(_refuse_another_gpu, path, gpu)) as (rows, add):
        known = {row.configuration: row for row in rows}
        missing = [
            each for each in asked if each not in known or (again and _is_short(known[each]))
        ]
        for number, each in enumerate(missing, start=1):
            try:
                found = again(known[each]) if again and each in known else measure(each)
                add(found)
            except Exception as error:  # hours of other steps must not be lost to one
                if failed is None:
                    raise
                failed(each, error)
            spent_s = time.monotonic() - began
            done = len(asked) - len(missing) + number
            progress(done, len(asked), spent_s / number * (len(missing) - number))
    return read_results(path)


def measure_here(
    each: SuiteStep, device: Device, limit_s: float = 20.0, traces: Path | None = None
) -> SuiteResult:
    """Measure a step of the suite on this machine's GPU.

    Args:
        each: the step.
        device: the GPU's facts.
        limit_s: how long to sample iterations at most.
        traces: a folder in which to keep the measured traces, too.
    """
    from wavecast.frameworks.pytorch.measurement import sampling

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
        return SuiteResult(each.model, each.batch, each.precision, device.id, "oom", benchmark.unit)
    assert sample.trace is not None
    if traces is not None:
        traces.mkdir(parents=True, exist_ok=True)
        sample.trace.save(traces / f"{each.model}-b{each.batch}-{each.precision}.json.gz")
    profile = profile_measured(each.model, sample.trace, device)
    whole = sample.trace.measurement
    assert whole is not None
    row = SuiteResult(
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


def run_apart(work: Callable[..., SuiteResult], *given: Any) -> SuiteResult:
    """What a function gives in a process of its own.

    Once a profiler has looked at the GPU in a process, launches there take longer ever after: steps
    that wait for the host by a quarter (docs/adr/0018). Each step must be the first.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *given).result()


def time_again(row: SuiteResult, limit_s: float = 20.0) -> SuiteResult:
    """Sample the iterations of a step once more; what was seen of its parts stays.

    As TBD has it, one short profile says what a step consists of and a longer sample how fast it
    runs: kernels take the same time again, iterations need many samples.
    """
    from wavecast.frameworks.pytorch.measurement import sampling

    benchmark = suite.benchmark(row.model)
    try:
        sample = sampling.sample(
            lambda: benchmark.make_step(row.batch, row.precision), is_enough, limit_s, look=False
        )
    except sampling.OutOfMemory:
        return row  # it ran before: what else is in the GPU's memory now is not the step's doing
    return _timed(row, sample.seconds, sample.peak_bytes, sample.reserved_bytes)


def predict_there(each: SuiteStep, device: Device) -> SuiteResult:
    """Predict a step of the suite on a GPU that nobody has."""
    from wavecast.frameworks.pytorch.capture import capture

    benchmark = suite.benchmark(each.model)
    trace = capture(
        lambda: benchmark.make_step(each.batch, each.precision), capability=family(device)
    )
    profile = profile_predicted(each.model, predict(trace, device))
    return SuiteResult(
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


def _timed(
    row: SuiteResult, seconds: Sequence[float], peak_bytes: int, reserved_bytes: int
) -> SuiteResult:
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


def _is_short(row: SuiteResult) -> bool:
    return row.status == "ok" and (row.iterations or 0) < ENOUGH


def _refuse_another_gpu(path: Path, gpu: str, rows: Sequence[SuiteResult]) -> None:
    for row in rows:
        if row.gpu != gpu:
            raise InvalidInput(f"{path}: has results of {row.gpu}, not of {gpu}; choose another")
