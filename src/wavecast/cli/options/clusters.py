"""The option of commands that can run on a Ray cluster."""

from __future__ import annotations

from typing import Annotated

import typer

RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help='Run on a Ray cluster: HOST:PORT of its head, "auto", or "local" to start one here.',
    ),
]
