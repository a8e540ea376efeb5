"""Machine translation: GNMT, recurrent networks joined by attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavecast.errors import InvalidInput
from wavecast.suite.training import Minimizer, TrainingStep


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
    """GNMT: teacher forcing with Adam, gradients clipped at 5 (section 8.3 of Wu et al.).

    The inputs of the step are the `source` sentence, the `target` so far and the `following`
    words of the target, each (batch, sequence).
    """
    if layers < 2:
        raise InvalidInput(f"the translator needs at least 2 layers, not {layers}")
    model = Translator(layers, width, vocabulary, dropout).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)

    def loss(source: Tensor, target: Tensor, following: Tensor) -> Tensor:
        return F.cross_entropy(model(source, target).flatten(0, 1), following.flatten())

    source = torch.randint(vocabulary, (batch, sequence), device=device)
    translation = torch.randint(vocabulary, (batch, sequence + 1), device=device)
    inputs = (source, translation[:, :-1].contiguous(), translation[:, 1:].contiguous())
    return TrainingStep(model, inputs, Minimizer(loss, optimizer, precision, device, clip_norm=5.0))


class Translator(nn.Module):
    """GNMT with four layers a side, as MLPerf trains it, instead of the paper's eight.

    With V words and width H, an LSTM that reads I numbers has 4H(I + H) + 8H parameters. There
    are V·H in the embedding that both languages share, V·H + V in the output, 2H² + H in the
    attention, and the LSTMs read H, H (two directions), 2H, H, H ... in the encoder and H, 2H, 2H,
    2H ... in the decoder. Four layers have 2VH + V + 90H² + 73H.
    """

    def __init__(
        self,
        layers: int = 4,
        width: int = 1024,
        vocabulary: int = 32_000,
        dropout: float = 0.2,
    ) -> None:
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
    """Reads the source in both directions, then forward; sums with its input from the third on."""

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
    """Its first layer asks where to look; all layers above it also read what was found there."""

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
        found = self.attention(x, memory)
        x, _ = self.second(torch.cat([self.dropout(x), found], dim=-1))
        for layer in self.upper:
            x = x + layer(torch.cat([self.dropout(x), found], dim=-1))[0]
        return x


class AdditiveAttention(nn.Module):
    """Scores every place of the memory with a small network (Bahdanau et al. 2015)."""

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
