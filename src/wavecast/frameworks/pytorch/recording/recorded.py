"""The calls and the memory of a step while it is being recorded."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from wavecast.traces.step import Allocation, Call, Op, Phase, Role, TensorSpec, Value

_OURS = "wavecast.frameworks.pytorch"


@dataclass(slots=True)
class OpEntry:
    """A recorded call. One that seems to run on the host may later turn out to run on the GPU."""

    op: Op
    phase: Phase
    module: str
    stream: int
    syncs: bool
    host: bool
    reads: tuple[int, ...] = ()
    """The positions of the entries that wrote its inputs, if it runs on the host."""
    line: str = ""
    """The line of source that a compiled kernel comes from, or that waits for the GPU."""
    inputs: tuple[int, ...] = ()
    """The numbers of the values that it reads."""
    outputs: tuple[int, ...] = ()
    """The numbers of the values that it writes."""
    graph: int | None = None


@dataclass(frozen=True, slots=True)
class EmittedKernel:
    """A kernel of compiled code that runs."""

    op: Op
    module: str
    line: str
    """The line of source that it comes from."""
    phase: Phase | None
    """The phase of the step. None for the present one."""
    reads: list[tuple[Any, int]]
    """The tensor behind each input, and where in its storage the input begins."""
    writes: list[tuple[Any, int]]


@dataclass(slots=True)
class LiveMemory:
    """A piece of GPU memory. Its times are positions of entries; -1 is before the step."""

    nbytes: int
    born: int
    freed: int | None = None
    role: Role = Role.INTERMEDIATE
    module: str = ""


@dataclass
class Recording:
    """The recorded calls and memory of one step."""

    calls: tuple[Call, ...]
    allocations: tuple[Allocation, ...]
    values: tuple[Value, ...] = ()


def called_by_autograd() -> bool:
    """Whether the present op was called by C++ code of a backward pass, not by Python code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        frame = frame.f_back
    # On a GPU, backward passes run in a separate thread without Python frames.
    return frame is None or frame.f_code.co_name == "_engine_run_backward"


# The tensors of a step while it is being recorded: a number for each, and what is known of it.


@dataclass(slots=True)
class LiveValue:
    """A tensor that the recorded step reads or writes."""

    spec: TensorSpec
    memory: LiveMemory | None
    """The GPU memory behind it. None for a tensor of the host."""
    view_of: int | None = None
    parameter: str = ""
    gradient_of: str = ""


@dataclass(slots=True)
class _Storage:
    """The tensors of one storage, and what forgets them when it is freed.

    The device is no part of the key: a tensor that seemed to be on the host may turn out to be on
    the GPU.
    """

    numbers: dict[tuple[Any, ...], int] = field(default_factory=dict)
    reference: Any = None


class ValueTable:
    """Numbers of tensors: equal for tensors that see the same memory in the same way.

    So a detached tensor, or one that autograd has saved and unpacked, keeps its number, and a view
    of another shape, offset or type gets its own.
    """

    def __init__(self) -> None:
        self.rows: list[LiveValue] = []
        self._storages: dict[int, _Storage] = {}

    def clear(self) -> None:
        """Forget all numbers, because a new step begins."""
        self.rows.clear()
        self._storages.clear()

    def numbers(
        self,
        tensors: Sequence[Any],
        specs: Sequence[TensorSpec],
        live: dict[int, tuple[LiveMemory, Any]],
        sources: Iterable[int] = (),
    ) -> tuple[int, ...]:
        """The numbers of tensors that a call reads or writes.

        Args:
            tensors: the tensors.
            specs: their specs.
            live: the GPU memory of each storage.
            sources: the numbers of what the call reads. A new value in the same storage is a view
                of the first of them there.
        """
        return tuple(
            self._number(tensor, spec, live, sources)
            for tensor, spec in zip(tensors, specs, strict=True)
        )

    def _number(
        self,
        tensor: Any,
        spec: TensorSpec,
        live: dict[int, tuple[LiveMemory, Any]],
        sources: Iterable[int],
        offset: int | None = None,
    ) -> int:
        key, known = self._storage(tensor)
        begin = tensor.storage_offset() if offset is None else offset
        place = (begin, spec.shape, spec.dtype, spec.strides)
        number = known.numbers.get(place)
        if number is None:
            number = known.numbers[place] = len(self.rows)
            memory = live.get(key)
            here = known.numbers.values()
            base = next((source for source in sources if source in here), None)
            self.rows.append(LiveValue(spec, memory and memory[0], base))
        return number

    def part(
        self,
        tensor: Any,
        whole: TensorSpec,
        offset: int,
        spec: TensorSpec,
        live: dict[int, tuple[LiveMemory, Any]],
    ) -> int:
        """The number of what a compiled kernel sees of a tensor, which may be a view of it.

        Args:
            tensor: the tensor.
            whole: its spec.
            offset: where in its storage the kernel's view begins.
            spec: the spec of that view.
            live: the GPU memory of each storage.
        """
        base = self._number(tensor, whole, live, ())
        return self._number(tensor, spec, live, (base,), offset)

    def _storage(self, tensor: Any) -> tuple[int, _Storage]:
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._storages.get(key)
        if known is None:
            known = self._storages[key] = _Storage()
            known.reference = weakref.ref(storage, self._forgetting(key))
        return key, known

    def _forgetting(self, key: int) -> Any:
        storages = self._storages

        def forget(reference: Any) -> None:
            # Another storage may have the address already.
            if key in storages and storages[key].reference is reference:
                del storages[key]

        return forget

    def of_storage(self, key: int) -> list[LiveValue]:
        """The values that lie in a storage."""
        known = self._storages.get(key)
        return [] if known is None else [self.rows[n] for n in known.numbers.values()]

    def renew(self, key: int) -> None:
        """Give new numbers to the tensors of a storage, whose memory was freed or reallocated."""
        if key in self._storages:
            self._storages[key].numbers.clear()

    def adopt(self, written: Any, tensor: Any, live: dict[int, tuple[LiveMemory, Any]]) -> None:
        """Let the values of one tensor be those of another one."""
        known = self._storages.pop(written.untyped_storage()._cdata, None)
        if known is not None:
            key, storage = self._storage(tensor)
            storage.numbers |= known.numbers
            for number in known.numbers.values():
                self.rows[number].memory = live[key][0] if key in live else None

    def find(self, tensor: Any, spec: TensorSpec) -> LiveValue | None:
        """The value of a tensor, if a call has read or written it."""
        known = self._storages.get(tensor.untyped_storage()._cdata)
        place = (tensor.storage_offset(), spec.shape, spec.dtype, spec.strides)
        number = None if known is None else known.numbers.get(place)
        return None if number is None else self.rows[number]
