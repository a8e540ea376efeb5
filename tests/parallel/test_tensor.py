"""Tensor parallelism: what one rank computes, holds and sends."""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any

import pytest
from parallel.shapes import misfit
from parallel.traced_models import (
    HUGGING_FACE,
    SUITE,
    collectives,
    computed,
    flops,
    held,
    is_product,
    traced,
)
from small_models import SMALL

import wavecast
from wavecast.errors import InvalidInput
from wavecast.parallel.layers import with_layers_sharded
from wavecast.parallel.strategy import Parallel
from wavecast.suite import benchmark
from wavecast.traces.step import Phase, Role, Trace

torch = pytest.importorskip("torch")

every_model = pytest.mark.parametrize("name", [*SUITE, *HUGGING_FACE])
both_precisions = pytest.mark.parametrize("precision", ["fp32", "bf16"])


@every_model
@both_precisions
def test_products_in_blocks_are_divided_and_all_others_are_whole(name: str, precision: str) -> None:
    trace = traced(name, precision)
    sharded, _ = with_layers_sharded(trace, Parallel(tensor=2))
    pairs = list(zip(trace, computed(sharded), strict=True))
    divided = 0
    for whole, part in pairs:
        assert whole.op.name == part.op.name
        if is_product(whole) and flops(whole):
            ratio = flops(whole) / flops(part)
            assert ratio in (1, 2), whole
            divided += ratio == 2
    blocks = sum(is_product(c) and ".0." in c.module for c in trace)
    assert divided >= blocks


@every_model
def test_gradients_and_states_are_divided_as_their_parameters(name: str) -> None:
    trace = traced(name)
    sharded, _ = with_layers_sharded(trace, Parallel(tensor=2))
    sizes: dict[tuple[str, int], set[int]] = {}
    for whole, part in zip(trace.allocations, sharded.allocations, strict=True):
        if whole.role in (Role.PARAMETER, Role.GRADIENT, Role.OPTIMIZER_STATE) and whole.module:
            sizes.setdefault((whole.module, whole.nbytes), set()).add(part.nbytes)
    assert all(len(different) == 1 for different in sizes.values())
    assert held(sharded, Role.PARAMETER) < held(trace, Role.PARAMETER)
    updated = [c for c in sharded if c.phase is Phase.OPTIMIZER and "addcdiv" in c.op.name]
    if updated:  # in place: the sizes of all parameters
        assert sum(t.nbytes for c in updated for t in c.op.outputs) == held(sharded, Role.PARAMETER)


def test_float32_states_of_weights_in_16_bits_are_divided_as_the_weights() -> None:
    from wavecast.suite.decoders import gpt

    sizes = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 256, "seq": 16}
    trace = wavecast.trace(partial(gpt, 2, "bf16", weights="bf16", **sizes))
    sharded, _ = with_layers_sharded(trace, Parallel(tensor=2))
    weights = held(sharded, Role.PARAMETER)
    assert weights < 0.6 * held(trace, Role.PARAMETER)
    kept = [a.nbytes for a in sharded.allocations if a.role is Role.GRADIENT and a.born is None]
    assert sum(kept) == pytest.approx(2 * weights, rel=0.01)  # in float32
    assert held(sharded, Role.OPTIMIZER_STATE) == pytest.approx(6 * weights, rel=0.01)


@every_model
@both_precisions
@pytest.mark.parametrize("sequence", [False, True])
def test_the_shapes_of_a_rank_fit_each_other(name: str, precision: str, sequence: bool) -> None:
    sharded, _ = with_layers_sharded(traced(name, precision), Parallel(tensor=2, sequence=sequence))
    assert [wrong for call in sharded if (wrong := misfit(call.op))] == []


