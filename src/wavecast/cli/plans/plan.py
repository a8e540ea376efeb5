"""`wavecast plan`: which GPUs for which job, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import wavecast
from wavecast.campaigns.searches import JobPredictor
from wavecast.cli.app import JsonOption, app
from wavecast.cli.options.predictors import HostOption
from wavecast.cli.options.prices import NO_PRICES, PriceOptions, price_options
from wavecast.cli.output.pages import HtmlOption, refuse_bad_places, write_page, write_view
from wavecast.cli.output.screen import counting_items, print_json, show, waiting, width
from wavecast.cli.steps.sources import step_source
from wavecast.errors import InvalidInput, prefixed
from wavecast.planning.capacity import CapacitySearch, Forecast, from_trace, weekly
from wavecast.planning.prices import PriceBook, price_book
from wavecast.planning.schedule.jobs import (
    Aims,
    Fleet,
    Job,
    JobSpec,
    listed_fleet,
    read_fleet,
    read_jobs,
)
from wavecast.planning.schedule.planned import cost_against_time, make_jobs, make_plan
from wavecast.planning.schedule.planner import Effort
from wavecast.planning.schedule.policies import NAMES, policy_of
from wavecast.planning.schedule.simulator import simulate as run_simulation
from wavecast.reading import seconds_of
from wavecast.report.results import plans as report
from wavecast.report.views import text_of

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
        planned = make_plan(fleet, listed, aims, robust=robust, effort=Effort(limit_s, workers))
    write_page(
        html,
        lambda: report.plan_report(
            str(jobs), planned, cost_against_time(fleet, listed, Effort(5.0, workers))
        ),
    )
    if as_json:
        print_json(planned)
    else:
        show(report.plan_text(str(jobs), planned, width()))
    if not planned.meets_deadlines:
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


# `wavecast capacity`: how many GPUs to rent or buy.


@app.command()
@price_options
def capacity(
    jobs: JobsArgument,
    cluster: ClusterOption = None,
    promise: Annotated[
        float,
        typer.Option("--promise", help="The share of jobs in time, in nine of ten draws."),
    ] = 0.95,
    wait: Annotated[
        str,
        typer.Option(
            "--wait",
            help="A job without a deadline is due so long after its submission, plus its time on "
            "the fastest GPUs.",
        ),
    ] = "1h",
    weeks: Annotated[int, typer.Option("--weeks", min=1, help="The weeks of a drawing.")] = 4,
    draws: Annotated[int, typer.Option("--draws", min=1, help="How often to draw.")] = 20,
    whole_machines: Annotated[
        bool, typer.Option("--whole-machines", help="GPUs are had by the machine only.")
    ] = False,
    host: HostOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
    pricing: PriceOptions = NO_PRICES,
) -> None:
    """Find the cheapest mix of GPUs with which jobs meet their deadlines.

    \b
    wavecast capacity jobs.toml
    wavecast capacity trace.csv --cluster cluster.toml --wait 30min
    wavecast capacity jobs.toml --buy l4=2500 --power-price 0.2 --html capacity.html

    Jobs of a TOML file need runs_per_week; a table of jobs (FILE.csv) is taken as it is. The
    numbers of GPUs of the cluster are the most that can be had. The exit code is 1 if no mix keeps
    the promise.
    """
    refuse_bad_places(html)
    if not 0 < promise <= 1:
        raise InvalidInput(f"--promise is a share above 0 and at most 1, not {promise:g}")
    book = pricing.book(only_rented=True)
    specs, fleet, listed = read_plan_files(jobs, cluster, host, book, of_a_week=False)
    for pool in fleet.pools:
        if pool.usd_per_hour is None:
            raise InvalidInput(
                f"no price of {pool.gpu} is known; give usd_per_hour in the cluster, or --price"
            )
    forecast = _forecast(specs, listed, seconds_of(wait, "--wait"), weeks, draws)
    steps = [pool.gpus_per_node if whole_machines else 1 for pool in fleet.pools]
    gpus = [wavecast.device(p.gpu) for p in fleet.pools] if pricing.buy else []
    purchases = pricing.purchases(gpus)
    with waiting("simulating mixes of GPUs"):
        answer = CapacitySearch(fleet, forecast, promise, steps).plan(purchases)
    view = report.capacity_view(str(jobs), answer)
    write_view(html, view)
    if as_json:
        print_json(report.CAPACITY.record(report.capacity_record(answer)))
    else:
        show(text_of(view, width()))
    if answer.best is None:
        raise typer.Exit(1)


def _forecast(
    specs: Sequence[JobSpec], jobs: Sequence[Job], wait_s: float, weeks: int, draws: int
) -> Forecast:
    due = [
        job
        if job.deadline_s is not None
        else replace(job, deadline_s=job.submit_s + wait_s + job.fastest.seconds.value)
        for job in jobs
    ]
    rates = [spec.runs_per_week for spec in specs]
    if all(rate is None for rate in rates):
        return from_trace(due, draws)
    for spec in specs:
        if spec.runs_per_week is None or spec.runs != 1:
            raise InvalidInput(f"job {spec.name} needs runs_per_week, and no runs")
    return weekly(due, [rate or 0.0 for rate in rates], weeks, draws)


# `wavecast simulate`: what becomes of jobs under several policies.


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
        decides = policy_of(name, fleet, aims, stops=stops, round_s=round_s)
        with waiting(f"simulating {name}"):
            rows.append(run_simulation(fleet, listed, decides, restart_s=restart_s))
    view = report.simulation_view(str(jobs), rows, width(), gantt)
    write_view(html, view)
    if as_json:
        record = {
            "verdict": report.simulation_verdict(rows),
            "policies": rows,
            "outcomes": list(rows[-1].outcomes),
        }
        print_json(report.SIMULATED.record(record))
    else:
        show(text_of(view, width()))


# The jobs and the cluster of a command, read and predicted.


def read_plan_files(
    jobs: Path,
    cluster: str | None,
    host: str | None,
    book: PriceBook | None = None,
    *,
    of_a_week: bool = True,
) -> tuple[tuple[JobSpec, ...], Fleet, tuple[Job, ...]]:
    """The jobs of a file, the cluster, and the jobs with the ways to run them.

    Args:
        jobs: the file of the jobs.
        cluster: the GPUs, as a file or a list. None if they are in the file of the jobs.
        host: the host that issues the ops.
        book: the prices of GPUs that state none.
        of_a_week: whether a job with a rate stands for its runs of a week, and not for one.

    Raises:
        InvalidInput: a file is wrong; says which, and which key. Or a job can run nowhere.
    """
    known = book or price_book()
    specs = read_jobs(jobs)
    if of_a_week:
        specs = tuple(spec.in_a_week() for spec in specs)
    if cluster is not None and "=" in cluster and not Path(cluster).exists():
        fleet = listed_fleet(cluster, known)
    else:
        fleet = read_fleet(jobs if cluster is None else Path(cluster), known)
    predictor = JobPredictor(host, partial(step_source, quiet=True), counting_items)
    with prefixed(f"{jobs}: "):
        return specs, fleet, make_jobs(specs, fleet, predictor)
