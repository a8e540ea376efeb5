"""`wavecast simulate`: what becomes of jobs under several policies."""

from __future__ import annotations

from typing import Annotated

import typer

from wavecast.cli.app import JsonOption, app
from wavecast.cli.options.predictors import HostOption
from wavecast.cli.output.pages import HtmlOption, refuse_bad_places, write_page
from wavecast.cli.output.screen import print_json, show, waiting, width
from wavecast.cli.plans.plan import ClusterOption, JobsArgument, aims_of
from wavecast.cli.plans.predictions import read_plan_files
from wavecast.planning.durations import seconds_of
from wavecast.planning.simulation.policies import NAMES, policy_of
from wavecast.planning.simulation.simulator import simulate as run_simulation
from wavecast.report import simulations as report
from wavecast.report.html.simulation_reports import simulation_report


@app.command()
def simulate(
    jobs: JobsArgument,
    cluster: ClusterOption = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", help=f"One of {', '.join(NAMES)}. May be repeated."),
    ] = None,
    by: Annotated[
        str, typer.Option("--by", metavar="AIM,...", help="What our own policy minimises.")
    ] = "completion",
    stops: Annotated[
        bool, typer.Option("--stops", help="Running jobs may be stopped for others.")
    ] = False,
    restart: Annotated[
        str, typer.Option("--restart", help="What stopping and starting again costs a job.")
    ] = "0s",
    round_time: Annotated[
        str, typer.Option("--round", help="The time between decisions that may stop jobs.")
    ] = "6min",
    gantt: Annotated[
        bool, typer.Option("--gantt", help="Also draw the jobs under the last policy.")
    ] = False,
    host: HostOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate many jobs under several policies: completion, makespan, cost and deadlines.

    \b
    wavecast simulate jobs.toml
    wavecast simulate trace.csv --cluster cluster.toml --policy fifo --policy ours --by makespan
    wavecast simulate jobs.toml --policy shortest --stops --restart 30s --gantt
    """
    refuse_bad_places(html)
    names = policy or ["fifo", "shortest", "deadline", "cheapest", "ours"]
    aims, restart_s = aims_of(by), seconds_of(restart, "--restart")
    round_s = max(1.0, seconds_of(round_time, "--round"))
    _, fleet, listed = read_plan_files(jobs, cluster, host)
    rows = []
    for name in names:
        made = policy_of(name, fleet, aims, stops=stops, round_s=round_s)
        with waiting(f"simulating {name}"):
            rows.append(run_simulation(fleet, listed, made, restart_s=restart_s))
    write_page(html, lambda: simulation_report(str(jobs), rows))
    if as_json:
        found = {
            "verdict": report.simulation_verdict(rows),
            "policies": rows,
            "outcomes": list(rows[-1].outcomes),
        }
        print_json(report.SIMULATED.record(found))
    else:
        show(report.simulation_text(str(jobs), rows, width(), gantt))
