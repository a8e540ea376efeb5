"""Image generation: DCGAN."""

from __future__ import annotations

from collections.abc import Callable
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

    def discriminator_loss(real: Tensor, fake: Tensor) -> Tensor:
        return _cross_entropy(discriminator(real), 1.0) + _cross_entropy(discriminator(fake), 0.0)

    def generator_loss(fake: Tensor) -> Tensor:
        return _cross_entropy(discriminator(fake), 1.0)

    def adam(model: nn.Module) -> torch.optim.Adam:
        return torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999))

    discriminate = Minimizer(discriminator_loss, adam(discriminator), precision, device)
    deceive = Minimizer(generator_loss, adam(generator), precision, device)

    def improve_both(real: Tensor) -> Tensor:
        with float32_products(precision), autocast(precision, real.device.type):
            fake = generator(torch.randn(len(real), noise, 1, 1, device=real.device))
        return discriminate(real, fake.detach()) + deceive(fake)

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


# Adversarial learning: WGAN-GP, a generator and a critic with a gradient penalty.


def wgan_gp(
    batch: int,
    precision: str,
    *,
    device: str = "cuda",
    image: int = 64,
    width: int = 64,
    noise: int = 128,
    critic_steps: int = 5,
    penalty: float = 10.0,
    learning_rate: float = 1e-4,
) -> TrainingStep:
    """WGAN with gradient penalty: one generator step of algorithm 1 of Gulrajani et al.

    The step's input is the real images of all critic steps, between -1 and 1: (critic steps, batch,
    3, image, image). Its throughput counts these images. The loss is that of the last critic step.
    """
    generator = WganGenerator(image, width, noise).to(device)
    critic = Critic(image, width).to(device)

    def critic_loss(real: Tensor, fake: Tensor) -> Tensor:
        distance = critic(real).mean() - critic(fake).mean()
        return penalty * gradient_penalty(critic, real, fake) - distance

    def generator_loss(fake: Tensor) -> Tensor:
        return -critic(fake).mean()

    def adam(model: nn.Module) -> torch.optim.Adam:
        return torch.optim.Adam(model.parameters(), lr=learning_rate, betas=(0.0, 0.9))

    criticize = Minimizer(critic_loss, adam(critic), precision, device)
    deceive = Minimizer(generator_loss, adam(generator), precision, device)

    def make() -> Tensor:
        with float32_products(precision), autocast(precision, torch.device(device).type):
            fake: Tensor = generator(torch.randn(batch, noise, device=device))
        return fake

    def improve_both(real: Tensor) -> Tensor:
        for images in real:
            with torch.no_grad():
                fake = make()
            loss = criticize(images, fake)
        # The generator step needs no gradients of the critic's weights.
        critic.requires_grad_(False)
        deceive(make())
        critic.requires_grad_(True)
        return loss

    real = torch.rand(critic_steps, batch, 3, image, image, device=device) * 2 - 1
    both = nn.ModuleDict({"generator": generator, "critic": critic})
    return TrainingStep(both, (real,), improve_both)


def gradient_penalty(critic: Callable[[Tensor], Tensor], real: Tensor, fake: Tensor) -> Tensor:
    """The gradient penalty: the squared distance of the gradient's norm from 1.

    The gradient is taken at random points between real and generated images.
    """
    share = torch.rand_like(real[:, :1, :1, :1])
    between = torch.lerp(real, fake.to(real.dtype), share).requires_grad_()
    judgement = critic(between).sum()
    # As in a backward pass, every op runs in the precision of its forward pass. Gradients of about
    # 1 need no loss scaling in float16.
    with torch.autocast(real.device.type, enabled=False):
        (slope,) = torch.autograd.grad(judgement, between, create_graph=True)
        return (slope.flatten(1).norm(dim=1) - 1).square().mean()


