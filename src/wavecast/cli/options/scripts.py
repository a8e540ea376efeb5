"""The options of a script's run: how many steps, where they end, how long to wait for one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from wavecast.cli.options.groups import grouped
from wavecast.frameworks.script_targets import ScriptOptions

_PANEL = "Training scripts"
_STEPS = typer.Option(
    "--steps", rich_help_panel=_PANEL, help="Run this many steps; by default until two are equal."
)
_UNTIL = typer.Option(
    "--until",
    metavar="FILE:LINE",
    rich_help_panel=_PANEL,
    help="A step ends when this line is reached, instead of at an optimizer step.",
)
_PATIENCE = typer.Option(
    "--patience",
    metavar="SECONDS",
    rich_help_panel=_PANEL,
    help="End a script that takes longer than this to a step, and say where it was.",
)
_OFFLINE = typer.Option(
    "--offline", rich_help_panel=_PANEL, help="Refuse the network to the script."
)
_BATCH_OPTION = typer.Option(
    "--batch-option",
    metavar="NAME",
    rich_help_panel=_PANEL,
    help="The script's own option for its batch, if there are several or none is found.",
)
_OPTIONS: dict[str, Any] = {
    "steps": Annotated[int | None, _STEPS],
    "until": Annotated[str | None, _UNTIL],
    "patience": Annotated[float, _PATIENCE],
    "offline": Annotated[bool, _OFFLINE],
    "batch_option": Annotated[str | None, _BATCH_OPTION],
}


def script_options(command: Any) -> Any:
    """Give a command the options of a script's run, as its parameter `running`."""
    return grouped(command, "running", ScriptOptions, _OPTIONS)
