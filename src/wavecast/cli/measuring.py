"""Commands for a machine with a GPU, and for profiler files that came from one."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

import wavecast
from wavecast.cli.app import (
    BatchOption,
    JsonOption,
    OutOption,
    PrecisionOption,
    TargetArgument,
    app,
    refuse_unwritable,
)
from wavecast.cli.screen import print_json, show, waiting
from wavecast.cli.tracing import save
from wavecast.errors import InvalidInput, MissingExtra
from wavecast.frameworks.targets import Target, resolve
from wavecast.hardware.device import Device, Fact
from wavecast.report import measured, record
from wavecast.traces.counters import key_of, with_counters
from wavecast.traces.step import Trace

if TYPE_CHECKING:
    from wavecast.hardware.host_files import HostFile


@app.command()
def measure(
    target: TargetArgument,
    out: OutOption = None,
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    warm_up: Annotated[int, typer.Option(help="Iterations to run first and forget.")] = 3,
    repeats: Annotated[int, typer.Option(help="Iterations of which times are the median.")] = 10,
    counters: Annotated[
        bool, typer.Option("--counters", help="Count FLOPs and bytes of long kernels with ncu.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure a training step on this machine's GPU, kernel by kernel.

    \b
    wavecast measure resnet50 --batch 64 -o resnet50.json.gz
    wavecast predict resnet50.json.gz --gpu a100-sxm-80gb
    """
    if out is not None:
        refuse_unwritable(out)
    wanted = resolve(target, batch, precision)
    found = measured_step(wanted, warm_up=warm_up, repeats=repeats)
    if counters:
        with waiting("counting with ncu"):
            found = _counted(found, target, batch, precision)
    _finish(wanted.name, found, out, as_json)


