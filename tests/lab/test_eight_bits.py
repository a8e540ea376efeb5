"""Products of blocks in 8 bits, with the casts that Transformer Engine makes."""

from __future__ import annotations

import pytest
from parallel_steps import small_gpt2_step

from lab.measured.eight_bits import in_eight_bits
from wavecast import ops
from wavecast.parallel.spreading import spread
from wavecast.parallel.strategy import Parallel
from wavecast.traces.step import Call, Phase, Trace

PRODUCTS = ("aten.mm", "aten.addmm")


def _products(trace: Trace, inside: bool) -> list[Call]:
    return [c for c in trace if c.op.base in PRODUCTS and ("blocks" in c.module) is inside]


@pytest.mark.parametrize("strategy", [Parallel(data=2), Parallel(tensor=2), Parallel(pipeline=2)])
def test_the_products_of_blocks_are_scaled_and_the_head_stays(strategy: Parallel) -> None:
    step = spread(small_gpt2_step(), strategy)
    narrow = in_eight_bits(step)
    for group, made in zip(step.groups, narrow.groups, strict=True):
        whole, part = group.parts[0].last, made.parts[0].last
        scaled = [call for call in part if call.op.base == "aten._scaled_mm"]
        blocks = _products(whole, inside=True)
        assert len(scaled) == len(blocks) > 0
        assert not _products(part, inside=True)
        assert len(_products(part, inside=False)) == len(_products(whole, inside=False))
        for call, one in zip(blocks, scaled, strict=True):
            assert one.op.outputs == call.op.outputs
            assert one.op.inputs[0].dtype.startswith("float8")
            assert ops.executed_flops(one.op) == pytest.approx(ops.executed_flops(call.op), rel=0.1)
        casts = [c for c in part if c.op.outputs and c.op.outputs[0].dtype == "float8_e4m3fn"]
        forward = [c.module for c in casts if c.phase is Phase.FORWARD]
        # Norms and activations write 8 bits themselves, attention does not.
        assert forward
        assert all(module.endswith("attention.project") for module in forward)
        back = {c.module.rpartition("blocks.")[2][2:] for c in casts if c.phase is Phase.BACKWARD}
        assert back == {"attention.query_key_value", "attention.project", "feed_forward.2"}
        assert part.calls[made.parts[0].end - 1].phase == whole.calls[group.parts[0].end - 1].phase
