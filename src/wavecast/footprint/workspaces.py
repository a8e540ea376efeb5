"""The workspaces of a step, predicted for a GPU and added to its trace."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from wavecast import ops
from wavecast.files import shipped_toml
from wavecast.footprint import convolution_workspaces, reduction_workspaces
from wavecast.footprint.convolution_workspaces import Convolution, Tree, Workspace
from wavecast.hardware.devices import Device
from wavecast.ops.attention import problem
from wavecast.ops.registry import MOST_BYTES, integer, reading
from wavecast.traces.kept import Same
from wavecast.traces.step import Allocation, Op, Role, TensorSpec, Trace


@dataclass(frozen=True)
class Constants:
    """The fitted rules for cuDNN's choice of a convolution algorithm."""

    gpu: str
    """The name of the GPU that they were fitted on."""
    capability: tuple[int, int]
    """The compute capability of that GPU."""
    trees: Mapping[str, Tree]
    """The decision trees that name the algorithm, by `convolution_workspaces.tree_name`."""

    @classmethod
    def shipped(cls) -> Constants:
        """The rules in data/models/workspaces.toml; the file says how they were fitted."""
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
    """The trace with predicted workspaces; unchanged if it has measured ones.

    On GPUs that do not run CUDA, workspaces are unknown and a note says so.
    """
    recorded = any(allocation.role is Role.WORKSPACE for allocation in trace.allocations)
    if recorded or not trace.allocations:
        return trace
    if device.compute_capability is None:
        note = f"workspaces of libraries are not known on {device.name}, which does not run CUDA"
        return replace(trace, notes=(*trace.notes, note))
    constants = constants or Constants.shipped()
    return replace(
        trace,
        allocations=_allocations(trace, device, constants),
        notes=(*trace.notes, *_notes(trace, device, constants)),
    )


def _allocations(trace: Trace, device: Device, constants: Constants) -> tuple[Allocation, ...]:
    """The allocations of the trace, with buffers that libraries keep and workspaces of calls."""
    of_ops = tuple(workspaces_of(op, device, constants) for op in trace.counts)
    return _placed(Same(trace), tuple(reduction_workspaces.kept_bytes(trace, device)), of_ops)


@lru_cache(maxsize=64)
def _placed(
    same: Same[Trace], kept_bytes: tuple[int, ...], of_ops: tuple[tuple[Workspace, ...], ...]
) -> tuple[Allocation, ...]:
    """The allocations with workspaces, cached because many GPUs need equal ones.

    A workspace that an op allocates before a result comes before that result.
    """
    trace = same.value
    kept = [Allocation(n, None, None, Role.WORKSPACE) for n in kept_bytes]
    born_at: dict[int, list[int]] = defaultdict(list)
    for index, allocation in enumerate(trace.allocations):
        if allocation.born is not None:
            born_at[allocation.born].append(index)
    workspaces = dict(zip(trace.counts, of_ops, strict=True))
    before: dict[int, list[Allocation]] = defaultdict(list)
    for position, call in enumerate(trace):
        for workspace in workspaces[call.op]:
            # An allocation that is freed at the call where it was born is gone before it ends.
            end = position if workspace.released_early else position + 1
            results = (
                i
                for i in born_at[position]
                if trace.allocations[i].nbytes == workspace.before_bytes
            )
            place = next(results, len(trace.allocations))
            before[place].append(Allocation(workspace.nbytes, position, end, Role.WORKSPACE))
    ordered: list[Allocation] = []
    for index, allocation in enumerate(trace.allocations):
        ordered += before.get(index, ())
        ordered.append(allocation)
    return (*ordered, *kept, *before.get(len(trace.allocations), ()))


def workspaces_of(op: Op, device: Device, constants: Constants) -> tuple[Workspace, ...]:
    """The workspaces of one run of an op, in the order in which they are allocated.

    There are none for an op whose shapes are not known or cannot be read.
    """
    if not ops.has_shapes(op):
        return ()
    workspaces = reading(_workspaces, (), op, device, constants)
    return tuple(w for w in workspaces if 0 < w.nbytes <= MOST_BYTES)


def _workspaces(op: Op, device: Device, constants: Constants) -> tuple[Workspace, ...]:
    if op.base in convolution_workspaces.NAMES:
        *earlier, last = _convolution_bytes(op, device, constants)
        return (*(Workspace(n, released_early=True) for n in earlier), Workspace(last))
    if op.base in reduction_workspaces.NAMES:
        return tuple(reduction_workspaces.workspaces_of(op))
    if op.base == "aten.embedding_dense_backward":
        return tuple(embedding_workspaces(op))
    return (Workspace(_single_bytes(op, device)),)


def _single_bytes(op: Op, device: Device) -> int:
    """The bytes of the one workspace of an op; 0 if it has none."""
    if op.base in reduction_workspaces.OPS:
        return reduction_workspaces.reduction_bytes(op, device) or 0
    rule = _SINGLE.get(op.base)
    return rule(op) if rule else 0


def _convolution_bytes(op: Op, device: Device, constants: Constants) -> tuple[int, ...]:
    """The bytes of a convolution's workspaces; each is freed before the next is allocated."""
    shapes = Convolution.of(op, on_tensor_cores(op, device))
    sizes = convolution_workspaces.algorithm_bytes(shapes, constants.trees, device.sm_count)
    *earlier, last = (nbytes + scattered_bytes(shapes) for nbytes in sizes)
    if shapes.backward and shapes.computes[-1]:
        last = max(last, reduction_workspaces.bias_bytes(shapes.output, device) or 0)
    return *earlier, last


