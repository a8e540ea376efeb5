"""The recorder of a step's ops and memory, on fake tensors or on a real GPU."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType, MappingProxyType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from wavecast.frameworks.pytorch.recording.signature import (
    bind,
    is_composite,
    on_host,
    signature_of,
    tensors_of,
    waits,
    with_switches,
)
from wavecast.frameworks.pytorch.recording.structure import HeldTensor, Structure, key_of
from wavecast.frameworks.pytorch.recording.user_lines import all_are_named, known_line
from wavecast.frameworks.replacements import replacing
from wavecast.traces.step import (
    Allocation,
    Call,
    Kernel,
    Op,
    Phase,
    Role,
    Scalar,
    TensorSpec,
    Value,
)

# The calls and the memory of a step while it is being recorded.


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
    of another shape, offset or type gets its own. `live` has the GPU memory of each storage.
    """

    def __init__(self, live: Mapping[int, tuple[LiveMemory, Any]]) -> None:
        self._live = live
        self.rows: list[LiveValue] = []
        self._storages: dict[int, _Storage] = {}

    def clear(self) -> None:
        """Forget all numbers, because a new step begins."""
        self.rows.clear()
        self._storages.clear()

    def numbers(
        self, tensors: Sequence[Any], specs: Sequence[TensorSpec], sources: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """The numbers of tensors that a call reads or writes.

        A new value is a view of the first of the `sources`, which the call reads, that lies in the
        same storage.
        """
        pairs = zip(tensors, specs, strict=True)
        return tuple(self._number(tensor, spec, sources) for tensor, spec in pairs)

    def _number(
        self, tensor: Any, spec: TensorSpec, sources: Sequence[int], offset: int | None = None
    ) -> int:
        key, known = self._storage(tensor)
        begin = tensor.storage_offset() if offset is None else offset
        place = (begin, spec.shape, spec.dtype, spec.strides)
        number = known.numbers.get(place)
        if number is None:
            number = known.numbers[place] = len(self.rows)
            memory = self._live.get(key)
            here = known.numbers.values()
            base = next((source for source in sources if source in here), None)
            self.rows.append(LiveValue(spec, memory and memory[0], base))
        return number

    def part(self, tensor: Any, whole: TensorSpec, offset: int, spec: TensorSpec) -> int:
        """The number of what a compiled kernel sees of a tensor, which may be a view of it.

        `whole` is the spec of the tensor; the view begins at `offset` of its storage.
        """
        base = self._number(tensor, whole, ())
        return self._number(tensor, spec, (base,), offset)

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

    def adopt(self, written: Any, tensor: Any) -> None:
        """Let the values of one tensor be those of another one."""
        known = self._storages.pop(written.untyped_storage()._cdata, None)
        if known is not None:
            key, storage = self._storage(tensor)
            storage.numbers |= known.numbers
            for number in known.numbers.values():
                self.rows[number].memory = self._live[key][0] if key in self._live else None

    def find(self, tensor: Any, spec: TensorSpec) -> LiveValue | None:
        """The value of a tensor, if a call has read or written it."""
        known = self._storages.get(tensor.untyped_storage()._cdata)
        place = (tensor.storage_offset(), spec.shape, spec.dtype, spec.strides)
        number = None if known is None else known.numbers.get(place)
        return None if number is None else self.rows[number]


_aten = torch.ops.aten
_CASTS = {_aten._to_copy.default: (0, None), _aten.copy_.default: (1, 0)}
"""Ops that may cast a weight: the arguments that are the source and, if it exists, the target."""


class _ThreadRecording(threading.local):
    """The present thread's stream and compiled graph, and whether its ops are recorded."""

    stream = 0
    silent = False
    graph: int | None = None


class OpRecorder:
    """Records ops with their phases and modules, and the lifetimes of GPU memory.

    Memory is followed from the beginning, but ops are recorded only within `step()`. A tensor is
    where its `.device` says.
    """

    def __init__(self, structure: Structure) -> None:
        self.structure = structure
        structure.claim = self._claim
        self._here = _ThreadRecording()
        self.streams = 0
        self._events = 0
        self._graphs = 0
        self.on_call: Callable[[int], None] | None = None
        self.on_op: Callable[[Any, tuple[Any, ...], list[Any]], None] | None = None
        """Called with each op, its arguments and the tensors that it returned, recorded or not."""
        self._recording = False
        self._entries: list[OpEntry] = []
        self._host_writers: dict[int, list[int]] = {}
        self._memories: list[LiveMemory] = []
        self._sums: list[GradientSum] = []
        self._casts: list[tuple[LiveMemory, LiveMemory]] = []
        """Memory that holds another memory's values in a narrower type: the source and the copy."""
        self._live: dict[int, tuple[LiveMemory, weakref.ref[Any]]] = {}
        self._values = ValueTable(self._live)
        self._ops = SeenOps()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def stream(self) -> int:
        """The number of the stream on which the present thread runs its ops."""
        return self._here.stream

    @stream.setter
    def stream(self, number: int) -> None:
        self._here.stream = number

    def write_down(
        self, func: Any, args: tuple[Any, ...], kwargs: Any, out: Any, seen_op: Op | None = None
    ) -> Op | None:
        """Record an op that has run, and return it. `seen_op` is the op if it was seen before."""
        signature = signature_of(func)
        if signature is None:
            return None
        returned = tensors_of(out) or []
        for tensor in returned:
            if tensor.device.type == "cuda":
                self.follow(tensor)
        if self.on_op is not None and not self._here.silent:
            self.on_op(func, args, returned)
        if not self._records():
            return seen_op
        self._notice(func, args, out)
        inputs, written, attrs = bind(signature, args, kwargs)
        seen = {id(t) for t in written}
        outputs = written + [t for t in returned if id(t) not in seen]
        if seen_op is not None and not on_host(seen_op):
            self._append(with_switches(seen_op), inputs, outputs)
            return seen_op
        op = self._ops.op(signature.name, inputs, outputs, attrs)
        host = on_host(op)
        self._append(with_switches(op), inputs, outputs, host)
        if host:
            for tensor in outputs:
                self._remember_writer(tensor.untyped_storage())
        return op

    def meet(self, tensors: Iterable[Any]) -> None:
        """Follow the memory of tensors that an op will read. Some were made before recording."""
        for tensor in tensors:
            if tensor.device.type == "cuda" and key_of(tensor) not in self._live:
                self.follow(tensor)
                self._live[key_of(tensor)][0].born = -1

    def adopt(self, written: Any, tensor: Any) -> None:
        """Give a tensor the values that calls wrote to another one, which had no memory."""
        self._values.adopt(written, tensor)

    def take_inside(self, nbytes: int) -> None:
        """Record the workspace of the op that will be recorded next."""
        if self._records() and nbytes > 0:
            position = len(self._entries)
            self._memories.append(LiveMemory(nbytes, position, position + 1, Role.WORKSPACE))

    def keep(self, nbytes: int) -> None:
        """Record memory that libraries have held since before the step."""
        if nbytes > 0:
            self._memories.append(LiveMemory(nbytes, -1, None, Role.WORKSPACE))

    def mark(self, name: str, on: int | None = None, /, **attrs: Scalar) -> None:
        """Record an event of the host that is not a tensor op, such as a synchronisation.

        Args:
            name: its name.
            on: the stream that it concerns. None for that of the present thread.
            attrs: what else to record.
        """
        if self._records():
            with self.on_stream(on):
                self._append(Op(name, (), (), tuple(attrs.items())))

    def count_event(self) -> int:
        """A number for an event that is recorded on a stream now."""
        self._events += 1
        return self._events

    @contextmanager
    def on_stream(self, stream: int | None) -> Iterator[None]:
        """Record the ops inside the block on a stream. None for the present one."""
        before = self.stream
        self.stream = before if stream is None else stream
        try:
            yield
        finally:
            self.stream = before

    def record(
        self, name: str, inputs: list[Any], outputs: list[Any], attrs: list[tuple[str, Scalar]]
    ) -> None:
        """Record an op on the GPU that does not come through torch's dispatcher."""
        for tensor in outputs:
            self.follow(tensor)
        if self._recording:
            op = with_switches(self._ops.op(name, inputs, outputs, attrs))
            self._append(op, inputs, outputs)

    @contextmanager
    def graph(self) -> Iterator[None]:
        """Record the calls inside the block as those of one compiled graph."""
        number, self._graphs = self._graphs, self._graphs + 1
        with replacing() as replace:
            replace(self._here, graph=number)
            yield

    def emit(self, run: EmittedKernel, allocated: list[Any], renewed: Sequence[Any] = ()) -> None:
        """Record a kernel of compiled code.

        The tensors in `allocated` are made for it; those in `renewed` take the memory of others,
        which are not needed any more.
        """
        for tensor in allocated:
            self.follow(tensor)
        if self.on_op is not None and not self._here.silent:
            self.on_op(None, (), allocated)
        if self._records():
            self._append(self._ops.known(run.op))
            entry = self._entries[-1]
            entry.module, entry.line, entry.phase = run.module, run.line, run.phase or entry.phase
            entry.inputs = self._parts(run.reads, run.op.inputs)
            for tensor in renewed:
                self._values.renew(key_of(tensor))
            entry.outputs = self._parts(run.writes, run.op.outputs)

    def _parts(
        self, tensors: Sequence[tuple[Any, int]], specs: Sequence[TensorSpec]
    ) -> tuple[int, ...]:
        return tuple(
            self._values.part(tensor, self._ops.spec(tensor), offset, spec)
            for (tensor, offset), spec in zip(tensors, specs, strict=True)
        )

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Record no ops inside the block: it makes tensors that a real step makes only once."""
        with replacing() as replace:
            replace(self._here, silent=True)
            yield

    def _records(self) -> bool:
        return self._recording and not self._here.silent

    def promote(self, tensor: Any) -> None:
        """Record that a tensor, which seemed to be on the host, is on the GPU.

        C++ code below autograd makes tensors on the device of its input, which for fake tensors is
        the host. A later op that uses the tensor with GPU tensors shows where it really is.
        """
        self.follow(tensor)
        self._promote(self._writers_of([tensor]))
        for value in self._values.of_storage(key_of(tensor)):
            value.memory = self._live[key_of(tensor)][0]

    @contextmanager
    def step(self) -> Iterator[None]:
        """Record the ops that run inside the block, as one training step."""
        self._entries.clear()
        self._sums.clear()
        self._casts.clear()
        self._host_writers.clear()
        self._values.clear()
        self._graphs = 0
        self._memories = [memory for memory, _ in self._live.values()]
        for memory in self._memories:
            memory.born = -1
        with self.structure.watch(), replacing() as replace:
            replace(self, _recording=True)
            yield
            self.assign_roles()

    def ops(self, begin: int, end: int) -> tuple[Op, ...]:
        """The ops on the GPU among the entries from `begin` to before `end`."""
        return tuple(entry.op for entry in self._entries[begin:end] if not entry.host)

    def recording(
        self,
        kernels: Mapping[int, tuple[Kernel, ...]] = MappingProxyType({}),
        host_s: Mapping[int, float] = MappingProxyType({}),
    ) -> Recording:
        """The recorded step, without ops that run on the host only.

        Args:
            kernels: the measured kernels of each op, keyed by its position in the recording.
            host_s: the host's measured time for each op, keyed in the same way.
        """
        heirs = join_sums(self._sums)
        self._sums.clear()
        self._memories = [memory for memory in self._memories if id(memory) not in heirs]
        for value in self._values.rows:
            value.memory = heirs.get(id(value.memory), value.memory)
        mark_weight_copies(self._casts)
        return assemble(self._entries, self._memories, self._values.rows, kernels, host_s)

    def _notice(self, func: Any, args: tuple[Any, ...], out: Any) -> None:
        """Remember what an op says about the content of memory."""
        if func is _aten.add.Tensor:
            self._notice_sum(args[0], out)
        elif func in _CASTS:
            source, target = _CASTS[func]
            self._notice_cast(args[source], out if target is None else args[target])

    def _notice_sum(self, first: Any, result: Any) -> None:
        if self.structure.place()[0] is Phase.BACKWARD and called_by_autograd():
            term, total = (self._live.get(key_of(tensor)) for tensor in (first, result))
            if term is not None and total is not None:
                self._sums.append((len(self._entries), term[0], total[0]))

    def _notice_cast(self, source: Any, copy: Any) -> None:
        if copy.element_size() < source.element_size():
            wide, narrow = (self._live.get(key_of(tensor)) for tensor in (source, copy))
            if wide is not None and narrow is not None:
                self._casts.append((wide[0], narrow[0]))

    def _append(
        self, op: Op, inputs: Sequence[Any] = (), outputs: Sequence[Any] = (), host: bool = False
    ) -> None:
        phase, module = self.structure.place()
        syncs = not host and waits(op)
        entry = OpEntry(op, phase, module, self.stream, syncs, host, graph=self._here.graph)
        if syncs or all_are_named():
            entry.line = known_line()
        if host:
            entry.reads = self._writers_of(inputs)
        if inputs or outputs:  # those of a compiled kernel follow
            entry.inputs = self._values.numbers(inputs, op.inputs)
            entry.outputs = self._values.numbers(outputs, op.outputs, entry.inputs)
        self._entries.append(entry)
        if self.on_call is not None:
            self.on_call(len(self._entries))

    def _writers_of(self, tensors: Sequence[Any]) -> tuple[int, ...]:
        """The positions of the host's ops that wrote to these tensors."""
        keys = (t.untyped_storage()._cdata for t in tensors)
        return tuple(index for key in keys for index in self._host_writers.get(key, ()))

    def _remember_writer(self, storage: Any) -> None:
        key = storage._cdata
        if key not in self._host_writers:
            self._host_writers[key] = []
            # Forget it when it is freed, because another storage may get the same address.
            weakref.finalize(storage, self._host_writers.pop, key, None).atexit = False
        self._host_writers[key].append(len(self._entries) - 1)

    def _promote(self, positions: tuple[int, ...]) -> None:
        for index in positions:
            entry = self._entries[index]
            if entry.host:
                entry.host = False
                entry.op = self._ops.on_gpu(entry.op)
                entry.syncs = waits(entry.op)
                self._promote(entry.reads)

    def follow(self, tensor: Any) -> None:
        """Follow the memory of a GPU tensor from now on."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live:
            return
        memory = LiveMemory(storage.nbytes(), self._now())
        self._memories.append(memory)
        self._live[key] = (memory, weakref.ref(storage, lambda _: self._forget(key)))

    def _forget(self, key: int) -> None:
        self._live.pop(key)[0].freed = len(self._entries)

    def resize(self, storage: Any, nbytes: int) -> None:
        """Follow a storage whose memory is freed or allocated while its tensors live on."""
        known = self._live.get(storage._cdata)
        if known is None or known[0].nbytes == nbytes:
            return
        old, reference = known
        old.freed = len(self._entries)
        memory = LiveMemory(nbytes, self._now(), role=old.role, module=old.module)
        if nbytes:
            self._memories.append(memory)
        self._live[storage._cdata] = (memory, reference)
        self._values.renew(storage._cdata)

    def _now(self) -> int:
        """The present position. -1 before the recorded step."""
        return len(self._entries) if self._records() else -1

    def _claim(self, held: HeldTensor) -> None:
        """Note what a tensor of a module or optimizer is."""
        known = self._live.get(key_of(held.tensor))
        if known is not None:
            known[0].role = held.role
        value = self._values.find(held.tensor, self._ops.spec(held.tensor))
        if value is not None and held.parameter:
            if held.role is Role.GRADIENT:
                value.gradient_of = held.parameter
            else:
                value.parameter = held.parameter

    def assign_roles(self) -> None:
        """Give each piece of memory its role, while the user's objects still exist."""
        for held in self.structure.held():
            self.meet([held.tensor])
            self._claim(held)
            if key_of(held.tensor) in self._live:
                self._live[key_of(held.tensor)][0].module = held.module
        for memory in self._memories:
            if memory.born < 0 and memory.role is Role.INTERMEDIATE:
                memory.role = Role.INPUT


# The distinct tensors and ops of a recording, each kept once.


class SeenOps:
    """Specs of tensors and ops: equal ones are one object."""

    def __init__(self) -> None:
        self._specs: dict[tuple[Any, ...], TensorSpec] = {}
        self._ops: dict[Op, Op] = {}

    def spec(self, tensor: Any) -> TensorSpec:
        """The spec of a tensor."""
        shape = tuple(tensor.shape)
        strides = None if tensor.is_contiguous() else tensor.stride()
        key = (shape, tensor.dtype, strides, tensor.device.type)
        spec = self._specs.get(key)
        if spec is None:
            dtype = str(tensor.dtype).removeprefix("torch.")
            spec = TensorSpec(shape, dtype, strides and tuple(strides), tensor.device.type)
            self._specs[key] = spec
        return spec

    def op(
        self,
        name: str,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        attrs: Sequence[tuple[str, Scalar]],
    ) -> Op:
        """The op on these tensors."""
        read, written = (tuple(self.spec(t) for t in tensors) for tensors in (inputs, outputs))
        return self.known(Op(name, read, written, tuple(attrs)))

    def known(self, op: Op) -> Op:
        """The op that is equal to this one, and was seen first."""
        return self._ops.setdefault(op, op)

    def on_gpu(self, op: Op) -> Op:
        """The op with all its tensors on the GPU."""
        return self.known(
            replace(
                op,
                inputs=tuple(replace(t, device="cuda") for t in op.inputs),
                outputs=tuple(replace(t, device="cuda") for t in op.outputs),
            )
        )


# A recorded step put together: calls, memory and values without what ran on the host only.


GradientSum = tuple[int, LiveMemory, LiveMemory]
"""A sum of gradients made by autograd: position, memory of the first term and of the result."""


def assemble(
    entries: Sequence[OpEntry],
    memories: Sequence[LiveMemory],
    values: Sequence[LiveValue],
    kernels: Mapping[int, tuple[Kernel, ...]],
    host_s: Mapping[int, float],
) -> Recording:
    """The recorded step, without ops that run on the host only."""
    # position[i] is the number of kept calls before entry i.
    position = [0] * (len(entries) + 1)
    # The values in order of first use, with their specs there.
    specs: dict[int, TensorSpec] = {}
    for index, entry in enumerate(entries):
        position[index + 1] = position[index] + (not entry.host)
        if not entry.host:
            values_used = zip(entry.inputs, entry.op.inputs, strict=True)
            values_made = zip(entry.outputs, entry.op.outputs, strict=True)
            for old, spec in (*values_used, *values_made):
                specs.setdefault(old, spec)
    number = {old: new for new, old in enumerate(specs)}
    allocation_of = {id(memory): i for i, memory in enumerate(memories)}
    return Recording(
        calls=tuple(
            Call(
                op=entry.op,
                phase=entry.phase,
                module=entry.module,
                stream=entry.stream,
                syncs=entry.syncs,
                kernels=kernels.get(index, ()),
                host_s=host_s.get(index),
                line=entry.line,
                reads=tuple(number[value] for value in entry.inputs),
                writes=tuple(number[value] for value in entry.outputs),
                graph=entry.graph,
            )
            for index, entry in enumerate(entries)
            if not entry.host
        ),
        allocations=tuple(
            Allocation(
                nbytes=memory.nbytes,
                born=None if memory.born < 0 else position[memory.born],
                freed=None if memory.freed is None else position[memory.freed],
                role=memory.role,
                module=memory.module,
            )
            for memory in memories
        ),
        values=tuple(
            _value(values[old], spec, number, allocation_of.get(id(values[old].memory)))
            for old, spec in specs.items()
        ),
    )


def _value(
    value: LiveValue, spec: TensorSpec, number: Mapping[int, int], allocation: int | None
) -> Value:
    return Value(
        spec=spec,
        allocation=allocation if spec.device == "cuda" else None,
        view_of=None if value.view_of is None else number.get(value.view_of),
        parameter=value.parameter,
        gradient_of=value.gradient_of,
    )


def join_sums(sums: Sequence[GradientSum]) -> dict[int, LiveMemory]:
    """Let a sum of gradients reuse the memory of its first term, if nothing else holds that.

    Autograd adds gradients in place (torch/csrc/autograd/input_buffer.cpp), but not while a
    dispatch mode is active.

    Returns:
        The memory that holds each such sum, by the identity of the memory that held it before.
    """
    heirs: dict[int, LiveMemory] = {}
    for position, first, total in sums:
        term = heirs.get(id(first), first)
        if term.freed == position + 1 and term.nbytes == total.nbytes:
            term.freed, term.role, term.module = total.freed, total.role, total.module
            heirs[id(total)] = term
    return heirs


def mark_weight_copies(casts: Iterable[tuple[LiveMemory, LiveMemory]]) -> None:
    """Give its role to memory into which weights were cast during the step."""
    for source, copy in casts:
        is_new = copy.born >= 0 and copy.role is Role.INTERMEDIATE
        if source.role is Role.PARAMETER and is_new:
            copy.role = Role.WEIGHT_COPY


# Dispatch modes that record the ops that run on a real GPU.


LABEL = "wavecast#"
"""The prefix of the profiler range around each recorded op. The op's position follows it."""


class RecordingMode(TorchDispatchMode):
    """Records the ops that run on a real GPU, each inside a profiler range."""

    def __init__(self, recorder: OpRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the op, then record it."""
        kwargs = kwargs or {}
        if signature_of(func) is None:
            return func(*args, **kwargs)
        if is_composite(func):
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        self.recorder.meet(tensors_of((args, tuple(kwargs.values()))) or [])
        out = self._run(func, args, kwargs)
        self.recorder.write_down(func, args, kwargs, out)
        return out

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        with torch.profiler.record_function(f"{LABEL}{len(self.recorder)}"):
            return func(*args, **kwargs)


class MemoryMode(RecordingMode):
    """Also records the workspace of each op: memory that it allocates and frees while it runs.

    It asks the allocator before and after each op, which takes the host longer than the op.
    """

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        before = held_bytes()["current"]
        torch.cuda.reset_peak_memory_stats()
        out = func(*args, **kwargs)
        after = held_bytes()
        self.recorder.take_inside(after["peak"] - max(before, after["current"]))
        return out


def held_bytes() -> dict[str, int]:
    """The allocated bytes: "current", and the "peak" since it was last reset."""
    statistics: dict[str, int] = torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]
    return statistics
