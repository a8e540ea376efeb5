"""A cache of the results of fake ops: a step runs the same few ops again and again.

Torch's own cache of fake results spends most of its time on its keys. Here, torch computes once
what an op returns for tensors of given shapes, strides and dtypes; later results are made from
that, which is cheap.
"""

from __future__ import annotations

import functools
import re
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from wavecast.traces.step import Op

_CPU = torch.device("cpu")
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
    """The results of ops seen before.

    Args:
        place: the name of the attribute that has the place of a tensor.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._entries: dict[Any, Entry] = {}
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

    def get(self, key: Any) -> Entry | None:
        """The entry for a key. None if there is none yet."""
        return self._entries.get(key)

    def learn(self, key: Any, args: Any, kwargs: Any, out: Any, place: str | None) -> Entry | None:
        """Remember how to make a result from its arguments. None if it cannot be made again."""
        inputs = list(_flatten((args, tuple(kwargs.values()))))
        try:
            entry = Entry(_recipe(out, _Inputs(inputs), set()), place)
        except _UnrepeatableError:
            return None
        self._entries[key] = entry
        for fake in _flatten((out,)):
            if self._prototype is None and not any(fake is tensor for tensor in inputs):
                self._prototype = {k: v for k, v in fake.__dict__.items() if k != self._place}
        return entry

    def make(self, entry: Entry, args: Any, kwargs: Any) -> Any:
        """The result of an op seen before, for new arguments."""
        inputs = None
        if not isinstance(entry.recipe, tuple) or entry.recipe[0] != _FRESH:
            inputs = list(_flatten((args, tuple(kwargs.values()))))
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
            with nullcontext() if _may_view(base) else torch.inference_mode(False):
                elem = torch.empty(0, dtype=dtype, device="meta")
                elem.set_(base.untyped_storage(), base.storage_offset() + offset, shape, stride)
                return self._fake(elem, place)
        return self._fake(elem, place)

    def _fake(self, elem: Any, place: str | None) -> Any:
        fake = torch.Tensor._make_subclass(
            FakeTensor, elem, False, dispatch_device=True, device_for_backend_keys=_CPU
        )
        torch._C._set_throw_on_mutable_data_ptr(fake)
        fake.__dict__.update(self._prototype)
        if place is not None:
            fake.__dict__[self._place] = place
        return fake

    def _describe(self, value: Any, parts: list[Any], values_matter: bool) -> bool:
        for item in value:
            if isinstance(item, FakeTensor):
                attributes = item.__dict__
                if values_matter and attributes.get("constant") is not None:
                    return False
                if item.dtype.is_complex:
                    return False
                parts.append(
                    (
                        item.shape,
                        item.stride(),
                        item.dtype,
                        item.storage_offset(),
                        attributes.get(self._place),
                    )
                )
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


def _may_view(base: Any) -> bool:
    """Whether a view made now is of the right kind: in inference mode, of an inference tensor."""
    return not torch.is_inference_mode_enabled() or bool(base.is_inference())


class _UnrepeatableError(Exception):
    """A result that cannot be made again from shapes, strides and dtypes."""


def _flatten(value: Any) -> Any:
    for item in value:
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, list | tuple):
            yield from _flatten(item)


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
