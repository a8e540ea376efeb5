"""Twenty training steps with odd blocks: on one GPU, and as one of four tensor ranks by DTensor.

A plan names modules in the words of Hugging Face's `base_model_tp_plan`. A `colwise` layer
all-reduces the gradient of its own input, and a `rowwise` layer its own output, as in DTensor.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from parallel import odd_blocks_models as m
from parallel import odd_blocks_references as r
from parallel.odd_blocks_images import Bottleneck, ImageModel, InvertedBlock, images
from torch import distributed as dist
from torch import nn
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional as F

from wavecast.parallel.strategy import Parallel

Step = Callable[[], None]


@dataclass(frozen=True)
class OddBlock:
    """A training step, and how its layers are sharded."""

    model: Callable[[], nn.Module]
    plan: dict[str, str]
    shard: r.Sharding | None = None
    """The expert's own code. None where one style a module does it."""
    sequence: bool = False
    dtype: Any = None
    """The type of the activations under autocast. None for float32."""
    weights: Any = None
    """The type of the weights. None for float32."""
    inputs: Callable[[], Any] = lambda: torch.randint(m.VOCABULARY, (m.BATCH, m.SEQUENCE))

    @property
    def strategy(self) -> Parallel:
        """What `spread` gets."""
        return Parallel(tensor=r.RANKS, sequence=self.sequence, tensor_plan=self.plan)

    def make_step(self, device: str = "cuda") -> Step:
        """The step on one GPU."""
        model = self.made(device)
        optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
        return self.step(model, optimizer, device)

    def make_parallel_step(self, device: str = "cuda") -> Step:
        """The step of one of four ranks, by DTensor."""
        model = self.made(device)
        mesh = dist.init_device_mesh(device, (r.RANKS,))
        (self.shard or r.by_plan(self.plan))(model, mesh)
        return self.step(model, r.LocalOptimizer(model), device)

    def made(self, device: str) -> Any:
        """The whole model."""
        return self.model().to(device=device, dtype=self.weights)

    def step(self, model: Any, optimizer: Any, device: str) -> Step:
        """Forward pass, backward pass and optimizer."""
        x = self.inputs().to(device)
        by_image = x.is_floating_point()
        targets = torch.zeros(len(x) if by_image else x.numel(), dtype=torch.long, device=device)
        is_parallel = isinstance(optimizer, r.LocalOptimizer)
        sharded = is_parallel and self.plan.get("output") == "colwise"
        over_vocabulary = loss_parallel if sharded else nullcontext

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast(device, self.dtype, enabled=self.dtype is not None):
                logits = model(x)
            with over_vocabulary():
                logits = logits if by_image else logits.flatten(0, 1)
                F.cross_entropy(logits.float(), targets).backward()
            optimizer.step()

        return step


LAYER, RMS = nn.LayerNorm, nn.RMSNorm


def _decoder(attention: Any, feed_forward: Any, block: Any = m.Block, norm: Any = LAYER) -> Any:
    return partial(m.Decoder, partial(block, attention, feed_forward, norm), norm)


def _one_norm(attention: Any, feed_forward: Any) -> Any:
    return partial(m.Decoder, partial(m.OneNormBlock, attention, feed_forward), LAYER)


def _plan(columns: str, rows: str, packed: str = "", root: str = "blocks.*.") -> dict[str, str]:
    styles = {"colwise": columns, "packed_colwise": packed, "rowwise": rows}
    return {
        f"{root}{path}": style for style, paths in styles.items() for path in paths.split() if path
    }


_QKV = "attention.query attention.key attention.value"
_ROWS = "attention.project feed_forward.down"
_SEPARATE = _plan(f"{_QKV} feed_forward.up", _ROWS)
_FUSED = _plan("attention.query_key_value feed_forward.up", _ROWS)
_PACKED = _plan("feed_forward.up", _ROWS, packed="attention.query_key_value")
_GATED = _plan(f"{_QKV} feed_forward.gate feed_forward.up", _ROWS)
_ENDS = {"tokens": "embedding_rowwise", "output": "colwise_rep"}
_TIED = {**_SEPARATE, "tokens": "embedding_rowwise", "output": "colwise"}
_RELATIVE = {**_SEPARATE, "blocks.*.attention.relative": "colwise"}
_MULTI_QUERY = _plan("attention.query feed_forward.up", _ROWS)
_THREE = {
    **_plan(f"{_QKV} feed_forward.first", "attention.project feed_forward.second"),
    "blocks.*.feed_forward.third": "colwise_rep",
}
_EXPERT_CHOICE = _plan(
    f"{_QKV} feed_forward.experts.*.gate feed_forward.experts.*.up",
    "attention.project feed_forward.experts.*.down",
)
_SHARED = {
    **_plan(
        f"{_QKV} feed_forward.shared.gate feed_forward.shared.up",
        "attention.project feed_forward.shared.down",
    ),
    "blocks.*.feed_forward.experts.gate_up_proj": "packed_colwise",
    "blocks.*.feed_forward.experts.down_proj": "rowwise",
    "blocks.*.feed_forward.experts": "moe_tp_experts",
}
_LORA = _plan(
    "attention.query.base attention.query.up attention.key attention.value feed_forward.up",
    "attention.project.base attention.project.down feed_forward.down",
)
_CROSS = {
    **_plan(f"{_QKV} feed_forward.up", _ROWS, root="encoder.*."),
    **_plan(
        f"{_QKV} feed_forward.up cross.query",
        f"{_ROWS} cross.project",
        packed="cross.key_value",
        root="decoder.*.",
    ),
}
_INVERTED = _plan("expand expand_norm filter filter_norm", "project")
_BOTTLENECK = _plan("narrow narrow_norm", "mix")


