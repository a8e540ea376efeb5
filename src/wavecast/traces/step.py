"""What one training step does: ops, shapes, phases, modules, lifetimes; kernels when measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wavecast.hardware.device import Device
    from wavecast.steps.prediction import Prediction
    from wavecast.traces.arrays import StepArrays

Scalar = int | float | bool | str | tuple[int, ...] | tuple[float, ...] | tuple[bool, ...]

DTYPE_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
}


class Phase(StrEnum):
    """The part of the training step in which an op runs."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"


class Role(StrEnum):
    """What a piece of memory holds."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    INPUT = "input"
    INTERMEDIATE = "intermediate"
    WORKSPACE = "workspace"
    """What libraries and kernels take for themselves; no traced tensor shows it."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor without its values. `strides` is None when the tensor is contiguous."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None
    device: str = "cuda"

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, each counted once."""
        return self.numel * DTYPE_BYTES[self.dtype]

    @property
    def touched_bytes(self) -> int:
        """Bytes in memory behind the elements: a broadcast (stride 0) dimension is stored once."""
        if self.strides is None:
            return self.nbytes
        stored = (n for n, stride in zip(self.shape, self.strides, strict=True) if stride)
        return math.prod(stored) * DTYPE_BYTES[self.dtype] if self.numel else 0

    @property
    def channels_last(self) -> bool:
        """Whether the channel dimension is the fastest (NHWC, NDHWC)."""
        return (
            self.strides is not None
            and len(self.shape) in (4, 5)
            and self.strides[1] == 1
            and self.shape[1] > 1
        )


@dataclass(frozen=True, slots=True)
class Op:
    """One operator and everything its time depends on. Equal ops are predicted once.

    `inputs` are its tensor arguments in the order of the framework's schema (lists flattened,
    absent ones left out); `outputs` are the tensors it writes, new or in place; `attrs` are its
    other arguments by name.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    attrs: tuple[tuple[str, Scalar], ...] = ()
    # Hashing an optimizer's op on a thousand tensors takes longer than predicting it.
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        values = self.name, self.inputs, self.outputs, self.attrs
        object.__setattr__(self, "_hash", hash(values))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Op], tuple[Any, ...]]:
        # Hashes of text differ between processes, so another process computes its own.
        return Op, (self.name, self.inputs, self.outputs, self.attrs)

    @property
    def base(self) -> str:
        """The name without its overload: `aten.add` of `aten.add.Tensor`."""
        return ".".join(self.name.split(".")[:2])

    def attr(self, name: str, default: Scalar | None = None) -> Scalar | None:
        """The attribute of that name, or the default."""
        for key, value in self.attrs:
            if key == name:
                return value
        return default


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel, copy or fill as a profiler saw it; None where it did not say."""

    name: str
    seconds: float
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    registers: int | None = None
    """Of one thread."""
    shared_bytes: int | None = None
    """Of one block, static and dynamic."""
    stream: int = 0
    start_s: float | None = None
    """When it began, counted from the beginning of the step."""
    flops: float | None = None
    """Counted by the hardware, as `dram_bytes`, which it read and wrote."""
    dram_bytes: float | None = None

    @property
    def blocks(self) -> int | None:
        """Number of thread blocks."""
        return None if self.grid is None else math.prod(self.grid)

    @property
    def threads(self) -> int | None:
        """Threads of one block."""
        return None if self.block is None else math.prod(self.block)


@dataclass(frozen=True, slots=True)
class Call:
    """One run of an op within the step. `syncs`: the host waits here until the GPU is done."""

    op: Op
    phase: Phase
    module: str = ""
    stream: int = 0
    syncs: bool = False
    kernels: tuple[Kernel, ...] = ()
    """What it ran on the GPU, when measured."""
    host_s: float | None = None
    """What the host needed to issue it, waiting not counted, when measured."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Where a step was measured, and how long it took while nobody looked at its parts."""

    gpu: str
    """The GPU, as the framework names it."""
    seconds: float | None = None
    """One iteration in the steady state, by the wall clock; None: only its parts are known."""
    gpu_s: float | None = None
    """The time in which the GPU was busy."""
    host_s: float | None = None
    """What the host needed to issue it, waiting not counted."""
    recorded_s: float | None = None
    """The iteration whose parts were recorded took this long: the recording's overhead."""
    repeats: int = 1
    """Iterations of which the times above are the median."""
    software: str = ""
    """Driver and libraries."""
    cpu_s: float | None = None
    """The processor time of one iteration, of all threads together."""
    cores: int | None = None
    """Of the host."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """GPU memory behind one or more tensors, from the call that made it to the one that freed it.

    `born` and `freed` count calls: memory with `born == i` exists from call i on; with
    `freed == j` it is gone before call j. None: before the step began; after it ended.
    """

    nbytes: int
    born: int | None
    freed: int | None
    role: Role
    module: str = ""
    """Whose it is, if it was there before the step: a parameter's module."""


@dataclass(frozen=True)
class Trace:
    """One training step, in the order in which the host issues it."""

    calls: tuple[Call, ...]
    allocations: tuple[Allocation, ...] = ()
    framework: str = ""
    capability: tuple[int, int] | None = None
    """The compute capability for which kernels were chosen (attention); None: measured as is."""
    samples: int | None = None
    """Samples (or tokens: `unit`) that one step consumes, when known."""
    unit: str = "samples"
    notes: tuple[str, ...] = ()
    """What the reader must know: upper bounds, compiled modules traced as eager, ..."""
    measurement: Measurement | None = None
    """Where and how calls got their kernels; None: the step was traced, not measured."""

    def __iter__(self) -> Iterator[Call]:
        return iter(self.calls)

    def __len__(self) -> int:
        return len(self.calls)

    @cached_property
    def counts(self) -> dict[Op, int]:
        """How often each distinct op is called, in order of first appearance."""
        counts: dict[Op, int] = {}
        for call in self.calls:
            counts[call.op] = counts.get(call.op, 0) + 1
        return counts

    @cached_property
    def arrays(self) -> StepArrays:
        """The calls by columns, and the distinct pieces of work among them."""
        from wavecast.traces.arrays import arrays_of

        return arrays_of(self)

    def to_device(self, gpu: Device | str) -> Prediction:
        """The step on another GPU, as Habitat's listing asks for it: `wavecast.predict`."""
        from wavecast.steps.prediction import predict

        return predict(self, gpu)

    def save(self, path: str | Path) -> None:
        """Write the trace as gzipped JSON (`wavecast.traces.file` says how)."""
        from wavecast.traces import file

        file.write(self, Path(path))


def load_trace(path: str | Path) -> Trace:
    """The trace in a file written by `Trace.save`; anything else is an InvalidInput."""
    from wavecast.traces import file

    return file.read(Path(path))
