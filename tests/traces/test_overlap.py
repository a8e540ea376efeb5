"""Busy times of the GPU: overlaps count once, communication only where nothing else runs."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import mm

from wavecast.traces.file import Interval, busy_s, covered, exposed_s, length, union
from wavecast.traces.step import Call, Kernel, Phase

LONGEST = 40
# Whole numbers, so that sums and differences are exact.
spans = st.tuples(st.integers(0, LONGEST), st.integers(0, 12)).map(
    lambda pair: (float(pair[0]), float(pair[0] + pair[1]))
)
many = st.lists(spans, max_size=12)


def points(intervals: list[Interval]) -> set[int]:
    """The whole seconds that lie within some interval, each named by its beginning."""
    return {t for begin, end in intervals for t in range(int(begin), int(end))}


def ran(*times: Interval) -> Call:
    kernels = tuple(Kernel("k", end - begin, start_s=begin) for begin, end in times)
    return Call(mm(), Phase.FORWARD, kernels=kernels)


@given(many)
def test_a_union_covers_the_same_times_in_order_and_once(intervals: list[Interval]) -> None:
    merged = union(intervals)
    assert points(merged) == points(intervals)
    assert length(merged) == len(points(intervals))
    edges = [edge for interval in merged for edge in interval]
    assert edges == sorted(edges)
    assert all(end < begin for (_, end), (begin, _) in pairwise(merged))


@given(spans, many)
def test_what_is_covered_is_what_lies_within_the_others(
    interval: Interval, others: list[Interval]
) -> None:
    shared = points([interval]) & points(others)
    assert covered(interval, union(others)) == len(shared)


def test_a_kernel_of_unknown_start_is_taken_to_run_alone() -> None:
    assert busy_s([Kernel("k", 3.0), Kernel("k", 3.0), *ran((0, 4), (0, 4)).kernels]) == 10
    calls = [Call(mm(), Phase.FORWARD, kernels=(Kernel("k", 3.0),)), ran((0, 4)), ran((0, 4))]
    assert exposed_s(calls, [True, False, False]) == [3, 4, 0]


def test_of_two_kernels_at_a_time_the_one_that_began_first_counts() -> None:
    assert exposed_s([ran((2, 6)), ran((0, 4))], [False, False]) == [2, 4]
    assert exposed_s([ran((0, 9)), ran((1, 2), (8, 11))], [False, False]) == [9, 2]


def test_communication_counts_only_where_nothing_else_runs() -> None:
    computing, exchange = ran((2, 4), (5, 6)), ran((0, 7))
    assert exposed_s([exchange, computing], [True, False]) == [4, 3]
    assert exposed_s([exchange, computing], [False, False]) == [7, 0]
    assert exposed_s([ran((0, 7)), ran((3, 9))], [True, True]) == [7, 2]


calls_and_marks = st.lists(st.tuples(st.lists(spans, max_size=4), st.booleans()), max_size=8)


@given(calls_and_marks)
def test_what_is_exposed_sums_to_the_busy_time(
    given_: list[tuple[list[Interval], bool]],
) -> None:
    calls, hidden = [ran(*times) for times, _ in given_], [mark for _, mark in given_]
    exposed = exposed_s(calls, hidden)
    assert sum(exposed) == busy_s([kernel for call in calls for kernel in call.kernels])
    for call, seconds in zip(calls, exposed, strict=True):
        assert 0 <= seconds <= sum(kernel.seconds for kernel in call.kernels)


@given(calls_and_marks)
def test_what_is_hidden_takes_no_time_from_the_rest(
    given_: list[tuple[list[Interval], bool]],
) -> None:
    calls, hidden = [ran(*times) for times, _ in given_], [mark for _, mark in given_]
    exposed = exposed_s(calls, hidden)
    front = [call for call, mark in zip(calls, hidden, strict=True) if not mark]
    kept = sum(seconds for seconds, mark in zip(exposed, hidden, strict=True) if not mark)
    assert kept == busy_s([kernel for call in front for kernel in call.kernels])


seconds = st.floats(0, 1e-2)


@given(st.lists(st.tuples(st.floats(0, 1), seconds, st.booleans()), max_size=10))
def test_rounding_makes_no_time_negative(runs: list[tuple[float, float, bool]]) -> None:
    kernels = [Kernel("k", took, start_s=begin) for begin, took, _ in runs]
    calls = [Call(mm(), Phase.FORWARD, kernels=(kernel,)) for kernel in kernels]
    exposed = exposed_s(calls, [mark for *_, mark in runs])
    assert all(seconds >= 0 for seconds in exposed)
    assert sum(exposed) == pytest.approx(busy_s(kernels), abs=1e-12)
