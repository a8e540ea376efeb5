"""Image classification: ResNet-50."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
) -> TrainingStep:
    """ResNet-50 on ImageNet: SGD with momentum, as in section 3.4 of He et al."""
    model = ResNet(layers, width, classes)
    return classifier_step(model, (batch, 3, image, image), precision, device, classes)


def classifier_step(
    model: nn.Module,
    shape: Sequence[int],
    precision: str,
    device: str = "cuda",
    classes: int = 1000,
    loss_of: Callable[..., Tensor] = F.cross_entropy,
    learning_rate: float = 0.1,
) -> TrainingStep:
    """Any image classifier trained on random images of a shape, by SGD with momentum.

    Args:
        model: from images to what `loss_of` takes.
        shape: of the images, (batch, channels, height, width).
        precision: one of `wavecast.suite.PRECISIONS`.
        device: where to train.
        classes: how many labels there are.
        loss_of: from the model's output and the labels to a scalar.
        learning_rate: of the optimizer.
    """
    model = model.to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=learning_rate, momentum=0.9, weight_decay=1e-4
    )

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return loss_of(model(images), labels)

    images = torch.randn(*shape, device=device)
    labels = torch.randint(classes, (shape[0],), device=device)
    return TrainingStep(model, (images, labels), Minimizer(loss, optimizer, precision, device))


class ResNet(nn.Module):
    """A residual network of bottleneck blocks in four stages, each twice as wide and half as large.

    Args:
        layers: blocks in each stage; (3, 4, 6, 3) is ResNet-50.
        width: channels of the stem.
        classes: outputs.
    """

    def __init__(
        self, layers: Sequence[int] = (3, 4, 6, 3), width: int = 64, classes: int = 1000
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.stages = nn.Sequential()
        channels = width
        for stage, blocks in enumerate(layers):
            inner, stride = width * 2**stage, 1 if stage == 0 else 2
            for block in range(blocks):
                self.stages.append(Bottleneck(channels, inner, stride if block == 0 else 1))
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
    """A 1x1, a 3x3 and a 1x1 convolution around which the input takes a shortcut.

    The 3x3 convolution strides, not the first one as in the paper: so do torchvision and MLPerf
    ("ResNet-50 v1.5"), and the parameters are the same.
    """

    expansion = 4

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        outer = inner * self.expansion
        self.reduce = nn.Conv2d(channels, inner, 1, bias=False)
        self.reduce_norm = nn.BatchNorm2d(inner)
        self.conv = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
        self.conv_norm = nn.BatchNorm2d(inner)
        self.expand = nn.Conv2d(inner, outer, 1, bias=False)
        self.expand_norm = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != outer:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, outer, 1, stride=stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, h, w) -> (batch, 4 * inner, h / stride, w / stride)."""
        y = self.relu(self.reduce_norm(self.reduce(x)))
        y = self.relu(self.conv_norm(self.conv(y)))
        y = self.expand_norm(self.expand(y))
        return self.relu(y + self.shortcut(x))
