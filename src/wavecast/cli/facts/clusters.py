"""`wavecast clusters`: the known machines with several GPUs, and the networks between them."""

from __future__ import annotations

from typing import Annotated

import typer

from wavecast.cli.app import JsonOption, app
from wavecast.cli.output.screen import print_json, show, width
from wavecast.report import clusters as report


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
        some = list({one.id: one for one in map(known.cluster, names)}.values())
    else:
        some = list(known.clusters())
    if as_json:
        print_json(some)
    elif names:
        for index, one in enumerate(some):
            show("" if index else None, report.cluster_facts(one))
    else:
        show(report.clusters(some, width()))
