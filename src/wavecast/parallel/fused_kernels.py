"""Fused kernels: groups of small ops that Megatron, nanotron and others run as one kernel.

A group is found by its ops and by the values that connect them. The kernel that takes its place
reads each tensor from outside once and writes each result once. What the group of the forward pass
wrote for the backward pass only is computed again there, and takes no memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.hardware.hosts import FUNCTION
from wavecast.parallel.gradients import flat
from wavecast.traces.editing import Edit
from wavecast.traces.recomputed import block_finder, recomputed
from wavecast.traces.step import Call, Op, Phase, Scalar, TensorSpec, Trace

# Which calls write and read each tensor of a trace.


ACTIVATIONS = frozenset({"aten.gelu", "aten.silu", "aten.gelu_backward", "aten.silu_backward"})
"""Activations and their gradients."""


class Flow:
    """The kernels that write and read each value. Views count as the value that they show.

    Raises:
        InvalidInput: the trace does not say what its calls read and write.
    """

    def __init__(self, trace: Trace, option: str) -> None:
        if not trace.values:
            raise InvalidInput(
                f"{option} follows tensors from op to op, and this trace does not say which "
                "tensors its ops read and write; trace the step again without compiling it "
                "(wavecast.trace): profiles and files of older versions do not say it either"
            )
        self.trace = trace
        self._bases: dict[int, int] = {}
        self._writers: dict[int, list[int]] = defaultdict(list)
        self._readers: dict[int, list[int]] = defaultdict(list)
        for position, call in enumerate(trace):
            if not ops.launches(call.op):
                continue
            for base in dict.fromkeys(map(self.base, call.reads)):
                self._readers[base].append(position)
            for base in dict.fromkeys(map(self.base, call.writes)):
                self._writers[base].append(position)

    def base(self, value: int) -> int:
        """The value of which this one is a view, or a view of a view; else itself."""
        known = self._bases.get(value)
        if known is None:
            shown = self.trace.values[value].view_of
            known = self._bases[value] = value if shown is None else self.base(shown)
        return known

    def writer(self, value: int, position: int) -> int | None:
        """The position of the kernel that wrote what a call at a position reads."""
        writers = self._writers.get(self.base(value), [])
        index = bisect_left(writers, position)
        return writers[index - 1] if index else None

    def readers(self, value: int) -> list[int]:
        """The positions of the kernels that read a value or a view of it."""
        return self._readers.get(self.base(value), [])

    def source(self, value: int, position: int) -> tuple[int, int | None]:
        """The value before collectives sent it, and the position of the kernel that wrote it."""
        writer = self.writer(value, position)
        while writer is not None and _sends(self.trace.calls[writer]):
            value, position = self.trace.calls[writer].reads[0], writer
            writer = self.writer(value, position)
        return self.base(value), writer


def _sends(call: Call) -> bool:
    return ops.kind(call.op) is ops.Kind.COLLECTIVE and bool(call.reads)


_FLOATS = {"float16", "bfloat16", "float32"}


@dataclass(frozen=True)
class FusionRule:
    """A kind of fused kernel: the ops that it can have, and those by which it is recognised."""

    option: str
    """The option of `Parallel`."""
    what: str
    members: frozenset[str]
    needed: tuple[frozenset[str], ...]
    """A group has one op of each of these sets."""
    joined: frozenset[str] = frozenset()
    """The ops of which a concatenation must read a result to be a member."""
    apart: bool = False
    """Whether other kernels may run between the members."""

    def is_in(self, bases: Sequence[str]) -> bool:
        """Whether a group of ops is such a kernel."""
        return all(not names.isdisjoint(bases) for names in self.needed)


def _names(text: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in text.split())


ROTARY = FusionRule(
    "fused_rotary",
    "rotary positions (a product with the negated and swapped halves of a tensor)",
    _names("mul neg cat add _to_copy slice_backward"),
    (_names("neg"), _names("cat slice_backward"), _names("mul")),
    _names("neg"),
)
GATES = FusionRule(
    "fused_gates",
    "gated activations (SiLU or GELU of one tensor times another)",
    ACTIVATIONS | _names("mul cat"),
    (ACTIVATIONS, _names("mul")),
    ACTIVATIONS,
    apart=True,
)
EXPERTS = FusionRule(
    "fused_experts",
    "weighted sums of the results of experts",
    _names("sort index_select index _to_copy mul sum new_zeros index_add"),
    (_names("index_select index index_add"), _names("mul"), _names("sum")),
)


def with_fused(trace: Trace, kernel: FusionRule, *, in_function: bool = False) -> Trace:
    """A rank's step in which each group of ops of one kind is one kernel.

    Args:
        trace: the step of a rank.
        kernel: the kind of kernel.
        in_function: whether Python launches the kernel, in an autograd function.

    Raises:
        InvalidInput: the step has no such group.
    """
    flow = Flow(trace, kernel.option)
    groups = [group for run in _runs(flow, kernel) for group in _connected(flow, run)]
    groups = [group for group in groups if _is_kernel(flow, kernel, group)]
    if not groups:
        raise InvalidInput(
            f"{kernel.option} runs {kernel.what} as one kernel each, and the blocks of the step "
            "have none that it recognises; leave it out"
        )
    return _Fusing(flow, groups, ((FUNCTION, True),) if in_function else ()).trace()


def _is_kernel(flow: Flow, kernel: FusionRule, group: Sequence[int]) -> bool:
    """Whether a group is of the kind, and all that it reads is there before others need it."""
    calls = [flow.trace.calls[position] for position in group]
    if not kernel.is_in([call.op.base for call in calls]):
        return False
    reads = ((value, p) for p, call in zip(group, calls, strict=True) for value in call.reads)
    writers = (flow.writer(value, position) for value, position in reads)
    ready = max((w for w in writers if w is not None and w not in group), default=-1)
    readers = (r for call in calls for value in call.writes for r in flow.readers(value))
    return all(reader in group or reader > ready for reader in readers)


def _runs(flow: Flow, kernel: FusionRule) -> Iterator[list[int]]:
    """The kernels of a block that can be members, by pass; in a row, unless they may be apart.

    Collectives may run between: results of experts arrive after the order of tokens is computed.
    """
    block_of = block_finder(flow.trace)
    again = recomputed(flow.trace.calls)
    run: list[int] = []
    before: tuple[Phase, str, bool] | None = None
    for position, call in enumerate(flow.trace):
        if not ops.launches(call.op) or ops.kind(call.op) is ops.Kind.COLLECTIVE:
            continue
        place = (call.phase, block_of(call.module), position in again)
        is_member = _is_member(flow, position, kernel)
        if place != before or not (is_member or kernel.apart):
            yield run
            run = []
        before = place
        if is_member and place[1]:
            run.append(position)
    yield run


def _is_member(flow: Flow, position: int, kernel: FusionRule) -> bool:
    call = flow.trace.calls[position]
    if call.op.base not in kernel.members or not call.reads:
        return False
    if call.op.base == "aten.cat":
        writers = (flow.writer(value, position) for value in call.reads)
        return any(w is not None and flow.trace.calls[w].op.base in kernel.joined for w in writers)
    # FP8's casts belong to matmuls.
    return not any(tensor.dtype.startswith("float8") for tensor in call.op.outputs)


def _connected(flow: Flow, run: Sequence[int]) -> list[list[int]]:
    """The kernels of a run by what connects them: results, and whole operands that they share."""
    groups: list[tuple[set[int], list[int]]] = []
    for position in run:
        call = flow.trace.calls[position]
        size = max(tensor.numel for tensor in call.op.outputs)
        bases = {flow.base(value) for value in call.writes}
        bases |= {
            flow.base(value)
            for value, tensor in zip(call.reads, call.op.inputs, strict=True)
            if tensor.numel >= size or flow.writer(value, position) in run
        }
        joined = [group for group in groups if not group[0].isdisjoint(bases)]
        groups = [group for group in groups if group[0].isdisjoint(bases)]
        members = sorted(p for _, own in joined for p in own)
        groups.append((bases.union(*(own for own, _ in joined)), [*members, position]))
    return [members for _, members in groups]


class _Fusing:
    """The replacement of groups of calls by one call each."""

    def __init__(
        self, flow: Flow, groups: Sequence[list[int]], attrs: tuple[tuple[str, Scalar], ...]
    ) -> None:
        self._flow = flow
        self._attrs = attrs
        self._groups = groups
        self._group_of = {position: g for g, own in enumerate(groups) for position in own}
        self._modules = {flow.trace.calls[p].module for p in self._group_of}
        self._views = self._hidden_views()
        self._specs = {
            value: spec
            for position in (*self._group_of, *self._views)
            for call in (flow.trace.calls[position],)
            for value, spec in (
                *zip(call.reads, call.op.inputs, strict=True),
                *zip(call.writes, call.op.outputs, strict=True),
            )
        }
        self._shown = {
            value: self._flow.trace.calls[position].reads[0]
            for position in self._views
            for value in self._flow.trace.calls[position].writes
        }

    def trace(self) -> Trace:
        """The trace with the fused kernels."""
        trace = self._flow.trace
        edit = Edit(trace)
        for group in self._groups:
            inputs, outputs = self._inputs(group), self._outputs(group)
            last = trace.calls[group[-1]]
            read, written = (tuple(self._specs[v] for v in some) for some in (inputs, outputs))
            op = Op("aten.mul.Tensor", _in_one_type(read), written, self._attrs)
            call = Call(op, last.phase, last.module, reads=tuple(inputs), writes=tuple(outputs))
            edit.remove(group)
            edit.insert(self._place(group, inputs), [call])
        edit.remove(self._views)
        gone = self._gone()
        edit.keep_memory(n for n in range(len(trace.allocations)) if n not in gone)
        return edit.trace()

    def _place(self, group: Sequence[int], inputs: Sequence[int]) -> int:
        """The first member at which all that the group reads was written."""
        writers = (self._flow.writer(value, group[-1]) for value in inputs)
        ready = max((writer for writer in writers if writer is not None), default=-1)
        return next(position for position in group if position > ready)

    def _hidden_views(self) -> set[int]:
        """The views, in modules with a group, that only members read."""
        calls = self._flow.trace.calls
        readers: dict[int, list[int]] = {}
        for position, call in enumerate(calls):
            for value in call.reads:
                readers.setdefault(value, []).append(position)
        hidden: set[int] = set()
        for position in range(len(calls) - 1, -1, -1):
            call = calls[position]
            if call.module not in self._modules or ops.launches(call.op) or not call.reads:
                continue
            uses = [reader for value in call.writes for reader in readers.get(value, ())]
            later = [reader for reader in uses if reader > position]
            if later and all(r in self._group_of or r in hidden for r in later):
                hidden.add(position)
        return hidden

    def _inputs(self, group: Sequence[int]) -> list[int]:
        """The values that a group reads from outside, each once."""
        outside: dict[int, None] = {}
        for position in group:
            for value in self._flow.trace.calls[position].reads:
                writer = self._flow.writer(value, position)
                if writer in group:
                    continue
                if writer in self._group_of and not self._is_read_outside(value):
                    own = self._groups[self._group_of[writer]]
                    outside |= dict.fromkeys(self._inputs(own))
                else:
                    outside[self._outermost(value)] = None
        whole = set(outside)
        return [value for value in outside if not self._is_part(value, whole)]

    def _outermost(self, value: int) -> int:
        """The value before the views that go with the group."""
        while value in self._shown:
            value = self._shown[value]
        return value

    def _is_part(self, value: int, whole: set[int]) -> bool:
        """Whether a value is a view of another one that is read whole."""
        shown = self._flow.trace.values[value].view_of
        while shown is not None:
            if shown in whole:
                return True
            shown = self._flow.trace.values[shown].view_of
        return False

    def _outputs(self, group: Sequence[int]) -> list[int]:
        written = {v: None for p in group for v in self._flow.trace.calls[p].writes}
        last = self._flow.trace.calls[group[-1]].writes
        return [v for v in written if v in last or self._is_read_outside(v)]

    def _is_read_outside(self, value: int) -> bool:
        """Whether a kernel that is no member of a group reads a value."""
        return any(reader not in self._group_of for reader in self._flow.readers(value))

    def _gone(self) -> set[int]:
        """The memory of values that only members read."""
        flow = self._flow
        written = {
            flow.base(value)
            for group in self._groups
            for position in group[:-1]
            for value in flow.trace.calls[position].writes
        }
        kept = {flow.base(v) for group in self._groups for v in self._outputs(group)}
        numbers = (flow.trace.values[value].allocation for value in written - kept)
        return {number for number in numbers if number is not None}


def _in_one_type(tensors: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The bytes that a fused kernel reads, in the type of its largest tensor.

    It converts numbers in registers. PyTorch's own kernels for operands of two types are slower.
    """
    largest = max(tensors, key=lambda tensor: tensor.nbytes).dtype
    return tuple(
        flat(tensor.nbytes, largest)
        if tensor.dtype != largest and {tensor.dtype, largest} <= _FLOATS
        else tensor
        for tensor in tensors
    )


