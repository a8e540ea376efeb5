"""Image generation: latent diffusion, the network of Stable Diffusion v1."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavecast.errors import InvalidInput
from wavecast.suite.training import Minimizer, TrainingStep

_GROUPS = 32
_TIMES = 1000


def latent_diffusion(
    batch: int,
    precision: str,
    *,
    device: str = "cuda",
    latent: int = 64,
    width: int = 320,
    multipliers: tuple[int, ...] = (1, 2, 4, 4),
    heads: int = 8,
    words: int = 77,
    word_width: int = 768,
    learning_rate: float = 1e-4,
) -> TrainingStep:
    """Latent diffusion: noise is added to latents, and the network learns to predict it.

    The optimizer is AdamW with PyTorch's settings, as in the authors' code. The inputs of the step
    are `latents` (batch, 4, latent, latent) and `context` (batch, words, word_width): the outputs
    of the frozen image and text encoders for 512 x 512 images and their captions, which are often
    computed beforehand. Times and noise are drawn in every step. There is no moving average of the
    weights, and activations are not recomputed.
    """
    halvings = len(multipliers) - 1
    if latent % (1 << halvings):
        raise InvalidInput(
            f"the latent is halved {halvings} times, so its side must be a multiple of "
            f"{2**halvings}, not {latent}"
        )
    if width % math.lcm(_GROUPS, heads):
        raise InvalidInput(
            f"the width must be a multiple of {_GROUPS} (groups) and {heads} (heads), not {width}"
        )
    with torch.device(device):  # made on the device, because a CPU takes long to fill the weights
        model = UNet(width, multipliers, heads, word_width)
        kept = share_of_signal()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)

    def loss(latents: Tensor, context: Tensor) -> Tensor:
        times = torch.randint(_TIMES, (len(latents),), device=latents.device)
        noise = torch.randn_like(latents)
        signal = kept.index_select(0, times)[:, None, None, None]
        noisy = signal.sqrt() * latents + (1 - signal).sqrt() * noise
        return F.mse_loss(model(noisy, times, context), noise)

    inputs = (
        torch.randn(batch, 4, latent, latent, device=device),
        torch.randn(batch, words, word_width, device=device),
    )
    return TrainingStep(model, inputs, Minimizer(loss, optimizer, precision, device))


def share_of_signal() -> Tensor:
    """The share of the latents' variance that is left at each time, from almost 1 to almost 0."""
    added = torch.linspace(0.00085**0.5, 0.012**0.5, _TIMES).square()
    return (1 - added).cumprod(dim=0)


class UNet(nn.Module):
    """The network of Rombach et al. 2022 in the size of Stable Diffusion v1.

    The way down has two stages a level and halves the image between levels. The way up mirrors it
    with three stages a level, each of which also reads the output of a stage of the way down. All
    levels but the last have attention, and so has the middle. Unlike in the authors' code, no layer
    starts at zero, so that all layers learn from the first step.
    """

    def __init__(
        self,
        width: int = 320,
        multipliers: tuple[int, ...] = (1, 2, 4, 4),
        heads: int = 8,
        word_width: int = 768,
    ) -> None:
        super().__init__()
        sizes = [width * factor for factor in multipliers]
        last, timed = len(multipliers) - 1, 4 * width

        def stage(channels: int, out: int, attends: bool) -> Stage:
            transformer = SpatialTransformer(out, heads, word_width) if attends else None
            return Stage(ResidualBlock(channels, out, timed), transformer)

        self.width = width
        self.time = nn.Sequential(nn.Linear(width, timed), nn.SiLU(), nn.Linear(timed, timed))
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.down, self.up, left = nn.ModuleList(), nn.ModuleList(), [width]
        for level, size in enumerate(sizes):
            for _ in range(2):
                self.down.append(stage(left[-1], size, level < last))
                left.append(size)
            if level < last:
                self.down.append(nn.Conv2d(size, size, 3, stride=2, padding=1))
                left.append(size)
        channels = sizes[-1]
        self.middle = nn.ModuleList(stage(channels, channels, attends) for attends in (True, False))
        for level, size in reversed([*enumerate(sizes)]):
            for _ in range(3):
                self.up.append(stage(channels + left.pop(), size, level < last))
                channels = size
            if level > 0:
                double = nn.Upsample(scale_factor=2)
                self.up.append(nn.Sequential(double, nn.Conv2d(size, size, 3, padding=1)))
        self.last = nn.Sequential(*_norm_silu(width), nn.Conv2d(width, 4, 3, padding=1))

    def forward(self, noisy: Tensor, times: Tensor, context: Tensor) -> Tensor:
        """Latents (batch, 4, height, width), times (batch) and words -> the predicted noise."""
        time = self.time(sinusoids(times, self.width))
        x = self.first(noisy)
        left = [x]
        for layer in self.down:
            x = layer(x, time, context) if isinstance(layer, Stage) else layer(x)
            left.append(x)
        for layer in self.middle:
            x = layer(x, time, context)
        for layer in self.up:
            if isinstance(layer, Stage):
                x = layer(torch.cat([x, left.pop()], dim=1), time, context)
            else:
                x = layer(x)
        return self.last(x)


