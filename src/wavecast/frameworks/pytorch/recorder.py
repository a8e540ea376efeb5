"""A dispatch mode that writes down every op of a step: on fake tensors, or on a real GPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from wavecast.frameworks.pytorch.structure import Structure
from wavecast.trace import Allocation, Call, Kernel, Op, Phase, Role, Scalar, TensorSpec

# Questions about a tensor, and autograd's bookkeeping: they reach a dispatch mode but are no
# operations of the step.
_QUERIES = (
    "prim::",
    "profiler::",
    "aten::is_",
    "aten::sym_",
    "aten::size",
    "aten::stride",
    "aten::detach",
)

# Split by the dispatcher for the CPU only; CUDA has a kernel.
_WHOLE = {"aten::_fused_rms_norm"}

# Longer lists (one number per parameter, in foreach optimizers) say nothing about time.
_LONGEST_LIST = 16

# Ops after which the host holds a value that the GPU had to compute first.
_READS_BACK = {
    "aten._local_scalar_dense",
    "aten.nonzero",
    "aten.masked_select",
    "aten._unique2",
    "aten.unique_consecutive",
    "aten.unique_dim",
    "aten.equal",
    "aten.bincount",
    "aten.repeat_interleave.Tensor",
    "cuda.synchronize",
    "cuda.stream_synchronize",
    "cuda.event_synchronize",
}


@dataclass
class _Entry:
    """A call as it is being recorded: it may still turn out to run on the GPU."""

    op: Op
    phase: Phase
    module: str
    stream: int
    syncs: bool
    host: bool
    reads: tuple[int, ...] = ()


@dataclass
class _Memory:
    """A live or freed piece of GPU memory; times count entries, -1 is before the step."""

    nbytes: int
    born: int
    freed: int | None = None
    role: Role = Role.INTERMEDIATE


@dataclass(frozen=True)
class _Signature:
    """An op's name, and its arguments: their names and whether they are written to."""

    name: str
    arguments: tuple[tuple[str, bool], ...]


@dataclass
class Recording:
    """What a Recorder has seen of one step."""

    calls: tuple[Call, ...]
    allocations: tuple[Allocation, ...]


LABEL = "wavecast#"
"""Prefix of the profiler range around each recorded op; its number is the op's position."""


class RecordingMode(TorchDispatchMode):
    """Has the ops of a real GPU written down as they run, each in a profiler range of its own."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the op, then write it down."""
        kwargs = kwargs or {}
        if _signature(func) is None:
            return func(*args, **kwargs)
        if is_composite(func):
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        with torch.profiler.record_function(f"{LABEL}{len(self.recorder)}"):
            out = func(*args, **kwargs)
        self.recorder.write_down(func, args, kwargs, out)
        return out


