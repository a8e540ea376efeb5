"""Tensor and sequence parallelism: the products of each layer divided among ranks.

Layers by columns give each rank some of the features (heads, inner units); layers by rows take
them and give partial sums, which are reduced over the ranks. Between the two, each rank works on
its own part. With sequence parallelism the rest is divided by position: a gather precedes the
layers by columns, and a reduce-scatter follows those by rows (Korthikanti et al. 2022). As with
DTensor, what was gathered is kept for the backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wavecast.errors import InvalidInput
from wavecast.parallel.editing import COMPUTE, TRANSFERS, Edit, wait
from wavecast.parallel.exchanges import exchange
from wavecast.parallel.mixtures import Mixtures
from wavecast.parallel.plans import Plan, fitting, plan_of
from wavecast.parallel.products import LayerPass, Side, layers_of, runs_of, splits_in_run
from wavecast.parallel.sequence import Positions
from wavecast.parallel.split_memory import (
    is_list_op,
    share_memory,
    shared_lists,
    summed_gradients,
    weights_of,
)
from wavecast.parallel.splits import (
    Indivisible,
    Split,
    Splits,
    adopted,
    after,
    share,
    share_op,
)
from wavecast.parallel.strategy import Parallel, RankAxis
from wavecast.traces.step import Call, Op, Phase, Role, TensorSpec, Trace


def with_tensor(
    trace: Trace, strategy: Parallel, plan: Mapping[str, str] | None = None
) -> tuple[Trace, tuple[str, ...]]:
    """The step of one tensor rank, and what was assumed.

    Args:
        trace: forward pass, backward pass and optimizer of one micro-batch.
        strategy: how the step is spread.
        plan: how modules are divided; by default `strategy.tensor_plan`, else what the rule finds.

    Raises:
        InvalidInput: the model has no products that can be paired, or its widths and heads cannot
            be divided.
    """
    axis = strategy.axes["tensor"]
    if axis.size == 1:
        return trace, ()
    chosen = plan_of(trace, plan if plan is not None else strategy.tensor_plan, axis.size)
    division = _TensorRank(trace, chosen, axis, strategy.sequence)
    division.divide()
    return division.made(), chosen.notes


@dataclass
class _TensorRank:
    """A trace that is being divided among tensor ranks."""

    trace: Trace
    plan: Plan
    axis: RankAxis
    sequence: bool
    latest: dict[TensorSpec, Split] = field(default_factory=dict)
    """The division of the last tensor of each kind that was written."""
    ops: dict[int, Op] = field(default_factory=dict)
    """What one rank runs, by position."""
    kept: dict[int, Op] = field(default_factory=dict)
    """Where a rank keeps less than it computed: the op with what it keeps."""
    released: dict[int, int] = field(default_factory=dict)
    """Allocations, by index, that a rank frees earlier, and the call before which it does."""
    saved: dict[TensorSpec, Split] = field(default_factory=dict)
    """`latest`, as it was where the division by position ended."""
    partial: set[int] = field(default_factory=set)
    """The calls, but for those of divided layers, that read something divided."""

    def __post_init__(self) -> None:
        self.edit = Edit(self.trace)
        every = layers_of(self.trace)
        runs = runs_of(self.trace, every)
        self.runs = [run for run in runs if run.layer.position in self.plan.styles]
        # The gradients of a layer that is not divided are whole, whatever has the same shapes.
        others = [run for run in runs if run.layer.position not in self.plan.styles]
        self.whole = {
            position
            for run in others
            if run.layer.position in self.plan.whole or not (run.forward or self.sequence)
            for position in range(run.start, run.end)
        }
        self.closing = self._closing()
        self.mixtures = Mixtures.of(self.trace, divided=not self.sequence)
        self.positions = Positions.of(self.trace, self.plan, self.runs) if self.sequence else None

    def _closing(self) -> set[int]:
        """The starts of the backward runs after which the gradient of an input is complete."""
        group_of = {
            layer.position: index
            for index, group in enumerate(self.plan.groups)
            for layer in group.columns
        }
        last: dict[int, int] = {}
        for run in self.runs:
            group = group_of.get(run.layer.position)
            if run.forward or group is None or run.position_of("input") is None:
                continue
            joint = (self.plan.joint or self.sequence) and self.plan.groups[group].reads_one
            last[group if joint else -1 - run.start] = run.start
        return set(last.values())

    def divide(self) -> None:
        run_at = {p: run for run in self.runs for p in range(run.start, run.end)}
        for position, call in enumerate(self.trace):
            if is_list_op(call):
                continue
            run = run_at.get(position)
            if self.positions is not None:
                self._begin_or_end(position, self.positions)
            inputs, outputs = self._splits(position, call, run)
            self.ops[position] = share_op(call.op, inputs, outputs, self.axis.size)
            for tensor, split in zip(call.op.outputs, outputs, strict=True):
                if run is None or run.passes_on(position, tensor):
                    self._write(tensor, split)
            if run is not None:
                self._exchange_around(position, run)
            else:
                self._exchange_lookup(position, call)
                if position in self.mixtures.ends:
                    whole = call.op.outputs[0]
                    self._insert(position + 1, "all_reduce", whole, whole, call)
                    self._write(whole, None)
                self._reduce_loss(position, call, inputs)

    def _write(self, tensor: TensorSpec, split: Split | None) -> None:
        if split is None:
            self.latest.pop(tensor, None)
        else:
            self.latest[tensor] = split

    def _splits(self, position: int, call: Call, run: LayerPass | None) -> tuple[Splits, Splits]:
        op = call.op
        if run is not None:
            inputs, outputs = splits_in_run(run, position, op, self._side(run))
            return inputs, outputs
        if position in self.whole:
            return (None,) * len(op.inputs), (None,) * len(op.outputs)
        if op.base in ("aten.embedding", "aten.embedding_dense_backward"):
            return self._lookup_splits(position, call)
        inputs = tuple(
            self.mixtures.split(call.module, tensor) or self.latest.get(tensor)
            for tensor in op.inputs
        )
        try:
            outputs = after(op, inputs, self.axis.size)
        except Indivisible as error:
            count = int(str(error))
            raise InvalidInput(
                f"tensor={self.axis.size} does not divide the {count} heads of {call.module}; "
                f"possible sizes are {fitting(count)}"
            ) from None
        self._check_product(call, inputs)
        if any(inputs):
            self.partial.add(position)
        return adopted(op, inputs, outputs), outputs

    def _check_product(self, call: Call, inputs: Splits) -> None:
        """Refuse a product that the plan leaves whole and that sums what ranks have parts of."""
        if call.op.base not in ("aten.mm", "aten.addmm"):
            return
        left, right = inputs[-2:]
        sums = left is not None and left.dim == 1, right is not None and right.dim == 0
        if sums[0] != sums[1]:
            raise InvalidInput(
                f"{call.module} reads features that tensor={self.axis.size} divides, and is not "
                "divided itself; give tensor_plan with the style of each product of the block "
                "(colwise or rowwise)"
            )

    def _lookup_splits(self, position: int, call: Call) -> tuple[Splits, Splits]:
        """The divisions of a lookup: a table may be divided by vocabulary; all words are known."""
        op = call.op
        table = None
        if call.module in self.plan.lookups:
            table = Split(
                0, (op.inputs[0] if op.base == "aten.embedding" else op.outputs[0]).shape[0]
            )
        if op.base == "aten.embedding":
            return (table, None), (None,)
        if table is None and op.inputs[0] in self.latest:
            self.partial.add(position)
        return (None,) * len(op.inputs), (table,)

    def _side(self, run: LayerPass) -> Side:
        return "rows" if self.plan.styles[run.layer.position] == "rows" else "columns"

    def _exchange_around(self, position: int, run: LayerPass) -> None:
        """The collectives at the beginning and at the end of a layer's pass."""
        style = self.plan.styles[run.layer.position]
        if position == run.start and self.positions is not None:
            if run.forward and self.positions.opens(run):
                self._gather_positions(run, self.positions.kept_until(run))
            elif not run.forward and style == "rows":
                self._gather_positions(run, run.end)
        if position != run.end - 1:
            return
        made = self.trace.calls[position].op.outputs[0]
        if run.forward and style == "rows":
            self._reduce(run, position, run.position_of("forward") or position, made)
        elif run.forward and style == "gathered columns":
            part = share(made, Split(len(made.shape) - 1, made.shape[-1]), self.axis.size)
            self._insert(position + 1, "all_gather", part, made, self.trace.calls[position])
            self._write(made, None)
        elif not run.forward and run.start in self.closing:
            at, gradient = self._gradient(run)
            self._reduce(run, at, at, gradient)

    def _reduce(self, run: LayerPass, position: int, born: int, whole: TensorSpec) -> None:
        """Reduce the partial sums of all ranks, and keep the own positions of them if divided."""
        call = self.trace.calls[position]
        if self.positions is None:
            self._insert(position + 1, "all_reduce", whole, whole, call)
            self._write(whole, None)
            return
        split = self.positions.split(whole)
        part = share(whole, split, self.axis.size)
        self._insert(position + 1, "reduce_scatter", whole, part, call)
        self._write(whole, split)
        op = self.trace.calls[born].op
        if op.outputs[0].numel == whole.numel:
            kept = TensorSpec(part.shape, op.outputs[0].dtype)
            self.kept[born] = Op(op.name, op.inputs, (kept, *op.outputs[1:]), op.attrs)
            self.edit.allocate(op.outputs[0].nbytes, Role.INTERMEDIATE, born, position + 1)

    def _gather_positions(self, run: LayerPass, until: int) -> None:
        """Gather what a layer reads from the ranks that have the other positions."""
        assert self.positions is not None
        call = self.trace.calls[run.start]
        whole = run.reads(self.trace)
        part = share(whole, self.positions.split(whole), self.axis.size)
        self._insert(run.start, "all_gather", part, whole, call)
        self.edit.allocate(whole.nbytes, Role.INTERMEDIATE, run.start, until)
        if run.forward:
            self._release_read(run, whole.nbytes)

    def _release_read(self, run: LayerPass, nbytes: int) -> None:
        """Free a rank's own positions of what a layer reads: it keeps what was gathered."""
        kept = [
            (allocation.born, index)
            for index, allocation in enumerate(self.trace.allocations)
            if allocation.role is Role.INTERMEDIATE
            and allocation.nbytes == nbytes
            and allocation.born is not None
            and allocation.born < run.start
            and (allocation.freed is None or allocation.freed > run.end)
        ]
        module = self.trace.calls[max(kept)[0]].module if kept else run.layer.module
        if kept and "norm" in module.lower():  # a residual is needed as it is
            self.released[max(kept)[1]] = run.start

    def _begin_or_end(self, position: int, positions: Positions) -> None:
        """Divide the hidden state by position where that begins, gather it where it ends."""
        if position in positions.begins:
            self.latest |= self.saved  # what the blocks have kept for their backward pass
            for tensor in positions.hidden:
                self._write(tensor, positions.split(tensor))
        if position in positions.ends:
            whole = positions.gathered(self.trace, position)
            part = share(whole, positions.split(whole), self.axis.size)
            self._insert(position, "all_gather", part, whole, self.trace.calls[position])
            self.saved, self.latest = self.latest, {}

    def _exchange_lookup(self, position: int, call: Call) -> None:
        """Add up the words that each rank has found in its part of the table."""
        if call.module not in self.plan.lookups:
            return
        if call.op.base == "aten.embedding":
            whole = call.op.outputs[0]
            if self.positions is None or len(whole.shape) < 3:
                self._insert(position + 1, "all_reduce", whole, whole, call)
                return
            split = self.positions.split(whole)
            part = share(whole, split, self.axis.size)
            self._insert(position + 1, "reduce_scatter", whole, part, call)
            self._write(whole, split)
            self.kept[position] = Op(call.op.name, call.op.inputs, (part,), call.op.attrs)
            self.edit.allocate(whole.nbytes, Role.INTERMEDIATE, position, position + 1)
        elif call.op.base == "aten.embedding_dense_backward" and self.positions is not None:
            whole = call.op.inputs[0]
            part = share(whole, self.positions.split(whole), self.axis.size)
            self._insert(position, "all_gather", part, whole, call)
            self.edit.allocate(whole.nbytes, Role.INTERMEDIATE, position, position + 1)

    def _reduce_loss(self, position: int, call: Call, inputs: Splits) -> None:
        """The reductions of a loss over a divided vocabulary: largest logit, sum, and target's."""
        count = {"aten._log_softmax": 2, "aten.nll_loss_forward": 1}.get(call.op.base, 0)
        if not count or inputs[0] is None or call.phase is not Phase.FORWARD:
            return
        shape = call.op.inputs[0].shape
        if inputs[0].dim == len(shape) - 1:
            rows = TensorSpec(shape[:-1], "float32")
            for _ in range(count):
                self._insert(position + 1, "all_reduce", rows, rows, call)

    def _gradient(self, run: LayerPass) -> tuple[int, TensorSpec]:
        """The last call of a run that makes the gradient of the layer's input, and that tensor."""
        begin = run.position_of("input") or run.start
        calls = self.trace.calls
        position = begin
        for at in range(begin, run.end):
            if run.passes_on(at, calls[at].op.outputs[0]) and calls[at].op.base != "aten.t":
                position = at
        return position, calls[position].op.outputs[0]

    def _insert(
        self, position: int, name: str, source: TensorSpec, result: TensorSpec, call: Call
    ) -> None:
        """Insert a collective that compute waits for."""
        phase, module = call.phase, call.module
        self.edit.insert(
            position,
            [
                wait(TRANSFERS, COMPUTE, phase, module),
                exchange(name, source, result, self.axis, TRANSFERS, phase, module),
                wait(COMPUTE, TRANSFERS, phase, module),
            ],
        )

    def _reduce_shared_weights(self) -> None:
        """Add up the gradients of whole weights that each rank used on its own part only."""
        whole = summed_gradients(self.trace, self.ops, self.partial)
        ends = [p for p, call in enumerate(self.trace) if call.phase is Phase.BACKWARD]
        if whole is not None:
            last = Call(self.trace.calls[ends[-1]].op, Phase.BACKWARD)
            self._insert(ends[-1] + 1, "all_reduce", whole, whole, last)

    def made(self) -> Trace:
        self._reduce_shared_weights()
        made_inside = self.mixtures.positions | {
            position for run in self.runs for position in range(run.start, run.end)
        }
        weights = weights_of(self.trace, self.plan, made_inside, self.ops, self.axis.size)
        self.ops |= shared_lists(self.trace, weights)
        for position, op in self.ops.items():
            self.edit.replace_op(position, op)
        share_memory(self.edit, self.trace, weights, self.ops | self.kept, self.released)
        return self.edit.made()
