"""The parameters of a traced step, and when their gradients are ready in the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from wavecast.parallel.compiled_graphs import ends_of_graphs
from wavecast.traces.step import Allocation, Call, Phase, Role, Trace

_LIST_OPS = ("aten._foreach_", "aten._fused_")


@dataclass(frozen=True)
class Gradient:
    """A gradient that the backward pass computes."""

    nbytes: int
    ready: int
    """The position of the call after which it is final."""
    module: str
    dtype: str = "float32"
    parameter: str = ""
    """The parameter; empty if the trace has no values."""


def parameters(trace: Trace) -> list[Allocation]:
    """The memory of the weights, in the order in which they were made."""
    return [a for a in trace.allocations if a.role is Role.PARAMETER]


def gradients(trace: Trace, *, inside_graphs: bool = False) -> list[Gradient]:
    """The gradients of a step in the order in which they become ready.

    Those that a compiled graph makes are handed over when it ends. `inside_graphs` says when they
    are computed instead.

    Values say which call writes a gradient last: the sum of both uses of a tied weight, a cast, or
    the sum in memory that is kept from step to step (Megatron's `main_grad`). Copies that the
    optimizer makes, in float32 for master weights, are not exchanged.
    """
    made = _written(trace) or _by_module(trace)
    if not inside_graphs and (ends := ends_of_graphs(trace)):
        made.sort(key=lambda gradient: gradient.ready)
        made = [replace(g, ready=ends.get(g.ready, g.ready)) for g in made]
    return sorted(made, key=lambda gradient: gradient.ready)


def _written(trace: Trace) -> list[Gradient]:
    """The gradients in memory that the backward pass writes."""
    last: dict[int, tuple[int, int]] = {}
    for position, call in enumerate(trace):
        if call.phase is Phase.BACKWARD:
            for value in call.writes:
                known = trace.values[value]
                if known.gradient_of and known.allocation is not None:
                    last[known.allocation] = position, value
    made = []
    for number, memory in enumerate(trace.allocations):
        if memory.role is not Role.GRADIENT:
            continue
        if number in last:
            ready, value = last[number]
            spec, name = trace.values[value].spec, trace.values[value].gradient_of
            made.append(Gradient(memory.nbytes, ready, trace.calls[ready].module, spec.dtype, name))
        elif memory.born is not None and memory.born < len(trace):
            maker = trace.calls[memory.born]
            if maker.phase is Phase.BACKWARD:  # a compiled kernel, of which no values are known
                dtype = maker.op.outputs[0].dtype if maker.op.outputs else "float32"
                made.append(Gradient(memory.nbytes, memory.born, maker.module, dtype))
    return made


def _by_module(trace: Trace) -> list[Gradient]:
    """Gradients in memory that is kept, where no values are known: ready as their module ends."""
    last: dict[str, int] = {}
    for position, call in enumerate(trace):
        if call.phase is Phase.BACKWARD:
            last[call.module] = position
    end = max(last.values(), default=len(trace) - 1)
    kept = [a for a in trace.allocations if a.role is Role.GRADIENT and a.module]
    made = kept or parameters(trace)
    return [Gradient(a.nbytes, last.get(a.module, end), a.module) for a in made]


def updated_parameters(trace: Trace) -> list[str]:
    """The parameter whose weights, gradient or update each value holds; "" if that is unknown.

    The optimizer's ops write a tensor for each one that they read first.
    """
    owners = [value.parameter or value.gradient_of for value in trace.values]
    for call in trace:
        if call.phase is Phase.OPTIMIZER or clips(call):
            for written, read in zip(call.writes, call.reads, strict=False):
                owners[written] = owners[written] or owners[read]
    return owners


def clips(call: Call) -> bool:
    """Whether a call between backward pass and optimizer works on all gradients at once."""
    return call.phase is Phase.OTHER and call.op.name.startswith(_LIST_OPS)


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
