"""Commands that look at GPUs and trace steps."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer
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
from wavecast.cli.screen import counting, print_json, show, width
from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.targets import Target, resolve
from wavecast.frameworks.tracing import FamilyTraces
from wavecast.hardware.device import Device
from wavecast.hardware.families import family
from wavecast.report import record, text
from wavecast.traces.step import Trace


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
    found = gpus(names) if names else list(wavecast.devices())
    if as_json:
        print_json([record.device(each) for each in found])
    elif names:
        for index, each in enumerate(found):
            show("" if index else None, text.device_facts(each))
    else:
        show(text.devices(found, width()))


@app.command()
def trace(
    target: TargetArgument,
    out: OutOption = None,
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
        refuse_unwritable(out)
    chosen = wavecast.device(gpu) if gpu is not None else None
    wanted = resolve(target, batch, precision)
    if chosen is not None and wanted.trace is not None:
        raise InvalidInput(
            f"{target} is a trace: its kernels are chosen; trace the step itself for {chosen.id}"
        )
    found = trace_of(wanted, None if chosen is None else family(chosen))
    if out is not None:
        save(found, out)
    if as_json:
        print_json({"target": wanted.name, **record.trace(found)})
        return
    saved = None if out is None else Text(f"saved as {out}", style="dim")
    show(text.trace_summary(wanted.name, found), saved)


def gpus(names: list[str]) -> list[Device]:
    """The devices of these names, each once."""
    return list({each.id: each for each in map(wavecast.device, names)}.values())


def trace_of(target: Target, capability: tuple[int, int] | None) -> Trace:
    """The trace of a target: the one it is, or a new one."""
    if target.trace is not None or target.make_step is None:
        return target.trace or Trace(())
    # What the user's code prints must not get into our tables and JSON.
    with counting(f"tracing {target.name}") as progress, redirect_stdout(sys.stderr):
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


def family_traces(target: Target) -> FamilyTraces:
    """The traces of a target for the families of the GPUs that will be asked about."""
    return FamilyTraces(lambda family: trace_of(target, family))


def save(found: Trace, out: Path) -> None:
    """Save a trace."""
    found.save(out)
