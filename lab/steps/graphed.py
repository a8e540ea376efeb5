"""Steps by model, batch and precision, and those that are captured as CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from lab.steps.reality import STEPS
from wavecast import suite

GRAPHED = (
    ("dcgan", 64, "bf16"),
    ("resnet50", 2, "fp32"),
    ("bert-base", 16, "bf16"),
    ("mobilenet_v3", 32, "bf16"),
    ("vit", 2, "bf16"),
    ("suite/googlenet", 8, "bf16"),
    ("resnet50", 32, "bf16"),
)
Step = Callable[[], Any]
Key = tuple[str, int, str]


def make_step(key: Key) -> Step:
    """The step of a model, a batch and a precision."""
    name, batch, precision = key
    if name.startswith("suite/"):
        return suite.benchmark(name.removeprefix("suite/")).make_step(batch, precision)
    step: Step = STEPS[name][0](batch, precision)
    return step


def make_capturable(key: Key) -> Step:
    """The step with optimizers whose step counter is on the GPU, which a CUDA graph needs."""
    step = make_step(key)
    for candidate in gc.get_objects():
        # type() and not isinstance: reading __class__ of some objects warns.
        if issubclass(type(candidate), torch.optim.Optimizer) and not candidate.state:
            for group in candidate.param_groups:
                if "capturable" in group:
                    group["capturable"] = True
    return step


def named(key: Key) -> str:
    """The key of a step as one word."""
    return "-".join(map(str, key))
