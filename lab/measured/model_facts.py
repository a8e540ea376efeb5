"""What public configurations say about models, beside the columns of a table of measured steps.

A table names the layers, widths, heads and experts. The size of a head, experts that all words go
to, blocks without experts and the ranks of DeepSeek's attention are from the `config.json` of the
models on Hugging Face. The number of parameters that the table states is the check: a model that
misses it is not rebuilt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

TOLERANCE = 0.05
"""How far the number of parameters may be from the stated one."""


@dataclass(frozen=True)
class ModelFacts:
    """Sizes that a table does not state. They are options of `wavecast.suite.decoders`."""

    head_size: int | None = None
    shared_experts: int = 0
    dense_layers: int = 0
    dense_ffn: int | None = None
    kv_rank: int = 0
    q_rank: int = 0

    def options(self) -> dict[str, Any]:
        """The sizes that differ from the decoder's defaults."""
        return {name: value for name, value in asdict(self).items() if value}


_DEEPSEEK = {"head_size": 128, "kv_rank": 512}
_FACTS: tuple[tuple[str, ModelFacts], ...] = (
    (r"qwen-?3", ModelFacts(head_size=128)),
    (r"gpt-?oss", ModelFacts(head_size=64)),
    (
        r"deepseek-?v2-?lite",
        ModelFacts(**_DEEPSEEK, shared_experts=2, dense_layers=1, dense_ffn=10_944),
    ),
    (
        r"deepseek-?v2",
        ModelFacts(**_DEEPSEEK, q_rank=1536, shared_experts=2, dense_layers=1, dense_ffn=12_288),
    ),
    (
        r"deepseek-?(v3|r1)",
        ModelFacts(**_DEEPSEEK, q_rank=1536, shared_experts=1, dense_layers=3, dense_ffn=18_432),
    ),
    (
        r"kimi-?k2",
        ModelFacts(**_DEEPSEEK, q_rank=1536, shared_experts=1, dense_layers=1, dense_ffn=18_432),
    ),
    (
        r"deepseek-?moe",
        ModelFacts(shared_experts=2, dense_layers=1, dense_ffn=10_944),
    ),
    (r"llama-?4-?scout", ModelFacts(shared_experts=1)),
)
_OTHER_LAYERS = re.compile(r"mamba|jamba|qwen3-?next|nemotron-?(h|3)\b|-h-", re.IGNORECASE)


def facts_of(model: str) -> ModelFacts:
    """What is known about a model, by its name; nothing for others."""
    found = (facts for name, facts in _FACTS if re.search(name, model, re.IGNORECASE))
    return next(found, ModelFacts())


def has_other_layers(model: str) -> bool:
    """Whether a model has layers other than attention, such as state spaces."""
    return _OTHER_LAYERS.search(model) is not None


def parameters_of(row: Mapping[str, Any], facts: ModelFacts) -> float:
    """The parameters of a mixture of experts, its embeddings not tied."""
    hidden, layers, ffn = int(row["hidden"]), int(row["layers"]), int(row["ffn"])
    heads = int(row["heads"])
    size = facts.head_size or hidden // heads
    if facts.kv_rank:
        turned = size // 2
        queries = (facts.q_rank or hidden) * heads * (size + turned) + hidden * facts.q_rank
        narrow = hidden * (facts.kv_rank + turned) + facts.kv_rank * heads * 2 * size
        attention = queries + narrow + heads * size * hidden
    else:
        attention = 2 * hidden * size * (heads + int(row["kv_heads"] or heads))
    experts = int(row["n_experts"])
    mixture = hidden * experts + 3 * hidden * ffn * (experts + facts.shared_experts)
    usual = (int(row["top_k"] or 1) + facts.shared_experts) * ffn
    dense = 3 * hidden * (facts.dense_ffn or usual)
    blocks = (layers - facts.dense_layers) * mixture + facts.dense_layers * dense
    return float(layers * attention + blocks + 2 * int(row["vocab"]) * hidden)
