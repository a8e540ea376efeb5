"""SSD300 with ResNet-50 as NVIDIA trains it: Liu et al., SSD: Single Shot MultiBox Detector, 2016.

The backbone ends with ResNet's third stage, with its stride removed (38 x 38 positions, 1024
channels). Five pairs of convolutions make the smaller maps. It has 8732 boxes and 81 classes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavecast.suite.models.vision import ResNet

BOXES = (4, 6, 6, 6, 4, 4)
"""The number of default boxes at each position, for each map."""
CLASSES = 81
NEGATIVES = 3
"""The background boxes in the loss for each box that matches an object."""


class SSD300(nn.Module):
    """(batch, 3, 300, 300) -> offsets (batch, 4, 8732) and class scores (batch, 81, 8732)."""

    def __init__(self) -> None:
        super().__init__()
        resnet = ResNet((3, 4, 6))
        first = resnet.stages[7]  # the first block of the third stage
        first.conv.stride = first.shortcut[0].stride = (1, 1)
        self.backbone = nn.Sequential(resnet.stem, resnet.stages)
        channels, narrow = (1024, 512, 512, 256, 256, 256), (256, 256, 128, 128, 128)
        self.smaller = nn.ModuleList(
            _shrink(*sizes, halve=position < 3)
            for position, sizes in enumerate(zip(channels, narrow, channels[1:], strict=False))
        )
        self.offsets = nn.ModuleList(
            nn.Conv2d(c, 4 * boxes, 3, padding=1) for c, boxes in zip(channels, BOXES, strict=True)
        )
        self.scores = nn.ModuleList(
            nn.Conv2d(c, CLASSES * boxes, 3, padding=1)
            for c, boxes in zip(channels, BOXES, strict=True)
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Both outputs, with the boxes of all maps concatenated."""
        maps = [self.backbone(images)]
        for shrink in self.smaller:
            maps.append(shrink(maps[-1]))
        batch = len(images)
        offsets = [
            head(x).reshape(batch, 4, -1) for head, x in zip(self.offsets, maps, strict=True)
        ]
        scores = [
            head(x).reshape(batch, CLASSES, -1) for head, x in zip(self.scores, maps, strict=True)
        ]
        return torch.cat(offsets, 2).contiguous(), torch.cat(scores, 2).contiguous()


def _shrink(inputs: int, narrow: int, outputs: int, *, halve: bool) -> nn.Sequential:
    second = {"stride": 2, "padding": 1} if halve else {}
    return nn.Sequential(
        nn.Conv2d(inputs, narrow, 1, bias=False),
        nn.BatchNorm2d(narrow),
        nn.ReLU(inplace=True),
        nn.Conv2d(narrow, outputs, 3, bias=False, **second),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def loss(outputs: tuple[Tensor, Tensor], boxes: Tensor, labels: Tensor) -> Tensor:
    """The loss: offsets of matched boxes, and classes of these and the hardest background boxes.

    Args:
        outputs: the outputs of the network.
        boxes: the target offsets, (batch, 4, 8732).
        labels: the class of each box, (batch, 8732); 0 is background.
    """
    offsets, scores = outputs
    matched = labels > 0
    count = matched.sum(dim=1)
    where = F.smooth_l1_loss(offsets, boxes, reduction="none").sum(dim=1)
    what = F.cross_entropy(scores, labels, reduction="none")
    background = what.masked_fill(matched, 0.0)
    rank = background.argsort(dim=1, descending=True).argsort(dim=1)
    hardest = rank < (NEGATIVES * count).clamp(max=labels.shape[1])[:, None]
    total = (matched * where).sum(dim=1) + (what * (matched | hardest)).sum(dim=1)
    return (total * (count > 0) / count.clamp(min=1)).mean()


def targets(batch: int) -> tuple[Any, Any]:
    """Random target offsets and classes."""
    boxes = torch.randn(batch, 4, 8732, device="cuda")
    return boxes, torch.randint(CLASSES, (batch, 8732), device="cuda")
