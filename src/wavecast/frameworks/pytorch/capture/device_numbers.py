"""GPUs that are named by a number alone: `torch.device(0)`, `model.to(0)`, `device=0`.

Torch asks its accelerator which device a number means, and a build without one raises an error.
While tracing, the numbers mean CUDA devices.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils._device import _device_constructors

_REAL = torch.device
_LIKE = (
    *("empty_like", "zeros_like", "ones_like", "full_like"),
    *("rand_like", "randn_like", "randint_like"),
)


@contextmanager
def numbered_devices() -> Iterator[None]:
    """Let numbers mean CUDA devices."""
    with ExitStack() as stack:

        def replace(owner: Any, name: str, value: Any) -> None:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)

        constructors = (f.__name__ for f in _device_constructors())
        for name in (*(n for n in constructors if hasattr(torch, n)), *_LIKE):
            replace(torch, name, _taking_numbers(getattr(torch, name)))
        replace(torch, "device", NumberedDevice)
        replace(torch._C._nn, "_parse_to", _parsing(torch._C._nn._parse_to))
        yield


class _DeviceType(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        kind: Any = args[0] if args else kwargs.get("type", kwargs.get("device"))
        return _numbered(kind) if _is_number(kind) else _REAL(*args, **kwargs)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, _REAL)


class NumberedDevice(metaclass=_DeviceType):
    """`torch.device`, which makes plain devices. Torch's own class cannot be derived from."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _numbered(index: int) -> Any:
    return _REAL("cuda", index)


def _taking_numbers(make: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes tensors, with `device` as a number, too."""

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        if _is_number(kwargs.get("device")):
            kwargs["device"] = _numbered(kwargs["device"])
        return make(*args, **kwargs)

    return made


def _parsing(parse: Callable[..., Any]) -> Callable[..., Any]:
    """The parser of the arguments of `to`."""

    def parse_to(*args: Any, **kwargs: Any) -> Any:
        if args and _is_number(args[0]):
            args = (_numbered(args[0]), *args[1:])
        if _is_number(kwargs.get("device")):
            kwargs["device"] = _numbered(kwargs["device"])
        return parse(*args, **kwargs)

    return parse_to