def with_fused_loss(trace: Trace) -> Trace:
    """A rank's step in which one kernel writes the gradient of each loss over its softmax.

    Megatron's cross entropy does so.

    Raises:
        InvalidInput: the step has no cross entropy.
    """
    flow, edit = Flow(trace, "fused_loss"), Edit(trace)
    gone: set[int | None] = set()
    for position, call in enumerate(trace):
        if call.op.base != "aten._log_softmax_backward_data" or len(call.reads) != 2:
            continue
        gradient, softmax = call.reads
        writer = flow.writer(gradient, position)
        place, [result] = trace.values[softmax].allocation, call.writes
        if writer is None or trace.calls[writer].op.base != "aten.nll_loss_backward":
            continue
        if place is None or flow.readers(gradient) != [position]:
            continue
        edit.remove([writer])
        op = Op("aten.mul_.Tensor", call.op.inputs[1:], call.op.inputs[1:])
        edit.replace(position, replace(call, op=op, reads=(softmax,), writes=(softmax,)))
        readers = flow.readers(result)
        for reader in readers:
            reads = (softmax if value == result else value for value in trace.calls[reader].reads)
            edit.replace_op(reader, trace.calls[reader].op, tuple(reads))
        edit.set_lifetime(place, trace.allocations[place].born, max(readers, default=position) + 1)
        gone |= {trace.values[gradient].allocation, trace.values[result].allocation}
    if not gone:
        raise InvalidInput(
            "fused_loss is for cross entropy (log_softmax and nll_loss), and the step has none "
            "that it recognises; leave it out"
        )
    edit.free(number for number in gone if number is not None)
    return edit.trace()
