"""The trace of a compiled module: its schedule as calls, with values and memory.

Loops are written out, since their number of turns is known. The module's buffers are its arguments,
its results and one piece of temporary memory, whose size XLA says; which tensors are in it follows
from the schedule.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from math import prod

import numpy as np

from wavecast.frameworks.jax import libraries
from wavecast.frameworks.jax.fusions import FREE, behind, fusion_op
from wavecast.frameworks.jax.hlo import (
    DTYPES,
    NO_DATA,
    PATH,
    Computation,
    HloModule,
    Instruction,
    Shape,
    specs_of,
)
from wavecast.frameworks.jax.libraries import LibraryCall
from wavecast.traces.graphs import GRAPH_LAUNCH, XLA_CALL
from wavecast.traces.step import Call, Op, Phase, Scalar, TensorSpec

MOST_CALLS = 400_000
"""Loops are written out up to this many calls."""
_UNKNOWN_TURNS = "xla.while_of_unknown_length"
_COMPUTE, _COMMUNICATION = 0, 1
"""XLA runs all collectives on one stream, beside the kernels on another."""


@dataclass
class ModuleBuffer:
    """Memory behind values: its size, when it is written first and read last."""

    nbytes: int
    born: int | None
    last: int
    argument: int | None = None


@dataclass
class ModuleTensor:
    """A value while the schedule is walked."""

    shape: Shape
    buffer: int | None
    view_of: int | None = None
    spec: TensorSpec | None = None


@dataclass
class Schedule:
    """The calls of a module in order, the values that they read and write, and their buffers."""

    module: HloModule
    gpu: str = ""
    """The GPU that it was compiled for."""
    calls: list[Call] = field(default_factory=list)
    tensors: list[ModuleTensor] = field(default_factory=list)
    buffers: list[ModuleBuffer] = field(default_factory=list)
    arguments: list[int] = field(default_factory=list)
    """The values of the module's arguments."""
    results: list[int] = field(default_factory=list)
    """The values of its results."""
    notes: Counter[str] = field(default_factory=Counter)
    sources: list[str] = field(default_factory=list)
    """The instruction of each call; empty for the launch."""
    _plans: dict[tuple[str, str], LibraryCall | None] = field(default_factory=dict)
    _views: dict[tuple[int, TensorSpec], int] = field(default_factory=dict)
    _gradients: set[int] = field(default_factory=set)
    """The values that the backward pass and the optimizer made."""
    _makers: dict[int, Instruction] = field(default_factory=dict)
    _phase: Phase = Phase.FORWARD
    _stream: int = _COMPUTE
    _events: int = 0
    _running: dict[int, tuple[Instruction, int]] = field(default_factory=dict)
    """The collectives that nobody has waited for: their results, and the events of their ends."""

    def run(self) -> None:
        """Walk through the module's schedule."""
        inputs = len(self.module.entry.parameters)
        attrs: list[tuple[str, Scalar]] = [("inputs", inputs), ("gpu", self.gpu)]
        dispatch = Op(XLA_CALL, (), (), (*attrs, *argument_ranks(self.module)))
        for mark in (dispatch, Op(GRAPH_LAUNCH, (), ())):
            self.calls.append(Call(mark, Phase.FORWARD, graph=0))
            self.sources.append("")
        for parameter in self.module.entry.parameters:
            buffer = ModuleBuffer(parameter.shape.nbytes, None, 0, len(self.arguments))
            self.arguments.append(self._tensor(parameter.shape, self._buffer(buffer)))
        self.results += self._walk(self.module.entry, [[v] for v in self.arguments])

    def runs(self) -> dict[str, tuple[Op, int]]:
        """The op of each instruction that ran, and how often it did."""
        counts = Counter(self.sources)
        ops = {name: call.op for name, call in zip(self.sources, self.calls, strict=True)}
        return {name: (ops[name], count) for name, count in counts.items() if name}

    def _buffer(self, buffer: ModuleBuffer) -> int:
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def _tensor(
        self,
        shape: Shape,
        buffer: int | None,
        view_of: int | None = None,
        spec: TensorSpec | None = None,
    ) -> int:
        self.tensors.append(ModuleTensor(shape, buffer, view_of, spec))
        return len(self.tensors) - 1

    def _walk(self, body: Computation, given: Sequence[list[int]]) -> list[int]:
        """Run the instructions of a computation; the values of its result."""
        known: dict[str, list[int]] = {}
        for instruction in body.instructions:
            if instruction.opcode == "parameter":
                known[instruction.name] = given[int(instruction.inside)]
                continue
            known[instruction.name] = self._step(
                instruction, [known.get(name, []) for name in instruction.operands]
            )
        return known[body.root.name]

    def _step(self, instruction: Instruction, given: list[list[int]]) -> list[int]:
        operands = [value for values in given for value in values]
        match instruction.opcode:
            case "get-tuple-element":
                index = int(instruction.attribute("index") or 0)
                return operands[index : index + 1]
            case "tuple" | "opt-barrier" | "add-dependency":
                return operands
            case "bitcast":
                return [
                    self._tensor(instruction.shape, self.tensors[v].buffer, v) for v in operands[:1]
                ]
            case "constant" | "after-all" | "partition-id" | "replica-id":
                return [self._tensor(shape, None) for shape in instruction.shapes]
            case "while":
                return self._loop(instruction, operands)
            case "conditional":
                return self._conditional(instruction, given)
            case "call" | "async-start":
                body = self.module.called(instruction, "to_apply") or self.module.called(
                    instruction
                )
                return operands if body is None else self._walk(body, given)
        if instruction.opcode.endswith(("-done", "-update")):
            self._await(operands)
            return operands
        if is_collective(instruction):
            return self._exchange(instruction, operands)
        return self._kernel(instruction, operands)

    def _loop(self, loop: Instruction, operands: list[int]) -> list[int]:
        body = self.module.called(loop, "body")
        if body is None:
            return operands
        count = loop.backend.get("known_trip_count", {}).get("n")
        if count is None:
            shapes = [self.tensors[value].shape for value in operands[:1]]
            self._call(Op(_UNKNOWN_TURNS, specs_of(shapes), ()), loop, operands[:1], [])
        turns = 1 if count is None else int(count)
        for turn in range(turns):
            operands = self._walk(body, [operands])
            if len(self.calls) > MOST_CALLS and turn + 1 < turns:
                self.notes[f"{loop.name}: {turn + 1} of {turns} turns were written out"] += 1
                break
        return operands

    def _conditional(self, conditional: Instruction, given: list[list[int]]) -> list[int]:
        """The longest branch: which one runs depends on the data."""
        text = conditional.attribute("branch_computations").strip("{}")
        names = [name.strip().lstrip("%") for name in text.split(",") if name.strip()]
        names = names or [
            conditional.computation("true_computation"),
            conditional.computation("false_computation"),
        ]
        branches = [self.module.computations[name] for name in names]
        # The first operand is the condition; each branch takes one of the others.
        weights = [self.module.traffic_bytes(branch) for branch in branches]
        chosen = weights.index(max(weights))
        self.notes["a conditional is counted by its longest branch"] += 1
        return self._walk(branches[chosen], given[1 + chosen : 2 + chosen])

    def _exchange(self, instruction: Instruction, operands: list[int]) -> list[int]:
        """A collective: it begins when its operands are there, and runs beside the kernels."""
        self._order(instruction, _COMMUNICATION, "stream_wait", stream=_COMPUTE)
        self._stream = _COMMUNICATION
        results = self._kernel(instruction, operands)
        self._stream = _COMPUTE
        self._events += 1
        self._order(instruction, _COMMUNICATION, "event_record", event=self._events)
        self._running |= dict.fromkeys(results, (instruction, self._events))
        if is_waited_for(instruction):
            self._await(results)
        return results

    def _await(self, values: Sequence[int]) -> None:
        """Let the kernels that follow wait for the collective that writes values."""
        awaited = [self._running.pop(value) for value in values if value in self._running]
        for event, instruction in {event: instruction for instruction, event in awaited}.items():
            self._order(instruction, _COMPUTE, "stream_wait", event=event)

    def _order(self, instruction: Instruction, on: int, name: str, **attrs: int) -> None:
        op = Op(f"cuda.{name}", (), (), tuple(attrs.items()))
        module = module_of(instruction.op_name)
        self.calls.append(Call(op, self._phase, module, on, graph=0))
        self.sources.append("")

    def _kernel(self, instruction: Instruction, operands: list[int]) -> list[int]:
        shapes = [self.tensors[value].shape for value in operands]
        plan = self._plan(instruction, shapes, operands)
        results = self._results(instruction, operands)
        if plan is None:
            return results
        reads = [
            self._as(value, spec)
            for spec, position in zip(plan.op.inputs, plan.reads, strict=False)
            if (value := self._operand(position, operands, results)) is not None
        ]
        if len(reads) != len(plan.op.inputs):
            reads = []
        written = [v for v in results if self.tensors[v].shape.spec is not None][
            : len(plan.op.outputs)
        ]
        writes = [self._as(v, spec) for v, spec in zip(written, plan.op.outputs, strict=False)]
        self._call(plan.op, instruction, reads, writes, self._updates(instruction, operands))
        if self._phase in (Phase.BACKWARD, Phase.OPTIMIZER):
            self._gradients.update(results)
        at = len(self.calls) - 1
        for value in (*operands, *results):
            buffer = self.tensors[value].buffer
            if buffer is not None:
                self.buffers[buffer].last = max(self.buffers[buffer].last, at)
        return results

    @staticmethod
    def _operand(
        position: int | None, operands: Sequence[int], results: Sequence[int]
    ) -> int | None:
        if position is None:
            return results[0]
        return operands[position] if position < len(operands) else None

    def _plan(
        self, instruction: Instruction, shapes: Sequence[Shape], operands: Sequence[int]
    ) -> LibraryCall | None:
        key = instruction.name, instruction.attributes[:80]
        if key not in self._plans:
            padded = sum(self._is_padded(value) for value in operands[:2])
            self._plans[key] = planned_call(self.module, instruction, shapes, padded)
        return self._plans[key]

    def _updates(self, fusion: Instruction, operands: Sequence[int]) -> bool:
        """Whether a fusion has a part of the optimizer in it."""
        body = self.module.called(fusion)
        positions = {n for n, v in enumerate(operands) if self._base(v) in self._gradients}
        return body is not None and updates(body, positions)

    def _base(self, value: int) -> int:
        """The value of which a value is a view."""
        while (base := self.tensors[value].view_of) is not None:
            value = base
        return value

    def _is_padded(self, value: int) -> bool:
        """Whether a value was made by a kernel that pads along its rows."""
        maker = self._makers.get(self._base(value))
        body = None if maker is None else self.module.called(maker)
        if body is None or body.root.opcode != "pad":
            return False
        shape, source = body.root.shape, body.by_name[body.root.operands[0]].shape
        fastest = shape.minor_to_major[0] if shape.minor_to_major else len(shape.dims) - 1
        return shape.dims[fastest] != source.dims[fastest]

    def _results(self, instruction: Instruction, operands: Sequence[int]) -> list[int]:
        """New values for the results; one that is updated in place keeps its memory."""
        shapes = instruction.shapes
        if instruction.opcode.endswith("-start"):
            kept = [shape for shape in shapes if shape.dims or shape.element != "u32"]
            shapes = tuple(kept[len(operands) :] or kept)
        at = len(self.calls)
        updated = self._updated(instruction)
        values = []
        for position, shape in enumerate(shapes):
            source = updated.get(position)
            if source is not None and source < len(operands):
                buffer = self.tensors[operands[source]].buffer
            else:
                buffer = self._buffer(ModuleBuffer(shape.nbytes, at, at))
            values.append(self._tensor(shape, buffer))
            self._makers[values[-1]] = instruction
        return values

    def _updated(self, instruction: Instruction) -> Mapping[int, int]:
        """The operand that each result updates in place, by the position of the result."""
        if instruction.opcode in ("dynamic-update-slice", "scatter"):
            return {0: 0}
        body = self.module.called(instruction)
        if body is None:
            return {}
        root = body.root
        names = root.operands if root.opcode == "tuple" else (root.name,)
        overwritten = {}
        for position, name in enumerate(names):
            source = behind(body.by_name[name], body)
            if source.opcode not in ("dynamic-update-slice", "scatter"):
                continue
            target = behind(body.by_name[source.operands[0]], body)
            if target.opcode == "parameter":
                overwritten[position] = int(target.inside)
        return overwritten

    def _as(self, value: int, spec: TensorSpec) -> int:
        """The value as a tensor of that shape: itself, or a view of it."""
        tensor = self.tensors[value]
        if (tensor.spec or tensor.shape.spec) == spec:
            return value
        key = value, spec
        if key not in self._views:
            self._views[key] = self._tensor(tensor.shape, tensor.buffer, value, spec)
        return self._views[key]

    def _call(
        self,
        op: Op,
        instruction: Instruction,
        reads: Sequence[int],
        writes: Sequence[int],
        updates: bool = False,
    ) -> None:
        origin = self.module.origin(instruction)
        name = origin.op_name
        phase = Phase.OPTIMIZER if updates else phase_of(name)
        if phase is None:
            phase = self._phase
        elif phase is Phase.OTHER and self._phase in (Phase.BACKWARD, Phase.OPTIMIZER):
            phase = Phase.OPTIMIZER  # what follows the backward pass and belongs to no gradient
        elif phase is Phase.OTHER:
            phase = Phase.FORWARD
        self._phase = phase
        self.sources.append(instruction.name)
        self.calls.append(
            Call(
                op,
                phase,
                module_of(name),
                self._stream,
                line=self.module.line(origin),
                reads=tuple(reads),
                writes=tuple(writes),
                graph=0,
            )
        )


