"""The memory of one rank where a framework keeps gradients in buffers of its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest

import wavecast
from wavecast.footprint.memory import memory_of_rank
from wavecast.parallel.gradients import framework_buckets, gradients, parameters
from wavecast.parallel.ranks import memory_trace
from wavecast.parallel.spreading import spread
from wavecast.parallel.strategy import ONE_BUFFER, Parallel
from wavecast.suite.decoders import llama, mixtral
from wavecast.traces.step import Role, Trace

MEGATRON: dict[str, Any] = {
    "microbatches": 4,
    **dict.fromkeys(("fused_rotary", "fused_gates", "fused_accumulation", "fused_loss"), True),
}
TENSOR: dict[str, Any] = {"sequence": True, "gathers_again": True}
LARGE: dict[str, Any] = {"layers": 12, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28_672}
SMALL: dict[str, Any] = {"layers": 2, "hidden": 256, "heads": 4, "kv_heads": 4, "ffn": 512}


@cache
def _deepseek() -> Trace:
    sizes: dict[str, Any] = {"layers": 4, "hidden": 5120, "heads": 128, "kv_heads": 128}
    latent = {"head_size": 128, "kv_rank": 512, "q_rank": 1536}
    experts = {"experts": 160, "top_k": 6, "shared_experts": 2, "ffn": 1536}
    dense = {"dense_layers": 1, "dense_ffn": 12_288, "vocab": 102_400, "seq": 4096}
    make = partial(mixtral, 1, "bf16", weights="bf16", **sizes, **latent, **experts, **dense)
    trace = wavecast.trace(make, gpu="b200")
    assert isinstance(trace, Trace)
    return trace


@cache
def _decoder(large: bool = False, weights: str = "bf16") -> Trace:
    sizes = {**LARGE, "seq": 4096} if large else {**SMALL, "vocab": 512, "seq": 64}
    trace = wavecast.trace(partial(llama, 1, "bf16", weights=weights, tied=False, **sizes))
    assert isinstance(trace, Trace)
    return trace


def _held(trace: Trace, strategy: Parallel, role: Role) -> int:
    group = spread(trace, strategy).groups[0]
    kept = memory_trace(spread(trace, strategy), group).allocations
    return sum(memory.nbytes for memory in kept if memory.role is role)


@pytest.mark.parametrize(
    ("strategy", "stage", "measured_gib"),
    [
        (Parallel(data=4, shard=1, tensor=2, **TENSOR, **MEGATRON), 0, 60.68),
        (Parallel(data=2, shard=1, tensor=4, **TENSOR, **MEGATRON), 0, 39.07),
        (Parallel(tensor=8, **TENSOR, **MEGATRON), 0, 28.29),
        (Parallel(data=4, shard=1, pipeline=2, **MEGATRON), 0, 66.55),
        (Parallel(data=4, shard=1, pipeline=2, **MEGATRON), 1, 62.97),
    ],
)
def test_megatrons_ranks_need_what_was_measured(
    strategy: Parallel, stage: int, measured_gib: float
) -> None:
    # Megatron-LM 23e00ed on eight B200, Llama 3 70B with 12 layers: the peak of allocated memory of
    # a rank (github.com/MooreThreads/SimuMax @ 4dcaae513ba7, Apache-2.0, docs/b200).
    step = spread(_decoder(large=True), strategy)
    rank = memory_trace(step, step.groups[stage])
    predicted = memory_of_rank(rank, strategy, wavecast.device("b200")).peak_bytes / 2**30
    assert predicted == pytest.approx(measured_gib, rel=0.02)


@pytest.mark.parametrize(
    ("strategy", "stage", "measured_gib"),
    [
        (Parallel(data=8, expert=8, shard=1, **MEGATRON), 0, 45.63),
        (Parallel(data=4, expert=4, shard=1, pipeline=2, **MEGATRON), 0, 31.58),
        (Parallel(data=4, expert=4, shard=1, pipeline=2, **MEGATRON), 1, 44.70),
    ],
)
def test_ranks_with_experts_need_what_was_measured(
    strategy: Parallel, stage: int, measured_gib: float
) -> None:
    # The same source: DeepSeek-V2 with 4 layers, of which one is dense.
    step = spread(_deepseek(), replace(strategy, fused_experts=True, cudnn_attention=True))
    rank = memory_trace(step, step.groups[stage])
    predicted = memory_of_rank(rank, strategy, wavecast.device("b200")).peak_bytes / 2**30
    assert predicted == pytest.approx(measured_gib, rel=0.035)


@pytest.mark.parametrize("bucket_bytes", [None, 100_000, ONE_BUFFER])
@pytest.mark.parametrize("shard", [0, 1])
def test_sums_in_float32_are_reduced_where_they_lie(shard: int, bucket_bytes: int | None) -> None:
    trace = _decoder()
    elements = sum(memory.nbytes for memory in parameters(trace)) // 2
    strategy = Parallel(data=4, shard=shard, bucket_bytes=bucket_bytes)
    assert _held(trace, strategy, Role.GRADIENT) == 4 * elements
    narrow = Parallel(data=4, shard=shard, bucket_bytes=bucket_bytes, reduce_in_16_bits=True)
    assert _held(trace, narrow, Role.GRADIENT) == 2 * elements
    copied = [
        call
        for call in spread(trace, strategy).groups[0].parts[0].last
        if call.op.name in ("aten.copy_", "aten.mul.Tensor") and not call.reads
    ]
    assert not copied


@pytest.mark.parametrize("weights", ["bf16", "fp32"])
@pytest.mark.parametrize("shard", [0, 1, 2, 3])
def test_reductions_in_16_bits_send_half(shard: int, weights: str) -> None:
    trace = _decoder(weights=weights)

    def sent(narrow: bool) -> int:
        strategy = Parallel(data=4, shard=shard, reduce_in_16_bits=narrow)
        last = spread(trace, strategy).groups[0].parts[0].last
        reductions = ("nccl.all_reduce", "nccl.reduce_scatter")
        return sum(call.op.inputs[0].nbytes for call in last if call.op.name in reductions)

    assert sent(narrow=True) == pytest.approx(sent(narrow=False) / 2, rel=1e-3)


def test_a_stage_2_keeps_shares_and_has_whole_buckets_on_the_way() -> None:
    trace, ranks = _decoder(weights="fp32"), 4
    whole = sum(gradient.nbytes for gradient in gradients(trace))
    alone = _held(trace, Parallel(), Role.GRADIENT)
    kept = _held(trace, Parallel(data=ranks, shard=2), Role.GRADIENT)
    assert kept == pytest.approx(alone / ranks, rel=0.01)
    last = spread(trace, Parallel(data=ranks, shard=2)).groups[0].parts[0].last
    [bucket] = [a for a in last.allocations if a.nbytes == whole]
    assert bucket.role is Role.INTERMEDIATE


@pytest.mark.parametrize(
    ("weights", "strategy", "most_elements"),
    [
        ("fp32", Parallel(data=4), (25 << 20) // 4),
        ("bf16", Parallel(data=4), 40_000_000),
        ("bf16", Parallel(data=64, shard=1), 64_000_000),
        ("fp32", Parallel(data=4, shard=1), 500_000_000),
        ("bf16", Parallel(data=4, shard=2), 500_000_000),
        ("bf16", Parallel(data=4, shard=2, bucket_bytes=4_000_000), 1_000_000),
    ],
)
def test_buckets_are_those_of_the_framework(
    weights: str, strategy: Parallel, most_elements: int
) -> None:
    gradient = gradients(_decoder(weights=weights))[0]
    size = most_elements * 4 // 10
    ready = [gradient.__class__(size, n, "", "float32", "w", gradient.in_place) for n in range(25)]
    assert [len(b) for b in framework_buckets(ready, strategy)][-2:] in ([10, 5], [10, 4])


def test_empty_gradients_of_each_shape_take_the_place_of_those_in_16_bits() -> None:
    sizes = {**SMALL, "hidden": 1024, "ffn": 4096, "vocab": 64, "seq": 16}
    trace = wavecast.trace(partial(llama, 1, "bf16", weights="bf16", tied=False, **sizes))
    assert isinstance(trace, Trace)
    fused, plain = (
        spread(trace, Parallel(fused_accumulation=fuses)).groups[0] for fuses in (True, False)
    )
    empty = memory_trace(spread(trace, Parallel(fused_accumulation=True)), fused).allocations[-1]
    # Queries, keys, values and the projection are alike; gate and up are; down is another.
    assert empty.nbytes == 2 * 1024 * (1024 + 4096 + 4096)
    before, after = (
        Counter(a.nbytes for a in group.parts[0].last.allocations) for group in (plain, fused)
    )
    assert before - after == {2 * 1024 * 1024: 4 * 2, 2 * 1024 * 4096: 3 * 2}
