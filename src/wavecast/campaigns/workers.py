"""Workers: who performs the tasks of a campaign. This process, processes of this machine, or Ray.

A bundle of tasks is given to a worker that has the GPU it must run on. It comes back with the
outcome of each task, or as lost if the worker died.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Protocol

from wavecast.campaigns.tasks import ANYWHERE, CPU, CampaignTask
from wavecast.campaigns.work import TaskOutcome, perform_all

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
    """Those who perform tasks."""

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
    """Processes of this machine: one for each of its GPUs, and some without.

    CPUs are measured by one process at a time, since others would disturb it.

    Args:
        gpus: the id of each GPU of this machine.
        processes: how many processes predict.
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
        found = []
        for future in done:
            slot, bundle = self._running.pop(future)
            try:
                found.append(Finished(bundle, tuple(future.result())))
            except BrokenProcessPool as error:
                slot.close()
                found.append(Finished(bundle, lost=str(error)))
        return found

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
        """Perform a bundle in the process, which starts with the first."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                1, get_context("spawn"), initializer=_see_only, initargs=(self._visible,)
            )
        return self._pool.submit(perform_all, bundle, platform.node())

    def close(self) -> None:
        """End the process."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _see_only(gpu: str) -> None:
    """Let this process see one GPU, or none."""
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu
