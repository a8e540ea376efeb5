"""Traces at larger batches: those that follow from two smaller ones, and those that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import call, mm, relu

from wavecast.targets.sources import target_source
from wavecast.targets.targets import resolve
from wavecast.traces.joining import at_batch
from wavecast.traces.step import Allocation, Op, Phase, Role, TensorSpec, Trace


def traced(batch: int) -> Trace:
    calls = (
        call(mm(128 * batch, 64, 64)),
        call(relu(batch, 64), Phase.BACKWARD),
        call(relu(64, 64), Phase.OPTIMIZER),
    )
    held = (
        Allocation(4096, None, None, Role.PARAMETER),
        Allocation(1000 + 256 * batch, 0, 1, Role.INTERMEDIATE),
    )
    return Trace(calls, samples=32 * batch, allocations=held)


def test_sizes_are_lines_in_the_batch() -> None:
    assert at_batch(traced(2), traced(4), (2, 4), 32) == traced(32)


def test_a_product_of_two_batches_does_not_follow() -> None:
    def squared(batch: int) -> Trace:
        return replace(traced(batch), allocations=(Allocation(batch**2, 0, 1, Role.INPUT),))

    assert at_batch(squared(2), squared(4), (2, 4), 8) is None


def test_a_single_sample_and_other_ops_do_not_follow() -> None:
    assert at_batch(traced(1), traced(2), (1, 2), 4) is None
    longer = replace(traced(4), calls=(*traced(4).calls, call(relu(4))))
    assert at_batch(traced(2), longer, (2, 4), 8) is None
    renamed = replace(traced(4), calls=(call(relu(8)), *traced(4).calls[1:]))
    assert at_batch(traced(2), renamed, (2, 4), 8) is None


def test_a_kernel_for_few_rows_and_tensors_beyond_32_bits_do_not_follow() -> None:
    def rows(batch: int, name: str = "aten.relu", each: int = 8) -> Trace:
        spec = TensorSpec((batch, each), "float32")
        return Trace((call(Op(name, (spec,), (spec,))),))

    few = "bitsandbytes.gemm_4bit.default"
    assert at_batch(rows(2, few), rows(4, few), (2, 4), 8) is None
    assert at_batch(rows(2), rows(4), (2, 4), 8) == rows(8)
    assert at_batch(rows(2, each=1 << 28), rows(4, each=1 << 28), (2, 4), 8) is None


@pytest.mark.parametrize("name", ["gpt2", "resnet50"])
def test_a_model_of_the_suite_is_traced_twice_and_the_third_is_equal(name: str) -> None:
    pytest.importorskip("torch")
    target = resolve(name, 2, "bf16")
    source = target_source(target)
    assert source.on(None, 2).samples
    source.on(None, 4)
    derived = source.on(None, 8)
    assert derived == target_source(target.changed(batch=8)).on()
