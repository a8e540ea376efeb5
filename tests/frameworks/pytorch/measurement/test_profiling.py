"""The events of torch.profiler, assigned to the recorded ops: kernels, host time and waiting."""

from __future__ import annotations

from typing import Any

import pytest

from wavecast.frameworks.pytorch.measurement.profiling import (
    IterationProfile,
    _blocked_us,
    _iteration_profile,
)
from wavecast.frameworks.pytorch.recording.recorder import LABEL

MAIN, AUTOGRAD = 100, 200
Event = dict[str, Any]


def event(
    category: str, name: str, ts: float, dur: float, thread: int = MAIN, **args: Any
) -> Event:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": ts,
        "dur": dur,
        "tid": thread,
        "args": args,
    }


def op(position: int, begin: float, end: float, thread: int = MAIN) -> Event:
    """The range around a recorded op."""
    return event("user_annotation", f"{LABEL}{position}", begin, end - begin, thread)


def launch(
    correlation: int, at: float, thread: int = MAIN, name: str = "cudaLaunchKernel", us: float = 2.0
) -> Event:
    return event("cuda_runtime", name, at, us, thread, correlation=correlation)


def kernel(correlation: int, at: float, us: float, name: str = "k", stream: int = 7) -> Event:
    # The GPU's threads are its streams.
    return event("kernel", name, at, us, stream, correlation=correlation, stream=stream)


def names(profile: IterationProfile) -> dict[int, list[str]]:
    return {position: [k.name for k in run] for position, run in profile.kernels.items()}


def test_kernels_belong_to_the_op_that_launched_them_however_late_they_ran() -> None:
    profile = _iteration_profile(
        [
            *(op(0, 1000, 1010), op(1, 1020, 1030)),
            *(launch(1, 1002), launch(2, 1005), launch(3, 1022)),
            *(kernel(1, 1100, 50, "a"), kernel(2, 1150, 50, "b"), kernel(3, 1200, 50, "c")),
        ]
    )
    assert names(profile) == {0: ["a", "b"], 1: ["c"]}
    assert profile.strays == ()
    assert [k.name for k in profile.all_kernels] == ["a", "b", "c"]


def test_an_op_is_looked_for_in_the_thread_that_launched() -> None:
    profile = _iteration_profile(
        [
            *(op(0, 1000, 1100), op(1, 1040, 1060, AUTOGRAD)),
            *(launch(1, 1050), launch(2, 1050, AUTOGRAD)),
            *(kernel(1, 1200, 5, "main"), kernel(2, 1300, 5, "autograd")),
        ]
    )
    assert names(profile) == {0: ["main"], 1: ["autograd"]}


def test_what_no_op_launched_is_a_stray() -> None:
    profile = _iteration_profile(
        [
            op(0, 1000, 1010),
            *(launch(1, 990), launch(2, 1015), launch(3, 1005, thread=300)),
            *(kernel(1, 1100, 5, "before"), kernel(2, 1110, 5, "after")),
            *(kernel(3, 1120, 5, "other thread"), kernel(4, 1130, 5, "nobody")),
        ]
    )
    assert profile.kernels == {}
    assert [k.name for k in profile.strays] == ["before", "after", "other thread", "nobody"]
    assert profile.all_kernels == list(profile.strays)


def test_copies_and_fills_count_as_kernels() -> None:
    profile = _iteration_profile(
        [
            op(0, 1000, 1010),
            *(launch(1, 1001, name="cudaMemcpyAsync"), launch(2, 1004, name="cudaMemsetAsync")),
            event("gpu_memcpy", "Memcpy HtoD", 1100, 5, 7, correlation=1, stream=7),
            event("gpu_memset", "Memset", 1110, 5, 7, correlation=2, stream=7),
            event("gpu_user_annotation", "wavecast#0", 1100, 15, 7),
        ]
    )
    assert names(profile) == {0: ["Memcpy HtoD", "Memset"]}


def test_a_launch_of_the_driver_is_a_launch() -> None:
    driver = event("cuda_driver", "cuLaunchKernelEx", 1003, 2, correlation=1)
    profile = _iteration_profile([op(0, 1000, 1010), driver, kernel(1, 1100, 5, "nvjet")])
    assert names(profile) == {0: ["nvjet"]}


def test_times_are_seconds_from_the_first_op_on() -> None:
    events = [op(3, 1020, 1030), op(2, 1000, 1010, AUTOGRAD), launch(1, 1022), kernel(1, 1050, 25)]
    profile = _iteration_profile(events)
    [ran] = profile.kernels[3]
    assert ran.start_s == pytest.approx(50e-6)
    assert ran.seconds == pytest.approx(25e-6)
    assert ran.stream == 7
    assert profile.span_s == pytest.approx(75e-6)


def test_the_span_ends_with_the_last_kernel_even_if_it_is_a_stray() -> None:
    events = [op(0, 1000, 1010), launch(1, 1002), kernel(1, 1020, 10), kernel(9, 1100, 50)]
    assert _iteration_profile(events).span_s == pytest.approx(150e-6)


def test_the_host_is_inside_an_op_for_its_range_without_waiting() -> None:
    profile = _iteration_profile(
        [
            *(op(0, 1000, 1010), op(1, 1020, 1120), op(2, 1130, 1135)),
            *(launch(1, 1002), launch(2, 1030, name="cudaMemcpyAsync")),
            launch(3, 1035, name="cudaStreamSynchronize", us=80),
            launch(4, 1125, name="cudaDeviceSynchronize", us=4),
        ]
    )
    assert profile.host_s == {
        0: pytest.approx(10e-6),
        1: pytest.approx(20e-6),
        2: pytest.approx(5e-6),
    }


def test_a_wait_that_outlasts_its_op_leaves_the_host_no_negative_time() -> None:
    wait = launch(1, 1002, name="cudaEventSynchronize", us=50)
    assert _iteration_profile([op(0, 1000, 1010), wait]).host_s == {0: 0}


def test_other_ranges_of_the_user_are_not_ops() -> None:
    theirs = event("user_annotation", "forward pass", 1000, 100)
    profile = _iteration_profile([theirs, op(0, 1010, 1020), launch(1, 1050), kernel(1, 1060, 5)])
    assert set(profile.host_s) == {0}
    assert len(profile.strays) == 1


def test_nothing_seen_is_nothing() -> None:
    assert _iteration_profile([]) == IterationProfile({}, (), {}, 0.0)


def driver_calls(name: str, *us: float) -> list[Event]:
    return [launch(i, 10.0 * i, name=name, us=duration) for i, duration in enumerate(us)]


@pytest.mark.parametrize(
    "name",
    [
        "cudaStreamSynchronize",
        "cudaDeviceSynchronize",
        "cudaEventSynchronize",
        "hipStreamSynchronize",
    ],
)
def test_the_host_stands_still_while_it_waits(name: str) -> None:
    assert _blocked_us([*driver_calls(name, 70, 30), *driver_calls("cudaMemcpyAsync", 9)]) == 100


def test_a_launch_far_longer_than_usual_waits_for_a_place_in_the_queue() -> None:
    launches = driver_calls("cudaLaunchKernel", 4, 5, 5, 6, 1005, 705)
    assert _blocked_us(launches) == (1005 - 6) + (705 - 6)


def test_launches_that_vary_do_not_wait() -> None:
    assert _blocked_us(driver_calls("cudaLaunchKernel", 4, 5, 6, 40, 100)) == 0


def test_a_host_that_calls_nothing_does_not_wait() -> None:
    assert _blocked_us([]) == 0
    assert _blocked_us(driver_calls("cudaMalloc", 500)) == 0
