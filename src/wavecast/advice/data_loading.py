"""Whether a script's data loader keeps up with its step, and how many workers would."""

from __future__ import annotations

import math
from dataclasses import dataclass

from wavecast.showing import Shown
from wavecast.traces.script import Loading


@dataclass(frozen=True)
class LoaderAdvice(Shown):
    """The rate of a script's data loader beside the rate of its step."""

    step_s: float
    """The time of a step for which the data are ready."""
    data_s: float
    """The data of a step are ready as often as this."""
    cpu_s: float
    """The CPU time of the data of a step."""
    workers: int
    """The worker processes that the script asks for; 0 for the training process itself."""
    cores: int | None = None
    """The cores on which they run. None when unknown: each worker is then taken to have one."""

    @property
    def waits(self) -> float:
        """The share of the iteration in which the GPU waits for data."""
        return max(0.0, 1 - self.step_s / self.data_s)

    @property
    def needed(self) -> int:
        """The workers that load the data of a step while the GPU computes another one."""
        return self.needed_for(self.step_s)

    def needed_for(self, step_s: float) -> int:
        """The workers that keep up with a step of so many seconds."""
        return max(1, math.ceil(self.cpu_s / step_s))

    def with_workers(self, workers: int) -> float:
        """How often the data of a step are ready with so many workers, on these cores."""
        return self.cpu_s / min(workers, self.cores or workers)


def loader_advice(
    loading: Loading | None, step_s: float, cores: int | None = None
) -> LoaderAdvice | None:
    """The loader of a script beside its step; None if the script has none.

    Args:
        loading: what is known of the loader.
        step_s: the predicted time of the step.
        cores: the cores of the machine with the GPU. None for those of this one, if the loader
            was timed with its workers.
    """
    if loading is None or not loading.batches:
        return None
    timed = loading.timed
    if timed is None:
        cpu_s = loading.seconds * loading.batches
        at_once = min(max(loading.workers, 1), cores or max(loading.workers, 1))
        return LoaderAdvice(step_s, cpu_s / at_once, cpu_s, loading.workers, cores)
    seconds = timed.seconds if cores is None else timed.on_cores(cores)
    batches = loading.batches
    return LoaderAdvice(
        step_s, seconds * batches, timed.cpu_s * batches, timed.workers, cores or timed.cores
    )
