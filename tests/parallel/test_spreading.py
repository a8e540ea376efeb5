"""What each rank of a parallel step runs, on steps of real models."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from parallel_steps import small_gpt2_step

import wavecast
from wavecast.errors import InvalidInput
from wavecast.footprint.memory import fullest_rank
from wavecast.parallel.gradients import buckets, gradients, parameters
from wavecast.parallel.ranks import ParallelStep, memory_trace
from wavecast.parallel.spreading import spread
from wavecast.parallel.strategy import ONE_BUFFER, Parallel
from wavecast.planning.layouts import RankStates
from wavecast.suite.decoders import gpt
from wavecast.traces.step import Call, Measurement, Phase, Role, Trace


@cache
def _step(layers: int = 2) -> Trace:
    return small_gpt2_step(layers)


def _exchanged(step: ParallelStep, name: str) -> list[Call]:
    return [c for c in step.groups[0].parts[0].last if c.op.name == f"nccl.{name}"]


def _weights(trace: Trace) -> int:
    return sum(a.nbytes for a in parameters(trace))


def test_one_gpu_runs_the_step_as_it_is() -> None:
    part = spread(_step(), Parallel()).groups[0].parts[0]
    assert part.last.calls == _step().calls
    assert part.last.allocations == _step().allocations


def test_ddp_reduces_every_gradient_once_in_torchs_buckets() -> None:
    trace = _step()
    step = spread(trace, Parallel(data=8, bucket_bytes=100_000))
    reduced = _exchanged(step, "all_reduce")
    assert sum(c.op.inputs[0].nbytes for c in reduced) == _weights(trace)
    sizes = [g.nbytes // 4 for g in gradients(trace)]
    tensors = [torch.empty(n, device="meta") for n in sizes]
    limits = [1 << 20, 100_000]
    torchs, _ = torch.distributed._compute_bucket_assignment_by_size(tensors, limits)
    expected = [sum(sizes[i] for i in bucket) * 4 for bucket in torchs]
    assert sorted(c.op.inputs[0].nbytes for c in reduced) == sorted(expected)


def test_one_buffer_is_reduced_once_after_the_backward_pass() -> None:
    trace = _step()
    last = spread(trace, Parallel(data=8, bucket_bytes=ONE_BUFFER)).groups[0].parts[0].last
    names = [call.op.name for call in last]
    at = names.index("nccl.all_reduce")
    assert names.count("nccl.all_reduce") == 1
    assert last.calls[at].op.inputs[0].nbytes == _weights(trace)
    assert Phase.BACKWARD not in {call.phase for call in last.calls[at + 3 :]}
    in_buckets = spread(trace, Parallel(data=8)).groups[0].parts[0].last
    assert len(in_buckets) > len(last) + len(gradients(trace))


@pytest.mark.parametrize("shard", [1, 2])
def test_zero_scatters_gradients_and_gathers_weights(shard: int) -> None:
    trace = _step()
    step = spread(trace, Parallel(data=4, shard=shard))
    assert sum(c.op.inputs[0].nbytes for c in _exchanged(step, "reduce_scatter")) == _weights(trace)
    [gather] = _exchanged(step, "all_gather")
    assert gather.op.outputs[0].nbytes == pytest.approx(_weights(trace), abs=64)
    assert gather.op.attr("ranks") == 4


def test_fsdp_gathers_blocks_twice_and_scatters_once() -> None:
    trace = _step()
    step = spread(trace, Parallel(data=4, shard=3))
    gathers = _exchanged(step, "all_gather")
    scatters = _exchanged(step, "reduce_scatter")
    blocks = Counter(call.module for call in gathers)
    assert blocks.pop("") == 1  # the root stays gathered
    assert set(blocks.values()) == {2}
    assert sum(c.op.inputs[0].nbytes for c in scatters) == _weights(trace)
    kept = spread(trace, Parallel(data=4, shard=3, reshard=False))
    assert len(_exchanged(kept, "all_gather")) == len(blocks) + 1


def test_hsdp_reduces_shards_between_groups() -> None:
    step = spread(_step(), Parallel(data=8, shard=3, shard_group=4))
    assert {c.op.attr("ranks") for c in _exchanged(step, "reduce_scatter")} == {4}
    reduced = _exchanged(step, "all_reduce")
    assert {(c.op.attr("ranks"), c.op.attr("stride")) for c in reduced} == {(2, 4)}


def test_a_rank_holds_its_share_of_states() -> None:
    trace = _step()

    def held(strategy: Parallel, role: Role) -> int:
        last = spread(trace, strategy).groups[0].parts[0].last
        return sum(a.nbytes for a in last.allocations if a.role is role and a.born is None)

    whole, share = Parallel(), Parallel(data=4, shard=3)
    for role in (Role.PARAMETER, Role.OPTIMIZER_STATE):
        assert held(share, role) == pytest.approx(held(whole, role) / 4, rel=0.01)


@pytest.mark.parametrize("virtual", [1, 2])
def test_the_stages_of_a_pipeline_add_up(virtual: int) -> None:
    trace = _step(4)
    step = spread(trace, Parallel(pipeline=2, virtual=virtual, microbatches=4))
    parts = [part for group in step.groups for part in group.parts]
    kept = [a for a in trace.allocations if a.role is Role.GRADIENT and a.born is not None]
    passes = sum(len(part.plain) for part in parts) - len(kept)  # each is added to the one before
    end = max(i for i, c in enumerate(trace) if c.phase is Phase.BACKWARD) + 1
    assert passes == end
    assert sum(_weights(part.last) for part in parts) == _weights(trace)
    assert step.boundary is not None
    assert step.boundary.numel > 0


def test_stages_hold_micro_batches_in_flight() -> None:
    few = fullest_rank(spread(_step(), Parallel(pipeline=2, microbatches=2)), None)
    assert few.peak_bytes > 0
    gpipe = Parallel(pipeline=2, microbatches=8, schedule="gpipe")
    assert fullest_rank(spread(_step(), gpipe), None).peak_bytes > few.peak_bytes


def test_the_last_stage_runs_what_follows_the_blocks() -> None:
    # GPT-2 itself looks positions up before its blocks and computes the logits after them.
    stages = spread(_step(4), Parallel(pipeline=2)).groups
    names = [[call.op.base for call in group.parts[0].plain] for group in stages]
    assert ["aten._log_softmax" in ran for ran in names] == [False, True]
    assert ["aten.embedding" in ran for ran in names] == [True, False]
    assert ["aten.embedding_dense_backward" in ran for ran in names] == [True, False]


def test_a_stage_of_several_parts_holds_the_gradients_of_each_once() -> None:
    step = spread(_step(4), Parallel(pipeline=2, virtual=2, microbatches=4))
    for group in step.groups:
        held = memory_trace(step, group).allocations
        kept = [a for a in held if a.role is Role.GRADIENT and a.freed is None]
        assert sum(a.nbytes for a in kept) == sum(_weights(part.last) for part in group.parts)


def test_more_stages_than_blocks_are_refused_with_what_would_fit() -> None:
    with pytest.raises(InvalidInput, match=r"it has \d+ repeated blocks; use at most \d+"):
        spread(_step(), Parallel(pipeline=64))


def test_a_measured_step_and_a_step_without_backward_pass_are_refused() -> None:
    trace = _step()
    forward = Trace(tuple(c for c in trace if c.phase is Phase.FORWARD))
    with pytest.raises(InvalidInput, match="no backward pass"):
        spread(forward, Parallel(data=2))
    measured = Trace(trace.calls, measurement=Measurement("T4"))
    with pytest.raises(InvalidInput, match="measured on one GPU"):
        spread(measured, Parallel(data=2))


def test_the_first_bucket_is_small() -> None:
    ready = gradients(_step())
    filled = buckets(ready, 25 << 20, first_bytes=1000)
    assert len(filled[0]) < len(ready)
    assert [g for bucket in filled for g in bucket] == ready


def test_later_micro_batches_add_their_gradients() -> None:
    trace = _step()
    new_gradients = [a for a in trace.allocations if a.role is Role.GRADIENT and a.born is not None]
    once = spread(trace, Parallel()).groups[0].parts[0].plain
    several = spread(trace, Parallel(microbatches=4)).groups[0].parts[0].plain
    added = [call.op for call in several if call.op.name == "aten.add_.Tensor"]
    assert len(several) == len(once) + len(new_gradients)
    assert sum(op.outputs[0].nbytes for op in added) >= sum(a.nbytes for a in new_gradients)


def test_weights_in_16_bits_are_gathered_once_and_their_wide_gradients_reduced() -> None:
    small: dict[str, Any] = {"layers": 2, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64}
    trace = wavecast.trace(lambda: gpt(2, "bf16", weights="bf16", **small))
    assert isinstance(trace, Trace)
    weights = sum(a.nbytes for a in trace.allocations if a.role is Role.PARAMETER)

    def moved(strategy: Parallel, name: str, end: str) -> int:
        last = spread(trace, strategy).groups[0].parts[0].last
        ops = [call.op for call in last if call.op.name == name]
        return sum(getattr(op, end)[0].nbytes for op in ops)

    assert moved(Parallel(data=4), "nccl.all_reduce", "inputs") == 2 * weights
    block = Parallel(data=4, shard=3, reshard=False)
    assert moved(block, "nccl.all_gather", "outputs") == pytest.approx(weights, rel=0.01)
    assert moved(block, "nccl.reduce_scatter", "inputs") == pytest.approx(2 * weights, rel=0.01)


@pytest.mark.parametrize("shard", [1, 2, 3])
def test_frozen_weights_are_neither_reduced_nor_gathered_after_the_update(shard: int) -> None:
    small: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 4, "seq": 16, "vocab": 64}
    trace = wavecast.trace(lambda: gpt(2, "bf16", weights="bf16", lora=2, **small))
    assert isinstance(trace, Trace)
    adapters = 4 * 2 * 2 * 64 * 2  # of each layer two matrices: 64 x 2, and 2 x 192
    last = spread(trace, Parallel(data=2, shard=shard)).groups[0].parts[0].last
    reduced = [c.op for c in last if c.op.name == "nccl.reduce_scatter"]
    gathered = [c.op for c in last if c.op.name == "nccl.all_gather" and c.phase is Phase.OPTIMIZER]
    # Gradients have four bytes where weights have two.
    assert sum(op.inputs[0].nbytes for op in reduced) == 2 * adapters
    assert sum(op.outputs[0].nbytes for op in gathered) == (adapters if shard < 3 else 0)


def test_the_search_knows_that_frozen_weights_have_no_gradients() -> None:
    small: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 4, "seq": 16, "vocab": 64}
    trace = wavecast.trace(lambda: gpt(2, "bf16", weights="bf16", lora=2, **small))
    assert isinstance(trace, Trace)
    states, strategy = RankStates.of(trace), Parallel(data=2)
    assert states.least_bytes(strategy) <= fullest_rank(spread(trace, strategy), None).peak_bytes
    assert sum(states.gradients) == sum(gradient.nbytes for gradient in gradients(trace))


def test_float32_copies_for_the_optimizer_are_not_reduced() -> None:
    def make_step() -> Any:
        model = torch.nn.Linear(64, 64, device="cuda").half()
        masters = [p.detach().float() for p in model.parameters()]
        optimizer = torch.optim.SGD(masters, lr=0.1)
        x = torch.randn(8, 64, device="cuda", dtype=torch.float16)

        def step() -> None:
            for weight in model.parameters():
                weight.grad = None
            model(x).float().sum().backward()
            for master, weight in zip(masters, model.parameters(), strict=True):
                master.grad = weight.grad.float()
            optimizer.step()

        return step

    trace = wavecast.trace(make_step)
    assert sum(gradient.nbytes for gradient in gradients(trace)) == 2 * (64 * 64 + 64)
