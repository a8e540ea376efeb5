"""Traces of deep models from traces of three blocks."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest

from lab.measured.deeper_traces import deeper
from lab.measured.fused_kernels import ROTARY, fused, sequence_first
from wavecast.frameworks.tracing import trace
from wavecast.suite.decoders import gpt, llama, mixtral
from wavecast.traces.step import Role, Trace

SMALL: dict[str, Any] = {"hidden": 32, "heads": 4, "seq": 16, "vocab": 64}
UNFUSED = partial(gpt, 2, "fp16", weights="fp16", fused_attention=False, recompute="full")
GROUPED = partial(llama, 2, "bf16", weights="bf16", kv_heads=2, ffn=48)
ADAPTED = partial(GROUPED, lora=4)
EXPERTS = partial(mixtral, 2, "bf16", weights="bf16", kv_heads=2, ffn=48, dense_layers=1)


def _traced(make: Any, layers: int) -> Trace:
    step = trace(partial(make, layers=layers, **SMALL))
    assert isinstance(step, Trace)
    return step


@pytest.mark.parametrize("make", [UNFUSED, GROUPED, ADAPTED, EXPERTS])
def test_a_deeper_trace_is_that_of_the_deeper_model(make: Any) -> None:
    made, real = deeper(_traced(make, 3), 6), _traced(make, 6)
    assert list(made) == list(real)
    for role in (Role.PARAMETER, Role.OPTIMIZER_STATE):
        sizes = [
            Counter((a.nbytes, a.module) for a in step.allocations if a.role is role)
            for step in (made, real)
        ]
        assert sizes[0] == sizes[1]
    ready = [
        sorted(a.born for a in s.allocations if a.role is Role.GRADIENT and a.born is not None)
        for s in (made, real)
    ]
    assert ready[0] == ready[1]


def test_a_fused_module_is_one_kernel() -> None:
    step = _traced(GROUPED, 3)
    calls = [c for c in fused(step, ROTARY) if c.module.endswith("blocks.1.attention.key_rotary")]
    assert [c.op.name for c in calls] == ["aten.mul.Tensor"] * 2
    assert all(c.op.outputs[0].shape == (2, 2, 16, 8) for c in calls)


def test_without_copies_the_products_of_attention_read_views() -> None:
    step = _traced(UNFUSED, 3)

    def copies(one: Trace) -> int:
        return sum(c.op.base == "aten.clone" and c.module.endswith("s.1.attention") for c in one)

    assert copies(step) - copies(sequence_first(step)) == 6  # three, and again when recomputed