def scheduled(module: HloModule, gpu: str = "") -> Schedule:
    """The schedule of a module, walked through; `gpu` is the one that it was compiled for."""
    schedule = Schedule(module, gpu)
    schedule.run()
    return schedule


# Collectives in HLO, as ops: what is exchanged, among how many ranks, and how far apart.


NAMES = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "send",
    "collective-broadcast": "broadcast",
}
_LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_TILED = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}")
_AXIS = re.compile(r"'([^']*)'(?:=(\d+))?(?::\((\d+)\)(\d+))?")
_TILES = re.compile(r"devices=\[([\d,]+)\]")
_PAIR = re.compile(r"source_target_pairs=\{\{(\d+),(\d+)\}")


def is_collective(instruction: Instruction) -> bool:
    """Whether an instruction exchanges data with other devices, or begins to."""
    return instruction.opcode.removesuffix("-start") in NAMES


def is_waited_for(instruction: Instruction) -> bool:
    """Whether XLA waits for a collective where it begins, instead of going on beside it."""
    config = instruction.backend.get("collective_backend_config", {})
    return not instruction.opcode.endswith("-start") or bool(config.get("is_sync"))


def collective(module: HloModule, instruction: Instruction, inputs: Sequence[Shape]) -> Op:
    """The op of a collective, with the number of ranks of a group and the stride between them."""
    group = first_group(instruction.attributes, module.partitions)
    stride = abs(group[1] - group[0]) if len(group) > 1 else 1
    attrs: tuple[tuple[str, Scalar], ...] = (("ranks", len(group)), ("stride", max(stride, 1)))
    outputs = specs_of(instruction.shapes)
    if instruction.opcode.endswith("-start") and len(outputs) > len(inputs):
        outputs = outputs[len(inputs) :] if len(outputs) >= 2 * len(inputs) else outputs
    name = NAMES[instruction.opcode.removesuffix("-start")]
    return Op(f"nccl.{name}", specs_of(inputs), outputs[: len(inputs)], attrs)


