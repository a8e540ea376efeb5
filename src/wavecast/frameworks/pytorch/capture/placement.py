"""Which fake tensors are on the GPU, and the dispatch mode that runs and records their ops.

Every tensor of a traced step is a `FakeTensor` on the CPU, because torch's CPU build can run
autograd on nothing else. Tensors that the user put on the GPU carry a mark. The dispatch mode
`Placement` sets it, and the methods in `tensor_methods` show it to Python code.
"""

from __future__ import annotations

from collections.abc import Iterator
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

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture.assumptions import Assumptions
from wavecast.frameworks.pytorch.capture.result_cache import Entry, ResultCache
from wavecast.frameworks.pytorch.recorder import OpRecorder
from wavecast.frameworks.pytorch.signature import is_composite
from wavecast.frameworks.pytorch.user_lines import user_line

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")
_MARK = "_wavecast_on_gpu"
_FROM_SCALAR = "_wavecast_from_scalar"
"""The mark of a tensor that C++ code made from a number. It has no dimensions, but is on the
device of the op's other tensors."""

LARGEST_CONSTANT = 1 << 16
"""Tensors of up to this many elements keep values that are known, so that masks are exact."""
_prim_device = torch.ops.prim.device.default
_aten = torch.ops.aten

# Ops that may mix tensors of host and GPU. For other ops, a host tensor among GPU tensors means
# that it is on the GPU, too.
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

# Ops whose first result is on the GPU and the others on the host.
_REST_ON_HOST = {_aten._pack_padded_sequence.default}


# Ops that refuse tensors of different dtypes on a GPU. Torch's fake versions accept them.
_OF_ONE_DTYPE = {
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten.baddbmm.default,
    _aten.convolution.default,
}


def _overloads(names: str) -> set[Any]:
    packets = [getattr(_aten, name) for name in names.split()]
    return {getattr(packet, overload) for packet in packets for overload in packet.overloads()}


# Ops whose values are known from their arguments alone.
_CONSTANTS = _overloads("ones zeros full arange linspace eye")

# Ops that check whether a condition holds everywhere. It is assumed to hold.
_CHECKS = _overloads("all _is_all_true")

# Ops that change the shape of their argument, or whose results carry values.
_NEVER_REPEATED = (
    _CONSTANTS
    | _CHECKS
    | _overloads("scalar_tensor squeeze_ unsqueeze_ t_ transpose_ resize_ set_ as_strided_")
)


def on_gpu(tensor: Any) -> bool:
    """Whether the user put this tensor on the GPU."""
    return getattr(tensor, _MARK, False)


def is_gpu(device: Any) -> bool:
    """Whether a device is the GPU. Any GPU but the first is an error."""
    device = torch.device(device)
    if device.type == "cuda" and device.index:
        raise CaptureError(
            f"a tensor is put on {device} at {user_line()}; only steps that use one GPU can be "
            "traced"
        )
    return bool(device.type == "cuda")


def put_on_gpu(tensor: Any) -> None:
    """Mark a tensor as being on the GPU."""
    setattr(tensor, _MARK, True)


def mark(tensor: Any, is_on_gpu: bool) -> None:
    """Mark a tensor as being on the GPU or on the host."""
    setattr(tensor, _MARK, is_on_gpu)


