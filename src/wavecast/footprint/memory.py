"""The memory of a training step: how much, of what kind, of which module, and when.

It is computed from the lifetimes in a trace, the predicted workspaces of libraries, and a replay of
torch's allocator. `wavecast.memory` is the entry point.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.footprint.replay import Replay, replay, replay_within, usable_bytes
from wavecast.footprint.workspaces import with_workspaces
from wavecast.hardware.contexts import context_bytes
from wavecast.hardware.devices import Device, device
from wavecast.ops import Kind
from wavecast.parallel.ranks import ParallelStep, communicator_bytes, memory_trace
from wavecast.parallel.spreading import spread
from wavecast.parallel.strategy import Parallel
from wavecast.predictors.retargeting import FamilyTraces, Retargeted, retarget, trace_on
from wavecast.results import Shown, checked
from wavecast.traces.arrays import StepArrays
from wavecast.traces.graphs import compiled_gpu
from wavecast.traces.step import Allocation, Call, Op, Phase, Role, Trace

JAX_SHARE = 0.75
"""The share of the GPU's memory that JAX takes, if XLA_PYTHON_CLIENT_MEM_FRACTION is not set."""
_JAX_NOTE = (
    "JAX takes 75% of the GPU's memory when it starts, and no more; XLA_PYTHON_CLIENT_MEM_FRACTION "
    "changes that"
)


def allocatable_bytes(trace: Trace, gpu: Device, context_bytes: int | None) -> int:
    """The memory that CUDA's context and libraries leave to a framework's allocator.

    JAX's allocator takes three quarters of the GPU's memory when it starts, and no more.
    """
    left = gpu.memory_bytes - (context_bytes or 0)
    is_jax = compiled_gpu(trace) is not None
    return min(left, int(JAX_SHARE * gpu.memory_bytes)) if is_jax else left


@dataclass(frozen=True, slots=True)
class Held:
    """A group of tensors that live at the peak: of one kind and module, made by one op."""

    kind: str
    """One of `KINDS`."""
    module: str
    op: str
    """The op that allocated them. Empty if they existed before the step."""
    count: int
    """The number of tensors."""
    nbytes: int
    """The bytes of all of them."""


