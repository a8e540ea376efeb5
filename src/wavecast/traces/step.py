"""One training step as data: ops, shapes, phases, modules and memory; kernels when measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wavecast.errors import InvalidInput
from wavecast.results import Brief, Shown

if TYPE_CHECKING:
    from wavecast.hardware.devices import Device
    from wavecast.steps.prediction import Prediction
    from wavecast.traces.arrays import StepArrays


Scalar = int | float | bool | str | tuple[int, ...] | tuple[float, ...] | tuple[bool, ...]
"""The value of an op's attribute."""

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
    """The content of a piece of memory."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    INPUT = "input"
    INTERMEDIATE = "intermediate"
    WORKSPACE = "workspace"
    """Scratch memory of libraries and kernels, which no traced tensor shows."""
    WEIGHT_COPY = "weight_copy"
    """A parameter in a narrower type, as autocast makes it in each step."""


@cache
def _without_overload(name: str) -> str:
    return ".".join(name.split(".")[:2])


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The shape, data type and layout of a tensor."""

    shape: tuple[int, ...]
    dtype: str
    """One of `DTYPE_BYTES`."""
    strides: tuple[int, ...] | None = None
    """The strides in elements. None when the tensor is contiguous."""
    device: str = "cuda"
    """Where its memory is: "cuda" or "cpu"."""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of elements times the bytes of one."""
        return self.numel * DTYPE_BYTES[self.dtype]

    @property
    def touched_bytes(self) -> int:
        """Bytes of memory behind the elements; a broadcast (stride 0) dimension is stored once."""
        if self.strides is None:
            return self.nbytes
        stored = (n for n, stride in zip(self.shape, self.strides, strict=True) if stride)
        return math.prod(stored) * DTYPE_BYTES[self.dtype] if self.numel else 0

    @property
    def channels_last(self) -> bool:
        """Whether channels are contiguous in memory (NHWC, NDHWC)."""
        return (
            self.strides is not None
            and len(self.shape) in (4, 5)
            and self.strides[1] == 1
            and self.shape[1] > 1
        )


@dataclass(frozen=True, slots=True, repr=False)
class Op(Brief):
    """One operator with everything that its time depends on. Equal ops are predicted once."""

    name: str
    """The framework's name, with overload: `aten.add.Tensor`."""
    inputs: tuple[TensorSpec, ...]
    """Its tensor arguments in the order of the schema; lists flattened, absent ones left out."""
    outputs: tuple[TensorSpec, ...]
    """The tensors that it writes, new ones or in place."""
    attrs: tuple[tuple[str, Scalar], ...] = ()
    """Its other arguments, by name."""
    # Kept, since hashing an optimizer's op on a thousand tensors takes longer than predicting it.
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        values = self.name, self.inputs, self.outputs, self.attrs
        object.__setattr__(self, "_hash", hash(values))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Op], tuple[Any, ...]]:
        # Hashes of text differ between processes, so the other process computes the hash anew.
        return Op, (self.name, self.inputs, self.outputs, self.attrs)

    @property
    def base(self) -> str:
        """The name without its overload: `aten.add` for `aten.add.Tensor`."""
        return _without_overload(self.name)

    def attr(self, name: str, default: Scalar | None = None) -> Scalar | None:
        """The attribute of that name, or the default."""
        for key, value in self.attrs:
            if key == name:
                return value
        return default


@dataclass(frozen=True, slots=True)
class Kernel:
    """One run of a kernel, copy or fill. A field is None when the profiler did not record it."""

    name: str
    seconds: float
    """How long it ran."""
    grid: tuple[int, int, int] | None = None
    """The number of thread blocks along each dimension."""
    block: tuple[int, int, int] | None = None
    """The threads of one block along each dimension."""
    registers: int | None = None
    """The registers of one thread."""
    shared_bytes: int | None = None
    """The shared memory of one block, static and dynamic."""
    stream: int = 0
    start_s: float | None = None
    """When it began, in seconds from the beginning of the step."""
    flops: float | None = None
    """The FLOPs that the hardware counted."""
    dram_bytes: float | None = None
    """The bytes that it read from and wrote to GPU memory, counted by the hardware."""

    @property
    def blocks(self) -> int | None:
        """Number of thread blocks."""
        return None if self.grid is None else math.prod(self.grid)

    @property
    def threads(self) -> int | None:
        """Threads of one block."""
        return None if self.block is None else math.prod(self.block)


@dataclass(frozen=True, slots=True, repr=False)
class Call(Brief):
    """One run of an op within the step."""

    op: Op
    phase: Phase
    module: str = ""
    """The dotted path of the module that called it; empty if none did."""
    stream: int = 0
    syncs: bool = False
    """Whether the host waits here until the GPU has finished."""
    kernels: tuple[Kernel, ...] = ()
    """The kernels that it ran on the GPU. Empty unless measured."""
    host_s: float | None = None
    """The seconds that the host needed to issue it, waiting not included. None unless measured."""
    line: str = ""
    """The line of source that a compiled kernel comes from, or that waits for the GPU, as
    "model.py:12"; empty if unknown."""
    reads: tuple[int, ...] = ()
    """The values of `op.inputs`, as positions in `Trace.values`. Empty if not recorded."""
    writes: tuple[int, ...] = ()
    """The values of `op.outputs`. An op in place also has them among `reads`."""
    graph: int | None = None
    """The compiled graph that it belongs to, by number. None for eager code."""


