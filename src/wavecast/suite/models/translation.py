"""Machine translation: GNMT (LSTMs with attention), and the first Transformer."""

from __future__ import annotations

import math
import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from wavecast.errors import InvalidInput
from wavecast.suite.training import Minimizer, TrainingStep, next_tokens


def gnmt(
    batch: int,
    precision: str,
    *,
    device: str = "cuda",
    sequence: int = 50,
    layers: int = 4,
    width: int = 1024,
    vocabulary: int = 32_000,
    dropout: float = 0.2,
    learning_rate: float = 2e-4,
) -> TrainingStep:
    """GNMT, trained by teacher forcing with Adam, gradients clipped at 5 (Wu et al., section 8.3).

    The inputs of the step are the `source` sentence, the `target` so far and the `following`
    tokens of the target, each (batch, sequence).
    """
    if layers < 2:
        raise InvalidInput(f"the translator needs at least 2 layers, not {layers}")
    model = Translator(layers, width, vocabulary, dropout).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)

    def loss(source: Tensor, target: Tensor, following: Tensor) -> Tensor:
        return F.cross_entropy(model(source, target).flatten(0, 1), following.flatten())

    inputs = _sentences(batch, sequence, vocabulary, device)
    return TrainingStep(model, inputs, Minimizer(loss, optimizer, precision, device, clip_norm=5.0))


def transformer(
    batch: int,
    precision: str,
    *,
    device: str = "cuda",
    sequence: int = 50,
    layers: int = 6,
    width: int = 512,
    heads: int = 8,
    vocabulary: int = 37_000,
    dropout: float = 0.1,
    learning_rate: float = 1e-4,
) -> TrainingStep:
    """The base Transformer with Adam and smoothed labels, as in section 5 of Vaswani et al.

    The learning rate is constant: a warm-up would not change the work of a step. The inputs are
    those of `gnmt`. All sentences have the full length, 50 as in Habitat.
    """
    if width % heads or width % 2:
        raise InvalidInput(
            f"the width must be even and a multiple of the {heads} heads, not {width}"
        )
    model = Transformer(layers, width, heads, vocabulary, dropout, sequence).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), eps=1e-9)

    def loss(source: Tensor, target: Tensor, following: Tensor) -> Tensor:
        logits = model(source, target).flatten(0, 1)
        return F.cross_entropy(logits, following.flatten(), label_smoothing=0.1)

    inputs = _sentences(batch, sequence, vocabulary, device)
    return TrainingStep(model, inputs, Minimizer(loss, optimizer, precision, device))


def _sentences(batch: int, sequence: int, vocabulary: int, device: str) -> tuple[Tensor, ...]:
    source = torch.randint(vocabulary, (batch, sequence), device=device)
    return source, *next_tokens(vocabulary, batch, sequence, device)


class Translator(nn.Module):
    """GNMT with four layers a side, as MLPerf trains it, instead of the paper's eight.

    With V words and width H, an LSTM with I inputs has 4H(I + H) + 8H parameters. The embedding,
    which both languages share, has V·H, the output V·H + V, and the attention 2H² + H. The LSTMs
    of the encoder have H, H (two directions), 2H, H, H ... inputs, those of the decoder H, 2H, 2H,
    2H ... inputs. Four layers have 2VH + V + 90H² + 73H.
    """

    def __init__(self, layers: int, width: int, vocabulary: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.encoder = Encoder(layers, width, dropout)
        self.decoder = Decoder(layers, width, dropout)
        self.output = nn.Linear(width, vocabulary)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.04, 0.04)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Both (batch, sequence) -> logits of each next target word, (batch, sequence, words)."""
        memory = self.encoder(self.words(source))
        return self.output(self.decoder(self.words(target), memory))


class Encoder(nn.Module):
    """The encoder: a bidirectional layer, then forward layers, residual from the third on."""

    def __init__(self, layers: int, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.both_ways = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.join = nn.LSTM(2 * width, width, batch_first=True)
        self.upper = nn.ModuleList(
            nn.LSTM(width, width, batch_first=True) for _ in range(layers - 2)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) -> the same."""
        x, _ = self.both_ways(self.dropout(x))
        x, _ = self.join(self.dropout(x))
        for layer in self.upper:
            x = x + layer(self.dropout(x))[0]
        return x


