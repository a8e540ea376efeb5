"""Steps of the kinds that version 0.2 got wrong: FlexAttention over documents, Muon, broken graphs.

Their predictions were committed after the repairs and before any of them was measured.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from lab.steps.compiled import DEFAULT, DEVICE, EAGER, CompiledStep, Make, Step, sequence, trained
from lab.steps.hand_written import NewtonSchulz
from lab.steps.llama import PlainLlama, PlainLlamaLayer, rotate
from wavecast.frameworks.pytorch.drawn.newer_layers import orthogonal

_END_OF_TEXT = 0
_LENGTH, _VOCABULARY = 16_384, 50_304
_DOCUMENT = 1_000
"""The mean tokens of a document."""
_DECODER = partial(PlainLlama, 4, 1024, 2816, 16, 32_000)


class _OverDocuments(nn.Module):
    """A decoder whose tokens look back within their document, at most as far as a window."""

    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.window = window
        self.embedding = nn.Embedding(_VOCABULARY, 768)
        self.layers = nn.ModuleList(_MaskedLayer(768, 2048, 6) for _ in range(6))
        self.head = nn.Linear(768, _VOCABULARY, bias=False)

    def forward(self, tokens: Any) -> Any:
        documents = (tokens == _END_OF_TEXT).cumsum(0)

        def sees(_batch: Any, _head: Any, query: Any, key: Any) -> Any:
            near = query >= key
            if self.window is not None:
                near = near & (query - key < self.window)
            return near & (documents[query] == documents[key])

        length = tokens.shape[0]
        mask = create_block_mask(sees, None, None, length, length, device=DEVICE, _compile=True)
        x = self.embedding(tokens)[None]
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(F.rms_norm(x, (768,)))


class _MaskedLayer(PlainLlamaLayer):
    def forward(self, x: Any, mask: Any = None) -> Any:
        y = self.attention_norm(x)
        query, key, value = (
            project(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        y = flex_attention(rotate(query), rotate(key), value, block_mask=mask)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def _documents(window: int | None) -> Make:
    def make(how: str) -> Step:
        with torch.device(DEVICE):
            model = _OverDocuments(window).bfloat16()
            tokens = torch.randint(1, _VOCABULARY, (_LENGTH,))
            tokens[torch.rand(_LENGTH) < 1 / _DOCUMENT] = _END_OF_TEXT
        return trained(model, lambda m: F.cross_entropy(m(tokens)[0], tokens), how, "fp32")

    return make


def _muon(how: str) -> Step:
    """Muon, whose one compiled function gets matrices of all shapes."""
    step: Any = sequence(_DECODER, 4, 1024, 32_000, "bf16", how)
    newton_schulz = orthogonal if how == EAGER else torch.compile(orthogonal)
    parameters = step.optimizer.param_groups[0]["params"]
    step.optimizer = NewtonSchulz(parameters, orthogonal=newton_schulz)
    return step  # type: ignore[no-any-return]


class _Checkpointed(nn.Module):
    """A layer that computes its activations again."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return checkpoint(self.layer, x, use_reentrant=False)


def _by_blocks(every: int) -> Make:
    """Each block is compiled by itself, and every n-th computes its activations again."""

    def build() -> nn.Module:
        model = PlainLlama(8, 1024, 2816, 16, 32_000)
        for number in range(len(model.layers)):
            block: nn.Module = model.layers[number]
            if number % every == 0:
                block = _Checkpointed(block)
            block.compile(fullgraph=True)
            model.layers[number] = block
        return model

    return lambda how: sequence(build, 4, 2048, 32_000, "bf16", EAGER, optimizer="fused")


class _BreaksInItsLayers(PlainLlama):
    """A decoder that asks for a value between its layers, which breaks the compiled graph."""

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
            torch._dynamo.graph_break()
        return self.head(self.norm(x))


def _broken(how: str) -> Step:
    build = partial(_BreaksInItsLayers, 6, 1024, 2816, 16, 32_000)
    return sequence(build, 8, 1024, 32_000, "bf16", how, optimizer="fused")


_STEPS: tuple[tuple[str, str, Make], ...] = (
    ("documents", DEFAULT, _documents(None)),
    ("documents-window", DEFAULT, _documents(1024)),
    ("muon", DEFAULT, _muon),
    ("blocks", DEFAULT, _by_blocks(100)),
    ("blocks-checkpointed", DEFAULT, _by_blocks(1)),
    ("blocks-alternate", DEFAULT, _by_blocks(2)),
    ("broken", DEFAULT, _broken),
    ("muon-eager", EAGER, _muon),
)
REPAIRED: tuple[CompiledStep, ...] = tuple(
    CompiledStep(f"repaired-{name}", name, make, mode) for name, mode, make in _STEPS
)
"""The steps, compiled ones first, since these take longest to prepare."""