def first_group(text: str, partitions: int) -> list[int]:
    """The first group of ranks that an instruction names; all of them if it names none.

    XLA writes `replica_groups={{0,1},{2,3}}`, `[2,4]<=[4,2]T(1,0)` (an array of all ranks, turned
    and cut into groups), or `mesh['x'=2,'y'=4] {'y'}` (the axes of a mesh along which a group
    lies), and `source_target_pairs={{0,1},...}` for what goes from one rank to another.
    """
    if match := _PAIR.search(text):
        return [int(match[1]), int(match[2])]
    if match := _LISTED.search(text):
        return [int(rank) for rank in match[1].split(",")]
    if match := _TILED.search(text):
        sizes = _integers(match[3])
        ranks = np.arange(prod(sizes)).reshape(sizes)
        if match[4]:
            ranks = ranks.transpose(_integers(match[4]))
        return [int(rank) for rank in ranks.reshape(int(match[1]), int(match[2]))[0]]
    if match := _MESH.search(text):
        return _along(match[1], match[2])
    return list(range(partitions))


def _integers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _along(mesh: str, axes: str) -> list[int]:
    """The ranks of a mesh that lie along axes, or along parts of them, from the first rank on.

    `'x':(2)4` is the part of axis x with 4 places whose neighbours are as far apart as its size,
    the 2 parts before it, leaves.
    """
    sizes = {name: int(size) for name, size, *_ in _AXIS.findall(mesh)}
    strides = {}
    step = 1
    for name in reversed(sizes):
        strides[name] = step
        step *= sizes[name]
    group = [0]
    for name, _, before, part in _AXIS.findall(axes):
        count = int(part) if part else sizes[name]
        inner = sizes[name] // (int(before) * count) if part else 1
        places = [number * inner * strides[name] for number in range(count)]
        group = [rank + place for rank in group for place in places]
    return group


