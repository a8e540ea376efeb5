"""Plans of many jobs: what the page shows of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from wavecast.campaigns.job_predictions import JobPredictor
from wavecast.errors import InvalidInput, UnknownName
from wavecast.files import toml_table
from wavecast.planning.prices import price_book
from wavecast.planning.schedule.fleet_files import fleet_of
from wavecast.planning.schedule.job_files import LAYOUTS, JobSpec, jobs_of
from wavecast.planning.schedule.job_options import make_jobs
from wavecast.planning.schedule.jobs import Aims
from wavecast.planning.schedule.planned import cost_against_time, make_plan
from wavecast.planning.schedule.planner import Effort
from wavecast.report.html.documents import document
from wavecast.report.html.plan_reports import plan_report
from wavecast.server.decisions import report_parts
from wavecast.server.questions import PlanQuestion, library_name, plain_name

_MOST_JOBS = 200
_MOST_KINDS = 20
_MOST_POOLS = 12
_MOST_GPUS = 10_000
_SEARCH = Effort(limit_s=8.0, workers=1)
_CURVE = Effort(limit_s=1.5, workers=1)


@cache
def _predictor() -> JobPredictor:
    """The predictor of this worker, which remembers the steps that it traced."""
    return JobPredictor()


def planned_jobs(question: PlanQuestion) -> dict[str, Any]:
    """The plan of the jobs of a question, as parts of the page and as a page of its own.

    Raises:
        WavecastError: the jobs cannot be read or planned; names the key or the job.
    """
    table = toml_table(question.jobs)
    _refuse_files(table)
    specs = tuple(spec.in_a_week() for spec in jobs_of(table))
    _refuse_many(specs)
    fleet = fleet_of(table, price_book())
    if fleet.gpus > _MOST_GPUS:
        raise InvalidInput(
            f"the cluster has {fleet.gpus:,} GPUs; at most {_MOST_GPUS:,} are planned here, and "
            "any number by the command: wavecast plan"
        )
    jobs = make_jobs(specs, fleet, _predictor())
    aims = Aims(**{question.by: 1.0})
    plan = make_plan(fleet, jobs, aims, robust=question.robust, effort=_SEARCH)
    title = f"{len(jobs)} jobs on {fleet.gpus} GPUs"
    report = plan_report(title, plan, cost_against_time(fleet, jobs, _CURVE))
    return {
        **report_parts("plan", report),
        "title": title,
        "meets_deadlines": plan.meets_deadlines,
        "question": question.model_dump(),
        "html": document(report),
    }


def _refuse_files(table: dict[str, Any]) -> None:
    """Raise InvalidInput where a model, a GPU or links are a file: none is read here."""
    cluster = table.get("cluster")
    pools = cluster.get("pools") if isinstance(cluster, dict) else None
    for where, listed, key, check in (
        ("jobs", table.get("jobs"), "target", library_name),
        ("cluster.pools", pools, "gpu", plain_name),
        ("cluster.pools", pools, "links", plain_name),
    ):
        for number, one in enumerate(listed if isinstance(listed, list) else (), start=1):
            named = one.get(key) if isinstance(one, dict) else None
            if isinstance(named, str):
                try:
                    check(named)
                except (ValueError, UnknownName) as error:
                    raise InvalidInput(f"{where}[{number}].{key}: {error}") from None
    if isinstance(pools, list) and len(pools) > _MOST_POOLS:
        raise InvalidInput(f"cluster.pools has {len(pools)} pools; at most {_MOST_POOLS} here")


def _refuse_many(specs: Sequence[JobSpec]) -> None:
    runs = sum(spec.runs for spec in specs)
    if runs > _MOST_JOBS or len(specs) > _MOST_KINDS:
        raise InvalidInput(
            f"there are {runs} jobs of {len(specs)} kinds; at most {_MOST_JOBS} of {_MOST_KINDS} "
            "are planned here, and any number by the command: wavecast plan"
        )
    for number, spec in enumerate(specs, start=1):
        if max(spec.counts) > 64 or len(spec.counts) > 8:
            raise InvalidInput(f"jobs[{number}].counts: at most 8 counts up to 64 GPUs here")
        if spec.layouts != LAYOUTS[0]:
            raise InvalidInput(
                f'jobs[{number}].layouts: "{LAYOUTS[0]}" only here, since others take long; all by '
                "the command: wavecast plan"
            )
