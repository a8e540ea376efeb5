"""The dispatch mode that runs all ops of a traced step, and records those of the GPU.

Tensors on the GPU are fake: they have a shape but no memory. Their place (`places`) is set here,
and the methods in `tensor_methods` show it to Python code. Tensors on the host are real where that
is cheap (`host_values`).
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture.pretended.threads import TracedThreads
from wavecast.frameworks.pytorch.capture.values.assumptions import Assumptions, follow
from wavecast.frameworks.pytorch.capture.values.host_values import (
    LARGEST_CONSTANT,
    LARGEST_REAL_CONSTANT,
    HostValues,
    decided,
    forget_written,
    is_made_by_python,
    only_writes,
    written,
)
from wavecast.frameworks.pytorch.capture.values.places import (
    CPU,
    ON_GPU,
    ON_HOST,
    ON_META,
    PLACE,
    is_gpu,
    is_meta,
    on_gpu,
    on_host,
    on_meta,
    pin,
    place_of,
    put,
    put_on_gpu,
    tensors_in,
)
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.signature import is_composite
from wavecast.frameworks.pytorch.recording.user_lines import user_line
from wavecast.traces.step import Op

_FROM_SCALAR = "_wavecast_from_scalar"
"""The mark of a tensor that C++ code made from a number. It has no dimensions, but is on the
device of the op's other tensors."""
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

_FILLED = _overloads("ones zeros full eye")

# Ops that check whether a condition holds everywhere. It is assumed to hold.
_CHECKS = _overloads("all _is_all_true")

# Ops that change the shape of their argument, or whose results carry values.
_NEVER_REPEATED = (
    _CONSTANTS
    | _CHECKS
    | _overloads(
        "scalar_tensor squeeze_ unsqueeze_ t_ transpose_ resize_ resize_as_ set_ as_strided_"
    )
)


class _ThreadActivity(threading.local):
    """What the present thread is doing."""

    moving = False
    """Whether Python code is moving a tensor right now."""
    depth = 0
    """How many calls of torch's own fake-tensor code are running."""


