"""The jobs and the cluster of a command, read and predicted."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from wavecast.campaigns.job_predictions import JobPredictor
from wavecast.cli.output.screen import counting_items
from wavecast.cli.steps.sources import step_source
from wavecast.errors import prefixed
from wavecast.planning.prices import PriceBook, price_book
from wavecast.planning.schedule.fleet_files import listed_fleet, read_fleet
from wavecast.planning.schedule.job_files import JobSpec, read_jobs
from wavecast.planning.schedule.job_options import make_jobs
from wavecast.planning.schedule.jobs import Fleet, Job


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
