"""The rule that finds pairs of products, on families of models that differ in their attention."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_configs
from parallel.shapes import misfit
from parallel.traced_models import collectives, flops, traced_config

from wavecast.parallel.layers import with_layers_sharded
from wavecast.parallel.strategy import Parallel
from wavecast.traces.step import Phase, Role

WORDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "max_position_embeddings": 64}
SMALL = {**tiny_configs.SMALL, **WORDS, "intermediate_size": 64}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {"num_key_value_heads": 2, "head_dim": 8},  # norms of queries and keys
    "gpt_neox": {},  # queries, keys and values of one head after another; one add for two branches
    "bloom": {"n_layer": 2, "n_head": 4},  # attention by products, with a bias for each head
    "phi3": {"num_key_value_heads": 2},  # one product for queries and fewer keys, one for the gate
    "deepseek_v3": {
        **{"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8},
        **{"v_head_dim": 8, "first_k_dense_replace": 2, "num_key_value_heads": 4},
    },
}
ARCHITECTURES = {
    "qwen3": "Qwen3ForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "bloom": "BloomForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
}


@pytest.mark.parametrize("family", list(FAMILIES))
def test_attention_is_divided_by_heads_and_gradients_as_weights(family: str) -> None:
    config = {"model_type": family, **SMALL, **FAMILIES[family]}
    config["architectures"] = [ARCHITECTURES[family]]
    trace = traced_config(config, "bfloat16 weights")
    sharded, _ = with_layers_sharded(trace, Parallel(tensor=2))
    assert [wrong for call in sharded if (wrong := misfit(call.op))] == []
    for of in ("attention", "bmm"):
        whole = sum(flops(call) for call in trace if of in call.op.base)
        assert whole == 2 * sum(flops(call) for call in sharded if of in call.op.base)
    sizes: dict[tuple[str, int], set[int]] = {}
    for before, now in zip(trace.allocations, sharded.allocations, strict=True):
        if before.role in (Role.PARAMETER, Role.GRADIENT) and before.module:
            sizes.setdefault((before.module, before.nbytes), set()).add(now.nbytes)
    assert all(len(different) == 1 for different in sizes.values())
    ahead = [c for c in collectives(sharded) if c.phase is Phase.FORWARD]
    hidden = [c for c in ahead if c.op.inputs[0].shape[-1] == 32]
    assert len(hidden) == 1 + 2 * 2  # the embedding, and two in each block
