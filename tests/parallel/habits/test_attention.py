"""The attention kernels of frameworks that bring their own."""

from __future__ import annotations

from functools import partial

import pytest

import wavecast
from wavecast import Parallel, ops
from wavecast.errors import InvalidInput
from wavecast.parallel.habits import with_attention
from wavecast.predictors.attainable import first_flash
from wavecast.predictors.base import Estimate
from wavecast.traces.step import Op, TensorSpec, Trace

GPU = "a100-sxm-80gb"


def _decoder(gpu: str = GPU, *, fused: bool = True, heads: int = 4, seq: int = 2048) -> Trace:
    from wavecast.suite.decoders import gpt

    sizes = {"layers": 2, "hidden": 128 * heads, "heads": heads, "ffn": 512 * heads, "vocab": 512}
    given = {"kv_heads": heads, "fused_attention": fused, "dropout": 0.0, "seq": seq}
    make = partial(gpt, 2, "bf16", **sizes, **given)
    trace = wavecast.trace(make, samples=2, gpu=gpu)
    assert isinstance(trace, Trace)
    return trace


def _attention(*, backward: bool, width: int = 128) -> Op:
    whole = TensorSpec((4, 16, 8192, width), "bfloat16")
    name = "aten._scaled_dot_product_flash_attention"
    inputs, outputs = ((whole,) * 5, (whole,) * 3) if backward else ((whole,) * 3, (whole,))
    return Op(name + "_backward" * backward, inputs, outputs, (("is_causal", True),))


@pytest.mark.parametrize(("backward", "low", "high"), [(False, 0.30, 0.50), (True, 0.25, 0.35)])
def test_the_first_kernels_attain_the_published_shares(
    backward: bool, low: float, high: float
) -> None:
    op, gpu = _attention(backward=backward), wavecast.device(GPU)
    estimate, flops, peak = (
        first_flash(op, gpu, None),
        ops.executed_flops(op),
        gpu.rate(ops.unit(op)),
    )
    assert estimate is not None
    assert flops is not None
    assert peak is not None
    assert low < flops / estimate.seconds / peak < high
    assert flops / estimate.low_s / peak == pytest.approx(high)
    assert flops / estimate.high_s / peak == pytest.approx(low)


def test_hopper_runs_them_with_the_instructions_of_ampere() -> None:
    op, peaks = _attention(backward=False), []
    for name in (GPU, "h100-sxm-80gb"):
        gpu = wavecast.device(name)
        estimate, peak = first_flash(op, gpu, None), gpu.rate(ops.unit(op))
        assert estimate is not None
        assert peak is not None
        peaks.append(1 / estimate.seconds / peak)
    assert peaks[1] / peaks[0] == pytest.approx(0.63)


@pytest.mark.parametrize("gpu", [GPU, "h100-sxm-80gb"])
def test_a_step_takes_longer_with_the_first_kernels(gpu: str) -> None:
    trace = _decoder(gpu, heads=16, seq=16384)
    later, first = (
        wavecast.predict(trace, gpu, parallel=strategy).gpu_s
        for strategy in (
            Parallel(data=2, shard=3, flash_attention=True),
            Parallel(data=2, shard=3, first_flash_attention=True),
        )
    )
    assert later < first < 2 * later


def test_few_sequences_take_as_long_as_with_later_kernels() -> None:
    op, gpu = _attention(backward=False), wavecast.device(GPU)
    later = Estimate(1.0, 0.9, 1.1, "later")
    assert first_flash(op, gpu, later) == later


def _deepseek(gpu: str) -> Trace:
    from wavecast.suite.decoders import llama

    sizes = {"layers": 1, "hidden": 1024, "heads": 16, "head_size": 128, "ffn": 1024, "vocab": 512}
    make = partial(llama, 1, "bf16", kv_heads=16, seq=4096, kv_rank=512, q_rank=512, **sizes)
    trace = wavecast.trace(make, samples=1, gpu=gpu)
    assert isinstance(trace, Trace)
    return trace


def test_cudnn_computes_deepseeks_heads_several_times_as_fast_on_blackwell() -> None:
    # The kernel that torch takes was said to need 78 ms where cuDNN's needs 13 (four layers of
    # DeepSeek-V2).
    trace = _deepseek("b200")
    changed = with_attention(trace, Parallel(cudnn_attention=True))

    def attention_s(step: Trace) -> float:
        estimates = wavecast.predict(step, "b200").estimates
        fused = [op for op in step.counts if ops.kind(op) is ops.Kind.ATTENTION]
        return sum(known.seconds for op in fused if (known := estimates[op]) is not None)

    assert {call.op.base for call in changed if "attention" in call.op.name} == {
        "aten._scaled_dot_product_cudnn_attention",
        "aten._scaled_dot_product_cudnn_attention_backward",
    }
    assert attention_s(changed) < attention_s(trace) / 4
    before, after = (
        [op for call in step if ops.kind(op := call.op) is not ops.Kind.ATTENTION]
        for step in (trace, changed)
    )
    assert before == after


def test_cudnn_has_no_kernel_for_such_heads_before_hopper() -> None:
    with pytest.raises(InvalidInput, match="no kernel for heads of 192 and 128"):
        with_attention(_deepseek(GPU), Parallel(cudnn_attention=True))


@pytest.mark.parametrize(
    "strategy", [Parallel(first_flash_attention=True), Parallel(cudnn_attention=True)]
)
def test_a_step_without_fused_attention_is_refused(strategy: Parallel) -> None:
    with pytest.raises(InvalidInput, match="the step has none"):
        with_attention(_decoder(fused=False), strategy)


def test_a_framework_has_one_of_the_kernels() -> None:
    with pytest.raises(InvalidInput, match="choose one"):
        Parallel(flash_attention=True, first_flash_attention=True)
