"""A campaign in progress: tasks are given to workers, and each result is stored once.

Only the store counts. Whatever dies, workers or this process, the next start continues with the
tasks that have no result.
"""

from __future__ import annotations

import io
import platform
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from csv import writer
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from wavecast.campaigns import layer_times, run_grids
from wavecast.campaigns.campaign_files import Campaign, make_campaign
from wavecast.campaigns.progress import CampaignRun, CampaignStatus, NodeWork, Progress
from wavecast.campaigns.work import (
    ANYWHERE,
    CPU,
    CampaignTask,
    TaskOutcome,
    layer_row,
    perform_all,
    runs_of,
    suite_row,
    together,
)
from wavecast.files import write_whole
from wavecast.frameworks import children
from wavecast.runs.store.campaign_results import CampaignResults, FailedAttempt, TaskResult
from wavecast.runs.suite_results import write_results

_MOST_LOSSES = 10
"""A task whose worker died so often is left: it may be the one that kills it."""
_POLL_S = 2.0


def run_campaign(
    campaign: Campaign,
    results: CampaignResults,
    workers: Workers,
    *,
    progress: Callable[[Progress], None] = lambda now: None,
    patience_s: float = 60.0,
) -> CampaignRun:
    """Run the tasks of a campaign that have no result yet.

    Args:
        progress: called whenever results were stored.
        patience_s: how long to wait for a node with a GPU that no node has now.
    """
    results.keep_file(campaign.file)
    return _TaskFlow(campaign, results, workers, progress, patience_s).to_the_end()


@dataclass
class _TaskFlow:
    campaign: Campaign
    results: CampaignResults
    workers: Workers
    progress: Callable[[Progress], None]
    patience_s: float
    queues: dict[str, deque[Bundle]] = field(default_factory=dict)
    """What is still to be given away, by the GPU that it needs."""
    away: int = 0
    """How many bundles were given away and are not back."""
    done: set[str] = field(default_factory=set)
    new: int = 0
    lost: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    began_s: float = field(default_factory=time.monotonic)

    def to_the_end(self) -> CampaignRun:
        """Give tasks away until all are done, or no worker can take the others."""
        stored = self.results.done()
        self.done = {task.id for task in self.campaign.tasks if task.id in stored}
        self._queue([task for task in self.campaign.tasks if task.id not in self.done])
        last_s = time.monotonic()
        while self.away or any(self.queues.values()):
            given = self._give_away()
            back = self.workers.finished(_POLL_S) if self.away else []
            if back:
                self._store(back)
            if back or given:
                last_s = time.monotonic()
            elif not self.away:
                if not self._may_come(time.monotonic() - last_s):
                    break
                self.workers.finished(_POLL_S)
        unplaced = {gpu: sum(map(len, queue)) for gpu, queue in self.queues.items() if queue}
        return CampaignRun(
            name=self.campaign.name,
            tasks=len(self.campaign.tasks),
            done=len(self.done),
            new=self.new,
            failed=self.failed,
            unplaced={gpu or "any machine": number for gpu, number in unplaced.items()},
            lost=self.lost,
            seconds=time.monotonic() - self.began_s,
        )

    def _may_come(self, waited_s: float) -> bool:
        """Whether it is worth waiting for a worker that can run the remaining tasks."""
        somebody = any(self.workers.can_run(gpu) for gpu, queue in self.queues.items() if queue)
        return somebody or waited_s < self.patience_s

    def _queue(self, tasks: list[CampaignTask], *, singly: bool = False) -> None:
        bundles = [(task,) for task in tasks] if singly else together(tasks)
        for bundle in bundles:
            self.queues.setdefault(bundle[0].gpu, deque()).append(bundle)

    def _give_away(self) -> bool:
        given = False
        # Measurements first: they wait for GPUs, and predictions run anywhere.
        for gpu in sorted(self.queues, key=lambda gpu: gpu == ANYWHERE):
            while self.queues[gpu] and self.workers.has_room(gpu):
                self.workers.submit(self.queues[gpu].popleft())
                self.away += 1
                given = True
        return given

    def _store(self, back: list[Finished]) -> None:
        """Store what came back in one transaction, and queue what must be tried again."""
        answered: list[TaskResult] = []
        attempts: list[FailedAttempt] = []
        for finished in back:
            self.away -= 1
            if finished.lost:
                attempts += self._lose(finished)
            by_id = {task.id: task for task in finished.bundle}
            for outcome in finished.outcomes:
                task = by_id[outcome.task]
                if outcome.answer is None:
                    attempts.append(self._fail(task, outcome))
                else:
                    answered.append(_result(task, outcome))
        self.new += self.results.add(answered, attempts)
        self.done |= {result.task for result in answered}
        self._report()

    def _fail(self, task: CampaignTask, outcome: TaskOutcome) -> FailedAttempt:
        self.errors[task.id] += 1
        if self.errors[task.id] < self.campaign.attempts:
            self._queue([task], singly=True)
        else:
            self.failed[task.name] = outcome.error
        return FailedAttempt(task.id, outcome.node, outcome.error)

    def _lose(self, finished: Finished) -> list[FailedAttempt]:
        self.lost += 1
        self.losses.update(task.id for task in finished.bundle)
        again = [task for task in finished.bundle if self.losses[task.id] < _MOST_LOSSES]
        for task in set(finished.bundle) - set(again):
            self.failed[task.name] = f"its worker died {_MOST_LOSSES} times: {finished.lost}"
        # Alone from the third loss on, so that a task which kills its worker takes no other along.
        self._queue(again, singly=any(self.losses[task.id] > 2 for task in again))
        return [FailedAttempt(task.id, "", finished.lost) for task in finished.bundle]

    def _report(self) -> None:
        total, done = len(self.campaign.tasks), len(self.done)
        pace_s = (time.monotonic() - self.began_s) / max(1, self.new)
        self.progress(Progress(done, total, pace_s * (total - done)))


