"""Language modelling: BERT (masked tokens) and GPT-2 (next tokens), with shared parts."""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavecast.errors import InvalidInput
from wavecast.suite.training import Minimizer, TrainingStep, next_tokens


def bert(
    batch: int,
    precision: str,
    *,
    device: str = "cuda",
    sequence: int = 128,
    layers: int,
    width: int,
    heads: int,
    vocabulary: int = 30_522,
    context: int = 512,
    dropout: float = 0.1,
    learning_rate: float = 1e-4,
) -> TrainingStep:
    """BERT pre-training: predict 15% of the tokens, and whether a sentence follows another.

    As in appendix A.2 of Devlin et al.: Adam with decoupled decay; gradients are clipped at 1 as in
    the authors' code. The inputs of the step are `tokens` and `segments`, (batch, sequence);
    `masked`, the positions of the masked tokens in the flattened tokens; `words`, the tokens that
    were there; and `follows`, (batch).
    """
    _check_fits(sequence, context)
    model = Bert(layers, width, heads, vocabulary, context, dropout).to(device)
    optimizer = _adamw(model, learning_rate, betas=(0.9, 0.999), decay=0.01)

    def loss(
        tokens: Tensor, segments: Tensor, masked: Tensor, words: Tensor, follows: Tensor
    ) -> Tensor:
        word_logits, next_logits = model(tokens, segments, masked)
        return F.cross_entropy(word_logits, words) + F.cross_entropy(next_logits, follows)

    per_sample = math.ceil(0.15 * sequence)
    shuffled = torch.rand(batch, sequence, device=device).argsort(dim=1)[:, :per_sample]
    offsets = torch.arange(batch, device=device)[:, None] * sequence
    inputs = (
        torch.randint(vocabulary, (batch, sequence), device=device),
        (torch.arange(sequence, device=device) >= sequence // 2).long().repeat(batch, 1),
        (shuffled + offsets).flatten(),
        torch.randint(vocabulary, (batch * per_sample,), device=device),
        torch.randint(2, (batch,), device=device),
    )
    return TrainingStep(model, inputs, Minimizer(loss, optimizer, precision, device, clip_norm=1.0))


bert_base = partial(bert, layers=12, width=768, heads=12)
bert_large = partial(bert, layers=24, width=1024, heads=16)


def gpt2(
    batch: int,
    precision: str,
    *,
    device: str = "cuda",
    sequence: int = 1024,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 50_257,
    context: int = 1024,
    dropout: float = 0.1,
    learning_rate: float = 6e-4,
) -> TrainingStep:
    """GPT-2 pre-training. The inputs of the step are `tokens`, and `targets`, the next tokens.

    The paper does not give the optimizer's settings. They are GPT-3's for the same sizes (Brown et
    al. 2020, table 2.1 and appendix B).
    """
    _check_fits(sequence, context)
    model = GPT2(layers, width, heads, vocabulary, context, dropout).to(device)
    optimizer = _adamw(model, learning_rate, betas=(0.9, 0.95), decay=0.1)

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())

    inputs = next_tokens(vocabulary, batch, sequence, device)
    return TrainingStep(model, inputs, Minimizer(loss, optimizer, precision, device, clip_norm=1.0))


gpt2_medium = partial(gpt2, layers=24, width=1024, heads=16, learning_rate=3e-4)


class Bert(nn.Module):
    """The encoder of Devlin et al. with its two heads for pre-training."""

    def __init__(
        self, layers: int, width: int, heads: int, vocabulary: int, context: int, dropout: float
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.segments = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(
            *[NormAfter(width, heads, dropout, nn.GELU(), eps=1e-12) for _ in range(layers)]
        )
        self.pooler = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.next_sentence = nn.Linear(width, 2)
        self.transform = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, eps=1e-12)
        )
        self.word_bias = nn.Parameter(torch.zeros(vocabulary))
        self.apply(_initialize)

    def forward(self, tokens: Tensor, segments: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of the masked tokens, (masked, vocabulary), and of the next sentence."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.positions(places) + self.segments(segments)
        x = self.blocks(self.dropout(self.norm(x)))
        next_logits = self.next_sentence(self.pooler(x[:, 0]))
        chosen = self.transform(x.flatten(0, 1).index_select(0, masked))
        return F.linear(chosen, self.words.weight, self.word_bias), next_logits


class GPT2(nn.Module):
    """The decoder of Radford et al. The token embeddings are also the output layer."""

    def __init__(
        self, layers: int, width: int, heads: int, vocabulary: int, context: int, dropout: float
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        gelu = partial(nn.GELU, approximate="tanh")
        self.blocks = nn.Sequential(
            *[NormBefore(width, heads, dropout, gelu(), causal=True) for _ in range(layers)]
        )
        self.norm = nn.LayerNorm(width)
        self.apply(_initialize)
        for block in self.blocks:  # section 2.3: layers before a residual sum start smaller
            for projection in (block.attention.project, block.feed_forward[2]):
                nn.init.normal_(projection.weight, std=0.02 / math.sqrt(2 * layers))

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, sequence) -> logits of each next token, (batch, sequence, vocabulary)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.dropout(self.words(tokens) + self.positions(places)))
        return F.linear(self.norm(x), self.words.weight)


class TransformerBlock(nn.Module):
    """Attention and a feed-forward network. Its two subclasses normalize at different places."""

    def __init__(
        self,
        width: int,
        heads: int,
        dropout: float,
        activation: nn.Module,
        *,
        causal: bool = False,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.attention = SelfAttention(width, heads, dropout, causal)
        self.attention_norm = nn.LayerNorm(width, eps=eps)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), activation, nn.Linear(4 * width, width)
        )
        self.feed_forward_norm = nn.LayerNorm(width, eps=eps)
        self.dropout = nn.Dropout(dropout)


class NormAfter(TransformerBlock):
    """A block that normalizes after each sum, as in the first Transformer and BERT."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) -> the same."""
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class NormBefore(TransformerBlock):
    """A block that normalizes before each branch, as in GPT-2."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) -> the same."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself; if causal, to its past only."""

    def __init__(self, width: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) -> the same."""
        by_head = self.query_key_value(x).unflatten(-1, (3, self.heads, -1))
        query, key, value = by_head.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=self.causal
        )
        return self.project(mixed.transpose(1, 2).flatten(2))


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def _adamw(
    model: nn.Module, learning_rate: float, betas: tuple[float, float], decay: float
) -> torch.optim.AdamW:
    """AdamW with decay for matrices, and none for biases and norms."""
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": decay},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas)


def _check_fits(sequence: int, context: int) -> None:
    if not 1 <= sequence <= context:
        raise InvalidInput(f"the sequence must have 1 to {context} tokens, not {sequence}")
