"""Machine translation: Seq2Seq, an LSTM encoder and decoder with attention."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from wavecast.errors import InvalidInput
from wavecast.suite.training import Minimizer, TrainingStep

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
    inputs = tuple(_sentences(lengths, vocabulary, device) for lengths in sides)
    return TrainingStep(model, inputs, Minimizer(loss, optimizer, precision, device, clip_norm=5.0))


def sentence_lengths(batch: int, shortest: int, longest: int) -> tuple[list[int], list[int]]:
    """The numbers of words of a batch's sentences, longest first, and of their translations.

    They are uniform from the shortest to the longest, and drawn with a fixed seed, so that they are
    the same each time.
    """
    if not 1 <= shortest <= longest:
        raise InvalidInput(
            f"sentences cannot have {shortest} to {longest} words; the shortest must have at least "
            "1, and no more than the longest"
        )
    draw = random.Random(2015)
    lengths = [draw.randint(shortest, longest) for _ in range(2 * batch)]
    return sorted(lengths[:batch], reverse=True), lengths[batch:]


def _sentences(lengths: list[int], vocabulary: int, device: str) -> Tensor:
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
        """The logits of each next target word, (batch, target, words).

        Args:
            source: (batch, longest sentence).
            lengths: the lengths of the sentences, longest first.
            target: (batch, longest translation).
        """
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
