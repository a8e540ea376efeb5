"""A callback for Hugging Face's Trainer that records its trainings in the run store.

from wavecast.integrations.huggingface import TrainerRunRecorder

trainer = Trainer(..., callbacks=[TrainerRunRecorder()])
"""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback

from wavecast.integrations.training_recorder import TrainingRecorder, gpu_name, precision_of
from wavecast.runs.readers.facts import Facts


class TrainerRunRecorder(TrainerCallback):
    """Records each training of a Trainer, without its warm-up, evaluations and checkpoints.

    Args:
        store: a file for SQLite or the URL of a PostgreSQL database, as for `wavecast.RunStore`.
        given: facts that the Trainer does not have or has wrong, as for `wavecast.read_runs`:
            `model`, `gpu`, `warm_up`, ...
    """

    def __init__(self, store: str | os.PathLike[str] | None = None, **given: Any) -> None:
        self.recorder = TrainingRecorder(store, "transformers.Trainer", **given)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start a new record."""
        self.recorder.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the time at which a step ended."""
        if state.is_world_process_zero:
            self.recorder.step(state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Exclude the time of the evaluation."""
        self.recorder.interrupt()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Exclude the time of the checkpoint."""
        self.recorder.interrupt()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Store the training, in the first process only."""
        if state.is_world_process_zero:
            self.recorder.end(_facts(args, kwargs.get("model")))


def _facts(args: Any, model: Any) -> Facts:
    gpus = args.world_size * max(1, args.n_gpu)
    autocast = "bf16" if args.bf16 else "fp16" if args.fp16 else None
    return Facts(
        model=getattr(getattr(model, "config", None), "_name_or_path", "") or type(model).__name__,
        # `train_batch_size` is that of one process, which may have several GPUs.
        batch=args.train_batch_size * args.world_size * args.gradient_accumulation_steps,
        gpu=gpu_name(args.device),
        gpus=gpus,
        precision=autocast or precision_of(model),
        framework="pytorch",
    )
