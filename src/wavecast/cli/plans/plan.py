"""`wavecast plan`: which GPUs for which job, and when."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from wavecast.cli.app import JsonOption, app
from wavecast.cli.options.predictors import HostOption
from wavecast.cli.output.pages import HtmlOption, refuse_bad_places, write_page
from wavecast.cli.output.screen import print_json, show, waiting, width
from wavecast.cli.plans.predictions import read_plan_files
from wavecast.errors import InvalidInput
from wavecast.planning.durations import seconds_of
from wavecast.planning.schedule.jobs import Aims
from wavecast.planning.schedule.planned import cost_against_time, make_plan
from wavecast.planning.schedule.planner import Effort
from wavecast.report import plans as report
from wavecast.report.html.plan_reports import plan_report

JobsArgument = Annotated[
    Path, typer.Argument(metavar="JOBS", help="The jobs (FILE.toml, or a table FILE.csv).")
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="FILE|GPU=COUNT,...",
        help="The GPUs: FILE.toml, FILE.csv, or a list such as l4=16,a10=8; by default in JOBS.",
    ),
]


@app.command()
def plan(
    jobs: JobsArgument,
    cluster: ClusterOption = None,
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="AIM,...",
            help="What to minimise: cost, makespan, completion (the mean), tardiness (weighted by "
            "priority), or a sum such as cost,makespan=5, in which an hour is worth 5 USD.",
        ),
    ] = "cost",
    robust: Annotated[
        bool, typer.Option("--robust", help="Plan with the high ends of the ranges of times.")
    ] = False,
    time_limit: Annotated[
        str, typer.Option("--time-limit", help="How long to search; 0 for simple rules only.")
    ] = "30s",
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Threads of the search.")
    ] = None,
    host: HostOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Plan many jobs: the GPUs of each, how many, and when it starts.

    \b
    wavecast plan jobs.toml
    wavecast plan jobs.toml --cluster cluster.toml --by makespan --time-limit 60s
    wavecast plan jobs.toml --by cost,tardiness=20 --robust --html plan.html

    Deadlines must be met unless tardiness is minimised. The exit code is 1 if some are missed; the
    plan is then the one with the least delay, and says what would meet them.
    """
    refuse_bad_places(html)
    aims, limit_s = aims_of(by), seconds_of(time_limit, "--time-limit")
    _, fleet, listed = read_plan_files(jobs, cluster, host)
    with waiting(f"planning {len(listed)} jobs"):
        made = make_plan(fleet, listed, aims, robust=robust, effort=Effort(limit_s, workers))
    write_page(
        html,
        lambda: plan_report(
            str(jobs), made, cost_against_time(fleet, listed, Effort(5.0, workers))
        ),
    )
    if as_json:
        print_json(made)
    else:
        show(report.plan_text(str(jobs), made, width()))
    if not made.meets_deadlines:
        raise typer.Exit(1)


def aims_of(text: str) -> Aims:
    """The aims that a text names: `cost`, or `cost,makespan=5`."""
    known = [field.name for field in fields(Aims)]
    weights: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, weight = part.partition("=")
        try:
            value = float(weight or 1)
        except ValueError:
            value = 0.0
        if name not in known or not 0 < value < 1e9:
            raise InvalidInput(
                f"--by takes {', '.join(known)}, or a sum such as cost,makespan=5; not {part!r}"
            )
        weights[name] = value
    if not weights:
        raise InvalidInput(f"--by names nothing; it takes {', '.join(known)}")
    return Aims(**weights)
