"""The trace of a JAX step for a GPU: lowered here, compiled by XLA elsewhere, and read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

from wavecast.errors import CaptureError, InvalidInput
from wavecast.footprint import convolution_workspaces
from wavecast.frameworks.jax import releases
from wavecast.frameworks.jax.assembly import Schedule, argument_of, scheduled
from wavecast.frameworks.jax.driver import CompiledModule, check_installed, compiled_for
from wavecast.frameworks.jax.hlo import read_hlo
from wavecast.frameworks.replacements import replacing
from wavecast.hardware.devices import Device
from wavecast.ops.registry import integer
from wavecast.traces.editing import compacted
from wavecast.traces.step import Allocation, Op, Phase, Role, TensorSpec, Trace, Value

NOTE = (
    "compiled by XLA without a GPU, so nothing was autotuned: which matmuls XLA writes in Triton "
    "is predicted, and what it would fuse into them runs by itself"
)

TUNING_NOTE = (
    "memory is that of the step: while XLA compiles on a GPU, its tuner tries convolutions with "
    "larger workspaces, so that the peak of the process may be higher"
)


def lowered_step(
    step: Any, arguments: Sequence[Any], named: dict[str, Any], gpu: Device, jit: dict[str, Any]
) -> Any:
    """A step lowered for NVIDIA GPUs, by the user's own jax.

    Args:
        gpu: the GPU that code which asks for one is told about.
        jit: options of `jax.jit` for a function that is not jitted yet.
    """
    check_installed()
    import jax

    if not callable(step):
        raise InvalidInput(f"a JAX step is a function, not of type {type(step).__name__}")
    if not hasattr(step, "trace"):
        step = jax.jit(step, **{name: value for name, value in jit.items() if value is not None})
    elif any(value is not None for value in jit.values()):
        raise InvalidInput(
            "the step is jitted already; give donate_argnums and static_argnums to jax.jit"
        )
    with releases.lowering_for(gpu), named_modules((*arguments, *named.values())):
        try:
            return step.trace(*arguments, **named).lower(lowering_platforms=("cuda",))
        except Exception as error:
            raise CaptureError(
                f"JAX cannot lower the step for a GPU: {type(error).__name__}: {error}"
            ) from error


def traces_for(
    lowered: Any,
    gpus: Sequence[Device],
    *,
    samples: int | None = None,
    unit: str = "samples",
    done: Callable[[int], None] | None = None,
) -> list[Trace]:
    """The trace of a lowered step for each GPU."""
    devices = releases.partitions(lowered)
    modules = compiled_for(releases.bytecode(lowered), gpus, devices, done)
    framework = releases.versions()
    return [
        trace_of(module, gpu, framework=framework, samples=samples, unit=unit)
        for module, gpu in zip(modules, gpus, strict=True)
    ]


def trace_of(
    compiled: CompiledModule,
    gpu: Device,
    *,
    framework: str = "jax",
    samples: int | None = None,
    unit: str = "samples",
) -> Trace:
    """The trace of a compiled module; of the step's samples it has those of one device."""
    schedule = scheduled(read_hlo(compiled.text), gpu.id)
    devices = integer(schedule.calls[0].op, "sample_ranks", 1)
    if samples is not None and samples % devices == 0:
        samples //= devices
    memory = memory_of(schedule, compiled.sizes, gpu.sm_count)
    tries = any(call.op.base in convolution_workspaces.NAMES for call in schedule.calls)
    trace = Trace(
        tuple(schedule.calls),
        memory.allocations,
        framework=framework,
        capability=gpu.compute_capability,
        samples=samples,
        unit=unit,
        notes=(NOTE, *([TUNING_NOTE] if tries else []), *schedule.notes),
        asks_capability=True,
        values=memory.values,
    )
    return compacted(trace)


# Scopes for Flax's NNX modules, whose calls leave no names in a lowered step.
#
# Flax's older modules (linen) and Keras's layers name their scopes themselves. While a step is
# lowered, the classes of the NNX modules among its arguments are made to call themselves in
# `jax.named_scope`, by the attribute of the module that holds them.


_CALL = "__call__"


@contextmanager
def named_modules(arguments: Iterable[Any]) -> Iterator[None]:
    """Within it, calls of the NNX modules among the arguments are scopes."""
    classes = _classes(arguments)
    stack: list[Any] = []
    with replacing() as replace:
        for module in classes:
            if _CALL in vars(module):
                replace(module, **{_CALL: _scoped(vars(module)[_CALL], stack)})
        yield


