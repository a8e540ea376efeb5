"""The trace of a compiled module: its schedule as calls, with values and memory.

Loops are written out, since their number of turns is known. The module's buffers are its arguments,
its results and one piece of temporary memory, whose size XLA says; which tensors are in it follows
from the schedule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wavecast.frameworks.jax.collectives import argument_ranks, is_collective, is_waited_for
from wavecast.frameworks.jax.hlo import Computation, HloModule, Instruction, Shape
from wavecast.frameworks.jax.instruction_ops import PlannedCall, planned_call
from wavecast.frameworks.jax.origins import module_of, phase_of, updates
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
    _plans: dict[tuple[str, str], PlannedCall | None] = field(default_factory=dict)
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
        for one in body.instructions:
            if one.opcode == "parameter":
                known[one.name] = given[int(one.inside)]
                continue
            known[one.name] = self._step(one, [known.get(name, []) for name in one.operands])
        return known[body.root.name]

    def _step(self, one: Instruction, given: list[list[int]]) -> list[int]:
        operands = [value for values in given for value in values]
        match one.opcode:
            case "get-tuple-element":
                index = int(one.attribute("index") or 0)
                return operands[index : index + 1]
            case "tuple" | "opt-barrier" | "add-dependency":
                return operands
            case "bitcast":
                return [self._tensor(one.shape, self.tensors[v].buffer, v) for v in operands[:1]]
            case "constant" | "after-all" | "partition-id" | "replica-id":
                return [self._tensor(shape, None) for shape in one.shapes]
            case "while":
                return self._loop(one, operands)
            case "conditional":
                return self._conditional(one, given)
            case "call" | "async-start":
                body = self.module.called(one, "to_apply") or self.module.called(one)
                return operands if body is None else self._walk(body, given)
        if one.opcode.endswith(("-done", "-update")):
            self._await(operands)
            return operands
        if is_collective(one):
            return self._exchange(one, operands)
        return self._kernel(one, operands)

    def _loop(self, one: Instruction, operands: list[int]) -> list[int]:
        body = self.module.called(one, "body")
        if body is None:
            return operands
        count = one.backend.get("known_trip_count", {}).get("n")
        if count is None:
            self._call(Op(_UNKNOWN_TURNS, self._specs(operands[:1]), ()), one, operands[:1], [])
        turns = 1 if count is None else int(count)
        for turn in range(turns):
            operands = self._walk(body, [operands])
            if len(self.calls) > MOST_CALLS and turn + 1 < turns:
                self.notes[f"{one.name}: {turn + 1} of {turns} turns were written out"] += 1
                break
        return operands

    def _conditional(self, one: Instruction, given: list[list[int]]) -> list[int]:
        """The longest branch: which one runs depends on the data."""
        text = one.attribute("branch_computations").strip("{}")
        names = [name.strip().lstrip("%") for name in text.split(",") if name.strip()]
        names = names or [one.computation("true_computation"), one.computation("false_computation")]
        branches = [self.module.computations[name] for name in names]
        # The first operand is the condition; each branch takes one of the others.
        weights = [self.module.traffic_bytes(branch) for branch in branches]
        chosen = weights.index(max(weights))
        self.notes["a conditional is counted by its longest branch"] += 1
        return self._walk(branches[chosen], given[1 + chosen : 2 + chosen])

    def _exchange(self, one: Instruction, operands: list[int]) -> list[int]:
        """A collective: it begins when its operands are there, and runs beside the kernels."""
        self._order(one, _COMMUNICATION, "stream_wait", stream=_COMPUTE)
        self._stream = _COMMUNICATION
        results = self._kernel(one, operands)
        self._stream = _COMPUTE
        self._events += 1
        self._order(one, _COMMUNICATION, "event_record", event=self._events)
        self._running |= dict.fromkeys(results, (one, self._events))
        if is_waited_for(one):
            self._await(results)
        return results

    def _await(self, values: Sequence[int]) -> None:
        """Let the kernels that follow wait for the collective that writes values."""
        found = [self._running.pop(value) for value in values if value in self._running]
        for event, one in {event: one for one, event in found}.items():
            self._order(one, _COMPUTE, "stream_wait", event=event)

    def _order(self, one: Instruction, on: int, name: str, **attrs: int) -> None:
        op = Op(f"cuda.{name}", (), (), tuple(attrs.items()))
        module = module_of(one.op_name)
        self.calls.append(Call(op, self._phase, module, on, graph=0))
        self.sources.append("")

    def _kernel(self, one: Instruction, operands: list[int]) -> list[int]:
        shapes = [self.tensors[value].shape for value in operands]
        plan = self._plan(one, shapes, operands)
        results = self._results(one, operands)
        if plan is None:
            return results
        reads = [
            self._as(value, spec)
            for spec, position in zip(plan.op.inputs, plan.reads, strict=False)
            if (value := self._operand(position, operands, results)) is not None
        ]
        if len(reads) != len(plan.op.inputs):
            reads = []
        written = [v for v in results if self.tensors[v].shape.spec is not None][: plan.writes]
        writes = [self._as(v, spec) for v, spec in zip(written, plan.op.outputs, strict=False)]
        self._call(plan.op, one, reads, writes, self._updates(one, operands))
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
        self, one: Instruction, shapes: Sequence[Shape], operands: Sequence[int]
    ) -> PlannedCall | None:
        key = one.name, one.attributes[:80]
        if key not in self._plans:
            padded = sum(self._is_padded(value) for value in operands[:2])
            self._plans[key] = planned_call(self.module, one, shapes, padded)
        return self._plans[key]

    def _updates(self, one: Instruction, operands: Sequence[int]) -> bool:
        """Whether a fusion has a part of the optimizer in it."""
        body = self.module.called(one)
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

    def _results(self, one: Instruction, operands: Sequence[int]) -> list[int]:
        """New values for the results; one that is updated in place keeps its memory."""
        shapes = one.shapes
        if one.opcode.endswith("-start"):
            kept = [shape for shape in shapes if shape.dims or shape.element != "u32"]
            shapes = tuple(kept[len(operands) :] or kept)
        at = len(self.calls)
        updated = self._updated(one)
        found = []
        for position, shape in enumerate(shapes):
            source = updated.get(position)
            if source is not None and source < len(operands):
                buffer = self.tensors[operands[source]].buffer
            else:
                buffer = self._buffer(ModuleBuffer(shape.nbytes, at, at))
            found.append(self._tensor(shape, buffer))
            self._makers[found[-1]] = one
        return found

    def _updated(self, one: Instruction) -> Mapping[int, int]:
        """The operand that each result updates in place, by the position of the result."""
        if one.opcode in ("dynamic-update-slice", "scatter"):
            return {0: 0}
        body = self.module.called(one)
        if body is None:
            return {}
        root = body.root
        names = root.operands if root.opcode == "tuple" else (root.name,)
        found = {}
        for position, name in enumerate(names):
            source = body.by_name[name]
            while source.opcode in ("bitcast", "copy", "reshape") and source.operands:
                source = body.by_name[source.operands[0]]
            if source.opcode not in ("dynamic-update-slice", "scatter"):
                continue
            target = body.by_name[source.operands[0]]
            while target.opcode in ("bitcast", "copy", "reshape") and target.operands:
                target = body.by_name[target.operands[0]]
            if target.opcode == "parameter":
                found[position] = int(target.inside)
        return found

    def _specs(self, values: Sequence[int]) -> tuple[TensorSpec, ...]:
        specs = (self.tensors[value].shape.spec for value in values)
        return tuple(spec for spec in specs if spec is not None)

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
        one: Instruction,
        reads: Sequence[int],
        writes: Sequence[int],
        updates: bool = False,
    ) -> None:
        origin = self.module.origin(one)
        name = origin.op_name
        phase = Phase.OPTIMIZER if updates else phase_of(name)
        if phase is None:
            phase = self._phase
        elif phase is Phase.OTHER and self._phase in (Phase.BACKWARD, Phase.OPTIMIZER):
            phase = Phase.OPTIMIZER  # what follows the backward pass and belongs to no gradient
        elif phase is Phase.OTHER:
            phase = Phase.FORWARD
        self._phase = phase
        self.sources.append(one.name)
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