@dataclass(frozen=True, slots=True)
class Measurement(Shown):
    """The GPU on which a step was measured, and the times of the whole step without a profiler."""

    gpu: str
    """The GPU, as the framework names it."""
    seconds: float | None = None
    """One iteration in the steady state, by the wall clock. None when only its parts are known."""
    gpu_s: float | None = None
    """The seconds in which the GPU was busy."""
    host_s: float | None = None
    """The seconds that the host needed to issue one iteration, waiting not included."""
    recorded_s: float | None = None
    """The seconds of the iteration whose parts were recorded, the profiler's overhead included."""
    repeats: int = 1
    """The number of iterations whose median the times above are."""
    software: str = ""
    """The versions of driver and libraries."""
    cpu_s: float | None = None
    """The CPU seconds of one iteration, of all threads and worker processes together."""
    cores: int | None = None
    """The number of CPU cores of the host."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """GPU memory behind one or more tensors, with its lifetime in calls of the step."""

    nbytes: int
    born: int | None
    """The position of the call that allocated it. None when it existed before the step."""
    freed: int | None
    """The position of the call before which it was freed. None when it outlives the step."""
    role: Role
    module: str = ""
    """The module that owns it, if it existed before the step, as parameters do."""


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor of the step: what calls read and write.

    Two tensors that see the same memory in the same way are one value. A view of another shape,
    offset or type is a value of its own.
    """

    spec: TensorSpec
    allocation: int | None = None
    """The memory behind it, as a position in `Trace.allocations`. None for a tensor of the host."""
    view_of: int | None = None
    """The value of which a call made this view, as a position in `Trace.values`."""
    parameter: str = ""
    """The parameter that it is, or whose optimizer state it is: "GPT.blocks.0.fc.weight"."""
    gradient_of: str = ""
    """The parameter whose gradient it is."""


@dataclass(frozen=True, repr=False)
class Trace(Shown):
    """One training step: its calls, in the order in which the host issues them, and its memory.

    ```python
    trace = wavecast.trace(make_step)
    len(trace), trace.calls[0].op.name
    trace.save("step.json.gz")
    ```
    """

    calls: tuple[Call, ...]
    allocations: tuple[Allocation, ...] = ()
    """The GPU memory of the step. Empty when it was not recorded."""
    framework: str = ""
    """The framework and its version: "torch 2.11.0"."""
    capability: tuple[int, int] | None = None
    """The compute capability for which attention kernels were chosen. None when measured."""
    samples: int | None = None
    """The samples (or tokens: `unit`) of one step. None when unknown."""
    unit: str = "samples"
    notes: tuple[str, ...] = ()
    """Caveats for the reader: upper bounds, compiled modules traced as eager, ..."""
    measurement: Measurement | None = None
    """The measurement that recorded the kernels. None when the step was traced, not measured."""
    asks_capability: bool = False
    """Whether the code asked for the GPU's compute capability, and may run otherwise on others."""
    values: tuple[Value, ...] = ()
    """The tensors that the calls read and write. Empty if not recorded, as in a profile."""

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
        """The calls as columns, and the distinct pieces of work among them."""
        from wavecast.traces.arrays import arrays_of

        return arrays_of(self)

    def to_device(self, gpu: Device | str) -> Prediction:
        """The prediction for a GPU: `wavecast.predict` under the name that Habitat gives it."""
        from wavecast.steps.request import predict

        return predict(self, gpu)

    def save(self, path: str | Path) -> None:
        """Write the trace as gzipped JSON, in the format of `wavecast.traces.file`."""
        from wavecast.traces import file

        file.write(self, Path(path))


def load_trace(path: str | Path) -> Trace:
    """The trace in a file written by `Trace.save`.

    ```python
    wavecast.load_trace("step.json.gz")
    ```

    Raises:
        InvalidInput: the file is not a complete and unaltered trace file.
    """
    from wavecast.traces import file

    return file.read(Path(path))


# Calls that contradict themselves, such as a view of six elements as eight.
#
# A trace file may say anything, and the rules of ops trust what a call says of its tensors. Where
# a rule is applied to a call, what goes wrong is told as an InvalidInput that names the call.


CONTRADICTIONS = (ArithmeticError, LookupError, TypeError, ValueError)
"""What Python raises where a rule does not fit the tensors or attributes of a call."""


def contradiction(doing: str, call: Call, error: Exception) -> InvalidInput:
    """The error to raise for a call whose tensors and attributes do not fit its op."""
    shapes = " and ".join(str(tensor.shape) for tensor in call.op.inputs[:3]) or "no tensors"
    results = " and ".join(str(tensor.shape) for tensor in call.op.outputs[:2]) or "nothing"
    return InvalidInput(
        f"{doing} fails at {call.op.base} in {call.module or 'the step'} ({call.phase.value}): it "
        f"makes {results} of {shapes}, which does not fit the op ({type(error).__name__}: {error})"
        "; trace the step again"
    )
