"""The recorder of a running training, which all callbacks for training loops share.

Steps are timed on the host when they end. The GPU may be a few steps behind, but by the same amount
at both ends of the stable phase. A recorder never stops a training: if it cannot record something,
it warns.
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
from wavecast.runs.readers.doubts import Doubts, warn
from wavecast.runs.readers.facts import Facts
from wavecast.runs.readers.timing import Mark, runs_of, trainings
from wavecast.runs.readers.totals import LogSpan
from wavecast.runs.run import Run

MOST_MARKS = 100_000
"""The most step times to keep, however long the training is."""


class TrainingRecorder:
    """Collects the times of a training's steps, and stores the training as a run.

    Args:
        store: the run store, as for `wavecast.RunStore`. It is opened at once, so that a wrong one
            is noticed before the training and not after it.
        source: the source that is stored with the runs.
        clock: a clock in seconds that never goes back.
        given: facts that the training does not have or has wrong, as for `wavecast.read_runs`.
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
        self._begin_s = clock()
        self.runs: tuple[Run, ...] = ()
        """The runs that were stored last."""
        import wavecast

        with wavecast.RunStore(store) as opened, opened.writing():
            pass  # a store that cannot be written is refused before hours of training

    def begin(self) -> None:
        """Start a new training."""
        self._marks, self._broken, self._every, self.runs = [], False, 1, ()
        self._begin_s = self._clock()

    def step(self, number: int) -> None:
        """Record that a step has ended now."""
        if number % self._every:
            return
        self._marks.append(Mark(number, self._clock(), f"step {number}", self._broken))
        self._broken = False
        if len(self._marks) >= MOST_MARKS:  # in a long training, every second step is enough
            self._every *= 2
            self._marks = _every_second(self._marks)

    def interrupt(self) -> None:
        """Record that something other than steps takes time now: an evaluation, a checkpoint."""
        self._broken = True

    def end(self, facts: Facts) -> tuple[Run, ...]:
        """Store the training that has ended, and return its runs."""
        import wavecast

        doubts = Doubts(Path(self._source), warn)
        try:
            timed = trainings(self._marks, doubts)
            span = LogSpan(self._begin_s, self._clock())
            self.runs = tuple(runs_of(timed, facts, self._given, doubts, span))
            with wavecast.RunStore(self._place) as store:
                store.add(self.runs)
        except WavecastError as error:
            warn(f"the training was not stored: {error}")
        doubts.close()
        return self.runs


def _every_second(marks: list[Mark]) -> list[Mark]:
    """Every second mark. It counts as after a break if it or the one before it does."""
    pairs = zip(marks[::2], marks[1::2], strict=False)
    return [replace(b, after_break=a.after_break or b.after_break) for a, b in pairs]


def gpu_name(device: Any) -> str:
    """The name of a torch device; "cpu" for the CPU."""
    import torch

    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else str(device.type)


def precision_of(model: Any) -> str | None:
    """The precision of a model that trains without autocast, from its weights. None if mixed."""
    import torch

    kinds = {str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters()}
    if kinds != {"float32"}:
        return {"bfloat16": "bf16", "float16": "fp16"}.get(kinds.pop()) if len(kinds) == 1 else None
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "fp32"
