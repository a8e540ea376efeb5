"""Tensor and sequence parallelism: the products of each layer divided among ranks.

Layers by columns give each rank some of the features (heads, inner units); layers by rows take
them and give partial sums, which are reduced over the ranks. Between the two, each rank works on
its own part. With sequence parallelism the rest is divided by position: a gather precedes the
layers by columns, and a reduce-scatter follows those by rows (Korthikanti et al. 2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wavecast.errors import InvalidInput
from wavecast.parallel.editing import COMPUTE, TRANSFERS, Edit, wait
from wavecast.parallel.exchanges import all_reduce, exchange
from wavecast.parallel.plans import Group, Plan, fitting, plan_of
from wavecast.parallel.products import Run, Side, layers_of, runs_of, splits_in_run
from wavecast.parallel.split_memory import is_list_op, share_memory, shared_lists, weights_of
from wavecast.parallel.splits import Indivisible, Split, Splits, adopted, after, share, share_op
from wavecast.parallel.strategy import Parallel, RankAxis
from wavecast.traces.step import Call, Op, Phase, TensorSpec, Trace


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
    division = _Division(trace, chosen, axis)
    division.divide()
    return division.made(), chosen.notes


@dataclass
class _Division:
    """A trace that is being divided among tensor ranks."""

    trace: Trace
    plan: Plan
    axis: RankAxis
    latest: dict[TensorSpec, Split] = field(default_factory=dict)
    """The division of the last tensor of each kind that was written."""
    ops: dict[int, Op] = field(default_factory=dict)
    """What one rank runs, by position."""

    def __post_init__(self) -> None:
        self.edit = Edit(self.trace)
        layers = [layer for layer in layers_of(self.trace) if layer.position in self.plan.styles]
        self.runs = [
            run for run in runs_of(self.trace, layers_of(self.trace)) if run.layer in layers
        ]

    def divide(self) -> None:
        run_at = {p: run for run in self.runs for p in range(run.start, run.end)}
        for position, call in enumerate(self.trace):
            if is_list_op(call):
                continue
            run = run_at.get(position)
            inputs, outputs = self._splits(position, call, run)
            self.ops[position] = share_op(call.op, inputs, outputs, self.axis.size)
            for tensor, split in zip(call.op.outputs, outputs, strict=True):
                if run is None or run.passes_on(position, tensor):
                    self._write(tensor, split)
            self._reduce_loss(position, call, inputs)
        self._insert_exchanges()

    def _write(self, tensor: TensorSpec, split: Split | None) -> None:
        if split is None:
            self.latest.pop(tensor, None)
        else:
            self.latest[tensor] = split

    def _splits(self, position: int, call: Call, run: Run | None) -> tuple[Splits, Splits]:
        op = call.op
        if run is not None:
            inputs, outputs = splits_in_run(run, position, op, self._side(run))
            if position == run.end - 1 and run.forward:
                outputs = self._left(run, outputs)
            return inputs, outputs
        if call.module in self.plan.lookups and op.base.startswith("aten.embedding"):
            table = Split(0, max(op.inputs[0].shape[0], op.outputs[0].shape[0]))
            if op.base == "aten.embedding":
                return (table, None), (None,)
            return (None,) * len(op.inputs), (table,)
        if op.base == "aten.embedding_dense_backward":
            return (None,) * len(op.inputs), (None,)
        inputs = tuple(self.latest.get(tensor) for tensor in op.inputs)
        try:
            outputs = after(op, inputs, self.axis.size)
        except Indivisible as error:
            count = int(str(error))
            raise InvalidInput(
                f"tensor={self.axis.size} does not divide the {count} heads of {call.module}; "
                f"possible sizes are {fitting(count)}"
            ) from None
        return adopted(op, inputs, outputs), outputs

    def _side(self, run: Run) -> Side:
        return "rows" if self.plan.styles[run.layer.position] == "rows" else "columns"

    def _left(self, run: Run, outputs: Splits) -> Splits:
        """What a forward run leaves: a gathered output is whole."""
        gathered = self.plan.styles[run.layer.position] == "gathered columns"
        return (None,) * len(outputs) if gathered else outputs

    def _insert_exchanges(self) -> None:
        joint = {}
        for group in self.plan.groups:
            for layer in group.columns:
                joint[layer.position] = group
        for run in self.runs:
            style = self.plan.styles[run.layer.position]
            if run.forward and style == "rows":
                self._exchange(run.end, self._output(run), run)
            elif run.forward and style == "gathered columns":
                whole = self._output(run)
                self._exchange(run.end, whole, run, "all_gather")
            elif not run.forward and style != "rows" and run.position_of("input") is not None:
                if not self.plan.joint or self._closes(run, joint[run.layer.position]):
                    position, gradient = self._gradient(run)
                    self._exchange(position + 1, gradient, run)
        for position, call in enumerate(self.trace):
            if call.module in self.plan.lookups and call.op.base == "aten.embedding":
                self._at(
                    position + 1,
                    [all_reduce(call.op.outputs[0], self.axis, TRANSFERS, call.phase, call.module)],
                    call.phase,
                )

    def _closes(self, run: Run, group: Group) -> bool:
        """Whether a run is the last of its group to add to the gradient of their input."""
        first = group.columns[0]
        return run.layer.position == first.position

    def _output(self, run: Run) -> TensorSpec:
        return self.trace.calls[run.end - 1].op.outputs[0]

    def _gradient(self, run: Run) -> tuple[int, TensorSpec]:
        """The last call of a run that makes the gradient of the layer's input, and that tensor."""
        begin = run.position_of("input") or run.start
        layer = run.layer
        position = begin
        for at in range(begin, run.end):
            made = self.trace.calls[at].op.outputs[0]
            if made.numel == layer.rows * layer.wide_in and self.trace.calls[at].op.base not in (
                "aten.t",
                "aten.mm",
            ):
                position = at
        return position, self.trace.calls[position].op.outputs[0]

    def _exchange(
        self, position: int, tensor: TensorSpec, run: Run, name: str = "all_reduce"
    ) -> None:
        phase = self.trace.calls[run.start].phase
        module = run.layer.module
        if name == "all_reduce":
            call = all_reduce(tensor, self.axis, TRANSFERS, phase, module)
        else:
            part = share(tensor, Split(len(tensor.shape) - 1, tensor.shape[-1]), self.axis.size)
            call = exchange("all_gather", part, tensor, self.axis, TRANSFERS, phase, module)
        self._at(position, [call], phase)

    def _at(self, position: int, calls: list[Call], phase: Phase) -> None:
        """Insert collectives that compute waits for."""
        module = calls[0].module
        before, behind = (
            wait(TRANSFERS, COMPUTE, phase, module),
            wait(COMPUTE, TRANSFERS, phase, module),
        )
        self.edit.insert(position, [before, *calls, behind])

    def _reduce_loss(self, position: int, call: Call, inputs: Splits) -> None:
        """The reductions of a loss over a divided vocabulary: largest logit, sum, and target's."""
        if not inputs or inputs[0] is None or call.phase is not Phase.FORWARD:
            return
        shape = call.op.inputs[0].shape
        if inputs[0].dim != len(shape) - 1:
            return
        rows = TensorSpec(shape[:-1], "float32")
        count = {"aten._log_softmax": 2, "aten.nll_loss_forward": 1}.get(call.op.base, 0)
        if count:
            one = all_reduce(rows, self.axis, TRANSFERS, call.phase, call.module)
            self._at(position + 1, [one] * count, call.phase)

    def made(self) -> Trace:
        weights = weights_of(self.trace, self.plan, self.runs, self.ops, self.axis.size)
        self.ops |= shared_lists(self.trace, weights)
        for position, op in self.ops.items():
            self.edit.replace_op(position, op)
        share_memory(self.edit, self.trace, weights, self.ops)
        return self.edit.made()
