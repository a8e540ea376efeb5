"""Traces of the steps that were timed on our H200 machines, and how often they need host costs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import wavecast
from lab.measured import campaigns
from lab.steps.by_name import MakeStep, Step, blind_steps, suite_steps
from wavecast import Trace
from wavecast.hardware.hosts import COSTS, demands

GPU = "h200-sxm"


def file_name(title: str) -> str:
    """The name of a step in file names."""
    return title.replace(" ", "-")


def blind_trace(title: str) -> Trace | None:
    """The trace of a step of the blind test, made before the measurement. None for other steps."""
    return campaigns.traces("blind").get(file_name(title))


def asked_of(trace: Trace) -> dict[str, int]:
    """How often a step needs each of the host's costs."""
    counts = demands(trace.calls).sum(axis=0).tolist()
    return {name: int(count) for name, count in zip(COSTS, counts, strict=True) if count}


def traced(cache: Path, title: str, *, search: bool) -> Trace:
    """The trace of a step of the blind test or of the suite.

    Args:
        cache: a folder that keeps traces; missing ones are made. Traces of the blind test are in
            its campaign.
        title: the name of the step.
        search: whether cuDNN searched for its algorithms.
    """
    kept = blind_trace(title)
    if kept is not None and not search:
        return kept
    name = f"{'search' if search else 'suite'}-{file_name(title)}.json.gz"
    path = cache / "iterations" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        make = dict((*suite_steps(), *blind_steps()))[title]
        wavecast.trace(partial(_searching, make) if search else make, gpu=GPU).save(path)
    return wavecast.load_trace(path)


def _searching(make: MakeStep) -> Step:
    import torch

    step = make()

    def run() -> None:
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True
        step()
        torch.backends.cudnn.benchmark = before

    return run
