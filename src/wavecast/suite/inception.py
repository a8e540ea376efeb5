"""Image classification: Inception v3."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavecast.errors import InvalidInput
from wavecast.suite.training import TrainingStep
from wavecast.suite.vision import classifier_step


def inception_v3(
    batch: int,
    precision: str,
    *,
    device: str = "cuda",
    image: int = 299,
    classes: int = 1000,
    width: int = 32,
    dropout: float = 0.5,
    learning_rate: float = 0.045,
) -> TrainingStep:
    """Inception v3 on ImageNet, trained with its auxiliary head at a weight of 0.4.

    The optimizer is SGD with momentum, as in Habitat. The best models of Szegedy et al. (section
    8) used RMSProp.
    """
    if batch < 2 or image < 299:
        raise InvalidInput(
            "the auxiliary head of inception-v3 needs at least 2 images (for its batch norm) of at "
            f"least 299 pixels, not {batch} of {image}"
        )
    model = InceptionV3(width, classes, dropout)
    shape = (batch, 3, image, image)
    return classifier_step(
        model, shape, precision, device, classes, _loss_of_both_heads, learning_rate
    )


def _loss_of_both_heads(logits: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
    main, auxiliary = logits
    return F.cross_entropy(main, labels) + 0.4 * F.cross_entropy(auxiliary, labels)


class InceptionV3(nn.Module):
    """The network of table 1 of Szegedy et al.; what the table leaves open is as in their code.

    Args:
        width: channels of the stem; the published network has 32. The others scale with them.
        classes: the number of outputs.
        dropout: the dropout rate of the classifier.
    """

    def __init__(self, width: int = 32, classes: int = 1000, dropout: float = 0.5) -> None:
        super().__init__()
        self.lower = _stem(Path(3, width))
        for pooled in (32, 64, 64):
            _mix_35(self.lower, pooled)
        _reduce_to_17(self.lower)
        for narrow in (128, 160, 160, 192):
            _mix_17(self.lower, narrow)
        self.auxiliary = nn.Sequential(
            nn.AvgPool2d(5, stride=3),
            head := self.lower.fork().conv(128, 1).conv(768, 5, pad=False),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(head.channels, classes),
        )
        self.upper = _reduce_to_8(self.lower.fork())
        for _ in range(2):
            _mix_8(self.upper)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(self.upper.channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """(batch, 3, height, width) -> (batch, classes); in training, also the auxiliary head's."""
        features = self.lower(images)
        auxiliary = self.auxiliary(features) if self.training else None
        features = self.upper(features).mean(dim=(2, 3))
        logits: Tensor = self.classifier(self.dropout(features))
        return logits if auxiliary is None else (logits, auxiliary)


class Path(nn.Sequential):
    """A sequence of layers, to which methods add layers with the right number of channels.

    Args:
        channels: channels of the input. The attribute of that name has those of the output.
        width: the width of the network, by which the published numbers of filters are scaled.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.channels, self.width = channels, width

    def conv(
        self, filters: int, kernel: int | tuple[int, int], stride: int = 1, pad: bool = True
    ) -> Path:
        """Add a convolution with batch norm and ReLU."""
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (height // 2, width // 2) if pad else 0
        filters = filters * self.width // 32
        self.append(nn.Conv2d(self.channels, filters, (height, width), stride, padding, bias=False))
        self.append(nn.BatchNorm2d(filters, eps=0.001))
        self.append(nn.ReLU(inplace=True))
        self.channels = filters
        return self

    def halve(self, filters: int | None = None) -> Path:
        """Halve height and width: by a 3x3 convolution, or without filters by a 3x3 max-pool."""
        if filters is not None:
            return self.conv(filters, 3, stride=2, pad=False)
        self.append(nn.MaxPool2d(3, stride=2))
        return self

    def blur(self) -> Path:
        """Add an average pool over 3x3 pixels."""
        self.append(nn.AvgPool2d(3, stride=1, padding=1))
        return self

    def fork(self) -> Path:
        """A new, empty path that starts at the end of this one."""
        return Path(self.channels, self.width)

    def join(self, *branches: Path) -> Path:
        """Add branches, and continue with their joined outputs."""
        self.append(Branches(branches))
        self.channels = sum(branch.channels for branch in branches)
        return self


class Branches(nn.ModuleList):
    """Paths with the same input, whose output channels are joined."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, h, w) -> (batch, channels of all, h or h / 2, w or w / 2)."""
        return torch.cat([branch(x) for branch in self], dim=1)


def _stem(path: Path) -> Path:
    path.halve(32).conv(32, 3, pad=False).conv(64, 3).halve()
    return path.conv(80, 1).conv(192, 3, pad=False).halve()


def _mix_35(path: Path, pooled: int) -> Path:
    """Figure 5, at 35 x 35 pixels. The second branch keeps the 5x5, as in the published code."""
    return path.join(
        path.fork().conv(64, 1),
        path.fork().conv(48, 1).conv(64, 5),
        path.fork().conv(64, 1).conv(96, 3).conv(96, 3),
        path.fork().blur().conv(pooled, 1),
    )


def _reduce_to_17(path: Path) -> Path:
    """Figure 10, from 35 x 35 to 17 x 17 pixels."""
    return path.join(
        path.fork().halve(384),
        path.fork().conv(64, 1).conv(96, 3).halve(96),
        path.fork().halve(),
    )


def _mix_17(path: Path, narrow: int) -> Path:
    """Figure 6, at 17 x 17 pixels: 7x7 convolutions as 1x7 and 7x1."""
    row, column = (1, 7), (7, 1)
    twice = path.fork().conv(narrow, 1).conv(narrow, column).conv(narrow, row).conv(narrow, column)
    return path.join(
        path.fork().conv(192, 1),
        path.fork().conv(narrow, 1).conv(narrow, row).conv(192, column),
        twice.conv(192, row),
        path.fork().blur().conv(192, 1),
    )


def _reduce_to_8(path: Path) -> Path:
    """Figure 10 again, from 17 x 17 to 8 x 8 pixels, with a 7x7 convolution before one 3x3."""
    return path.join(
        path.fork().conv(192, 1).halve(320),
        path.fork().conv(192, 1).conv(192, (1, 7)).conv(192, (7, 1)).halve(192),
        path.fork().halve(),
    )


def _mix_8(path: Path) -> Path:
    """Figure 7, at 8 x 8 pixels: 1x3 and 3x1 convolutions side by side."""
    return path.join(
        path.fork().conv(320, 1),
        _cross(path.fork().conv(384, 1)),
        _cross(path.fork().conv(448, 1).conv(384, 3)),
        path.fork().blur().conv(192, 1),
    )


def _cross(path: Path) -> Path:
    return path.join(path.fork().conv(384, (1, 3)), path.fork().conv(384, (3, 1)))
