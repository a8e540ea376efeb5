"""The values of tensors on the host, which are computed and drawn while tracing.

A training script reads its host tensors: random offsets into the data, the order of a sampler, the
sizes of crops, the lengths of sequences. So a tensor that the user's code makes on the host is a
plain tensor with values, and ops on such tensors run for real. Two kinds have no values: tensors
that came from the GPU, and those that are too large to be worth the time, such as weights. They
are fake tensors, and so are results that are made from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch

from wavecast.frameworks.pytorch.capture.values.places import (
    CPU,
    ON_HOST,
    on_gpu,
    on_host,
    put,
    tensors_in,
)

LARGEST_CONSTANT = 1 << 16
"""GPU tensors of up to this many whole numbers keep values that are known. Masks stay exact."""

LARGEST_REAL_CONSTANT = 1 << 10
"""The same for real numbers."""

_LARGEST_DRAWN = 1 << 22
"""Random real numbers beyond this many are not drawn: they are weights or inputs."""
_LARGEST_FILLED = 1 << 24
"""The same for real numbers that need not be drawn, such as zeros."""
_LARGEST_WHOLE = 1 << 26
"""The same for whole numbers and truth values, which are indices and masks."""
_LARGEST_READ = 1 << 26
"""An op that reads more elements than this is not computed."""
_LARGEST_FACTOR = 1 << 21
"""The same for matmuls and decompositions, which take longer than reading."""

_UNKNOWN = "_wavecast_unknown"
"""The attribute of a storage that an op with unknown values wrote to."""

_aten = torch.ops.aten
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_KERNEL_KEYS = (
    "CPU",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
    "CompositeImplicitAutograd",
)
_UNSET = {_aten.empty.memory_format, _aten.empty_strided.default}
# Ops that read only the elements that they return.
_SELECTING = ("aten::index.", "aten::index_select", "aten::gather", "aten::embedding", "aten::take")
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "mv", "dot", "addmv")
_ZERO_DECIDES = ("bitwise_and", "logical_and", "__and__", "__iand__", "mul")
_ONE_DECIDES = ("bitwise_or", "logical_or", "__or__", "__ior__")
# Ops whose results are cheap, and of which torch can make no fake ones.
_WITHOUT_FAKE_FORM = {
    getattr(_aten, name)
    for name in ("from_file", *(f"{n}_window" for n in ("hann", "hamming", "bartlett", "blackman")))
}
_RESETTING = {_aten.zero_.default, _aten.fill_.Scalar, _aten.fill_.Tensor, _aten.copy_.default}


def known_values(tensor: Any) -> Any:
    """A plain tensor with the values of this one. None if they are unknown."""
    real = tensor
    if isinstance(tensor, FakeTensor):
        real = tensor.constant
    elif type(tensor) not in _PLAIN_TYPES or tensor.layout is not torch.strided:
        return None
    if real is None or real.device.type != "cpu":
        return None
    return None if getattr(real.untyped_storage(), _UNKNOWN, False) else real


def is_made_by_python(kwargs: dict[str, Any]) -> bool:
    """Whether Python code calls an op that makes a tensor from nothing.

    Only Python's bindings say whether the memory is pinned. C++ code, which makes tensors in the
    course of another op, leaves it out.
    """
    return "pin_memory" in kwargs


class HostValues:
    """Runs ops on the host for real, where values are known or can be drawn."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode

    def run(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Any]
    ) -> Any:
        """The result of an op on the host. NotImplemented if its values cannot be known."""
        if not _has_cpu_kernel(func) or any(
            isinstance(value, torch.UntypedStorage) and value.device.type == "meta"
            for value in args  # a storage without memory
        ):
            return NotImplemented
        if not tensors:
            return self._make(func, args, kwargs)
        if func in _RESETTING:
            _remember(args)
        values = {id(tensor): known_values(tensor) for tensor in tensors}
        if any(real is None for real in values.values()) or not _is_affordable(func, tensors):
            return NotImplemented

        def plain(value: Any) -> Any:
            return _mapped(value, lambda tensor: values[id(tensor)])

        with no_dispatch():
            out = func(*plain(args), **{name: plain(value) for name, value in kwargs.items()})
        # An op that writes to an argument returns it, and that argument may be fake.
        given = {id(values[id(tensor)]): tensor for tensor in tensors}
        is_of_cpp = not any(on_host(tensor) for tensor in tensors)

        def result(real: Any) -> Any:
            if id(real) in given:
                return given[id(real)]
            return self.fake(real, keep=True) if is_of_cpp else real

        return _mapped(out, result)

    def _make(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an op that makes a tensor from nothing."""
        by_python = is_made_by_python(kwargs)
        if by_python and func.overloadpacket in _WITHOUT_FAKE_FORM:
            with no_dispatch():
                return func(*args, **kwargs)
        fake = func(*args, **kwargs)
        if not isinstance(fake, FakeTensor) or fake.numel() > _largest(func, fake.dtype, by_python):
            return NotImplemented
        unset = func in _UNSET and fake.dtype.is_floating_point
        with no_dispatch():
            real = func(*args, **kwargs)
        # Memory that is not set becomes a weight more often than not, and weights are fake.
        if by_python and not unset:
            return real
        out = self.fake(real, keep=True)
        if by_python:
            put(out, ON_HOST)
        return out

    def with_values(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of an op, with fake tensors that keep their values for the plain ones."""

        def with_value(tensor: Any) -> Any:
            if isinstance(tensor, FakeTensor) or not 0 < tensor.numel() <= LARGEST_CONSTANT:
                return tensor
            real = known_values(tensor)
            return tensor if real is None else self.fake(real, keep=True)

        return tuple(_mapped(value, with_value) for value in args)

    def fake(self, real: Any, keep: bool) -> Any:
        """A fake tensor for a plain one. With `keep` it keeps the values."""
        converter = self._mode.fake_tensor_converter
        if keep:
            return converter.from_real_tensor(self._mode, real, make_constant=True)
        if not real.requires_grad:
            with no_dispatch():
                # A new object: the converter returns the same fake tensor for the same plain one.
                real = real.detach()
        return converter.from_real_tensor(self._mode, real)

    def fill(self, tensor: Any, number: int) -> None:
        """Let a fake tensor have known values: this number everywhere."""
        with no_dispatch():
            tensor.constant = torch.full(tensor.shape, number, dtype=tensor.dtype, device=CPU)
        self._mode.fake_tensor_converter.add_constant_storage_mapping(tensor)


def decided(func: Any, args: tuple[Any, ...]) -> int | None:
    """The number that a result is filled with, where one argument alone decides the result.

    False and anything is False, True or anything is True, 0 times anything is 0. So a loop that
    ends at an unknown token or at a largest length ends at that length. None if the result also
    depends on values that are not known.
    """
    number, operands = _deciding(func.overloadpacket), args[:2]
    if number is None or not all(isinstance(tensor, torch.Tensor) for tensor in operands):
        return None
    if any(
        tensor.dtype.is_floating_point or (number and tensor.dtype is not torch.bool)
        for tensor in operands
    ):
        return None
    values = [real for real in map(known_values, operands) if real is not None]
    with no_dispatch():
        return number if any(bool((real == number).all()) for real in values) else None


@cache
def _deciding(packet: Any) -> int | None:
    """The number that decides the result of an op on two tensors; None if none does."""
    namespace, _, name = packet._qualified_op_name.partition("::")
    name = name if name.endswith("__") else name.removesuffix("_")
    if namespace != "aten" or name not in (*_ZERO_DECIDES, *_ONE_DECIDES):
        return None
    return int(name in _ONE_DECIDES)


def forget_written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Remember that the values of the host tensors that an op writes to are unknown from now on."""
    for tensor in written(func, args, kwargs):
        real = None if on_gpu(tensor) else known_values(tensor)
        if real is not None:
            setattr(real.untyped_storage(), _UNKNOWN, True)


def _remember(args: tuple[Any, ...]) -> None:
    """Note that a tensor has known values again, because an op sets all of them."""
    target, *sources = args
    real = target.constant if isinstance(target, FakeTensor) else target
    if real is None or real.device.type != "cpu" or real.layout is not torch.strided:
        return
    storage = real.untyped_storage()
    if (
        getattr(storage, _UNKNOWN, False)
        and storage.nbytes() == real.numel() * real.element_size()
        and all(known_values(source) is not None for source in tensors_in(sources))
    ):
        setattr(storage, _UNKNOWN, False)


def written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[Any]:
    """The tensors that an op writes to."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        yield from tensors_in(value)


@cache
def only_writes(func: Any) -> bool:
    """Whether an op on lists of tensors changes them in place and returns nothing.

    Optimizers pass all parameters at once, and torch's fake versions would check each of them.
    """
    name = func._schema.name
    return name.startswith(("aten::_foreach_", "aten::_fused_")) and not func._schema.returns


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(_mapped(item, change) for item in value)
    return value


@cache
def _has_cpu_kernel(func: Any) -> bool:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(has_kernel(func.name(), key) for key in _KERNEL_KEYS)


@cache
def _largest(func: Any, dtype: Any, by_python: bool) -> int:
    """The largest result that is made for real by an op without tensors."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return _LARGEST_WHOLE if by_python else _LARGEST_DRAWN
    if func in _UNSET or not by_python:
        return LARGEST_CONSTANT
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    return _LARGEST_DRAWN if is_random else _LARGEST_FILLED


def _is_affordable(func: Any, tensors: list[Any]) -> bool:
    """Whether an op on tensors with values is cheap enough to be computed."""
    name = func.name()
    if func.is_view or name.startswith(_SELECTING):
        return True
    is_product = func.overloadpacket.__name__ in _PRODUCTS or "linalg" in name
    largest = _LARGEST_FACTOR if is_product else _LARGEST_READ
    return bool(sum(tensor.numel() for tensor in tensors) <= largest)