def _result(task: CampaignTask, outcome: TaskOutcome) -> TaskResult:
    assert outcome.answer is not None
    place = {"gpu": task.gpu} if task.gpu != ANYWHERE else {}
    return TaskResult(
        task.id,
        task.kind,
        {**task.asked, **place},
        outcome.answer,
        outcome.node,
        outcome.seconds,
        time.time(),
        runs_of(task.asked, task.gpu, outcome.answer) if task.kind == "run" else (),
    )


Bundle = tuple[CampaignTask, ...]


@dataclass(frozen=True)
class Finished:
    """A bundle that came back."""

    bundle: Bundle
    outcomes: tuple[TaskOutcome, ...] = ()
    """What became of each task; nothing if the worker was lost."""
    lost: str = ""
    """Why the worker was lost."""


class Workers(Protocol):
    """Those who perform tasks: this process, processes of this machine, or Ray.

    A bundle of tasks goes to a worker that has its GPU. It comes back with the outcome of each
    task, or as lost if the worker died.
    """

    def can_run(self, gpu: str) -> bool:
        """Whether some worker has this GPU now."""

    def has_room(self, gpu: str) -> bool:
        """Whether a bundle for this GPU can be given away now."""

    def submit(self, bundle: Bundle) -> None:
        """Give a bundle away."""

    def finished(self, timeout_s: float) -> list[Finished]:
        """Wait until a bundle comes back, or the time is up."""

    def close(self) -> None:
        """Stop everything that runs."""


class ThisProcess:
    """Performs predictions and trials on the CPU right here, one after the other."""

    def __init__(self) -> None:
        self._bundle: Bundle | None = None

    def can_run(self, gpu: str) -> bool:
        """Whether it needs no GPU."""
        return gpu in (ANYWHERE, CPU)

    def has_room(self, gpu: str) -> bool:
        """Whether nothing waits."""
        return self.can_run(gpu) and self._bundle is None

    def submit(self, bundle: Bundle) -> None:
        """Keep it until somebody waits for it."""
        self._bundle = bundle

    def finished(self, timeout_s: float) -> list[Finished]:
        """Perform the bundle."""
        bundle, self._bundle = self._bundle, None
        return [] if bundle is None else [Finished(bundle, tuple(perform_all(bundle)))]

    def close(self) -> None:
        """Do nothing: nothing runs."""


class MachineWorkers:
    """Processes of this machine: one for each of its GPUs, and `processes` that predict.

    The CPU is measured by one process at a time, since others would disturb it.
    """

    def __init__(self, gpus: Sequence[str], processes: int) -> None:
        self._slots = [
            *(_Slot(gpu, str(index)) for index, gpu in enumerate(gpus)),
            _Slot(CPU, ""),
            *(_Slot(ANYWHERE, "") for _ in range(processes)),
        ]
        self._running: dict[Future[list[TaskOutcome]], tuple[_Slot, Bundle]] = {}

    def can_run(self, gpu: str) -> bool:
        """Whether this machine has the GPU."""
        return any(slot.gpu == gpu for slot in self._slots)

    def has_room(self, gpu: str) -> bool:
        """Whether a process for this GPU is idle."""
        return self._idle(gpu) is not None

    def submit(self, bundle: Bundle) -> None:
        """Give the bundle to an idle process."""
        slot = self._idle(bundle[0].gpu)
        assert slot is not None
        self._running[slot.submit(bundle)] = slot, bundle

    def finished(self, timeout_s: float) -> list[Finished]:
        """Wait for processes. One that died is replaced by a new one."""
        done = wait(self._running, timeout_s, FIRST_COMPLETED).done
        back = []
        for future in done:
            slot, bundle = self._running.pop(future)
            try:
                back.append(Finished(bundle, tuple(future.result())))
            except BrokenProcessPool as error:
                slot.close()
                back.append(Finished(bundle, lost=str(error)))
        return back

    def close(self) -> None:
        """End all processes after what they do now."""
        for slot in self._slots:
            slot.close()

    def _idle(self, gpu: str) -> _Slot | None:
        busy = {id(slot) for slot, _ in self._running.values()}
        idle = (slot for slot in self._slots if slot.gpu == gpu and id(slot) not in busy)
        return next(idle, None)


