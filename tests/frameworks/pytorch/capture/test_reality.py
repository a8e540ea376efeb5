"""Traces made here, compared with the same steps recorded on an H200."""

from __future__ import annotations

import itertools

import pytest

from lab.measured import campaigns
from lab.score.agreement import RECORDED, compare, describe
from lab.steps.reality import PRECISIONS, STEPS
from wavecast.frameworks.pytorch.capture import capture

CASES = list(itertools.product(STEPS, PRECISIONS))


@pytest.mark.parametrize(("name", "precision"), CASES, ids=[f"{n}-{p}" for n, p in CASES])
def test_a_trace_has_the_ops_of_the_real_step(name: str, precision: str) -> None:
    make, batch = STEPS[name]
    real = campaigns.traces(RECORDED)[f"{name}-{precision}"]
    agreement = compare(real, capture(lambda: make(batch, precision)))
    report = describe(f"{name} {precision}", agreement)
    assert agreement.by_count >= 0.99, report
    assert agreement.by_gpu_time >= 0.995, report


def test_every_step_was_recorded() -> None:
    assert set(campaigns.traces(RECORDED)) == {f"{n}-{p}" for n, p in CASES}
