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
    """Latent diffusion: noise is added to latents, and the network learns to tell which.

    AdamW with PyTorch's settings, as in the authors' code. The inputs of the step are `latents`
    (batch, 4, latent, latent) and `context` (batch, words, word_width): what the frozen image and
    text encoders make of 512 x 512 images and their captions, and what is often computed before.
    Times and noise are drawn in every step. We keep no moving average of the weights and
    recompute no activations.
    """
    halvings = len(multipliers) - 1
    if latent % (1 << halvings):
        raise InvalidInput(f"a latent that is halved {halvings} times cannot be {latent} wide")
    if width % math.lcm(_GROUPS, heads):
        raise InvalidInput(
            f"the width must be a multiple of {_GROUPS} groups and {heads} heads, not {width}"
        )
    with torch.device(device):  # made where it is used: on a CPU this takes a minute
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
    """How much of the latents' variance is left at each time: from nearly all to nearly nothing."""
    added = torch.linspace(0.00085**0.5, 0.012**0.5, _TIMES).square()
    return (1 - added).cumprod(dim=0)


class UNet(nn.Module):
    """The network of Rombach et al. 2022, table 15, as Stable Diffusion v1 has it.

    On the way down every level but the last has two residual blocks with a spatial transformer
    each and halves the image; the way up mirrors it with three and takes what the way down left.
    Unlike the authors' it starts no layer at zero, so that every layer learns from the first step.
    """

    def __init__(
        self,
        width: int = 320,
        multipliers: tuple[int, ...] = (1, 2, 4, 4),
        heads: int = 8,
        word_width: int = 768,
    ) -> None:
        super().__init__()
        timed = 4 * width
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, timed), nn.SiLU(), nn.Linear(timed, timed))
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        channels, left, last = width, [width], len(multipliers) - 1
        for level, multiplier in enumerate(multipliers):
            attends = heads if level < last else 0
            for _ in range(2):
                out = multiplier * width
                self.down.append(Stage(channels, out, timed, attends, word_width))
                channels = out
                left.append(channels)
            if level < last:
                self.down.append(Stage(channels, channels, resize=nn.Conv2d(channels, channels, 3, stride=2, padding=1)))
                left.append(channels)
