"""`wavecast devices` and `calibrate`: the known GPUs, and this machine's own numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

import wavecast
from wavecast.cli.app import JsonOption, app
from wavecast.cli.options.steps import named_gpus
from wavecast.cli.output.screen import print_json, print_lines, print_text, show, waiting, width
from wavecast.cli.steps.sources import has_gpu, require_gpu, step_source
from wavecast.errors import InvalidInput
from wavecast.hardware.devices import Device, Fact
from wavecast.report import outputs
from wavecast.report.outputs import schema_names, schema_text
from wavecast.report.results import devices as report
from wavecast.report.tables import line
from wavecast.steps.request import origin_of
from wavecast.targets.targets import Trait

if TYPE_CHECKING:
    from wavecast.analysis.evaluation import Learning
    from wavecast.hardware.kept_hosts import HostFile
    from wavecast.traces.step import Trace


_WATCHED_S = 1.0
"""How long the machine is watched before a calibration, to see how busy it is."""


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
        print_json(gpus)
    elif names:
        for index, gpu in enumerate(gpus):
            show("" if index else None, report.device_facts(gpu))
    else:
        show(report.devices(gpus, width()))


NameOption = Annotated[
    str | None, typer.Option("--name", help="The name to keep the host under; this machine's.")
]
ListOption = Annotated[
    bool, typer.Option("--list", help="Measure nothing: list the hosts that are kept.")
]
SecondsOption = Annotated[
    float | None, typer.Option(help="How long each GPU measurement runs; 1 s by default.")
]
FolderOption = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="The folder for your device files, or corrections (--step)."),
]
HostPathOption = Annotated[
    Path | None, typer.Option("--host-out", help="Another file for the host (FILE.toml).")
]
StepsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--step",
        metavar="TRACE",
        help="Measure nothing: learn from a step that was measured on a GPU how far off "
        "predictions for that GPU are. Repeat it for each step.",
    ),
]
OpsOption = Annotated[
    bool,
    typer.Option(
        "--ops",
        help="Measure single layers on this machine's GPU, and learn from them how far off "
        "predictions for that GPU are.",
    ),
]
MinutesOption = Annotated[
    float | None, typer.Option(help="How long --ops measures; 10 minutes by default.")
]
_MINUTES = 10.0
_MOST_MINUTES = 600.0


@app.command()
def calibrate(
    name: NameOption = None,
    listed: ListOption = False,
    seconds: SecondsOption = None,
    folder: FolderOption = None,
    host_path: HostPathOption = None,
    steps: StepsOption = None,
    sweeps: OpsOption = False,
    minutes: MinutesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure this machine's host and GPU, for your predictions.

    For the host, it measures how long each kind of op takes to issue, with or without a GPU, and
    how busy the machine is. Predictions for this machine's GPU then use your host; --host NAME
    or --host mine uses it for others.

    For the GPU, if there is one, it measures the bandwidth of a copy and the rates of large
    matmuls. They are saved in a device file, next to the nominal numbers.

    \b
    wavecast calibrate --name my-workstation
    wavecast predict resnet50 --gpu l4 --host my-workstation
    wavecast calibrate --list

    With --step, measured steps correct the op times that are predicted for their GPU. Ten steps of
    different models say much more than one.

    \b
    wavecast measure resnet50 --batch 64 -o resnet50.json.gz
    wavecast calibrate --step resnet50.json.gz --step gpt2.json.gz

    With --ops, so do single layers of random sizes, which are measured on this machine's GPU for
    ten minutes. Both together are best. They are kept in one file for each GPU, which others can
    use as well (--out).

    \b
    wavecast calibrate --ops
    wavecast calibrate --ops --minutes 3 --step resnet50.json.gz --out shared/

    All files are in your configuration folder by default. Close other programs first.
    """
    if minutes is not None and not (sweeps and 0 < minutes <= _MOST_MINUTES):
        raise InvalidInput(f"--minutes is for --ops, and is above 0 and at most {_MOST_MINUTES:g}")
    if steps or sweeps:
        given = {"name": name, "host_out": host_path, "seconds": seconds, "list": listed or None}
        _refuse_beside("ops measures layers only" if sweeps else "step measures nothing", **given)
        return _learn(steps or [], (minutes or _MINUTES) if sweeps else None, folder, as_json)
    if listed:
        _refuse_beside(
            "list measures nothing", name=name, out=folder, host_out=host_path, seconds=seconds
        )
        return _list_hosts(as_json)
    _calibrate(name, seconds, folder, host_path, as_json)


