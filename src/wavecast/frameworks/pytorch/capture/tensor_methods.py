"""The methods of tensors that show or change their device, as on a machine with a GPU.

While tracing, these methods (`device`, `is_cuda`, `to`, `cuda`, `cpu`, ...) are replaced on the
FakeTensor class, so that all Python code, the user's and torch's, sees `cuda:0`. C++ code sees the
CPU.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._device import _device_constructors
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture.placement import Placement
from wavecast.frameworks.pytorch.capture.pretended.threads import in_traced_thread
from wavecast.frameworks.pytorch.capture.values.assumptions import Assumptions
from wavecast.frameworks.pytorch.capture.values.host_values import (
    LARGEST_CONSTANT,
    HostValues,
    known_values,
)
from wavecast.frameworks.pytorch.capture.values.places import (
    CPU,
    GPU,
    META,
    ON_HOST,
    is_gpu,
    is_meta,
    is_pinned,
    on_gpu,
    on_meta,
    pin,
    place_of,
    put,
    suggested,
)
from wavecast.frameworks.pytorch.capture.values.sparse_tensors import SparseMatrix
from wavecast.frameworks.pytorch.recording.structure import local_part
from wavecast.frameworks.pytorch.recording.user_lines import user_line
from wavecast.frameworks.replacements import replacing

_aten = torch.ops.aten
_NOT_AN_ADDRESS = 1 << 62


@contextmanager
def gpu_tensors(placement: Placement, outside: OutsideTensors) -> Iterator[None]:
    """Make tensors show and change their device as on a CUDA machine."""
    mover = _Mover(placement)
    with ExitStack() as stack:
        stack.callback(outside.undo)
        replace = stack.enter_context(replacing())
        replace(FakeTensor, **_of_fake_tensors(placement, mover, outside))
        replace(torch.Tensor, **_of_real_tensors(placement, mover, outside))
        replace(torch.nn.Module, _apply=_applying(outside))
        replace(torch.nn.Parameter, __new__=staticmethod(_new_parameter(outside)))
        yield


def _of_fake_tensors(
    placement: Placement, mover: _Mover, outside: OutsideTensors
) -> dict[str, Any]:
    fake_device = FakeTensor.device.fget

    def device(self: Any) -> Any:
        if placement.inside:
            return fake_device(self)
        # Torch's property would show a device that another thread's op needs.
        return GPU if on_gpu(self) else META if on_meta(self) else self.fake_device

    return {
        "data": property(torch.Tensor.data.__get__, _setting_data(outside)),
        "device": property(device),
        "is_cuda": property(lambda self: not placement.inside and on_gpu(self)),
        "is_cpu": property(lambda self: placement.inside or not on_gpu(self)),
        "is_meta": property(lambda self: not placement.inside and on_meta(self)),
        "get_device": lambda self: 0 if on_gpu(self) else -1,
        **mover.methods(),
        "pin_memory": pin,
        "is_pinned": is_pinned,
        "record_stream": lambda self, stream: None,
        "share_memory_": lambda self: self,
        "is_shared": lambda self: False,
        "__reduce_ex__": _reduced,
        "data_ptr": _address,
        "__format__": _format,
        "new": _new,
        "new_tensor": _new_tensor,
        **_reading(placement.assumptions),
        "__deepcopy__": _deep_copy,
    }


def _reading(assumptions: Assumptions) -> dict[str, Any]:
    """The methods that give a tensor's values to Python."""
    plain = torch._C.TensorBase

    def numpy(self: Any, *, force: bool = False) -> Any:
        if on_gpu(self) and not force:
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the "
                "tensor to host memory first."
            )
        if known_values(self) is self:
            return plain.numpy(self, force=force)
        return _read_back(self, assumptions, plain.numpy)

    def array(self: Any, dtype: Any = None, copy: bool | None = None) -> Any:
        values = self.numpy()
        return values if dtype is None else values.astype(dtype, copy=False)

    def tolist(self: Any) -> Any:
        if known_values(self) is self:
            return plain.tolist(self)
        return _read_back(self, assumptions, plain.tolist)

    return {"numpy": numpy, "__array__": array, "tolist": tolist}


