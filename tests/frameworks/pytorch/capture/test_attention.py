"""The attention kernel that a GPU runs, compared with choices on an H200 and with torch's rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks import Step, calls_of, names, training
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lab.places import H200
from wavecast.frameworks.pytorch.capture import capture
from wavecast.predictors.attention_kernels import (
    CUDNN,
    EFFICIENT,
    FLASH,
    MATH,
    Query,
    choose,
)

RECORDED = H200 / "attention.json"
CHOICES = {0: MATH, 1: FLASH, 2: EFFICIENT, 3: CUDNN}
ALL = frozenset(CHOICES.values())
HOPPER, AMPERE, TURING, VOLTA, KEPLER = (9, 0), (8, 0), (7, 5), (7, 0), (3, 7)


def _query(row: dict[str, Any]) -> Query:
    return Query(
        dtype=row["dtype"],
        head_dim=row["head"],
        value_dim=row["head"],
        q_length=64,
        kv_length=64,
        mask=row["mask"] != "none",
        mask_needs_grad=False,
        dropout=row["dropout"],
        causal=row["causal"],
        grouped=row["grouped"],
        four_d=True,
    )


def test_the_choice_is_that_of_an_h200() -> None:
    rows = json.loads(RECORDED.read_text())
    wrong = [r for r in rows if choose(_query(r), HOPPER, ALL) != CHOICES[r["choice"]]]
    assert len(rows) > 500
    assert wrong == []


def _attend(
    dtype: Any,
    mask: Callable[[], Any] = lambda: None,
    heads: tuple[int, int] = (4, 4),
    **options: Any,
) -> Any:
    def make_step() -> Step:
        make = {"dtype": dtype, "device": "cuda", "requires_grad": True}
        query = torch.randn(2, heads[0], 16, 32, **make)
        key, value = (torch.randn(2, heads[1], 16, 32, **make) for _ in range(2))
        attend = partial(F.scaled_dot_product_attention, query, key, value, mask(), **options)
        return lambda: attend().sum().backward()

    return make_step


def _all_seen() -> Any:
    return torch.ones(16, 16, dtype=torch.bool, device="cuda")


def _backend(make_step: Any, capability: tuple[int, int]) -> str:
    trace = capture(make_step, capability=capability)
    kernels = {c.op.base for c in trace if "_scaled_dot_product_" in c.op.base}
    kernels = {name for name in kernels if not name.endswith("_backward")}
    if not kernels:
        assert names(trace)["aten.bmm"] >= 6
        return MATH
    (name,) = kernels
    assert names(trace)[f"{name}_backward"] == 1
    return name.removeprefix("aten._scaled_dot_product_").removesuffix("_attention")


@pytest.mark.parametrize(
    ("capability", "float32", "float16", "bfloat16", "masked"),
    [
        (HOPPER, EFFICIENT, CUDNN, CUDNN, CUDNN),
        (AMPERE, EFFICIENT, FLASH, FLASH, EFFICIENT),
        (TURING, EFFICIENT, EFFICIENT, MATH, EFFICIENT),
        (VOLTA, EFFICIENT, EFFICIENT, MATH, EFFICIENT),
        (KEPLER, MATH, MATH, MATH, MATH),
    ],
    ids=["h100", "a100", "t4", "v100", "k80"],
)
def test_each_generation_runs_the_kernels_it_has(
    capability: tuple[int, int], float32: str, float16: str, bfloat16: str, masked: str
) -> None:
    assert _backend(_attend(torch.float32), capability) == float32
    assert _backend(_attend(torch.float16), capability) == float16
    assert _backend(_attend(torch.bfloat16), capability) == bfloat16
    assert _backend(_attend(torch.float16, _all_seen), capability) == masked


@pytest.mark.parametrize(
    ("backends", "expected"),
    [
        ([SDPBackend.FLASH_ATTENTION], FLASH),
        ([SDPBackend.EFFICIENT_ATTENTION], EFFICIENT),
        ([SDPBackend.MATH], MATH),
        ([SDPBackend.CUDNN_ATTENTION], CUDNN),
        ([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], FLASH),
    ],
)
def test_a_backend_chosen_by_context_is_taken(backends: list[Any], expected: str) -> None:
    def make_step() -> Step:
        step: Step = _attend(torch.bfloat16)()

        def chosen() -> None:
            with sdpa_kernel(backends):
                step()

        return chosen

    assert _backend(make_step, HOPPER) == expected


def test_flags_switch_backends_off() -> None:
    def make_step() -> Step:
        torch.backends.cuda.enable_cudnn_sdp(False)
        torch.backends.cuda.enable_flash_sdp(False)
        step: Step = _attend(torch.bfloat16)()
        return step

    assert _backend(make_step, HOPPER) == EFFICIENT


def test_no_kernel_takes_a_mask_that_is_expanded_along_the_keys() -> None:
    def along(shape: tuple[int, int]) -> Any:
        return lambda: (torch.arange(16, device="cuda") >= 0).view(shape).expand(16, 16)

    assert _backend(_attend(torch.bfloat16, along((16, 1))), HOPPER) == MATH
    assert _backend(_attend(torch.bfloat16, along((1, 16))), HOPPER) == CUDNN


def test_grouped_heads_run_in_one_kernel_where_there_is_one() -> None:
    grouped = partial(_attend, heads=(8, 2), is_causal=True, enable_gqa=True)
    assert _backend(grouped(torch.bfloat16), HOPPER) == CUDNN
    assert _backend(grouped(torch.bfloat16), AMPERE) == FLASH
    assert _backend(grouped(torch.float32), AMPERE) == MATH


def test_keys_of_one_head_are_expanded_without_a_kernel() -> None:
    """As in Falcon, which does not say `enable_gqa`; 37 matmuls were measured for 6 layers."""
    assert _backend(_attend(torch.bfloat16, heads=(8, 1)), HOPPER) == MATH


def test_causality_and_dropout_are_attributes() -> None:
    trace = capture(_attend(torch.bfloat16, is_causal=True, dropout_p=0.1), capability=AMPERE)
    (call,) = calls_of(trace, "aten._scaled_dot_product_flash_attention")
    assert call.op.attr("is_causal") is True
    assert call.op.attr("dropout_p") == 0.1


def test_odd_heads_are_padded_for_flash() -> None:
    def make_step() -> Step:
        q = torch.randn(2, 4, 16, 60, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        return lambda: F.scaled_dot_product_attention(q, q, q).sum().backward()

    trace = capture(make_step, capability=AMPERE)
    (call,) = calls_of(trace, "aten._scaled_dot_product_flash_attention")
    assert call.op.inputs[0].shape[-1] == 64
    assert names(trace)["aten.constant_pad_nd"] == 6  # and cut off again in backward


class _SelfAttention(nn.Module):
    def __init__(self, need_weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x: Any) -> Any:
        return self.attention(x, x, x, need_weights=self.need_weights)[0]


def test_multihead_attention_runs_a_kernel_or_shows_its_weights() -> None:
    fused = capture(training(lambda: _SelfAttention(False), (2, 16, 32), dtype=torch.bfloat16))
    plain = capture(training(lambda: _SelfAttention(True), (2, 16, 32), dtype=torch.bfloat16))
    assert names(fused)["aten._scaled_dot_product_cudnn_attention"] == 1
    assert names(plain)["aten._softmax"] == 1
    assert not any("scaled_dot" in op for op in names(plain))


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Transformer(32, 4, 1, 1, 64, batch_first=True)

    def forward(self, x: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.inner(x, x, tgt_mask=mask, tgt_is_causal=True)


def test_a_transformer_attends_three_times() -> None:
    trace = capture(training(_Transformer, (2, 16, 32), dtype=torch.bfloat16))
    counts = names(trace)
    assert sum(n for op, n in counts.items() if op.endswith("_attention")) == 3
    assert sum(n for op, n in counts.items() if op.endswith("_attention_backward")) == 3
    assert counts["aten.native_layer_norm"] == 7


def test_an_encoder_that_only_infers_takes_its_fast_path() -> None:
    def make_step() -> Step:
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        model = nn.TransformerEncoder(layer, 2).cuda().eval()
        x = torch.randn(2, 16, 32, device="cuda")
        return lambda: torch.inference_mode()(model)(x)

    assert names(capture(make_step))["aten._transformer_encoder_layer_fwd"] == 2


def test_an_encoder_that_only_infers_computes_padding() -> None:
    def make_step() -> Step:
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2).cuda().eval()
        x = torch.randn(4, 6, 16, device="cuda")
        padding = torch.zeros(4, 6, dtype=torch.bool, device="cuda")

        def step() -> None:
            with torch.no_grad():
                assert encoder(x, src_key_padding_mask=padding).shape == x.shape
            assert encoder.use_nested_tensor

        return step

    fused = calls_of(capture(make_step), "aten._transformer_encoder_layer_fwd")
    assert [call.op.outputs[0].shape for call in fused] == [(4, 6, 16)] * 2
