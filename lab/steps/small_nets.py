"""Networks in plain PyTorch that compile quickly: U-Net, detector, recurrent net, perceptron."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    """Two convolutions with group norms, and the time of the noise added between them."""

    def __init__(self, inner: int, outer: int, times: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(8, inner), nn.GroupNorm(8, outer)])
        self.first = nn.Conv2d(inner, outer, 3, padding=1)
        self.second = nn.Conv2d(outer, outer, 3, padding=1)
        self.time = nn.Linear(times, outer)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Any, time: Any) -> Any:
        y = self.first(F.silu(self.norms[0](x))) + self.time(F.silu(time))[:, :, None, None]
        y = F.dropout(F.silu(self.norms[1](y)), 0.1, self.training)
        return self.skip(x) + self.second(y)


class Denoiser(nn.Module):
    """Three resolutions down and up again, with skips (Ronneberger et al., 2015)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        times = 4 * width
        self.time = nn.Sequential(nn.Linear(width, times), nn.SiLU(), nn.Linear(times, times))
        self.width = width
        self.enter = nn.Conv2d(4, width, 3, padding=1)
        self.down = nn.ModuleList(
            [Residual(a, b, times) for a, b in zip((width, *widths), widths, strict=False)]
        )
        self.up = nn.ModuleList(
            [Residual(2 * b, a, times) for a, b in zip((width, *widths), widths, strict=False)][
                ::-1
            ]
        )
        self.middle = Residual(widths[-1], widths[-1], times)
        self.leave = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x: Any, time: Any) -> Any:
        steps = torch.arange(self.width, device=x.device) / self.width
        time = self.time(torch.cos(time[:, None] * 10_000**-steps))
        x = self.enter(x)
        kept = []
        for block in self.down:
            x = block(x, time)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x, time)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, kept.pop()], 1), time)
        return self.leave(x)


def _unit(inner: int, outer: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outer), nn.LeakyReLU(0.1, inplace=True))


class Detector(nn.Module):
    """A backbone, a feature pyramid and a head for classes and boxes (Lin et al., 2017)."""

    def __init__(self, classes: int = 20, anchors: int = 3, width: int = 128) -> None:
        super().__init__()
        self.stem = nn.Sequential(_unit(3, 32, 2), _unit(32, 64, 2))
        self.stages = nn.ModuleList(
            nn.Sequential(_unit(64 * 2**i, 128 * 2**i, 2), _unit(128 * 2**i, 128 * 2**i, 1))
            for i in range(3)
        )
        self.sides = nn.ModuleList(nn.Conv2d(128 * 2**i, width, 1) for i in range(3))
        self.head = nn.Sequential(_unit(width, width, 1), _unit(width, width, 1))
        self.scores = nn.Conv2d(width, anchors * classes, 3, padding=1)
        self.boxes = nn.Conv2d(width, anchors * 4, 3, padding=1)
        self.classes = classes

    def forward(self, x: Any) -> tuple[Any, Any]:
        x = self.stem(x)
        seen = []
        for stage, side in zip(self.stages, self.sides, strict=True):
            x = stage(x)
            seen.append(side(x))
        above = seen[-1]
        merged = [above]
        for features in reversed(seen[:-1]):
            above = features + F.interpolate(above, scale_factor=2.0, mode="nearest")
            merged.append(above)
        scores, boxes = [], []
        for features in reversed(merged):
            shared = self.head(features)
            scores.append(self.scores(shared).permute(0, 2, 3, 1).flatten(1))
            boxes.append(self.boxes(shared).permute(0, 2, 3, 1).flatten(1))
        return (
            torch.cat(scores, 1).unflatten(1, (-1, self.classes)),
            torch.cat(boxes, 1).unflatten(1, (-1, 4)),
        )


def focal_loss(found_in: tuple[Any, Any], truth: Any, wanted: Any) -> Any:
    """Focal loss of the classes (Lin et al., 2017) and a smooth distance of the boxes."""
    scores, boxes = found_in
    entropy = F.binary_cross_entropy_with_logits(scores.float(), truth, reduction="none")
    likely = torch.exp(-entropy)
    found = truth.amax(-1, keepdim=True)
    distance = F.smooth_l1_loss(boxes.float(), wanted, reduction="none") * found
    return ((1 - likely) ** 2 * entropy).mean() + distance.mean()


class SequenceNet(nn.Module):
    """An embedding, an LSTM and a perceptron with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10_000, 256)
        self.layers = nn.LSTM(256, 512, 2, batch_first=True)
        self.norm = nn.LayerNorm(512)
        self.out = nn.Sequential(
            nn.Linear(512, 512), nn.GELU(), nn.Dropout(0.1), nn.Linear(512, 10)
        )

    def forward(self, tokens: Any) -> Any:
        x = F.dropout(self.embedding(tokens), 0.1, self.training)
        x, _ = self.layers(x)
        return self.out(self.norm(x).mean(1))


class Tower(nn.Module):
    """Perceptrons with norms, dropout and residuals; torch.compile is stopped after the first."""

    def __init__(self, width: int, depth: int, breaks: int = 0) -> None:
        super().__init__()
        self.breaks = breaks
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, 2 * width),
                nn.SiLU(),
                nn.Dropout(0.1),
                nn.Linear(2 * width, width),
            )
            for _ in range(depth)
        )

    def forward(self, x: Any) -> Any:
        for number, layer in enumerate(self.layers):
            x = x + layer(x)
            if number < self.breaks:
                torch._dynamo.graph_break()
        return x
