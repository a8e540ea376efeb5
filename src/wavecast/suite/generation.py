"""Image generation: DCGAN."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavecast.errors import InvalidInput
from wavecast.suite.training import Minimizer, TrainingStep, autocast, float32_products


def dcgan(
    batch: int,
    precision: str,
    *,
    device: str = "cuda",
    image: int = 64,
    width: int = 64,
    noise: int = 100,
) -> TrainingStep:
    """DCGAN: a step of the discriminator on real and generated images, then one of the generator.

    Each has its own Adam optimizer, as in section 4 of Radford et al. The step's input is the real
    images, between -1 and 1. Noise is drawn in every step. The loss is the sum of both losses.
    """
    generator = DcganGenerator(image, width, noise).to(device)
    discriminator = Discriminator(image, width).to(device)

    def discriminator_loss(real: Tensor, made: Tensor) -> Tensor:
        return _cross_entropy(discriminator(real), 1.0) + _cross_entropy(discriminator(made), 0.0)

    def generator_loss(made: Tensor) -> Tensor:
        return _cross_entropy(discriminator(made), 1.0)

    def adam(model: nn.Module) -> torch.optim.Adam:
        return torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999))

    discriminate = Minimizer(discriminator_loss, adam(discriminator), precision, device)
    deceive = Minimizer(generator_loss, adam(generator), precision, device)

    def improve_both(real: Tensor) -> Tensor:
        with float32_products(precision), autocast(precision, real.device.type):
            made = generator(torch.randn(len(real), noise, 1, 1, device=real.device))
        return discriminate(real, made.detach()) + deceive(made)

    real = torch.rand(batch, 3, image, image, device=device) * 2 - 1
    both = nn.ModuleDict({"generator": generator, "discriminator": discriminator})
    return TrainingStep(both, (real,), improve_both)


class DcganGenerator(nn.Sequential):
    """The generator: noise (batch, noise, 1, 1) to images (batch, 3, image, image)."""

    def __init__(self, image: int = 64, width: int = 64, noise: int = 100) -> None:
        channels = _channels(image, width)[::-1]
        super().__init__(
            nn.ConvTranspose2d(noise, channels[0], 4, bias=False), *_norm_relu(channels[0])
        )
        for wide, narrow in pairwise(channels):
            self.append(nn.ConvTranspose2d(wide, narrow, 4, stride=2, padding=1, bias=False))
            self.extend(_norm_relu(narrow))
        self.append(nn.ConvTranspose2d(channels[-1], 3, 4, stride=2, padding=1, bias=False))
        self.append(nn.Tanh())
        self.apply(_initialize)


class Discriminator(nn.Sequential):
    """The discriminator: images (batch, 3, image, image) to logits (batch, 1, 1, 1) of "real"."""

    def __init__(self, image: int = 64, width: int = 64) -> None:
        channels = _channels(image, width)
        super().__init__(
            nn.Conv2d(3, channels[0], 4, stride=2, padding=1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
        )
        for narrow, wide in pairwise(channels):
            self.append(nn.Conv2d(narrow, wide, 4, stride=2, padding=1, bias=False))
            self.append(nn.BatchNorm2d(wide))
            self.append(nn.LeakyReLU(0.2, inplace=True))
        self.append(nn.Conv2d(channels[-1], 1, 4, bias=False))
        self.apply(_initialize)


def _channels(image: int, width: int) -> list[int]:
    """The channels at sides image/2, image/4, ... 4: doubling each time the side halves."""
    halvings = image.bit_length() - 3
    if image < 8 or image != 4 << halvings:
        raise InvalidInput(f"the image must be 8, 16, 32, 64 ... pixels wide, not {image}")
    return [width << halving for halving in range(halvings)]


def _norm_relu(channels: int) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]


def _cross_entropy(logits: Tensor, label: float) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, label))


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
