"""Import model libraries, or stop with one line that says what to install."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch

from lab.needs import require

_SUPPRESSION = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_ALIGN = (
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
    "SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor"
)
_ALIGN_BACKWARD = (
    "_roi_align_backward(Tensor grad, Tensor rois, float spatial_scale, SymInt pooled_height, "
    "SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width, "
    "int sampling_ratio, bool aligned) -> Tensor"
)


@cache
def import_torchvision() -> Any:
    """Import torchvision.

    There is no build for CPU-only torch. With such a torch, the ops of its models are declared
    first, as torchvision's own C++ code does, so that it can be imported and its models can be
    traced.
    """
    require("this step", "torchvision")
    libraries = [] if torch.version.cuda else [_declared_ops()]
    import torchvision

    # The declarations must live as long as torchvision does.
    torchvision._declared_ops = libraries
    if libraries:
        # Without its C++ code, torchvision would take another way, in Python.
        replaced = {"_has_ops": lambda: True, "_assert_has_ops": lambda: None}
        for module, names in [(n, vars(m)) for n, m in sys.modules.items()]:
            if module.startswith("torchvision."):
                names.update({n: value for n, value in replaced.items() if n in names})
    return torchvision


def _declared_ops() -> torch.library.Library:
    """The ops of torchvision's models: schemas, fake versions, and the gradient of RoIAlign."""
    library = torch.library.Library("torchvision", "DEF")
    for schema in (f"nms{_SUPPRESSION}", f"qnms{_SUPPRESSION}", _ALIGN, _ALIGN_BACKWARD):
        library.define(schema)

    def align(image: Any, rois: Any, scale: float, height: int, width: int, *_: Any) -> Any:
        return image.new_empty((rois.shape[0], image.shape[1], height, width))

    def align_backward(gradient: Any, rois: Any, *settings: Any) -> Any:
        return gradient.new_empty(settings[3:7])

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.shape, ctx.settings = inputs[0].shape, inputs[2:]
        ctx.save_for_backward(inputs[1])

    def gradient_of(ctx: Any, gradient: Any) -> tuple[Any, ...]:
        (rois,) = ctx.saved_tensors
        scale, height, width, ratio, aligned = ctx.settings
        backward = torch.ops.torchvision._roi_align_backward
        result = backward(gradient, rois, scale, height, width, *ctx.shape, ratio, aligned)
        return result, *[None] * 6

    torch.library.register_fake("torchvision::roi_align", align, lib=library)
    torch.library.register_fake("torchvision::_roi_align_backward", align_backward, lib=library)
    torch.library.register_autograd(
        "torchvision::roi_align", gradient_of, setup_context=keep, lib=library
    )
    return library


@cache
def import_timm() -> Any:
    """Import timm, which imports torchvision."""
    require("this step", "timm", "torchvision")
    import_torchvision()
    import timm

    return timm
