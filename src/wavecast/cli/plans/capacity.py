"""`wavecast capacity`: how many GPUs to rent or buy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

import wavecast
from wavecast.cli.app import JsonOption, app
from wavecast.cli.options.predictors import HostOption
from wavecast.cli.options.prices import NO_PRICES, PriceOptions, price_options
from wavecast.cli.output.pages import HtmlOption, refuse_bad_places, write_page
from wavecast.cli.output.screen import print_json, show, waiting
from wavecast.cli.plans.plan import ClusterOption, JobsArgument
from wavecast.cli.plans.predictions import read_plan_files
from wavecast.errors import InvalidInput
from wavecast.planning.capacity import CapacitySearch, Forecast, from_trace, weekly
from wavecast.planning.durations import seconds_of
from wavecast.planning.schedule.job_files import JobSpec
from wavecast.planning.schedule.jobs import Job
from wavecast.report import capacities as report
from wavecast.report.html.capacity_reports import capacity_report


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
        found = CapacitySearch(fleet, forecast, promise, steps).plan(purchases)
    write_page(html, lambda: capacity_report(str(jobs), found))
    if as_json:
        print_json(report.CAPACITY.record(report.capacity_record(found)))
    else:
        show(report.capacity_text(str(jobs), found))
    if found.best is None:
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