class Decoder(nn.Module):
    """The decoder. Its first layer queries the attention, and the others read the result."""

    def __init__(self, layers: int, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.first = nn.LSTM(width, width, batch_first=True)
        self.attention = AdditiveAttention(width)
        self.second = nn.LSTM(2 * width, width, batch_first=True)
        self.upper = nn.ModuleList(
            nn.LSTM(2 * width, width, batch_first=True) for _ in range(layers - 2)
        )

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """(batch, sequence, width) -> the same."""
        x, _ = self.first(self.dropout(x))
        attended = self.attention(x, memory)
        x, _ = self.second(torch.cat([self.dropout(x), attended], dim=-1))
        for layer in self.upper:
            x = x + layer(torch.cat([self.dropout(x), attended], dim=-1))[0]
        return x


class AdditiveAttention(nn.Module):
    """Attention that scores every position with a small network (Bahdanau et al. 2015)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, queries: Tensor, memory: Tensor) -> Tensor:
        """(batch, target, width), (batch, source, width) -> (batch, target, width)."""
        pairs = self.query(queries)[:, :, None] + self.key(memory)[:, None]
        weights = self.score(torch.tanh(pairs)).squeeze(-1).softmax(dim=-1)
        return weights @ memory


class Transformer(nn.Module):
    """Vaswani et al. 2017. One matrix embeds both languages and is also the output layer.

    With V words and width D, attention has 4D² parameters (section 3.2.2 has no biases), a
    feed-forward network 8D² + 5D and a norm 2D. So N encoder and N decoder layers have
    N(28D² + 20D), and the tokens V·D. With the paper's "about 37000" words that is 63.0 million.
    Table 3 of the paper says 65 million. Its other sizes (36, 50 and 80 million with 2, 4 and 8
    layers) agree with our layers, and leave 21 million for the embedding, some 41,000 words.
    """

    places: Tensor

    def __init__(
        self, layers: int, width: int, heads: int, vocabulary: int, dropout: float, longest: int
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.register_buffer("places", sinusoids(longest, width), persistent=False)
        self.dropout = nn.Dropout(dropout)
        self.encoder = nn.ModuleList(EncoderLayer(width, heads, dropout) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderLayer(width, heads, dropout) for _ in range(layers))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
        nn.init.normal_(self.words.weight, std=width**-0.5)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Both (batch, sequence) -> logits of each next target word, (batch, sequence, words)."""
        memory = self._embed(source)
        for layer in self.encoder:
            memory = layer(memory)
        x = self._embed(target)
        for layer in self.decoder:
            x = layer(x, memory)
        return F.linear(x, self.words.weight)

    def _embed(self, tokens: Tensor) -> Tensor:
        scaled = self.words(tokens) * math.sqrt(self.words.embedding_dim)
        x: Tensor = self.dropout(scaled + self.places[: tokens.shape[1]])
        return x


class EncoderLayer(nn.Module):
    """Attention of the source to itself and a feed-forward network, each with a sum and a norm."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(width, heads)
        self.attention_norm = nn.LayerNorm(width)
        self.feed_forward = _feed_forward(width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) -> the same."""
        x = self.attention_norm(x + self.dropout(self.attention(x, x)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class DecoderLayer(nn.Module):
    """Attention of the target to its past, then to the source, and a feed-forward network."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(width, heads, causal=True)
        self.attention_norm = nn.LayerNorm(width)
        self.source_attention = MultiHeadAttention(width, heads)
        self.source_attention_norm = nn.LayerNorm(width)
        self.feed_forward = _feed_forward(width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """(batch, target, width), (batch, source, width) -> (batch, target, width)."""
        x = self.attention_norm(x + self.dropout(self.attention(x, x)))
        x = self.source_attention_norm(x + self.dropout(self.source_attention(x, memory)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class MultiHeadAttention(nn.Module):
    """Scaled dot-product attention to a memory; if causal, to its past only."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """(batch, target, width), (batch, source, width) -> (batch, target, width)."""
        query = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key_value = self.key_value(memory).unflatten(-1, (2, self.heads, -1))
        key, value = key_value.permute(2, 0, 3, 1, 4)
        # Section 5.4 has no dropout of attention weights, only of sub-layer outputs and embeddings.
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.project(mixed.transpose(1, 2).flatten(2))


def sinusoids(places: int, width: int) -> Tensor:
    """Section 3.5: for each position, sines and cosines of wavelengths from 2π to 20000π."""
    rates = 10_000 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(places)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def _feed_forward(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, 4 * width), nn.ReLU(inplace=True), nn.Linear(4 * width, width)
    )


# Machine translation: Seq2Seq, an LSTM encoder and decoder with attention.


_NOTHING = 0
"""The padding token, which fills up shorter sentences."""


def nmt(
    batch: int,
    precision: str,
    *,
    device: str = "cuda",
    shortest: int = 20,
    longest: int = 30,
    width: int = 512,
    vocabulary: int = 17_188,
    dropout: float = 0.2,
    learning_rate: float = 1.0,
) -> TrainingStep:
    """TBD's Seq2Seq, in the configuration of TensorFlow's NMT tutorial for IWSLT15.

    The encoder has one bidirectional layer, the decoder two layers. The optimizer is SGD, with
    gradients clipped at 5. The sentences have 20 to 30 words, as in TBD, and are padded to the
    longest of their batch. The inputs of the step are the `source`, the `target` so far and the
    `following` words of the target, each (batch, longest): words from 1 on, and 0 as padding. The
    lengths never change. The loss is summed over the tokens and averaged over the sentences.
    """
    sources, targets = sentence_lengths(batch, shortest, longest)
    model = Seq2Seq(width, vocabulary, dropout).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)

    def loss(source: Tensor, target: Tensor, following: Tensor) -> Tensor:
        logits = model(source, sources, target).flatten(0, 1)
        words = following.flatten()
        total = F.cross_entropy(logits, words, ignore_index=_NOTHING, reduction="sum")
        return total / batch

    sides = (sources, targets, targets)
    inputs = tuple(_source_sentences(lengths, vocabulary, device) for lengths in sides)
    return TrainingStep(model, inputs, Minimizer(loss, optimizer, precision, device, clip_norm=5.0))


def sentence_lengths(batch: int, shortest: int, longest: int) -> tuple[list[int], list[int]]:
    """The numbers of words of a batch's sentences, longest first, and of their translations:
    uniform, and drawn with a fixed seed."""
    if not 1 <= shortest <= longest:
        raise InvalidInput(
            f"sentences cannot have {shortest} to {longest} words; the shortest must have at least "
            "1, and no more than the longest"
        )
    draw = random.Random(2015)
    lengths = [draw.randint(shortest, longest) for _ in range(2 * batch)]
    return sorted(lengths[:batch], reverse=True), lengths[batch:]


def _source_sentences(lengths: list[int], vocabulary: int, device: str) -> Tensor:
    words = torch.randint(1, vocabulary, (len(lengths), max(lengths)), device=device)
    ends = torch.tensor(lengths, device=device)[:, None]
    return words.masked_fill(torch.arange(max(lengths), device=device) >= ends, _NOTHING)


class Seq2Seq(nn.Module):
    """An encoder, and a decoder that attends to it and reads the result (Luong et al. 2015).

    With V words in each language and width H, an LSTM with I inputs has 4H(I + H) + 8H parameters
    in torch. TensorFlow's has 4H fewer, because it has one bias and not two. The encoder's two
    LSTMs (one per direction) have H inputs. The decoder's first LSTM has 2H inputs, the last word
    and the result of attention, and its second H. Embeddings and output have 3VH parameters,
    attention 5H² + 1, so there are 3VH + 41H² + 32H + 1 in all. With the output these are the five
    layers that TBD counts. TBD has one vocabulary for both languages.
    """

    def __init__(self, width: int = 512, vocabulary: int = 17_188, dropout: float = 0.2) -> None:
        super().__init__()
        self.source_words = nn.Embedding(vocabulary, width)
        self.target_words = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        self.encoder = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.first = nn.LSTMCell(2 * width, width)
        self.second = nn.LSTMCell(width, width)
        self.attention = ScaledAttention(width)
        self.output = nn.Linear(width, vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter is not self.attention.scale:
                nn.init.uniform_(parameter, -0.1, 0.1)

    def forward(self, source: Tensor, lengths: list[int], target: Tensor) -> Tensor:
        """The logits of each next target word, (batch, target, words), from sentences of these
        lengths, longest first, and their translations."""
        words = self.dropout(self.source_words(source))
        packed, states = self.encoder(pack_padded_sequence(words, lengths, batch_first=True))
        memory, _ = pad_packed_sequence(packed, batch_first=True)
        return self.output(self._decode(target, memory, source == _NOTHING, states))

    def _decode(
        self, target: Tensor, memory: Tensor, empty: Tensor, states: tuple[Tensor, Tensor]
    ) -> Tensor:
        # The final state of each encoder direction is the initial state of one decoder layer.
        first, second = zip(*states, strict=True)
        attended = torch.zeros_like(first[0])
        keys = self.attention.key(memory)
        spoken = []
        for word in self.target_words(target).unbind(dim=1):
            first = self.first(self.dropout(torch.cat([word, attended], dim=1)), first)
            second = self.second(self.dropout(first[0]), second)
            attended = self.attention(second[0], keys, memory, empty)
            spoken.append(attended)
        return torch.stack(spoken, dim=1)


class ScaledAttention(nn.Module):
    """Luong's "general" attention, with the learned scale that the tutorial adds."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.key = nn.Linear(2 * width, width, bias=False)
        self.scale = nn.Parameter(torch.ones(()))
        self.join = nn.Linear(3 * width, width, bias=False)

    def forward(self, query: Tensor, keys: Tensor, memory: Tensor, empty: Tensor) -> Tensor:
        """(batch, width), two of (batch, source, ...), (batch, source) -> (batch, width)."""
        scores = self.scale * (keys @ query[:, :, None]).squeeze(2)
        weights = scores.masked_fill(empty, -torch.inf).softmax(dim=1)
        context = (weights[:, None] @ memory).squeeze(1)
        joined: Tensor = self.join(torch.cat([query, context], dim=1))
        return joined
