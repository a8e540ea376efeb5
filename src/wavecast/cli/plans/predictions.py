"""Jobs of a file predicted on GPUs: each step is traced once, for all jobs that run it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import wavecast
from wavecast.cli.output.screen import counting_items
from wavecast.cli.steps.sources import step_source
from wavecast.errors import InvalidInput, prefixed
from wavecast.frameworks.step_source import StepSource, units_of
from wavecast.frameworks.targets import Target, resolve
from wavecast.planning.candidates import StepSetting, TrainingQuestion, find_candidates
from wavecast.planning.cost import TrainingPlan
from wavecast.planning.prices import PriceBook, price_book
from wavecast.planning.schedule.fleet_files import read_fleet
from wavecast.planning.schedule.job_files import JobSpec, read_jobs
from wavecast.planning.schedule.job_options import make_jobs
from wavecast.planning.schedule.jobs import Fleet, Job
from wavecast.planning.selection import Candidate


class JobPredictor:
    """Predicts jobs on GPUs."""

    def __init__(self, host: str | None = None) -> None:
        self._host, self._book = host, price_book()
        self._sources: dict[tuple[str, int | None, str | None], tuple[Target, StepSource]] = {}

    def __call__(self, spec: JobSpec, gpus: Sequence[str]) -> Sequence[Candidate]:
        """What a job takes on each GPU, for each of its counts."""
        with prefixed(f"job {spec.name}: "):
            target, source = self._source(spec)
            if spec.plan is None:
                raise InvalidInput("say how long it is, as in iterations = 1000")
            question = TrainingQuestion(
                plan=_of_units(spec.plan, units_of(target), target),
                counts=spec.counts,
                batch=target.batch,
                each=units_of(target),
                is_batch_fixed=spec.batch is not None,
                host=self._host,
                only_priced=False,
                find_largest=False,
            )
            devices = tuple(wavecast.device(name) for name in gpus)
            with counting_items(f"predicting {spec.name}") as progress:
                as_it_is = (StepSetting("", source.on),)
                return find_candidates(devices, question, as_it_is, self._book, progress)

    def _source(self, spec: JobSpec) -> tuple[Target, StepSource]:
        key = spec.target, spec.batch, spec.precision
        if key not in self._sources:
            target = resolve(*key)
            self._sources[key] = target, step_source(target, quiet=True)
        return self._sources[key]


def _of_units(plan: TrainingPlan, each: int, target: Target) -> TrainingPlan:
    """The plan in units of the trace: files count samples of the batch, such as sequences."""
    if each == 1:
        return plan
    return replace(
        plan,
        samples=None if plan.samples is None else plan.samples * each,
        dataset_samples=None if plan.dataset_samples is None else plan.dataset_samples * each,
        global_batch=None if plan.global_batch is None else plan.global_batch * each,
        validation_samples=plan.validation_samples * each,
        sample_tokens=plan.sample_tokens or target.options.seq,
    )


def read_plan_files(
    jobs: Path, cluster: Path | None, host: str | None, book: PriceBook | None = None
) -> tuple[tuple[JobSpec, ...], Fleet, tuple[Job, ...]]:
    """The jobs of a file, the cluster, and the jobs with the ways to run them.

    Raises:
        InvalidInput: a file is wrong; says which, and which key.
    """
    fleet = read_fleet(cluster or jobs, book or price_book())
    specs = read_jobs(jobs)
    with prefixed(f"{jobs}: "):
        return specs, fleet, make_jobs(specs, fleet, JobPredictor(host))