def argument_ranks(module: HloModule) -> tuple[tuple[str, Scalar], ...]:
    """Among how many ranks the step's samples are spread, and each of its weights at most.

    An argument whose shape is also the shape of a result is taken as weights or states. Of any
    other argument the first dimension counts samples. Empty if there is one rank, or if the
    arguments do not show it.
    """
    entry = module.entry
    names = [argument_of(parameter.op_name).split(".") for parameter in entry.parameters]
    depth = 1 if len({name[0] for name in names}) > 1 else 2
    returned = Counter(shape.dims for shape in entry.root.shapes)
    arguments: dict[str, list[tuple[bool, tuple[int, ...]]]] = defaultdict(list)
    for name, parameter in zip(names, entry.parameters, strict=True):
        divisions = _divisions(parameter)
        if divisions is None:
            return ()
        kept = returned[parameter.shape.dims] > 0
        returned[parameter.shape.dims] -= kept
        arguments[".".join(name[:depth])].append((kept, divisions))
    batch, state = [], [1]
    for leaves in arguments.values():
        is_state = 2 * sum(kept for kept, _ in leaves) >= len(leaves)
        if is_state:
            state += [prod(divisions) for _, divisions in leaves]
        else:
            batch += [divisions for _, divisions in leaves if divisions]
    if module.partitions == 1 or not batch or any(d[0] == 1 < prod(d) for d in batch):
        return ()
    return ("sample_ranks", max(d[0] for d in batch)), ("weight_ranks", max(state))


