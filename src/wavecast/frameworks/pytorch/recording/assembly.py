"""A recorded step put together: calls, memory and values without what ran on the host only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from wavecast.frameworks.pytorch.recording.recorded import LiveMemory, OpEntry, Recording
from wavecast.frameworks.pytorch.recording.values import LiveValue
from wavecast.traces.step import Allocation, Call, Kernel, Role, TensorSpec, Value

GradientSum = tuple[int, LiveMemory, LiveMemory]
"""A sum of gradients made by autograd: position, memory of the first term and of the result."""


def assemble(
    entries: Sequence[OpEntry],
    memories: Sequence[LiveMemory],
    values: Sequence[LiveValue],
    kernels: Mapping[int, tuple[Kernel, ...]],
    host_s: Mapping[int, float],
) -> Recording:
    """The recorded step, without ops that run on the host only.

    Args:
        entries: all recorded ops.
        memories: the GPU memory that was followed.
        values: the tensors that the entries name by number.
        kernels: the measured kernels of each op, keyed by its position in the recording.
        host_s: the host's measured time for each op, keyed in the same way.
    """
    kept = [i for i, entry in enumerate(entries) if not entry.host]
    # position[i] is the number of kept calls before entry i.
    position = [0] * (len(entries) + 1)
    for index, entry in enumerate(entries):
        position[index + 1] = position[index] + (not entry.host)
    specs = _specs_in_order(entries[i] for i in kept)
    number = {old: new for new, old in enumerate(specs)}
    calls = tuple(_call(entries[i], number, kernels.get(i, ()), host_s.get(i)) for i in kept)
    allocations = tuple(
        Allocation(
            nbytes=memory.nbytes,
            born=None if memory.born < 0 else position[memory.born],
            freed=None if memory.freed is None else position[memory.freed],
            role=memory.role,
            module=memory.module,
        )
        for memory in memories
    )
    allocation_of = {id(memory): i for i, memory in enumerate(memories)}
    return Recording(
        calls,
        allocations,
        tuple(
            _value(values[old], spec, number, allocation_of.get(id(values[old].memory)))
            for old, spec in specs.items()
        ),
    )


def _specs_in_order(entries: Iterable[OpEntry]) -> dict[int, TensorSpec]:
    """The values of the entries in order of first use, with their specs there."""
    specs: dict[int, TensorSpec] = {}
    for entry in entries:
        for value, spec in zip(entry.inputs, entry.op.inputs, strict=True):
            specs.setdefault(value, spec)
        for value, spec in zip(entry.outputs, entry.op.outputs, strict=True):
            specs.setdefault(value, spec)
    return specs


def _call(
    entry: OpEntry,
    number: Mapping[int, int],
    kernels: tuple[Kernel, ...],
    host_s: float | None,
) -> Call:
    return Call(
        op=entry.op,
        phase=entry.phase,
        module=entry.module,
        stream=entry.stream,
        syncs=entry.syncs,
        kernels=kernels,
        host_s=host_s,
        line=entry.line,
        reads=tuple(number[value] for value in entry.inputs),
        writes=tuple(number[value] for value in entry.outputs),
        graph=entry.graph,
    )


def _value(
    value: LiveValue, spec: TensorSpec, number: Mapping[int, int], allocation: int | None
) -> Value:
    return Value(
        spec=spec,
        allocation=allocation if spec.device == "cuda" else None,
        view_of=None if value.view_of is None else number.get(value.view_of),
        parameter=value.parameter,
        gradient_of=value.gradient_of,
    )


def join_sums(sums: Sequence[GradientSum]) -> dict[int, LiveMemory]:
    """Let a sum of gradients reuse the memory of its first term, if nothing else holds that.

    Autograd adds gradients in place (torch/csrc/autograd/input_buffer.cpp), but not while a
    dispatch mode is active.

    Returns:
        The memory that holds each such sum, by the identity of the memory that held it before.
    """
    heirs: dict[int, LiveMemory] = {}
    for position, first, total in sums:
        term = heirs.get(id(first), first)
        if term.freed == position + 1 and term.nbytes == total.nbytes:
            term.freed, term.role, term.module = total.freed, total.role, total.module
            heirs[id(total)] = term
    return heirs


def mark_weight_copies(casts: Iterable[tuple[LiveMemory, LiveMemory]]) -> None:
    """Give its role to memory into which weights were cast during the step."""
    for source, copy in casts:
        is_new = copy.born >= 0 and copy.role is Role.INTERMEDIATE
        if source.role is Role.PARAMETER and is_new:
            copy.role = Role.WEIGHT_COPY
