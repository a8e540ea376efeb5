"""Training steps of all models of torchvision, without the quantized ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from lab.steps.libraries import import_torchvision

BATCH = 2
# Sizes of images that differ from 224: what the weights of these models were trained with.
_SIDES = {"inception_v3": 299, "swin_v2": 256}
_VIDEO_SIDES = {"mvit": 224, "swin3d": 224, "s3d": 224}
_FRAMES = 16
_SEGMENTED = 520
_DETECTED = (800, 1066)
_FLOW = (368, 496)
_OBJECTS = 6


def torchvision_names() -> dict[str, list[str]]:
    """The names of all models that are not quantized, by kind."""
    models = import_torchvision().models
    modules = {
        "classification": models,
        "segmentation": models.segmentation,
        "detection": models.detection,
        "video": models.video,
        "optical flow": models.optical_flow,
    }
    return {kind: sorted(models.list_models(module)) for kind, module in modules.items()}


def torchvision_step(kind: str, name: str) -> Callable[[], Callable[[], None]]:
    """A `make_step` of one model: its usual loss and AdamW.

    Everything but detection runs under bf16 autocast; torchvision trains its detectors in fp32.
    """

    def make() -> Callable[[], None]:
        models = import_torchvision().models
        options = {"weights_backbone": None} if kind in ("segmentation", "detection") else {}
        model = models.get_model(name, weights=None, **options).cuda().train()
        loss_of = _LOSSES[kind](name)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=kind != "detection"):
                loss = loss_of(model)
            loss.backward()
            optimizer.step()

        return step

    return make


Loss = Callable[[Any], Any]


def _side(name: str, sides: dict[str, int], default: int) -> int:
    return next((side for start, side in sides.items() if name.startswith(start)), default)


def _classification(name: str) -> Loss:
    side = _side(name, _SIDES, 224)
    images = torch.randn(BATCH, 3, side, side, device="cuda")
    return _classifier(images)


def _video(name: str) -> Loss:
    side = _side(name, _VIDEO_SIDES, 112)
    return _classifier(torch.randn(BATCH, 3, _FRAMES, side, side, device="cuda"))


def _classifier(images: Any) -> Loss:
    labels = torch.randint(0, 400, (BATCH,), device="cuda")

    def loss(model: Any) -> Any:
        out = model(images)
        # GoogLeNet and Inception have outputs beside the main one while they are trained.
        outputs = out if isinstance(out, tuple) else (out,)
        return sum(F.cross_entropy(scores, labels) for scores in outputs)

    return loss


def _segmentation(_: str) -> Loss:
    images = torch.randn(BATCH, 3, _SEGMENTED, _SEGMENTED, device="cuda")
    labels = torch.randint(0, 21, (BATCH, _SEGMENTED, _SEGMENTED), device="cuda")

    def loss(model: Any) -> Any:
        return sum(F.cross_entropy(scores, labels) for scores in model(images).values())

    return loss


def _detection(_: str) -> Loss:
    height, width = _DETECTED
    images = [torch.rand(3, height, width, device="cuda") for _ in range(BATCH)]
    corners = torch.rand(_OBJECTS, 2) * 300
    visible = torch.ones(_OBJECTS, 17, 1)
    target = {
        "boxes": torch.cat([corners, corners + 100 + 300 * torch.rand(_OBJECTS, 2)], 1),
        "labels": torch.ones(_OBJECTS, dtype=torch.int64),
        "masks": torch.ones(_OBJECTS, height, width, dtype=torch.uint8),
        "keypoints": torch.cat([400 * torch.rand(_OBJECTS, 17, 2), visible], 2),
    }
    targets = [{key: value.cuda() for key, value in target.items()} for _ in range(BATCH)]
    return lambda model: sum(model(images, targets).values())


def _flow(_: str) -> Loss:
    first, second = (torch.rand(BATCH, 3, *_FLOW, device="cuda") for _ in range(2))
    truth = torch.randn(BATCH, 2, *_FLOW, device="cuda")

    def loss(model: Any) -> Any:
        flows = model(first, second)
        last = len(flows) - 1
        return sum(0.8 ** (last - n) * (flow - truth).abs().mean() for n, flow in enumerate(flows))

    return loss


_LOSSES: dict[str, Callable[[str], Loss]] = {
    "classification": _classification,
    "segmentation": _segmentation,
    "detection": _detection,
    "video": _video,
    "optical flow": _flow,
}
