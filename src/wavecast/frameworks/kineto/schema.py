"""The names of an op's arguments and its outputs, from PyTorch's schemas.

The profiler writes neither. If PyTorch is installed, the op's schema is found by the types of its
arguments, and the op runs on meta tensors, which have shapes but no data. Without PyTorch, or for
an op that PyTorch does not have, the trace has only the inputs, or none where a formula needs more;
without PyTorch, a note in the trace says so.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from wavecast import ops
from wavecast.reading import whole_text
from wavecast.traces.checked_json import MOST_DIMENSIONS
from wavecast.traces.kernel_names import dtype_in
from wavecast.traces.step import Op, Scalar, TensorSpec

# c10/core/ScalarType.h and MemoryFormat.h.
_DTYPE_NUMBERS = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32",
    7: "float64", 8: "complex32", 9: "complex64", 10: "complex128", 11: "bool", 15: "bfloat16",
    23: "float8_e5m2", 24: "float8_e4m3fn", 25: "float8_e5m2fnuz", 26: "float8_e4m3fnuz",
    27: "uint16", 28: "uint32", 29: "uint64",
}  # fmt: skip
_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")

_NUMBERS = ("number", "int", "float", "bool", "ScalarType", "Layout", "MemoryFormat")
# Our own traces leave out longer lists, too.
_LONGEST_LIST = 16

_MOST_OUTPUTS = 4096
"""The most tensors that an op may return; with more, its outputs are unknown."""

# Arguments on which the outputs do not depend, with the value to pass.
_IRRELEVANT = {"pin_memory": None, "non_blocking": False}


_CONVOLUTIONS = ("aten.convolution", "aten.convolution_backward")


class _Unknown(Exception):
    """The op, or a value that it needs, is unknown."""


def has_torch() -> bool:
    """Whether PyTorch is installed, so that its schemas can be used."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


@lru_cache(maxsize=8192)
def op_of(name: str, arguments: tuple[Argument, ...]) -> Op:
    """The op of that name with these arguments: overload, inputs, outputs and attributes.

    If PyTorch does not know the op, it has only its inputs.
    """
    inputs = tuple(t for argument in arguments for t in argument.tensors or ())
    try:
        overload = _overload(name, arguments)
    except _Unknown:
        return Op(name, inputs, ())
    suffix = overload._schema.overload_name
    given = list(zip(overload._schema.arguments, arguments, strict=True))
    outputs = _outputs(overload, given)
    if name in _CONVOLUTIONS and any(spec.channels_last for spec in inputs):
        outputs = tuple(map(_channels_last, outputs))
    return Op(f"{name}.{suffix}" if suffix else name, inputs, outputs, _attributes(given))


def _channels_last(spec: TensorSpec) -> TensorSpec:
    """The spec in channels_last, the format of cuDNN's results, which meta tensors do not show."""
    batch, channels, *image = spec.shape if len(spec.shape) in (4, 5) else (0, 0)
    if not batch or channels == 1:
        return spec
    steps = [channels]
    for size in reversed(image):
        steps.append(steps[-1] * size)
    *inner, whole = steps
    return replace(spec, strides=(whole, 1, *reversed(inner)))


def _overload(name: str, arguments: tuple[Argument, ...]) -> Any:
    """The first overload that takes these arguments. Overloads with `out=` come last."""
    namespace, _, base = name.partition(".")
    try:
        import torch

        packet = getattr(getattr(torch.ops, namespace), base)
        overloads = [getattr(packet, overload) for overload in packet.overloads()]
    except (ImportError, AttributeError, RuntimeError):
        raise _Unknown from None
    overloads.sort(key=lambda overload: any(a.is_out for a in overload._schema.arguments))
    for overload in overloads:
        parameters = overload._schema.arguments
        if len(parameters) == len(arguments) and all(map(_fits, parameters, arguments)):
            return overload
    raise _Unknown