def _of_real_tensors(
    placement: Placement, mover: _Mover, outside: OutsideTensors
) -> dict[str, Callable[..., Any]]:
    """Methods of plain tensors on the host: moved to the GPU, they become fake ones."""

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if placement.inside or not _names_gpu((*args, *kwargs.values())):
            return torch._C.TensorBase.to(self, *args, **kwargs)
        return mover.to(moved(self), *args, **kwargs)

    def moved(self: Any) -> Any:
        copy = outside.copy_of(self)
        return pin(copy) if is_pinned(self) else copy

    return {
        "to": to,
        "cuda": lambda self, *args, **kwargs: mover.cuda(moved(self), *args, **kwargs),
        "pin_memory": pin,
        "is_pinned": is_pinned,
        **_reading(placement.assumptions),
    }


def _new_parameter(outside: OutsideTensors) -> Callable[..., Any]:
    """`nn.Parameter`, which is fake from the beginning, so that moving a model keeps it."""
    new = torch.nn.Parameter.__new__

    def new_parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if data is None:
            data = torch.empty(0)
        if in_traced_thread() and type(data) in (torch.Tensor, torch.nn.Parameter):
            data = outside.fake_for(data)
        if isinstance(data, FakeTensor):
            data.constant = None  # weights need no values
        return new(cls, data, requires_grad)

    return new_parameter


def _new(tensor: Any, *arguments: Any, device: Any = None) -> Any:
    """`tensor.new()`, the old way to make a tensor of the same type: from sizes, or from data."""
    options = {"dtype": tensor.dtype, "device": tensor.device if device is None else device}
    if not arguments or isinstance(arguments[0], int | torch.Size):
        sizes = arguments[0] if arguments and isinstance(arguments[0], torch.Size) else arguments
        return torch.empty(sizes or (0,), **options)
    return torch.as_tensor(arguments[0], **options)


def _new_tensor(tensor: Any, data: Any, *, dtype: Any = None, device: Any = None, **kw: Any) -> Any:
    """`tensor.new_tensor(data)`, whose C++ code would make it on the host."""
    return torch.tensor(data, dtype=dtype or tensor.dtype, device=device or tensor.device, **kw)


def _names_gpu(arguments: tuple[Any, ...]) -> bool:
    """Whether the arguments of `to` mean the GPU: a name, a number, a device or a GPU tensor."""
    if any(type(a) is int for a in arguments):
        return True
    return any(
        on_gpu(a) if isinstance(a, torch.Tensor) else torch.device(a).type == "cuda"
        for a in arguments
        if isinstance(a, torch.Tensor | torch.device | str)
    )


