"""Failures, published batches and networks."""

from __future__ import annotations

import math

import pytest

from wavecast.errors import InvalidInput
from wavecast.planning.cost import LLAMA_3_GPU_HOURS, interruptions


def test_llama_3_had_a_failure_every_three_hours() -> None:
    lost = interruptions(54 * 86400, 16384, checkpoint_s=1, restart_s=1)
    assert lost.hours_between == pytest.approx(54 * 24 / 419)
    assert lost.failures == pytest.approx(419, rel=0.03)


def test_no_interval_loses_less_than_that_of_young_and_daly() -> None:
    def lost(every_s: float | None) -> float:
        return interruptions(1e6, 1024, checkpoint_s=30, restart_s=300, every_s=every_s).share

    best = interruptions(1e6, 1024, checkpoint_s=30, restart_s=300)
    assert best.checkpoint_every_s == pytest.approx(
        math.sqrt(2 * 30 * LLAMA_3_GPU_HOURS * 3600 / 1024)
    )
    assert lost(None) < lost(best.checkpoint_every_s * 2)
    assert lost(None) < lost(best.checkpoint_every_s / 2)


def test_failures_that_come_faster_than_restarts_are_refused() -> None:
    with pytest.raises(InvalidInput, match="use fewer GPUs"):
        interruptions(1e6, 100_000, gpu_hours_between=100)