def _calibrate(
    name: str | None,
    seconds: float | None,
    folder: Path | None,
    host_path: Path | None,
    as_json: bool,
) -> None:
    """Measure the host and the GPU."""
    from wavecast.hardware import kept_hosts

    kept_as = name or kept_hosts.default_name()
    saved_host = kept_hosts.path_of(kept_as) if host_path is None else host_path
    measures_gpu = _measures_gpu(seconds, folder, host_path)
    with waiting("calibrating the host"):
        host = _calibrated_host(kept_as)
    kept_hosts.save(host, saved_host)
    record: dict[str, object] = {"host": kept_hosts.KeptHost(host.name, saved_host, host)}
    parts: list[RenderableType] = [report.host_calibration(host)]
    parts.append(report.saved_host(host, saved_host, elsewhere=host_path is not None))
    if measures_gpu:
        gpu, facts, path = _calibrated_gpu(1.0 if seconds is None else seconds, folder)
        record |= {"gpu": gpu.id, "file": str(path), "measured": facts}
        parts += ["", report.gpu_calibration(gpu, facts), line(f"saved as {path}", "dim")]
    else:
        parts.append(line("this machine has no GPU: only the host was measured", "dim"))
    if as_json:
        print_json(outputs.CALIBRATION.record(record))
    else:
        show(*parts)


def _list_hosts(as_json: bool) -> None:
    from wavecast.hardware.kept_hosts import kept_hosts

    hosts = kept_hosts()
    if as_json:
        print_json(hosts)
    else:
        show(report.kept_hosts(hosts, width()))