def _applying(outside: OutsideTensors) -> Callable[..., Any]:
    plain_apply = torch.nn.Module._apply

    def apply(module: Any, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        if not in_traced_thread() and not any(
            isinstance(p, FakeTensor) for p in module.parameters()
        ):
            return plain_apply(module, fn, recurse)
        outside.module(module)
        return _apply_to_tensors(module, fn, recurse)

    return apply


def _apply_to_tensors(module: Any, fn: Callable[[Any], Any], recurse: bool) -> Any:
    """`nn.Module._apply` for fake tensors, with which parameters keep their identity."""
    if recurse:
        for child in module.children():
            child._apply(fn)
    for parameter in module._parameters.values():
        if parameter is None:
            continue
        with torch.no_grad():
            changed = fn(parameter)
            _replace(parameter, changed)
            if parameter.grad is not None:
                _replace(parameter.grad, fn(parameter.grad))
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = fn(buffer)
    return module


def _replace(tensor: Any, changed: Any) -> None:
    if changed is tensor:
        return
    if is_traceable_wrapper_subclass(tensor):  # a DTensor, whose memory is that of its part
        for part in tensor.__tensor_flatten__()[0]:
            _replace(getattr(tensor, part), getattr(changed, part))
    tensor.data = changed


def _setting_data(outside: OutsideTensors) -> Callable[[Any, Any], None]:
    def set_data(tensor: Any, changed: Any) -> None:
        """Set `tensor.data` as torch does, and also its place and its known values."""
        changed = outside.fake_for(changed)
        torch.Tensor.data.__set__(tensor, changed)
        put(tensor, place_of(changed))
        tensor.constant = changed.constant

    return set_data


def _address(tensor: Any) -> int:
    """A number that is equal for tensors that share memory, which is all that code uses it for.

    It is not a valid address, so code that writes there crashes instead of damaging this process's
    memory.
    """
    offset = tensor.storage_offset() * tensor.element_size()
    return int(tensor.untyped_storage()._cdata + offset) | _NOT_AN_ADDRESS


def _format(tensor: Any, specification: str) -> str:
    """A tensor as formatted text. A single number is read, as torch does for plain tensors."""
    if tensor.dim() == 0:
        return format(tensor.item(), specification)
    return object.__format__(tensor, specification)


def _read_back(tensor: Any, assumptions: Assumptions, convert: Callable[[Any], Any]) -> Any:
    """A tensor's values as a Python object: the real ones if known, assumed ones otherwise."""
    is_on_gpu = on_gpu(tensor)
    host = tensor.detach().cpu()
    real = known_values(host)
    if real is None:
        real = known_values(tensor)
    value = assumptions.assume_value(host.dtype) if real is None else None
    with no_dispatch():
        if real is None:
            # A default device of the step is no device of this tensor.
            return convert(torch.full(host.shape, value, dtype=host.dtype, device=CPU))
        # An array shares the memory of a tensor on the host.
        return convert(real.clone() if is_on_gpu else real)


def _reduced(tensor: Any, _protocol: Any) -> Any:
    """How `pickle` makes the tensor again: a new one of its shape, without values."""
    strides, options = tensor.stride(), (tensor.dtype, tensor.device, tensor.requires_grad)
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    return _made_again, (is_parameter, tuple(tensor.shape), strides, *options)


def _made_again(
    is_parameter: bool, shape: Any, strides: Any, dtype: Any, device: Any, grad: bool
) -> Any:
    tensor = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    return torch.nn.Parameter(tensor, grad) if is_parameter else tensor.requires_grad_(grad)


def _deep_copy(tensor: Any, memo: dict[int, Any]) -> Any:
    if id(tensor) in memo:
        return memo[id(tensor)]
    with torch.no_grad():
        copied = tensor.clone()
    if isinstance(tensor, torch.nn.Parameter):
        copied = torch.nn.Parameter(copied, requires_grad=tensor.requires_grad)
    else:
        copied.requires_grad_(tensor.requires_grad)
    for name in tensor.__dict__.keys() - copied.__dict__.keys():
        setattr(copied, name, copy.deepcopy(tensor.__dict__[name], memo))
    memo[id(tensor)] = copied
    return copied


def _gpu(device: Any) -> Any:
    """The device that the argument of `cuda()` means: a number, a device or None."""
    return torch.device("cuda", device) if isinstance(device, int) else device or GPU


class _Mover:
    """The methods that change a tensor's device, in all their forms."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement

    def methods(self) -> dict[str, Callable[..., Any]]:
        """The methods by name, as functions: set on a class, they get the tensor as argument."""
        return {
            "to": lambda tensor, *args, **kwargs: self.to(tensor, *args, **kwargs),
            "cuda": lambda tensor, *args, **kwargs: self.cuda(tensor, *args, **kwargs),
            "cpu": lambda tensor, memory_format=None: self._move(
                tensor, CPU, None, False, False, memory_format
            ),
        }

    def cuda(
        self, tensor: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = None
    ) -> Any:
        """`tensor.cuda()`."""
        return self._move(tensor, _gpu(device), None, non_blocking, False, memory_format)

    def to(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """`tensor.to()`."""
        clone = kwargs.pop("copy", False)
        other = args[0] if args else kwargs.pop("other", None)
        if isinstance(other, torch.Tensor):
            rest = dict(zip(("non_blocking", "copy"), args[1:], strict=False)) | kwargs
            clone = clone or rest.get("copy", False)
            non_blocking, memory_format = rest.get("non_blocking", False), rest.get("memory_format")
            device, dtype = other.device, other.dtype
        else:
            if len(args) > 1 and isinstance(args[-1], bool) and isinstance(args[-2], bool):
                args, clone = args[:-1], args[-1]
            device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        return self._move(tensor, device, dtype, non_blocking, clone, memory_format)

    def _move(
        self,
        tensor: Any,
        device: Any,
        dtype: Any,
        non_blocking: bool,
        clone: bool,
        memory_format: Any,
    ) -> Any:
        keywords: dict[str, Any] = {}
        if device is not None and (is_gpu(device), is_meta(device)) != (
            on_gpu(tensor),
            on_meta(tensor),
        ):
            keywords = {"device": torch.device(device), "non_blocking": non_blocking}
            if is_pinned(tensor):
                keywords["pin_memory"] = True
        if dtype is not None and dtype != tensor.dtype:
            keywords["dtype"] = dtype
        if memory_format is not None and memory_format is not torch.preserve_format:
            if not keywords and not clone and suggested(tensor) == memory_format:
                return tensor
            keywords["memory_format"] = memory_format
        elif not keywords and not clone:
            return tensor
        self._placement.here.moving = True
        try:
            return _aten._to_copy.default(tensor, **keywords)
        finally:
            self._placement.here.moving = False


# GPUs that are named by a number alone: `torch.device(0)`, `model.to(0)`, `device=0`.
#
# Torch asks its accelerator which device a number means, and a build without one raises an error.
# While tracing, the numbers mean CUDA devices.


_REAL = torch.device
_LIKE = (
    *("empty_like", "zeros_like", "ones_like", "full_like"),
    *("rand_like", "randn_like", "randint_like"),
)


@contextmanager
def numbered_devices() -> Iterator[None]:
    """Let numbers mean CUDA devices."""
    constructors = (f.__name__ for f in _device_constructors())
    makers = (*(n for n in constructors if hasattr(torch, n)), *_LIKE)
    with replacing() as replace:
        replace(torch, **{name: _taking_numbers(getattr(torch, name)) for name in makers})
        replace(torch, device=NumberedDevice)
        replace(torch._C._nn, _parse_to=_taking_numbers(torch._C._nn._parse_to, True))
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


def _taking_numbers(
    function: Callable[..., Any], first_is_device: bool = False
) -> Callable[..., Any]:
    """A function with `device` as a number, too; so its first argument, if that is a device."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if first_is_device and args and _is_number(args[0]):
            args = (_numbered(args[0]), *args[1:])
        if _is_number(kwargs.get("device")):
            kwargs["device"] = _numbered(kwargs["device"])
        return function(*args, **kwargs)

    return call


# Subclasses of tensors and parameters, such as bitsandbytes' `Params4bit`, made of fake tensors.
#
# Libraries make them with `torch.Tensor._make_subclass`, which refuses a tensor that is a
# FakeTensor already. While tracing, the result is of a class that is both.


@contextmanager
def fake_subclasses() -> Iterator[None]:
    """Let `torch.Tensor._make_subclass` take fake tensors."""
    make_real = torch.Tensor._make_subclass

    def make_subclass(cls: Any, data: Any, require_grad: bool = False, **options: Any) -> Any:
        if not isinstance(data, FakeTensor) or issubclass(cls, FakeTensor):
            return make_real(cls, data, require_grad, **options)
        tensor = data.detach()
        tensor.__class__ = _fake_class(cls)
        return tensor.requires_grad_(require_grad)

    new = FakeTensor.__new__

    def new_tensor(cls: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
        """A fake tensor; a parameter, for code that copies one by its class and attributes."""
        if not isinstance(first, torch.Tensor):
            return new(cls, first, *args, **kwargs)
        grad = kwargs.get("requires_grad", args[0] if args else True)
        return torch.nn.Parameter(first, grad)

    with replacing() as replace:
        replace(torch.Tensor, _make_subclass=staticmethod(make_subclass))
        replace(FakeTensor, __new__=new_tensor)
        yield


@cache
def _fake_class(cls: Any) -> Any:
    """The class of fake tensors that are instances of `cls`. Libraries check its name, too."""
    return type(cls)(cls.__name__, (cls, FakeTensor), {"__module__": cls.__module__})


# Fake tensors in place of plain ones, when they are moved to the GPU.
#
# A model or an optimizer that was built outside `make_step` holds plain tensors. When it is moved
# to the GPU, they are replaced by fake ones; a tensor used in several places gets the same fake
# everywhere. When tracing ends, the plain ones are put back.


class OutsideTensors:
    """The fake tensors of one trace that replace real ones, and how to put those back."""

    def __init__(self, host: HostValues) -> None:
        self._host = host
        # The real tensor is kept, too, because its id is unique only while it lives.
        self._fakes: dict[int, tuple[Any, Any]] = {}
        self._undo: list[Callable[[], None]] = []

    def tensor(self, real: Any) -> Any:
        """The fake tensor that replaces a plain one. A fake tensor is returned as it is."""
        if isinstance(real, FakeTensor):
            return real
        if id(real) not in self._fakes:
            self._fakes[id(real)] = (real, self.fake_for(real))
        return self._fakes[id(real)][1]

    def copy_of(self, real: Any) -> Any:
        """A fake tensor with the present values of a plain one.

        A tensor with a gradient is replaced, because its gradient must arrive at one object.
        """
        return self.tensor(real) if real.requires_grad else self.fake_for(real)

    def fake_for(self, real: Any) -> Any:
        """A new fake tensor on the host. It keeps whole numbers and truth values, if it is small.

        Parameters and real numbers need no values on the GPU, because code seldom branches on them.
        """
        if isinstance(real, FakeTensor):
            return real
        values = None
        if not isinstance(real, torch.nn.Parameter) and 0 < real.numel() <= LARGEST_CONSTANT:
            values = known_values(real)
        if values is None:
            fake = self._host.fake(real, keep=False)
        else:
            with no_dispatch():
                # A copy, so that the step does not write to the user's tensor.
                values = values.detach().clone()
            fake = self._host.fake(values, keep=True)
        put(fake, ON_HOST)
        return fake

    def module(self, module: Any) -> None:
        """Replace a module's own parameters and buffers."""
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if isinstance(tensor, SparseMatrix):
                    continue  # made of fake tensors when it is moved
                if tensor is not None and not isinstance(local_part(tensor), FakeTensor):
                    self._put(tensors, name, self.tensor(tensor))

    def optimizer(self, optimizer: Any) -> None:
        """Replace the parameters of an optimizer, and move its state to the fake ones."""
        for group in optimizer.param_groups:
            for index, parameter in enumerate(group["params"]):
                if isinstance(local_part(parameter), FakeTensor):
                    continue
                if id(parameter) not in self._fakes:
                    raise CaptureError(
                        f"the optimizer used at {user_line()} holds parameters of a model that was "
                        "never moved to the GPU; build both inside make_step"
                    )
                self._put(group["params"], index, self.tensor(parameter))
                if parameter in optimizer.state:
                    self._move_state(optimizer.state, parameter)

    def undo(self) -> None:
        """Put the real tensors back."""
        while self._undo:
            self._undo.pop()()

    def _put(self, container: Any, key: Any, value: Any) -> None:
        self._undo.append(partial(container.__setitem__, key, container[key]))
        container[key] = value

    def _move_state(self, state: Any, parameter: Any) -> None:
        """Give the fake parameter the optimizer state of the real one. Scalars stay as they are."""
        fake = self.tensor(parameter)
        state[fake] = {
            name: self.tensor(value).cuda()
            if isinstance(value, torch.Tensor) and value.dim()
            else value
            for name, value in state[parameter].items()
        }
        self._undo.append(lambda: state.pop(fake, None))
