"""Image classification: ResNet-50 and ViT."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from wavecast.errors import InvalidInput
from wavecast.suite.models.language import NormBefore
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
    """ViT-Base/16 on ImageNet, table 3 of Dosovitskiy et al., with gradients clipped at 1. The
    optimizer is AdamW; the authors used Adam with the same strong decay."""
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
        loss_of: computes the loss from the model's output and the labels.
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
    """A residual network of bottleneck blocks in four stages; ResNet-50 has (3, 4, 6, 3) `layers`.

    Each stage has twice the channels of the one before, of which the stem has `width`, and images
    of half the side. `norm` makes the norm layer for a number of channels.
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
    """The encoder of Dosovitskiy et al. over square patches of an image, and a class token. Dropout
    follows every dense layer but those of query, key and value (appendix B.1)."""

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


# Image classification: Inception v3.


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
    """Inception v3 on ImageNet, trained with its auxiliary head at a weight of 0.4, by SGD with
    momentum as in Habitat. The best models of Szegedy et al. (section 8) used RMSProp."""
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
    """The network of table 1 of Szegedy et al.; what the table leaves open is as in their code. The
    stem has `width` channels, 32 as published; the other numbers scale with it."""

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

    As an attribute, `channels` are those of the output. By `width`, that of the network, the
    published numbers of filters are scaled.
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
