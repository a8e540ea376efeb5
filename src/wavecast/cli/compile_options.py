"""The option `--compile`: the step as if its modules were compiled, or beside the written one."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from wavecast.errors import InvalidInput
from wavecast.frameworks.targets import Target

CompileOption = Annotated[
    bool,
    typer.Option(
        "--compile",
        help="Trace the step as if the modules that it calls were compiled (torch.compile).",
    ),
]
CompileOrBothOption = Annotated[
    bool | None,
    typer.Option(
        "--compile/--compile-both",
        help="Trace the step as if the modules that it calls were compiled (torch.compile), or, "
        "with --compile both, as written and compiled, to show the gain.",
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
