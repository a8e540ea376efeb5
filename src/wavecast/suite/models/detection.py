"""Object detection: Faster R-CNN with ResNet-101.

Where the published code selects lists of varying length, here `topk` selects a fixed number, and
unused places get a weight of 0. So all shapes are fixed: a step can be traced without data, takes
the same work for every image, and never waits for the GPU to say how many boxes there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavecast.suite.models.vision import ResNet
from wavecast.suite.training import Minimizer, TrainingStep

_STRIDE = 16  # pixels between two points of the feature map
_RATIOS = (0.5, 1.0, 2.0)  # height over width of the anchors
_SUPPRESSION_ROUNDS = 32
_OFFSET_SCALES = (0.1, 0.1, 0.2, 0.2)  # give the second stage's targets unit variance


def faster_rcnn(
    batch: int,
    precision: str,
    *,
    device: str = "cuda",
    image: Sequence[int] = (600, 850),
    objects: int = 3,
    classes: int = 21,
    layers: Sequence[int] = (3, 4, 23, 3),
    width: int = 64,
    hidden: int = 512,
    scales: Sequence[int] = (128, 256, 512),
    proposals: int = 2000,
    regions: int = 128,
    anchors: int = 256,
    side: int = 14,
    frozen: bool = True,
    learning_rate: float = 0.001,
) -> TrainingStep:
    """Faster R-CNN on Pascal VOC, both stages trained together by SGD with momentum (Ren et al.).

    The inputs of the step are `images` of (height, width); `boxes` (batch, objects, 4), with their
    left, top, right and bottom in pixels; and `labels` (batch, objects), where 0 means no object.
    VOC 2007 has 2.5 objects in an image. If `frozen`, the stem and the first stage do not train, as
    with the first layers of VGG in the paper.

    ResNet-101 up to conv4 is shared, and conv5 is the head ("C4"; He et al. 2016, appendix A). Its
    norms are constants. Parameters: 42,394,816 in ResNet's convolutions; 512 (9 * 1024 + 1) +
    513 * 9 * (2 + 4) in the proposals; 2049 * 21 * (1 + 4) in the head: 47,356,767.
    """
    model = FasterRCNN(layers, width, hidden, classes, scales, proposals, regions, anchors, side)
    if frozen:
        model.freeze(1 + layers[0])
    model = model.to(device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=learning_rate, momentum=0.9, weight_decay=5e-4)

    def loss(images: Tensor, boxes: Tensor, labels: Tensor) -> Tensor:
        losses: tuple[Tensor, ...] = model(images, boxes, labels)
        return torch.stack(losses).sum()

    height, length = image
    size = torch.tensor([length, height], device=device)
    corners = torch.rand(batch, objects, 2, device=device) * 0.5
    extents = torch.rand(batch, objects, 2, device=device) * 0.4 + 0.1
    inputs = (
        torch.randn(batch, 3, height, length, device=device),
        torch.cat([corners * size, (corners + extents) * size], dim=-1),
        torch.randint(1, classes, (batch, objects), device=device),
    )
    return TrainingStep(model, inputs, Minimizer(loss, optimizer, precision, device))


class Regions(NamedTuple):
    """Regions of the images to classify, with their labels; all (batch, regions, ...)."""

    boxes: Tensor
    weights: Tensor
    """1, or 0 for an unused place."""
    labels: Tensor
    """The class; 0 is background."""
    objects: Tensor
    """The box of the object in the region, if the label is not 0."""


class FasterRCNN(nn.Module):
    """A network that proposes boxes, and one that classifies and corrects them, on shared features.

    Args:
        layers: the number of blocks in each stage of the ResNet; (3, 4, 23, 3) is ResNet-101.
        width: channels of its stem.
        hidden: channels of the layer before the proposals.
        classes: the number of kinds of objects, plus one for the background.
        scales: sides of the square anchors, in pixels; the other anchors have the same areas.
        proposals: how many of the best boxes of an image to keep before duplicates are suppressed.
        regions: how many of the remaining boxes train the second stage.
        anchors: how many anchors of an image train the first stage.
        side: height and width, in points of the feature map, to which a region is resampled.
    """

    def __init__(
        self,
        layers: Sequence[int],
        width: int,
        hidden: int,
        classes: int,
        scales: Sequence[int],
        proposals: int,
        regions: int,
        anchors: int,
        side: int,
    ) -> None:
        super().__init__()
        self.classes, self.side = classes, side
        self.proposals, self.regions, self.anchors = proposals, regions, anchors
        resnet = ResNet(layers, width, classes, norm=ConstantNorm)
        _hold_size(resnet)
        shared = sum(layers[:-1])
        self.body = nn.Sequential(resnet.stem, *resnet.stages[:shared])
        self.head = resnet.stages[shared:]
        kinds, features = len(_sides(scales)), 16 * width
        self.proposer = nn.Sequential(nn.Conv2d(features, hidden, 3, padding=1), nn.ReLU())
        self.objectness = nn.Conv2d(hidden, 2 * kinds, 1)
        self.anchor_offsets = nn.Conv2d(hidden, 4 * kinds, 1)
        self.classifier = nn.Linear(2 * features, classes)
        self.region_offsets = nn.Linear(2 * features, 4 * classes)
        # Kept on the device, because copying them there would make every step wait for the GPU.
        self.register_buffer("anchor_sides", torch.tensor(_sides(scales)))
        self.register_buffer("offset_scales", torch.tensor(_OFFSET_SCALES))
        new = (self.proposer[0], self.objectness, self.anchor_offsets, self.classifier)
        deviations = [*((layer, 0.01) for layer in new), (self.region_offsets, 0.001)]
        for layer, deviation in deviations:
            nn.init.normal_(layer.weight, std=deviation)
            nn.init.zeros_(layer.bias)

    def freeze(self, parts: int) -> None:
        """Train only the parts of the shared network from this one on."""
        self.body[:parts].requires_grad_(False)

    def forward(self, images: Tensor, boxes: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """The losses of the proposals (object or not, box) and of the regions (class, box)."""
        features = self.body(images)
        scores, offsets, anchors = self.propose(features)
        inside = _is_inside(anchors, images)
        first = self._proposal_losses(scores, offsets, anchors, inside, boxes)
        candidates, distinct = self.select(scores, offsets, anchors, images)
        regions = self._sample_regions(candidates, distinct, boxes, labels)
        logits, corrections = self.classify(features, regions.boxes)
        return *first, *self._region_losses(logits, corrections, regions)

    def propose(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The scores (batch, n, 2), offsets (batch, n, 4) and boxes (n, 4) of all anchors."""
        shared = self.proposer(features)
        scores, offsets = (
            layer(shared).permute(0, 2, 3, 1).reshape(len(features), -1, outputs).float()
            for layer, outputs in ((self.objectness, 2), (self.anchor_offsets, 4))
        )
        height, width = features.shape[2:]
        return scores, offsets, make_anchors(height, width, self.anchor_sides)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def select(
        self, scores: Tensor, offsets: Tensor, anchors: Tensor, images: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The best boxes of each image, (batch, proposals, 4), and which are not duplicates."""
        certainty = scores[..., 1] - scores[..., 0]
        best = certainty.topk(min(self.proposals, len(anchors)), dim=1).indices
        boxes = decode(_pick(offsets, best), anchors[best])
        height, width = images.shape[2:]
        x, y = boxes[..., 0::2].clamp(0, width), boxes[..., 1::2].clamp(0, height)
        boxes = torch.stack([x, y], dim=-1).flatten(-2)
        return boxes, find_distinct(boxes)

    def classify(self, features: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """The logits (batch, regions, classes) and offsets (batch, regions, classes, 4)."""
        regions = self.head(align_regions(features, boxes, self.side)).mean(dim=(2, 3))
        regions = regions.unflatten(0, boxes.shape[:2])
        logits: Tensor = self.classifier(regions).float()
        offsets = self.region_offsets(regions).float().unflatten(-1, (self.classes, 4))
        return logits, offsets

    def _proposal_losses(
        self, scores: Tensor, offsets: Tensor, anchors: Tensor, inside: Tensor, boxes: Tensor
    ) -> tuple[Tensor, Tensor]:
        overlaps = overlap(anchors, boxes) * inside[:, None]
        best, match = overlaps.max(dim=2)
        highest = overlaps.amax(dim=1, keepdim=True)
        nearest = ((overlaps == highest) & (highest > 0)).any(dim=2)
        positive = nearest | (best >= 0.7)
        negative = inside & ~nearest & (best < 0.3)
        places, weights = draw(positive, negative, self.anchors, self.anchors // 2)
        labels = positive.gather(1, places)
        objects = _pick(boxes, match.gather(1, places))
        wrong = _cross_entropy(_pick(scores, places), labels.long(), weights)
        targets = encode(objects, anchors[places])
        far = _distance(_pick(offsets, places), targets, weights * labels)
        # Divided by the number of anchor positions, with a weight of 10 (section 3.1.2).
        points = scores.shape[0] * scores.shape[1] / len(self.anchor_sides)
        return wrong, far * (10 / points)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _sample_regions(
        self, candidates: Tensor, distinct: Tensor, boxes: Tensor, labels: Tensor
    ) -> Regions:
        # The true boxes of the objects are candidates, too, as in the published code.
        candidates = torch.cat([candidates, boxes], dim=1)
        allowed = torch.cat([distinct, labels > 0], dim=1)
        best, match = overlap(candidates, boxes).max(dim=2)
        positive, negative = allowed & (best >= 0.5), allowed & (best < 0.5)
        places, weights = draw(positive, negative, self.regions, self.regions // 4)
        match = match.gather(1, places)
        classes = labels.gather(1, match) * positive.gather(1, places)
        return Regions(_pick(candidates, places), weights, classes, _pick(boxes, match))

    def _region_losses(
        self, logits: Tensor, offsets: Tensor, regions: Regions
    ) -> tuple[Tensor, Tensor]:
        of_class = regions.labels[..., None, None].expand(-1, -1, 1, 4)
        offsets = offsets.gather(2, of_class).squeeze(2)
        targets = encode(regions.objects, regions.boxes) / self.offset_scales
        wrong = _cross_entropy(logits, regions.labels, regions.weights)
        far = _distance(offsets, targets, regions.weights * (regions.labels > 0))
        return wrong, far / regions.labels.numel()


class ConstantNorm(nn.Module):
    """A batch norm whose statistics, scale and shift never change."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        for name, value in {"mean": 0.0, "variance": 1.0, "scale": 1.0, "shift": 0.0}.items():
            self.register_buffer(name, torch.full((channels,), value))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, ...) -> the same."""
        return F.batch_norm(x, self.mean, self.variance, self.scale, self.shift)


def _hold_size(resnet: ResNet) -> None:
    """Choose scales with which features neither grow nor vanish: the norms are constants. A
    shortcut with a convolution would halve the features, so its scale is 2."""
    for block in resnet.stages:
        block.expand_norm.scale.fill_(len(resnet.stages) ** -0.5)
        if not isinstance(block.shortcut, nn.Identity):
            block.shortcut[1].scale.fill_(2.0)


def make_anchors(height: int, width: int, sides: Tensor) -> Tensor:
    """Boxes of all these sides around every point of the feature map, (points * kinds, 4)."""
    half, device = sides / 2, sides.device
    x, y = (_STRIDE * (torch.arange(n, device=device) + 0.5) for n in (width, height))
    centres = torch.stack([x.expand(height, width), y[:, None].expand(height, width)], dim=-1)
    centres = centres.reshape(-1, 1, 2)
    return torch.cat([centres - half, centres + half], dim=-1).flatten(0, 1)


def _sides(scales: Sequence[int]) -> list[tuple[float, float]]:
    return [
        (scale / math.sqrt(ratio), scale * math.sqrt(ratio))
        for ratio in _RATIOS
        for scale in scales
    ]


def overlap(boxes: Tensor, others: Tensor) -> Tensor:
    """The intersection over union of all pairs: (..., n, 4) and (..., m, 4) -> (..., n, m)."""
    a, b = boxes[..., :, None, :], others[..., None, :, :]
    sides = torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])
    shared = sides.clamp(min=0).prod(dim=-1)
    together = (a[..., 2:] - a[..., :2]).prod(dim=-1) + (b[..., 2:] - b[..., :2]).prod(dim=-1)
    return shared / (together - shared).clamp(min=1e-6)


def encode(boxes: Tensor, references: Tensor) -> Tensor:
    """The offsets of boxes from references: of their centres, and of their sides' logarithms."""
    (centres, sides), (origins, units) = _centres(boxes), _centres(references)
    return torch.cat([(centres - origins) / units, (sides / units).log()], dim=-1)


