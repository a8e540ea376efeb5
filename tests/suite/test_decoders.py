"""GPT and Llama of any size."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from wavecast.errors import InvalidInput
from wavecast.suite.decoders import RECOMPUTE, gpt, llama
from wavecast.targets.sources import trace
from wavecast.traces.recomputed import recomputed
from wavecast.traces.step import Phase, Role, Trace

MATMULS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm")
SMALL: dict[str, Any] = {"layers": 2, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64}


def _traced(make: Any, precision: str = "bf16", **options: Any) -> Trace:
    step = trace(partial(make, 2, precision, **{**SMALL, **options}))
    assert isinstance(step, Trace)
    return step


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["fp32", "bf16"])
@pytest.mark.parametrize("make", [gpt, partial(llama, kv_heads=2, ffn=48)])
def test_a_decoder_learns(make: Any, weights: str) -> None:
    torch.manual_seed(0)
    step = make(2, "bf16", device="cpu", weights=weights, learning_rate=1e-2, **SMALL)
    losses = [float(step()) for _ in range(8)]
    assert losses[-1] < losses[0] - 0.3


def test_recomputing_changes_no_result() -> None:
    results = []
    for recompute in RECOMPUTE:
        torch.manual_seed(0)
        options: dict[str, Any] = {"recompute": recompute, "fused_attention": False}
        step = gpt(2, "fp32", device="cpu", **SMALL, **options)
        results.append([float(step()) for _ in range(2)])
    assert all(result == pytest.approx(results[0]) for result in results)


def test_torchtitans_recomputation_repeats_half_of_the_products() -> None:
    def products(recompute: str) -> int:
        calls = _traced(llama, kv_heads=2, ffn=48, weights="bf16", recompute=recompute).calls
        return sum(c.op.base == "aten.mm" and c.phase is Phase.BACKWARD for c in calls)

    none, half, full = (products(name) for name in ("none", "alternate", "full"))
    assert half - none == pytest.approx((full - none) / 2)


@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_recomputed_blocks_are_compiled(recompute: str) -> None:
    make = partial(gpt, 2, "bf16", recompute=recompute, fused_attention=False, **SMALL)
    eager, compiled = (trace(make, compiled=way) for way in (False, True))
    for step in (eager, compiled):
        assert isinstance(step, Trace)
    matmuls, fused_matmuls = (
        sum(c.op.base in MATMULS and c.phase is Phase.BACKWARD for c in step)
        for step in (eager, compiled)
    )
    assert fused_matmuls == pytest.approx(matmuls, abs=1)
    assert not any("graph break" in note for note in compiled.notes)
    assert not any(call.op.base == "aten.gelu" for call in compiled)


def test_weights_in_16_bits_have_float32_copies_and_gradients() -> None:
    step = _traced(gpt, weights="bf16")
    held = {
        role: sum(a.nbytes for a in step.allocations if a.role is role and a.born is None)
        for role in (Role.PARAMETER, Role.GRADIENT, Role.OPTIMIZER_STATE)
    }
    assert held[Role.GRADIENT] == 2 * held[Role.PARAMETER]
    assert held[Role.OPTIMIZER_STATE] >= 6 * held[Role.PARAMETER]
    assert not any(a.role is Role.WEIGHT_COPY for a in step.allocations)


def test_full_recomputation_repeats_the_blocks() -> None:
    kept, again = _traced(gpt), _traced(gpt, recompute="full")
    assert not recomputed(kept.calls)
    modules = {again.calls[position].module for position in recomputed(again.calls)}
    assert {f"SizedDecoder.blocks.{i}.feed_forward.up" for i in range(2)} <= modules
    assert all(again.calls[p].phase is Phase.BACKWARD for p in recomputed(again.calls))
    assert not any(name in ("SizedDecoder.words", "SizedDecoder.norm") for name in modules)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_joint_matmuls_compute_the_same(kv_heads: int) -> None:
    sizes: dict[str, Any] = {**SMALL, "kv_heads": kv_heads, "ffn": 48, "device": "cpu"}
    apart, joint = (llama(2, "fp32", **sizes, joint=on).model for on in (False, True))
    weights = dict(apart.named_parameters())
    with torch.no_grad():
        for name, weight in joint.named_parameters():
            weight.copy_(_joined(name, weights, kv_heads))
    tokens = torch.arange(2 * SMALL["seq"]).view(2, -1) % SMALL["vocab"]
    assert torch.allclose(joint(tokens), apart(tokens), atol=1e-5)


def _joined(name: str, weights: dict[str, torch.Tensor], kv_heads: int) -> torch.Tensor:
    """The weight of a joint layer: by groups of heads, or the gate's two inputs in turn."""
    if "query_key_value" in name:
        own = [weights[name.replace("query_key_value", k)] for k in ("query", "key", "value")]
        return torch.cat([weight.unflatten(0, (kv_heads, -1)) for weight in own], 1).flatten(0, 1)
    if "gate_up" in name:
        return torch.cat([weights[name.replace("gate_up", k)] for k in ("gate", "up")])
    return weights[name]


def test_joint_matmuls_copy_what_they_give() -> None:
    apart, joint = (_traced(llama, kv_heads=4, ffn=48, joint=on) for on in (False, True))

    def copies(step: Trace) -> int:
        forward = [call.op.base for call in step if call.phase is Phase.FORWARD]
        return forward.count("aten.clone")

    assert copies(joint) - copies(apart) == 2 * SMALL["layers"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 5}, "must divide into heads=5"),
        ({"recompute": "some"}, "one of none, selective, alternate, full"),
        ({"weights": "fp16"}, "need matmuls in the same precision"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"joint": True}, "joint is for llama's attention"),
    ],
)
def test_bad_sizes_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        gpt(2, "bf16", device="cpu", **{**SMALL, **options})
