"""Matmuls of blocks in 8 bits, with the casts that Transformer Engine runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from parallel_steps import small_gpt2_step

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.hardware.devices import device
from wavecast.parallel.spreading import spread
from wavecast.parallel.strategy import Parallel
from wavecast.steps.request import default_predictor
from wavecast.traces.step import Call, Op, Phase, TensorSpec, Trace

MATMULS = ("aten.mm", "aten.addmm")


def _matmuls(trace: Trace, inside: bool) -> list[Call]:
    return [c for c in trace if c.op.base in MATMULS and ("blocks" in c.module) is inside]


@pytest.mark.parametrize("strategy", [Parallel(data=2), Parallel(tensor=2), Parallel(pipeline=2)])
def test_the_matmuls_of_blocks_are_scaled_and_the_head_stays(strategy: Parallel) -> None:
    step = spread(small_gpt2_step(), strategy)
    narrow = spread(small_gpt2_step(), replace(strategy, fp8=True))
    for group, other in zip(step.groups, narrow.groups, strict=True):
        wide, part = group.parts[0].last, other.parts[0].last
        scaled = [call for call in part if call.op.base == "aten._scaled_mm"]
        blocks = _matmuls(wide, inside=True)
        assert len(scaled) == len(blocks) > 0
        assert not _matmuls(part, inside=True)
        assert len(_matmuls(part, inside=False)) == len(_matmuls(wide, inside=False))
        for call, in_8_bits in zip(blocks, scaled, strict=True):
            assert in_8_bits.op.outputs == call.op.outputs
            assert in_8_bits.op.inputs[0].dtype.startswith("float8")
            assert ops.executed_flops(in_8_bits.op) == pytest.approx(
                ops.executed_flops(call.op), rel=0.1
            )
        casts = [c for c in part if c.op.outputs and c.op.outputs[0].dtype == "float8_e4m3fn"]
        forward = [c.module for c in casts if c.phase is Phase.FORWARD]
        # Norms and activations write 8 bits themselves, attention does not.
        assert forward
        assert all(module.endswith("attention.project") for module in forward)
        back = {c.module.rpartition("blocks.")[2][2:] for c in casts if c.phase is Phase.BACKWARD}
        assert back == {"attention.query_key_value", "attention.project", "feed_forward.2"}


def test_what_is_cast_takes_memory_until_it_is_read() -> None:
    plain, narrow = (
        spread(small_gpt2_step(), Parallel(data=2, fp8=fp8)).groups[0].parts[0].last
        for fp8 in (False, True)
    )
    casts = [c for c in narrow if c.op.outputs[:1] and _is_cast(c)]
    added = sum(a.nbytes for a in narrow.allocations) - sum(a.nbytes for a in plain.allocations)
    assert added == sum(out.nbytes for c in casts for out in c.op.outputs) > 0


def test_a_cast_with_its_transposed_copy_is_a_pass_over_memory() -> None:
    narrow = spread(small_gpt2_step(), Parallel(data=2, fp8=True)).groups[0].parts[0].last
    [cast, *_] = (c.op for c in narrow if c.op.outputs[:1] and _is_cast(c))
    assert [out.numel for out in cast.outputs] == [cast.inputs[0].numel] * 2
    numel = 1 << 28
    wide, narrow8 = (TensorSpec((numel,), dtype) for dtype in ("bfloat16", "float8_e4m3fn"))
    large = [Op(cast.name, (wide,), (narrow8,) * results) for results in (1, 2)]
    gpu = device("h100-sxm-80gb")
    alone, both = (default_predictor().predict(op, gpu) for op in large)
    assert alone is not None
    assert both is not None
    assert 1 < both.seconds / alone.seconds < 1.5  # 4 bytes an element instead of 3


def _is_cast(call: Call) -> bool:
    return call.op.outputs[0].dtype == "float8_e4m3fn"


def test_a_trace_without_values_is_refused() -> None:
    blind = replace(
        small_gpt2_step(),
        values=(),
        calls=tuple(replace(call, reads=(), writes=()) for call in small_gpt2_step()),
    )
    with pytest.raises(InvalidInput, match="fp8 follows tensors from op to op"):
        spread(blind, Parallel(data=2, fp8=True))