class Recorder:
    """Records ops with their phase and module, and the lifetimes of GPU storages.

    Lifetimes are followed from the beginning; ops are written down only within `step()`.
    Where a tensor lives is what its `.device` says.
    """

    def __init__(self, structure: Structure) -> None:
        self.structure = structure
        structure.claim = self._claim
        self.stream = 0
        self.streams = 0
        self.on_call: Callable[[int], None] | None = None
        self._recording = False
        self._entries: list[_Entry] = []
        self._host_writers: dict[int, list[int]] = {}
        self._memories: list[_Memory] = []
        self._live: dict[int, tuple[_Memory, weakref.ref[Any]]] = {}
        self._specs: dict[tuple[Any, ...], TensorSpec] = {}
        self._ops: dict[Op, Op] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def write_down(
        self, func: Any, args: tuple[Any, ...], kwargs: Any, out: Any, known: Op | None = None
    ) -> Op | None:
        """Write an op down that has run; `known` is what it is if the same was seen before."""
        signature = _signature(func)
        if signature is None:
            return None
        returned = _tensors_of(out) or []
        for tensor in returned:
            if tensor.device.type != "cpu":
                self._remember(tensor)
        if not self._recording:
            return known
        if known is not None and not _on_host(known):
            self._append(_with_precision(known), host=False, reads=())
            return known
        inputs, written, attrs = _bind(signature, args, kwargs)
        seen = {id(t) for t in written}
        outputs = written + [t for t in returned if id(t) not in seen]
        op = self._intern(signature.name, inputs, outputs, attrs)
        host = _on_host(op)
        reads = tuple(t.untyped_storage()._cdata for t in inputs) if host else ()
        self._append(_with_precision(op), host, reads)
        if host:
            for tensor in outputs:
                key = tensor.untyped_storage()._cdata
                self._host_writers.setdefault(key, []).append(len(self._entries) - 1)
        return op

    def mark(self, name: str) -> None:
        """Write down an event of the host that no tensor op shows, such as a synchronisation."""
        if self._recording:
            self._append(Op(name, (), ()), host=False, reads=())

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Leave out what runs inside: tensors that stand for something and are never computed."""
        recording, self._recording = self._recording, False
        try:
            yield
        finally:
            self._recording = recording

    def promote(self, tensor: Any) -> None:
        """Learn that a tensor taken for the host's was on the GPU all along.

        C++ code below autograd makes tensors "on the device of its input", which for fake
        tensors is the host. A later op that mixes it with GPU tensors shows where it was.
        """
        self._remember(tensor)
        self._promote_writers(tensor.untyped_storage()._cdata)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Record the ops that run inside, as one training step."""
        self._entries.clear()
        self._host_writers.clear()
        self._memories = [memory for memory, _ in self._live.values()]
        for memory in self._memories:
            memory.born = -1
        with ExitStack() as stack:
            stack.enter_context(self.structure.watch())
            self._recording = True
            stack.callback(setattr, self, "_recording", False)
            yield
            self._assign_roles()

    def recording(
        self, kernels: Mapping[int, tuple[Kernel, ...]] = MappingProxyType({})
    ) -> Recording:
        """The recorded step. Host-only ops are left out; indices count what remains.

        Args:
            kernels: those that ran, by the position of their op when they were measured.
        """
        kept = [i for i, entry in enumerate(self._entries) if not entry.host]
        # position[i]: how many kept calls precede entry i
        position = [0] * (len(self._entries) + 1)
        for index, entry in enumerate(self._entries):
            position[index + 1] = position[index] + (not entry.host)
        calls = tuple(self._call(self._entries[i], kernels.get(i, ())) for i in kept)
        allocations = tuple(
            Allocation(
                nbytes=memory.nbytes,
                born=None if memory.born < 0 else position[memory.born],
                freed=None if memory.freed is None else position[memory.freed],
                role=memory.role,
            )
            for memory in self._memories
        )
        return Recording(calls, allocations)

    def _append(self, op: Op, host: bool, reads: tuple[int, ...]) -> None:
        phase, module = self.structure.place()
        syncs = not host and _waits(op)
        self._entries.append(_Entry(op, phase, module, self.stream, syncs, host, reads))
        if self.on_call is not None:
            self.on_call(len(self._entries))

    def _promote_writers(self, key: int) -> None:
        for index in self._host_writers.pop(key, ()):
            entry = self._entries[index]
            entry.host = False
            entry.op = self._on_gpu(entry.op)
            for read in entry.reads:
                self._promote_writers(read)

    def _on_gpu(self, op: Op) -> Op:
        moved = replace(
            op,
            inputs=tuple(replace(t, device="cuda") for t in op.inputs),
            outputs=tuple(replace(t, device="cuda") for t in op.outputs),
        )
        return self._ops.setdefault(moved, moved)

    def _remember(self, tensor: Any) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live:
            return
        memory = _Memory(storage.nbytes(), len(self._entries) if self._recording else -1)
        self._memories.append(memory)
        self._live[key] = (memory, weakref.ref(storage, lambda _: self._forget(key)))

    def _forget(self, key: int) -> None:
        memory, _ = self._live.pop(key)
        memory.freed = len(self._entries)

    def _claim(self, role: Role, key: int) -> None:
        if key in self._live:
            self._live[key][0].role = role

    def _assign_roles(self) -> None:
        for role, key in self.structure.roles():
            self._claim(role, key)
        for memory in self._memories:
            if memory.born < 0 and memory.role is Role.INTERMEDIATE:
                memory.role = Role.INPUT

    def _intern(
        self, name: str, inputs: list[Any], outputs: list[Any], attrs: list[tuple[str, Scalar]]
    ) -> Op:
        op = Op(
            name,
            tuple(self._spec(t) for t in inputs),
            tuple(self._spec(t) for t in outputs),
            tuple(attrs),
        )
        return self._ops.setdefault(op, op)

    def _spec(self, tensor: Any) -> TensorSpec:
        shape = tuple(tensor.shape)
        strides = None if tensor.is_contiguous() else tensor.stride()
        key = (shape, tensor.dtype, strides, tensor.device.type)
        spec = self._specs.get(key)
        if spec is None:
            dtype = str(tensor.dtype).removeprefix("torch.")
            spec = TensorSpec(shape, dtype, strides and tuple(strides), tensor.device.type)
            self._specs[key] = spec
        return spec

    @staticmethod
    def _call(entry: _Entry, kernels: tuple[Kernel, ...]) -> Call:
        return Call(entry.op, entry.phase, entry.module, entry.stream, entry.syncs, kernels)


