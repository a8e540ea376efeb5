"""Adversarial learning: WGAN-GP, a critic with a bounded slope and a generator."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavecast.errors import InvalidInput
from wavecast.suite.training import Minimizer, TrainingStep, autocast, float32_products


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
    """WGAN with gradient penalty: algorithm 1 of Gulrajani et al., a generator's step of it.

    The step's input is the real images of all critic's steps, between -1 and 1: (critic steps,
    batch, 3, image, image); they are what its throughput counts. The loss is the critic's last.
    """
    generator, critic = (
        WganGenerator(image, width, noise).to(device),
        Critic(image, width).to(device),
    )

    def critic_loss(real: Tensor, made: Tensor) -> Tensor:
        distance = critic(real).mean() - critic(made).mean()
        return penalty * gradient_penalty(critic, real, made) - distance

    def generator_loss(made: Tensor) -> Tensor:
        return -critic(made).mean()

    def adam(model: nn.Module) -> torch.optim.Adam:
        return torch.optim.Adam(model.parameters(), lr=learning_rate, betas=(0.0, 0.9))

    criticize = Minimizer(critic_loss, adam(critic), precision, device)
    deceive = Minimizer(generator_loss, adam(generator), precision, device)

    def make() -> Tensor:
        with float32_products(precision), autocast(precision, torch.device(device).type):
            made: Tensor = generator(torch.randn(batch, noise, device=device))
        return made

    def improve_both(real: Tensor) -> Tensor:
        for images in real:
            with torch.no_grad():
                made = make()
            loss = criticize(images, made)
        critic.requires_grad_(False)  # the generator's step needs no gradients of its weights
        deceive(make())
        critic.requires_grad_(True)
        return loss

    real = torch.rand(critic_steps, batch, 3, image, image, device=device) * 2 - 1
    both = nn.ModuleDict({"generator": generator, "critic": critic})
    return TrainingStep(both, (real,), improve_both)


def gradient_penalty(critic: Callable[[Tensor], Tensor], real: Tensor, made: Tensor) -> Tensor:
    """How far the critic's slope is from 1, squared, at random places between real and made."""
    share = torch.rand_like(real[:, :1, :1, :1])
    between = torch.lerp(real, made.to(real.dtype), share).requires_grad_()
    judgement = critic(between).sum()
    # As in a backward pass, every op runs in the precision of its forward pass. Slopes of about
    # 1 need no scaling to be seen in float16.
    with torch.autocast(real.device.type, enabled=False):
        (slope,) = torch.autograd.grad(judgement, between, create_graph=True)
        return (slope.flatten(1).norm(dim=1) - 1).square().mean()


class WganGenerator(nn.Module):
    """Noise (batch, noise) to images (batch, 3, image, image), doubling from 4 x 4.

    The residual network of Gulrajani et al. for 64 x 64 pixels, with batch norms. It has 14 layers:
    a linear one, 4 blocks of 3 convolutions and a last convolution. A block from A to B channels
    has 9AB + 9B² + AB weights, 2B biases and 2A + 2B in its norms; A to B are 8W to 8W,
    8W to 4W, 4W to 2W and 2W to W. With the 128W(N + 1) of the first layer from N numbers of noise,
    2W in the last norm and 27W + 3 in the last convolution, that is

        128W(N + 1) + 1825W² + 133W + 3 .
    """

    def __init__(self, image: int = 64, width: int = 64, noise: int = 128) -> None:
        super().__init__()
        channels = _channels(image, width)[::-1]
        self.first = nn.Linear(noise, channels[0] * 4 * 4)
        self.blocks = nn.Sequential(*[Grow(wide, narrow) for wide, narrow in pairwise(channels)])
        self.norm = nn.BatchNorm2d(channels[-1])
        self.last = nn.Conv2d(channels[-1], 3, 3, padding=1)
        _initialize(self)

    def forward(self, noise: Tensor) -> Tensor:
        """Images between -1 and 1."""
        x = self.blocks(self.first(noise).unflatten(1, (-1, 4, 4)))
        return self.last(F.relu(self.norm(x))).tanh()


class Critic(nn.Module):
    """Images (batch, 3, image, image) to one number each, (batch,): the higher, the more real.

    The generator's mirror image, 14 layers, with layer norms instead of batch norms: the penalty is
    one sample's (section 4). A block from A to B channels has 9A² + 9AB + AB weights, 2B biases
    and 4A in its norms. With 28W in the first convolution and 128W in the last layer there are

        1825W² + 244W .

    The last block and layer have no biases, 16W + 1 in the authors' code: they would be the same
    for real and made, and never change.
    """

    def __init__(self, image: int = 64, width: int = 64) -> None:
        super().__init__()
        channels = _channels(image, width)
        self.first = nn.Conv2d(3, channels[0], 3, padding=1)
        *lower, top = pairwise(channels)
        self.blocks = nn.Sequential(*[Shrink(*each) for each in lower], Shrink(*top, bias=False))
        self.last = nn.Linear(channels[-1] * 4 * 4, 1, bias=False)
        _initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        """One number for each image."""
        judgement: Tensor = self.last(self.blocks(self.first(images)).flatten(1)).squeeze(1)
        return judgement


class Grow(nn.Module):
    """A residual block that doubles an image, by repeating pixels before it convolves them."""

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
    """A residual block that halves an image, by the means of two by two pixels."""

    def __init__(self, narrow: int, wide: int, *, bias: bool = True) -> None:
        super().__init__()
        # Over channels and pixels, with a scale and an offset for each channel: one group.
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


def _channels(image: int, width: int) -> list[int]:
    """Channels at image, image/2, ... 4: twice as many each time, up to eight times the width."""
    halvings = image.bit_length() - 3
    if image < 8 or image != 4 << halvings:
        raise InvalidInput(f"the image must be 8, 16, 32, 64 ... pixels wide, not {image}")
    return [width * min(8, 1 << halving) for halving in range(halvings + 1)]


def _initialize(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
