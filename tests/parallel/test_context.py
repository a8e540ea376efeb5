"""Context parallelism: what one rank of a divided sequence computes and sends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from parallel.shapes import misfit
from parallel.traced_models import collectives, flops, held, is_product, traced

import wavecast
from wavecast.errors import InvalidInput
from wavecast.parallel.layers import context_axis, is_attention, with_layers_sharded
from wavecast.parallel.strategy import Parallel
from wavecast.suite.decoders import llama
from wavecast.traces.step import Call, Phase, Role, Trace

models = pytest.mark.parametrize(
    ("name", "precision"),
    [("gpt2", "fp32"), ("gpt2", "bf16"), ("llama-1b", "bf16"), ("LLAMA", "bf16"), ("BERT", "bf16")],
)


@models
@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("sequence", [False, True])
def test_ranks_share_the_products_and_attention(
    name: str, precision: str, tensor: int, sequence: bool
) -> None:
    trace = traced(name, precision)
    strategy = Parallel(context=2, tensor=tensor, sequence=sequence and tensor > 1)
    sharded, notes = with_layers_sharded(trace, strategy)
    assert [wrong for call in sharded if (wrong := misfit(call.op))] == []
    for of in ("attention", "mm"):
        whole = sum(flops(c) for c in trace if of in c.op.base and is_product(c))
        part = sum(flops(c) for c in sharded if of in c.op.base and is_product(c))
        if name != "BERT" or of == "attention":  # a part of BERT's head is not divided by tensor
            assert whole == 2 * tensor * part
    assert "context parallelism" in notes[0]


def test_weights_are_whole() -> None:
    trace = traced("gpt2", "bf16")
    sharded, _ = with_layers_sharded(trace, Parallel(context=2))
    for role in (Role.PARAMETER, Role.GRADIENT, Role.OPTIMIZER_STATE):
        assert held(sharded, role) == held(trace, role)
    assert held(sharded, Role.INTERMEDIATE) < held(trace, Role.INTERMEDIATE)


def test_keys_and_values_are_gathered_and_their_gradients_go_around() -> None:
    sharded, _ = with_layers_sharded(traced("gpt2", "bf16"), Parallel(context=3, tensor=1))
    in_block = [call for call in collectives(sharded) if ".blocks.0." in call.module]
    keys = 3 * 2 * (12 // 3) * 16  # samples, heads, positions of one rank, size of a head
    ahead = [(c.op.name, c.op.inputs[0].nbytes) for c in in_block if c.phase is Phase.FORWARD]
    back = [(c.op.name, c.op.inputs[0].nbytes) for c in in_block if c.phase is Phase.BACKWARD]
    assert ahead == [("nccl.all_gather", 2 * keys * 2)]
    assert back == [("nccl.all_gather", 2 * keys * 2), *[("nccl.send", 2 * keys * 4)] * 3]


def test_a_causal_rank_attends_to_its_own_keys_and_half_of_each_other_rank() -> None:
    sharded, _ = with_layers_sharded(traced("gpt2", "bf16"), Parallel(context=3))
    steps = [
        (c.op.inputs[0].shape[2], c.op.inputs[1].shape[2], c.op.attr("is_causal"))
        for c in sharded
        if ".blocks.0." in c.module and "attention" in c.op.base and c.phase is Phase.FORWARD
    ]
    assert steps == [(4, 4, True), (4, 2, False), (4, 2, False)]


def test_sequences_that_do_not_divide_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"sequences of 12 into 10 equal pieces.* 1, 2, 3, 6"):
        with_layers_sharded(traced("gpt2"), Parallel(context=5))


def test_attention_by_products_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the step has none"):
        with_layers_sharded(traced("LLAMA", "fp32"), Parallel(context=2))
    with pytest.raises(InvalidInput, match="SelfAttention attends with matmuls of its own"):
        with_layers_sharded(traced("T5", "bf16"), Parallel(context=2))


@pytest.mark.parametrize("backward", [False, True])
def test_attention_without_its_tensors_is_refused(backward: bool) -> None:
    step = traced("gpt2", "bf16")
    calls = tuple(
        replace(call, op=replace(call.op, inputs=call.op.inputs[:2]), reads=call.reads[:2])
        if is_attention(call.op) and ("backward" in call.op.base) == backward
        else call
        for call in step
    )
    with pytest.raises(InvalidInput, match="cannot be sharded by context"):
        context_axis(replace(step, calls=calls), Parallel(context=2))


def test_one_rank_changes_nothing() -> None:
    assert with_layers_sharded(traced("gpt2"), Parallel()) == (traced("gpt2"), ())


def test_a_weight_in_the_shape_of_an_activation_stays_whole() -> None:
    # Two sequences of 16 words are as many rows as the model is wide.
    def make_step() -> Callable[[], Any]:
        return llama(2, "bf16", seq=16, layers=2, hidden=32, heads=4, kv_heads=4, ffn=64, vocab=48)

    trace = wavecast.trace(make_step)
    divided, _ = with_layers_sharded(trace, Parallel(context=2, tensor=2, sequence=True))
    alone, _ = with_layers_sharded(trace, Parallel(context=2))
    for whole, part in zip(_products(trace), _products(alone), strict=True):
        assert flops(part) == flops(whole) / 2
    assert sum(map(flops, _products(divided))) == sum(map(flops, _products(trace))) / 4


def _products(trace: Trace) -> list[Call]:
    return [call for call in trace if call.op.base == "aten.mm"]
