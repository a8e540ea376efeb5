"""Predicted steps on several GPUs."""

from __future__ import annotations

from typing import Any

import pytest
from parallel_steps import small_gpt2_step

import wavecast
from wavecast import Parallel
from wavecast.errors import InvalidInput, UnknownName
from wavecast.traces.step import Trace

GPU = "h100-sxm-80gb"


def _step() -> Trace:
    return small_gpt2_step()


def _predicted(host_factor: float = 1.0, **axes: Any) -> wavecast.ParallelPrediction:
    return wavecast.predict(_step(), GPU, host_factor=host_factor, parallel=Parallel(**axes))


def test_one_gpu_takes_as_long_as_without_a_strategy() -> None:
    alone = wavecast.predict(_step(), GPU)
    spread = _predicted()
    assert spread.seconds == pytest.approx(alone.seconds, rel=0.05)
    assert spread.throughput == pytest.approx(2 / spread.seconds)
    assert spread.unpredicted == ()


@pytest.mark.parametrize(
    "axes",
    [
        {"data": 8},
        {"data": 8, "shard": 1},
        {"data": 16, "shard": 3, "shard_group": 8},
        {"pipeline": 2, "microbatches": 4},
        {"data": 2, "pipeline": 2, "microbatches": 4, "schedule": "zero-bubble"},
    ],
)
def test_every_strategy_gives_a_time_inside_its_range(axes: dict[str, Any]) -> None:
    step = _predicted(**axes)
    assert 0 < step.low_s <= step.seconds <= step.high_s
    assert 0 <= step.exposed_s <= step.seconds
    assert step.gpus == len(step.stages) * step.stages[0].ranks
    assert step.samples == 2 * step.strategy.microbatches * step.strategy.data


def test_reductions_cost_time_and_slow_links_more() -> None:
    # With a fast host: otherwise it hides the small reductions of this small model.
    fast = _predicted(1e-3, data=8)
    slow = _predicted(1e-3, data=8, nodes=8, cluster="tbd-ethernet")
    assert _predicted(1e-3).seconds < fast.seconds < slow.seconds
    assert fast.exposed_s < slow.exposed_s


def test_micro_batches_are_counted() -> None:
    one, many = _predicted(data=8), _predicted(data=8, microbatches=9)
    assert many.seconds > 4 * one.stages[0].forward_s
    assert many.samples == 9 * (one.samples or 0)


def test_what_has_no_meaning_for_several_gpus_is_refused() -> None:
    with pytest.raises(InvalidInput, match="graphed cannot be used together"):
        wavecast.predict(_step(), GPU, graphed=True, parallel=Parallel(data=2))  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="no network is known for lambda-pcie; use at most"):
        _predicted(data=64, cluster="lambda-pcie")
    with pytest.raises(UnknownName, match="no-such"):
        _predicted(data=2, cluster="no-such-cluster")


def test_memory_is_that_of_the_fullest_rank() -> None:
    alone = wavecast.memory(_step(), GPU)
    sharded = wavecast.memory(_step(), GPU, parallel=Parallel(data=8, shard=3))
    assert sharded.by_kind["optimizer state"] < alone.by_kind["optimizer state"] / 7  # type: ignore[operator]
