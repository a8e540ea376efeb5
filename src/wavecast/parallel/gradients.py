"""The parameters of a traced step, and when their gradients are ready in the backward pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from wavecast.parallel.compiled_graphs import ends_of_graphs
from wavecast.traces.step import Allocation, Call, Phase, Role, Trace


@dataclass(frozen=True)
class Gradient:
    """A gradient that the backward pass makes."""

    nbytes: int
    ready: int
    """The position of the call after which it is final."""
    module: str
    dtype: str = "float32"


def parameters(trace: Trace) -> list[Allocation]:
    """The memory of the weights, in the order in which they were made."""
    return [a for a in trace.allocations if a.role is Role.PARAMETER]


def gradients(trace: Trace, *, inside_graphs: bool = False) -> list[Gradient]:
    """The gradients of a step in the order in which they become ready.

    Those that a compiled graph makes are handed over when it ends. `inside_graphs` says when they
    are computed instead.

    A step that keeps the memory of its gradients (`zero_grad(set_to_none=False)`, or Megatron's
    `main_grad`) makes none. Each of its gradients is then taken to be ready when the backward pass
    of its module ends. Copies that the optimizer makes, in float32 for master weights, are no
    gradients of the backward pass, and are not exchanged.
    """
    sums = _sums_in_place(trace)
    made = []
    for a in trace.allocations:
        if a.role is Role.GRADIENT and a.born is not None and _is_backward(trace, a.born):
            summed = sums.get((a.module, a.nbytes), -1)
            ready = summed if summed > a.born else _ready(trace, a.born)
            maker = _maker(trace, ready)
            dtype = maker.op.outputs[0].dtype if maker.op.outputs else "float32"
            made.append(Gradient(a.nbytes, ready, maker.module, dtype))
    if not made:
        made = _by_module(trace)
    if not inside_graphs and (ends := ends_of_graphs(trace)):
        made.sort(key=lambda gradient: gradient.ready)
        made = [replace(g, ready=ends.get(g.ready, g.ready)) for g in made]
    return sorted(made, key=lambda gradient: gradient.ready)


def _maker(trace: Trace, born: int) -> Call:
    """The call that makes what is born at a position."""
    return trace.calls[min(born, len(trace) - 1)]


def _is_backward(trace: Trace, born: int) -> bool:
    return _maker(trace, born).phase is Phase.BACKWARD


def _sums_in_place(trace: Trace) -> dict[tuple[str, int], int]:
    """The last sum of each module and size that autograd makes in the memory of a gradient.

    A weight that is used twice, such as a word table that also gives the logits, has a gradient
    from each use. It is complete when these were added.
    """
    allocating = {a.born for a in trace.allocations if a.born is not None}
    return {
        (call.module, call.op.outputs[0].nbytes): position
        for position, call in enumerate(trace)
        if call.phase is Phase.BACKWARD
        and call.op.base in ("aten.add", "aten.add_")
        and position not in allocating
        and call.op.outputs
    }


_FEW_CALLS = 8


def _ready(trace: Trace, born: int) -> int:
    """The position at which autograd hands a new gradient to its parameter.

    The gradient of a linear layer's weight is transposed first, after that of the bias is ready.
    """
    first = _maker(trace, born)
    if first.op.base != "aten.mm":
        return born
    ready = born
    for position in range(born + 1, min(born + 1 + _FEW_CALLS, len(trace))):
        call = trace.calls[position]
        if call.module != first.module or call.op.base == "aten.mm":
            break
        if call.op.base == "aten.t":
            ready = position
    return ready


def _by_module(trace: Trace) -> list[Gradient]:
    last: dict[str, int] = {}
    for position, call in enumerate(trace):
        if call.phase is Phase.BACKWARD:
            last[call.module] = position
    end = max(last.values(), default=len(trace) - 1)
    kept = [a for a in trace.allocations if a.role is Role.GRADIENT and a.module]
    made = kept or parameters(trace)
    return [Gradient(a.nbytes, last.get(a.module, end), a.module) for a in made]


FIRST_BUCKET_BYTES = 1 << 20
"""The size of the bucket that DDP reduces first (`dist._DEFAULT_FIRST_BUCKET_BYTES`)."""


def buckets(
    ready: Sequence[Gradient], bucket_bytes: int, first_bytes: int = FIRST_BUCKET_BYTES
) -> list[list[Gradient]]:
    """The buckets in which DDP reduces gradients: filled in order of readiness.

    A bucket is closed as soon as it has reached its size, as
    `torch.distributed._compute_bucket_assignment_by_size` does.
    """
    filled: list[list[Gradient]] = []
    current: list[Gradient] = []
    for gradient in ready:
        current.append(gradient)
        limit = first_bytes if not filled else bucket_bytes
        if sum(g.nbytes for g in current) >= limit:
            filled.append(current)
            current = []
    return [*filled, current] if current else filled


def by_unit(items: Sequence[Gradient], unit_of: dict[str, str]) -> dict[str, list[Gradient]]:
    """Gradients by the unit that their module belongs to."""
    grouped: dict[str, list[Gradient]] = defaultdict(list)
    for gradient in items:
        grouped[unit_of.get(gradient.module, "")].append(gradient)
    return grouped
