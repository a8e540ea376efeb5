"""Matmuls that add gradients to their float32 sums, as Megatron's fused kernel does."""

from __future__ import annotations

from functools import partial

import pytest

import wavecast
from wavecast.errors import InvalidInput
from wavecast.parallel.gradients import gradients
from wavecast.parallel.habits import with_fused_accumulation
from wavecast.traces.step import Phase, Trace

LAYERS = 2


@pytest.fixture(scope="module")
def decoder() -> Trace:
    return _traced("bf16")


def _traced(weights: str) -> Trace:
    from wavecast.suite.decoders import llama

    sizes = {"layers": LAYERS, "hidden": 256, "heads": 4, "kv_heads": 4, "ffn": 512}
    make = partial(llama, 1, "bf16", weights=weights, vocab=512, seq=64, tied=False, **sizes)
    trace = wavecast.trace(make, samples=1)
    assert isinstance(trace, Trace)
    return trace


def _sums(trace: Trace) -> int:
    return sum(
        call.op.base == "aten.add_"
        and call.phase is Phase.BACKWARD
        and call.op.inputs[0].dtype == "float32"
        for call in trace
    )


def test_only_gradients_of_matmuls_lose_their_pass(decoder: Trace) -> None:
    fused = with_fused_accumulation(decoder)
    matmuls = 7 * LAYERS + 1  # queries, keys, values, output, gate, up, down; and the logits
    assert _sums(decoder) - _sums(fused) == matmuls
    assert _sums(fused) == 2 * LAYERS + 2  # the norms and the words


def test_the_same_gradients_are_exchanged_as_before(decoder: Trace) -> None:
    before, after = gradients(decoder), gradients(with_fused_accumulation(decoder))
    assert {(g.parameter, g.nbytes, g.dtype) for g in after} == {
        (g.parameter, g.nbytes, g.dtype) for g in before
    }


def test_the_step_takes_less_time_and_the_memory_of_empty_gradients(decoder: Trace) -> None:
    plain, fused = (
        wavecast.predict(
            decoder,
            "h100-sxm-80gb",
            parallel=wavecast.Parallel(data=8, shard=1, microbatches=4, fused_accumulation=on),
        )
        for on in (False, True)
    )
    assert fused.gpu_s < plain.gpu_s
    assert fused.memory is not None
    assert plain.memory is not None
    empty = 2 * (256 * 256 + 2 * 256 * 512)  # one of each shape
    assert fused.memory.peak_bytes <= plain.memory.peak_bytes + empty


def test_a_step_without_sums_in_float32_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no such sums"):
        with_fused_accumulation(_traced("fp32"))
