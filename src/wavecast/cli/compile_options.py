"""The option `--compile`: the step as if its modules were compiled, or beside the written one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from wavecast.cli.screen import print_json, show
from wavecast.errors import InvalidInput
from wavecast.frameworks.targets import Target
from wavecast.report import compiled as report
from wavecast.report import records
from wavecast.steps.prediction import Prediction

CompileOption = Annotated[
    bool,
    typer.Option(
        "--compile",
        help="Trace the step as if the modules that it calls were compiled (torch.compile).",
    ),
]
CompileBothOption = Annotated[
    bool,
    typer.Option(
        "--compile-both",
        help="Also written --compile both: the step as written and compiled, with the gain.",
    ),
]


def as_compiled(target: Target, compiled: bool) -> Target:
    """The target, traced as if its modules were compiled, if `--compile` says so."""
    if not compiled:
        return target
    if target.make_step is None:
        raise InvalidInput(
            f"{target.name} is a trace, which is compiled or not; give --compile when the step is "
            "traced"
        )
    return replace(target, name=f"{target.name}, compiled", compiled=True)


def show_gains(
    target: Target,
    written: Sequence[Prediction],
    compiled: Sequence[Prediction],
    as_json: bool,
) -> None:
    """Print what compiling would gain on each GPU."""
    if as_json:
        print_json(
            {
                "target": target.name,
                "eager": records.predictions(target.name, list(written), None, None),
                "compiled": records.predictions(target.name, list(compiled), None, None),
            }
        )
        return
    show(report.gains(target.name, list(zip(written, compiled, strict=True))))
