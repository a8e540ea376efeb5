"""Callbacks for Hugging Face's Trainer: one records trainings, one predicts their step.

from wavecast.integrations.huggingface import TrainerRunRecorder, TrainerStepPredictor

trainer = Trainer(..., callbacks=[TrainerRunRecorder(), TrainerStepPredictor(gpu="l4")])
"""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback

from wavecast.integrations.training_watch import (
    StepRecipe,
    TrainingRecorder,
    TrainingWatch,
    gpu_name,
    on_host,
    precision_of,
    step_of,
)
from wavecast.runs.readers.timing import Facts


class _TimedTrainerCallback(TrainerCallback):
    """A callback whose `timer` leaves out evaluations and checkpoints."""

    timer: TrainingRecorder | TrainingWatch

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Exclude the time of the evaluation."""
        self.timer.interrupt()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Exclude the time of the checkpoint."""
        self.timer.interrupt()


class TrainerRunRecorder(_TimedTrainerCallback):
    """Records each training of a Trainer, without its warm-up, evaluations and checkpoints.

    Args:
        store: a file for SQLite or the URL of a PostgreSQL database, as for `wavecast.RunStore`.
        given: facts that the Trainer does not have or has wrong, as for `wavecast.read_runs`:
            `model`, `gpu`, `warm_up`, ...
    """

    def __init__(self, store: str | os.PathLike[str] | None = None, **given: Any) -> None:
        self.timer = self.recorder = TrainingRecorder(store, "transformers.Trainer", **given)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start a new record."""
        self.recorder.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the time at which a step ended."""
        if state.is_world_process_zero:
            self.recorder.step(state.global_step)

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


class TrainerStepPredictor(_TimedTrainerCallback):
    """Predicts the step of a Trainer before it runs, and compares it with the steps that run.

    The first batch is traced on a copy of the model without weights. The training, its random
    numbers and the memory of the GPU stay as they are.

    ```python
    from wavecast.integrations.huggingface import TrainerStepPredictor

    trainer = Trainer(..., callbacks=[TrainerStepPredictor(gpu="a100-sxm-80gb")])
    ```

    Args:
        gpu: the GPU to predict for. None for the one that the training runs on.
        options: further arguments of `TrainingWatch`.
    """

    def __init__(self, gpu: str | None = None, **options: Any) -> None:
        self.timer = self.watch = TrainingWatch(gpu, **options)
        self._hook: Any = None

    def attach(self, trainer: Any) -> None:
        """Become the first callback of a Trainer, so that its reporters get the numbers as well."""
        trainer.callback_handler.callbacks.insert(0, self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait for the first batch."""
        self.watch.begin()
        model, optimizer = kwargs.get("model"), kwargs.get("optimizer")
        if not state.is_world_process_zero or model is None or optimizer is None:
            return
        model = getattr(model, "module", model)

        def predict(module: Any, positional: Any, named: Any) -> None:
            if module.training and self.watch.is_due:
                self._stop_waiting()
                self._predict(args, module, optimizer, positional, named)

        self._hook = model.register_forward_pre_hook(predict, with_kwargs=True)

    def _predict(self, args: Any, model: Any, optimizer: Any, given: Any, named: Any) -> None:
        batch = on_host((list(given), dict(named)))
        recipe = StepRecipe(
            accumulate=args.gradient_accumulation_steps,
            autocast="bf16" if args.bf16 else "fp16" if args.fp16 else None,
            clip_norm=args.max_grad_norm or None,
            pinned=args.dataloader_pin_memory,
        )
        samples = args.train_batch_size * args.gradient_accumulation_steps
        make_step = step_of(model, optimizer, batch, _loss, recipe)
        self.watch.predict(make_step, args.device, samples)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Time the step."""
        if state.is_world_process_zero:
            self.watch.step()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add predicted and measured times to what the Trainer logs."""
        logs = kwargs.get("logs")
        if logs is not None and "loss" in logs:
            logs.update(self.watch.metrics)
            if state.log_history:
                state.log_history[-1].update(self.watch.metrics)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Compare for the last time."""
        self._stop_waiting()
        self.watch.end()

    def _stop_waiting(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def _loss(model: Any, batch: Any) -> Any:
    """The loss that a model of transformers returns; else the sum of what it returns."""
    positional, named = batch
    result = model(*positional, **named)
    loss = result.get("loss") if hasattr(result, "get") else getattr(result, "loss", None)
    if loss is not None:
        return loss
    outputs = result.values() if hasattr(result, "values") else result
    first = next(iter(outputs)) if not hasattr(result, "sum") else result
    return first.float().sum()