def decode(offsets: Tensor, references: Tensor) -> Tensor:
    """The boxes with these offsets from the references."""
    origins, units = _centres(references)
    centres = origins + offsets[..., :2] * units
    half = units * offsets[..., 2:].clamp(max=4.0).exp() / 2  # at most 55 times as large
    return torch.cat([centres - half, centres + half], dim=-1)


def find_distinct(boxes: Tensor, threshold: float = 0.7) -> Tensor:
    """Which boxes (batch, n, 4), best first, are kept by non-maximum suppression.

    A box is suppressed if it overlaps a better one that is kept. The published code goes from box
    to box; here each round treats all boxes at once (Zheng et al. 2020, "Cluster-NMS"). After r
    rounds, every box is decided whose chain of overlapping better boxes has at most r boxes. The 32
    rounds made here are enough for 2000 anchors ranked by their overlap with up to 25 objects.
    """
    near = (overlap(boxes, boxes) > threshold).triu(diagonal=1)
    distinct = torch.ones(boxes.shape[:2], dtype=torch.bool, device=boxes.device)
    for _ in range(_SUPPRESSION_ROUNDS):
        distinct = ~(near & distinct[:, :, None]).any(dim=1)
    return distinct


def draw(positive: Tensor, negative: Tensor, size: int, most: int) -> tuple[Tensor, Tensor]:
    """Random places (batch, size), and their weights: 0 for places that could not be filled.

    Args:
        positive: which of (batch, n) are positive. They are drawn first.
        negative: which are negative. They fill the rest.
        size: how many places to draw, or n if that is less.
        most: how many of them may be positive.
    """
    size = min(size, positive.shape[1])
    luck = 1 - torch.rand(positive.shape, device=positive.device)  # above 0
    draws = luck * positive
    last = draws.topk(min(most, size), dim=1).values[:, -1:]
    ranks = luck * negative + (1 + luck) * (positive & (draws >= last))
    best, places = ranks.topk(size, dim=1)
    return places, (best > 0).float()