@cache
def of_sizes(name: str, batch: int, sizes: tuple[tuple[str, int], ...]) -> Trace:
    options = {**SMALL[name], **dict(sizes)}
    return wavecast.trace(
        lambda: benchmark(name).make_step(batch, "bf16", device="cuda", **options)
    )


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize(
    ("name", "batch", "sizes"),
    [
        ("gpt2", 3, {"width": 36, "heads": 2}),  # as many words as features
        ("gpt2", 1, {"sequence": 32}),
        ("gpt2", 8, {"heads": 4, "sequence": 8, "vocabulary": 32}),
        ("llama-1b", 4, {"sequence": 8, "key_value_heads": 4, "inner": 32}),
        ("llama-1b", 2, {"sequence": 4, "key_value_heads": 2, "heads": 2, "width": 8}),
    ],
)
def test_equal_sizes_are_not_confused(
    name: str, batch: int, sizes: dict[str, int], sequence: bool
) -> None:
    trace = of_sizes(name, batch, tuple(sizes.items()))
    sharded, _ = with_layers_sharded(trace, Parallel(tensor=2, sequence=sequence))
    assert [wrong for call in sharded if (wrong := misfit(call.op))] == []
    for whole, part in zip(trace, computed(sharded), strict=True):
        if is_product(whole):
            assert flops(whole) == 2 * flops(part), whole


