"""Schedules of pipelines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavecast.parallel.pipeline import (
    BACKWARD,
    FORWARD,
    PartTimes,
    in_flight,
    order_of,
    play_schedule,
)
from wavecast.parallel.ranks import held_microbatches
from wavecast.parallel.strategy import Parallel, Schedule


def _seconds(schedule: str, stages: int, parts: int, count: int, times: PartTimes) -> float:
    return play_schedule(order_of(schedule, stages, parts, count), [times] * parts).seconds


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "count"), [(1, 1), (2, 4), (4, 8), (8, 32)])
def test_the_bubble_of_equal_stages_is_known(schedule: str, stages: int, count: int) -> None:
    # (p - 1) (f + b) of m (f + b): Narayanan et al., SC 2021, section 2.2.
    seconds = _seconds(schedule, stages, stages, count, PartTimes(1.0, 2.0))
    assert seconds == pytest.approx((count + stages - 1) * 3.0)


@pytest.mark.parametrize(("stages", "chunks", "count"), [(2, 2, 4), (4, 2, 8), (4, 4, 16)])
def test_interleaving_divides_the_bubble(stages: int, chunks: int, count: int) -> None:
    times = PartTimes(1.0 / chunks, 2.0 / chunks)
    seconds = _seconds("1f1b", stages, stages * chunks, count, times)
    assert seconds == pytest.approx(count * 3.0 + (stages - 1) * 3.0 / chunks)


def test_weights_fill_the_bubble() -> None:
    plain = _seconds("1f1b", 4, 4, 8, PartTimes(1.0, 2.0, 1.0))
    filled = _seconds("zero-bubble", 4, 4, 8, PartTimes(1.0, 2.0, 1.0))
    # ZB-H1: (p - 1) (f + b - w) of bubble instead of (p - 1) (f + b), with b = input gradients.
    assert plain == pytest.approx(33.0)
    assert filled == pytest.approx(24.0 + 3.0)


def test_one_forward_one_backward_holds_fewer_activations() -> None:
    assert in_flight(order_of("gpipe", 4, 4, 8)) == (8, 8, 8, 8)
    assert in_flight(order_of("1f1b", 4, 4, 8)) == (4, 3, 2, 1)
    assert in_flight(order_of("zero-bubble", 4, 4, 8)) == (4, 4, 4, 4)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
@pytest.mark.parametrize(("stages", "chunks"), [(2, 1), (2, 4), (4, 1), (4, 3), (8, 1), (8, 4)])
def test_a_full_pipeline_holds_no_more(schedule: Schedule, stages: int, chunks: int) -> None:
    for count in (stages, 3 * stages, 4 * stages, 5 * stages, 9 * stages):
        strategy = Parallel(pipeline=stages, virtual=chunks, schedule=schedule, microbatches=count)
        whole = in_flight(order_of(schedule, stages, stages * chunks, count))
        assert held_microbatches(strategy) == whole


def test_a_slow_stage_sets_the_pace() -> None:
    times = [PartTimes(1.0, 2.0), PartTimes(2.0, 4.0), PartTimes(1.0, 2.0)]
    seconds = play_schedule(order_of("1f1b", 3, 3, 30), times).seconds
    assert 30 * 6.0 <= seconds <= 30 * 6.0 + 12.0


def test_transfers_delay_the_next_stage() -> None:
    times = PartTimes(1.0, 1.0, transfer_s=0.25)
    assert _seconds("1f1b", 2, 2, 1, times) == pytest.approx(4.5)


@given(
    st.sampled_from(["gpipe", "1f1b", "zero-bubble"]),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 4),
)
def test_every_pass_runs_once_and_no_schedule_stops(
    schedule: str, stages: int, chunks: int, rounds: int
) -> None:
    parts, count = stages * chunks, stages * rounds
    orders = order_of(schedule, stages, parts, count)
    for kind in (FORWARD, BACKWARD):
        ran = sorted((p.part, p.microbatch) for order in orders for p in order if p.kind == kind)
        assert ran == [(part, m) for part in range(parts) for m in range(count)]
    played = play_schedule(orders, [PartTimes(1.0, 2.0, 0.5)] * parts)
    assert played.seconds >= chunks * count * 3.0 - 1e-9
    assert played.busy_s == pytest.approx((chunks * count * 3.0,) * stages)
