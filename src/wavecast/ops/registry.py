"""Kind, Cost, and the one table that says what each op is and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from wavecast.errors import InvalidInput
from wavecast.traces.step import DTYPE_BYTES, Op, TensorSpec


class Kind(StrEnum):
    """What sort of work an op is. A predictor is chosen by it."""

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
    FFT = "fft"
    LINEAR_ALGEBRA = "linear_algebra"
    VIEW = "view"
    """No kernel at all: a new look at old memory, or memory without values."""
    SYNC = "sync"
    """The host waits, or fetches a value."""
    COLLECTIVE = "collective"


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOPs and GPU memory traffic. Costs add, and multiply by how often."""

    flops: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes

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


def cost(*names: str, kind: Kind) -> Callable[[Formula], Formula]:
    """Register the formula below it for these ops: `aten.add`, or one overload `aten.max.other`.

    A name also covers its in-place twin (`aten.add_`) unless that is registered by itself.
    """

    def register(formula: Formula) -> Formula:
        declare(kind, names)
        _FORMULAS.update(dict.fromkeys(names, formula))
        return formula

    return register


def declare(kind: Kind, names: Iterable[str]) -> None:
    """Register the kind of ops for which there is no formula (yet)."""
    for name in names:
        if name in _KINDS:
            raise InvalidInput(f"{name} is registered twice, as {_KINDS[name]} and as {kind}")
        _KINDS[name] = kind
    _key.cache_clear()


def streaming(kind: Kind, names: str, *, flops: int = 0, reads: slice = ALL) -> None:
    """Register aten ops that pass once over their tensors.

    Args:
        kind: their kind.
        names: their names without `aten.`, separated by white space.
        flops: per element of the largest tensor.
        reads: which inputs are read; the others only lend their shape, or are overwritten.
    """

    def formula(op: Op) -> Cost:
        return Cost(flops * largest(op), read(op.inputs[reads]), written(op.outputs))

    cost(*aten(names), kind=kind)(formula)


def executed(*names: str) -> Callable[[Counter], Counter]:
    """Register how many FLOPs a GPU executes, for ops where torch's convention differs."""

    def register(counter: Counter) -> Counter:
        _EXECUTED.update(dict.fromkeys(names, counter))
        return counter

    return register


def kind_of(name: str) -> Kind | None:
    """The kind of the op of that name."""
    key = _key(name)
    return _KINDS[key] if key else None


def formula_of(name: str) -> Formula | None:
    """The formula for the op of that name."""
    key = _key(name)
    return _FORMULAS.get(key) if key else None


def counter_of(name: str) -> Counter | None:
    """What `executed` registered for the op of that name."""
    key = _key(name)
    return _EXECUTED.get(key) if key else None


@cache
def _key(name: str) -> str | None:
    base = ".".join(name.split(".")[:2])
    twin = base[:-1] if base.endswith("_") and not base.endswith("__") else base
    namespace = name.partition(".")[0] + ".*"
    return next((key for key in (name, base, twin, namespace) if key in _KINDS), None)


def aten(names: str) -> list[str]:
    """`aten.a`, `aten.b` of `a b`."""
    return [f"aten.{name}" for name in names.split()]


def stored(tensor: TensorSpec) -> int:
    """Bytes of GPU memory behind a tensor; the host's tensors have none."""
    return 0 if tensor.device == "cpu" else tensor.touched_bytes


def read(tensors: Iterable[TensorSpec]) -> int:
    """Bytes to read these tensors once."""
    return sum(map(stored, tensors))


written = read


def item_bytes(tensor: TensorSpec) -> int:
    """Bytes of one element."""
    return DTYPE_BYTES[tensor.dtype]


def largest(op: Op) -> int:
    """Elements of the largest tensor that an op reads or writes."""
    return max((t.numel for t in (*op.inputs, *op.outputs)), default=0)


def integer(op: Op, name: str, default: int = 0) -> int:
    """An attribute that is a number."""
    value = op.attr(name)
    return int(value) if isinstance(value, int | float) else default


def integers(op: Op, name: str) -> tuple[int, ...]:
    """An attribute that is a list of numbers (or flags); empty when absent."""
    value = op.attr(name)
    return tuple(int(v) for v in value) if isinstance(value, tuple) else ()
