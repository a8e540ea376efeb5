"""`wavecast devices` and `calibrate`: the known GPUs, and this machine's own numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

import wavecast
from wavecast.cli.app import JsonOption, app
from wavecast.cli.screen import print_json, show, waiting, width
from wavecast.cli.steps import has_gpu, named_gpus
from wavecast.hardware.device import Device, Fact
from wavecast.report import devices as report
from wavecast.report import records

if TYPE_CHECKING:
    from wavecast.hardware.host_files import HostFile


@app.command()
def devices(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="GPUs to show in full.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the known GPUs, or show all facts of some.

    \b
    wavecast devices
    wavecast devices "NVIDIA H100 80GB HBM3"
    wavecast devices h100-sxm-80gb --json
    """
    gpus = named_gpus(names) if names else list(wavecast.devices())
    if as_json:
        print_json([records.device(gpu) for gpu in gpus])
    elif names:
        for index, gpu in enumerate(gpus):
            show("" if index else None, report.device_facts(gpu))
    else:
        show(report.devices(gpus, width()))


@app.command()
def calibrate(
    seconds: Annotated[float, typer.Option(help="How long each GPU measurement runs.")] = 1.0,
    folder: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder for your device files.")
    ] = None,
    host_path: Annotated[
        Path | None, typer.Option("--host-out", help="The file for the host (FILE.toml).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure this machine's host and GPU, for your predictions.

    For the host, it measures how long each kind of op takes to issue, with or without a GPU.
    Predictions then use your host; --host reference selects the shipped one.

    For the GPU, if there is one, it measures the bandwidth of a copy and the rates of large
    matrix products. They are saved in a device file, next to the nominal numbers.

    Both files are in your configuration folder by default. Close other programs first.
    """
    from wavecast.hardware import host_files

    has_gpu()  # says what to install where torch is missing
    with waiting("calibrating the host"):
        host = _calibrated_host()
    saved_host = host_path or host_files.user_file()
    host_files.save(host, saved_host)
    record: dict[str, object] = {"host": records.host(host) | {"file": str(saved_host)}}
    use = f"with --host {host_path}" if host_path else "unless you say --host reference"
    saved = Text(f"saved as {saved_host}; predictions use it {use}", style="dim")
    parts: list[RenderableType] = [report.host_calibration(host), saved]
    if has_gpu():
        gpu, facts, path = _calibrated_gpu(seconds, folder)
        record |= {"gpu": gpu.id, "file": str(path), **records.facts(facts)}
        parts += ["", report.gpu_calibration(gpu, facts), Text(f"saved as {path}", style="dim")]
    else:
        record["gpu"] = None
        parts.append(Text("this machine has no GPU: only the host was measured", style="dim"))
    if as_json:
        print_json(record)
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
    gpu = wavecast.device(name)
    return gpu, facts, device_files.save(device_files.with_measured(gpu, facts), folder)