def align_regions(features: Tensor, boxes: Tensor, side: int, samples: int = 2) -> Tensor:
    """The features of boxes (batch, n, 4) in the image: (batch * n, channels, side, side).

    Each point is the mean of samples x samples interpolated points (RoIAlign; He et al. 2017). Ren
    et al. took the maximum of the nearest points (RoI pooling).
    """
    points = side * samples
    steps = (torch.arange(points, device=boxes.device) + 0.5) / points
    left, top, right, bottom = boxes.unsqueeze(-2).unbind(dim=-1)
    height, width = (_STRIDE * n for n in features.shape[2:])
    x = (left + (right - left) * steps) * (2 / width) - 1  # grid_sample counts from -1 to 1
    y = (top + (bottom - top) * steps) * (2 / height) - 1
    shape = (*x.shape, points)
    grid = torch.stack([x[:, :, None, :].expand(shape), y[..., None].expand(shape)], dim=-1)
    points = F.grid_sample(features, grid.flatten(1, 2), padding_mode="border", align_corners=False)
    means = F.avg_pool2d(points, samples).unflatten(2, (-1, side))
    return means.transpose(1, 2).flatten(0, 1)


def _centres(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """The centres and sides of boxes. Empty boxes (unused places) count as one pixel."""
    sides = (boxes[..., 2:] - boxes[..., :2]).clamp(min=1)
    return (boxes[..., 2:] + boxes[..., :2]) / 2, sides


def _is_inside(boxes: Tensor, images: Tensor) -> Tensor:
    height, width = images.shape[2:]
    left, top, right, bottom = boxes.unbind(dim=-1)
    return (left >= 0) & (top >= 0) & (right <= width) & (bottom <= height)


def _pick(rows: Tensor, places: Tensor) -> Tensor:
    """Rows (batch, n, values) at places (batch, m) -> (batch, m, values)."""
    return rows.gather(1, places[..., None].expand(-1, -1, rows.shape[-1]))


def _cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum().clamp(min=1)


def _distance(offsets: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    losses = F.smooth_l1_loss(offsets, targets, reduction="none")
    return (losses * weights[..., None]).sum()
