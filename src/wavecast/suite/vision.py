"""Image classification: ResNet-50 and ViT."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from wavecast.errors import InvalidInput
from wavecast.suite.language import NormBefore
from wavecast.suite.training import Minimizer, TrainingStep


def resnet50(
    batch: int,
    precision: str,
    *,
    device: str = "cuda",
    image: int = 224,
    classes: int = 1000,
    layers: Sequence[int] = (3, 4, 6, 3),
    width: int = 64,
    learning_rate: float = 0.1,
) -> TrainingStep:
    """ResNet-50 on ImageNet: SGD with momentum, as in section 3.4 of He et al."""
    model, shape = ResNet(layers, width, classes), (batch, 3, image, image)
    return classifier_step(model, shape, precision, device, classes, learning_rate=learning_rate)


def vit(
    batch: int,
    precision: str,
    *,
    device: str = "cuda",
    image: int = 224,
    classes: int = 1000,
    patch: int = 16,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    dropout: float = 0.1,
    learning_rate: float = 3e-3,
) -> TrainingStep:
    """ViT-Base/16 on ImageNet, table 3 of Dosovitskiy et al., with gradients clipped at 1.

    The optimizer is AdamW; the authors used Adam with the same strong decay.
    """
    if image % patch:
        raise InvalidInput(f"vit's images must be a multiple of {patch} pixels wide, not {image}")
    if width % heads:
        raise InvalidInput(f"the width must be a multiple of {heads} (heads), not {width}")
    model = ViT(image, patch, layers, width, heads, classes, dropout).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.999), weight_decay=0.3
    )
    shape = (batch, 3, image, image)
    return image_step(model, optimizer, shape, precision, device, classes, clip_norm=1.0)


def classifier_step(
    model: nn.Module,
    shape: Sequence[int],
    precision: str,
    device: str = "cuda",
    classes: int = 1000,
    loss_of: Callable[..., Tensor] = F.cross_entropy,
    learning_rate: float = 0.1,
) -> TrainingStep:
    """A step that trains any image classifier on random images, by SGD with momentum.

    Args:
        model: the classifier. `loss_of` takes its output.
        shape: the shape of the images, (batch, channels, height, width).
        precision: one of `wavecast.suite.PRECISIONS`.
        device: where to train.
        classes: the number of classes.
        loss_of: computes the loss from the model's output and the labels.
        learning_rate: the optimizer's learning rate.
    """
    model = model.to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=learning_rate, momentum=0.9, weight_decay=1e-4
    )
    return image_step(model, optimizer, shape, precision, device, classes, loss_of)


def image_step(
    model: nn.Module,
    optimizer: Optimizer,
    shape: Sequence[int],
    precision: str,
    device: str,
    classes: int,
    loss_of: Callable[..., Tensor] = F.cross_entropy,
    clip_norm: float | None = None,
) -> TrainingStep:
    """Like `classifier_step`, for a model that is on its device and has an optimizer."""

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return loss_of(model(images), labels)

    images = torch.randn(*shape, device=device)
    labels = torch.randint(classes, (shape[0],), device=device)
    minimize = Minimizer(loss, optimizer, precision, device, clip_norm)
    return TrainingStep(model, (images, labels), minimize)


class ResNet(nn.Module):
    """A residual network of bottleneck blocks in four stages.

    Each stage has twice the channels of the one before, and images of half the side.

    Args:
        layers: the number of blocks in each stage; (3, 4, 6, 3) is ResNet-50.
        width: channels of the stem.
        classes: the number of outputs.
        norm: makes the norm layer for a number of channels.
    """

    def __init__(
        self,
        layers: Sequence[int] = (3, 4, 6, 3),
        width: int = 64,
        classes: int = 1000,
        norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            norm(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.stages = nn.Sequential()
        channels = width
        for stage, blocks in enumerate(layers):
            inner, stride = width * 2**stage, 1 if stage == 0 else 2
            for block in range(blocks):
                self.stages.append(Bottleneck(channels, inner, stride if block == 0 else 1, norm))
                channels = inner * Bottleneck.expansion
        self.classifier = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 3, height, width) -> (batch, classes)."""
        features = self.stages(self.stem(images))
        return self.classifier(features.mean(dim=(2, 3)))


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 and a 1x1 convolution with a shortcut around them.

    The 3x3 convolution has the stride, as in torchvision and MLPerf ("ResNet-50 v1.5"); in the
    paper the first one has it. The parameters are the same.
    """

    expansion = 4

    def __init__(
        self,
        channels: int,
        inner: int,
        stride: int,
        norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
    ) -> None:
        super().__init__()
        outer = inner * self.expansion
        self.reduce = nn.Conv2d(channels, inner, 1, bias=False)
        self.reduce_norm = norm(inner)
        self.conv = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
        self.conv_norm = norm(inner)
        self.expand = nn.Conv2d(inner, outer, 1, bias=False)
        self.expand_norm = norm(outer)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != outer:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, outer, 1, stride=stride, bias=False), norm(outer)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, h, w) -> (batch, 4 * inner, h / stride, w / stride)."""
        y = self.relu(self.reduce_norm(self.reduce(x)))
        y = self.relu(self.conv_norm(self.conv(y)))
        y = self.expand_norm(self.expand(y))
        return self.relu(y + self.shortcut(x))


class ViT(nn.Module):
    """The encoder of Dosovitskiy et al. over square patches of an image, and a class token.

    Args:
        image: height and width of the images.
        patch: height and width of a patch.
        layers: the number of blocks of the encoder.
        width: the width of the embedding of a patch.
        heads: the number of attention heads.
        classes: the number of outputs.
        dropout: the rate after every dense layer but those of query, key and value (appendix B.1).
    """

    def __init__(
        self,
        image: int,
        patch: int,
        layers: int,
        width: int,
        heads: int,
        classes: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 1 + (image // patch) ** 2, width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*[ViTBlock(width, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.classifier = nn.Linear(width, classes)
        nn.init.normal_(self.positions, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 3, image, image) -> (batch, classes)."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(images), -1, -1), patches], dim=1)
        x = self.blocks(self.dropout(x + self.positions))
        return self.classifier(self.norm(x)[:, 0])


class ViTBlock(NormBefore):
    """GPT-2's block without causality, and with dropout where ViT has it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        activation = nn.Sequential(nn.GELU(), nn.Dropout(dropout))
        super().__init__(width, heads, dropout, activation, eps=1e-6)
        self.attention.dropout = 0.0