def _type_of(parameter: Any) -> tuple[str, bool]:
    """The type of an argument in a schema, and whether it may be None."""
    text = str(parameter.real_type)
    match = re.fullmatch(r"Optional\[(.*)\]", text)
    return (match[1], True) if match else (text, False)


def _fits(parameter: Any, argument: Argument) -> bool:
    base, optional = _type_of(parameter)
    if argument.type in DTYPES or argument.type == NUMBER:
        return base == "Tensor"
    if argument.type in LISTS:
        return base in ("List[Tensor]", "List[Optional[Tensor]]")
    if argument.type == "ScalarList":
        return base.startswith("List[") and "Tensor" not in base
    if argument.type == "Scalar":
        truth = argument.value in ("True", "False")
        unknown = not argument.value
        return base in _NUMBERS and (unknown or (truth if base == "bool" else not truth))
    # Nothing was passed, or something that the profiler does not write: texts, devices, and in old
    # files lists.
    return optional or (base != "Tensor" and base not in _NUMBERS)


def _attributes(given: list[tuple[Any, Argument]]) -> tuple[tuple[str, Scalar], ...]:
    """The arguments that are not tensors. Defaults are left out, as the dispatcher does."""
    attributes: list[tuple[str, Scalar]] = []
    positional_default = True
    for parameter, argument in reversed(given):
        value = None if argument.tensors is not None else _plain(parameter, argument)
        is_default = argument.tensors is None and _is_default(parameter, argument, value)
        if not parameter.kwarg_only:
            positional_default = positional_default and is_default
            is_default = positional_default
        if value is not None and not is_default:
            attributes.append((parameter.name, value))
    return tuple(reversed(attributes))


def _is_default(parameter: Any, argument: Argument, value: Scalar | None) -> bool:
    if not parameter.has_default_value():
        return False
    if argument.is_absent:
        return True
    default = parameter.default_value
    if isinstance(value, float) != isinstance(default, float):
        return False  # the dispatcher distinguishes 2.0 from 2
    return bool(value == (tuple(default) if isinstance(default, list) else default))


def _plain(parameter: Any, argument: Argument) -> Scalar | None:
    """The value of an argument as traces write it. None if it is unknown."""
    base, _ = _type_of(parameter)
    if not argument.value or base in ("Layout", "Device"):
        return None
    try:
        value = _value(base, argument.value)
    except _Unknown:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        finite = all(math.isfinite(number) for number in value)
        return tuple(value) if finite and 0 < len(value) <= _LONGEST_LIST else None
    return value  # type: ignore[no-any-return]


def _value(base: str, text: str) -> Any:
    """The value that a text stands for, given the schema's type: a number, a name or a list."""
    try:
        if base.startswith("List["):
            inner = base.removeprefix("List[").removesuffix("]")
            parts = [part.strip() for part in text.strip("[]").split(",")]
            return [_value(inner, part) for part in parts if part]
        if base == "ScalarType":
            return _DTYPE_NUMBERS[int(text)]
        if base == "MemoryFormat":
            return _FORMATS[int(text)]
        if text in ("True", "False"):
            return text == "True"
        if base == "int":
            return int(text)
        if base == "float":
            return float(text)
        if base == "number":
            return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
    except (ValueError, LookupError):
        raise _Unknown from None
    raise _Unknown


def _outputs(overload: Any, given: list[tuple[Any, Argument]]) -> tuple[TensorSpec, ...]:
    """The outputs of an op: the arguments that it writes to, and the tensors that it returns."""
    import torch

    written = tuple(
        spec
        for parameter, argument in given
        if _is_written(parameter)
        for spec in argument.tensors or ()
    )
    if not _is_quick(overload, given):
        return written
    try:
        values = [(parameter, _stand_in(parameter, argument)) for parameter, argument in given]
        positional = [value for parameter, value in values if not parameter.kwarg_only]
        named = {parameter.name: value for parameter, value in values if parameter.kwarg_only}
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = overload(*positional, **named)
    except Exception:  # the op refuses meta tensors, so what it returns is unknown
        return written
    taken = {
        id(t) for parameter, value in values if _is_written(parameter) for t in _tensors_of(value)
    }
    return (*written, *(_spec(t) for t in _tensors_of(result) if id(t) not in taken))


