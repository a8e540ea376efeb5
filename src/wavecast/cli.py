"""The command line: arguments in, calls of the library, tables or JSON out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core
from rich.console import Console, RenderableType
from rich.text import Text

import wavecast
from wavecast.devices import Device
from wavecast.errors import CaptureError, InvalidInput, WavecastError
from wavecast.families import family, family_of
from wavecast.report import record, text
from wavecast.targets import FORMS, Target, resolve
from wavecast.trace import Trace

if TYPE_CHECKING:
    from wavecast import Host, Prediction, Predictor

_PIPE_WIDTH = 10_000
"""Columns for a pipe: nothing is cut off or wrapped there."""


class _Group(typer.core.TyperGroup):
    """The commands; errors of ours are one line and exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except WavecastError as error:
            line = " ".join(str(error).split())
            console = Console(stderr=True, soft_wrap=True, highlight=False)
            console.print(f"error: {line}", markup=False, style="red")
            raise typer.Exit(1) from error
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


app = typer.Typer(
    name="wavecast",
    cls=_Group,
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
    """Run the command line."""
    app()


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
    """List the known GPUs, or every fact of some.

    \b
    wavecast devices
    wavecast devices "NVIDIA H100 80GB HBM3"
    wavecast devices h100-sxm-80gb --json
    """
    found = _gpus(names) if names else list(wavecast.devices())
    if as_json:
        _print_json([record.device(each) for each in found])
    elif names:
        for index, each in enumerate(found):
            _show("" if index else None, text.device_facts(each))
    else:
        _show(text.devices(found, _width()))


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
    """Trace a training step; no GPU needed.

    \b
    wavecast trace gpt2 --batch 8 --precision bf16 -o gpt2.json.gz
    wavecast trace train.py:make_step
    """
    if out is not None:
        _refuse_unwritable(out)
    chosen = wavecast.device(gpu) if gpu is not None else None
    wanted = resolve(target, batch, precision)
    if chosen is not None and wanted.trace is not None:
        raise InvalidInput(
            f"{target} is a trace: its kernels are chosen; trace the step itself for {chosen.id}"
        )
    found = _trace(wanted, None if chosen is None else family(chosen))
    if out is not None:
        _save(found, out)
    if as_json:
        _print_json({"target": wanted.name, **record.trace(found)})
        return
    saved = None if out is None else Text(f"saved as {out}", style="dim")
    _show(text.trace_summary(wanted.name, found), saved)


@app.command()
def predict(
    target: TargetArgument,
    gpu: Annotated[
        list[str],
        typer.Option("--gpu", "-g", help='A GPU to predict for; repeat for more, or "all".'),
    ],
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    by: Annotated[By | None, typer.Option("--by", help="Break the GPU's time down, too.")] = None,
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
    host = _host(host_factor)
    chosen = list(wavecast.devices()) if "all" in gpu else _gpus(gpu)
    wanted = resolve(target, batch, precision)
    found = _predictions(wanted, chosen, _predictor(predictor), host)
    if "all" in gpu:
        found.sort(key=lambda each: (not each.fits_persistent, each.seconds))
    notes = _foreign_kernels(wanted, chosen)
    if as_json:
        _print_json(record.predictions(wanted.name, found, notes))
        return
    _show(text.predictions(wanted.name, found, _width(), notes))
    for each in found if by is not None else ():
        parts = each.by_op() if by is By.OP else each.by_module()
        _show(text.shares(f"{each.device.id}, by {by}", parts, each.gpu_s))


def _predictions(
    target: Target, chosen: list[Device], predictor: Predictor, host: Host
) -> list[Prediction]:
    traces = _traces(target, chosen)
    return [
        wavecast.predict(traces[family(each)], each, predictor=predictor, host=host)
        for each in chosen
    ]


def _gpus(names: list[str]) -> list[Device]:
    """The devices of these names, each once."""
    return list({each.id: each for each in map(wavecast.device, names)}.values())


def _host(factor: float) -> Host:
    from wavecast.timeline import REFERENCE_HOST

    return REFERENCE_HOST if factor == 1 else REFERENCE_HOST.scaled(factor)


def _traces(target: Target, chosen: list[Device]) -> dict[tuple[int, int], Trace]:
    """A trace for each family of GPUs: attention has other kernels on some than on others."""
    families = list(dict.fromkeys(family(each) for each in chosen))
    first = _trace(target, families[0])
    if target.trace is not None or not _attends(first):
        return dict.fromkeys(families, first)
    return {families[0]: first} | {each: _trace(target, each) for each in families[1:]}


def _attends(trace: Trace) -> bool:
    """Whether a step has attention, whose kernels depend on the GPU."""
    # `_safe_softmax` is what attention is made of where a GPU has no kernel for it.
    return any("attention" in op.name or op.base == "aten._safe_softmax" for op in trace.counts)


def _foreign_kernels(target: Target, chosen: list[Device]) -> list[str]:
    """A warning where a saved trace has attention kernels that a GPU would not choose."""
    trace = target.trace
    if trace is None or trace.capability is None or not _attends(trace):
        return []
    others = [each.id for each in chosen if family(each) != family_of(trace.capability)]
    if not others:
        return []
    names = ", ".join(others[:4]) + (f" and {len(others) - 4} more" if len(others) > 4 else "")
    made = ".".join(map(str, trace.capability))
    return [
        f"{target.name} has the attention kernels of compute capability {made}; {names} would "
        "choose others: predict from the step itself"
    ]


def _trace(target: Target, capability: tuple[int, int] | None) -> Trace:
    if target.trace is not None or target.make_step is None:
        return target.trace or Trace(())
    # What the user's code prints must not get into our tables and JSON.
    with _progress(target.name) as progress, redirect_stdout(sys.stderr):
        try:
            return wavecast.trace(
                target.make_step,
                capability=capability,
                samples=target.samples,
                unit=target.unit,
                progress=progress,
            )
        except SystemExit as error:
            raise CaptureError(
                f"the step of {target.name} called sys.exit({error.code!r}); "
                "it should run one training step and return"
            ) from error


def _refuse_unwritable(out: Path) -> None:
    """Before tracing, which may take long."""
    if not out.name.endswith(".json.gz"):
        raise InvalidInput(f"a trace is saved as FILE.json.gz, not {out}")
    if out.is_dir():
        raise InvalidInput(f"cannot write {out}: it is a directory; name a file in it")
    if not out.parent.is_dir():
        raise InvalidInput(f"cannot write {out}: there is no directory {out.parent}; make it first")


def _save(found: Trace, out: Path) -> None:
    try:
        found.save(out)
    except OSError as error:
        raise InvalidInput(f"cannot write {out}: {error.strerror}; choose another place") from error


def _predictor(name: PredictorName) -> Predictor:
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


def _width() -> int:
    console = Console()
    return console.width if console.is_terminal else _PIPE_WIDTH


def _show(*parts: RenderableType | None) -> None:
    """Print to a terminal as wide as it is; to a pipe in full, without blanks at line ends."""
    console = Console(highlight=False)
    shown = [part for part in parts if part is not None]
    if console.is_terminal:
        console.print(*shown, sep="\n")
        return
    console = Console(width=_PIPE_WIDTH, highlight=False)
    with console.capture() as capture:
        console.print(*shown, sep="\n")
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


if __name__ == "__main__":
    main()
