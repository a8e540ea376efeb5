"""Our rank of each odd block against expert code; the references by hand, and their judge."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

pytest.importorskip("torch")

from parallel.odd_blocks import ODD_BLOCKS
from parallel.odd_blocks_judge import Collective, collectives, compare, compare_ranks
from parallel.odd_blocks_references import RANKS

import wavecast
from wavecast.traces.step import Trace

HIDDEN = 2 * 12 * 64 * 4
"""The bytes of the hidden state: batch, sequence, width, float32."""
PART = HIDDEN // RANKS
SUMMED, SCATTERED = ("all_reduce", HIDDEN), ("reduce_scatter", HIDDEN)
GATHERED = ("all_gather", PART)

BY_HAND: dict[str, list[Collective]] = {
    # Forward: project and down. Backward: the inputs of up, value, key and query.
    "parallel attention and feed-forward": [SUMMED] * 2 * 2 + [SUMMED] * 4 * 2,
    "three layers": [
        *[SUMMED, ("all_reduce", 2 * 12 * 80 * 4), GATHERED] * 2,
        # The inputs of third, first, value, key and query.
        *[("all_reduce", 2 * 12 * 80 * 4), SUMMED, SUMMED, SUMMED, SUMMED] * 2,
    ],
    # The gradient of the one key and value is partial on each rank, and twice a head wide.
    "multi-query": [SUMMED] * 4 + [SUMMED, ("all_reduce", 2 * 12 * 16 * 4), SUMMED] * 2,
    "tied, vocabulary-parallel loss": [
        *[SUMMED] * 5,  # the lookup, and project and down of each block
        *[("all_reduce", 2 * 12 * 4)] * 3,  # the largest logit, the sum, the target's logit
        *[SUMMED] * 9,  # the inputs of output, and of up, value, key and query of each block
    ],
    "sequence parallel, parallel feed-forward": [
        SCATTERED,  # the lookup
        *[GATHERED, SCATTERED, SCATTERED] * 2,  # the norm's output, project, down
        GATHERED,  # the input of the output layer
        ("all_gather", 2 * 12 * 112 * 4 // RANKS),  # the logits
        SCATTERED,  # the gradient of the output layer's input
        *[GATHERED, GATHERED, SCATTERED] * 2,  # of down, of project, of the norm's output
        GATHERED,  # of the lookup
        ("all_reduce", 3 * 2 * 64 * 4),  # of three norms' weights and biases
    ],
}


@cache
def reference(name: str) -> Trace:
    return wavecast.trace(ODD_BLOCKS[name].make_parallel_step, ranks=RANKS)


@pytest.mark.parametrize("name", BY_HAND)
def test_a_reference_has_the_collectives_counted_by_hand(name: str) -> None:
    assert collectives(reference(name)) == BY_HAND[name]


@pytest.mark.parametrize("name", ODD_BLOCKS)
def test_our_rank_does_what_the_expert_code_does(name: str) -> None:
    block = ODD_BLOCKS[name]
    trace = wavecast.trace(block.make_step)
    assert compare(trace, block.strategy, reference(name)).difference is None


def test_a_missing_collective_is_named() -> None:
    block, trace = ODD_BLOCKS["three layers"], reference("three layers")
    at = next(i for i, call in enumerate(trace) if call.op.name == "nccl.all_gather")
    less = replace(trace, calls=trace.calls[:at] + trace.calls[at + 1 :])
    difference = compare_ranks(less, block.strategy, trace).difference
    assert difference is not None
    assert difference.startswith(
        "collective 2 is all_reduce of 6,144 bytes, the reference has all_gather of 1,536 bytes"
    )


@pytest.mark.parametrize("base", ["aten.addmm", "aten.gelu", "aten._foreach_sqrt"])
def test_an_op_of_another_shape_is_named(base: str) -> None:
    name = "parallel attention and feed-forward"
    block, trace = ODD_BLOCKS[name], reference(name)
    at = next(i for i, call in enumerate(trace) if call.op.base == base)
    call = trace.calls[at]
    first = call.op.inputs[0]
    op = replace(call.op, inputs=(replace(first, shape=(7, *first.shape)), *call.op.inputs[1:]))
    calls = (*trace.calls[:at], replace(call, op=op), *trace.calls[at + 1 :])
    difference = compare_ranks(replace(trace, calls=calls), block.strategy, trace).difference
    assert difference is not None
    assert f"{base} has input 0 of ((7, " in difference