def _is_quick(overload: Any, given: list[tuple[Any, Argument]]) -> bool:
    """Whether an op can be run without much time and memory, whatever a file gives it."""
    returned = [str(result.type) for result in overload._schema.returns]
    if any("Tensor" not in kind for kind in returned):
        return False  # lists of numbers: with them, aten::mul makes a list of any length
    # An op that is split into others may loop over a dimension, as aten::lstm does.
    name = overload._schema.name.replace("::", ".", 1)
    is_known = ops.kind(Op(name, (), ())) is not None
    if overload.has_kernel_for_dispatch_key("CompositeImplicitAutograd") and not is_known:
        return False
    return not any("List[" in kind for kind in returned) or _most_returned(given) <= _MOST_OUTPUTS


def _most_returned(given: list[tuple[Any, Argument]]) -> float:
    """An upper bound on the tensors that an op with a list as its result returns.

    There is one for each tensor in a list, or one for each part of a dimension. The parts are
    counted, have a size or sizes, or are single rows.
    """
    if any(argument.type in LISTS for _, argument in given):
        return sum(len(argument.tensors or ()) for _, argument in given)
    shapes = [tensor.shape for _, argument in given for tensor in argument.tensors or ()]
    largest = max((size for shape in shapes for size in shape), default=0)
    for parameter, argument in given:
        try:
            value = _value(_type_of(parameter)[0], argument.value or "")
        except _Unknown:
            continue
        if isinstance(value, list):
            return len(value) + 1
        if parameter.name in ("chunks", "sections"):
            return float(min(value, 1 << 62))
        if parameter.name == "split_size":
            return float(largest / max(value, 1))
    return largest


def _is_written(parameter: Any) -> bool:
    return parameter.alias_info is not None and bool(parameter.alias_info.is_write)


def _stand_in(parameter: Any, argument: Argument) -> Any:
    """The value to pass for an argument: a meta tensor, or the value in the file."""
    import torch

    base, _ = _type_of(parameter)
    if argument.type == NUMBER:
        return _meta(TensorSpec((), argument.value or "float32"))
    if argument.tensors is not None:
        tensors = [_meta(spec) for spec in argument.tensors]
        return tensors if argument.type in LISTS else tensors[0]
    if base == "Device":
        return torch.device("meta")
    if base == "Layout" or parameter.name in _IRRELEVANT:
        return _IRRELEVANT.get(parameter.name)
    if argument.value:
        value = _value(base, argument.value)
        return getattr(torch, value) if base in ("ScalarType", "MemoryFormat") else value
    if argument.is_absent:
        return _default(parameter, argument)
    if base in ("number", "float"):  # a factor: no shape depends on it
        return 1.0
    raise _Unknown


def _default(parameter: Any, argument: Argument) -> Any:
    base, optional = _type_of(parameter)
    if argument.value is None and base.startswith("List["):
        raise _Unknown  # old files have no lists at all
    if parameter.has_default_value():
        return parameter.default_value
    if optional:
        return None
    raise _Unknown


def _meta(spec: TensorSpec) -> Any:
    import torch

    dtype = getattr(torch, spec.dtype)
    if spec.strides is None:
        return torch.empty(spec.shape, dtype=dtype, device="meta")
    return torch.empty_strided(spec.shape, spec.strides, dtype=dtype, device="meta")


def _tensors_of(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors_of(item)]
    return []


def _spec(tensor: Any) -> TensorSpec:
    strides = None if tensor.is_contiguous() else tuple(tensor.stride())
    return TensorSpec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), strides)


# The arguments of an op, read from its profiler event: types, shapes, strides and values.


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
