"""How a tensor tells and changes its place, on a machine that has a GPU.

While tracing, the methods that do so (`device`, `is_cuda`, `to`, `cuda`, `cpu`, ...) are
replaced on the FakeTensor class, so that all Python code, the user's and torch's own, sees
`cuda:0`. C++ code sees the CPU.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from wavecast.frameworks.pytorch.placement import CPU, GPU, Placement, mark, on_gpu

_aten = torch.ops.aten


@contextmanager
def gpu_tensors(placement: Placement) -> Iterator[None]:
    """Make FakeTensors tell and change their place as tensors on a CUDA machine do."""
    fake_device = FakeTensor.device.fget
    mover = _Mover(placement)

    def device(self: Any) -> Any:
        if placement.inside or not on_gpu(self):
            return fake_device(self)
        return GPU

    replacements = {
        "device": property(device),
        "is_cuda": property(lambda self: not placement.inside and on_gpu(self)),
        "is_cpu": property(lambda self: placement.inside or not on_gpu(self)),
        "get_device": lambda self: 0 if on_gpu(self) else -1,
        "to": mover.to,
        "cuda": mover.cuda,
        "cpu": mover.cpu,
        "pin_memory": lambda self, device=None: self,
        "is_pinned": lambda self, device=None: False,
        "record_stream": lambda self, stream: None,
        "data_ptr": _address,
        "__deepcopy__": _deep_copy,
    }
    with ExitStack() as stack:
        for name, value in replacements.items():
            if name in FakeTensor.__dict__:
                stack.callback(setattr, FakeTensor, name, FakeTensor.__dict__[name])
            else:
                stack.callback(delattr, FakeTensor, name)
            setattr(FakeTensor, name, value)
        yield


def apply_to_parameters(module: Any, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
    """What `nn.Module._apply` does, for fake tensors: parameters keep their identity."""
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
    tensor.data = changed
    mark(tensor, on_gpu(changed))


def _address(tensor: Any) -> int:
    """A number that is equal for tensors that share memory: code asks for nothing else of it."""
    return int(tensor.untyped_storage()._cdata + tensor.storage_offset() * tensor.element_size())


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


class _Mover:
    """The methods of a tensor that change its place, in all their spellings."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        # Functions, not bound methods: on a class they become methods of the tensor.
        self.to = lambda tensor, *args, **kwargs: self._to(tensor, *args, **kwargs)
        self.cuda = lambda tensor, device=None, non_blocking=False, memory_format=None: self._move(
            tensor, GPU, None, non_blocking, False, memory_format
        )
        self.cpu = lambda tensor, memory_format=None: self._move(
            tensor, CPU, None, False, False, memory_format
        )

    def _to(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
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
        if device is not None and torch.device(device).type != tensor.device.type:
            keywords = {"device": torch.device(device), "non_blocking": non_blocking}
        if dtype is not None and dtype != tensor.dtype:
            keywords["dtype"] = dtype
        if memory_format is not None and memory_format is not torch.preserve_format:
            if not keywords and not clone and tensor.is_contiguous(memory_format=memory_format):
                return tensor
            keywords["memory_format"] = memory_format
        elif not keywords and not clone:
            return tensor
        self._placement.moving = True
        try:
            return _aten._to_copy.default(tensor, **keywords)
        finally:
            self._placement.moving = False
