"""The Op of a profiler event: its name, tensors and attributes as in traces of our own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from wavecast.frameworks.kineto.arguments import arguments_in
from wavecast.frameworks.kineto.op_names import kind_of
from wavecast.frameworks.kineto.schema import op_of
from wavecast.ops import Kind, is_readable
from wavecast.traces import kernel_names
from wavecast.traces.step import Op, Scalar, TensorSpec

_PUTS = ("aten.index_put", "aten._index_put_impl_")
_COPIES = ("aten._to_copy", "aten.copy_")

# Ops whose float32 matmuls may run in TF32, which only the names of their kernels show.
_PRODUCTS = frozenset(
    f"aten.{name}"
    for name in """
    mm addmm bmm baddbmm addmv mv convolution convolution_backward _cudnn_rnn _cudnn_rnn_backward
    """.split()
)

# The names of data types in the records of collectives (c10::toString).
_DTYPES = {
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Float": "float32",
    "Double": "float64",
    "Bool": "bool",
}


def describe(name: str, recorded: Mapping[str, Any], kernels: Sequence[str]) -> Op:
    """The op of a profiler event.

    Args:
        name: its name, such as `aten.mm`.
        recorded: the `args` of its event.
        kernels: the names of the kernels that it ran.
    """
    arguments = arguments_in(recorded, kernels)
    op = Op(name, (), ()) if arguments is None else _whole(_with_indices(op_of(name, arguments)))
    return _with_precision(_placed(op, kernels), kernels)


@lru_cache(maxsize=8192)
def _whole(op: Op) -> Op:
    """The op; without its tensors if the recorded ones are incomplete."""
    # The formulas expect all tensors and attributes that our own traces have.
    return op if is_readable(op) else Op(op.name, (), ())


def _with_indices(op: Op) -> Op:
    """An `index_put` with the tensor of its indices, which the profiler does not write.

    It leaves out lists that may have gaps. The values have the shape of the indices in place of the
    first dimension. Of `index`, nothing tells how much it fetched.
    """
    if not op.base.startswith(_PUTS) or len(op.inputs) != 2:
        return op
    target, values = op.inputs
    row = target.shape[1:]
    rows = values.shape[: len(values.shape) - len(row)]
    if not rows or values.shape[len(rows) :] != row:
        return op
    return replace(op, inputs=(target, TensorSpec(rows, "int64"), values))


def _placed(op: Op, kernels: Sequence[str]) -> Op:
    """The op with the host's tensors marked, guessed from the kernels: the file does not say."""
    if not kernels:
        on_gpu = kind_of(op.name) in (None, Kind.VIEW, Kind.SYNC, Kind.COLLECTIVE)
        return op if on_gpu else replace(op, inputs=_host(op.inputs), outputs=_host(op.outputs))
    if op.base not in _COPIES or not op.inputs:
        return op
    *target, source = op.inputs
    if kernel_names.copies_to_gpu(kernels[0]):
        return replace(op, inputs=(*target, *_host((source,))))
    if kernel_names.copies_to_host(kernels[-1]):
        return replace(op, inputs=(*_host(target), source), outputs=_host(op.outputs))
    return op


def _host(tensors: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    return tuple(replace(tensor, device="cpu") for tensor in tensors)


def _with_precision(op: Op, kernels: Sequence[str]) -> Op:
    if op.base not in _PRODUCTS or not kernels:
        return op
    rounded = any(kernel_names.rounds_to_tf32(kernel) for kernel in kernels)
    single = bool(op.inputs) and op.inputs[0].dtype == "float32"
    if single or (rounded and not op.inputs):
        return replace(op, attrs=(*op.attrs, ("precision", "tf32" if rounded else "ieee")))
    return op


def collective(name: str, recorded: Mapping[str, Any]) -> Op:
    """The op of a communication between GPUs.

    Args:
        name: its name, such as `nccl.all_reduce`.
        recorded: its record in the file: numbers of elements, data type, number of GPUs.
    """
    attrs: tuple[tuple[str, Scalar], ...] = ()
    group = recorded.get("Group size")
    if isinstance(group, int) and group > 0:
        attrs = (("group_size", group),)
    dtype = _DTYPES.get(str(recorded.get("dtype")))
    sent, received = (_flat(recorded.get(f"{way} msg nelems"), dtype) for way in ("In", "Out"))
    return Op(name, sent, received, attrs)


def _flat(count: Any, dtype: str | None) -> tuple[TensorSpec, ...]:
    whole = isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 1 << 48
    return (TensorSpec((count,), dtype),) if whole and dtype else ()
