"""Kind, Cost, and the registry of the kind and cost formula of each op."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from typing import Concatenate, ParamSpec, TypeVar

from wavecast.errors import InvalidInput
from wavecast.traces.step import DTYPE_BYTES, Op, TensorSpec


class Kind(StrEnum):
    """The kind of an op. Predictors choose a model or constants by it."""

    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    RNN = "rnn"
    NORM = "norm"
    SOFTMAX = "softmax"
    LOSS = "loss"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    EMBEDDING = "embedding"
    INDEXING = "indexing"
    POOLING = "pooling"
    RESAMPLING = "resampling"
    SORT = "sort"
    COPY = "copy"
    FILL = "fill"
    RANDOM = "random"
    OPTIMIZER = "optimizer"
    FUSED = "fused"
    """A kernel in which a compiler fused several ops."""
    FFT = "fft"
    LINEAR_ALGEBRA = "linear_algebra"
    VIEW = "view"
    """No kernel: a view of existing memory, or new memory without values."""
    SYNC = "sync"
    """The host waits for the GPU, or reads a value from it."""
    COLLECTIVE = "collective"


@dataclass(frozen=True, slots=True)
class Cost:
    """The FLOPs and GPU memory traffic of an op. Costs add up, and multiply by a count."""

    flops: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes

    @property
    def amounts(self) -> tuple[int, int, int]:
        """FLOPs, bytes read and bytes written."""
        return self.flops, self.read_bytes, self.written_bytes

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.read_bytes + other.read_bytes,
            self.written_bytes + other.written_bytes,
        )

    def __mul__(self, times: int) -> Cost:
        return Cost(self.flops * times, self.read_bytes * times, self.written_bytes * times)


Formula = Callable[[Op], Cost]
Counter = Callable[[Op], int]

_KINDS: dict[str, Kind] = {}
_FORMULAS: dict[str, Formula] = {}
_EXECUTED: dict[str, Counter] = {}

ALL = slice(None)
NONE = slice(0)
"""Values for the `reads` of `streaming`: all inputs, or none."""


def cost(*names: str, kind: Kind) -> Callable[[Formula], Formula]:
    """A decorator that registers a cost formula for ops, by their names.

    A name is an op (`aten.add`), one overload (`aten.max.other`) or a namespace (`cuda.*`). It also
    covers the in-place variant (`aten.add_`) unless that has a registration.
    """

    def register(formula: Formula) -> Formula:
        declare(kind, names)
        _FORMULAS.update(dict.fromkeys(names, formula))
        return formula

    return register


def declare(kind: Kind, names: Iterable[str]) -> None:
    """Register the kind of ops, without a cost formula."""
    for name in names:
        if name in _KINDS:
            raise InvalidInput(
                f"{name} is registered twice, as {_KINDS[name]} and as {kind}; remove one of them"
            )
        _KINDS[name] = kind
    _key.cache_clear()


def streaming(kind: Kind, names: str, *, flops: int = 0, reads: slice = ALL) -> None:
    """Register aten ops that pass once over their tensors.

    Args:
        kind: the kind of the ops.
        names: the names without `aten.`, separated by white space.
        flops: the FLOPs per element of the largest tensor.
        reads: the inputs that are read. Of the others only the shape is used, or they are
            overwritten.
    """

    def formula(op: Op) -> Cost:
        return Cost(flops * largest(op), read(op.inputs[reads]), written(op.outputs))

    cost(*aten(names), kind=kind)(formula)


def executed(*names: str) -> Callable[[Counter], Counter]:
    """A decorator that registers the executed FLOPs of ops that torch counts differently."""

    def register(counter: Counter) -> Counter:
        _EXECUTED.update(dict.fromkeys(names, counter))
        return counter

    return register


def kind_of(name: str) -> Kind | None:
    """The kind of the op with this name; None if it is not registered."""
    key = _key(name)
    return _KINDS[key] if key else None


def formula_of(name: str) -> Formula | None:
    """The cost formula of the op with this name; None if it has none."""
    key = _key(name)
    return _FORMULAS.get(key) if key else None


def counter_of(name: str) -> Counter | None:
    """The function that `executed` registered for the op with this name, or None."""
    key = _key(name)
    return _EXECUTED.get(key) if key else None


@cache
def _key(name: str) -> str | None:
    """The registered name that covers an op: the most specific one."""
    base = ".".join(name.split(".")[:2])
    not_in_place = base[:-1] if base.endswith("_") and not base.endswith("__") else base
    namespace = name.partition(".")[0] + ".*"
    return next((key for key in (name, base, not_in_place, namespace) if key in _KINDS), None)


def aten(names: str) -> list[str]:
    """The full names `aten.a` and `aten.b`, from `a b`."""
    return [f"aten.{name}" for name in names.split()]


def stored(tensor: TensorSpec) -> int:
    """The bytes of GPU memory behind a tensor; 0 for a tensor in host memory."""
    return 0 if tensor.device == "cpu" else tensor.touched_bytes


def read(tensors: Iterable[TensorSpec]) -> int:
    """The bytes moved when each of these tensors is read once."""
    return sum(map(stored, tensors))


written = read


def item_bytes(tensor: TensorSpec) -> int:
    """The bytes of one element of a tensor."""
    return DTYPE_BYTES[tensor.dtype]


def largest(op: Op) -> int:
    """The number of elements of the largest tensor that an op reads or writes."""
    return max((t.numel for t in (*op.inputs, *op.outputs)), default=0)


def integer(op: Op, name: str, default: int = 0) -> int:
    """An attribute as a whole number; the default when it is absent or no number."""
    value = op.attr(name)
    return int(value) if isinstance(value, int | float) else default


def integers(op: Op, name: str) -> tuple[int, ...]:
    """An attribute that is a list of numbers or flags; empty when it is absent."""
    value = op.attr(name)
    return tuple(int(v) for v in value) if isinstance(value, tuple) else ()


# Ops that a formula cannot read: tensors are missing, of another rank, or larger than any memory.
#
# Formulas are written for ops as a framework records them. A hand-made trace, or a file, may hold
# an op of the same name with anything else. Every formula is applied to the ops of a trace through
# `reading`, and treats an op that cannot be read like one without a formula: it is unpredicted, by
# name. The formulas themselves raise, so that their tests see every mistake.


T = TypeVar("T")
D = TypeVar("D")
P = ParamSpec("P")

ERRORS: tuple[type[Exception], ...] = (
    IndexError,
    KeyError,
    OverflowError,
    TypeError,
    ValueError,
    ZeroDivisionError,
)
"""What a formula raises for an op whose tensors or attributes are not those it is written for."""

MOST_BYTES = (1 << 63) - 1
"""The largest tensor that a framework can count."""
MOST_WORK = 1 << 100
"""The most FLOPs or bytes of one op. Above, tensors and attributes contradict each other."""


def reading(
    formula: Callable[Concatenate[Op, P], T],
    default: D,
    op: Op,
    *more: P.args,
    **named: P.kwargs,
) -> T | D:
    """What a formula says about an op; the default if it cannot read the op."""
    try:
        return formula(op, *more, **named)
    except ERRORS:
        return default


@lru_cache(maxsize=1 << 16)
def has_possible_tensors(op: Op) -> bool:
    """Whether every tensor of an op could exist: its sizes, its data type and its strides."""
    return all(map(_is_possible, (*op.inputs, *op.outputs)))


def _is_possible(tensor: TensorSpec) -> bool:
    item_bytes = DTYPE_BYTES.get(tensor.dtype)
    if item_bytes is None or not all(isinstance(n, int) and n >= 0 for n in tensor.shape):
        return False
    strides = tensor.strides
    if strides is not None and len(strides) != len(tensor.shape):
        return False
    return tensor.numel * item_bytes <= MOST_BYTES


def is_possible_work(amount: float) -> bool:
    """Whether a number of FLOPs, bytes or kernels could be that of one op."""
    return 0 <= amount <= MOST_WORK
