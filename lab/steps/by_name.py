"""Steps by name: those of the suite, to compare machines, and those of the blind test."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from wavecast import suite

SEED = 5
BLIND_PREFIXES = ("torchvision", "transformers", "perceptron", "lstm language", "blocks")
"""The prefixes of the steps of `lab.steps.memory` whose models are not in the suite."""

Step = Callable[[], Any]
MakeStep = Callable[[], Step]


def suite_steps() -> Iterator[tuple[str, MakeStep]]:
    """Every benchmark of the suite in every precision, at its default batch and a quarter of it.

    The order is random, with a fixed seed.
    """
    steps = []
    for benchmark in suite.benchmarks():
        quarter = max(benchmark.default_batch // 4, benchmark.smallest_batch)
        for batch in sorted({quarter, benchmark.default_batch}):
            for precision in suite.PRECISIONS:
                make = partial(benchmark.make_step, batch, precision)
                steps.append((f"{benchmark.name} b{batch} {precision}", make))
    random.Random(SEED).shuffle(steps)
    yield from steps


def blind_steps() -> Iterator[tuple[str, MakeStep]]:
    """The steps of the blind test that were also timed while cuDNN searched for algorithms."""
    from lab.steps.memory import STEPS

    for name, step in STEPS.items():
        if name.startswith(BLIND_PREFIXES):
            yield name, step.make
