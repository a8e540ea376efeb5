"""The workspaces of a step that nobody ran, on a GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from wavecast import ops
from wavecast.files import shipped_toml
from wavecast.footprint.workspaces import convolution, kernels, libraries, recurrent, reduction
from wavecast.footprint.workspaces.convolution import Convolution, Tree
from wavecast.footprint.workspaces.taking import Taking
from wavecast.hardware.device import Device
from wavecast.traces.step import Allocation, Op, Role, Trace

_PLAIN = {
    **dict.fromkeys(kernels.ATTENTION, kernels.attention_bytes),
    **dict.fromkeys(kernels.COPYING, kernels.copied_bytes),
    "aten._ctc_loss_backward": kernels.ctc_bytes,
    "aten._pack_padded_sequence": kernels.packing_bytes,
    "aten._foreach_norm": kernels.norm_bytes,
}


@dataclass(frozen=True)
class Constants:
    """What was fitted, and where."""

    gpu: str
    capability: tuple[int, int]
    trees: Mapping[str, Tree]
    """By unit and direction: which algorithm cuDNN takes for a convolution."""

    @classmethod
    def shipped(cls) -> Constants:
        """Those of data/models/workspaces.toml, whose head says how they were made."""
        return _shipped()


@cache
def _shipped() -> Constants:
    card = shipped_toml("models/workspaces.toml")
    major, minor = card["capability"]
    return Constants(
        gpu=card["gpu"],
        capability=(major, minor),
        trees={
            name: Tree(**{key: tuple(values) for key, values in tree.items()})
            for name, tree in card["trees"].items()
        },
    )


def with_workspaces(trace: Trace, device: Device, constants: Constants | None = None) -> Trace:
    """The trace with what libraries are expected to take on a GPU; a measured one has it already.

    Nothing is added where the GPU's libraries are not CUDA's, and nobody knows.
    """
    known = any(each.role is Role.WORKSPACE for each in trace.allocations)
    if known or not trace.allocations:
        return trace
    if device.compute_capability is None:
        note = f"workspaces of libraries are not known on {device.name}: it does not run CUDA's"
        return replace(trace, notes=(*trace.notes, note))
    constants = constants or Constants.shipped()
    return replace(
        trace,
        allocations=_allocations(trace, device, constants),
        notes=(*trace.notes, *_notes(trace, device, constants)),
    )


def _allocations(trace: Trace, device: Device, constants: Constants) -> tuple[Allocation, ...]:
    """The trace's own, buffers that are kept, and those that live as long as a call.

    What a call takes before it makes a result stands before that.
    """
    kept = [Allocation(n, None, None, Role.WORKSPACE) for n in libraries.kept_bytes(trace, device)]
    made: dict[int, list[int]] = defaultdict(list)
    for index, own in enumerate(trace.allocations):
        if own.born is not None:
            made[own.born].append(index)
    known: dict[Op, tuple[Taking, ...]] = {}
    before: dict[int, list[Allocation]] = defaultdict(list)
    for position, call in enumerate(trace):
        if call.op not in known:
            known[call.op] = takings(call.op, device, constants)
        for each in known[call.op]:
            # What ends where it began is gone before the call ends.
            end = position if each.passing else position + 1
            results = (
                i for i in made[position] if trace.allocations[i].nbytes == each.before_bytes
            )
            place = next(results, len(trace.allocations))
            before[place].append(Allocation(each.nbytes, position, end, Role.WORKSPACE))
    found: list[Allocation] = []
    for index, own in enumerate(trace.allocations):
        found += before.get(index, ())
        found.append(own)
    return (*found, *kept, *before.get(len(trace.allocations), ()))


def takings(op: Op, device: Device, constants: Constants) -> tuple[Taking, ...]:
    """What one op takes inside and gives back, in order; the last is the largest."""
    if not ops.has_shapes(op):
        return ()
    if op.base in convolution.NAMES:
        *passing, last = _convolution_bytes(op, device, constants)
        found = (*(Taking(n, passing=True) for n in passing), Taking(last))
    elif op.base in recurrent.NAMES:
        found = recurrent.takings(op)
    elif op.base == "aten.embedding_dense_backward":
        found = kernels.embedding_takings(op)
    else:
        found = (Taking(_plain_bytes(op, device)),)
    return tuple(each for each in found if each.nbytes)


def _plain_bytes(op: Op, device: Device) -> int:
    if op.base in reduction.OPS:
        return reduction.reduction_bytes(op, device) or 0
    plain = _PLAIN.get(op.base)
    return plain(op) if plain else 0


def _convolution_bytes(op: Op, device: Device, constants: Constants) -> tuple[int, ...]:
    found = Convolution.of(op, on_tensor_cores(op, device))
    taken = convolution.algorithm_bytes(found, constants.trees, device.sm_count)
    *passing, last = (each + scattered_bytes(found) for each in taken)
    if found.backward and found.wanted[-1]:
        last = max(last, reduction.bias_bytes(found.output, device) or 0)
    return *passing, last


def scattered_bytes(found: Convolution) -> int:
    """Contiguous copies of what torch hands to cuDNN."""
    operands = (found.source, found.weight, *([found.output] if found.backward else []))
    return sum(t.nbytes for t in operands if kernels.scattered(t))


def on_tensor_cores(op: Op, device: Device) -> bool:
    """Whether tensor cores run a convolution."""
    unit = ops.unit(op)
    return unit.endswith("_tensor") and device.rate(unit) is not None


def _notes(trace: Trace, device: Device, constants: Constants) -> tuple[str, ...]:
    closed = {op.base for op in trace.counts} & {*convolution.NAMES, *recurrent.NAMES}
    if not closed or device.compute_capability == constants.capability:
        return ()
    return (f"workspaces of cuDNN are predicted as on an {constants.gpu}: no other was measured",)