@cache
def is_composite(func: Any) -> bool:
    """Whether the dispatcher splits this op by itself above autograd."""
    name = func.name()
    return bool(
        func._can_decompose()
        and name not in _WHOLE
        and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
        and not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA")
    )


@cache
def _signature(func: Any) -> _Signature | None:
    """What to write down of an op; None if it is only a question about a tensor."""
    schema = func._schema
    if schema.name.startswith(_QUERIES):
        return None
    name = str(schema.name).replace("::", ".", 1)
    if schema.overload_name:
        name = f"{name}.{schema.overload_name}"
    arguments = tuple(
        (a.name, a.alias_info is not None and a.alias_info.is_write) for a in schema.arguments
    )
    return _Signature(name, arguments)


def _bind(
    signature: _Signature, args: tuple[Any, ...], kwargs: Any
) -> tuple[list[Any], list[Any], list[tuple[str, Scalar]]]:
    """The tensors an op reads, those it writes to, and its other arguments by name."""
    given = list(zip(signature.arguments, args, strict=False))
    given += [(a, kwargs[a[0]]) for a in signature.arguments[len(args) :] if a[0] in kwargs]
    inputs: list[Any] = []
    written: list[Any] = []
    attrs: list[tuple[str, Scalar]] = []
    for (name, is_written), value in given:
        tensors = _tensors_of(value)
        if tensors is not None:
            inputs += tensors
            if is_written:
                written += tensors
        else:
            attribute = _attribute(value)
            if attribute is not None:
                attrs.append((name, attribute))
    return inputs, written, attrs


def _on_host(op: Op) -> bool:
    return all(t.device == "cpu" for t in (*op.inputs, *op.outputs))


def _tensors_of(value: Any) -> list[Any] | None:
    """The tensors of an argument or result, or None if there is none in it."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [t for item in value for t in _tensors_of(item) or ()] or None
    return None


def _attribute(value: Any) -> Scalar | None:
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype | torch.memory_format):
        return str(value).removeprefix("torch.")
    if isinstance(value, list | tuple) and 0 < len(value) <= _LONGEST_LIST:
        if all(isinstance(v, int) for v in value):
            return tuple(value)
        if all(isinstance(v, int | float) for v in value):
            return tuple(float(v) for v in value)
    return None


def _waits(op: Op) -> bool:
    """Whether the host stands still until the GPU has run this op."""
    if op.name in _READS_BACK or op.base in _READS_BACK:
        return True
    if op.base in ("aten.index", "aten.index_put", "aten.index_put_"):
        return any(t.dtype in ("bool", "uint8") and t.device == "cuda" for t in op.inputs[1:])
    if op.base in ("aten._to_copy", "aten.copy_") and not op.attr("non_blocking", False):
        source = op.inputs[-1 if op.base == "aten.copy_" else 0]
        return bool(op.outputs) and source.device != op.outputs[0].device
    return False


_MATMULS = {"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.addmv", "aten.mv"}
_CONVOLUTIONS = {"aten.convolution", "aten.convolution_backward"}
_RNNS = {"aten._cudnn_rnn", "aten._cudnn_rnn_backward"}


def _with_precision(op: Op) -> Op:
    """Say whether float32 products may be rounded to TF32 under the switches now in force."""
    if op.base in _MATMULS:
        switch = torch.backends.cuda.matmul
    elif op.base in _CONVOLUTIONS:
        switch = torch.backends.cudnn.conv
    elif op.base in _RNNS:
        switch = torch.backends.cudnn.rnn
    else:
        return op
    if not op.inputs or op.inputs[0].dtype != "float32":
        return op
    return _marked(op, "tf32" if switch.fp32_precision == "tf32" else "ieee")


@cache
def _marked(op: Op, precision: str) -> Op:
    return replace(op, attrs=(*op.attrs, ("precision", precision)))
