"""Fake tensors as the compiler sees them: on the GPU, although torch's C++ code sees the CPU.

Dynamo and AOTAutograd run the model on fake tensors of their own. Torch's CPU build has no autograd
for fake tensors of a GPU, so they are fake tensors of the CPU. Python code, such as decompositions
and the user's `x.device`, must see the GPU. Torch's own fake-tensor code must see the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from wavecast.frameworks.pytorch.capture.pretended.replacements import replacing
from wavecast.frameworks.pytorch.capture.values.host_values import is_made_by_python
from wavecast.frameworks.pytorch.capture.values.places import (
    CPU,
    GPU,
    ON_GPU,
    ON_HOST,
    place_of,
    put,
    tensors_in,
)

REAL_DEVICES = "_wavecast_real_devices"
"""The mark of a fake-tensor mode whose tensors have their true devices, as Inductor needs them."""

# Torch's own, taken when this module is imported: nothing is replaced yet.
_plain_device = FakeTensor.device.fget
_plain_new = FakeTensor.__new__
_METHODS = ("to", "cuda", "cpu", "numpy", "__array__", "tolist")
_plain_methods = {
    owner: {name: getattr(owner, name) for name in _METHODS} for owner in (FakeTensor, torch.Tensor)
}
_MOVE = torch.ops.prims.device_put.default
_plain_dispatch = FakeTensorMode.dispatch
_plain_from_tensor = FakeTensorMode.from_tensor


class CompilerDevices:
    """What the compiler's code sees of the devices of fake tensors."""

    def __init__(self) -> None:
        self._depth = 0

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Let Python code see the GPU, inside the block."""
        with ExitStack() as stack:
            replace = replacing(stack)
            replace(FakeTensorMode, dispatch=self._dispatching(), from_tensor=self._converting())
            # The methods that a trace replaces are no code for the compiler.
            for owner, methods in _plain_methods.items():
                own = {name: m for name, m in methods.items() if getattr(owner, name) is not m}
                replace(owner, **own)
            replace(
                FakeTensor,
                __new__=staticmethod(self._making()),
                device=property(self._device),
                is_cuda=property(lambda tensor: self._device(tensor).type == "cuda"),
                is_cpu=property(lambda tensor: self._device(tensor).type == "cpu"),
            )
            yield

    def _device(self, tensor: Any) -> Any:
        if self._depth or hasattr(tensor.fake_mode, REAL_DEVICES):
            return _plain_device(tensor)
        return CPU if place_of(tensor) == ON_HOST else GPU

    def _dispatching(self) -> Callable[..., Any]:
        def dispatch(
            mode: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if hasattr(mode, REAL_DEVICES):
                return _plain_dispatch(mode, func, types, args, kwargs)
            place = None if self._depth else _place_of_result(args, kwargs)
            if func is _MOVE:
                place = ON_GPU if torch.device(args[1]).type == "cuda" else ON_HOST
                args = (args[0], CPU, *args[2:])
            if isinstance(kwargs.get("device"), torch.device) and kwargs["device"].type == "cuda":
                kwargs = {**kwargs, "device": CPU}
            self._depth += 1
            try:
                out = _plain_dispatch(mode, func, types, args, kwargs)
            finally:
                self._depth -= 1
            if place is not None:
                for tensor in tensors_in(out):
                    if isinstance(tensor, FakeTensor):
                        put(tensor, place)
            return out

        return dispatch

    def _making(self) -> Callable[..., Any]:
        def new(cls: Any, mode: Any, elements: Any, device: Any, *args: Any, **options: Any) -> Any:
            if hasattr(mode, REAL_DEVICES) or self._depth:
                return _plain_new(cls, mode, elements, device, *args, **options)
            # Python code copies a tensor, and gives it the device that it sees.
            tensor = _plain_new(cls, mode, elements, CPU, *args, **options)
            put(tensor, ON_GPU if torch.device(device).type == "cuda" else ON_HOST)
            return tensor

        return new

    def _converting(self) -> Callable[..., Any]:
        def from_tensor(mode: Any, tensor: Any, **options: Any) -> Any:
            if hasattr(mode, REAL_DEVICES):
                return _plain_from_tensor(mode, tensor, **options)
            self._depth += 1
            try:
                fake = _plain_from_tensor(mode, tensor, **options)
            finally:
                self._depth -= 1
            if isinstance(fake, FakeTensor):
                put(fake, place_of(tensor))
            return fake

        return from_tensor


def share_memory(elements: Any, value: Any) -> None:
    """Let a tensor have the memory of another one, whose views are then views of it. Passes that
    renew the values of views would otherwise renew all that follows."""
    storage, offset = value.untyped_storage(), value.storage_offset()
    if value._has_symbolic_sizes_strides or type(storage.nbytes()) is not int:
        return
    needed = elements.untyped_storage().nbytes() + offset * elements.element_size()
    if storage.nbytes() >= needed:  # what is gathered from shards may have none yet
        elements.set_(storage, offset, elements.shape, elements.stride())


_in_backend = False
"""Whether the compiler works on a graph, and not on the user's code."""


@contextmanager
def in_backend() -> Iterator[None]:
    """Run the block as work on a graph. C++ code makes tensors there, on the CPU that it sees."""
    global _in_backend
    before, _in_backend = _in_backend, True
    try:
        yield
    finally:
        _in_backend = before


def _place_of_result(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    device = kwargs.get("device")
    if isinstance(device, torch.device) and device.type == "cuda":
        return ON_GPU
    places = {
        place_of(tensor)
        for tensor in (*tensors_in(args), *tensors_in(tuple(kwargs.values())))
        if isinstance(tensor, FakeTensor)
    }
    if not places:
        return ON_HOST if is_made_by_python(kwargs) and not _in_backend else None
    return ON_HOST if places == {ON_HOST} else ON_GPU
