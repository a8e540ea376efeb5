"""A training recorded while it runs: what the callbacks for training loops share.

Steps are timed on the host as they end. The GPU may be some steps behind, which moves both ends of
the stable phase alike. A recorder never stops a training: what it cannot record, it warns of.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from wavecast.errors import WavecastError
from wavecast.runs.readers import make_given
from wavecast.runs.readers.facts import Facts
from wavecast.runs.readers.stretches import Mark, runs_of, trainings
from wavecast.runs.readers.text import Doubts, warn
from wavecast.runs.run import Run

MOST_MARKS = 100_000
"""Moments that are kept of a training, however long it is."""


class TrainingRecorder:
    """Steps of a training and their times, which become a run in the store.

    Args:
        store: as `wavecast.RunStore` takes it; reached at once, so that a wrong one is found
            before the training and not after it.
        source: what runs are said to come from.
        clock: seconds that only grow.
        given: what the training does not say, or says wrongly, as for `wavecast.read_runs`.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | None,
        source: str,
        clock: Callable[[], float] = time.perf_counter,
        **given: Any,
    ) -> None:
        self._place, self._source, self._clock = store, source, clock
        self._given = make_given(given)
        self._marks: list[Mark] = []
        self._broken = False
        self._every = 1
        self.runs: tuple[Run, ...] = ()
        """What was recorded last."""
        import wavecast

        with wavecast.RunStore(store):
            pass

    def begin(self) -> None:
        """A training begins."""
        self._marks, self._broken, self._every, self.runs = [], False, 1, ()

    def step(self, number: int) -> None:
        """A step has ended."""
        if number % self._every:
            return
        self._marks.append(Mark(number, self._clock(), f"step {number}", self._broken))
        self._broken = False
        if len(self._marks) >= MOST_MARKS:  # a long training: every second one will do
            self._every *= 2
            self._marks = _every_second(self._marks)

    def interrupt(self) -> None:
        """Something other than steps takes time: an evaluation, a checkpoint."""
        self._broken = True

    def end(self, facts: Facts) -> tuple[Run, ...]:
        """The training has ended: its runs, now in the store."""
        import wavecast

        doubts = Doubts(Path(self._source), warn)
        try:
            timed = trainings(self._marks, doubts)
            self.runs = tuple(runs_of(timed, facts, self._given, doubts))
            with wavecast.RunStore(self._place) as store:
                store.add(self.runs)
        except WavecastError as error:
            warn(f"the training was not recorded: {error}")
        doubts.close()
        return self.runs


def _every_second(marks: list[Mark]) -> list[Mark]:
    """Half of the marks; one before which there was something else stands for both."""
    pairs = zip(marks[::2], marks[1::2], strict=False)
    return [replace(b, after_break=a.after_break or b.after_break) for a, b in pairs]


def gpu_name(device: Any) -> str:
    """The name of a torch device; "cpu" for the CPU."""
    import torch

    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else str(device.type)


def precision_of(model: Any) -> str | None:
    """The precision of a model that trains without autocast, from its weights."""
    import torch

    kinds = {str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters()}
    if kinds != {"float32"}:
        return {"bfloat16": "bf16", "float16": "fp16"}.get(kinds.pop()) if len(kinds) == 1 else None
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "fp32"
