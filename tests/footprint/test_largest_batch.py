"""The largest batch: found with few traces, verified, and told when nothing fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import relu

import wavecast
from wavecast.footprint.allocator import AllocatorFull
from wavecast.footprint.largest_batch import RESERVE, largest_batch
from wavecast.footprint.replay import Replay
from wavecast.traces.step import Allocation, Call, Phase, Role, Trace

MIB, GIB = 1 << 20, 1 << 30
H200 = wavecast.device("h200-sxm")


def traced(batch: int, sample: int = 64 * MIB, weights: int = GIB) -> Trace:
    """Weights, and an activation of so much for each sample."""
    call = Call(relu(8), Phase.FORWARD)
    memory = (
        Allocation(weights, None, None, Role.PARAMETER),
        Allocation(batch * sample, 0, 1, Role.INTERMEDIATE),
    )
    return Trace((call, call), memory)


def test_the_largest_batch_fits_and_the_next_does_not() -> None:
    found = largest_batch(traced, H200, 8 * GIB)
    assert found.batch == 7 * 16 - 1  # half a percent is kept free
    assert found.too_large == found.batch + 1
    assert found.peak_bytes == 8 * GIB - 64 * MIB
    assert found.limit_bytes == 8 * GIB
    assert len(found.traced) <= 6


@pytest.mark.parametrize("start", [1, 8, 500])
def test_the_answer_does_not_depend_on_where_the_search_begins(start: int) -> None:
    assert largest_batch(traced, H200, 8 * GIB, start=start).batch == 7 * 16 - 1


def test_where_nothing_fits_the_answer_is_none() -> None:
    found = largest_batch(traced, H200, GIB)
    assert (found.batch, found.too_large) == (0, 1)


@given(st.integers(1, 40), st.integers(2, 80))
def test_any_affine_step_is_solved_within_the_promised_precision(sample: int, gib: int) -> None:
    def step(batch: int) -> Trace:
        return traced(batch, sample * 2 * MIB)

    exact = int((gib * (1 - RESERVE) - 1) * GIB) // (sample * 2 * MIB)
    found = largest_batch(step, H200, gib * GIB)
    assert found.batch <= exact
    assert found.batch >= exact - max(1, exact // 100)


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

    monkeypatch.setattr("wavecast.footprint.largest_batch.replay", played)
    found = largest_batch(traced, H200, 8 * GIB, start=176)
    assert (found.batch, found.too_large) == (175, 176)
