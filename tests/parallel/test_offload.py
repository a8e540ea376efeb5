"""Optimizer states in the host's memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from parallel_steps import small_gpt2_step

import wavecast
from wavecast.errors import InvalidInput
from wavecast.hardware.clusters import Cluster, cluster
from wavecast.hardware.hosts import REFERENCE_HOST, update_rate
from wavecast.parallel.sharded import UPDATE, HostUpdate
from wavecast.parallel.spreading import backward_end, spread
from wavecast.parallel.strategy import Parallel
from wavecast.planning.layouts import RankWork
from wavecast.steps.op_times import ClusterPredictor, host_update
from wavecast.steps.request import ParallelSteps, on_cluster, predict_parallel
from wavecast.targets.targets import parse_parallel
from wavecast.traces.step import Call, Role, Trace

HIDDEN = REFERENCE_HOST.scaled(1e-3)
ALONE = Parallel(offload="optimizer")


def _weight_bytes(trace: Trace) -> int:
    return sum(a.nbytes for a in trace.allocations if a.role is Role.PARAMETER)


def _last(strategy: Parallel) -> Trace:
    return spread(small_gpt2_step(4), strategy).groups[0].parts[0].last


def _copied(trace: Trace, place: str) -> int:
    """The bytes of copies to a place."""
    copies = [call.op.outputs[0] for call in trace if _crosses(call)]
    return sum(tensor.nbytes for tensor in copies if tensor.device == place)


def _crosses(call: Call) -> bool:
    return len({tensor.device for tensor in (*call.op.inputs, *call.op.outputs)}) > 1


def test_states_leave_the_gpu_and_nothing_else_does() -> None:
    trace = small_gpt2_step(4)
    there = wavecast.memory(trace, "h100-sxm-80gb", parallel=Parallel()).by_kind
    gone = wavecast.memory(trace, "h100-sxm-80gb", parallel=ALONE).by_kind
    assert there["optimizer state"]
    assert not gone["optimizer state"]
    assert gone["weights"] == there["weights"]


def test_gradients_go_down_and_weights_come_back_once() -> None:
    weights = _weight_bytes(small_gpt2_step(4))
    last = _last(ALONE)
    assert _copied(last, "cpu") == weights  # gradients, in float32 as the weights
    assert _copied(last, "cuda") == weights


@pytest.mark.parametrize("shard", [1, 2, 3])
def test_each_rank_copies_its_share(shard: int) -> None:
    weights = _weight_bytes(small_gpt2_step(4))
    last = _last(Parallel(data=4, shard=shard, offload="optimizer"))
    assert _copied(last, "cpu") == pytest.approx(weights / 4, rel=0.01)
    assert _copied(last, "cuda") == pytest.approx(weights / 4, rel=0.01)


def test_adam_in_float32_moves_28_bytes_for_each_weight() -> None:
    trace = small_gpt2_step(4)
    update = HostUpdate.of(trace, ALONE)
    elements = _weight_bytes(trace) / 4
    assert update.held_bytes == pytest.approx(12 * elements, rel=0.01)
    [traffic] = update.call(1).op.inputs
    assert traffic.nbytes == pytest.approx(28 * elements, rel=0.01)


def test_zero_offload_updates_ten_billion_weights_in_its_published_time() -> None:
    """Ren et al. 2021, table 4: 2.57 s for 10 billion parameters on a DGX-2."""
    update = HostUpdate(held_bytes=120 * 10**9, down_bytes=40 * 10**9, up_bytes=20 * 10**9)
    estimate = host_update(update.call(1).op, cluster("dgx-2"))
    assert estimate is not None
    assert estimate.seconds == pytest.approx(2.57, rel=0.01)


def test_the_gpus_of_a_machine_share_its_memory() -> None:
    update, machine = HostUpdate(10**9, 0, 0), cluster("dgx-h100")
    alone, eight, more = (host_update(update.call(n).op, machine) for n in (1, 8, 64))
    assert alone is not None
    assert eight is not None
    assert more is not None
    assert eight.seconds == pytest.approx(8 * alone.seconds)
    assert more.seconds == eight.seconds


@pytest.mark.parametrize("shard", [1, 2, 3])
def test_the_step_waits_for_the_host(shard: int) -> None:
    predictor = on_cluster(wavecast.device("h100-sxm-80gb"), ALONE)
    steps = ParallelSteps(small_gpt2_step(4), predictor, HIDDEN)
    strategy = Parallel(data=4, shard=shard, offload="optimizer")
    timed = steps.rank_trace(strategy)
    work = RankWork(timed, backward_end(timed.trace), predictor)
    [op] = {call.op for call in _last(strategy) if call.op.name == UPDATE}
    prediction = steps.predict(steps.spread(strategy))
    assert prediction.seconds >= work.least_s(strategy) >= work.whole_s + predictor.known_s(op)
    assert any("the host keeps about" in note for note in prediction.notes)


def test_a_host_of_unknown_memory_is_refused() -> None:
    known = cluster("dgx-h100")
    unknown = replace(known, node=replace(known.node, processor=None))
    assert update_rate(unknown) is None
    with pytest.raises(InvalidInput, match="its bandwidth is not known for dgx-h100"):
        predict_parallel(small_gpt2_step(4), ALONE, _on(unknown), HIDDEN)
    stated = replace(known, node=replace(unknown.node, memory_bytes_per_s=1e11))
    assert predict_parallel(small_gpt2_step(4), ALONE, _on(stated), HIDDEN).seconds > 0


def _on(machines: Cluster) -> ClusterPredictor:
    return on_cluster(wavecast.device("h100-sxm-80gb"), ALONE).on(machines)


def test_replicas_that_share_nothing_are_refused() -> None:
    with pytest.raises(InvalidInput, match="needs shard=1, 2 or 3"):
        Parallel(data=4, offload="optimizer")
    with pytest.raises(InvalidInput, match="offload is 'weights'; what can be offloaded is none"):
        parse_parallel("offload=weights")


def test_the_last_micro_batch_adds_no_negative_time() -> None:
    """It adds up no gradients and issues no optimizer, so that its host may be done earlier."""
    strategy = Parallel(microbatches=4, offload="optimizer")
    predictor = on_cluster(wavecast.device("h100-sxm-80gb"), strategy)
    prediction = predict_parallel(small_gpt2_step(4), strategy, predictor, REFERENCE_HOST)
    assert prediction.stages[0].last_s >= 0
