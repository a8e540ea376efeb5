"""Subclasses of tensors and parameters, such as bitsandbytes' `Params4bit`, made of fake tensors.

Libraries make them with `torch.Tensor._make_subclass`, which refuses a tensor that is a FakeTensor
already. While tracing, the result is of a class that is both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor


@contextmanager
def fake_subclasses() -> Iterator[None]:
    """Let `torch.Tensor._make_subclass` take fake tensors."""
    make_real = torch.Tensor._make_subclass
    own = vars(torch.Tensor).get("_make_subclass")

    def make_subclass(cls: Any, data: Any, require_grad: bool = False, **options: Any) -> Any:
        if not isinstance(data, FakeTensor) or issubclass(cls, FakeTensor):
            return make_real(cls, data, require_grad, **options)
        made = data.detach()
        made.__class__ = _fake_class(cls)
        return made.requires_grad_(require_grad)

    new = FakeTensor.__new__

    def new_tensor(cls: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
        """A fake tensor; a parameter, for code that copies one by its class and attributes."""
        if not isinstance(first, torch.Tensor):
            return new(cls, first, *args, **kwargs)
        grad = kwargs.get("requires_grad", args[0] if args else True)
        return torch.nn.Parameter(first, grad)

    torch.Tensor._make_subclass = staticmethod(make_subclass)
    FakeTensor.__new__ = new_tensor
    try:
        yield
    finally:
        FakeTensor.__new__ = new
        if own is None:
            del torch.Tensor._make_subclass
        else:
            torch.Tensor._make_subclass = own


@cache
def _fake_class(cls: Any) -> Any:
    """The class of fake tensors that are instances of `cls`. Libraries check its name, too."""
    return type(cls)(cls.__name__, (cls, FakeTensor), {"__module__": cls.__module__})
