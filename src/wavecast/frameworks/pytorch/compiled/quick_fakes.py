"""Shortcuts for fake tensors: torch keeps the results of ops, and finds them by what goes in."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor

from wavecast.frameworks.pytorch.compiled.shortcuts import in_place_of

_FAKES = "torch._subclasses.fake_tensor"
_METADATA = (
    (f"{_FAKES}:extract_tensor_metadata", "63a9d204a477"),
    (f"{_FAKES}:TensorMetadata", "88e94798bbba"),
    (f"{_FAKES}:FakeTensorMode.is_our_fake", "e5705d713d49"),
    ("torch._subclasses.meta_utils:is_sparse_any", "2c1003b0a471"),
)
"""What makes the part of a key that stands for a tensor."""
_PLAIN = frozenset(
    {int, float, bool, complex, str, type(None)}
    | {torch.dtype, torch.device, torch.layout, torch.memory_format}
)
"""Types of arguments that are part of a key as they are."""
_UNSET = (False, None, None, None)
"""What a key says of a dense tensor: it is not sparse, nor has it what sparse ones have."""


@in_place_of(f"{_FAKES}:FakeTensorMode", "_prep_args_for_hash", "5c9d4a6f14c8", *_METADATA)
def describe(original: Any) -> Any:
    """Adds to a key what it says of arguments."""

    def prepare(self: Any, result: Any, args: Any, state: Any, hashed: Any) -> None:
        if isinstance(args, list | tuple | dict):
            result += type(args), f"length_{len(args)}"
        if isinstance(args, dict):
            prepare(self, result, args.keys(), state, hashed)
            prepare(self, result, args.values(), state, hashed)
            return
        for arg in args:
            kind = type(arg)
            if kind in _PLAIN:
                result += kind, arg
            elif kind is list or kind is tuple:
                prepare(self, result, arg, state, hashed)
            elif kind is not FakeTensor or not _describe_tensor(self, result, arg):
                original(self, result, iter((arg,)), state, hashed)

    return prepare


def _describe_tensor(mode: Any, result: list[Any], tensor: Any) -> bool:
    """Add to a key what it says of a tensor; whether it is one of which this is known here."""
    if tensor.fake_mode is not mode or tensor.constant is not None:
        return False
    if tensor.layout is not torch.strided or tensor._has_symbolic_sizes_strides:
        return False
    shape, strides, memory_format = tensor.shape, tensor.stride(), None
    suggested = fake_tensor.suggest_memory_format(tensor)
    if tensor.is_contiguous(memory_format=suggested):
        memory_format = suggested
    nbytes = tensor.untyped_storage().nbytes()
    if type(nbytes) is not int:
        return False
    result += tensor.dtype, type(shape), f"length_{len(shape)}"
    result += [part for size in shape for part in (int, size)]
    result += type(strides), f"length_{len(strides)}"
    result += [part for stride in strides for part in (int, stride)]
    result += tensor.device, torch.strided, memory_format, tensor.storage_offset(), nbytes
    result += tensor.requires_grad, tensor.is_quantized, tensor.is_conj(), tensor.is_neg()
    result += tensor.is_inference(), *_UNSET
    return True


@in_place_of(
    f"{_FAKES}:FakeTensorMode",
    "_get_output_tensor_from_cache_entry",
    "548bbfc0ecc4",
    *_METADATA,
    (f"{_FAKES}:in_kernel_invocation_manager", "24e0b9912707"),
)
def make_again(original: Any) -> Any:
    """The result of an op that was run before, for other tensors of the same description."""

    def make(self: Any, state: Any, entry: Any, key: Any, func: Any, args: Any) -> Any:
        kept = entry.metadata
        if entry.inplace_idx is not None or kept is None or not _is_static(kept):
            return original(self, state, entry, key, func, args)
        storage = None
        if isinstance(func, torch._ops.OpOverload) and func.is_view:
            storage = args[entry.view_idx].untyped_storage()
        shape, strides = tuple(kept.shape), tuple(kept.stride)
        options = {"dtype": kept.dtype, "device": "meta", "requires_grad": kept.requires_grad}
        with fake_tensor.in_kernel_invocation_manager(self):
            elements = torch.empty_strided(shape, strides, **options)
            if storage is not None:
                elements.set_(storage, kept.storage_offset, shape, strides)
        return FakeTensor(self, elements, kept.device)

    return make


def _is_static(kept: Any) -> bool:
    """Whether a kept description is of a dense tensor whose sizes are numbers."""
    if kept.layout is not torch.strided or kept.is_conj or kept.is_neg:
        return False
    numbers = *kept.shape, *kept.stride, kept.storage_offset
    return all(type(number) is int for number in numbers)


SHORTCUTS = (describe, make_again)
