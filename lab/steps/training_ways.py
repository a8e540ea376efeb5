"""Ways of training around a step: schedules, accumulation, averages, checkpoints, adapters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lab.steps.blind_7 import ADAPTED
from lab.steps.compiled import Make, Step
from wavecast.suite.training import autocast


def followed(step: Any, *more: Callable[[], Any]) -> Step:
    """A step after which more is done, as a schedule or averaged weights want it."""

    def run() -> Any:
        loss = step()
        for do in more:
            do()
        return loss

    return run


def scheduled(make: Make) -> Make:
    """A step whose learning rate falls along a cosine."""

    def made(how: str) -> Step:
        step: Any = make(how)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(step.optimizer, 10_000)
        return followed(step, schedule.step)

    return made


def accumulated(make: Make, parts: int) -> Make:
    """A step that adds up the gradients of several small batches."""

    def made(how: str) -> Step:
        step: Any = make(how)

        def run() -> Any:
            step.optimizer.zero_grad()
            for _ in range(parts):
                with autocast(step.precision, step.device_type):
                    loss = step.loss() / parts
                (loss if step.scaler is None else step.scaler.scale(loss)).backward()
            if step.scaler is None:
                step.optimizer.step()
            else:
                step.scaler.step(step.optimizer)
                step.scaler.update()
            return loss.detach()

        return run

    return made


def averaging(model: Any, average: Any, share: float) -> Callable[[], None]:
    """Move averaged weights a little towards those of a model."""

    def do() -> None:
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - share)

    return do


def checkpointed(model: Any) -> Any:
    """A model that computes the activations of its blocks again."""
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def adapted_and_checkpointed(model: Any) -> Any:
    """The same with low-rank adapters, which alone are trained."""
    model = checkpointed(ADAPTED(model))
    model.enable_input_require_grads()
    return model
