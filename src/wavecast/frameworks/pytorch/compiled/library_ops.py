"""Calls of libraries in a compiled graph, such as matmuls and attention, as ops.

They have the names, inputs and attributes that the same calls have in a step that is not compiled.
"""

from __future__ import annotations

import functools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._inductor import ir

from wavecast.frameworks.pytorch.compiled.node_accesses import (
    BufferView,
    PlannedOp,
    operand_of,
    spec_of,
)
from wavecast.frameworks.pytorch.recording.signature import attribute_of, signature_of
from wavecast.frameworks.pytorch.recording.user_lines import source_line
from wavecast.traces.step import Op, Scalar, TensorSpec

Hint = Callable[[Any], int]

_LIBRARY = "extern_kernels."
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_COPY = "DeviceCopy"
"""Inductor's node for a copy between the host and the GPU."""
_INDEX_PUT = "IndexPutFallback"
"""Inductor's node for torch's own `index_put_`. It has the values before the places."""
_PATH = (
    (re.compile(r"^L\['\w+'\]"), ""),  # the local variable that holds the compiled module
    (re.compile(r"_modules\['(\w+)'\]"), r"\1"),
    (re.compile(r"\[['\"]?(\w+)['\"]?\]"), r".\1"),
    (re.compile(r"\.?(_orig_mod|__self__)\b"), ""),
)
"""How Dynamo's names of modules become paths of modules."""


def library_op(kernel: Any, hint: Hint) -> PlannedOp:
    """The op of a library call.

    Args:
        kernel: a node of Inductor's representation that is no generated kernel.
        hint: gives the number behind a size.
    """
    func = _overload(kernel)
    results = list(_results(kernel))
    outputs = tuple(spec_of(buffer, hint) for buffer in results)
    writes = tuple(operand_of(buffer, hint) for buffer in results)
    signature = None if func is None else signature_of(func)
    if type(kernel).__name__ == _COPY or func is None:
        called = getattr(kernel, "python_kernel_name", None) or type(kernel).__name__
        name = "aten._to_copy" if type(kernel).__name__ == _COPY else f"inductor.{called}"
        specs, reads = _tensors(kernel.inputs, hint)
        return PlannedOp(Op(name, specs, outputs), reads, writes)
    if signature is None:
        return PlannedOp(Op(str(func), (), outputs), (), writes)
    inputs: tuple[TensorSpec, ...] = ()
    reads = ()
    attrs: list[tuple[str, Scalar]] = []
    for name, value in _arguments(kernel, func):
        specs, operands = _tensors(value, hint)
        if specs:
            inputs, reads = inputs + specs, reads + operands
            continue
        attribute = attribute_of(_numbers(value, hint))
        if attribute is not None:
            attrs.append((name, attribute))
    op = Op(signature.name, inputs, outputs or inputs[:1], tuple(attrs))
    return PlannedOp(op, reads, writes or reads[:1])


def _overload(kernel: Any) -> Any:
    """The torch op behind a call. None if there is none."""
    name = str(getattr(kernel, "python_kernel_name", None) or "")
    if name.startswith(_LIBRARY):
        packet = getattr(torch.ops.aten, name.removeprefix(_LIBRARY), None)
        return getattr(packet, "default", None)
    overload = getattr(kernel, "op_overload", None)
    return overload if isinstance(overload, torch._ops.OpOverload) else None


def _arguments(kernel: Any, func: Any) -> Iterator[tuple[str, Any]]:
    """The names and values of a call's arguments, in the order of the schema."""
    names = [argument.name for argument in func._schema.arguments]
    if type(kernel).__name__ == _INDEX_PUT:
        changed, values, *places = kernel.inputs
        yield from zip(names, (changed, places, values, *kernel.constant_args), strict=False)
        return
    if hasattr(kernel, "unflatten_args"):
        args, kwargs = kernel.unflatten_args(kernel.inputs, kernel.constant_args)
        yield from zip(names, args, strict=False)
        yield from {**kwargs, **kernel.kwargs}.items()
        return
    tensors, rest = list(kernel.inputs), list(kernel.constant_args)
    for argument in func._schema.arguments:
        is_tensor = "Tensor" in str(argument.type)
        if argument.name in kernel.kwargs:
            yield argument.name, kernel.kwargs[argument.name]
        elif is_tensor and tensors:
            yield argument.name, tensors.pop(0)
        elif not is_tensor and rest:
            yield argument.name, rest.pop(0)


def _results(kernel: Any) -> Iterator[Any]:
    """The tensors that a call makes."""
    results = getattr(kernel, "outputs", None)
    if results:
        yield from _flat(results)
    elif makes_tensor(kernel):
        yield kernel


def makes_tensor(kernel: Any) -> bool:
    """Whether a call makes one tensor: not several, and not none, as one that changes its input."""
    layout = kernel.get_output_spec()
    return hasattr(layout, "size") and not isinstance(layout, ir.NoneLayout)


def result_names(kernel: Any) -> Iterator[str]:
    """The names of the buffers that a node makes, also of those that it hands to later nodes."""
    for result in (*_flat(getattr(kernel, "outputs", None) or []), *kernel.get_outputs()):
        yield str(result.get_name())


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
    elif value is not None and hasattr(value, "get_size"):
        yield value


def _tensors(value: Any, hint: Hint) -> tuple[tuple[TensorSpec, ...], tuple[BufferView, ...]]:
    """The tensors of an argument: their specs, and where they are."""
    tensors = [item for item in _flat(value) if item.has_tensor_output()]
    return (
        tuple(spec_of(item, hint) for item in tensors),
        tuple(operand_of(item, hint) for item in tensors),
    )


def _numbers(value: Any, hint: Hint) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_numbers(item, hint) for item in value)
    if hasattr(value, "free_symbols") or isinstance(value, torch.SymInt):
        return hint(value)
    return value


def module_and_lines(origins: Sequence[Any], roots: Mapping[str, str]) -> tuple[str, str, str]:
    """Where most of a kernel's graph nodes come from: the module, the innermost line of code, and
    the innermost line outside of torch."""
    modules, lines, sources = Counter[str](), Counter[str](), Counter[str]()
    folder = str(Path.cwd())
    for node in origins:
        modules[_module(node.meta, roots)] += 1
        line, source = _lines(node.meta.get("stack_trace"), folder)
        lines[line] += 1
        sources[source] += 1
    return _most(modules), _most(lines), _most(sources)


def _most(counts: Counter[str]) -> str:
    return max(counts, key=lambda key: (bool(key), counts[key]), default="")


def _module(meta: dict[str, Any], roots: Mapping[str, str]) -> str:
    """The path of the innermost module that ran a node, from the root of the compiled code."""
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path = str(next(reversed(stack.values()))[0])
    source = next((name for name in roots if path.startswith(name)), "")
    path = roots.get(source, "") + path.removeprefix(source)
    for before, after in _PATH:
        path = before.sub(after, path)
    return path.strip(".")


@functools.lru_cache(1 << 14)
def _lines(stack: str | None, _folder: str) -> tuple[str, str]:
    """The innermost line of a recorded stack and the innermost outside of torch, "file.py:12".

    The second is relative to the present folder.
    """
    last = source = ""
    for row in (stack or "").splitlines():
        row = row.strip()
        if row.startswith('File "'):
            name, _, rest = row.removeprefix('File "').partition('", line ')
            number = rest.split(",")[0]
            last = f"{name}:{number}"
            if not name.startswith(_TORCH) and number.isdigit():
                source = source_line(name, int(number))
    return last, source