@app.command(name="import")
def import_(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="What torch.profiler wrote.")],
    out: OutOption = None,
    step: Annotated[
        int | None, typer.Option("--step", help="The ProfilerStep to take; a typical one if not.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", "-b", help="Samples that one step takes.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Read a torch.profiler file (.json or .json.gz) as a measured trace.

    \b
    wavecast import rank0.pt.trace.json.gz -o rank0.json.gz
    wavecast predict rank0.json.gz --gpu h100-sxm-80gb
    """
    if out is not None:
        refuse_unwritable(out)
    if batch is not None and batch < 1:
        raise InvalidInput(f"the batch must be at least 1, not {batch}")
    with waiting(f"reading {path}"):
        found = wavecast.read_kineto(path, step=step, samples=batch)
    _finish(path.name, found, out, as_json)


@app.command()
def calibrate(
    seconds: Annotated[float, typer.Option(help="How long each measurement of a GPU runs.")] = 1.0,
    folder: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder of your device files.")
    ] = None,
    host_file: Annotated[
        Path | None, typer.Option("--host-out", help="Where to keep the host (FILE.toml).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure this machine, and keep it as facts of your own.

    Of the host: what it costs to issue work, in seconds and with or without a GPU. Predictions then
    take your host; --host reference takes the shipped one. Of a GPU, where there is one: the
    bandwidth of a copy and the rates of large matrix products, written into a device file apart
    from the nominal numbers. Both are in your configuration folder. Nothing else should run.
    """

    has_gpu()  # says what to install where torch is missing
    with waiting("calibrating the host"):
        host = _calibrated_host()
    host_path = host_file or host_files.user_file()
    host_files.save(host, host_path)
    found: dict[str, object] = {"host": record.host(host) | {"file": str(host_path)}}
    use = f"with --host {host_file}" if host_file else "unless you say --host reference"
    saved = Text(f"saved as {host_path}; predictions take it {use}", style="dim")
    parts: list[RenderableType] = [measured.host(host), saved]
    if has_gpu():
        gpu, facts, path = _calibrated_gpu(seconds, folder)
        found |= {"gpu": gpu.id, "file": str(path), **record.facts(facts)}
        parts += ["", measured.calibration(gpu, facts), Text(f"saved as {path}", style="dim")]
    else:
        found["gpu"] = None
        parts.append(Text("no GPU here: its rates were not measured", style="dim"))
    if as_json:
        print_json(found)
    else:
        show(*parts)


def _calibrated_host() -> HostFile:
    from wavecast.frameworks.pytorch.measurement import host_benchmark
    from wavecast.hardware.calibration import calibrated

    times = {"cpu": host_benchmark.time_host()}
    direct: dict[str, float] = {}
    with_gpu = "without a GPU"
    if has_gpu():
        times["cuda"], direct = host_benchmark.time_host("cuda"), host_benchmark.time_gpu()
        with_gpu = f"with {host_benchmark.gpu_name()}"
    return calibrated(
        host_benchmark.processor(),
        times,
        direct,
        software=host_benchmark.versions("cuda" if direct else "cpu"),
        source=f"wavecast calibrate, {with_gpu}",
    )


def _calibrated_gpu(seconds: float, folder: Path | None) -> tuple[Device, dict[str, Fact], Path]:
    from wavecast.frameworks.pytorch.measurement.calibration import calibrate as calibrate_gpu
    from wavecast.hardware import device_files

    with waiting("calibrating the GPU"):
        name, facts = calibrate_gpu(seconds)
    known = wavecast.device(name)
    return known, facts, device_files.save(device_files.with_measured(known, facts), folder)


@app.command(hidden=True)
def iterate(
    target: TargetArgument,
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    warm_up: int = 3,
) -> None:
    """Run one iteration between cudaProfilerStart and Stop: what `measure --counters` looks at."""
    wanted = resolve(target, batch, precision)
    if wanted.make_step is None:
        raise InvalidInput(f"{target} is a trace; it cannot run")
    require_gpu()
    from wavecast.frameworks.pytorch.measurement.iteration import run_profiled

    run_profiled(wanted.make_step(), warm_up)


def measured_step(wanted: Target, **protocol: int) -> Trace:
    """The step of a target, measured on this machine's GPU."""
    if wanted.make_step is None:
        raise InvalidInput(f"{wanted.name} is a trace; measure the step itself")
    require_gpu()
    with waiting(f"measuring {wanted.name}"), redirect_stdout(sys.stderr):
        return wavecast.measure(
            wanted.make_step(), samples=wanted.samples, unit=wanted.unit, **protocol
        )


def require_gpu() -> None:
    """Refuse where there is no GPU, before a model is built for it."""
    _measurement().require_gpu()


def has_gpu() -> bool:
    """Whether there is a GPU to measure."""
    return bool(_measurement().has_gpu())


def _measurement() -> Any:
    try:
        from wavecast.frameworks.pytorch.measurement import iteration
    except ModuleNotFoundError as error:
        raise MissingExtra("measuring needs torch: pip install 'wavecast[torch]'") from error
    return iteration


def _counted(found: Trace, target: str, batch: int | None, precision: str | None) -> Trace:
    """The trace with hardware counters on its longest kernels, counted once per GPU."""
    from wavecast.frameworks import ncu
    from wavecast.predictors.wave import kernels_that_matter

    gpu = found.measurement.gpu if found.measurement else ""
    path = ncu.cache_path(gpu)
    known = ncu.load(path)
    long = [kernel for call in kernels_that_matter(found) for kernel in call.kernels]
    missing = [kernel for kernel in long if key_of(kernel) not in known]
    if missing:
        command = [sys.executable, "-m", "wavecast", "iterate", target]
        command += [] if batch is None else ["--batch", str(batch)]
        command += [] if precision is None else ["--precision", precision]
        known |= ncu.count(missing, command)
        ncu.save(known, path)
    return with_counters(found, known)


def _finish(name: str, found: Trace, out: Path | None, as_json: bool) -> None:
    if out is not None:
        save(found, out)
    if as_json:
        print_json({"target": name, **record.trace(found)})
        return
    saved = None if out is None else Text(f"saved as {out}", style="dim")
    show(measured.summary(name, found), saved)
