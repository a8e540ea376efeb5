"""Callbacks for Lightning's Trainer: one records trainings, one predicts their step.

from wavecast.integrations.lightning import LightningRunRecorder, LightningStepPredictor

trainer = Trainer(..., callbacks=[LightningRunRecorder(), LightningStepPredictor(gpu="l4")])
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from wavecast.errors import CaptureError, MissingExtra
from wavecast.integrations.training_watch import (
    StepRecipe,
    TrainingRecorder,
    TrainingWatch,
    gpu_name,
    on_host,
    precision_of,
    step_of,
)
from wavecast.runs.readers.timing import Facts, Given, find_facts


def _callback() -> Any:
    """Lightning's base class for callbacks, from whichever of its two packages is in use."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name).Callback
        except ModuleNotFoundError as error:
            if error.name not in ("lightning", "pytorch_lightning"):
                raise
    raise MissingExtra("callbacks for Lightning need it: pip install lightning")


class _TimedLightningCallback(_callback()):  # type: ignore[misc]
    """A callback whose `timer` counts steps, and leaves out validations and checkpoints."""

    timer: TrainingRecorder | TrainingWatch
    _step = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start a new training."""
        self.timer.begin()
        self._step = trainer.global_step

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Exclude the time of the validation."""
        self.timer.interrupt()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Exclude the time of the checkpoint."""
        self.timer.interrupt()

    def _ended(self, trainer: Any) -> bool:
        """Whether a step has ended. Batches of an accumulation are not steps."""
        before, self._step = self._step, max(self._step, trainer.global_step)
        return bool(trainer.is_global_zero and trainer.global_step > before)


class LightningRunRecorder(_TimedLightningCallback):
    """Records each training of a Trainer, without its warm-up, validations and checkpoints.

    Args:
        store: a file for SQLite or the URL of a PostgreSQL database, as for `wavecast.RunStore`.
        given: facts that the Trainer does not have or has wrong, as for `wavecast.read_runs`:
            `model`, `batch`, `gpu`, `warm_up`, ...
    """

    def __init__(self, store: str | os.PathLike[str] | None = None, **given: Any) -> None:
        self.timer = self.recorder = TrainingRecorder(store, "lightning.Trainer", **given)

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Record the time at which a step ended."""
        if self._ended(trainer):
            self.recorder.step(trainer.global_step)

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


class LightningStepPredictor(_TimedLightningCallback):
    """Predicts the step of a Trainer before it runs, and compares it with the steps that run.

    The first batch is traced on a copy of the module without weights. The training, its random
    numbers and the memory of the GPU stay as they are.

    ```python
    from wavecast.integrations.lightning import LightningStepPredictor

    trainer = Trainer(..., callbacks=[LightningStepPredictor(gpu="a100-sxm-80gb")])
    ```

    Args:
        gpu: the GPU to predict for. None for the one that the training runs on.
        options: further arguments of `TrainingWatch`.
    """

    def __init__(self, gpu: str | None = None, **options: Any) -> None:
        self.timer = self.watch = TrainingWatch(gpu, **options)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Predict the step with the first batch."""
        if not trainer.is_global_zero or not self.watch.is_due:
            return
        make_step: Callable[[], Callable[[], Any]] = partial(_refused, trainer, pl_module)
        if pl_module.automatic_optimization and len(trainer.optimizers) == 1:
            make_step = step_of(
                pl_module,
                trainer.optimizers[0],
                on_host(batch),
                _training_loss,
                _recipe(trainer),
                keep={id(trainer): trainer},
            )
        size = getattr(trainer.train_dataloader, "batch_size", None)
        samples = size and size * trainer.accumulate_grad_batches
        self.watch.predict(make_step, trainer.strategy.root_device, samples)

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Time the step."""
        if self._ended(trainer) and self.watch.step():
            self._log(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Compare for the last time."""
        if trainer.is_global_zero:
            self.watch.end()
            self._log(trainer)

    def _log(self, trainer: Any) -> None:
        if self.watch.metrics:
            for logger in trainer.loggers:
                logger.log_metrics(self.watch.metrics, trainer.global_step)


def _recipe(trainer: Any) -> StepRecipe:
    precision = str(trainer.precision)
    mixed = {"bf16-mixed": "bf16", "16-mixed": "fp16"}.get(precision)
    clips_values = trainer.gradient_clip_algorithm == "value"
    return StepRecipe(
        accumulate=trainer.accumulate_grad_batches,
        autocast=mixed,
        clip_norm=None if clips_values else trainer.gradient_clip_val,
        clip_value=trainer.gradient_clip_val if clips_values else None,
        pinned=bool(getattr(trainer.train_dataloader, "pin_memory", False)),
    )


def _training_loss(module: Any, batch: Any) -> Any:
    """The loss of a module's training step, in which nothing is logged."""
    for name in ("log", "log_dict", "print"):
        vars(module)[name] = _nothing
    result = module.training_step(batch, 0)
    return result["loss"] if isinstance(result, Mapping) else result


def _nothing(*_: Any, **__: Any) -> None:
    """Log nothing: stands in for the logging methods of a copy."""


def _refused(trainer: Any, module: Any) -> Any:
    if module.automatic_optimization:
        raise CaptureError(f"it has {len(trainer.optimizers)} optimizers, and one is expected")
    raise CaptureError(
        "the module updates its weights itself (automatic_optimization is off); trace its step "
        "with wavecast.trace or wavecast run"
    )
