"""The sizes of decoders: each model's own, and what follows from those that are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEFAULT_SEQ = 2048
OWN_SIZES: Mapping[str, Mapping[str, int]] = {
    "gpt": {"layers": 24, "hidden": 2048, "heads": 16, "vocab": 50_304},
    "llama": {
        **{"layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192},
        **{"vocab": 128_256},
    },
    "mixtral": {
        **{"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14_336},
        **{"vocab": 32_000, "experts": 8, "top_k": 2, "shared_experts": 0, "dense_layers": 0},
        **{"kv_rank": 0, "q_rank": 0},
    },
}
"""Llama is that of 1B parameters (3.2), and mixtral as Jiang et al. 2024 (8x7B)."""


def complete_sizes(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given sizes of a decoder with those that follow from them, or are the model's own.

    Another width or number of heads is another model: without `kv_heads` there are then as many
    as `heads`. With another width, `ffn` is four times `hidden`. The heads divide `hidden`.

    >>> complete_sizes("llama", {"hidden": 4096})["kv_heads"]
    32
    """
    chosen = {size: value for size, value in given.items() if value is not None}
    own = dict(OWN_SIZES[name])
    if chosen.keys() & {"hidden", "heads"}:
        own.pop("kv_heads", None)
    if "hidden" in chosen:
        own.pop("ffn", None)
    sizes = {"seq": DEFAULT_SEQ, **own, **chosen}
    sizes.setdefault("kv_heads", sizes["heads"])
    sizes.setdefault("ffn", 4 * sizes["hidden"])
    sizes.setdefault("head_size", sizes["hidden"] // max(sizes["heads"], 1))
    return sizes