class _Slot:
    """A process of its own for one GPU, or for none."""

    def __init__(self, gpu: str, visible: str) -> None:
        self.gpu, self._visible = gpu, visible
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, bundle: Bundle) -> Future[list[TaskOutcome]]:
        if self._pool is None:
            self._pool = children.spawned({"CUDA_VISIBLE_DEVICES": self._visible})
        return self._pool.submit(perform_all, bundle, platform.node())

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


_PACE_OF = 200
"""From how many of the last results the pace is taken."""


def status_of(results: CampaignResults) -> CampaignStatus:
    """How far a campaign is."""
    campaign = kept_campaign(results)
    by_task = {result.task: result for result in results.results()}
    done = [by_task[task.id] for task in campaign.tasks if task.id in by_task]
    tried = results.failed()
    last = {result.task: result.error for result in tried}
    kinds = Counter(task.kind for task in campaign.tasks)
    ready = Counter(result.kind for result in done)
    return CampaignStatus(
        name=results.name,
        tasks=len(campaign.tasks),
        done=len(done),
        kinds={kind: (ready[kind], number) for kind, number in kinds.items()},
        nodes=_nodes(done),
        failed={
            task.name: last[task.id]
            for task in campaign.tasks
            if task.id in last and task.id not in by_task
        },
        attempts_failed=len(tried),
        remaining_s=_remaining_s(done, len(campaign.tasks) - len(done)),
    )


def kept_campaign(results: CampaignResults) -> Campaign:
    """The campaign whose file a store keeps."""
    return make_campaign(results.file(), results.name)


def _nodes(done: Sequence[TaskResult]) -> tuple[NodeWork, ...]:
    by_node: dict[str, list[TaskResult]] = {}
    for result in done:
        by_node.setdefault(result.node, []).append(result)
    return tuple(
        NodeWork(
            node,
            len(own),
            sum(result.seconds for result in own),
            max(result.ended_s for result in own),
        )
        for node, own in sorted(by_node.items())
    )


def _remaining_s(done: Sequence[TaskResult], left: int) -> float | None:
    ends = sorted(result.ended_s for result in done)[-_PACE_OF:]
    if not left or len(ends) < 2:
        return None
    return (ends[-1] - ends[0]) / (len(ends) - 1) * left


def export_results(results: CampaignResults, folder: Path) -> list[Path]:
    """Write the results as files that other commands read, one for each kind and GPU.

    Layers are for `wavecast fit`, steps of the suite for `wavecast suite show`, whole runs for
    `wavecast fit --runs`; predictions are a table.
    """
    folder.mkdir(parents=True, exist_ok=True)
    groups: dict[str, list[TaskResult]] = {}
    for result in results.results():
        groups.setdefault(_file_name(result), []).append(result)
    for name, group in groups.items():
        _write(folder / name, group)
    return [folder / name for name in groups]


def _file_name(result: TaskResult) -> str:
    if result.kind == "predict":
        return "predictions.csv"
    what = result.question["layer"] if result.kind == "layer" else result.kind
    return f"{what}-{result.question['gpu']}.csv"


def _write(path: Path, results: Sequence[TaskResult]) -> None:
    answers = [
        (result.question, result.question.get("gpu", ""), result.answer) for result in results
    ]
    match results[0].kind:
        case "layer":
            rows = sorted((layer_row(*answer) for answer in answers), key=lambda row: row.index)
            layer_times.table_of(results[0].question["layer"]).write(path, rows)
        case "suite":
            write_results(path, [suite_row(result.answer) for result in results])
        case "run":
            run_grids.TABLE.write(path, (run for answer in answers for run in runs_of(*answer)))
        case _:
            write_whole(path, _predictions(results))


_ASKED = ("target", "batch", "precision", "gpu", "parallel", "host")
_ANSWERED = (
    *("seconds", "low_s", "high_s", "gpu_s", "samples_per_s", "unit", "needed_bytes", "fits"),
    *("unpredicted", "reason"),
)


def _predictions(results: Sequence[TaskResult]) -> str:
    text = io.StringIO()
    table = writer(text, lineterminator="\n")
    table.writerow((*_ASKED, *_ANSWERED))
    for result in results:
        asked = (result.question.get(name) for name in _ASKED)
        table.writerow((*asked, *(result.answer.get(name) for name in _ANSWERED)))
    return text.getvalue()
