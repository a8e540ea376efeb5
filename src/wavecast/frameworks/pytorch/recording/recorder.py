"""The recorder of a step's ops and memory, on fake tensors or on a real GPU."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any

import torch

from wavecast.frameworks.pytorch.recording.assembly import (
    GradientSum,
    assemble,
    join_sums,
    mark_weight_copies,
)
from wavecast.frameworks.pytorch.recording.recorded import (
    EmittedKernel,
    LiveMemory,
    OpEntry,
    Recording,
    called_by_autograd,
)
from wavecast.frameworks.pytorch.recording.seen_ops import SeenOps
from wavecast.frameworks.pytorch.recording.signature import (
    bind,
    on_host,
    signature_of,
    tensors_of,
    waits,
    with_switches,
)
from wavecast.frameworks.pytorch.recording.structure import HeldTensor, Structure, key_of
from wavecast.frameworks.pytorch.recording.user_lines import all_are_named, known_line
from wavecast.frameworks.pytorch.recording.values import ValueTable
from wavecast.traces.step import Kernel, Op, Phase, Role, Scalar, TensorSpec

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
        self._values = ValueTable()
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
                self._remember(tensor)
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
                self._remember(tensor)
                self._live[key_of(tensor)][0].born = -1

    def follow(self, tensor: Any) -> None:
        """Follow the memory of a GPU tensor that was made just now, and not by a recorded op."""
        self._remember(tensor)

    def adopt(self, written: Any, tensor: Any) -> None:
        """Give a tensor the values that calls wrote to another one, which had no memory."""
        self._values.adopt(written, tensor, self._live)

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
            self._remember(tensor)
        if self._recording:
            op = with_switches(self._ops.op(name, inputs, outputs, attrs))
            self._append(op, inputs, outputs)

    @contextmanager
    def graph(self) -> Iterator[None]:
        """Record the calls inside the block as those of one compiled graph."""
        self._here.graph, self._graphs = self._graphs, self._graphs + 1
        try:
            yield
        finally:
            self._here.graph = None

    def emit(self, run: EmittedKernel, made: list[Any], renewed: Sequence[Any] = ()) -> None:
        """Record a kernel of compiled code.

        Args:
            run: the kernel.
            made: the tensors that are allocated for it.
            renewed: those that take the memory of others, which are not needed any more.
        """
        for tensor in made:
            self._remember(tensor)
        if self.on_op is not None and not self._here.silent:
            self.on_op(None, (), made)
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
            self._values.part(tensor, self._ops.spec(tensor), offset, spec, self._live)
            for (tensor, offset), spec in zip(tensors, specs, strict=True)
        )

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Record no ops inside the block: it makes tensors that a real step makes only once."""
        silent, self._here.silent = self._here.silent, True
        try:
            yield
        finally:
            self._here.silent = silent

    def _records(self) -> bool:
        return self._recording and not self._here.silent

    def promote(self, tensor: Any) -> None:
        """Record that a tensor, which seemed to be on the host, is on the GPU.

        C++ code below autograd makes tensors on the device of its input, which for fake tensors is
        the host. A later op that uses the tensor with GPU tensors shows where it really is.
        """
        self._remember(tensor)
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
        with ExitStack() as stack:
            stack.enter_context(self.structure.watch())
            self._recording = True
            stack.callback(setattr, self, "_recording", False)
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
            entry.inputs = self._values.numbers(inputs, op.inputs, self._live)
            entry.outputs = self._values.numbers(outputs, op.outputs, self._live, entry.inputs)
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

    def _remember(self, tensor: Any) -> None:
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
