"""The parts of an op that are recorded: name, tensors, other arguments, and whether it waits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from wavecast.ops import copies_pinned
from wavecast.traces.step import Op, Scalar

# Queries about a tensor, and autograd's bookkeeping. They reach a dispatch mode but do no work.
_QUERIES = (
    "prim::",
    "profiler::",
    "aten::is_",
    "aten::_use_",
    "aten::sym_",
    "aten::size",
    "aten::stride",
    "aten::detach",
)

# Ops that torch's CPU build splits, because it has no CUDA kernel for them. On CUDA they are whole.
_WHOLE = {"aten::_fused_rms_norm", "aten::silu_backward", "aten::mish_backward"}

# Longer lists are left out: the time does not depend on them (foreach optimizers pass one number
# per parameter).
_LONGEST_LIST = 16

# Ops that make the host wait for the GPU, because the host gets a value from it.
_READS_BACK = {
    "aten._local_scalar_dense",
    "aten.nonzero",
    "aten.masked_select",
    "aten._unique2",
    "aten.unique_consecutive",
    "aten.unique_dim",
    "torchvision.nms",
    "aten.equal",
    "aten.allclose",
    "aten.bincount",
    "aten.repeat_interleave.Tensor",
    "aten.lift_fresh",  # of torch.tensor(data, device="cuda"), after a copy that waits
    "cuda.synchronize",
    "cuda.stream_synchronize",
    "cuda.event_synchronize",
}


@dataclass(frozen=True)
class Signature:
    """An op's name, and for each argument its name and whether the op writes to it."""

    name: str
    arguments: tuple[tuple[str, bool], ...]


@cache
def is_composite(func: Any) -> bool:
    """Whether the dispatcher splits this op into others above autograd."""
    name = func.name()
    return bool(
        func._can_decompose()
        and name not in _WHOLE
        and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
        and not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA")
    )


@cache
def signature_of(func: Any) -> Signature | None:
    """The signature of an op. None if it is only a query about a tensor."""
    schema = func._schema
    if schema.name.startswith(_QUERIES):
        return None
    name = str(schema.name).replace("::", ".", 1)
    if schema.overload_name:
        name = f"{name}.{schema.overload_name}"
    arguments = tuple(
        (a.name, a.alias_info is not None and a.alias_info.is_write) for a in schema.arguments
    )
    return Signature(name, arguments)


def bind(
    signature: Signature, args: tuple[Any, ...], kwargs: Any
) -> tuple[list[Any], list[Any], list[tuple[str, Scalar]]]:
    """The tensors that an op gets, those among them that it writes to, and its other arguments."""
    given = list(zip(signature.arguments, args, strict=False))
    given += [(a, kwargs[a[0]]) for a in signature.arguments[len(args) :] if a[0] in kwargs]
    inputs: list[Any] = []
    written: list[Any] = []
    attrs: list[tuple[str, Scalar]] = []
    for (name, is_written), value in given:
        tensors = tensors_of(value)
        if tensors is not None:
            inputs += tensors
            if is_written:
                written += tensors
        else:
            attribute = attribute_of(value)
            if attribute is not None:
                attrs.append((name, attribute))
    if signature.name in _BETWEEN and "pin_memory" not in dict(attrs):
        source = inputs[-1]  # maybe in memory of the host that the GPU can reach itself
        if source.device.type == "cpu" and source.is_pinned():
            attrs.append(("pin_memory", True))
    return inputs, written, attrs


def on_host(op: Op) -> bool:
    """Whether all tensors of an op are on the host."""
    return all(t.device != "cuda" for t in (*op.inputs, *op.outputs))


def tensors_of(value: Any) -> list[Any] | None:
    """The tensors in an argument or result. None if it has none."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [t for item in value for t in tensors_of(item) or ()] or None
    return None


def attribute_of(value: Any) -> Scalar | None:
    """An argument as an op's attribute. None if it cannot be one."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # nan is not equal to itself, and neither nan nor inf is valid JSON
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype | torch.memory_format):
        return str(value).removeprefix("torch.")
    if isinstance(value, list | tuple) and 0 < len(value) <= _LONGEST_LIST:
        if all(isinstance(v, int) for v in value):
            return tuple(value)
        if all(isinstance(v, int | float) and math.isfinite(v) for v in value):
            return tuple(float(v) for v in value)
    return None


def waits(op: Op) -> bool:
    """Whether the host waits until the GPU has run this op."""
    if op.base in _COPIES and op.outputs and not op.outputs[0].numel:
        return False  # torch copies nothing then: torch.tensor([], device="cuda")
    if op.name in _READS_BACK or op.base in _READS_BACK:
        return True
    if op.base in ("aten.index", "aten.index_put", "aten.index_put_"):
        return any(t.dtype in ("bool", "uint8") and t.device == "cuda" for t in op.inputs[1:])
    if op.base in _BETWEEN and op.outputs:
        source = op.inputs[-1 if op.base == "aten.copy_" else 0]
        free = op.attr("non_blocking", False) and copies_pinned(op)
        return source.device != op.outputs[0].device and not free
    return False


_BETWEEN = {"aten._to_copy", "aten.copy_"}
"""Copies that may be between the host and the GPU."""
_COPIES = {"aten.lift_fresh", *_BETWEEN}
_MATMULS = {"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.addmv", "aten.mv"}
_CONVOLUTIONS = {"aten.convolution", "aten.convolution_backward"}
_RNNS = {"aten._cudnn_rnn", "aten._cudnn_rnn_backward"}


def with_switches(op: Op) -> Op:
    """The op, with torch's present switches for how its matmuls are computed as attributes.

    "precision" says whether float32 is rounded to TF32. "benchmark" says that cuDNN tries out its
    algorithms for a convolution instead of choosing by a heuristic.
    """
    if op.base in _MATMULS:
        switch = torch.backends.cuda.matmul
    elif op.base in _CONVOLUTIONS:
        switch = torch.backends.cudnn.conv
    elif op.base in _RNNS:
        switch = torch.backends.cudnn.rnn
    else:
        return op
    attrs: tuple[tuple[str, Scalar], ...] = ()
    if op.inputs and op.inputs[0].dtype == "float32":
        attrs = (("precision", "tf32" if switch.fp32_precision == "tf32" else "ieee"),)
    if op.base in _CONVOLUTIONS and torch.backends.cudnn.benchmark:
        attrs = (*attrs, ("benchmark", True))
    return _with(op, attrs) if attrs else op


@cache
def _with(op: Op, attrs: tuple[tuple[str, Scalar], ...]) -> Op:
    return replace(op, attrs=(*op.attrs, *attrs))
