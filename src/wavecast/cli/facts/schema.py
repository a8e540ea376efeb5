"""`wavecast schema`: the JSON schemas of what commands print with --json."""

from __future__ import annotations

from typing import Annotated

import typer

from wavecast.cli.app import app
from wavecast.cli.output.screen import print_lines, print_text
from wavecast.report.schemas import schema_names, schema_text


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
