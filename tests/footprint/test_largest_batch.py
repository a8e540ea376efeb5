"""The largest batch: few traces are needed, the answer is verified, and 0 means nothing fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import relu

import wavecast
from wavecast.footprint.largest_batch import largest_batch
from wavecast.footprint.replay import RESERVE, AllocatorFull, Replay
from wavecast.traces.step import Allocation, Call, Phase, Role, Trace

MIB, GIB = 1 << 20, 1 << 30
H200 = wavecast.device("h200-sxm")


def traced(batch: int, sample: int = 64 * MIB, weights: int = GIB) -> Trace:
    """A step with weights, and an activation that grows with the batch."""
    call = Call(relu(8), Phase.FORWARD)
    memory = (
        Allocation(weights, None, None, Role.PARAMETER),
        Allocation(batch * sample, 0, 1, Role.INTERMEDIATE),
    )
    return Trace((call, call), memory)


def test_where_nothing_fits_the_answer_is_none() -> None:
    answer = largest_batch(traced, H200, GIB)
    assert (answer.batch, answer.too_large) == (0, 1)


@given(st.integers(1, 40), st.integers(2, 80))
def test_any_affine_step_is_solved_within_the_promised_precision(sample: int, gib: int) -> None:
    def step(batch: int) -> Trace:
        return traced(batch, sample * 2 * MIB)

    exact = int((gib * (1 - RESERVE) - 1) * GIB) // (sample * 2 * MIB)
    answer = largest_batch(step, H200, gib * GIB)
    assert answer.batch <= exact
    assert answer.batch >= exact - max(1, exact // 100)


def test_nonsense_is_refused() -> None:
    with pytest.raises(wavecast.InvalidInput, match="at least one"):
        largest_batch(traced, H200, GIB, start=0)
    with pytest.raises(wavecast.InvalidInput, match="nothing fits"):
        largest_batch(traced, H200, 0)


def test_a_smaller_batch_that_gaps_keep_out_does_not_end_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def played(trace: Trace, *, limit_bytes: int | None = None, expandable: bool = False) -> Replay:
        allocated = trace.allocations[1].nbytes
        batch = allocated // (64 * MIB)
        if limit_bytes is not None and (140 <= batch < 160 or batch >= 176):
            raise AllocatorFull("no gap is large enough")
        return Replay(allocated // 2, allocated)

    for place in ("largest_batch", "replay"):
        monkeypatch.setattr(f"wavecast.footprint.{place}.replay", played)
    answer = largest_batch(traced, H200, 8 * GIB, start=176)
    assert (answer.batch, answer.too_large) == (175, 176)
