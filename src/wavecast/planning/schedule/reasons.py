"""The reason for each placement, in a sentence."""

from __future__ import annotations

from wavecast.planning.schedule.jobs import HOUR_S, PlannedRun, RunOption


def reason(run: PlannedRun, robust: bool = False) -> str:
    """Why a job runs where it does: against the cheapest and the fastest of its options."""
    job, taken = run.job, run.option
    if len(job.options) == 1:
        return "the only way to run it" + _waiting(run)
    cheapest, fastest = job.cheapest, job.fastest
    ways = len(job.options)
    if taken == cheapest == fastest:
        return f"cheapest and fastest of {ways} ways" + _waiting(run)
    if taken == cheapest:
        return f"cheapest of {ways} ways" + _waiting(run)
    against = _against(run, cheapest, robust)
    word = f"fastest of {ways} ways" if taken == fastest else "in between"
    return f"{word}; {against}" + _waiting(run)


def _against(run: PlannedRun, cheapest: RunOption, robust: bool) -> str:
    """Why not the cheapest."""
    saved = run.option.usd - cheapest.usd
    price = f" ({_usd(saved)} cheaper)" if saved > 0 else ""
    end = run.job.submit_s + cheapest.planned_s(robust)
    if run.job.deadline_s is not None and end > run.job.deadline_s + 1e-6:
        return f"{cheapest.name}{price} would miss the deadline"
    if end > run.end_s:
        later = (end - run.end_s) / HOUR_S
        return f"{cheapest.name}{price} would end {later:.1f} h later"
    return f"{cheapest.name}{price} is left to jobs that gain more from it"


def _waiting(run: PlannedRun) -> str:
    waited = run.start_s - run.job.submit_s
    return f"; waits {waited / HOUR_S:.1f} h for GPUs" if waited > 60 else ""


def _usd(value: float) -> str:
    return f"${value:.2f}"