@dataclass(frozen=True, repr=False)
class Memory(Shown):
    """The GPU memory of one training step; `memory` makes it.

    ```python
    needed = wavecast.memory(trace, "l4")
    needed.peak_bytes, needed.fits, needed.by_kind["activations"]
    ```
    """

    trace: Trace
    """The trace, workspaces included where they are known."""
    device: Device | None
    """The GPU. None when none was named."""
    peak_bytes: int
    """The peak of allocated memory, as torch counts it (`max_memory_allocated`).

    Torch does not count what CUDA graphs allocated when they were recorded; `reserved_bytes` and
    `by_kind` have it."""
    reserved_bytes: int
    """The peak of the memory that torch's allocator reserves (`max_memory_reserved`).

    On a GPU that is nearly full the allocator gives cached memory back, and reserves less."""
    context_bytes: int | None
    """The memory of CUDA's context and of loaded libraries. None when unknown."""
    notes: tuple[str, ...] = ()
    """Caveats of this GPU, beside those of the trace (`Trace.notes`)."""
    ran: bool = False
    """Whether the step ran on this GPU and its memory was measured."""

    def __post_init__(self) -> None:
        names = ("peak_bytes", "reserved_bytes", "context_bytes", "needed_bytes")
        checked(self, "the memory of the step", names)

    @property
    def process_bytes(self) -> int | None:
        """All memory of the process, as nvidia-smi shows it. None when unknown."""
        return None if self.context_bytes is None else self.reserved_bytes + self.context_bytes

    @property
    def needed_bytes(self) -> int:
        """The memory that the GPU must have; without CUDA's context where that is unknown."""
        return self.process_bytes or self.reserved_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the step fits in the GPU's memory. None when unknown.

        It is unknown without a GPU, and where too little was recorded to say so (`unrecorded`).
        What the context leaves to the allocator must hold the step, and 0.5% of it must stay free:
        the allocator's model is not exact (`replay.RESERVE`).
        """
        if self.device is None:
            return None
        if self.ran:
            return True
        if self.reserved_bytes > usable_bytes(self.allocatable_bytes):
            return False
        return None if self.unrecorded else True

    @cached_property
    def unrecorded(self) -> tuple[str, ...]:
        """What a measured trace lacks, of "weights" and "optimizer state"; then the memory is a
        lower bound."""
        return unrecorded(self.trace)

    @property
    def allocatable_bytes(self) -> int:
        """The memory that CUDA's context and libraries leave to the allocator; 0 without a GPU."""
        if self.device is None:
            return 0
        return allocatable_bytes(self.trace, self.device, self.context_bytes)

    @cached_property
    def by_kind(self) -> Mapping[str, int | None]:
        """The bytes of each of `KINDS` at the peak. None for a workspace that is unknown."""
        by_kind: dict[str, int | None] = dict.fromkeys(KINDS, 0)
        for allocation, kind in self._at_peak:
            by_kind[kind] = (by_kind[kind] or 0) + allocation.nbytes
        included = any(allocation.role is Role.WORKSPACE for allocation in self.trace.allocations)
        if not included and (self.device is None or self.device.compute_capability is None):
            by_kind["workspace"] = None
        return by_kind

    @cached_property
    def peak_call(self) -> int:
        """The position of the call during which most memory is allocated."""
        totals = KindTimeline(self.trace).totals
        return max(range(len(totals)), key=totals.__getitem__, default=0)

    def by_module(self, depth: int = 2) -> Mapping[str, int]:
        """The bytes at the peak by module, largest first; paths are cut after `depth` names."""
        by_module: Counter[str] = Counter()
        for allocation, _ in self._at_peak:
            path = module_of(allocation, self.trace).split(".")[:depth]
            by_module[".".join(path) or "(no module)"] += allocation.nbytes
        return dict(by_module.most_common())

    def held(self) -> tuple[Held, ...]:
        """The tensors that live at the peak, grouped, the largest group first."""
        groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        for allocation, kind in self._at_peak:
            born = allocation.born
            op = "" if born is None else self.trace.calls[born].op.base
            groups[kind, module_of(allocation, self.trace), op].append(allocation.nbytes)
        held = (
            Held(kind, module, op, len(sizes), sum(sizes))
            for (kind, module, op), sizes in groups.items()
        )
        return tuple(sorted(held, key=lambda group: -group.nbytes))

    @cached_property
    def _at_peak(self) -> tuple[tuple[Allocation, str], ...]:
        """The allocations that live at the peak, each with its kind."""
        kinds = KindFinder(self.trace)
        time = self.peak_call
        return tuple(
            (allocation, kinds.of(allocation))
            for allocation in self.trace.allocations
            if (allocation.born is None or allocation.born <= time)
            and (allocation.freed is None or allocation.freed > time)
        )


def memory(
    trace: Trace | FamilyTraces,
    gpu: Device | str | None = None,
    *,
    expandable_segments: bool = False,
    parallel: Parallel | None = None,
) -> Memory:
    """The GPU memory of one training step.

    ```python
    wavecast.memory(trace, "l4").fits
    wavecast.memory(trace, "l4", parallel=wavecast.Parallel(data=8, shard=3)).fits
    ```

    Args:
        trace: a trace, made without a GPU or measured on one. Attention kernels that were chosen
            for another GPU family are chosen again where that is exact; else `Memory.notes` says
            so.
        gpu: the GPU to run on. It decides the workspaces of libraries and whether the step fits.
            With None, workspaces are left out unless they were measured.
        expandable_segments: whether torch's allocator is set to `expandable_segments:True`.
        parallel: how the step is spread over several GPUs. The memory is that of the fullest one.

    Raises:
        InvalidInput: the trace has no allocations, or cannot be spread that way.
        UnknownName: the GPU is not known.
    """
    target = device(gpu) if isinstance(gpu, str) else gpu
    trace, notes = Retargeted(trace_on(trace, target))
    if not trace.allocations:
        raise InvalidInput(
            "the trace has no allocations (profiler files record none); trace the step itself"
        )
    if target is not None:
        trace, notes = retarget(trace, target)
    if parallel is not None:
        return fullest_rank(spread(trace, parallel), target, expandable_segments)
    roomy = _unlimited(trace, target, expandable_segments, notes)
    if target is None or roomy.fits is not False:
        return roomy
    limit, complete = roomy.allocatable_bytes, roomy.trace.allocations
    if usable_bytes(limit) < peak_bytes(complete):
        return roomy
    peaks = _replayed_within(trace.arrays, complete, expandable_segments, limit)
    if peaks is None:
        return roomy
    return replace(roomy, peak_bytes=peaks.allocated_bytes, reserved_bytes=peaks.reserved_bytes)


