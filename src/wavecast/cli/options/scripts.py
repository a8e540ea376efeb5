"""The options of a script's run: how many steps, where they end, how long to wait for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from wavecast.cli.options.groups import grouped
from wavecast.frameworks.scripts import PATIENCE_S


@dataclass(frozen=True)
class RunOptions:
    """The options as the user gave them."""

    steps: int | None = None
    until: str | None = None
    patience: float = PATIENCE_S
    offline: bool = False

    def arguments(self) -> dict[str, Any]:
        """The arguments of `wavecast.run_script`."""
        return asdict(self)


NO_RUN_OPTIONS = RunOptions()

_STEPS = typer.Option("--steps", help="Run this many steps; by default until two are equal.")
_UNTIL = typer.Option(
    "--until",
    metavar="FILE:LINE",
    help="A step ends when this line is reached, instead of at an optimizer step.",
)
_PATIENCE = typer.Option(
    "--patience",
    metavar="SECONDS",
    help="End a script that takes longer than this to a step, and say where it was.",
)
_OFFLINE = typer.Option("--offline", help="Refuse the network to the script.")


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a script's run, as its parameter `running`."""
    annotations = {
        "steps": Annotated[int | None, _STEPS],
        "until": Annotated[str | None, _UNTIL],
        "patience": Annotated[float, _PATIENCE],
        "offline": Annotated[bool, _OFFLINE],
    }
    return grouped(command, "running", RunOptions, annotations)