class Placement(TorchDispatchMode):
    """Runs ops, marks the places of their results, and records the ops of the GPU."""

    def __init__(
        self,
        assumptions: Assumptions,
        recorder: OpRecorder,
        mode: FakeTensorMode,
        threads: TracedThreads,
    ) -> None:
        super().__init__()
        self.assumptions = assumptions
        self.recorder = recorder
        self.host = HostValues(mode)
        self.here = _ThreadActivity()
        self._threads = threads
        self._cache = ResultCache()
        self._promotions = 0
        self.collectives: dict[Any, Callable[..., Any]] = {}
        """The functions that answer collectives, if the step runs on one rank of many."""
        self.wrappers: tuple[type, ...] = ()
        """Classes of tensors that run their ops on the tensors inside, as DTensor does."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here, and torch's guard against it takes as long as an op.
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True, so that Dynamo compiles code under this mode, and its guards do not see it."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the op, mark its results, and record it unless it concerns the host only."""
        if func is _prim_device:
            return CPU
        if self.wrappers and any(issubclass(kind, self.wrappers) for kind in types):
            return NotImplemented
        with self._threads.lock:
            if not self._threads.closed:
                self._threads.note_op()
                return self._dispatch(func, args, kwargs or {})
        with self._threads.left():
            return func(*args, **(kwargs or {}))

    def _dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in self.collectives:
            return self.collectives[func](*args, **kwargs)
        if is_composite(func):
            # In inference mode, composite ops arrive here whole; autograd would have split them.
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        key = self._cache.key((func, self.here.moving), args, kwargs)
        entry = self._cache.entries.get(key)
        if entry is not None:
            out, is_recorded = self._cache.make(entry, args, kwargs), entry.is_recorded
        else:
            out, entry, is_recorded = self._run(key, func, args, kwargs)
        if kwargs.get("pin_memory") and func is not _aten._to_copy.default:
            pin(out)
        follow(func, args, out)
        if is_recorded:
            op = self.recorder.write_down(func, args, kwargs, out, entry.op if entry else None)
            if entry is not None:
                entry.op = op
        return out

    def _run(
        self, key: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Entry | None, bool]:
        """The result of an op, how to make it again, and whether the op is to be recorded."""
        promoted = self._promotions
        tensors = [*tensors_in(args), *tensors_in(tuple(kwargs.values()))]
        # Pinning needs a GPU; the result gets a mark (`pin`).
        unpinned = {"pin_memory": False} if is_made_by_python(kwargs) else {}
        place, kwargs = self._placed(func, tensors, kwargs | unpinned)
        is_of_host = place != ON_GPU and not any(on_gpu(tensor) for tensor in tensors)
        # An op of C++ code may later prove to run on the GPU.
        is_recorded = not is_of_host or place is None
        if is_of_host and place != ON_META:
            out = self.host.run(func, args, kwargs, tensors)
            if out is not NotImplemented:
                self._mark_special(func, out)
                return out, None, is_recorded
        with self.torchs_own():
            out = self._run_on_fakes(func, args, kwargs)
        self._mark_places(func, out, place)
        out = _plain_if_written(func, args, kwargs, out)
        is_repeatable = (
            key is not None
            and promoted == self._promotions
            and func not in _NEVER_REPEATED
            and not self.assumptions.knows(func)
        )
        if not is_repeatable:
            return out, None, is_recorded
        entry = self._cache.learn(key, args, kwargs, out, place)
        if entry is not None:
            entry.is_recorded = is_recorded
        return out, entry, is_recorded

    @contextmanager
    def torchs_own(self) -> Iterator[None]:
        """Run the block as torch's own fake-tensor code, which sees the CPU."""
        self.here.depth += 1
        try:
            yield
        finally:
            self.here.depth -= 1

    @property
    def inside(self) -> bool:
        """Whether torch's own fake-tensor code or another trace runs. They must see the CPU."""
        return self.here.depth > 0 or self._threads.is_paused

    def _mark_places(self, func: Any, out: Any, place: str | None) -> None:
        for index, result in enumerate(out if isinstance(out, list | tuple) else (out,)):
            result_place = ON_HOST if index and func in _REST_ON_HOST else place
            for tensor in tensors_in(result):
                if tensor.layout is not torch.strided:
                    raise CaptureError(
                        f"{func} at {user_line()} makes a sparse tensor, which cannot be traced; "
                        "use the dense form (sparse=False)"
                    )
                if result_place is not None and isinstance(tensor, FakeTensor):
                    put(tensor, result_place)
                if result_place == ON_GPU and not _is_read(func, tensor):
                    tensor.constant = None
        self._mark_special(func, out)

    def _mark_special(self, func: Any, out: Any) -> None:
        if not isinstance(out, FakeTensor):
            return
        if func is _aten.scalar_tensor.default and not on_gpu(out):
            setattr(out, _FROM_SCALAR, True)
        if func in _CHECKS:
            self.assumptions.assume_true(out)

    def _run_on_fakes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in _OF_ONE_DTYPE:
            _refuse_mixed_dtypes(func, args)
        if func._schema.is_mutable:
            forget_written(func, args, kwargs)
        answer = self.assumptions.find(func)
        if answer is not None:
            return answer(*args, **kwargs)
        if func in _CONSTANTS:
            return self._make_constant(func, args, kwargs)
        if only_writes(func) and not any(_has_values(t) for t in tensors_in(args)):
            return None
        number = None
        if any(_has_values(tensor) for tensor in tensors_in(args)):
            number = decided(func, args)
            # Torch computes the values of the result, if it finds those of all arguments.
            args = self.host.with_values(args)
        try:
            out = func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            return self.assumptions.bound(func, args, kwargs)
        if number is not None and 0 < out.numel() <= LARGEST_CONSTANT:
            self.host.fill(out, number)
        return out

    def _make_constant(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A tensor that keeps its values if it is small.

        Code branches on lengths, masks and layer widths, which are made from such tensors.
        """
        out = func(*args, **kwargs)
        if not 0 < out.numel() <= LARGEST_CONSTANT:
            return out
        with no_dispatch():
            values = func(*args, **kwargs)
        return self.host.fake(values, keep=True)

    def _placed(
        self, func: Any, tensors: list[Any], kwargs: dict[str, Any]
    ) -> tuple[str | None, dict[str, Any]]:
        """The place of the result, and the keyword arguments for fake CPU tensors.

        The place is None if C++ code makes the result, which may be meant for either place.
        """
        device = kwargs.get("device")
        if device is not None:
            if func is _aten._to_copy.default:
                del kwargs["device"]  # with device="cpu", torch would not copy it
                kwargs.pop("pin_memory", None)  # says that the source is pinned (`_Mover`)
            else:
                kwargs["device"] = CPU
            if is_gpu(device) or is_meta(device):
                return ON_GPU if is_gpu(device) else ON_META, kwargs
            if func is _aten._to_copy.default and self.here.moving:
                return ON_HOST, kwargs
            # Otherwise C++ code asked for the device of some tensor. It saw the CPU, but means the
            # GPU if that tensor is there.
        if not tensors:
            return _place_of_new(func, kwargs), kwargs
        if func in _MIXES:
            return place_of(tensors[0]), kwargs  # the result is where the first tensor is
        if not any(on_gpu(tensor) for tensor in tensors):
            return _place_off_gpu(tensors), kwargs
        for tensor in tensors:
            if not on_gpu(tensor) and (tensor.dim() or hasattr(tensor, _FROM_SCALAR)):
                self._promote(func, tensor)
        return ON_GPU, kwargs

    def _promote(self, func: Any, tensor: Any) -> None:
        """Put a tensor that C++ code made on the GPU. One that the user made is an error."""
        if on_host(tensor):
            raise CaptureError(
                f"{func} at {user_line()} runs on the GPU, but one of its inputs, of shape "
                f"{tuple(tensor.shape)}, is on the host; move it to the GPU, as with x.cuda() or "
                "model.cuda()"
            )
        put_on_gpu(tensor)
        self.recorder.promote(tensor)
        self._promotions += 1


def _is_read(func: Any, tensor: Any) -> bool:
    """Whether code may read the known values of a result on the GPU.

    Code branches on integers and booleans. It reads few real numbers, such as the widths of layers
    or rates of dropout; what is filled with one number is a weight or a buffer.
    """
    if not tensor.dtype.is_floating_point:
        return True
    return tensor.numel() <= LARGEST_REAL_CONSTANT and func not in _FILLED


def _place_off_gpu(tensors: list[Any]) -> str | None:
    """The place of a result that is made from these tensors, none of which is on the GPU."""
    if any(on_meta(tensor) for tensor in tensors):
        return ON_META
    return ON_HOST if any(on_host(tensor) for tensor in tensors) else None


def _place_of_new(func: Any, kwargs: dict[str, Any]) -> str | None:
    """The place of a tensor that an op makes from nothing, if the op does not name the GPU."""
    if is_made_by_python(kwargs):
        return ON_HOST
    # It may be autograd that makes a missing gradient on the GPU. A number is where the tensor is
    # that it is used with, which may be on the host.
    is_gradient = func is not _aten.scalar_tensor.default
    return ON_GPU if is_gradient and torch._C._current_autograd_node() is not None else None


def _plain_if_written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
    """The plain tensor that an op wrote to, if it returns that, instead of torch's fake for it."""
    if not func._schema.is_mutable or not isinstance(out, FakeTensor):
        return out
    target = next(iter(written(func, args, kwargs)), out)
    return out if isinstance(target, FakeTensor) else target


def _refuse_mixed_dtypes(func: Any, args: tuple[Any, ...]) -> None:
    dtypes = sorted({str(tensor.dtype) for tensor in tensors_in(args)})
    if len(dtypes) > 1:
        raise CaptureError(
            f"{func} at {user_line()} gets tensors of {' and '.join(dtypes)}, which a GPU refuses; "
            "cast them to one type, or run the step under autocast"
        )


def _has_values(tensor: Any) -> bool:
    return getattr(tensor, "constant", None) is not None


# A cache of the results of fake ops: a step runs the same few ops again and again.
#
# Torch's own cache of fake results spends most of its time on its keys. Here, torch computes once
# what an op returns for tensors of given shapes, strides and dtypes; later results are made from
# that, which is cheap.


_COMPARABLE = (
    bool,
    int,
    float,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
_BY_SHAPE = ("bitsandbytes",)
"""Libraries whose results depend on shapes alone: nothing computes the values of fake results."""
_NORMS = re.compile(r"batch_norm")
"""Ops of these names depend on shapes alone as well. Their running statistics start as zeros and
ones, whose values are known until something writes them."""
_FRESH, _VIEW, _SAME, _PLAIN = range(4)


@dataclass
class Entry:
    """How to make the result of an op, and the op to record."""

    recipe: Any
    place: str | None
    """The place of the result's tensors."""
    op: Op | None = None
    is_recorded: bool = True


class ResultCache:
    """The results of ops seen before."""

    def __init__(self) -> None:
        self.entries: dict[Any, Entry] = {}
        self._prototype: dict[str, Any] | None = None
        """The attributes that torch gives to a new FakeTensor."""

    def key(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The key of a call: all that its result depends on. None if it may depend on values.

        `func` is the op, and what else the result depends on.
        """
        parts: list[Any] = [func]
        values_matter = not _depends_on_shapes(func[0])
        if not self._describe(args, parts, values_matter):
            return None
        if kwargs:
            parts.append(tuple(kwargs))
            if not self._describe(tuple(kwargs.values()), parts, values_matter):
                return None
        return tuple(parts)

    def learn(self, key: Any, args: Any, kwargs: Any, out: Any, place: str | None) -> Entry | None:
        """Remember how to make a result from its arguments. None if it cannot be made again."""
        inputs = list(tensors_in((args, tuple(kwargs.values()))))
        try:
            entry = Entry(_recipe(out, _Inputs(inputs), set()), place)
        except _UnrepeatableError:
            return None
        self.entries[key] = entry
        for fake in tensors_in((out,)):
            if self._prototype is None and not any(fake is tensor for tensor in inputs):
                self._prototype = {k: v for k, v in fake.__dict__.items() if k != PLACE}
        return entry

    def make(self, entry: Entry, args: Any, kwargs: Any) -> Any:
        """The result of an op seen before, for new arguments."""
        inputs = None
        if not isinstance(entry.recipe, tuple) or entry.recipe[0] != _FRESH:
            inputs = list(tensors_in((args, tuple(kwargs.values()))))
        with no_dispatch():
            return self._build(entry.recipe, inputs, entry.place)

    def _build(self, recipe: Any, inputs: Any, place: str | None) -> Any:
        if isinstance(recipe, list):
            return [self._build(r, inputs, place) for r in recipe]
        kind = recipe[0]
        if kind == _PLAIN:
            return recipe[1]
        if kind == _SAME:
            return inputs[recipe[1]]
        if kind == _FRESH:
            _, shape, stride, dtype = recipe
            elem = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        else:
            _, index, shape, stride, offset, dtype = recipe
            base = inputs[index]
            # A view is an inference tensor only if the tensor that it shows is one.
            is_plain = torch.is_inference_mode_enabled() and not base.is_inference()
            with torch.inference_mode(False) if is_plain else nullcontext():
                elem = torch.empty(0, dtype=dtype, device="meta")
                elem.set_(base.untyped_storage(), base.storage_offset() + offset, shape, stride)
                return self._fake(elem, place)
        return self._fake(elem, place)

    def _fake(self, elem: Any, place: str | None) -> Any:
        fake = torch.Tensor._make_subclass(
            FakeTensor, elem, False, dispatch_device=True, device_for_backend_keys=CPU
        )
        torch._C._set_throw_on_mutable_data_ptr(fake)
        fake.__dict__.update(self._prototype)
        if place is not None:
            fake.__dict__[PLACE] = place
        return fake

    def _describe(self, value: Any, parts: list[Any], values_matter: bool) -> bool:
        for item in value:
            if isinstance(item, FakeTensor):
                attributes = item.__dict__
                if values_matter and attributes.get("constant") is not None:
                    return False
                if item.dtype.is_complex:
                    return False
                layout = item.shape, item.stride(), item.dtype, item.storage_offset()
                parts.append((*layout, attributes.get(PLACE)))
            elif isinstance(item, torch.Tensor):
                return False
            elif isinstance(item, list | tuple):
                parts.append(len(item))
                if not self._describe(item, parts, values_matter):
                    return False
            elif isinstance(item, _COMPARABLE):
                # 1, 1.0 and True are equal keys but not equal arguments
                parts.append((type(item), item))
            else:
                return False
        return True


@functools.cache
def _depends_on_shapes(func: Any) -> bool:
    return func.namespace in _BY_SHAPE or _NORMS.search(str(func)) is not None


class _UnrepeatableError(Exception):
    """A result that cannot be made again from shapes, strides and dtypes."""


class _Inputs:
    """The tensors that an op was given, and their positions by identity and by storage."""

    def __init__(self, tensors: list[Any]) -> None:
        self.tensors = tensors
        self.by_id: dict[int, int] = {}
        self.by_storage: dict[int, int] = {}
        for index, tensor in enumerate(tensors):
            self.by_id.setdefault(id(tensor), index)
            self.by_storage.setdefault(tensor.untyped_storage()._cdata, index)


def _recipe(out: Any, inputs: _Inputs, fresh: set[int]) -> Any:
    if isinstance(out, list | tuple):
        return [_recipe(item, inputs, fresh) for item in out]
    if not isinstance(out, torch.Tensor):
        return (_PLAIN, out)
    if not isinstance(out, FakeTensor) or out.__dict__.get("constant") is not None:
        raise _UnrepeatableError
    if id(out) in inputs.by_id:
        return (_SAME, inputs.by_id[id(out)])
    storage = out.untyped_storage()._cdata
    shape, stride = tuple(out.shape), out.stride()
    if storage in inputs.by_storage:
        index = inputs.by_storage[storage]
        offset = out.storage_offset() - inputs.tensors[index].storage_offset()
        return (_VIEW, index, shape, stride, offset, out.dtype)
    if storage in fresh:
        raise _UnrepeatableError
    fresh.add(storage)
    return (_FRESH, shape, stride, out.dtype)