def unlimited_memory(
    trace: Trace, gpu: Device | None, *, expandable_segments: bool = False
) -> Memory:
    """The memory that a step would need if the GPU had room for everything that torch caches.

    The arguments are those of `memory`.
    """
    chosen, notes = Retargeted(trace) if gpu is None else retarget(trace, gpu)
    return _unlimited(chosen, gpu, expandable_segments, notes)


def _unlimited(
    trace: Trace, gpu: Device | None, expandable: bool, notes: tuple[str, ...]
) -> Memory:
    complete = trace if gpu is None else with_workspaces(trace, gpu)
    peaks = _replayed(trace.arrays, complete.allocations, expandable)
    if missing := unrecorded(trace):
        notes = (*notes, note_of(missing))
    return Memory(
        trace=complete,
        device=gpu,
        peak_bytes=peaks.allocated_bytes,
        reserved_bytes=peaks.reserved_bytes,
        context_bytes=None if gpu is None else context_bytes(trace, gpu),
        notes=notes if compiled_gpu(trace) is None else (*notes, _JAX_NOTE),
    )


@lru_cache(maxsize=64)
def _replayed(arrays: StepArrays, allocations: tuple[Allocation, ...], expandable: bool) -> Replay:
    """The replay of a step, cached because many GPUs need equal workspaces."""
    return replay(Trace(arrays.calls, allocations), expandable=expandable)


@lru_cache(maxsize=64)
def _replayed_within(
    arrays: StepArrays, allocations: tuple[Allocation, ...], expandable: bool, limit_bytes: int
) -> Replay | None:
    """The replay of a step under a limit; None if it does not fit."""
    return replay_within(Trace(arrays.calls, allocations), limit_bytes, expandable=expandable)


def of_measured(
    trace: Trace, gpu: Device | None, peak_bytes: int, reserved_bytes: int, device_bytes: int
) -> Memory:
    """The memory of a step that ran, with the allocator's real counts."""
    context = max(0, device_bytes - reserved_bytes)
    return Memory(trace, gpu, peak_bytes, reserved_bytes, context, ran=True)


def module_of(allocation: Allocation, trace: Trace) -> str:
    """The module that owns an allocation, else the module of the call that made it."""
    born = allocation.born
    if allocation.module or born is None or born >= len(trace):
        return allocation.module
    call: Call = trace.calls[born]
    return call.module


# What the recording of a measured step lacks, so that its memory is a lower bound.
#
# Early recordings have no tensors that were made before the step, which are weights and the state
# of the optimizer. A step that was traced without a GPU always has them.


_STATEFUL = ("addcdiv", "lerp", "fused_adam")
"""Parts of the names of ops that only an optimizer with a state runs."""
_AS_LARGE = 0.5
"""The least share of its gradients' bytes that the weights of a step have. Gradients of the last
and the next step may live at the same time."""


def unrecorded(trace: Trace) -> tuple[str, ...]:
    """What was not recorded: "weights", "optimizer state", both or nothing."""
    if trace.measurement is None or any(ops.kind(call.op) is Kind.COLLECTIVE for call in trace):
        return ()  # a sharded rank has few weights and large gradients
    held = dict.fromkeys(Role, 0)
    for allocation in trace.allocations:
        held[allocation.role] += allocation.nbytes
    missing = []
    if held[Role.PARAMETER] < _AS_LARGE * _largest_gradients(trace):
        missing.append("weights")
    stateful = any(
        part in call.op.base
        for call in trace
        if call.phase is Phase.OPTIMIZER
        for part in _STATEFUL
    )
    if not held[Role.OPTIMIZER_STATE] and (stateful or missing):
        missing.append("optimizer state")
    return tuple(missing)


