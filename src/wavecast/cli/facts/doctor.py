"""`wavecast doctor`: is everything here that Wavecast needs?"""

from __future__ import annotations

from typing import Annotated

import typer

import wavecast
from wavecast.cli.app import JsonOption, app
from wavecast.cli.output.screen import print_json, show, waiting, width
from wavecast.report import doctor as report


@app.command()
def doctor(
    as_json: JsonOption = False,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Compute figures that are known from elsewhere, and compare."),
    ] = False,
) -> None:
    """Look whether this machine has what Wavecast needs, and say what to do.

    It looks at Python, torch, GPUs, optional packages, prices, calibrated hosts, the run store and
    libraries, and traces a small step. With --deep it computes ten figures that are known from
    elsewhere: FLOPs, published equations, a collective, parameters and the speed of ResNet-50. The
    exit code is 1 if something is broken.

    \b
    wavecast doctor
    wavecast doctor --deep
    wavecast doctor --json
    """
    from wavecast.doctor import examine, is_broken

    with waiting("looking around"):
        findings = examine(wavecast.__version__, deep=deep)
    if as_json:
        works = not is_broken(findings)
        print_json(report.EXAMINATION.record({"works": works, "findings": findings}))
    else:
        show(report.examination(findings, width()))
    if is_broken(findings):
        raise typer.Exit(1)