class Placement(TorchDispatchMode):
    """Runs ops on fake tensors, marks results that are on the GPU, and records the ops."""

    def __init__(self, assumptions: Assumptions, recorder: OpRecorder) -> None:
        super().__init__()
        self.assumptions = assumptions
        self.recorder = recorder
        self.moving = False
        """Whether Python code is moving a tensor right now."""
        self._cache = ResultCache(_MARK)
        self._promotions = 0
        self._depth = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here, and torch's guard against it takes as long as an op.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the op on fake CPU tensors, mark its results, and record it."""
        if func is _prim_device:
            return CPU
        kwargs = kwargs or {}
        if is_composite(func):
            # In inference mode, composite ops arrive here whole; autograd would have split them.
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        key = self._cache.key((func, self.moving), args, kwargs)
        entry = self._cache.get(key) if key is not None else None
        if entry is not None:
            out = self._cache.make(entry, args, kwargs)
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
        for tensor in tensors_in(out):
            if tensor.layout is not torch.strided:
                raise CaptureError(
                    f"{func} at {user_line()} makes a sparse tensor, which cannot be traced; "
                    "use the dense form (sparse=False)"
                )
        if gpu:
            for tensor in tensors_in(out[0] if func in _REST_ON_HOST else out):
                put_on_gpu(tensor)
                if tensor.dtype.is_floating_point:
                    # Code branches on integers and booleans; weights need no values.
                    tensor.constant = None
        elif func is _aten.scalar_tensor.default:
            setattr(out, _FROM_SCALAR, True)
        if func in _CHECKS:
            self.assumptions.assume_true(out)
        repeatable = (
            key is not None
            and promoted == self._promotions
            and func not in _NEVER_REPEATED
            and not self.assumptions.knows(func)
        )
        return out, self._cache.learn(key, args, kwargs, out, gpu) if repeatable else None

    @property
    def inside(self) -> bool:
        """Whether torch's own fake-tensor code is running, which must see the CPU."""
        return self._depth > 0

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in _OF_ONE_DTYPE:
            _refuse_mixed_dtypes(func, args)
        answer = self.assumptions.find(func)
        if answer is not None:
            return answer(*args, **kwargs)
        if func in _CONSTANTS:
            return self._make_constant(func, args, kwargs)
        if _only_writes(func) and not any(_has_values(t) for t in tensors_in(args)):
            return None
        try:
            return func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            return self.assumptions.bound(func, args, kwargs)

    def _make_constant(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A tensor that keeps its values if it is small.

        Code branches on lengths, masks and layer widths, which are made from such tensors.
        """
        out = func(*args, **kwargs)
        if not 0 < out.numel() <= LARGEST_CONSTANT:
            return out
        with no_dispatch():
            values = func(*args, **kwargs)
        mode = out.fake_mode
        return mode.fake_tensor_converter.from_real_tensor(mode, values, make_constant=True)

    def _placed_on_gpu(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bool, dict[str, Any]]:
        """Whether the result is on the GPU, and the keyword arguments for fake CPU tensors."""
        device = kwargs.get("device")
        if device is not None:
            if func is _aten._to_copy.default:
                del kwargs["device"]  # with device="cpu", torch would not copy it
            else:
                kwargs["device"] = CPU
            if is_gpu(device):
                return True, kwargs
            if func is _aten._to_copy.default and self.moving:
                return False, kwargs
            # Otherwise C++ code asked for the device of some tensor. It saw the CPU, but means the
            # GPU if that tensor is there.
        tensors = [*tensors_in(args), *tensors_in(tuple(kwargs.values()))]
        if func in _MIXES:
            # The result is where the first tensor is.
            return bool(tensors) and on_gpu(tensors[0]), kwargs
        if not any(on_gpu(t) for t in tensors):
            # Without any tensors, it may be autograd that makes a missing gradient on the GPU.
            return not tensors and torch._C._current_autograd_node() is not None, kwargs
        for tensor in tensors:
            if not on_gpu(tensor) and (tensor.dim() or hasattr(tensor, _FROM_SCALAR)):
                if isinstance(tensor, torch.nn.Parameter) or not isinstance(tensor, FakeTensor):
                    raise CaptureError(
                        f"{func} at {user_line()} runs on the GPU, but one of its inputs, of "
                        f"shape {tuple(tensor.shape)}, is not on the GPU; move it there, as "
                        "with model.cuda(), or build it inside make_step"
                    )
                put_on_gpu(tensor)
                self.recorder.promote(tensor)
                self._promotions += 1
        return True, kwargs


@cache
def _only_writes(func: Any) -> bool:
    """Whether an op on lists of tensors changes them in place and returns nothing.

    Optimizers pass all parameters at once, and torch's fake versions would check each of them.
    """
    name = func._schema.name
    return name.startswith(("aten::_foreach_", "aten::_fused_")) and not func._schema.returns


def _refuse_mixed_dtypes(func: Any, args: tuple[Any, ...]) -> None:
    dtypes = sorted({str(tensor.dtype) for tensor in tensors_in(args)})
    if len(dtypes) > 1:
        raise CaptureError(
            f"{func} at {user_line()} gets tensors of {' and '.join(dtypes)}, which a GPU refuses; "
            "cast them to one type, or run the step under autocast"
        )


def _has_values(tensor: Any) -> bool:
    return getattr(tensor, "constant", None) is not None


def tensors_in(value: Any) -> Iterator[Any]:
    """The tensors in an argument, also those in lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
