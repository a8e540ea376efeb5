"""Attention: what the time depends on besides its FLOPs."""

from __future__ import annotations

from made import tensor

from wavecast.hardware.devices import device
from wavecast.predictors.learned.batch import parts_of
from wavecast.predictors.learned.columns import AttentionRow
from wavecast.predictors.learned.predictor import Learned
from wavecast.traces.step import Op, Scalar

KERNEL = "aten._scaled_dot_product_cudnn_attention"


def attention(heads_of_keys: int = 16, **attrs: Scalar) -> Op:
    """Causal attention over 1,024 tokens by cuDNN."""
    query = tensor(4, 16, 1024, 64, dtype="bfloat16")
    key = tensor(4, heads_of_keys, 1024, 64, dtype="bfloat16")
    return Op(KERNEL, (query, key, key), (query,), (("is_causal", True), *attrs.items()))


def row(op: Op) -> AttentionRow:
    (part,) = parts_of(op)
    assert isinstance(part.row, AttentionRow)
    return part.row


def seconds(op: Op) -> float:
    answer = Learned.shipped().predict(op, device("h200-sxm"))
    assert answer is not None
    return answer.seconds


def test_random_numbers_for_dropout_take_as_long_as_the_matmuls() -> None:
    """34 us without dropout and some 70 us with it on our H200."""
    assert 25e-6 < seconds(attention(dropout_p=0.0)) < 48e-6
    assert seconds(attention(dropout_p=0.1)) > 1.4 * seconds(attention(dropout_p=0.0))


def test_heads_may_share_keys() -> None:
    assert (row(attention()).shared_keys, row(attention(8)).shared_keys) == (1, 2)


def test_the_gradient_of_a_mask_is_asked_for() -> None:
    q = tensor(4, 16, 196, 32, dtype="bfloat16")
    masked = Op("aten._scaled_dot_product_efficient_attention_backward", (q, q, q, q), (q, q, q),
                (("grad_input_mask", (True, True, True, True)), ("dropout_p", 0.0)))  # fmt: skip
    assert row(masked).of_mask
    assert not row(attention()).of_mask
