"""The benchmark suite, measured on this machine's GPU: one row of results for each step.

Each step runs until its time is stable, and is sampled from then on (TBD, section III-D2). One
more iteration is profiled for its utilisation and memory. The file grows by whole rows, and a step
that has a row is not measured again.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wavecast import suite
from wavecast.analysis.profile import Profile, profile_measured, profile_predicted
from wavecast.campaigns.progress import Progress, refuse_another_gpu, work_off
from wavecast.errors import InvalidInput
from wavecast.footprint.memory import peak_bytes
from wavecast.footprint.workspaces import with_workspaces
from wavecast.frameworks import children
from wavecast.hardware.devices import Device, family
from wavecast.runs.run import ENOUGH, is_enough, settled_from, settles
from wavecast.runs.suite_results import TABLE, SuiteResult, SuiteStep, read_results
from wavecast.steps.request import predict

if TYPE_CHECKING:
    from wavecast.frameworks.pytorch.measurement.data_parallel import Machines


def configurations(
    models: Sequence[str], precisions: Sequence[str], scales: Sequence[float] = (0.25, 0.5, 1.0)
) -> tuple[SuiteStep, ...]:
    """The steps of a campaign: each model in each precision, at several batch sizes.

    Args:
        models: names of models of the suite; empty for all of them.
        precisions: precisions of `suite.PRECISIONS`.
        scales: the batch sizes, as fractions of the model's default batch.

    Raises:
        InvalidInput: a precision is unknown, or a scale is not above 0.
    """
    for precision in precisions:
        if precision not in suite.PRECISIONS:
            choices = ", ".join(suite.PRECISIONS)
            raise InvalidInput(f"unknown precision {precision!r}; known: {choices}")
    if min(scales) <= 0:
        raise InvalidInput(f"a share of the default batch must be above 0, not {min(scales):g}")
    chosen = [suite.benchmark(name) for name in models] or list(suite.benchmarks())
    steps = (
        SuiteStep(model.name, max(model.smallest_batch, round(model.default_batch * scale)), p)
        for model in chosen
        for p in precisions
        for scale in scales
    )
    return tuple(dict.fromkeys(steps))


def run(
    asked: Iterable[SuiteStep],
    path: Path,
    measure: Callable[[SuiteStep], SuiteResult],
    *,
    gpu: str,
    again: Callable[[SuiteResult], SuiteResult] | None = None,
    progress: Callable[[Progress], None] | None = None,
    failed: Callable[[SuiteStep, Exception], None] | None = None,
) -> tuple[SuiteResult, ...]:
    """Measure the steps that a file does not have yet, and return all its rows.

    Args:
        path: the CSV file. It is created if missing, and continued if it is of the same GPU.
        again: samples a step once more whose row has fewer than `ENOUGH` stable iterations, or
            whose run did not settle. The new row replaces the old one.
        failed: called with a step that could not be measured, and the error. The step gets no row,
            so the next run tries it again. If None, the error ends the run.
    """
    steps = tuple(asked)
    with TABLE.growing(path, partial(refuse_another_gpu, path, gpu)) as (rows, add):
        existing = {row.configuration: row for row in rows}
        missing = [
            step for step in steps if step not in existing or (again and _is_short(existing[step]))
        ]
        done = len(steps) - len(missing)

        def work(step: SuiteStep) -> None:
            add(again(existing[step]) if again and step in existing else measure(step))

        work_off(missing, work, already_done=done, report=progress, failed=failed)
    return read_results(path)


def measure_here(
    step: SuiteStep,
    device: Device,
    limit_s: float = 20.0,
    traces: Path | None = None,
    iterations: int = 0,
) -> SuiteResult:
    """Measure a step of the suite on this machine's GPU.

    Args:
        device: the data sheet of this machine's GPU.
        limit_s: stop sampling iterations after this many seconds.
        traces: a folder in which to save the measured traces. None to save none.
        iterations: sample at least this many iterations, however long they take. TBD runs some
            hundreds, and thousands of Faster R-CNN.
    """
    from wavecast.frameworks.pytorch.measurement import sampling

    benchmark = suite.benchmark(step.model)
    try:
        sample = sampling.sample(
            lambda: benchmark.make_step(step.batch, step.precision),
            is_enough,
            limit_s,
            least=iterations,
            samples=round(step.batch * benchmark.units_per_sample),
            unit=benchmark.unit,
        )
    except sampling.OutOfMemory:
        return SuiteResult(step.model, step.batch, step.precision, device.id, "oom", benchmark.unit)
    assert sample.trace is not None
    if traces is not None:
        traces.mkdir(parents=True, exist_ok=True)
        sample.trace.save(traces / f"{step.model}-b{step.batch}-{step.precision}.json.gz")
    profile = profile_measured(step.model, sample.trace, device)
    measurement = sample.trace.measurement
    assert measurement is not None
    row = SuiteResult(
        **asdict(step),
        gpu=device.id,
        status="ok",
        unit=benchmark.unit,
        fp32_utilisation=profile.utilisation["fp32"],
        tensor_utilisation=profile.utilisation["tensor"],
        cpu_utilisation=profile.cpu_utilisation,
        gpu_s=profile.gpu_s,
        host_s=profile.host_s,
        software=f"{sample.trace.framework}, {measurement.software}",
        **_memory(profile),
    )
    return _timed(row, sample.seconds, sample.peak_bytes, sample.reserved_bytes)


def spread_over(steps: Iterable[SuiteStep], gpus: int, nodes: int) -> tuple[SuiteStep, ...]:
    """The steps on 1, 2, 4 ... GPUs of one machine, or on all GPUs of several machines.

    Raises:
        InvalidInput: the machines cannot have equally many GPUs.
    """
    if gpus % nodes:
        raise InvalidInput(
            f"{gpus} GPUs in {nodes} machines are not equally many in each; --gpus counts the GPUs "
            "of all machines together"
        )
    counts = [gpus] if nodes > 1 else sorted({gpus, *(2**n for n in range(gpus.bit_length()))})
    return tuple(
        replace(step, gpus=count, nodes=nodes)
        for step in steps
        for count in counts
        if count <= gpus
    )


def measure_spread(
    step: SuiteStep,
    gpu: str,
    machines: Machines,
    device: str = "cuda",
    limit_s: float = 20.0,
    iterations: int = 0,
) -> SuiteResult | None:
    """Measure a step on several GPUs, each with its own batch, by torchrun.

    Args:
        step: the step, with its number of GPUs.
        gpu: the id of the GPU, or "cpu".
        device: "cuda" or "cpu".
        limit_s: stop sampling iterations after this many seconds.
        iterations: sample at least this many iterations.

    Returns:
        The result; None on all machines but the first.
    """
    from wavecast.frameworks.pytorch.measurement.data_parallel import sample_spread

    machines = replace(machines, gpus=step.gpus, nodes=step.nodes)
    sample = sample_spread(
        *(step.model, step.batch, step.precision, machines),
        device=device,
        limit_s=limit_s,
        least=iterations,
    )
    if sample is None:
        return None
    unit = suite.benchmark(step.model).unit
    row = SuiteResult(**asdict(step), gpu=gpu, status="ok", unit=unit, software=sample.software)
    timed = _timed(row, sample.seconds, sample.peak_bytes, sample.reserved_bytes)
    return timed if device == "cuda" else replace(timed, peak_bytes=None, reserved_bytes=None)


def run_apart(work: Callable[..., SuiteResult], *arguments: Any) -> SuiteResult:
    """Run a function in a new process, and return its result.

    Once a profiler has run in a process, every later launch in that process takes longer; steps
    that wait for the host become a quarter slower (lab/notes). So each step gets a process
    in which no profiler has run yet.
    """
    with children.spawned() as pool:
        return pool.submit(work, *arguments).result()


def time_again(row: SuiteResult, limit_s: float = 20.0, iterations: int = 0) -> SuiteResult:
    """Sample the iterations of a step once more, and keep the profile of its kernels.

    As in TBD, a short profile shows what a step consists of, and a longer sample how fast it
    runs. Kernel times repeat well; iteration times need many samples.
    """
    from wavecast.frameworks.pytorch.measurement import sampling

    make_step = partial(suite.benchmark(row.model).make_step, row.batch, row.precision)
    try:
        sample = sampling.sample(make_step, is_enough, limit_s, least=iterations, record=False)
    except sampling.OutOfMemory:
        return row  # it fitted before, so something else fills the GPU's memory now
    return _timed(row, sample.seconds, sample.peak_bytes, sample.reserved_bytes)


def predict_there(step: SuiteStep, device: Device) -> SuiteResult:
    """Predict a step of the suite on any GPU; this machine needs none."""
    from wavecast.frameworks.pytorch.capture import capture

    benchmark = suite.benchmark(step.model)
    make_step = partial(benchmark.make_step, step.batch, step.precision)
    trace = capture(make_step, capability=family(device))
    profile = profile_predicted(step.model, predict(trace, device))
    tokens = benchmark.tags.tokens_per_sample
    return SuiteResult(
        **asdict(step),
        gpu=device.id,
        status="predicted",
        unit=benchmark.unit,
        seconds=profile.seconds,
        throughput_per_s=step.batch * benchmark.units_per_sample / profile.seconds,
        tokens_per_s=tokens and step.batch * tokens / profile.seconds,
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
    """The memory of each kind, keyed by the column's name."""
    return {f"{kind.replace(' ', '_')}_bytes": n for kind, n in profile.memory_bytes.items()}


def _timed(
    row: SuiteResult, seconds: Sequence[float], peak_bytes: int, reserved_bytes: int
) -> SuiteResult:
    """The row with the times and the memory of a sample of iterations filled in."""
    start = settled_from(seconds)
    median_s = statistics.median(seconds[start:])
    benchmark = suite.benchmark(row.model)
    tokens = benchmark.tags.tokens_per_sample
    return replace(
        row,
        seconds=median_s,
        throughput_per_s=row.gpus * row.batch * benchmark.units_per_sample / median_s,
        tokens_per_s=tokens and row.gpus * row.batch * tokens / median_s,
        gpu_utilisation=min(1.0, row.gpu_s / median_s) if row.gpu_s is not None else None,
        peak_bytes=peak_bytes,
        reserved_bytes=reserved_bytes,
        warm_up=start,
        iterations=len(seconds) - start,
        settled=settles(seconds),
    )


def _is_short(row: SuiteResult) -> bool:
    short = (row.iterations or 0) < ENOUGH or row.settled is False
    return row.status == "ok" and short
