"""Variants of the suite's models that are small enough to train on a CPU in a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wavecast.suite import benchmark
from wavecast.suite.training import TrainingStep

# The options of the small variant of each model.
SMALL: dict[str, dict[str, Any]] = {
    "resnet50": {"image": 32, "classes": 3, "layers": (1, 1, 1, 1), "width": 8},
    "inception-v3": {"classes": 3, "width": 2},
    "bert-base": {"layers": 2, "width": 32, "heads": 2, "vocabulary": 20, "sequence": 12},
    "bert-large": {"layers": 3, "width": 32, "heads": 4, "vocabulary": 20, "sequence": 12},
    "gpt2": {"layers": 2, "width": 32, "heads": 2, "vocabulary": 20, "sequence": 12},
    "gpt2-medium": {"layers": 3, "width": 32, "heads": 4, "vocabulary": 20, "sequence": 12},
    "gnmt": {"layers": 3, "width": 32, "vocabulary": 10, "sequence": 5},
    "transformer": {"layers": 2, "width": 32, "heads": 2, "vocabulary": 10, "sequence": 5},
    "dcgan": {"image": 16, "width": 8, "noise": 10},
    "llama-1b": {
        "layers": 2,
        "width": 32,
        "heads": 4,
        "key_value_heads": 2,
        "inner": 64,
        "vocabulary": 20,
        "sequence": 12,
    },
    "latent-diffusion": {
        "latent": 8,
        "width": 32,
        "multipliers": (1, 2),
        "heads": 2,
        "words": 4,
        "word_width": 16,
    },
    "dlrm": {"tables": (5, 7, 3), "numbers": 4, "width": 8, "bottom": (16,), "top": (16,)},
    "graphsage": {"features": 8, "classes": 3, "width": 16},
    "deep-speech-2": {
        "seconds": 0.6,
        "frequencies": 17,
        "channels": 4,
        "layers": 2,
        "width": 32,
        "letters": 3,
    },
    "wgan-gp": {"image": 8, "width": 8, "noise": 8, "critic_steps": 2},
    "a3c": {"image": 20, "actions": 3},
    "nmt": {"shortest": 2, "longest": 4, "width": 32, "vocabulary": 7},
    "alexnet": {"image": 67, "classes": 3, "width": 12, "hidden": 64},
    "googlenet": {"image": 80, "classes": 3, "width": 8},
    "vgg16": {"image": 32, "classes": 3, "width": 4, "hidden": 32},
    "vgg19": {"image": 32, "classes": 3, "width": 4, "hidden": 32},
    "vit": {"image": 16, "classes": 3, "patch": 4, "layers": 2, "width": 32, "heads": 2},
    "faster-rcnn": {
        "image": (64, 64),
        "objects": 2,
        "classes": 3,
        "layers": (1, 1, 1, 1),
        "width": 8,
        "hidden": 64,
        "scales": (16, 32, 64),
        "proposals": 60,
        "regions": 16,
        "anchors": 16,
        "side": 4,
        "frozen": False,
    },
}


def small(name: str, batch: int = 16, precision: str = "fp32", **options: Any) -> TrainingStep:
    each = benchmark(name)
    sizes = {**SMALL[each.name], **options}
    return each.make_step(batch, precision, device="cpu", **sizes)


def count(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def losses_of(step: TrainingStep, steps: int, refill: Callable[[], tuple[Any, ...]]) -> list[float]:
    losses = []
    for _ in range(steps):
        for held, fresh in zip(step.inputs, refill(), strict=True):
            held.copy_(fresh)
        losses.append(float(step()))
    return losses


def assert_learned(losses: list[float], guessing: float) -> None:
    assert losses[0] > 0.8 * guessing
    assert sum(losses[-10:]) / 10 < 0.5 * guessing
