"""A callback for Lightning's Trainer that records its trainings in the run store.

from wavecast.integrations.lightning import LightningRunRecorder

trainer = Trainer(..., callbacks=[LightningRunRecorder()])
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from wavecast.errors import MissingExtra
from wavecast.integrations.training_recorder import TrainingRecorder, gpu_name, precision_of
from wavecast.runs.readers.facts import Facts, Given, find_facts


def _callback() -> Any:
    """Lightning's base class for callbacks, from whichever of its two packages is in use."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name).Callback
        except ModuleNotFoundError as error:
            if error.name not in ("lightning", "pytorch_lightning"):
                raise
    raise MissingExtra("recording Lightning's trainings needs Lightning: pip install lightning")


class LightningRunRecorder(_callback()):  # type: ignore[misc]
    """Records each training of a Trainer, without its warm-up, validations and checkpoints.

    Args:
        store: a file for SQLite or the URL of a PostgreSQL database, as for `wavecast.RunStore`.
        given: facts that the Trainer does not have or has wrong, as for `wavecast.read_runs`:
            `model`, `batch`, `gpu`, `warm_up`, ...
    """

    def __init__(self, store: str | os.PathLike[str] | None = None, **given: Any) -> None:
        self.recorder = TrainingRecorder(store, "lightning.Trainer", **given)
        self._step = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start a new record."""
        self.recorder.begin()
        self._step = trainer.global_step

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Record the time at which a step ended. Batches of an accumulation are not steps."""
        if trainer.is_global_zero and trainer.global_step > self._step:
            self._step = trainer.global_step
            self.recorder.step(self._step)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Exclude the time of the validation."""
        self.recorder.interrupt()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Exclude the time of the checkpoint."""
        self.recorder.interrupt()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Store the training, in the first process only."""
        if trainer.is_global_zero:
            self.recorder.end(_facts(trainer, pl_module))


def _facts(trainer: Any, module: Any) -> Facts:
    batch = getattr(trainer.train_dataloader, "batch_size", None)
    precision = find_facts({"precision": trainer.precision}, Given(), None).precision
    return Facts(
        model=type(module).__name__,
        batch=batch and batch * trainer.world_size * trainer.accumulate_grad_batches,
        gpu=gpu_name(trainer.strategy.root_device),
        gpus=trainer.world_size,
        precision=precision_of(module) if precision == "fp32" else precision,
        framework="pytorch",
    )
