"""Fake tensors that say they are on a GPU.

Every tensor of a traced step is a `FakeTensor` on the CPU: torch's CPU build can run autograd
on nothing else. Which of them the user put on the GPU is a mark on the tensor, set by the
dispatch mode `Placement`; the methods that tell or change a tensor's place (`device`,
`is_cuda`, `to`, `cuda`, `cpu`, ...) are replaced on the FakeTensor class while tracing, so that
all Python code, the user's and torch's own, sees `cuda:0`. C++ code sees the CPU.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from wavecast.frameworks.pytorch.answers import Answers
from wavecast.frameworks.pytorch.memo import Entry, Memo
from wavecast.frameworks.pytorch.recorder import Recorder, is_composite

GPU = torch.device("cuda", 0)
_CPU = torch.device("cpu")
_MARK = "_wavecast_on_gpu"
_FROM_SCALAR = "_wavecast_from_scalar"
"""C++ turned a number into a tensor: a 0-dimensional one, but on the device of the others."""

LARGEST_CONSTANT = 4096
"""Tensors up to this size keep values that are known, so that lengths and masks are exact."""
_prim_device = torch.ops.prim.device.default
_aten = torch.ops.aten

# Ops that may mix tensors of host and GPU: the host's ones are not on the GPU by mistake.
_MIXES = {
    _aten.copy_.default,
    _aten._to_copy.default,
    _aten.index.Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
    _aten._foreach_copy_.default,
    _aten._pack_padded_sequence.default,
    _aten._ctc_loss.Tensor,
    _aten._ctc_loss_backward.Tensor,
}


def _overloads(names: str) -> set[Any]:
    packets = [getattr(_aten, name) for name in names.split()]
    return {getattr(packet, overload) for packet in packets for overload in packet.overloads()}


# Ops whose values are known from their arguments alone.
_CONSTANTS = _overloads("ones zeros full arange")

# Ops that change the shape of their argument, or whose results carry values.
_NEVER_REPEATED = _CONSTANTS | _overloads(
    "scalar_tensor squeeze_ unsqueeze_ t_ transpose_ resize_ set_ as_strided_"
)


def on_gpu(tensor: Any) -> bool:
    """Whether the user put this tensor on the GPU."""
    return getattr(tensor, _MARK, False)


def put_on_gpu(tensor: Any) -> None:
    """Mark a tensor as the GPU's."""
    setattr(tensor, _MARK, True)


class Placement(TorchDispatchMode):
    """Runs ops on fake tensors, marks what they make on the GPU, and has them written down."""

    def __init__(self, answers: Answers, recorder: Recorder) -> None:
        super().__init__()
        self.answers = answers
        self.recorder = recorder
        self.moving = False
        """Set while Python code, not C++, moves a tensor."""
        self._memo = Memo(_MARK)
        self._promotions = 0
        self._depth = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here, and the wrapper that guards against it costs as much as an op.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the op on fake CPU tensors and mark what it makes."""
        if func is _prim_device:
            return _CPU
        kwargs = kwargs or {}
        if is_composite(func):
            # Inference mode hands composite ops to the mode; autograd would have split them.
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        key = self._memo.key((func, self.moving), args, kwargs)
        entry = self._memo.get(key) if key is not None else None
        if entry is not None:
            out = self._memo.make(entry, args, kwargs)
        else:
            out, entry = self._run_and_learn(key, func, args, kwargs)
        op = self.recorder.write_down(func, args, kwargs, out, entry.op if entry else None)
        if entry is not None:
            entry.op = op
        return out

    def _run_and_learn(
        self, key: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Entry | None]:
        promoted = self._promotions
        gpu, kwargs = self._placed_on_gpu(func, args, dict(kwargs))
        self._depth += 1
        try:
            out = self._run(func, args, kwargs)
        finally:
            self._depth -= 1
        if gpu:
            for tensor in _tensors(out):
                put_on_gpu(tensor)
        elif func is _aten.scalar_tensor.default:
            setattr(out, _FROM_SCALAR, True)
        repeatable = (
            key is not None
            and promoted == self._promotions
            and func not in _NEVER_REPEATED
            and not self.answers.knows(func)
        )
        return out, self._memo.learn(key, args, kwargs, out, gpu) if repeatable else None

    @property
    def inside(self) -> bool:
        """Whether torch's fake tensor code is at work and must see the CPU."""
        return self._depth > 0

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        answer = self.answers.find(func)
        if answer is not None:
            return answer(*args, **kwargs)
        if func in _CONSTANTS:
            return self._make_constant(func, args, kwargs)
        if _only_writes(func) and not any(_has_values(t) for t in _tensors(args)):
            return None
        try:
            return func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            return self.answers.bound(func, args, kwargs)

    def _make_constant(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A tensor that keeps its values if it is a small one of whole numbers or truths.

        Masks and lengths are made of such, and code branches on them.
        """
        out = func(*args, **kwargs)
        if out.dtype.is_floating_point or not 0 < out.numel() <= LARGEST_CONSTANT:
            return out
        with no_dispatch():
            values = func(*args, **kwargs)
        mode = out.fake_mode
        return mode.fake_tensor_converter.from_real_tensor(mode, values, make_constant=True)

    def _placed_on_gpu(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bool, dict[str, Any]]:
        """Whether the result is the GPU's, and the keywords for fake CPU tensors."""
        device = kwargs.get("device")
        if device is not None:
            if func is _aten._to_copy.default:
                del kwargs["device"]  # "to where it is" would return the tensor itself
            else:
                kwargs["device"] = _CPU
            if torch.device(device).type == "cuda":
                return True, kwargs
            if func is _aten._to_copy.default and self.moving:
                return False, kwargs
            # Else it is C++ that says "on the device of that tensor", meaning the GPU's if so.
        tensors = [*_tensors(args), *_tensors(tuple(kwargs.values()))]
        if func in _MIXES:
            # The first tensor is where the result goes.
            return bool(tensors) and on_gpu(tensors[0]), kwargs
        if not any(on_gpu(t) for t in tensors):
            # Autograd fills in missing gradients "on the device of the output".
            return not tensors and torch._C._current_autograd_node() is not None, kwargs
        for tensor in tensors:
            if not on_gpu(tensor) and (tensor.dim() or hasattr(tensor, _FROM_SCALAR)):
                put_on_gpu(tensor)
                self.recorder.promote(tensor)
                self._promotions += 1
        return True, kwargs


@cache
def _only_writes(func: Any) -> bool:
    """Whether an op on lists of tensors changes them in place and returns nothing.

    Optimizers hand over all parameters at once; torch's fake versions look at each in turn.
    """
    name = func._schema.name
    return name.startswith(("aten::_foreach_", "aten::_fused_")) and not func._schema.returns


def _has_values(tensor: Any) -> bool:
    return getattr(tensor, "constant", None) is not None


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
    setattr(tensor, _MARK, on_gpu(changed))


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
            tensor, _CPU, None, False, False, memory_format
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


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
