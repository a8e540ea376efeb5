"""The sweep of layers whose time is that of memory: every kind of layer runs, without data."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from torch.overrides import TorchFunctionMode

from lab.steps.lookup_layers import MEMORY
from wavecast.frameworks.pytorch.drawn.network_layers import Layer, ShapeDraw, TooLarge


class _Shapes(TorchFunctionMode):
    """Makes tensors without data in place of those on the GPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


@pytest.mark.parametrize("make", [make for make, _ in MEMORY], ids=lambda make: make.__name__)
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_layers_run(make: Callable[[ShapeDraw], Layer], precision: str) -> None:
    ran, pick = 0, random.Random(f"{make.__name__} {precision}")
    with _Shapes():
        while ran < 6:
            try:
                layer = make(ShapeDraw(pick, precision, pick.choice(("nhwc", "nchw"))))
            except TooLarge:
                continue
            with suppress(ValueError):  # a norm of one value, which the sweep skips
                layer()
            ran += 1
