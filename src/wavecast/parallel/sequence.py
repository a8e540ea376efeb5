"""Sequence parallelism: where the hidden state is divided by position, and where it is whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wavecast.parallel.plans import Plan
from wavecast.parallel.products import LayerPass
from wavecast.parallel.splits import Split
from wavecast.traces.blocks import block_finder
from wavecast.traces.step import Phase, TensorSpec, Trace

_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Positions:
    """The parts of a step in which the hidden state is divided by position."""

    hidden: frozenset[TensorSpec]
    """The hidden state, in each dtype."""
    begins: frozenset[int]
    """The positions of the calls from which on it is divided."""
    ends: frozenset[int]
    """The positions of the calls before which it is gathered for good."""
    opening: dict[int, int]
    """The starts of the first layers of each group, and until when they need what they read."""

    @staticmethod
    def of(trace: Trace, plan: Plan, runs: Sequence[LayerPass]) -> Positions:
        """The parts of a step that the groups of a plan enclose."""
        columns = {layer.position for group in plan.groups for layer in group.columns}
        shapes = {
            run.reads(trace).shape for run in runs if run.forward and run.layer.position in columns
        }
        hidden = {TensorSpec(shape, dtype) for shape in shapes for dtype in _DTYPES}
        begins, ends = _bounds(trace, plan, runs)
        return Positions(frozenset(hidden), begins, ends, _opening(trace, plan, runs))

    def split(self, tensor: TensorSpec) -> Split:
        """The division of a hidden state by position: its last dimension but one."""
        dim = max(len(tensor.shape) - 2, 0)
        return Split(dim, tensor.shape[dim])

    def opens(self, run: LayerPass) -> bool:
        """Whether a forward run is the first of its group to read the hidden state."""
        return run.start in self.opening

    def kept_until(self, run: LayerPass) -> int:
        """Where what was gathered for a group is no longer needed."""
        return self.opening[run.start]

    def gathered(self, trace: Trace, position: int) -> TensorSpec:
        """The hidden state that a call reads."""
        call = trace.calls[position]
        known = [tensor for tensor in call.op.inputs if tensor in self.hidden]
        return known[0] if known else next(iter(sorted(self.hidden, key=str)))


def _bounds(
    trace: Trace, plan: Plan, runs: Sequence[LayerPass]
) -> tuple[frozenset[int], frozenset[int]]:
    """Where the division begins and ends, but for lookups and heads that the plan divides."""
    block_of = block_finder(trace)
    begins: set[int] = set()
    ends: set[int] = set()
    inside = {p for run in runs for p in range(run.start, run.end)}
    blocks = [
        (position, call.phase)
        for position, call in enumerate(trace)
        if block_of(call.module) and call.phase in (Phase.FORWARD, Phase.BACKWARD)
    ]
    forward = [position for position, phase in blocks if phase is Phase.FORWARD]
    backward = [position for position, phase in blocks if phase is Phase.BACKWARD]
    has_head = any(group.columns and not group.rows for group in plan.groups)
    if not plan.lookups:
        begins.add(forward[0])
        if backward and backward[-1] + 1 < len(trace):
            following = trace.calls[backward[-1] + 1]
            ends.update({backward[-1] + 1} if following.phase is Phase.BACKWARD else ())
    if not has_head:
        ends.add(forward[-1] + 1)
        begins.update(backward[:1])
    return frozenset(begins - inside), frozenset(ends - inside)


def _opening(trace: Trace, plan: Plan, runs: Sequence[LayerPass]) -> dict[int, int]:
    """The first passes of each group, recomputed ones too, and the end of what they need."""
    opening = {}
    for group in plan.groups:
        members = {layer.position for layer in group.columns}
        own = [run for run in runs if run.layer.position in members]
        first = next((run.layer for run in own if run.forward), None)
        starts = [run.start for run in own if run.forward and run.layer is first]
        for start, following in zip(starts, [*starts[1:], len(trace)], strict=True):
            until = [run for run in own if start <= run.start < following]
            ahead = max(run.end for run in until if run.forward)
            cast = trace.calls[start].op
            is_cast = cast.base == "aten._to_copy" and len(cast.inputs[0].shape) > 2
            opening[start] = ahead if is_cast else max(run.end for run in until)
    return opening
