"""Speech recognition: Deep Speech 2."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from wavecast.errors import InvalidInput
from wavecast.suite.training import Minimizer, TrainingStep

_FRAMES_PER_SECOND = 100
_LETTERS_PER_SECOND = 14
"""LibriSpeech has about 2.7 words a second, of about 5 letters including the space."""


def deep_speech_2(
    batch: int,
    precision: str,
    *,
    device: str = "cuda",
    seconds: float = 12.5,
    frequencies: int = 161,
    channels: int = 32,
    layers: int = 5,
    width: int = 1510,
    letters: int = 28,
    learning_rate: float = 3e-4,
) -> TrainingStep:
    """Deep Speech 2: CTC loss, SGD with Nesterov momentum 0.99, gradients clipped at 400.

    The training is that of Amodei et al.; two convolutions and five recurrent layers are what TBD
    ran. The inputs of the step are `spectrograms` (batch, 1, frequencies, frames), of the lengths
    that `utterance_seconds` gives, and their `text` (batch, letters), with letters from 1 on. Both
    are padded with zeros, and their lengths never change. The loss is per utterance.
    """
    lengths = utterance_seconds(batch, seconds)
    frames = [math.ceil(length * _FRAMES_PER_SECOND) for length in lengths]
    spoken = [max(1, int(length * _LETTERS_PER_SECOND)) for length in lengths]
    model = DeepSpeech2(frequencies, channels, layers, width, letters).to(device)
    optimizer = torch.optim.SGD(model.parameters(), learning_rate, momentum=0.99, nesterov=True)

    def loss(spectrograms: Tensor, text: Tensor) -> Tensor:
        logits, steps = model(spectrograms, frames)
        total = F.ctc_loss(logits.log_softmax(dim=-1), text, steps, spoken, reduction="sum")
        return total / batch

    inputs = (
        torch.randn(batch, 1, frequencies, frames[0], device=device)
        * _within(frames, device)[:, None, None],
        torch.randint(1, letters + 1, (batch, spoken[0]), device=device) * _within(spoken, device),
    )
    clipped = Minimizer(loss, optimizer, precision, device, clip_norm=400.0)
    return TrainingStep(model, inputs, clipped)


def utterance_seconds(batch: int, mean: float = 12.5) -> list[float]:
    """The lengths of a batch's utterances in seconds, longest first.

    LibriSpeech's pieces are seldom longer than 17 seconds and 12.5 on average: here a triangular
    distribution from 5 to 17 with its mode at 15.5. Each utterance gets the middle of one of its
    equally probable parts, so every batch has the same mean, and a larger one a longer longest.
    """
    if not mean > 0:
        raise InvalidInput(f"an utterance must take more than 0 seconds, not {mean:g}")
    low, mode, high = (mean / 12.5 * second for second in (5.0, 15.5, 17.0))

    def at(quantile: float) -> float:
        if quantile < (mode - low) / (high - low):
            return low + math.sqrt(quantile * (high - low) * (mode - low))
        return high - math.sqrt((1 - quantile) * (high - low) * (high - mode))

    return [at((place + 0.5) / batch) for place in reversed(range(batch))]


class DeepSpeech2(nn.Module):
    """Amodei et al. 2016: convolutions, bidirectional recurrent layers, a linear layer, the output.

    The width is that of five recurrent layers in the paper's comparison of depths. The convolutions
    are the two-dimensional ones of its comparison of convolutions. They halve the number of frames
    once and the F frequencies twice. CTC has a blank besides the L letters. With C channels, width
    H and f = ceil(F / 4) there are

        451C + 231C² + 4C                                in the convolutions and their norms,
        2H(Cf + H) + 4H and N - 1 times 4H² + 6H         in N recurrent layers and their norms,
        H² + 3H and (L + 1)H + L + 1                     in the last two layers and one norm:

    47.6 million parameters. The paper's networks have 38 million in the first comparison and 35
    million in the second, because both directions share the matrix that reads the layer below. In
    cuDNN they do not share it, and its matmul cannot be normalized. So here its input is
    normalized, and the ReLUs within a recurrent layer are not clipped at 20.
    """

    def __init__(
        self,
        frequencies: int = 161,
        channels: int = 32,
        layers: int = 5,
        width: int = 1510,
        letters: int = 28,
    ) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            *_convolution(1, channels, (41, 11), (2, 2)),
            *_convolution(channels, channels, (21, 11), (2, 1)),
        )
        features = channels * math.ceil(frequencies / 4)
        self.recurrent = nn.ModuleList([Recurrent(features, width, norm=False)])
        self.recurrent.extend(Recurrent(width, width) for _ in range(layers - 1))
        self.hidden = nn.Sequential(
            nn.BatchNorm1d(width), nn.Linear(width, width), nn.Hardtanh(0.0, 20.0)
        )
        self.output = nn.Linear(width, letters + 1)

    def forward(self, spectrograms: Tensor, frames: list[int]) -> tuple[Tensor, list[int]]:
        """The logits of blank and letters, (steps, batch, letters + 1), and each sample's steps;
        from spectrograms (batch, 1, frequencies, frames), the longest first."""
        steps = [math.ceil(count / 2) for count in frames]
        x = self.convolutions(spectrograms).flatten(1, 2).permute(2, 0, 1)
        packed = pack_padded_sequence(x, steps)
        for layer in self.recurrent:
            packed = layer(packed)
        logits = self.output(self.hidden(packed.data))
        return pad_packed_sequence(packed._replace(data=logits))[0], steps


class Recurrent(nn.Module):
    """A bidirectional recurrent layer that sums the outputs of both directions. Its norm is
    sequence-wise: over all frames of all samples, the rows of a packed sequence."""

    def __init__(self, features: int, width: int, *, norm: bool = True) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(features) if norm else nn.Identity()
        self.ways = nn.RNN(features, width, nonlinearity="relu", bidirectional=True)

    def forward(self, packed: PackedSequence) -> PackedSequence:
        """A packed sequence of features -> a packed sequence of the layer's width."""
        output, _ = self.ways(packed._replace(data=self.norm(packed.data)))
        return output._replace(data=output.data.unflatten(-1, (2, -1)).sum(dim=1))


def _convolution(
    narrow: int, wide: int, kernel: tuple[int, int], stride: tuple[int, int]
) -> list[nn.Module]:
    """A convolution over frequencies and frames, padded so that none is lost at the edges."""
    padding = (kernel[0] // 2, kernel[1] // 2)
    convolution = nn.Conv2d(narrow, wide, kernel, stride, padding, bias=False)
    return [convolution, nn.BatchNorm2d(wide), nn.Hardtanh(0.0, 20.0)]


def _within(lengths: list[int], device: str) -> Tensor:
    """Which places of a padded batch are not padding, (batch, longest)."""
    places = torch.arange(max(lengths), device=device)
    return places < torch.tensor(lengths, device=device)[:, None]
