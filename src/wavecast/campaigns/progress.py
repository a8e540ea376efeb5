"""How far campaigns are; and the loop and checks of those of one GPU into one file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from wavecast.errors import InvalidInput

Task = TypeVar("Task")


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of a campaign is done, and how long the rest will take at the present pace."""

    done: int
    total: int
    remaining_s: float


class MeasuredRow(Protocol):
    """A row of a results file. It names the GPU it was measured on."""

    @property
    def gpu(self) -> str:
        """The id of the GPU."""


def work_off(
    tasks: Sequence[Task],
    work: Callable[[Task], object],
    *,
    already_done: int,
    report: Callable[[Progress], None] | None = None,
    limit_s: float | None = None,
    failed: Callable[[Task, Exception], None] | None = None,
) -> None:
    """Do tasks one by one in this process, and report the progress after each.

    Args:
        tasks: what is still to do.
        work: does one of them, and keeps what comes of it.
        already_done: how many tasks an earlier run has done. They count as done in the reports.
        report: called with the progress after each task.
        limit_s: start no task after this many seconds.
        failed: called with a task that could not be done, and the error; the next run tries it
            again. If None, the error ends the work.
    """
    began = time.monotonic()
    for number, task in enumerate(tasks, start=1):
        if limit_s is not None and time.monotonic() - began >= limit_s:
            return
        try:
            work(task)
        except Exception as error:  # one failing task must not cost hours of others
            if failed is None:
                raise
            failed(task, error)
        if report is not None:
            seconds_per_task = (time.monotonic() - began) / number
            left = len(tasks) - number
            report(
                Progress(already_done + number, already_done + len(tasks), seconds_per_task * left)
            )


def refuse_another_gpu(path: Path, gpu: str, rows: Iterable[MeasuredRow]) -> None:
    """Raise InvalidInput if a file has rows of a GPU other than the one that measures now."""
    for row in rows:
        if row.gpu != gpu:
            raise InvalidInput(
                f"{path} has results of {row.gpu}, and this GPU is {gpu}; choose another file"
            )


@dataclass(frozen=True)
class NodeWork:
    """What one machine, or one node of a cluster, has done for a campaign."""

    node: str
    done: int
    busy_s: float
    """The time of its tasks together."""
    last_s: float
    """When its last result came, in seconds since 1970."""


@dataclass(frozen=True)
class CampaignStatus:
    """How far a campaign is."""

    name: str
    tasks: int
    done: int
    kinds: Mapping[str, tuple[int, int]]
    """How many tasks of each kind are done, and how many there are."""
    nodes: tuple[NodeWork, ...]
    failed: Mapping[str, str]
    """Tasks without a result whose last attempt failed, with the error."""
    attempts_failed: int
    """How many attempts failed, those included that were made good."""
    remaining_s: float | None
    """How long the rest takes at the pace of the last results. None when unknown or done."""


@dataclass(frozen=True)
class CampaignRun:
    """What one start of a campaign did."""

    name: str
    tasks: int
    done: int
    """How many tasks have a result now."""
    new: int
    """How many of them this start has added."""
    failed: Mapping[str, str]
    """The tasks that were left after several attempts, with the last error."""
    unplaced: Mapping[str, int]
    """How many tasks no worker could run, by the GPU that they need."""
    lost: int
    """How often a worker died with tasks."""
    seconds: float