def _refuse_beside(given: str, **options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise InvalidInput(f"--{given}; leave out --{name.replace('_', '-')}")


def _learn(files: Sequence[str], minutes: float | None, folder: Path | None, as_json: bool) -> None:
    """Learn from steps, from layers that are measured for some minutes, or from both."""
    from wavecast.analysis.evaluation import learn_from
    from wavecast.predictors import corrected

    steps = _measured_steps(files)
    gpu = origin_of(next(iter(steps.values())), None).id if steps else None
    layers = None if minutes is None else _swept(minutes, gpu)
    learning = layers
    path = (folder or corrected.folder()) / f"{gpu or (layers and layers.gpu)}.toml"
    if steps:
        before = corrected.read(path).swept if path.exists() else ()
        swept = before if layers is None else layers.corrections.swept
        with waiting(f"comparing {len(files)} measured steps"):
            learning = learn_from(steps, swept=swept)
    assert learning is not None
    kept = corrected.keep(learning.corrections, path)
    if as_json:
        record = {
            "gpu": learning.gpu,
            "steps": learning.steps,
            "ops": len(kept.swept),
            "file": str(path),
        }
        print_json(outputs.LEARNING.record(record))
    else:
        show(report.learned(learning, kept, path, elsewhere=folder is not None))


def _measured_steps(files: Sequence[str]) -> dict[str, Trace]:
    from wavecast.targets.targets import resolve

    targets = [resolve(file) for file in files]
    for target in targets:
        if Trait.MEASURED not in target.traits:
            raise InvalidInput(
                f"{target.name} was not measured, so nothing can be learned from it; give traces "
                "from wavecast measure, or torch.profiler files"
            )
    return {target.name: step_source(target, quiet=True).on() for target in targets}


def _swept(minutes: float, of_steps: str | None) -> Learning:
    """What layers teach that are measured on this machine's GPU, which the steps must be of."""
    require_gpu()
    from wavecast.analysis.evaluation import learn_from_layers
    from wavecast.frameworks.pytorch.measurement import calibration
    from wavecast.frameworks.pytorch.measurement.sweep import sweep

    gpu = wavecast.device(calibration.gpu_name())  # what is wrong is said before measuring
    if of_steps not in (None, gpu.id):
        raise InvalidInput(
            f"the steps were measured on {of_steps}, and this machine's GPU is {gpu.id}; what they "
            "teach is kept by GPU, so give steps of this one"
        )
    with waiting(f"measuring layers for {minutes:g} minutes"):
        traces = sweep(60.0 * minutes)
    with waiting("comparing the layers"):
        return learn_from_layers(traces)


def _measures_gpu(seconds: float | None, folder: Path | None, host_path: Path | None) -> bool:
    """Whether there is a GPU to calibrate; raises InvalidInput for options that need another."""
    if host_path is not None and host_path.suffix != ".toml":
        raise InvalidInput(f"a host is saved as FILE.toml, not {host_path}")
    if has_gpu():  # says what to install where torch is missing
        return True
    if seconds is not None or folder is not None:
        raise InvalidInput(
            "this machine has no GPU, so only its host can be measured; leave --seconds and --out "
            "out (--host-out names the file of the host)"
        )
    return False


def _calibrated_host(name: str) -> HostFile:
    from wavecast.frameworks.pytorch.measurement import calibration, whole_runs
    from wavecast.hardware.kept_hosts import MeasuredMachine, calibrated, machine_name

    direct: dict[str, float] = {}
    gpu = ""
    before = whole_runs.share_in(_WATCHED_S)
    with whole_runs.watched() as load:
        times = {"cpu": calibration.time_host()}
        if has_gpu():
            times["cuda"], direct = calibration.time_host("cuda"), calibration.time_gpu()
            gpu = calibration.gpu_name()
    return calibrated(
        name,
        times,
        direct,
        software=calibration.versions("cuda" if direct else "cpu"),
        source=f"wavecast calibrate, {f'with {gpu}' if gpu else 'without a GPU'}",
        machine=MeasuredMachine(
            processor=calibration.processor(),
            machine=machine_name(),
            gpu=gpu,
            busy_before=before,
            busy_during=load.share,
        ),
    )


def _calibrated_gpu(seconds: float, folder: Path | None) -> tuple[Device, dict[str, Fact], Path]:
    from wavecast.frameworks.pytorch.measurement.calibration import calibrate as calibrate_gpu
    from wavecast.hardware import devices as device_files

    with waiting("calibrating the GPU"):
        name, facts = calibrate_gpu(seconds)
    gpu = wavecast.device(name)
    return gpu, facts, device_files.save(device_files.with_measured(gpu, facts), folder)


# `wavecast clusters`: the known machines with several GPUs, and the networks between them.


@app.command()
def clusters(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Clusters to show in full.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the known clusters, or show all facts of some.

    \b
    wavecast clusters
    wavecast clusters "DGX H100"
    wavecast clusters aws-p5 --json
    """
    from wavecast.hardware import clusters as known

    if names:
        shown = list({cluster.id: cluster for cluster in map(known.cluster, names)}.values())
    else:
        shown = list(known.clusters())
    if as_json:
        print_json(shown)
    elif names:
        for index, cluster in enumerate(shown):
            show("" if index else None, report.cluster_facts(cluster))
    else:
        show(report.clusters(shown, width()))


# `wavecast doctor`: is everything here that Wavecast needs?


@app.command()
def doctor(
    as_json: JsonOption = False,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Compute figures that are known from elsewhere, and compare."),
    ] = False,
) -> None:
    """Look whether this machine has what Wavecast needs, and say what to do.

    It looks at Python, torch, GPUs, optional packages, prices, calibrated hosts, the run store and
    libraries, and traces a small step. With --deep it computes ten figures that are known from
    elsewhere: FLOPs, published equations, a collective, parameters and the speed of ResNet-50. The
    exit code is 1 if something is broken.

    \b
    wavecast doctor
    wavecast doctor --deep
    wavecast doctor --json
    """
    from wavecast.doctor import examine, is_broken

    with waiting("looking around"):
        findings = examine(wavecast.__version__, deep=deep)
    if as_json:
        works = not is_broken(findings)
        print_json(report.EXAMINATION.record({"works": works, "findings": findings}))
    else:
        show(report.examination(findings, width()))
    if is_broken(findings):
        raise typer.Exit(1)


# `wavecast schema`: the JSON schemas of what commands print with --json.


@app.command()
def schema(
    name: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="A command, such as predict or suite list."),
    ] = None,
) -> None:
    """Print the JSON schema of what a command prints with --json.

    Without a name, it lists the schemas. The key "schema" of the output names its schema and the
    version.

    \b
    wavecast schema
    wavecast schema predict
    wavecast schema suite list
    """
    if name:
        print_lines(schema_text(" ".join(name)))
        return
    for each in schema_names():
        print_text(each)
