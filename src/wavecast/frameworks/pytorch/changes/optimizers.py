"""Changes of the optimizer: its form, and how it clears gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from wavecast.frameworks.pytorch.capture.replacements import replacing

_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)


@contextmanager
def optimizers_with(**form: bool) -> Iterator[None]:
    """Build optimizers in another form: `fused=True` or `foreach=True`."""
    with ExitStack() as stack:
        replace = replacing(stack)
        for kind in _FUSED:
            if "__init__" in vars(kind):
                replace(kind, __init__=_built(kind.__init__, form))
        yield


def _built(original: Callable[..., None], form: dict[str, bool]) -> Callable[..., None]:
    def build(self: Any, params: Any, *args: Any, **kwargs: Any) -> None:
        kept = {name: value for name, value in kwargs.items() if name not in ("fused", "foreach")}
        original(self, params, *args, **kept, **form)

    return build


@contextmanager
def zeroed_by_none() -> Iterator[None]:
    """Clear gradients by freeing them, not by writing zeros."""
    with ExitStack() as stack:
        replace = replacing(stack)
        for kind in (torch.optim.Optimizer, torch.nn.Module):
            replace(kind, zero_grad=_freeing(kind.zero_grad))
        yield


def _freeing(original: Callable[..., None]) -> Callable[..., None]:
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        original(self, set_to_none=True)

    return zero_grad
