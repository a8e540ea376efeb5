"""ViT agrees with torch's layers, and learns where an image is bright."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_models import assert_learned, count, losses_of, small  # noqa: E402
from torch import nn  # noqa: E402

from wavecast.suite import benchmark  # noqa: E402

pytestmark = pytest.mark.usefixtures("the_same_numbers_on_one_thread")


def test_it_is_as_large_as_in_transformers(transformers: Any) -> None:
    with torch.device("meta"):
        theirs = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000))
    assert count(theirs) == benchmark("vit").published_parameters


def test_it_computes_what_torch_computes() -> None:
    ours = small("vit").model.eval()
    layer = nn.TransformerEncoderLayer(
        *(32, 2, 128, 0.0, "gelu"), layer_norm_eps=1e-6, batch_first=True, norm_first=True
    )
    theirs = nn.TransformerEncoder(layer, 2, ours.norm, enable_nested_tensor=False).eval()
    for mine, their in zip(ours.blocks, theirs.layers, strict=True):
        their.self_attn.in_proj_weight = mine.attention.query_key_value.weight
        their.self_attn.in_proj_bias = mine.attention.query_key_value.bias
        their.self_attn.out_proj.weight = mine.attention.project.weight
        their.self_attn.out_proj.bias = mine.attention.project.bias
        their.norm1, their.norm2 = mine.attention_norm, mine.feed_forward_norm
        their.linear1, their.linear2 = mine.feed_forward[0], mine.feed_forward[2]
    images = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        ours.class_token.normal_()
        # The patches by hand: cut out, flattened and multiplied.
        cut = images.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(3, 16, 48)
        patches = cut @ ours.patches.weight.flatten(1).T + ours.patches.bias
        tokens = torch.cat([ours.class_token.expand(3, 1, 32), patches], dim=1) + ours.positions
        expected = ours.classifier(theirs(tokens)[:, 0])
        torch.testing.assert_close(ours(images), expected)


def test_dropout_is_behind_every_dense_layer_but_not_in_the_attention() -> None:
    model = small("vit").model
    assert [block.attention.dropout for block in model.blocks] == [0.0, 0.0]
    dropouts = [layer.p for layer in model.modules() if isinstance(layer, nn.Dropout)]
    assert dropouts == [0.1] * (1 + 2 * 2)  # each block uses one of its two twice


@pytest.mark.slow
def test_it_learns_which_half_is_bright() -> None:
    step = small("vit", classes=2, dropout=0.0)

    def refill() -> tuple[Any, ...]:
        halves, images = torch.randint(2, (16,)), torch.randn(16, 3, 16, 16)
        images[halves == 0, :, :, :8] += 2
        images[halves == 1, :, :, 8:] += 2
        return images, halves

    assert_learned(losses_of(step, 120, refill), guessing=math.log(2))