def _divisions(parameter: Instruction) -> tuple[int, ...] | None:
    """Into how many parts each dimension of an argument is cut. None if that was not read.

    XLA writes `{replicated}`, or `{devices=[4,1,2]<=[8] last_tile_dim_replicate}`, whose last
    number, beyond the dimensions, counts equal copies.
    """
    text, rank = parameter.attribute("sharding"), len(parameter.shape.dims)
    if tiles := _TILES.search(text):
        return tuple(_integers(tiles[1])[:rank])
    return (1,) * rank if not text or "replicated" in text or "maximal" in text else None


# The ops that HLO instructions run as: library calls, fused kernels, collectives, copies.


VIEWS = frozenset(
    "bitcast tuple get-tuple-element parameter constant after-all opt-barrier partition-id "
    "replica-id add-dependency domain get-dimension-size".split()
)
"""Instructions that run no kernel."""
_UNREAD = frozenset("infeed outfeed send recv send-done recv-done custom-call".split())
_KERNELS = ("__gpu$xla.gpu.triton", "triton_kernel_call", "mosaic_gpu", "mosaic_gpu_v2")
_KERNEL_NAME = re.compile(r', name = "([^"]*)"')
_CALLBACK = re.compile(r"python_\w*callback")


def planned_call(
    module: HloModule, instruction: Instruction, inputs: Sequence[Shape], padded: int = 0
) -> LibraryCall | None:
    """The op of an instruction; None if it runs no kernel.

    `padded` says how many of its operands were only padded for it.
    """
    if instruction.opcode.removesuffix("-start") in VIEWS or instruction.opcode.endswith("-done"):
        return None
    body = module.called(instruction)
    unknown = _unknown_type(instruction, inputs, body)
    if unknown is not None:
        return _unread(instruction, inputs, f"xla.unknown_type.{unknown}")
    return _of_known_types(module, instruction, inputs, padded, body)


