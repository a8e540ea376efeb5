"""Import model libraries, or stop with one line that says what to install."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from lab.needs import require


@cache
def import_torchvision() -> Any:
    """Import torchvision.

    There is no build for CPU-only torch. With such a torch, two of its ops are declared first, so
    that it can be imported and its models can be traced.
    """
    require("this step", "torchvision")
    libraries = [] if torch.version.cuda else [torch.library.Library("torchvision", "DEF")]
    for library in libraries:
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision

    # The declarations must live as long as torchvision does.
    torchvision._declared_ops = libraries
    return torchvision


@cache
def import_timm() -> Any:
    """Import timm, which imports torchvision."""
    require("this step", "timm", "torchvision")
    import_torchvision()
    import timm

    return timm
