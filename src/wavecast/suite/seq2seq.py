"""Machine translation by recurrent networks, one word after the other: Seq2Seq with attention."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from wavecast.errors import InvalidInput
from wavecast.suite.training import Minimizer, TrainingStep

_NOTHING = 0
"""Stands behind the end of a sentence; it is no word."""


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

    One bidirectional layer reads, two layers write; SGD, gradients clipped at 5. The sentences
    have 20 to 30 words, as TBD says, and are padded to the longest of their batch. The inputs of
    the step are the `source`, the `target` so far and the `following` words of the target, each
    (batch, longest): words from 1 on, and 0 behind the ends, which stay the same. The loss is that
    of a sentence.
    """
    sources, targets = sentence_lengths(batch, shortest, longest)
    model = Seq2Seq(width, vocabulary, dropout).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)

    def loss(source: Tensor, target: Tensor, following: Tensor) -> Tensor:
        logits = model(source, sources, target).flatten(0, 1)
        words = following.flatten()
        total = F.cross_entropy(logits, words, ignore_index=_NOTHING, reduction="sum")
        return total / batch

    inputs = tuple(_sentences(each, vocabulary, device) for each in (sources, targets, targets))
    return TrainingStep(model, inputs, Minimizer(loss, optimizer, precision, device, clip_norm=5.0))


def sentence_lengths(batch: int, shortest: int, longest: int) -> tuple[list[int], list[int]]:
    """How many words the sentences of a batch have, the longest first, and their translations.

    From the shortest to the longest all are as likely; drawn with a seed of their own, they are the
    same ones each time.
    """
    if not 1 <= shortest <= longest:
        raise InvalidInput(f"no sentence has {shortest} to {longest} words")
    draw = random.Random(2015)
    lengths = [draw.randint(shortest, longest) for _ in range(2 * batch)]
    return sorted(lengths[:batch], reverse=True), lengths[batch:]


def _sentences(lengths: list[int], vocabulary: int, device: str) -> Tensor:
    words = torch.randint(1, vocabulary, (len(lengths), max(lengths)), device=device)
    ends = torch.tensor(lengths, device=device)[:, None]
    return words.masked_fill(torch.arange(max(lengths), device=device) >= ends, _NOTHING)


class Seq2Seq(nn.Module):
    """An encoder, and a decoder that attends to it and hears what it found (Luong et al. 2015).

    With V words in each language and width H, an LSTM that reads I numbers has 4H(I + H) + 8H
    parameters; TensorFlow's has one bias where torch's has two, 4H fewer. In the encoder two read
    H, one each way; in the decoder one reads 2H, the last word and what attention found, and one
    reads H. Embeddings and output have 3VH, attention 5H² + 1: 3VH + 41H² + 32H + 1 in all.
    TBD counts five layers, which these are with the output; its one vocabulary is both languages'.
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
        """Logits of each next target word, (batch, target, words).

        Args:
            source: (batch, longest sentence).
            lengths: of the sentences, the longest first.
            target: (batch, longest translation).
        """
        words = self.dropout(self.source_words(source))
        packed, states = self.encoder(pack_padded_sequence(words, lengths, batch_first=True))
        memory, _ = pad_packed_sequence(packed, batch_first=True)
        return self.output(self._decode(target, memory, source == _NOTHING, states))

    def _decode(
        self, target: Tensor, memory: Tensor, empty: Tensor, states: tuple[Tensor, Tensor]
    ) -> Tensor:
        # What one way of the encoder remembers is where one layer of the decoder begins.
        first, second = zip(*states, strict=True)
        found = torch.zeros_like(first[0])
        keys = self.attention.key(memory)
        spoken = []
        for word in self.target_words(target).unbind(dim=1):
            first = self.first(self.dropout(torch.cat([word, found], dim=1)), first)
            second = self.second(self.dropout(first[0]), second)
            found = self.attention(second[0], keys, memory, empty)
            spoken.append(found)
        return torch.stack(spoken, dim=1)


class ScaledAttention(nn.Module):
    """Luong's "general" attention, with the one learned scale that the tutorial adds."""

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