def _of_known_types(
    module: HloModule,
    instruction: Instruction,
    inputs: Sequence[Shape],
    padded: int,
    body: Computation | None,
) -> LibraryCall | None:
    opcode = instruction.opcode.removesuffix("-start")
    if is_collective(instruction):
        return _all(collective(module, instruction, inputs), inputs)
    if opcode == "custom-call":
        return _custom_call(instruction, inputs, padded)
    if opcode in _UNREAD:
        return _unread(instruction, inputs, f"xla.{opcode.replace('-', '_')}")
    if opcode in _SINGLE:
        return _SINGLE[opcode](instruction, inputs)
    if opcode in ("copy", "copy-start") and inputs and inputs[0].host != instruction.shape.host:
        return _all(
            Op("aten._to_copy", specs_of(inputs[:1]), specs_of(instruction.shapes[:1])), inputs
        )
    if body is not None and is_padding(body):
        return None
    if body is not None and instruction.attribute("kind") == "kCustom":
        inner = libraries.nested_matmul(body, instruction)
        if inner is not None:  # its matrices come first, and what is fused is not counted
            return LibraryCall(inner, (0, min(1, len(inputs) - 1)))
    return _all(fusion_op(module, instruction, tuple(inputs)), inputs)


def _unknown_type(
    instruction: Instruction, inputs: Sequence[Shape], body: Computation | None
) -> str | None:
    """An element type that we have no name for, of what an instruction reads, has or writes."""
    inner = () if body is None else (shape for fused in body.instructions for shape in fused.shapes)
    elements = (shape.element for shape in (*instruction.shapes, *inputs, *inner))
    return next((e for e in elements if e not in DTYPES and e not in NO_DATA), None)


def is_padding(body: Computation) -> bool:
    """Whether a fusion only pads a tensor, as XLA does for cuBLAS alone.

    On a GPU, XLA takes a Triton kernel there, which needs no padding.
    """
    return body.root.opcode == "pad" and all(
        instruction.opcode in FREE for instruction in body.instructions
    )


def _all(op: Op, inputs: Sequence[Shape]) -> LibraryCall:
    known = tuple(position for position, shape in enumerate(inputs) if shape.spec is not None)
    return LibraryCall(op, known[: len(op.inputs)])


def _custom_call(instruction: Instruction, inputs: Sequence[Shape], padded: int) -> LibraryCall:
    target = instruction.target
    library_call: LibraryCall | None = None
    if target.startswith(libraries.MATMULS) and len(inputs) > 1:
        library_call = libraries.matmul(instruction, inputs, padded)
    elif target in libraries.CONVOLUTIONS:
        library_call = libraries.convolution(instruction, inputs)
    elif target.startswith(libraries.ATTENTION) and all(len(s.dims) == 4 for s in inputs[:3]):
        library_call = libraries.attention(instruction, inputs)
    if library_call is not None:
        return library_call
    if "TopK" in target or "Sort" in target:
        return _sort(instruction, inputs)
    return _unread(instruction, inputs, f"xla.{_unread_name(instruction)}")


def _unread_name(instruction: Instruction) -> str:
    """The name under which a custom call that nobody can read is unpredicted."""
    target = instruction.target
    if target in _KERNELS:
        name = _KERNEL_NAME.search(instruction.attributes)
        return f"pallas.{_word(name[1])}" if name else "pallas"
    if _CALLBACK.search(target):
        return "host_callback"
    return f"custom_call.{_word(target)}"