def encoder_step() -> Any:
    """A step of torch's own encoder layers, whose attention calls no modules for its products."""
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    words = torch.randn(3, 10, 32, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        model(words).sum().backward()
        optimizer.step()

    return step


def test_products_without_modules_of_their_own_are_told_apart() -> None:
    trace = wavecast.trace(encoder_step)
    sharded, _ = with_layers_sharded(trace, Parallel(tensor=2))
    assert [wrong for call in sharded if (wrong := misfit(call.op))] == []
    for whole, part in zip(trace, computed(sharded), strict=True):
        if is_product(whole):
            assert flops(whole) == 2 * flops(part), whole
    phases = [call.phase for call in collectives(sharded)]
    assert phases.count(Phase.FORWARD) == 4
    assert phases.count(Phase.BACKWARD) == 3  # nobody needs the gradient of the input


def checkpointed_step() -> Any:
    """A step that recomputes its blocks, and that keeps its gradients from step to step."""
    from torch.utils.checkpoint import checkpoint

    from wavecast.suite.models.language import GPT2

    model = GPT2(2, 32, 2, 20, 16, 0.0).cuda()
    for block in model.blocks:
        inner = block.forward
        block.forward = partial(checkpoint, inner, use_reentrant=False)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    words = torch.zeros(3, 12, dtype=torch.long, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        logits = model(words).flatten(0, 1)
        torch.nn.functional.cross_entropy(logits, words.flatten()).backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("sequence", [False, True])
def test_recomputed_layers_are_divided_and_reduced_again(sequence: bool) -> None:
    trace = wavecast.trace(checkpointed_step)
    sharded, _ = with_layers_sharded(trace, Parallel(tensor=2, sequence=sequence))
    assert [wrong for call in sharded if (wrong := misfit(call.op))] == []
    for whole, part in zip(trace, computed(sharded), strict=True):
        if is_product(whole):
            assert flops(whole) == 2 * flops(part), whole
    assert held(sharded, Role.GRADIENT) == held(sharded, Role.PARAMETER)
    ours = [
        c for c in collectives(sharded) if ".blocks.0." in c.module and c.phase is Phase.BACKWARD
    ]
    names = [call.op.name.removeprefix("nccl.") for call in ours]
    if sequence:  # a group recomputed: gather, reduce; then backward for the two groups
        assert names.count("all_gather") == 2 + 2
        assert names.count("reduce_scatter") == 1 + 2
    else:  # the last layer of a block is not recomputed
        assert names == ["all_reduce"] * (1 + 2)


def test_megatron_reduces_twice_forward_and_twice_backward_in_each_block() -> None:
    trace = traced("gpt2")
    sharded, notes = with_layers_sharded(trace, Parallel(tensor=2))
    hidden = 3 * 12 * 32 * 4
    in_blocks = [call for call in collectives(sharded) if ".blocks." in call.module]
    assert [c.op.name for c in in_blocks] == ["nccl.all_reduce"] * 8
    assert [c.op.inputs[0].nbytes for c in in_blocks] == [hidden] * 8
    assert [c.phase for c in in_blocks] == [Phase.FORWARD] * 4 + [Phase.BACKWARD] * 4
    rest = [call for call in collectives(sharded) if ".blocks." not in call.module]
    rows = 3 * 12 * 4  # the largest logit, the sum and the target's logit of each word
    norm = 4  # of all gradients, to clip them
    assert [c.op.inputs[0].nbytes for c in rest] == [hidden, rows, rows, rows, hidden, norm]
    assert "query_key_value by columns and project by rows" in notes[0]
    assert "sharded by vocabulary" in notes[1]


def test_a_given_plan_reduces_each_layer_by_itself() -> None:
    plan = {
        **{f"layers.*.self_attn.{name}_proj": "colwise" for name in "qkv"},
        "layers.*.self_attn.o_proj": "rowwise",
        "layers.*.mlp.gate_proj": "colwise",
        "layers.*.mlp.up_proj": "colwise",
        "layers.*.mlp.down_proj": "rowwise",
    }
    sharded, _ = with_layers_sharded(traced("LLAMA"), Parallel(tensor=2, tensor_plan=plan))
    phases = [call.phase for call in collectives(sharded)]
    assert phases.count(Phase.FORWARD) == 2 * 2
    assert phases.count(Phase.BACKWARD) == 2 * 5  # q, k, v, gate and up
    names = {call.op.inputs[0].shape for call in sharded if call.module.endswith("lm_head")}
    assert (100, 32) in names  # not in the plan: whole


def test_compute_waits_for_each_collective() -> None:
    sharded, _ = with_layers_sharded(traced("gpt2"), Parallel(tensor=2))
    streams = [(c.stream, c.op.name, c.op.attr("stream")) for c in sharded]
    for index, (stream, name, _) in enumerate(streams):
        if name.startswith("nccl.") and streams[index - 1][1] == "cuda.stream_wait":
            assert streams[index - 1] == (stream, "cuda.stream_wait", 0)
    last = max(i for i, (_, name, _) in enumerate(streams) if name.startswith("nccl."))
    assert streams[last + 1][:2] == (0, "cuda.stream_wait")


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [(3, "units .*of Llama.blocks.0"), (4, "the 2 units .*attention"), (8, "the 2 units")],
)
def test_sizes_that_do_not_fit_are_named(tensor: int, reason: str) -> None:
    with pytest.raises(InvalidInput, match=f"tensor={tensor} does not divide .*{reason}.* 1, 2"):
        with_layers_sharded(traced("llama-1b"), Parallel(tensor=tensor))


def test_plans_that_fit_nothing_are_refused() -> None:
    with pytest.raises(InvalidInput, match="fits no matmul"):
        with_layers_sharded(traced("gpt2"), Parallel(tensor=2, tensor_plan={"nothing": "colwise"}))
    with pytest.raises(InvalidInput, match="known styles: colwise"):
        with_layers_sharded(traced("gpt2"), Parallel(tensor=2, tensor_plan={"words": "diagonal"}))


def test_a_model_without_pairs_is_refused() -> None:
    trace = wavecast.trace(
        lambda: benchmark("resnet50").make_step(3, "fp32", device="cuda", **SMALL["resnet50"])
    )
    with pytest.raises(InvalidInput, match="give tensor_plan"):
        with_layers_sharded(trace, Parallel(tensor=2))


def test_one_rank_changes_nothing() -> None:
    trace = traced("gpt2")
    assert with_layers_sharded(trace, Parallel()) == (trace, ())
    assert math.isclose(
        sum(map(flops, trace)), sum(map(flops, with_layers_sharded(trace, Parallel())[0]))
    )