class WganGenerator(nn.Module):
    """The generator: noise (batch, noise) to images (batch, 3, image, image), doubling from 4 x 4.

    It is the residual network of Gulrajani et al. for 64 x 64 pixels, with batch norms. It has 14
    layers: a linear one, 4 blocks of 3 convolutions and a last convolution. A block from A to B
    channels has 9AB + 9B² + AB weights, 2B biases and 2A + 2B parameters in its norms. The blocks
    go from 8W to 8W, 8W to 4W, 4W to 2W and 2W to W. The first layer, from N numbers of noise, has
    128W(N + 1), the last norm 2W and the last convolution 27W + 3. In all there are

        128W(N + 1) + 1825W² + 133W + 3 .
    """

    def __init__(self, image: int = 64, width: int = 64, noise: int = 128) -> None:
        super().__init__()
        channels = _wgan_channels(image, width)[::-1]
        self.first = nn.Linear(noise, channels[0] * 4 * 4)
        self.blocks = nn.Sequential(*[Grow(wide, narrow) for wide, narrow in pairwise(channels)])
        self.norm = nn.BatchNorm2d(channels[-1])
        self.last = nn.Conv2d(channels[-1], 3, 3, padding=1)
        _initialize_wgan(self)

    def forward(self, noise: Tensor) -> Tensor:
        """Noise (batch, noise) -> images between -1 and 1."""
        x = self.blocks(self.first(noise).unflatten(1, (-1, 4, 4)))
        return self.last(F.relu(self.norm(x))).tanh()


class Critic(nn.Module):
    """The critic: images (batch, 3, image, image) to scores (batch,), higher for real images.

    It mirrors the generator, with 14 layers, but has layer norms instead of batch norms, because
    the penalty is computed per sample (section 4). A block from A to B channels has 9A² + 9AB + AB
    weights, 2B biases and 4A parameters in its norms. With 28W in the first convolution and 128W in
    the last layer there are

        1825W² + 244W .

    The last block and layer have no biases (16W + 1 in the authors' code): they would add the same
    to real and generated images, and so would never change.
    """

    def __init__(self, image: int = 64, width: int = 64) -> None:
        super().__init__()
        channels = _wgan_channels(image, width)
        self.first = nn.Conv2d(3, channels[0], 3, padding=1)
        *lower, top = pairwise(channels)
        blocks = [Shrink(*channels) for channels in lower]
        self.blocks = nn.Sequential(*blocks, Shrink(*top, bias=False))
        self.last = nn.Linear(channels[-1] * 4 * 4, 1, bias=False)
        _initialize_wgan(self)

    def forward(self, images: Tensor) -> Tensor:
        """Images (batch, 3, image, image) -> scores (batch,)."""
        judgement: Tensor = self.last(self.blocks(self.first(images)).flatten(1)).squeeze(1)
        return judgement


class Grow(nn.Module):
    """A residual block that doubles an image's side, by repeating pixels before convolutions."""

    def __init__(self, wide: int, narrow: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.BatchNorm2d(wide), nn.BatchNorm2d(narrow)
        self.first = nn.Conv2d(wide, narrow, 3, padding=1, bias=False)
        self.second = nn.Conv2d(narrow, narrow, 3, padding=1)
        self.shortcut = nn.Conv2d(wide, narrow, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, wide, height, width) -> (batch, narrow, 2 x height, 2 x width)."""
        inner = self.first(_double(F.relu(self.first_norm(x))))
        inner = self.second(F.relu(self.second_norm(inner)))
        return inner + self.shortcut(_double(x))


class Shrink(nn.Module):
    """A residual block that halves an image's side, by averages over 2x2 pixels."""

    def __init__(self, narrow: int, wide: int, *, bias: bool = True) -> None:
        super().__init__()
        # A layer norm over channels and pixels, with a scale and an offset for each channel.
        self.first_norm, self.second_norm = nn.GroupNorm(1, narrow), nn.GroupNorm(1, narrow)
        self.first = nn.Conv2d(narrow, narrow, 3, padding=1, bias=False)
        self.second = nn.Conv2d(narrow, wide, 3, padding=1, bias=bias)
        self.shortcut = nn.Conv2d(narrow, wide, 1, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, narrow, height, width) -> (batch, wide, height / 2, width / 2)."""
        inner = self.first(F.relu(self.first_norm(x)))
        inner = self.second(F.relu(self.second_norm(inner)))
        return F.avg_pool2d(inner, 2) + self.shortcut(F.avg_pool2d(x, 2))


def _double(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="nearest")


def _wgan_channels(image: int, width: int) -> list[int]:
    """The channels at sides image, image/2, ... 4: doubling up to eight times the width."""
    halvings = image.bit_length() - 3
    if image < 8 or image != 4 << halvings:
        raise InvalidInput(f"the image must be 8, 16, 32, 64 ... pixels wide, not {image}")
    return [width * min(8, 1 << halving) for halving in range(halvings + 1)]


def _initialize_wgan(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
