"""Predicted steps on several GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from parallel_steps import small_gpt2_step

import wavecast
from wavecast import Parallel, Prediction
from wavecast.analysis.profile import profile_predicted
from wavecast.errors import InvalidInput, UnknownName
from wavecast.frameworks.pytorch.capture.tracing import capture
from wavecast.hardware.devices import Device
from wavecast.hardware.hosts import REFERENCE_HOST, Host
from wavecast.predictors.base import Estimate, Familiarity, Predictor
from wavecast.steps.prediction import comparable
from wavecast.steps.ranges import (
    COMMUNICATION,
    LAYERED,
    RangeParts,
    gpu_factors,
    host_factors,
    parts_of,
)
from wavecast.suite.decoders import gpt
from wavecast.traces.recomputed import recomputed
from wavecast.traces.step import Op, Trace

GPU = "h100-sxm-80gb"


def _step() -> Trace:
    return small_gpt2_step()


def _predicted(host_factor: float = 1.0, **axes: Any) -> wavecast.Prediction:
    return wavecast.predict(_step(), GPU, host_factor=host_factor, parallel=Parallel(**axes))


def test_one_gpu_takes_as_long_as_without_a_strategy() -> None:
    alone = wavecast.predict(_step(), GPU)
    spread = _predicted()
    assert spread.seconds == pytest.approx(alone.seconds, rel=0.05)
    assert spread.throughput == pytest.approx(2 / spread.seconds)
    assert spread.unpredicted == {}


@pytest.mark.parametrize(
    "axes",
    [
        {"data": 8},
        {"data": 8, "shard": 1},
        {"data": 16, "shard": 3, "shard_group": 8},
        {"pipeline": 2, "microbatches": 4},
        {"data": 2, "pipeline": 2, "microbatches": 4, "schedule": "zero-bubble"},
        {"data": 8, "microbatches": 2, "cluster": "pcie-8"},
        {"data": 8, "shard": 3, "microbatches": 2, "cluster": "pcie-8"},
        {"data": 2, "tensor": 2, "pipeline": 2, "microbatches": 4, "cluster": "pcie-8"},
    ],
)
def test_every_strategy_gives_a_time_inside_its_range(axes: dict[str, Any]) -> None:
    step = _predicted(**axes)
    assert step.low_s is not None
    assert step.high_s is not None
    assert step.parallel is not None
    assert 0 < step.low_s <= step.seconds <= step.high_s
    assert all(0 <= stage.exposed_s <= step.seconds for stage in step.stages)
    assert all(stage.exposed_s <= stage.communication_s + 1e-9 for stage in step.stages)
    assert step.gpus == len(step.stages) * step.stages[0].ranks
    assert step.samples == 2 * step.microbatches * step.parallel.data


def test_reductions_cost_time_and_slow_links_more() -> None:
    # With a fast host: otherwise it hides the small reductions of this small model.
    fast = _predicted(1e-3, data=8)
    slow = _predicted(1e-3, data=8, nodes=8, cluster="tbd-ethernet")
    assert _predicted(1e-3).seconds < fast.seconds < slow.seconds
    assert fast.exposed_s < slow.exposed_s


def test_accumulating_gradients_alone_is_no_gain() -> None:
    # One GPU that accumulates as well updates its weights once, too.
    single, many = _predicted(data=8), _predicted(data=8, microbatches=64)
    assert single.efficiency < many.efficiency <= 1
    assert _predicted(microbatches=64).efficiency == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("axes", "launches"),
    [
        ({"data": 8}, 1),
        ({"data": 8, "shard": 3, "microbatches": 4}, 4),
        ({"data": 2, "pipeline": 2, "microbatches": 4}, 8),
    ],
)
def test_each_micro_batch_or_pass_is_one_cuda_graph(axes: dict[str, Any], launches: int) -> None:
    alone, strategy = replace(REFERENCE_HOST, node_s=0.0), Parallel(**axes)

    def step(host: Host, graphed: bool) -> Prediction:
        return wavecast.predict(_step(), GPU, host=host, graphed=graphed, parallel=strategy)

    plain, graphed = step(alone, False), step(alone, True)
    group = graphed._optimizer_step.groups[0]
    launched_s = sum(
        timed.step.host_s * times for timed, times in group.runs(strategy.microbatches)
    )
    assert launched_s == pytest.approx(launches * alone.graph_s)
    assert graphed.seconds < plain.seconds  # of a small model, which waits for its host
    assert graphed.low_s is not None
    # Collectives run as before, with a shorter gap after each.
    assert graphed.stages[0].communication_s > 0.8 * plain.stages[0].communication_s


def test_what_no_cuda_graph_can_hold_is_refused() -> None:
    host = Parallel(data=2, shard=3, offload="optimizer")
    with pytest.raises(InvalidInput, match="offload=optimizer updates weights on the host"):
        wavecast.predict(_step(), GPU, graphed=True, parallel=host)
    waits = replace(_step(), calls=tuple(replace(c, syncs=True) for c in _step().calls))
    with pytest.raises(InvalidInput, match="a CUDA graph cannot wait for the GPU"):
        wavecast.predict(waits, GPU, graphed=True, parallel=Parallel(data=2))


def test_what_has_no_meaning_for_several_gpus_is_refused() -> None:
    with pytest.raises(InvalidInput, match="origin cannot be used together"):
        wavecast.predict(_step(), GPU, origin=GPU, parallel=Parallel(data=2))
    with pytest.raises(InvalidInput, match="no network is known for lambda-pcie; use at most"):
        _predicted(data=64, cluster="lambda-pcie")
    with pytest.raises(UnknownName, match="no-such"):
        _predicted(data=2, cluster="no-such-cluster")


def test_memory_is_that_of_the_fullest_rank() -> None:
    alone = wavecast.memory(_step(), GPU)
    sharded = wavecast.memory(_step(), GPU, parallel=Parallel(data=8, shard=3))
    assert sharded.by_kind["optimizer state"] < alone.by_kind["optimizer state"] / 7  # type: ignore[operator]


def test_a_rank_has_all_that_a_step_on_one_gpu_has() -> None:
    step = _predicted(data=4, microbatches=3)
    assert step.fits is True
    assert step.memory == wavecast.memory(_step(), GPU, parallel=Parallel(data=4, microbatches=3))
    parts = {part.name: part for part in step.by_op()}
    assert parts["nccl.all_reduce"].calls == _collectives(step)
    alone = {part.name: part for part in wavecast.predict(_step(), GPU).by_op()}
    assert parts["aten.native_layer_norm"].calls == 3 * alone["aten.native_layer_norm"].calls
    for shares in (step.by_op(), step.by_module(), step.sources()):
        assert sum(share.gpu_s for share in shares) == pytest.approx(step.gpu_s)
    assert sum(step.by_phase().values()) == pytest.approx(step.gpu_s)
    profile = profile_predicted("step", step)
    assert profile.gpu_s + sum(profile.idle_s.values()) == pytest.approx(step.seconds)


def _collectives(step: Prediction) -> int:
    assert step.spread is not None
    return sum(call.op.name == "nccl.all_reduce" for call in step.spread.groups[0].parts[0].last)


def test_one_gpu_is_one_group_of_one_rank() -> None:
    step = wavecast.predict(_step(), GPU)
    [stage] = step.stages
    assert (step.gpus, step.name, step.efficiency, stage.ranks) == (1, GPU, 1.0, 1)
    assert step.seconds == step.single_s == stage.forward_s + stage.backward_s
    assert (step.exposed_s, step.idle_s, step.waiting_s) == (0, 0, 0)
    assert (step.parallel, step.cluster, step.spread) == (None, None, None)


def test_recomputed_ops_cost_the_host_the_same_on_one_gpu_and_on_several() -> None:
    trace = capture(lambda: gpt(1, "bf16", layers=2, hidden=64, heads=2, seq=32, recompute="full"))
    assert recomputed(trace.calls)
    host = REFERENCE_HOST.scaled(100)  # only the host counts
    alone = wavecast.predict(trace, GPU, host=host)
    spread = wavecast.predict(trace, GPU, host=host, parallel=Parallel())
    assert spread.host_s == pytest.approx(alone.host_s)
    assert spread.seconds == pytest.approx(alone.seconds)
    as_gradients = [replace(call, module="") for call in trace]
    assert alone.host_s > host.issue_times(as_gradients).sum()


class Knows(Predictor):
    """A predictor that gives one answer for some ops, valid or not, and none for others."""

    def __init__(self, answer: Any, names: tuple[str, ...]) -> None:
        self.answer, self.names = answer, names

    def predict(self, op: Op, device: Device) -> Any:
        return self.answer if op.base in self.names else None


def test_what_could_not_be_predicted_counts_on_several_gpus_too() -> None:
    little = Knows(Estimate(1e-5, 1e-5, 1e-5, "me"), ("aten.native_layer_norm",))
    step = wavecast.predict(_step(), GPU, predictor=little, parallel=Parallel(data=2))
    assert "aten.mm" in {name.removesuffix(".default") for name in step.unpredicted}
    assert step.unpredicted_share == max(step.unpredicted_shares.values()) > 0.5
    assert not comparable(step)
    assert comparable(_predicted(data=2))


def test_what_takes_half_of_a_step_is_named() -> None:
    slow = _predicted(1e-3, data=8, nodes=8, cluster="tbd-ethernet")
    assert slow.bound_by == "communication"
    deep = small_gpt2_step(4)
    staged = wavecast.predict(deep, GPU, host_factor=1e-3, parallel=Parallel(pipeline=4))
    assert staged.bound_by == "pipeline bubble"
    assert _predicted(100, data=2).bound_by == "host"


def test_the_range_holds_faster_and_slower_hosts_where_they_set_the_pace() -> None:
    slow, quick = _predicted(host_factor=50.0, data=2), _predicted(host_factor=0.01, data=2)
    factors = host_factors(known=False)
    assert factors is not None
    assert slow.bound_by == "host"
    assert slow.low_s == pytest.approx(slow.seconds * factors.low, rel=0.1)
    assert slow.high_s == pytest.approx(slow.seconds * factors.high, rel=0.1)
    assert quick.low_s is not None
    assert quick.low_s > quick.seconds * factors.low


def test_a_range_reaches_beyond_that_of_one_gpu() -> None:
    step = _predicted(host_factor=0.01, data=2)
    alone = gpu_factors(Familiarity.MEASURED, step.makeup)
    assert alone is not None
    assert step.low_s is not None
    assert step.high_s is not None
    computing = 1 - step.exposed_s / step.seconds
    assert step.low_s < step.seconds * alone.low**computing
    assert step.high_s > step.seconds * alone.high**computing


def test_the_parts_of_a_range_say_what_the_step_is_spent_on() -> None:
    plain, layered = _predicted(data=2), _predicted(tensor=2, pipeline=2)
    parts = [_parts(step) for step in (plain, layered)]
    exposed = plain.exposed_s / plain.seconds
    assert parts[0].weight == pytest.approx(1 + COMMUNICATION * exposed)
    assert parts[0].computing == pytest.approx(1 - exposed)
    assert parts[1].weight > 1 + LAYERED


def _parts(step: Prediction) -> RangeParts:
    assert step.ranks is not None
    times = step.seconds, step.host_s, step.exposed_s, step.idle_s
    parts = parts_of(step.ranks, step.makeup, *times)
    assert parts is not None
    return parts


def test_a_predictor_whose_steps_were_never_compared_gives_no_range() -> None:
    known = Knows(Estimate(1e-5, 1e-5, 1e-5, "me"), ("aten.mm", "aten.addmm"))
    step = wavecast.predict(_step(), GPU, predictor=known, parallel=Parallel(data=2))
    assert step.low_s is None
    assert step.high_s is None
