"""The arguments of an op, read from its profiler event: types, shapes, strides and values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wavecast.reading import whole_text
from wavecast.traces.checked_json import MOST_DIMENSIONS
from wavecast.traces.kernel_names import dtype_in
from wavecast.traces.step import TensorSpec

Shape = tuple[int, ...]

DTYPES = {
    "bool": "bool",
    "unsigned char": "uint8",
    "signed char": "int8",
    "char": "int8",
    "short": "int16",
    "short int": "int16",
    "unsigned short": "uint16",
    "int": "int32",
    "unsigned int": "uint32",
    "long": "int64",
    "long int": "int64",
    "long long": "int64",
    "unsigned long": "uint64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "float": "float32",
    "double": "float64",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e4m3fnuz": "float8_e4m3fnuz",
    "c10::Float8_e5m2": "float8_e5m2",
    "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
    "c10::Float8_e8m0fnu": "float8_e8m0fnu",
    "c10::complex<c10::Half>": "complex32",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
}
"""The names of data types: in profiler files, and in traces."""

LISTS = ("TensorList", "GenericList")
NUMBER = "number"
"""The type we give to a Python number that stands where a tensor is expected, as in x * 0.5."""
_ABSENT = ("", "nullptr (uninitialized)")


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an op."""

    type: str
    """The type in the file, or `NUMBER`."""
    tensors: tuple[TensorSpec, ...] | None
    """Its tensors; empty for a `NUMBER`. None if the argument is not a tensor."""
    value: str | None
    """Its value as text; None if the file has no values. For a `NUMBER`, its data type."""

    @property
    def is_absent(self) -> bool:
        """Whether no value was passed, or one of a type that the profiler does not write."""
        return self.type in _ABSENT


def arguments_in(
    recorded: Mapping[str, Any], kernels: Iterable[str] = ()
) -> tuple[Argument, ...] | None:
    """The arguments of an op. None if the profiler did not record its shapes.

    Args:
        recorded: the `args` of the op's event.
        kernels: the names of the kernels that the op ran. The data type of tensors in
            lists follows from them; the event does not have it.
    """
    shapes = recorded.get("Input Dims", recorded.get("Input dims"))
    types = recorded.get("Input type")
    if not isinstance(shapes, list) or not isinstance(types, list) or len(shapes) != len(types):
        return None
    count = len(types)
    strides = _padded(recorded.get("Input Strides"), count)
    values = _padded(recorded.get("Concrete Inputs"), count)
    listed = dtype_in(kernels) if any(kind in LISTS for kind in types) else None
    arguments = []
    for kind, shape, steps, value in zip(types, shapes, strides, values, strict=True):
        if not isinstance(kind, str):
            return None
        tensors = _tensors(kind, shape, steps, listed)
        if tensors is None and kind in (*LISTS, *DTYPES):
            return None
        text = whole_text(value) if isinstance(value, str) else None
        arguments.append(Argument(kind, tensors, text))
    return _with_numbers(arguments)


def _with_numbers(arguments: list[Argument]) -> tuple[Argument, ...]:
    """The arguments, with tensors that are really Python numbers marked as `NUMBER`.

    The profiler writes a number as a tensor without dimensions, in Python's precision. The op
    computes in the precision of its other tensors, so the number gets the first one's data type.
    """
    first = next((DTYPES[a.type] for a in arguments if a.type in DTYPES), "")

    def marked(argument: Argument) -> Argument:
        dtype = DTYPES.get(argument.type)
        if dtype not in ("float64", "int64") or dtype == first:
            return argument
        if any(tensor.shape for tensor in argument.tensors or ()):
            return argument
        whole = first == "bool" or (dtype == "float64" and "int" in first)
        return Argument(
            NUMBER, (), ("float32" if dtype == "float64" else dtype) if whole else first
        )

    return tuple(map(marked, arguments))


def _padded(values: Any, count: int) -> Sequence[Any]:
    return values if isinstance(values, list) and len(values) == count else [None] * count


def _tensors(
    kind: str, shape: Any, strides: Any, listed: str | None
) -> tuple[TensorSpec, ...] | None:
    """The tensors of one argument. None if it is not a tensor, or its shapes are not recorded."""
    if kind in DTYPES:
        tensor = _tensor(shape, strides, DTYPES[kind])
        return None if tensor is None else (tensor,)
    # The profiler writes an empty list if there are more than 30 tensors.
    if kind not in LISTS or not isinstance(shape, list) or not shape or listed is None:
        return None
    steps = _padded(strides, len(shape))
    tensors = [_tensor(sizes, step, listed) for sizes, step in zip(shape, steps, strict=True)]
    whole = tuple(tensor for tensor in tensors if tensor is not None)
    return whole if len(whole) == len(tensors) else None


def _tensor(shape: Any, strides: Any, dtype: str) -> TensorSpec | None:
    sizes = _sizes(shape)
    if sizes is None:
        return None
    steps = _sizes(strides)
    if steps is None or len(steps) != len(sizes) or _is_contiguous(sizes, steps):
        steps = None
    return TensorSpec(sizes, dtype, steps)


def _sizes(value: Any) -> Shape | None:
    if not isinstance(value, list) or len(value) > MOST_DIMENSIONS:
        return None
    if not all(isinstance(size, int) and 0 <= size < 1 << 48 for size in value):
        return None
    return tuple(value)


def _is_contiguous(shape: Shape, strides: Shape) -> bool:
    """Whether torch calls a tensor contiguous: strides of dimensions of size 1 do not matter."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
