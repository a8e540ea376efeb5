"""The workspaces of a step that nobody ran, on a GPU."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from wavecast import ops
from wavecast.devices import Device
from wavecast.trace import Allocation, Op, Role, Trace
from wavecast.workspaces import blas, convolution, kernels, reduction
from wavecast.workspaces.convolution import Convolution, Tree

_PLAIN = {
    **dict.fromkeys(kernels.ATTENTION, kernels.attention_bytes),
    **dict.fromkeys(kernels.COPYING, kernels.copied_bytes),
    "aten.embedding_dense_backward": kernels.embedding_bytes,
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
    recurrent: Mapping[str, tuple[float, ...]]
    """By group: what cuDNN takes of a network's steps, and of its weights."""

    @classmethod
    def shipped(cls) -> Constants:
        """Those of data/models/workspaces.toml, whose head says how they were made."""
        return _shipped()


@cache
def _shipped() -> Constants:
    text = resources.files("wavecast").joinpath("data/models/workspaces.toml").read_text("utf-8")
    card = tomllib.loads(text)
    major, minor = card["capability"]
    return Constants(
        gpu=card["gpu"],
        capability=(major, minor),
        trees={
            name: Tree(**{key: tuple(values) for key, values in tree.items()})
            for name, tree in card["trees"].items()
        },
        recurrent={name: tuple(shares) for name, shares in card["recurrent"].items()},
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
        allocations=(*trace.allocations, *workspaces(trace, device, constants)),
        notes=(*trace.notes, *_notes(trace, device, constants)),
    )


def workspaces(
    trace: Trace, device: Device, constants: Constants | None = None
) -> tuple[Allocation, ...]:
    """Buffers that are kept, and those that live as long as a call."""
    constants = constants or Constants.shipped()
    kept = blas.kept_bytes(trace, device)
    found = [Allocation(nbytes, None, None, Role.WORKSPACE) for nbytes in kept]
    known: dict[Op, tuple[int, ...]] = {}
    for position, call in enumerate(trace):
        if call.op not in known:
            known[call.op] = workspaces_bytes(call.op, device, constants)
        *passing, last = known[call.op]
        # Those that end where they began are gone before the call ends.
        found += [Allocation(n, position, position, Role.WORKSPACE) for n in passing if n]
        if last:
            found.append(Allocation(last, position, position + 1, Role.WORKSPACE))
    return tuple(found)


def workspaces_bytes(op: Op, device: Device, constants: Constants) -> tuple[int, ...]:
    """What one op takes inside and gives back, one after the other; the last is the largest."""
    if op.base in convolution.NAMES and ops.has_shapes(op):
        return _convolution_bytes(op, device, constants)
    return (_plain_bytes(op, device, constants),)


def _plain_bytes(op: Op, device: Device, constants: Constants) -> int:
    if not ops.has_shapes(op):
        return 0
    if op.base in kernels.RECURRENT:
        return kernels.recurrent_bytes(op, constants.recurrent)
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
    closed = {op.base for op in trace.counts} & {*convolution.NAMES, *kernels.RECURRENT}
    if not closed or device.compute_capability == constants.capability:
        return ()
    return (f"workspaces of cuDNN are predicted as on an {constants.gpu}: no other was measured",)
