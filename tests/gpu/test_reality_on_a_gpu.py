"""The tracer against the GPU of this machine: pytest -m gpu."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from lab.score.agreement import compare, describe
from lab.steps.reality import LAYER_STEPS, LIBRARY_STEPS, PRECISIONS, STEPS
from wavecast.frameworks.pytorch.capture import capture
from wavecast.frameworks.pytorch.measurement.iteration import measure

# torch 2.11 warns once that RMSNorm under autocast cannot use its fused kernel.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:Mismatch dtype")]

_ALL: dict[str, Callable[[str], Any]] = {
    **{name: partial(make, batch) for name, (make, batch) in STEPS.items()},
    **LIBRARY_STEPS,
    **LAYER_STEPS,
}


@pytest.mark.parametrize(
    ("name", "precision"), list(itertools.product(_ALL, (*PRECISIONS, "fp16")))
)
def test_a_trace_has_the_ops_that_really_run(name: str, precision: str) -> None:
    make = _ALL[name]
    capability = torch.cuda.get_device_capability()

    agreement = compare(
        # GradScaler skips the first updates, until its scale is small enough.
        measure(make(precision), warm_up=10, repeats=1, recordings=1),
        capture(lambda: make(precision), capability=capability),
    )

    # Of a few layers a single view is more than a hundredth.
    assert agreement.by_count >= (0.8 if name in LAYER_STEPS else 0.99), describe(name, agreement)
    assert agreement.by_gpu_time >= 0.995, describe(name, agreement)