def note_of(missing: tuple[str, ...]) -> str:
    """A sentence about what was not recorded."""
    return (
        f"this measurement did not record the {' and the '.join(missing)}, so its memory is a "
        "lower bound and nothing is said about whether it fits; measure the step again"
    )


def _largest_gradients(trace: Trace) -> int:
    """The most bytes of gradients that live at a time."""
    changes = [0] * (len(trace) + 1)
    for allocation in trace.allocations:
        if allocation.role is Role.GRADIENT:
            changes[allocation.born or 0] += allocation.nbytes
            if allocation.freed is not None:
                changes[min(allocation.freed, len(trace))] -= allocation.nbytes
    return max(accumulate(changes))


# The memory of a step that is spread over several GPUs: that of the fullest rank.


def fullest_rank(step: ParallelStep, gpu: Device | None, expandable: bool = False) -> Memory:
    """The memory of the group of ranks that needs most."""
    return memory_of_rank(fullest_trace(step), step.strategy, gpu, expandable)


def memory_of_rank(
    trace: Trace, strategy: Parallel, gpu: Device | None, expandable: bool = False
) -> Memory:
    """The memory of a rank, from what it runs (`fullest_trace`), with NCCL's buffers."""
    needed = memory(trace, gpu, expandable_segments=expandable)
    if needed.context_bytes is None:
        return needed
    nccl_bytes = communicator_bytes(strategy)
    return replace(needed, context_bytes=needed.context_bytes + nccl_bytes)


def fullest_trace(step: ParallelStep) -> Trace:
    """What the ranks that need most memory run, with all memory that they hold."""
    traces = [memory_trace(step, group) for group in step.groups]
    if len(traces) == 1:
        return traces[0]
    # The peak without the allocator's caching is enough to find the fullest stage.
    return max(traces, key=lambda trace: peak_bytes(trace.allocations))


# The kinds of GPU memory, and how much there is of each kind during a step.


KINDS = (
    *("weights", "gradients", "optimizer state", "activations", "inputs"),
    *("workspace", "temporary", "weight copies"),
)
"""The kinds of memory. "activations" are tensors that the forward pass keeps for the backward.

"weight copies" are weights in half precision, which autocast makes in each step: their size does
not depend on the batch."""

TBD_KINDS: Mapping[str, tuple[str, ...]] = {
    "weights": ("weights",),
    "weight gradients": ("gradients",),
    "feature maps": ("activations", "inputs"),
    "workspace": ("workspace",),
    "dynamic": ("optimizer state", "temporary", "weight copies"),
}
"""TBD's five kinds (Zhu et al., IISWC 2018, section III-D3), and which of `KINDS` each holds.

Weight copies are dynamic, which the paper defines as what is allocated during the iterations."""

_ROLES = {
    Role.PARAMETER: "weights",
    Role.BUFFER: "weights",
    Role.GRADIENT: "gradients",
    Role.OPTIMIZER_STATE: "optimizer state",
    Role.INPUT: "inputs",
    Role.WORKSPACE: "workspace",
    Role.WEIGHT_COPY: "weight copies",
}

_HALF = ("float16", "bfloat16")


class KindFinder:
    """Finds the kind of each allocation of a step.

    Memory that a forward pass allocates and that still lives when the next backward pass begins is
    an activation. Other memory that is allocated during the step is temporary.
    """

    def __init__(self, trace: Trace) -> None:
        self._backward = [i for i, call in enumerate(trace) if call.phase is Phase.BACKWARD]
        self._forward = [call.phase is Phase.FORWARD for call in trace]
        self._copying = weight_copy_calls(trace)

    def of(self, allocation: Allocation) -> str:
        """The kind of an allocation, one of `KINDS`."""
        kind = _ROLES.get(allocation.role)
        if kind is not None:
            return kind
        born = allocation.born or 0
        if allocation.born in self._copying:
            return "weight copies"
        if born >= len(self._forward) or not self._forward[born]:
            return "temporary"
        following = bisect.bisect_left(self._backward, born)
        if following == len(self._backward):
            return "temporary"
        crosses = allocation.freed is None or allocation.freed > self._backward[following]
        return "activations" if crosses else "temporary"