def _classes(arguments: Iterable[Any]) -> set[type]:
    """The classes of all NNX modules within the arguments, and those that they inherit from."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return set()
    kinds = {
        type(module)
        for argument in arguments
        if isinstance(argument, nnx.Module)
        for _, module in nnx.iter_modules(argument)
    }
    return {base for kind in kinds for base in kind.__mro__ if issubclass(base, nnx.Module)}


def _scoped(call: Callable[..., Any], stack: list[Any]) -> Callable[..., Any]:
    @wraps(call)
    def scoped(module: Any, *arguments: Any, **named: Any) -> Any:
        import jax

        name = _name_in(stack[-1], module) if stack else type(module).__name__
        if (stack and stack[-1] is module) or not name:
            return call(module, *arguments, **named)
        stack.append(module)
        try:
            with jax.named_scope(name):
                return call(module, *arguments, **named)
        finally:
            stack.pop()

    return scoped


def _name_in(holder: Any, module: Any) -> str:
    """The attribute that holds a module in another: "norm", "blocks.3"; empty if none does."""
    for name, value in vars(holder).items():
        if value is module:
            return str(name)
        if isinstance(value, dict):
            pairs: Iterable[tuple[Any, Any]] = value.items()
        elif (
            hasattr(value, "__iter__") and hasattr(value, "__len__") and not hasattr(value, "dtype")
        ):
            pairs = enumerate(value)
        else:
            continue
        for key, held in pairs:
            if held is module:
                return f"{name}.{key}"
    return ""


# The memory of a compiled module as allocations, so that `wavecast.memory` gives XLA's figure.
#
# XLA says how large a module's arguments, results and temporary memory are. The tensors in the
# temporary memory, and how long they live, follow from the schedule. What they do not fill of it,
# at its fullest, is scratch memory of libraries and what lies between tensors.


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
    """The values and allocations of a module, given XLA's own sizes of its buffers."""
    arguments = {schedule.tensors[value].buffer: n for n, value in enumerate(schedule.arguments)}
    overwritten = _overwritten(schedule)
    results = {schedule.tensors[value].buffer for value in schedule.results}
    roles = _roles(schedule)
    names = [argument_of(parameter.op_name) for parameter in schedule.module.entry.parameters]
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
    overwritten = {}
    for result, argument in schedule.module.aliases.items():
        if result < len(schedule.results) and argument < len(schedule.arguments):
            source = schedule.tensors[schedule.results[result]].buffer
            target = schedule.tensors[schedule.arguments[argument]].buffer
            if source is not None and target is not None and source != target:
                overwritten[source] = target
    return overwritten


def _roles(schedule: Schedule) -> list[Role]:
    """What each argument is, from who reads it and whether it is updated.

    Weights are read by the forward pass and updated; optimizer state is read by the optimizer only;
    a batch is not updated.
    """
    updated = set(schedule.module.aliases.values())
    readers: dict[int, set[Phase]] = {}
    roots: list[int] = []
    for number, tensor in enumerate(schedule.tensors):
        roots.append(number if tensor.view_of is None else roots[tensor.view_of])
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


def _fitted(
    allocations: list[Allocation], sizes: Mapping[str, int], calls: int
) -> Iterator[Allocation]:
    """The allocations with scratch memory, so that the peak is the one that XLA says."""
    peak = sizes["argument"] + sizes["output"] - sizes["alias"] + sizes["temp"]
    fullest = _peak(allocations, calls)
    share = 1.0
    temporary = [a for a in allocations if a.born is not None and a.freed is not None]
    if fullest > peak - LEAST_SCRATCH and temporary:
        # XLA lets tensors share memory where the schedule alone does not show it.
        held = _peak(temporary, calls)
        share = max(held - (fullest - peak + LEAST_SCRATCH), 0) / max(held, 1)
    for memory in allocations:
        is_temporary = memory.born is not None and memory.freed is not None
        nbytes = max(int(memory.nbytes * share), 1) if is_temporary and share < 1 else memory.nbytes
        yield Allocation(nbytes, memory.born, memory.freed, memory.role, memory.module)
    yield Allocation(max(peak - fullest, LEAST_SCRATCH), 0, None, Role.WORKSPACE)


def _workspaces(schedule: Schedule, sm_count: int | None) -> Iterator[Allocation]:
    """The workspaces of convolutions: without a GPU no algorithm is chosen, so XLA has none."""
    for position, call in enumerate(schedule.calls):
        if call.op.base in convolution_workspaces.NAMES:
            nbytes = convolution_workspaces.Convolution.of(call.op, tensor=True).tuned_bytes(
                sm_count
            )
            if nbytes:
                yield Allocation(nbytes, position, position + 1, Role.WORKSPACE)


def _peak(allocations: list[Allocation], calls: int) -> int:
    changes = [0] * (calls + 2)
    for memory in allocations:
        changes[memory.born or 0] += memory.nbytes
        changes[calls + 1 if memory.freed is None else memory.freed] -= memory.nbytes
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
