"""Faster R-CNN selects boxes as in the paper, in shapes that do not depend on data, and learns."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from over_all import more  # noqa: E402
from small_models import count, small  # noqa: E402

import wavecast  # noqa: E402
from wavecast.ops import totals  # noqa: E402
from wavecast.suite import benchmark  # noqa: E402
from wavecast.suite.demonstrations import _detector  # noqa: E402
from wavecast.suite.models.detection import (  # noqa: E402
    align_regions,
    decode,
    draw,
    encode,
    find_distinct,
    make_anchors,
    overlap,
)

pytestmark = pytest.mark.usefixtures("the_same_numbers_on_one_thread")


def random_boxes(*shape: int, image: float = 100.0) -> Any:
    corners = torch.rand(*shape, 2) * 0.5 * image
    return torch.cat([corners, corners + (0.1 + torch.rand(*shape, 2)) * 0.4 * image], dim=-1)


# What it is


def test_its_parts_are_as_large_as_published() -> None:
    with torch.device("meta"):
        model = benchmark("faster-rcnn").make_step(device="meta").model
    convolutions = count(model.body) + count(model.head)
    constants = sum(b.numel() for n, b in model.named_buffers() if n.endswith(("scale", "shift")))
    classifier = 2049 * 1000
    assert convolutions + constants + classifier == 44_549_160  # ResNet-101
    assert count(model.proposer) == 512 * (9 * 1024 + 1)
    assert count(model.objectness) + count(model.anchor_offsets) == 513 * 9 * (2 + 4)
    assert count(model.classifier) + count(model.region_offsets) == 2049 * 21 * (1 + 4)


def test_an_image_has_the_features_anchors_and_regions_of_the_paper() -> None:
    with torch.device("meta"):
        step = benchmark("faster-rcnn").make_step(device="meta")
        images, boxes, _ = step.inputs
        features = step.model.body(images)
        scores, offsets, anchors = step.model.propose(features)
        candidates, _ = step.model.select(scores, offsets, anchors, images)
        regions = align_regions(features, candidates[:, :128], step.model.side)
        head = step.model.head(regions)
    assert features.shape == (1, 1024, 38, 54)
    assert scores.shape == (1, 38 * 54 * 9, 2)
    assert anchors.shape == (38 * 54 * 9, 4)
    assert candidates.shape == (1, 2000, 4)
    assert regions.shape == (128, 1024, 14, 14)
    assert head.shape == (128, 2048, 7, 7)
    assert boxes.shape == (1, 3, 4)


def test_the_first_layers_are_left_as_they_are() -> None:
    step = small("faster-rcnn", batch=2, frozen=True)
    before = {name: value.clone() for name, value in step.model.named_parameters()}
    step()
    after = dict(step.model.named_parameters())
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == {name for name in before if name.startswith(("body.0.", "body.1."))}


@pytest.mark.parametrize("precision", ["fp32", *more("bf16", "fp16")])
def test_its_ops_do_not_depend_on_the_data_and_do_not_wait_for_it(precision: str) -> None:
    traced = wavecast.trace(lambda: benchmark("faster-rcnn").make_step(1, precision))
    assert totals(traced).unknown == {}
    names = {call.op.name.split(".")[1] for call in traced}
    assert not names & {"nonzero", "masked_select", "unique", "_unique2"}
    if precision != "fp16":  # where the scaler reads whether there was an infinity
        assert "_local_scalar_dense" not in names


# Boxes


def test_anchors_have_three_areas_and_three_ratios_around_every_point() -> None:
    with torch.device("meta"):
        model = benchmark("faster-rcnn").make_step(device="meta").model
    assert model.anchor_sides.shape == (9, 2)
    sides = torch.tensor([[128.0, 128.0], [100.0, 200.0]])
    anchors = make_anchors(2, 3, sides)
    assert anchors.shape == (2 * 3 * 2, 4)
    assert anchors[0].tolist() == [8 - 64, 8 - 64, 8 + 64, 8 + 64]
    assert anchors[-1].tolist() == [40 - 50, 24 - 100, 40 + 50, 24 + 100]
    shapes = small("faster-rcnn").model.anchor_sides
    areas, ratios = shapes.prod(dim=1), shapes[:, 1] / shapes[:, 0]
    torch.testing.assert_close(areas.sqrt(), torch.tensor([16.0, 32.0, 64.0] * 3))
    torch.testing.assert_close(ratios, torch.tensor([0.5, 1.0, 2.0]).repeat_interleave(3))


def test_overlap_is_the_intersection_over_the_union() -> None:
    box = torch.tensor([[0.0, 0.0, 2.0, 2.0]])
    others = torch.tensor([[0.0, 0.0, 2.0, 2.0], [1, 1, 3, 3], [2, 0, 4, 2], [0, 0, 0, 0]])
    torch.testing.assert_close(overlap(box, others), torch.tensor([[1.0, 1 / 7, 0.0, 0.0]]))


def test_boxes_are_found_again_from_their_offsets() -> None:
    boxes, references = random_boxes(5, 7), random_boxes(5, 7)
    torch.testing.assert_close(decode(encode(boxes, references), references), boxes)
    box, reference = torch.tensor([10.0, 10, 30, 50]), torch.tensor([0.0, 0, 20, 20])
    expected = torch.tensor([0.5, 1.0, math.log(1), math.log(2)])
    torch.testing.assert_close(encode(box, reference), expected)


def suppress_one_by_one(boxes: Any, threshold: float) -> Any:
    near = overlap(boxes, boxes) > threshold
    kept = torch.ones(len(boxes), dtype=torch.bool)
    for place in range(len(boxes)):
        if kept[place]:
            kept[place + 1 :] &= ~near[place, place + 1 :]
    return kept


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7])
def test_suppression_in_rounds_is_suppression_box_by_box(threshold: float) -> None:
    boxes = random_boxes(3, 300)
    distinct = find_distinct(boxes, threshold)
    for mine, candidates in zip(distinct, boxes, strict=True):
        expected = suppress_one_by_one(candidates, threshold)
        assert 1 < expected.sum() < 300
        assert torch.equal(mine, expected)


def test_the_best_2000_anchors_of_an_image_are_suppressed_as_box_by_box() -> None:
    shapes = torch.tensor([(s / r**0.5, s * r**0.5) for r in (0.5, 1, 2) for s in (128, 256, 512)])
    anchors = make_anchors(38, 54, shapes)
    objects = torch.tensor([[100.0, 150, 400, 420], [500, 50, 620, 300]])
    certainty = overlap(anchors, objects).amax(dim=1) + 0.02 * torch.randn(len(anchors))
    best = anchors[certainty.topk(2000).indices]
    assert torch.equal(find_distinct(best[None])[0], suppress_one_by_one(best, 0.7))


def test_what_is_drawn_is_allowed_and_positives_come_first() -> None:
    positive = torch.zeros(3, 40, dtype=torch.bool)
    positive[0, :3] = positive[1, :20] = True
    negative = ~positive
    negative[2, 4:] = False  # four negatives and no positive: fewer than asked for
    places, weights = draw(positive, negative, 16, 8)
    drawn = positive.gather(1, places)
    assert drawn.sum(dim=1).tolist() == [3, 8, 0]
    assert weights.sum(dim=1).tolist() == [16, 16, 4]
    assert (drawn | negative.gather(1, places))[weights > 0].all()
    assert all(len(set(row.tolist())) == 16 for row in places)


def test_what_is_drawn_is_random() -> None:
    positive = torch.ones(1, 1000, dtype=torch.bool)
    first, second = (draw(positive, ~positive, 16, 16)[0] for _ in range(2))
    assert not torch.equal(first, second)


# Regions


def test_regions_are_means_of_interpolated_points() -> None:
    # The features are linear, so each point of a region has the value at its centre.
    y, x = torch.meshgrid(torch.arange(6.0), torch.arange(8.0), indexing="ij")
    features = torch.stack([x, y]).expand(2, 2, 6, 8)
    boxes = torch.tensor(
        [[[24.0, 24, 88, 72], [40, 16, 72, 80]], [[8, 8, 120, 88], [16, 8, 48, 40]]]
    )
    regions = align_regions(features, boxes, side=4).view(2, 2, 2, 4, 4)
    steps = (torch.arange(4) + 0.5) / 4
    for image in range(2):
        for place in range(2):
            left, top, right, bottom = boxes[image, place]
            across = (left + (right - left) * steps) / 16 - 0.5
            down = (top + (bottom - top) * steps) / 16 - 0.5
            expected = torch.stack([across.expand(4, 4), down[:, None].expand(4, 4)])
            torch.testing.assert_close(regions[image, place], expected)


# What it learns


@pytest.mark.slow
def test_it_learns_where_an_object_is_and_whether_it_is_bright_or_dark() -> None:
    learner = _detector(None, "cpu")
    model = learner.step.model

    def known() -> float:
        """How often the class of the object is right."""
        images, boxes, labels = learner.refill()
        with torch.no_grad():
            logits, _ = model.classify(model.body(images), boxes[:, :1])
        kinds = 1 + logits[:, 0, 1:].argmax(dim=-1)
        return float((kinds == labels[:, 0]).float().mean())

    assert learner.quality() < 0.4
    for _ in range(100):
        learner.train()
    assert learner.quality() > 0.5
    assert sum(known() for _ in range(5)) / 5 > 0.9