def _encoder_decoder() -> nn.Module:
    parts = (m.Attention, m.FeedForward, LAYER)
    return m.EncoderDecoder(partial(m.Block, *parts), partial(m.DecoderBlock, *parts))


def _tied() -> nn.Module:
    return m.Decoder(partial(m.Block, m.Attention, m.FeedForward, LAYER), LAYER, tied=True)


ODD_BLOCKS: dict[str, OddBlock] = {
    "parallel attention and feed-forward": OddBlock(
        _one_norm(m.Attention, m.FeedForward), _SEPARATE
    ),
    "parallel, fused by group": OddBlock(
        _one_norm(partial(m.FusedAttention, "group"), m.FeedForward), _FUSED
    ),
    "fused [q; k; v]": OddBlock(
        _decoder(partial(m.FusedAttention, "packed"), m.FeedForward), _PACKED, dtype=torch.bfloat16
    ),
    "fused by head, parallel with two norms": OddBlock(
        _decoder(partial(m.FusedAttention, "head"), m.FeedForward, m.ParallelBlock), _FUSED
    ),
    "grouped queries, rotary, gated": OddBlock(
        _decoder(partial(m.Attention, 4, False, True), m.GatedFeedForward, norm=RMS),
        _GATED,
        dtype=torch.bfloat16,
    ),
    "multi-query": OddBlock(
        _decoder(m.MultiQueryAttention, m.FeedForward),
        _MULTI_QUERY,
        r.shard_multi_query(_MULTI_QUERY),
    ),
    "cross attention, fused [k; v]": OddBlock(_encoder_decoder, _CROSS),
    "checkpointed, fused [gate; up]": OddBlock(
        _decoder(m.Attention, m.FusedGatedFeedForward, m.CheckpointedBlock, RMS),
        _plan(_QKV, _ROWS, packed="feed_forward.gate_up"),
    ),
    "alibi": OddBlock(_decoder(m.AlibiAttention, m.FeedForward), _FUSED, r.shard_alibi(_FUSED)),
    "relative bias": OddBlock(_decoder(m.RelativeAttention, m.FeedForward, norm=RMS), _RELATIVE),
    "tied, vocabulary-parallel loss": OddBlock(_tied, _TIED, r.shard_tied(_TIED)),
    "inverted bottleneck": OddBlock(
        partial(ImageModel, InvertedBlock),
        _INVERTED,
        r.shard_channels("expand", ("expand_norm", "filter_norm"), "project", "filter"),
        inputs=images,
    ),
    "bottleneck": OddBlock(
        partial(ImageModel, Bottleneck),
        _BOTTLENECK,
        r.shard_channels("narrow", ("narrow_norm",), "mix"),
        inputs=images,
    ),
    "expert choice, gated experts": OddBlock(_decoder(m.Attention, m.ExpertChoice), _EXPERT_CHOICE),
    "grouped and shared experts": OddBlock(
        _decoder(m.Attention, m.SharedExperts),
        _SHARED,
        r.shard_experts(_SHARED),
        weights=torch.bfloat16,
    ),
    "adapters": OddBlock(_decoder(m.LoraAttention, m.FeedForward), _LORA),
    "post-norm with dropout": OddBlock(
        _decoder(partial(m.Attention, dropout=0.1), partial(m.FeedForward, 0.1), m.PostNormBlock),
        _SEPARATE,
    ),
    "three layers": OddBlock(_decoder(m.Attention, m.ThreeLayers), _THREE),
    "sequence parallel, gated": OddBlock(
        _decoder(partial(m.Attention, 4, False, True), m.GatedFeedForward, norm=RMS),
        {**_GATED, **_ENDS},
        r.shard_sequence({**_GATED, **_ENDS}),
        sequence=True,
    ),
    "sequence parallel, parallel feed-forward": OddBlock(
        _one_norm(m.Attention, m.FeedForward),
        {**_SEPARATE, **_ENDS},
        r.shard_sequence_one_norm({**_SEPARATE, **_ENDS}),
        sequence=True,
    ),
}
