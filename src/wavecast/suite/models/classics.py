"""Image classification: AlexNet, GoogLeNet and VGG, as in Caffe's reference files.

As in Caffe, pools round up, and biases have twice the learning rate of weights and no decay
(`lr_mult` and `decay_mult`). Weights start as in He et al. 2015, so that small variants learn, too;
that does not change the work of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavecast.errors import InvalidInput
from wavecast.suite.models.vision import image_step
from wavecast.suite.training import TrainingStep


def alexnet(
    batch: int,
    precision: str,
    *,
    device: str = "cuda",
    image: int = 227,
    classes: int = 1000,
    width: int = 96,
    hidden: int = 4096,
    groups: int = 2,
    dropout: float = 0.5,
    learning_rate: float = 0.01,
) -> TrainingStep:
    """AlexNet on ImageNet, Caffe's `bvlc_alexnet`: SGD with momentum, decay 0.0005. It has two
    groups, as the original on two GPUs; the per-layer papers count one."""
    _check_large_enough("alexnet", image, 67)
    model = AlexNet(image, width, hidden, classes, groups, dropout).to(device)
    optimizer = _sgd(model, learning_rate, decay=5e-4)
    return image_step(model, optimizer, (batch, 3, image, image), precision, device, classes)


def googlenet(
    batch: int,
    precision: str,
    *,
    device: str = "cuda",
    image: int = 224,
    classes: int = 1000,
    width: int = 64,
    dropout: float = 0.4,
    learning_rate: float = 0.01,
) -> TrainingStep:
    """GoogLeNet on ImageNet, Caffe's `bvlc_googlenet`: SGD with momentum, decay 0.0002. Both
    auxiliary heads are trained with it, at a weight of 0.3."""
    _check_large_enough("googlenet", image, 80)
    model = GoogLeNet(image, width, classes, dropout).to(device)
    optimizer = _sgd(model, learning_rate, decay=2e-4)
    shape = (batch, 3, image, image)
    return image_step(model, optimizer, shape, precision, device, classes, _loss_of_all_heads)


def vgg(
    batch: int,
    precision: str,
    *,
    device: str = "cuda",
    image: int = 224,
    classes: int = 1000,
    layers: Sequence[int],
    width: int = 64,
    hidden: int = 4096,
    dropout: float = 0.5,
    learning_rate: float = 0.01,
) -> TrainingStep:
    """VGG on ImageNet: SGD with momentum, section 3.1 of Simonyan and Zisserman."""
    _check_large_enough("vgg", image, 32)
    model = VGG(image, layers, width, hidden, classes, dropout).to(device)
    optimizer = _sgd(model, learning_rate, decay=5e-4)
    return image_step(model, optimizer, (batch, 3, image, image), precision, device, classes)


vgg16 = partial(vgg, layers=(2, 2, 3, 3, 3))
vgg19 = partial(vgg, layers=(2, 2, 4, 4, 4))


class AlexNet(nn.Sequential):
    """Krizhevsky et al. 2012 in Caffe's layers; (batch, 3, image, image) -> (batch, classes).

    Args:
        image: height and width of the images, at least 67.
        width: filters of the first convolution; the others scale with them.
        hidden: units of each fully connected layer but the last.
        groups: the number of groups of the second, fourth and fifth convolution.
        dropout: the dropout rate of the hidden units.
    """

    def __init__(
        self,
        image: int = 227,
        width: int = 96,
        hidden: int = 4096,
        classes: int = 1000,
        groups: int = 2,
        dropout: float = 0.5,
    ) -> None:
        a, b, c, d, e = (filters * width // 96 for filters in (96, 256, 384, 384, 256))
        side = _pooled(_pooled(_pooled((image - 11) // 4 + 1)))
        super().__init__(
            *_conv(3, a, 11, stride=4),
            _normalize_channels(),
            _pool(),
            *_conv(a, b, 5, padding=2, groups=groups),
            _normalize_channels(),
            _pool(),
            *_conv(b, c, 3, padding=1),
            *_conv(c, d, 3, padding=1, groups=groups),
            *_conv(d, e, 3, padding=1, groups=groups),
            _pool(),
            *_classifier(e * side**2, hidden, classes, dropout),
        )
        self.apply(_initialize)


class VGG(nn.Sequential):
    """Simonyan and Zisserman 2015, table 1; (batch, 3, image, image) -> (batch, classes).

    Args:
        image: height and width of the images, at least 32.
        layers: 3x3 convolutions of each of the five stages; VGG-16 is (2, 2, 3, 3, 3).
        width: filters of the first stage; each stage has twice as many as the one before, up to 8
            times the first.
        hidden: units of each fully connected layer but the last.
        dropout: the dropout rate of the hidden units.
    """

    def __init__(
        self,
        image: int = 224,
        layers: Sequence[int] = (2, 2, 3, 3, 3),
        width: int = 64,
        hidden: int = 4096,
        classes: int = 1000,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        channels, side = 3, image
        for stage, convolutions in enumerate(layers):
            filters = width * min(2**stage, 8)
            for _ in range(convolutions):
                self.extend(_conv(channels, filters, 3, padding=1))
                channels = filters
            self.append(nn.MaxPool2d(2, ceil_mode=True))
            side = -(-side // 2)
        self.extend(_classifier(channels * side**2, hidden, classes, dropout))
        self.apply(_initialize)


class GoogLeNet(nn.Module):
    """Szegedy et al. 2015, table 1, with both auxiliary heads.

    Images have sides of at least 80. The first convolution has `width` filters; the others scale
    with them. The dropout rate is the classifier's; that of the auxiliary heads is 0.3 higher.
    """

    def __init__(
        self, image: int = 224, width: int = 64, classes: int = 1000, dropout: float = 0.4
    ) -> None:
        super().__init__()
        middle = _pooled(_pooled(_pooled((image - 1) // 2 + 1)))
        last = _pooled(middle)
        scaled = partial(_scaled, width=width)
        self.lower = nn.Sequential(
            *_conv(3, width, 7, stride=2, padding=3),
            _pool(),
            _normalize_channels(),
            *_conv(width, width, 1),
            *_conv(width, scaled(192), 3, padding=1),
            _normalize_channels(),
            _pool(),
            mixed := Inception(scaled(192), 64, (96, 128), (16, 32), 32, width),
            mixed := mixed.then(128, (128, 192), (32, 96), 64),
            _pool(),
            mixed := mixed.then(192, (96, 208), (16, 48), 64),
        )
        more_dropout = dropout + 0.3 if dropout else 0.0
        self.first_head = _head(mixed.channels, middle, width, classes, more_dropout)
        self.middle = nn.Sequential(
            mixed := mixed.then(160, (112, 224), (24, 64), 64),
            mixed := mixed.then(128, (128, 256), (24, 64), 64),
            mixed := mixed.then(112, (144, 288), (32, 64), 64),
        )
        self.second_head = _head(mixed.channels, middle, width, classes, more_dropout)
        self.upper = nn.Sequential(
            mixed := mixed.then(256, (160, 320), (32, 128), 128),
            _pool(),
            mixed := mixed.then(256, (160, 320), (32, 128), 128),
            mixed := mixed.then(384, (192, 384), (48, 128), 128),
            nn.AvgPool2d(last, stride=1),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(mixed.channels, classes),
        )
        self.apply(_initialize)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """(batch, 3, height, width) -> (batch, classes); in training, also those of both heads."""
        lower = self.lower(images)
        middle = self.middle(lower)
        logits: Tensor = self.upper(middle)
        if not self.training:
            return logits
        return logits, self.first_head(lower), self.second_head(middle)


class Inception(nn.Module):
    """1x1, 3x3 and 5x5 convolutions and a pool side by side (figure 2b of Szegedy et al.).

    `single`, `triple`, `quintuple` and `pooled` are the published numbers of filters, scaled by the
    `width` of the network: for 3x3 and 5x5, those of the 1x1 convolution before and of its own.
    """

    def __init__(
        self,
        inputs: int,
        single: int,
        triple: tuple[int, int],
        quintuple: tuple[int, int],
        pooled: int,
        width: int = 64,
    ) -> None:
        super().__init__()
        self.width = width
        published = (single, *triple, *quintuple, pooled)
        first, before_three, three, before_five, five, last = (_scaled(n, width) for n in published)
        self.channels = first + three + five + last
        self.branches = nn.ModuleList(
            nn.Sequential(*layers)
            for layers in (
                _conv(inputs, first, 1),
                _conv(inputs, before_three, 1) + _conv(before_three, three, 3, padding=1),
                _conv(inputs, before_five, 1) + _conv(before_five, five, 5, padding=2),
                [nn.MaxPool2d(3, stride=1, padding=1), *_conv(inputs, last, 1)],
            )
        )

    def then(
        self, single: int, triple: tuple[int, int], quintuple: tuple[int, int], pooled: int
    ) -> Inception:
        """A new block that follows this one."""
        return Inception(self.channels, single, triple, quintuple, pooled, self.width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, h, w) -> (batch, channels, h, w)."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def _loss_of_all_heads(logits: tuple[Tensor, Tensor, Tensor], labels: Tensor) -> Tensor:
    main, first, second = (F.cross_entropy(head, labels) for head in logits)
    return main + 0.3 * first + 0.3 * second


def _conv(inputs: int, filters: int, kernel: int, **options: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, filters, kernel, **options), nn.ReLU(inplace=True)]


def _pool() -> nn.Module:
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)


def _pooled(side: int) -> int:
    """The side of an image after `_pool`."""
    return -(-(side - 3) // 2) + 1


def _normalize_channels() -> nn.Module:
    # Caffe's k is 1; Krizhevsky et al. used 2.
    return nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0)


def _classifier(features: int, hidden: int, classes: int, dropout: float) -> list[nn.Module]:
    """Three fully connected layers, the first two with ReLU and dropout."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs in (features, hidden):
        layers += [nn.Linear(inputs, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout)]
    return [*layers, nn.Linear(hidden, classes)]


def _head(channels: int, side: int, width: int, classes: int, dropout: float) -> nn.Sequential:
    """An auxiliary classifier of GoogLeNet, on features with these channels and this side."""
    filters, hidden = _scaled(128, width), _scaled(1024, width)
    pooled = -(-(side - 5) // 3) + 1
    return nn.Sequential(
        nn.AvgPool2d(5, stride=3, ceil_mode=True),
        *_conv(channels, filters, 1),
        nn.Flatten(),
        nn.Linear(filters * pooled**2, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(hidden, classes),
    )


def _scaled(filters: int, width: int) -> int:
    return max(1, filters * width // 64)


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.zeros_(module.bias)


def _sgd(model: nn.Module, learning_rate: float, decay: float) -> torch.optim.SGD:
    weights = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    biases = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [
        {"params": weights, "weight_decay": decay},
        {"params": biases, "lr": 2 * learning_rate},
    ]
    return torch.optim.SGD(groups, lr=learning_rate, momentum=0.9)


def _check_large_enough(name: str, image: int, least: int) -> None:
    if image < least:
        raise InvalidInput(f"{name} needs images of at least {least} pixels, not {image}")