class KindTimeline:
    """Bytes of each kind during each call of a step."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @cached_property
    def by_kind(self) -> Mapping[str, tuple[int, ...]]:
        """Bytes during each call, by kind."""
        length = max(1, len(self.trace))
        finder = KindFinder(self.trace)
        changes = {kind: [0] * (length + 1) for kind in KINDS}
        for allocation in self.trace.allocations:
            change = changes[finder.of(allocation)]
            change[min(allocation.born or 0, length)] += allocation.nbytes
            if allocation.freed is not None:
                change[min(allocation.freed, length)] -= allocation.nbytes
        return {kind: tuple(accumulate(change[:length])) for kind, change in changes.items()}

    @cached_property
    def totals(self) -> tuple[int, ...]:
        """Bytes during each call, of all kinds together."""
        return tuple(map(sum, zip(*self.by_kind.values(), strict=True)))


def peak_bytes(allocations: Iterable[Allocation]) -> int:
    """The largest sum of these allocations at any time of the step, in bytes."""
    changes: dict[int, int] = {}
    for allocation in allocations:
        born = -1 if allocation.born is None else allocation.born
        changes[born] = changes.get(born, 0) + allocation.nbytes
        if allocation.freed is not None:
            changes[allocation.freed] = changes.get(allocation.freed, 0) - allocation.nbytes
    return max(accumulate(changes[time] for time in sorted(changes)), default=0)


def peak_by_tbd_kind(trace: Trace) -> dict[str, int | None]:
    """The peak of each of TBD's kinds during the step, in bytes; None when unknown.

    Measured traces contain the workspace; `with_workspaces` adds it to others.
    """
    if not trace.allocations:
        return dict.fromkeys(TBD_KINDS)
    finder = KindFinder(trace)
    by_kind: dict[str, list[Allocation]] = {kind: [] for kind in KINDS}
    for allocation in trace.allocations:
        by_kind[finder.of(allocation)].append(allocation)
    peaks: dict[str, int | None] = {
        name: peak_bytes(allocation for kind in kinds for allocation in by_kind[kind])
        for name, kinds in TBD_KINDS.items()
    }
    return peaks if by_kind["workspace"] else peaks | {"workspace": None}


def weight_copy_calls(trace: Trace) -> frozenset[int]:
    """The positions of the calls that allocate copies of weights; none if the copies have a role.

    The recorder gives copies `Role.WEIGHT_COPY`. In older traces they are found by what autocast
    does: it casts a weight to half precision in the forward pass, and its gradient of the same
    shape back to float32 in the backward pass. A table of embeddings that is also the last layer
    has no such gradient, but the lookup shows its shape. cuDNN's recurrent layers get one flat copy
    that has half of the bytes of their flat weights.
    """
    if trace.values or any(a.role is Role.WEIGHT_COPY for a in trace.allocations):
        return frozenset()
    flat = {a.nbytes for a in trace.allocations if a.role is Role.PARAMETER}
    shapes = set(_gradient_shapes(trace))
    lookups = (call.op for call in trace if call.op.base == "aten.embedding")
    shapes |= {table.shape for op in lookups for table in op.inputs[:1]}
    return frozenset(
        position
        for position, call in enumerate(trace)
        if call.phase is Phase.FORWARD
        and (
            (_casts(call.op, ("float32",), _HALF) and call.op.inputs[0].shape in shapes)
            or _is_flat_copy(call.op, flat)
        )
    )


def _gradient_shapes(trace: Trace) -> Iterator[tuple[int, ...]]:
    """The shapes of the weights whose gradients are cast from half precision."""
    gradients = {a.born for a in trace.allocations if a.role is Role.GRADIENT}
    for position in gradients - {None}:
        if position is not None and position < len(trace):
            op = trace.calls[position].op
            if _casts(op, _HALF, ("float32",)):
                yield op.outputs[0].shape


def _casts(op: Op, before: tuple[str, ...], after: tuple[str, ...]) -> bool:
    if op.base != "aten._to_copy" or not op.inputs or not op.outputs:
        return False
    return op.inputs[0].dtype in before and op.outputs[0].dtype in after


def _is_flat_copy(op: Op, weights_bytes: set[int]) -> bool:
    if op.base != "aten.zeros" or not op.outputs:
        return False
    copy = op.outputs[0]
    return len(copy.shape) == 1 and copy.dtype in _HALF and 2 * copy.nbytes in weights_bytes
