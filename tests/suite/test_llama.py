"""Llama is the published model, agrees with transformers', sees only the past, and can count."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_models import assert_learned, count, losses_of, small  # noqa: E402

from wavecast.suite import benchmark  # noqa: E402
from wavecast.suite.models.llama import Llama, rotations  # noqa: E402
from wavecast.suite.models.mixtures import rotate  # noqa: E402

pytestmark = pytest.mark.usefixtures("the_same_numbers_on_one_thread")


def test_the_first_llama_is_a_setting_of_it() -> None:
    size = {"layers": 32, "width": 4096, "heads": 32, "key_value_heads": 32, "inner": 11_008}
    with torch.device("meta"):
        model = Llama(**size, vocabulary=32_000, tied=False)
    assert count(model) == 6_738_415_616


def test_it_is_as_large_as_in_transformers(transformers: Any) -> None:
    config = transformers.LlamaConfig(
        num_hidden_layers=16,
        hidden_size=2048,
        intermediate_size=8192,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128_256,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        theirs = transformers.LlamaForCausalLM(config)
    theirs.tie_weights()
    assert count(theirs) == benchmark("llama-1b").published_parameters


@pytest.mark.parametrize("key_value_heads", [1, 2, 4])
@pytest.mark.parametrize("tied", [True, False])
def test_it_computes_what_transformers_computes(
    transformers: Any, key_value_heads: int, tied: bool
) -> None:
    config = transformers.LlamaConfig(
        num_hidden_layers=2,
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=key_value_heads,
        vocab_size=20,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        tie_word_embeddings=tied,
    )
    theirs = transformers.LlamaForCausalLM(config).eval()
    ours = small("llama-1b", key_value_heads=key_value_heads, tied=tied).model.eval()
    body = theirs.model
    pairs = [(ours.words, body.embed_tokens), (ours.norm, body.norm), (ours.output, theirs.lm_head)]
    for mine, their in zip(ours.blocks, body.layers, strict=True):
        pairs += [
            (mine.attention_norm, their.input_layernorm),
            (mine.attention.query, their.self_attn.q_proj),
            (mine.attention.key, their.self_attn.k_proj),
            (mine.attention.value, their.self_attn.v_proj),
            (mine.attention.project, their.self_attn.o_proj),
            (mine.feed_forward_norm, their.post_attention_layernorm),
            (mine.feed_forward.gate, their.mlp.gate_proj),
            (mine.feed_forward.up, their.mlp.up_proj),
            (mine.feed_forward.down, their.mlp.down_proj),
        ]
    for mine, their in pairs:
        mine.weight = their.weight
    tokens = torch.randint(20, (3, 12))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits)


def test_a_tied_output_layer_is_the_embedding() -> None:
    tied, own = (small("llama-1b", tied=tied).model for tied in (True, False))
    assert tied.output.weight is tied.words.weight
    assert count(own) - count(tied) == own.words.weight.numel()


def test_it_sees_the_past_only() -> None:
    model = small("llama-1b").model.eval()
    tokens = torch.randint(20, (1, 12))
    changed = tokens.clone()
    changed[0, 6] = (tokens[0, 6] + 1) % 20
    same = torch.isclose(model(tokens), model(changed), atol=1e-6).all(dim=-1)[0]
    assert same.tolist() == [True] * 6 + [False] * 6


def test_products_of_turned_vectors_know_their_distance_only() -> None:
    query, key = (torch.randn(16).expand(10, 16) for _ in range(2))
    turn = rotations(10, 16, 500_000.0, query.device)
    products = rotate(query, turn) @ rotate(key, turn).T
    for distance in range(10):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert products[0].std() > 0.01


def test_vectors_are_turned_in_their_own_precision() -> None:
    turn = rotations(3, 4, 500_000.0, torch.device("cpu"))
    assert rotate(torch.randn(3, 4, dtype=torch.bfloat16), turn).dtype == torch.bfloat16


@pytest.mark.slow
def test_it_learns_to_count() -> None:
    step = small("llama-1b", learning_rate=3e-3)

    def refill() -> tuple[Any, ...]:
        text = (torch.randint(20, (16, 1)) + torch.arange(13)) % 20
        return text[:, :-1], text[:, 1:]

    assert_learned(losses_of(step, 100, refill), guessing=math.log(20))
