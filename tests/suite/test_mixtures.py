"""Mixtures of experts, DeepSeek's attention and adapters in decoders of any size."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.suite.decoders import llama, mixtral
from wavecast.suite.models.mixtures import BALANCE, MixtureLayers, MixtureShape
from wavecast.targets.sources import trace
from wavecast.traces.step import Role, Trace

SMALL: dict[str, Any] = {
    **{"layers": 2, "hidden": 80, "heads": 5, "kv_heads": 5, "ffn": 56, "seq": 16, "vocab": 160},
    **{"experts": 8, "top_k": 2},
}
QWEN3_30B: dict[str, Any] = {
    **{"layers": 48, "hidden": 2048, "heads": 32, "kv_heads": 4, "head_size": 128, "ffn": 768},
    **{"vocab": 151_936, "experts": 128, "top_k": 8},
}
DEEPSEEK_MOE_16B: dict[str, Any] = {
    **{"layers": 28, "hidden": 2048, "heads": 16, "kv_heads": 16, "ffn": 1408, "vocab": 102_400},
    **{"experts": 64, "top_k": 6, "shared_experts": 2, "dense_layers": 1, "dense_ffn": 10_944},
}
DEEPSEEK_V2_LITE: dict[str, Any] = {
    **DEEPSEEK_MOE_16B,
    **{"layers": 27, "head_size": 128, "kv_rank": 512},
}
DEEPSEEK_V3: dict[str, Any] = {
    **{"layers": 61, "hidden": 7168, "heads": 128, "kv_heads": 128, "head_size": 128},
    **{"ffn": 2048, "vocab": 129_280, "experts": 256, "top_k": 8, "shared_experts": 1},
    **{"dense_layers": 3, "dense_ffn": 18_432, "kv_rank": 512, "q_rank": 1536},
}


def _counts(sizes: dict[str, Any]) -> tuple[float, float]:
    """The parameters in billions, all and those that one word meets, of a model of few layers.

    Layers beyond the first one with experts are equal, so they are counted once.
    """
    given = {"experts": 8, "top_k": 2, "layers": 32, **sizes}
    layers, first = given["layers"], given.get("dense_layers", 0)
    shallow = {**sizes, "layers": first + 1, "seq": 8}
    model = mixtral(1, "bf16", device="meta", weights="bf16", **shallow).model
    last = f"blocks.{first}."
    total = active = 0.0
    for name, weight in model.named_parameters():
        repeated = layers - first if name.startswith(last) else 1
        share = given["top_k"] / given["experts"] if ".experts." in name else 1.0
        total += repeated * weight.numel()
        active += repeated * weight.numel() * share
    return total / 1e9, active / 1e9


@pytest.mark.parametrize(
    ("sizes", "total", "active"),
    [
        ({}, 46.7, 12.9),  # Mixtral 8x7B, Jiang et al. 2024
        (QWEN3_30B, 30.5, 3.3),  # Qwen3 technical report, 2025
        (DEEPSEEK_MOE_16B, 16.4, 2.8),  # DeepSeekMoE, Dai et al. 2024
        (DEEPSEEK_V2_LITE, 15.7, 2.7),  # its model card: 15.7; 2.4 active without the embedding
        (DEEPSEEK_V3, 671.0, 37.6),  # 37 active, without the embedding's table
    ],
)
def test_parameters_are_those_that_were_published(
    sizes: dict[str, Any], total: float, active: float
) -> None:
    found_total, found_active = _counts(sizes)
    assert found_total == pytest.approx(total, rel=0.005)
    assert found_active == pytest.approx(active, rel=0.025)


@cache
def _traced(**options: Any) -> Trace:
    step = trace(partial(mixtral, 3, "bf16", **{**SMALL, "weights": "bf16", **options}))
    assert isinstance(step, Trace)
    return step


def test_the_products_take_six_flops_per_active_weight_and_word() -> None:
    products = ("aten.mm", "aten._grouped_mm")
    done = sum(ops.executed_flops(c.op) or 0 for c in _traced() if c.op.base in products)
    attention, router = 4 * 80 * 80, 80 * 8
    active = 2 * (attention + router + 2 * 3 * 80 * 56) + 160 * 80
    words = 3 * 16
    # The first block's inputs come from a table, and need the same gradients as all others.
    assert done == pytest.approx(6 * active * words)


def test_each_word_gets_the_weighted_sum_of_its_experts() -> None:
    torch.manual_seed(0)
    layer = MixtureLayers(MixtureShape(4, 2, shared_experts=1), hidden=16, ffn=24)
    x = torch.randn(2, 5, 16)
    chances = layer.router(x).softmax(-1)
    weights, chosen = chances.topk(2)
    weights = weights / weights.sum(-1, keepdim=True)
    assert layer.shared is not None
    expected = layer.shared(x)
    for expert in range(4):
        gate, up = layer.experts.gate_up[expert].chunk(2)
        own = (F.silu(x @ gate.T) * (x @ up.T)) @ layer.experts.down[expert].T
        expected = expected + own * (weights * (chosen == expert)).sum(-1, keepdim=True)
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)


def test_the_router_is_taught_to_spread_words_evenly() -> None:
    torch.manual_seed(0)
    layer = MixtureLayers(MixtureShape(4, 1), hidden=16, ffn=24)
    x = torch.randn(1, 64, 16)
    layer(x).sum().backward()
    # With one expert for each word its weight is 1, so only the balance reaches the router.
    chances = layer.router(x[0]).softmax(-1)
    shares = F.one_hot(chances.argmax(-1), 4).float().mean(0)
    loss = BALANCE * 4 * (shares * chances.mean(0)).sum()
    (expected,) = torch.autograd.grad(loss, layer.router.weight)
    assert layer.router.weight.grad is not None
    torch.testing.assert_close(layer.router.weight.grad, expected, rtol=1e-3, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "precision"),
    [
        ({}, "bf16"),
        ({"recompute": "full"}, "fp32"),
        ({"kv_rank": 16, "q_rank": 24}, "bf16"),
        ({"shared_experts": 1}, "fp32"),
    ],
    ids=str,
)
def test_a_mixture_learns(options: dict[str, Any], precision: str) -> None:
    torch.manual_seed(0)
    step = mixtral(2, precision, device="cpu", learning_rate=1e-2, **{**SMALL, **options})
    losses = [float(step()) for _ in range(6)]
    assert losses[-1] < losses[0] - 0.5


def test_adapters_train_and_nothing_else_does() -> None:
    step = llama(2, "bf16", device="cpu", weights="bf16", lora=4, learning_rate=0.1, **_DENSE)
    before = {name: weight.clone() for name, weight in step.model.named_parameters()}
    step()
    step()
    after = dict(step.model.named_parameters())
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert {name.split(".")[-2] for name in changed} == {"narrow", "wide"}
    assert {name.split(".")[-3] for name in changed} == {"query", "key", "value"}


_DENSE = {k: v for k, v in SMALL.items() if k not in ("experts", "top_k")}


def test_adapters_have_states_and_the_other_weights_have_none() -> None:
    adapted = _traced(lora=4)
    held = {
        role: sum(a.nbytes for a in adapted.allocations if a.role is role and a.born is None)
        for role in (Role.PARAMETER, Role.OPTIMIZER_STATE, Role.GRADIENT)
    }
    trained = 2 * 3 * (80 * 4 + 4 * 80)  # blocks, layers, weights
    assert held[Role.GRADIENT] == 4 * trained
    assert held[Role.OPTIMIZER_STATE] == pytest.approx(12 * trained, rel=0.05)
    assert held[Role.PARAMETER] > 10 * trained


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (mixtral, {"top_k": 9}, "top_k=9 of experts=8"),
        (mixtral, {"dense_layers": -1}, "dense_layers must be at least 0"),
        (llama, {"lora": 4, "adapted": ("q_proj",)}, "no layer is named q_proj; there are .*query"),
        (llama, {"lora": -1}, "rank of adapters must be at least 1"),
    ],
)
def test_bad_mixtures_and_adapters_are_refused(
    make: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        make(2, "bf16", device="cpu", **{**SMALL, **options})
