"""Whether a script's data loader keeps up with its step, and how many workers would."""

from __future__ import annotations

import math
from dataclasses import dataclass

from wavecast.showing import Shown
from wavecast.steps.prediction import Prediction
from wavecast.traces.script import Loading


@dataclass(frozen=True)
class LoaderAdvice(Shown):
    """The rate of a script's data loader beside the rate of its step."""

    step_s: float
    """The time of a step for which the data are ready."""
    data_s: float
    """The data of a step are ready as often as this."""
    iteration_s: float
    """The time from one step to the next, with the loading of its data."""
    cpu_s: float
    """The CPU time of the data of a step."""
    workers: int
    """The worker processes that the script asks for; 0 for the training process itself."""
    cores: int | None = None
    """The cores on which they run. None when unknown: each worker is then taken to have one."""

    @property
    def waits(self) -> float:
        """The share of the iteration in which the GPU waits for data."""
        return 1 - self.step_s / self.iteration_s

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
    loading: Loading | None, step: Prediction, cores: int | None = None
) -> LoaderAdvice | None:
    """The loader of a script beside its step; None if the script has none.

    Args:
        loading: what is known of the loader.
        step: the predicted step.
        cores: the cores of the machine with the GPU, if the loader was timed with its workers.
            None for those of this one.
    """
    if loading is None or not loading.batches:
        return None
    there = loading if cores is None else loading.on_cores(cores)
    timed = there.timed
    cpu_s = there.batches * (there.seconds if timed is None else timed.cpu_s)
    waits = bool(step.trace.arrays.syncs)
    iteration_s = there.iteration_s(step.seconds, step.host_s, waits=waits)
    on = None if timed is None else timed.cores
    return LoaderAdvice(step.seconds, there.step_s, iteration_s, cpu_s, there.workers, on)
