"""The memory of a compiled module as allocations, so that `wavecast.memory` gives XLA's figure.

XLA says how large a module's arguments, results and temporary memory are. The tensors in the
temporary memory, and how long they live, follow from the schedule. What they do not fill of it, at
its fullest, is scratch memory of libraries and what lies between tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from wavecast.footprint.workspaces import convolution
from wavecast.frameworks.jax.assembly import Schedule
from wavecast.frameworks.jax.origins import argument_of
from wavecast.traces.step import Allocation, Op, Phase, Role, TensorSpec, Value

LEAST_SCRATCH = 256
"""Bytes of scratch memory that every module is given, so that no other is predicted for it."""
_TOKEN = TensorSpec((0,), "uint8")
"""What orders two instructions and holds no data."""


@dataclass(frozen=True)
class StepMemory:
    """The values of a step and the memory behind them."""

    values: tuple[Value, ...]
    allocations: tuple[Allocation, ...]


def memory_of(
    schedule: Schedule, sizes: Mapping[str, int], sm_count: int | None = None
) -> StepMemory:
    """The values and allocations of a module, given XLA's own sizes of its buffers.

    Args:
        schedule: the schedule of the module.
        sizes: the bytes of its buffers.
        sm_count: the SMs of the GPU.
    """
    arguments = {schedule.tensors[value].buffer: n for n, value in enumerate(schedule.arguments)}
    overwritten = _overwritten(schedule)
    results = {schedule.tensors[value].buffer for value in schedule.results}
    roles = _roles(schedule)
    names = [argument_of(one.op_name) for one in schedule.module.entry.parameters]
    allocations: list[Allocation] = []
    place: dict[int, int] = {}
    for number, buffer in enumerate(schedule.buffers):
        if number in overwritten or not buffer.nbytes:
            continue
        place[number] = len(allocations)
        if number in arguments:
            position = arguments[number]
            owner = names[position].rpartition(".")[0]
            allocations.append(Allocation(buffer.nbytes, None, None, roles[position], owner))
        elif number in results:
            kept = Allocation(buffer.nbytes, buffer.born, None, Role.INTERMEDIATE)
            allocations.append(kept)
        else:
            end = None if buffer.last + 1 >= len(schedule.calls) else buffer.last + 1
            allocations.append(Allocation(buffer.nbytes, buffer.born, end, Role.INTERMEDIATE))
    for source, target in overwritten.items():
        if target in place:
            place[source] = place[target]
    allocations = list(_fitted(allocations, sizes, len(schedule.calls)))
    allocations += _workspaces(schedule, sm_count)
    values = tuple(_values(schedule, place, roles, names))
    return StepMemory(values, tuple(allocations))


def _overwritten(schedule: Schedule) -> dict[int, int]:
    """The buffers of results that take over the memory of an argument, and whose it is."""
    found = {}
    for result, argument in schedule.module.aliases.items():
        if result < len(schedule.results) and argument < len(schedule.arguments):
            source = schedule.tensors[schedule.results[result]].buffer
            target = schedule.tensors[schedule.arguments[argument]].buffer
            if source is not None and target is not None and source != target:
                found[source] = target
    return found


def _roles(schedule: Schedule) -> list[Role]:
    """What each argument is, from who reads it and whether it is updated.

    Weights are read by the forward pass and updated; optimizer state is read by the optimizer only;
    a batch is not updated.
    """
    updated = set(schedule.module.aliases.values())
    readers: dict[int, set[Phase]] = {}
    roots = _roots(schedule)
    copied: dict[int, int] = {}
    for call in schedule.calls:
        reads, writes = ([roots[value] for value in used] for used in (call.reads, call.writes))
        for value in reads:
            readers.setdefault(copied.get(value, value), set()).add(call.phase)
        if _is_copy(call.op) and reads and writes:
            # XLA lays filters out anew for cuDNN, and who reads the copy reads the argument.
            copied[writes[0]] = copied.get(reads[0], reads[0])
    roles = []
    for position, value in enumerate(schedule.arguments):
        phases = readers.get(value, set())
        if phases and phases <= {Phase.OPTIMIZER}:
            roles.append(Role.OPTIMIZER_STATE)
        elif position in updated or Phase.OPTIMIZER in phases:
            roles.append(Role.PARAMETER if phases else Role.BUFFER)
        else:
            roles.append(Role.INPUT)
    return roles


def _is_copy(op: Op) -> bool:
    """Whether an op only writes the tensor that it reads in another layout or type."""
    alike = [tensor.numel for tensor in op.inputs] == [tensor.numel for tensor in op.outputs]
    return alike and len(op.inputs) == 1 and op.attr("arithmetic") == 0


def _roots(schedule: Schedule) -> list[int]:
    roots: list[int] = []
    for number, tensor in enumerate(schedule.tensors):
        roots.append(number if tensor.view_of is None else roots[tensor.view_of])
    return roots


def _fitted(
    allocations: list[Allocation], sizes: Mapping[str, int], calls: int
) -> Iterator[Allocation]:
    """The allocations with scratch memory, so that the peak is the one that XLA says."""
    wanted = sizes["argument"] + sizes["output"] - sizes["alias"] + sizes["temp"]
    fullest = _peak(allocations, calls)
    share = 1.0
    temporary = [a for a in allocations if a.born is not None and a.freed is not None]
    if fullest > wanted - LEAST_SCRATCH and temporary:
        # XLA lets tensors share memory where the schedule alone does not show it.
        held = _peak(temporary, calls)
        share = max(held - (fullest - wanted + LEAST_SCRATCH), 0) / max(held, 1)
    for one in allocations:
        is_temporary = one.born is not None and one.freed is not None
        nbytes = max(int(one.nbytes * share), 1) if is_temporary and share < 1 else one.nbytes
        yield Allocation(nbytes, one.born, one.freed, one.role, one.module)
    yield Allocation(max(wanted - fullest, LEAST_SCRATCH), 0, None, Role.WORKSPACE)


def _workspaces(schedule: Schedule, sm_count: int | None) -> Iterator[Allocation]:
    """The workspaces of convolutions: without a GPU no algorithm is chosen, so XLA has none."""
    for position, call in enumerate(schedule.calls):
        if call.op.base in convolution.NAMES:
            nbytes = convolution.Convolution.of(call.op, tensor=True).tuned_bytes(sm_count)
            if nbytes:
                yield Allocation(nbytes, position, position + 1, Role.WORKSPACE)


def _peak(allocations: list[Allocation], calls: int) -> int:
    changes = [0] * (calls + 2)
    for one in allocations:
        changes[one.born or 0] += one.nbytes
        changes[calls + 1 if one.freed is None else one.freed] -= one.nbytes
    most = total = 0
    for change in changes:
        total += change
        most = max(most, total)
    return most


def _values(
    schedule: Schedule, place: Mapping[int, int], roles: list[Role], names: list[str]
) -> Iterator[Value]:
    arguments = {value: n for n, value in enumerate(schedule.arguments)}
    owned = (Role.PARAMETER, Role.OPTIMIZER_STATE)
    for number, tensor in enumerate(schedule.tensors):
        spec = tensor.spec or tensor.shape.spec or _TOKEN
        position = arguments.get(number)
        name = names[position] if position is not None and roles[position] in owned else ""
        memory = None if tensor.buffer is None else place.get(tensor.buffer)
        yield Value(spec, memory, tensor.view_of, name)
