"""The command line: arguments in, calls of the library, tables or JSON out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import wavecast
from wavecast.devices import Device
from wavecast.errors import InvalidInput, WavecastError
from wavecast.report import record, text
from wavecast.targets import FORMS, Target, resolve
from wavecast.trace import Trace

_PIPE_WIDTH = 200
"""Columns for a pipe: nothing is cut off or wrapped there."""

app = typer.Typer(
    name="wavecast",
    help="How long training takes, on GPUs you do not have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

TargetArgument = Annotated[str, typer.Argument(metavar="TARGET", help=f"What to trace: {FORMS}.")]
BatchOption = Annotated[int | None, typer.Option("--batch", "-b", help="Samples in a batch.")]
PrecisionOption = Annotated[
    str | None, typer.Option("--precision", "-p", help="fp32, tf32, bf16 or fp16.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


class By(StrEnum):
    """What a breakdown is by."""

    OP = "op"
    MODULE = "module"


class PredictorName(StrEnum):
    """Who predicts the ops."""

    ATTAINABLE = "attainable"
    ROOFLINE = "roofline"


def main() -> None:
    """Run the command line; errors of ours are one line and exit code 1."""
    try:
        app()
    except WavecastError as error:
        Console(stderr=True, soft_wrap=True).print(f"error: {error}", markup=False, style="red")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"wavecast {wavecast.__version__}")
        raise typer.Exit


@app.command()
def devices(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="GPUs to show in full.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the GPUs that are known, or every fact of some with its source.

    \b
    wavecast devices
    wavecast devices "NVIDIA H100 80GB HBM3"
    wavecast devices h100-sxm-80gb --json
    """
    found = [wavecast.device(name) for name in names] if names else list(wavecast.devices())
    console = _console()
    if as_json:
        _print_json([record.device(each) for each in found])
    elif names:
        for each in found:
            console.print(text.device_facts(each))
    else:
        console.print(text.devices(found, console.width))


@app.command()
def trace(
    target: TargetArgument,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to save the trace (FILE.json.gz).")
    ] = None,
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", "-g", help="The GPU whose kernels are chosen.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Trace a training step without a GPU: what it does, and a file for later.

    \b
    wavecast trace gpt2 --batch 8 --precision bf16 -o gpt2.json.gz
    wavecast trace train.py:make_step
    """
    if out is not None and not out.name.endswith(".json.gz"):
        raise InvalidInput(f"a trace is saved as FILE.json.gz, not {out}")
    chosen = wavecast.device(gpu) if gpu is not None else None
    wanted = resolve(target, batch, precision)
    found = _trace(wanted, _family(chosen) if chosen is not None else None)
    if out is not None:
        found.save(out)
    if as_json:
        _print_json({"target": wanted.name, **record.trace(found)})
        return
    console = _console()
    console.print(text.trace_summary(wanted.name, found))
    if out is not None:
        console.print(f"saved as {out}", style="dim", highlight=False)


@app.command()
def predict(
    target: TargetArgument,
    gpu: Annotated[
        list[str],
        typer.Option("--gpu", "-g", help='A GPU to predict for; repeat for more, or "all".'),
    ],
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    by: Annotated[
        By | None, typer.Option("--by", help="Break the GPU's time down, too.")
    ] = None,
    predictor: Annotated[
        PredictorName, typer.Option("--predictor", help="Who predicts the ops.")
    ] = PredictorName.ATTAINABLE,
    host_factor: Annotated[
        float,
        typer.Option("--host-factor", help="Your host's time to issue ops, over the reference's."),
    ] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Predict the time of a training step on GPUs you do not have.

    \b
    wavecast predict resnet50 --batch 64 --precision bf16 --gpu all
    wavecast predict train.py:make_step --gpu h100-sxm-80gb --gpu l4
    wavecast predict gpt2.json.gz --gpu a100-sxm-80gb --by module --json
    """
    from wavecast.timeline import REFERENCE_HOST

    if host_factor < 0:
        raise InvalidInput(f"the host factor must not be negative, but is {host_factor}")
    host = REFERENCE_HOST if host_factor == 1 else REFERENCE_HOST.scaled(host_factor)
    chosen = list(wavecast.devices()) if "all" in gpu else [wavecast.device(name) for name in gpu]
    wanted = resolve(target, batch, precision)
    traces = _traces(wanted, chosen)
    answering = _predictor(predictor)
    found = [
        wavecast.predict(traces[_family(each)], each, predictor=answering, host=host)
        for each in chosen
    ]
    if "all" in gpu:
        found.sort(key=lambda prediction: prediction.seconds)
    if as_json:
        summary = record.trace(found[0].trace)
        _print_json(
            {
                "target": wanted.name,
                "trace": summary,
                "predictions": [record.prediction(each) for each in found],
            }
        )
        return
    console = _console()
    console.print(text.predictions(wanted.name, found, console.width))
    for each in found if by is not None else ():
        parts = each.by_op() if by is By.OP else each.by_module()
        console.print(text.shares(f"{each.device.id}, by {by}", parts, each.gpu_s))


def _traces(target: Target, chosen: list[Device]) -> dict[tuple[int, int], Trace]:
    """A trace for each family of GPUs: attention has other kernels on some than on others."""
    families = list(dict.fromkeys(_family(each) for each in chosen))
    first = _trace(target, families[0])
    # `_safe_softmax` is what attention is made of where a GPU has no kernel for it.
    attends = any("attention" in op.name or op.base == "aten._safe_softmax" for op in first.counts)
    if target.trace is not None or not attends:
        return dict.fromkeys(families, first)
    return {families[0]: first} | {each: _trace(target, each) for each in families[1:]}


def _family(gpu: Device) -> tuple[int, int]:
    """The compute capability that stands for all GPUs that choose the same kernels."""
    capability = gpu.compute_capability
    if capability is None:  # AMD and others: flash attention, as on an A100
        return (8, 0)
    known = ((9, 0), (10, 0))
    if capability in known:
        return capability
    steps = ((8, 0), (7, 5), (7, 0), (5, 0), (0, 0))
    return next(step for step in steps if capability >= step)


def _trace(target: Target, capability: tuple[int, int] | None) -> Trace:
    if target.trace is not None or target.make_step is None:
        return target.trace or Trace(())
    with _progress(target.name) as progress:
        return wavecast.trace(
            target.make_step,
            capability=capability,
            samples=target.samples,
            unit=target.unit,
            progress=progress,
        )


def _predictor(name: PredictorName) -> Any:
    from wavecast.predictors.attainable import Attainable
    from wavecast.predictors.roofline import Roofline

    return Roofline() if name is PredictorName.ROOFLINE else Attainable.shipped()


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int], None] | None]:
    """A line that counts while a long model is traced; nothing in a pipe."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with console.status(f"tracing {name}") as status:

        def show(count: int) -> None:
            if count % 100 == 0:
                status.update(f"tracing {name}: {count} ops")

        yield show


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


if __name__ == "__main__":
    main()