def scattered_bytes(shapes: Convolution) -> int:
    """The bytes of contiguous copies that torch makes of operands before it calls cuDNN."""
    operands = (shapes.source, shapes.weight, *([shapes.output] if shapes.backward else []))
    return sum(t.nbytes for t in operands if scattered(t))


def on_tensor_cores(op: Op, device: Device) -> bool:
    """Whether a convolution runs on tensor cores."""
    unit = ops.unit(op)
    return unit.endswith("_tensor") and device.rate(unit) is not None


def _notes(trace: Trace, device: Device, constants: Constants) -> tuple[str, ...]:
    in_cudnn = {op.base for op in trace.counts} & {
        *convolution_workspaces.NAMES,
        *reduction_workspaces.NAMES,
    }
    if not in_cudnn or device.compute_capability == constants.capability:
        return ()
    return (f"workspaces of cuDNN are those of an {constants.gpu}, the only GPU measured",)


# The workspaces of ops with one workspace rule each: accumulators, sorted and contiguous copies.
#
# The rules come from the sources of torch and, for closed libraries, from measurements on an H200
# (`lab.score.memory` compares).


_FLOAT, _LONG = 4, 8
_SORTING_FROM = 3072
"""Up to this many indices are added up without sorting (aten/native/cuda/Embedding.cu)."""
_ROWS_PER_THREAD, _WARP = 10, 32
_NORM_CHUNK = 65536
"""Elements that give one partial norm (aten/native/cuda/ForeachReduceOp.cu)."""

ATTENTION = (
    "aten._scaled_dot_product_flash_attention_backward",
    "aten._scaled_dot_product_efficient_attention_backward",
    "aten._scaled_dot_product_cudnn_attention_backward",
    "aten._flash_attention_backward",
    "aten._efficient_attention_backward",
    "aten._cudnn_attention_backward",
)
COPYING = (
    "aten.native_layer_norm",
    "aten.native_layer_norm_backward",
    "aten.max_pool2d_with_indices_backward",
)


def attention_bytes(op: Op) -> int:
    """The bytes of the query gradients in float32, and of one number for each query.

    The backward pass accumulates into them. Flash attention rounds the number of queries up to a
    multiple of 128 and the head size to one of 32; memory-efficient attention rounds to 128 and
    64; cuDNN does not round.
    """
    shapes = problem(op, as_torch=True)
    queries, width = shapes.q_len, shapes.d
    if "cudnn" not in op.base:
        queries = _round_up(queries, 128)
        width = _round_up(width, 32 if "flash" in op.base else 64)
    return _FLOAT * shapes.sequences * (queries * width + shapes.q_len)


def embedding_workspaces(op: Op) -> tuple[Workspace, ...]:
    """The workspaces of an embedding's gradient.

    Its indices are sorted, then rows of the gradient are added up by segments of equal indices.
    """
    gradient, indices = op.inputs[:2]
    count, rows = indices.numel, integer(op, "num_weights")
    if count <= _SORTING_FROM:
        return ()
    sorted_bytes, result = _LONG * count, op.outputs[0].nbytes
    distinct = min(count, rows)
    segments = count // _ROWS_PER_THREAD + distinct
    sorting = (sorted_bytes, 2 * sorted_bytes)
    adding = (sorted_bytes, _LONG * distinct, _LONG * distinct, _LONG * segments)
    return (
        *(Workspace(sorted_bytes, before_bytes=result) for _ in range(2)),
        *(Workspace(n, released_early=True, before_bytes=result) for n in sorting),
        *(Workspace(n) for n in adding),
        Workspace(_FLOAT * segments * _round_up(gradient.shape[-1], _WARP)),
    )


def ctc_bytes(op: Op) -> int:
    """The bytes of the CTC loss's backward log probabilities, and as many again."""
    steps, batch = op.inputs[1].shape[:2]
    targets = op.attr("target_lengths")
    longest = max(targets) if isinstance(targets, tuple) else op.inputs[2].shape[-1]
    return int(2 * _FLOAT * batch * steps * (2 * longest + 1))


def packing_bytes(op: Op) -> int:
    """The bytes of the pieces from which the packed sequence is concatenated."""
    return op.outputs[0].nbytes


def norm_bytes(op: Op) -> int:
    """The bytes of the partial norms: all tensors get as many as the largest one needs."""
    largest = max((t.numel for t in op.inputs), default=0)
    return _FLOAT * len(op.inputs) * math.ceil(largest / _NORM_CHUNK)


def copied_bytes(op: Op) -> int:
    """The bytes of contiguous copies of inputs in a layout that the kernel cannot read."""
    return sum(t.nbytes for t in op.inputs[:2] if scattered(t))


def scattered(spec: TensorSpec) -> bool:
    """Whether a tensor is neither contiguous nor channels last."""
    return spec.strides is not None and not spec.channels_last


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


_SINGLE = {
    **dict.fromkeys(ATTENTION, attention_bytes),
    **dict.fromkeys(COPYING, copied_bytes),
    "aten._ctc_loss_backward": ctc_bytes,
    "aten._pack_padded_sequence": packing_bytes,
    "aten._foreach_norm": norm_bytes,
}