def _word(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_") or "unnamed"


def _unread(instruction: Instruction, inputs: Sequence[Shape], name: str) -> LibraryCall:
    """An op that has no formula, so that a prediction names it as unpredicted."""
    return _all(Op(name, specs_of(inputs), specs_of(instruction.shapes)), inputs)


def _sort(instruction: Instruction, inputs: Sequence[Shape]) -> LibraryCall:
    dimension = re.search(r"\d+", instruction.attribute("dimensions"))
    dim = int(dimension[0]) if dimension else len(inputs[0].dims) - 1
    attrs: tuple[tuple[str, Scalar], ...] = (("dim", dim),)
    op = Op("aten.sort", specs_of(inputs[:1]), specs_of(instruction.shapes[:2]), attrs)
    return LibraryCall(op, (0,))


_SINGLE = {"topk": _sort, "fft": libraries.fourier}
"""Instructions that run as one op of a library."""


# Where an HLO instruction comes from: its phase, its module and its argument, from JAX's names.
#
# JAX names the path to each operation: `jit(step)/transpose(jvp(net))/blocks.0/dot_general`.
# Scopes are those of `jax.named_scope`, Flax's modules and Keras's layers; `jvp` marks the forward
# pass of a gradient, `transpose(jvp(...))` the backward pass.


_BACKWARD, _FORWARD = "transpose(", "jvp("
_WRAPPER = re.compile(
    r"^(?:jit|pjit|jvp|transpose|vmap|remat|checkpoint|custom_jvp|custom_vjp|shard_map)\((.*)\)$"
)
_SILENT = frozenset(
    "while body cond branch closed_call core_call checkpoint rematted_computation eval_jaxpr remat "
    "remat2 custom_jvp_call custom_vjp_call pjit shard_map main cond_fun body_fun".split()
)
"""Parts of a path that are no scope of the user's."""
_KEY = re.compile(r"\['([^']*)'\]|\[(\d+)\]|\.(\w+)")


@cache
def phase_of(op_name: str) -> Phase | None:
    """The phase that an operation's path shows; None if it shows none."""
    if _BACKWARD in op_name:
        return Phase.BACKWARD
    if _FORWARD in op_name:
        return Phase.FORWARD
    return Phase.OTHER if op_name else None


def updates(body: Computation, gradients: Container[int]) -> bool:
    """Whether a fusion computes with gradients outside of the differentiated function.

    XLA fuses an update with what the forward or the backward pass does to the same parameter, and
    names the fusion after that.

    Args:
        gradients: the positions of its parameters that follow from gradients.
    """
    derived: set[str] = set()
    for instruction in body.instructions:
        if instruction.opcode == "parameter":
            follows = int(instruction.inside) in gradients
        else:
            phase = phase_of(instruction.op_name) if PATH in instruction.op_name else None
            follows = phase is Phase.BACKWARD or not derived.isdisjoint(instruction.operands)
            if follows and phase is Phase.OTHER:
                return True
        if follows:
            derived.add(instruction.name)
    return False


@cache
def module_of(op_name: str) -> str:
    """The dotted path of the scopes of an operation; empty if it is in none."""
    parts = _split(op_name)
    scopes: list[str] = []
    for position, part in enumerate(parts[:-1]):
        inner = _unwrapped(part) if position else ""  # the first is the jitted function itself
        scopes += [name for name in inner.split("/") if _is_scope(name)]
    # A module of Flax that calls a method of its own is named twice, one after the other.
    return ".".join(scope for scope, _ in groupby(scopes))


def _split(path: str) -> list[str]:
    """The parts of a path; slashes within parentheses do not divide."""
    parts, depth, begin = [], 0, 0
    for at, letter in enumerate(path):
        depth += (letter == "(") - (letter == ")")
        if letter == "/" and depth == 0:
            parts.append(path[begin:at])
            begin = at + 1
    return [*parts, path[begin:]]


def _unwrapped(part: str) -> str:
    while match := _WRAPPER.match(part):
        if part.startswith(("jit(", "pjit(")):
            return ""  # a function of jax.numpy, not a scope
        part = match[1]
    return part


def _is_scope(name: str) -> bool:
    return bool(name) and name not in _SILENT and not re.search(r"->|[,<>()\[\]]", name)


@cache
def argument_of(op_name: str) -> str:
    """The dotted path of an argument: "state.params.blocks.0.qkv"."""
    name = re.match(r"\w+", op_name)
    keys = [next(filter(None, groups)) for groups in _KEY.findall(op_name) if any(groups)]
    return ".".join([*([name[0]] if name else []), *keys])
