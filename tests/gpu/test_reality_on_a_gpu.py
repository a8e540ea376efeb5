"""The tracer against the GPU of this machine: pytest -m gpu."""

from __future__ import annotations

import itertools

import pytest
import torch

from benchmarks.reality import compare, describe, record
from benchmarks.steps import LIBRARY_STEPS, PRECISIONS, STEPS
from wavecast.frameworks.pytorch import capture

pytestmark = pytest.mark.gpu

_STEPS = {name: lambda p, make=make, b=b: make(b, p) for name, (make, b) in STEPS.items()}


@pytest.mark.parametrize(
    ("name", "precision"), list(itertools.product([*_STEPS, *LIBRARY_STEPS], PRECISIONS))
)
def test_a_trace_has_the_ops_that_really_run(name: str, precision: str) -> None:
    make = {**_STEPS, **LIBRARY_STEPS}[name]
    capability = torch.cuda.get_device_capability()

    agreement = compare(
        record(lambda: make(precision)),
        capture(lambda: make(precision), capability=capability),
    )

    assert agreement.by_count >= 0.99, describe(name, agreement)
    assert agreement.by_gpu_time >= 0.995, describe(name, agreement)