class Stage(nn.Module):
    """A residual block, followed by a spatial transformer at levels with attention."""

    def __init__(self, residual: ResidualBlock, transformer: SpatialTransformer | None) -> None:
        super().__init__()
        self.residual, self.transformer = residual, transformer

    def forward(self, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        """(batch, channels, height, width) -> (batch, out, height, width)."""
        x = self.residual(x, time)
        return x if self.transformer is None else self.transformer(x, context)


class ResidualBlock(nn.Module):
    """Two convolutions, with a shift that depends on the time between them, and a shortcut."""

    def __init__(self, channels: int, out: int, timed: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(*_norm_silu(channels), nn.Conv2d(channels, out, 3, padding=1))
        self.shift = nn.Sequential(nn.SiLU(), nn.Linear(timed, out))
        self.leave = nn.Sequential(*_norm_silu(out), nn.Conv2d(out, out, 3, padding=1))
        self.skip = nn.Identity() if channels == out else nn.Conv2d(channels, out, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """(batch, channels, height, width), (batch, timed) -> (batch, out, height, width)."""
        inner = self.enter(x) + self.shift(time)[:, :, None, None]
        return self.skip(x) + self.leave(inner)


class SpatialTransformer(nn.Module):
    """Attention of every pixel to all pixels, then to the tokens, with a shortcut."""

    def __init__(self, width: int, heads: int, word_width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(_GROUPS, width, eps=1e-6)
        self.enter = nn.Conv2d(width, width, 1)
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, width, heads)
        self.word_attention_norm = nn.LayerNorm(width)
        self.word_attention = Attention(width, word_width, heads)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), GEGLU(width, 4 * width), nn.Linear(4 * width, width)
        )
        self.leave = nn.Conv2d(width, width, 1)

    def forward(self, image: Tensor, context: Tensor) -> Tensor:
        """(batch, width, height, width), (batch, words, word_width) -> the image's shape."""
        x = self.enter(self.norm(image)).flatten(2).transpose(1, 2)
        normed = self.attention_norm(x)
        x = x + self.attention(normed, normed)
        x = x + self.word_attention(self.word_attention_norm(x), context)
        x = x + self.feed_forward(x)
        return image + self.leave(x.transpose(1, 2).unflatten(2, image.shape[2:]))


class Attention(nn.Module):
    """Multi-head attention to a memory. Only the output layer has a bias."""

    def __init__(self, width: int, memory_width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(memory_width, width, bias=False)
        self.value = nn.Linear(memory_width, width, bias=False)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """(batch, places, width), (batch, words, memory_width) -> (batch, places, width)."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(x), self.key(memory), self.value(memory))
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.project(mixed.transpose(1, 2).flatten(2))


class GEGLU(nn.Module):
    """A linear layer whose outputs are gated by other outputs (Shazeer 2020)."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.both = nn.Linear(width, 2 * out)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, places, width) -> (batch, places, out)."""
        value, gate = self.both(x).chunk(2, dim=-1)
        return value * F.gelu(gate)


def sinusoids(times: Tensor, width: int) -> Tensor:
    """Cosines and sines of the times at wavelengths from 2π to almost 20000π, (batch, width)."""
    half = width // 2
    rates = 10_000 ** (-torch.arange(half, device=times.device) / half)
    angles = times[:, None] * rates
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def _norm_silu(channels: int) -> list[nn.Module]:
    return [nn.GroupNorm(_GROUPS, channels), nn.SiLU()]
