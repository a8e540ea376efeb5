"""Time to quality: a training that runs until its model is good enough, and its prediction.

How many steps a model needs does not depend on the GPU; how long a step takes does. So the time to
a quality is predicted from two parts: the steps that such a training usually takes, and the time of
a few steps on the machine at hand, with the start-up that was seen by then. The training then runs
until it reaches the quality, and both are compared. Making batches and testing are part of both.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace

import torch

from wavecast.errors import InvalidInput
from wavecast.results import Shown
from wavecast.suite import benchmark
from wavecast.suite.demonstrations import DEMONSTRATIONS, Demonstration, Learner, seeded, stripes

FEW = 20
"""How many steps the prediction is made from."""
_FIRST = 5
"""Steps before these, which load libraries and are not counted."""
EVERY = 10
"""After this many steps the quality is tested."""
_MOST = 20
"""A training is given up after this many times its usual steps."""


@dataclass(frozen=True)
class TrainingToQuality(Shown):
    """A training that was predicted from a few steps, and then run until it was good enough."""

    domain: str
    model: str
    measure: str
    """What the quality is."""
    needed: float
    reached: float
    device: str
    """The id of the GPU, or "cpu"."""
    usual_steps: int
    """The steps that the prediction took: those that other seeds needed."""
    steps: int
    """The steps that it needed."""
    startup_s: float
    """Building the model, and what its first steps took beyond the usual."""
    step_s: float
    """The median of the few steps alone."""
    few_steps_s: float
    """The median of the few steps, with making a batch for each."""
    test_s: float
    """The first test."""
    predicted_s: float
    """The time to the quality, predicted from the few steps."""
    seconds: float
    """The time that it took, start-up and the first steps included."""
    usd_per_h: float | None = None
    """The price of the machine; None if it has none."""

    @property
    def learned(self) -> bool:
        """Whether it reached the needed quality."""
        return self.reached >= self.needed

    @property
    def error(self) -> float:
        """(predicted - actual) / actual; negative if it took longer than predicted."""
        return self.predicted_s / self.seconds - 1

    @property
    def step_error(self) -> float:
        """The part of the error that is due to the time of steps and tests alone."""
        spent_s = self.steps * self.few_steps_s + self.steps // EVERY * self.test_s
        return (self.startup_s + spent_s) / self.seconds - 1

    @property
    def predicted_usd(self) -> float | None:
        """The predicted cost; None without a price."""
        return None if self.usd_per_h is None else self.usd_per_h * self.predicted_s / 3600

    @property
    def usd(self) -> float | None:
        """What it cost; None without a price."""
        return None if self.usd_per_h is None else self.usd_per_h * self.seconds / 3600


def train_to_quality(
    demonstration: Demonstration,
    *,
    seed: int = 1,
    device: str = "cpu",
    gpu: str = "cpu",
    usual_steps: int | None = None,
    most_steps: int | None = None,
) -> TrainingToQuality:
    """Train until the needed quality is reached, and compare the time with its prediction.

    Args:
        demonstration: what to train.
        seed: of weights and data.
        device: "cpu" or "cuda".
        gpu: the id of the GPU.
        usual_steps: the steps to predict from; by default those of the demonstration.
        most_steps: give up after so many; by default after 20 times the usual ones.
    """
    usual = usual_steps or demonstration.usual_steps
    most = most_steps or _MOST * max(usual, FEW)
    with seeded(seed, device):
        began = _now(device)
        learner = demonstration.make(None, device)
        for _ in range(_FIRST):
            learner.train()
        started = _now(device)
        few = [_timed_step(learner, device) for _ in range(FEW)]
        alone_s, step_s = (statistics.median(times) for times in zip(*few, strict=True))
        before = _now(device)
        learner.quality()
        test_s = _now(device) - before
        steps, reached = _FIRST + FEW, 0.0
        while reached < demonstration.needed and steps < most:
            for _ in range(EVERY):
                learner.train()
            steps, reached = steps + EVERY, learner.quality()
        seconds = _now(device) - began
    startup_s = max(0.0, started - began - _FIRST * step_s)
    shared = {name: getattr(demonstration, name) for name in ("domain", "model", "measure")}
    return TrainingToQuality(
        **shared,
        needed=demonstration.needed,
        reached=reached,
        device=gpu,
        usual_steps=usual,
        steps=steps,
        startup_s=startup_s,
        step_s=alone_s,
        few_steps_s=step_s,
        test_s=test_s,
        predicted_s=startup_s + usual * step_s + usual // EVERY * test_s,
        seconds=seconds,
    )


def _timed_step(learner: Learner, device: str) -> tuple[float, float]:
    """The seconds of a step alone, and with making its batch."""
    begin = _now(device)
    learner.fill()
    filled = _now(device)
    learner.step()
    done = _now(device)
    return done - filled, done - begin


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _full_size(rate: float | None, device: str) -> Learner:
    """ResNet-50 as published, on images of 224 pixels with stripes of three directions."""
    learning_rate = 0.02 if rate is None else rate
    step = benchmark("resnet50").make_step(32, device=device, learning_rate=learning_rate)
    return stripes(step, noise=2.0)


FULL_SIZE = replace(DEMONSTRATIONS[0], make=_full_size, usual_steps=0)
"""A model of the suite at its published size, which needs a GPU. Its usual steps are those of a
first training of it, on any machine."""


def demonstration(model: str) -> Demonstration:
    """The small training of a model.

    Raises:
        InvalidInput: there is none.
    """
    known = {one.model: one for one in DEMONSTRATIONS}
    if model not in known:
        raise InvalidInput(f"there is no small training of {model}; known: {', '.join(known)}")
    return known[model]
