"""Changes that are made to a trace itself: they need no run of the step's code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from wavecast.footprint.edits import quantize_state
from wavecast.traces.editing import Edit
from wavecast.traces.step import Allocation, Call, Op, Role, TensorSpec, Trace

_READS = ("aten._local_scalar_dense", "aten.item")
_ASYNC = (("non_blocking", True), ("pin_memory", True))
"""How a copy is recorded whose source is pinned, and for which the host does not wait."""
_MATMULS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.linear")
_ALIGNED = 8
"""Tensor cores read 16 bytes at once: eight values of 16 bits."""
_PADDED_TO = 64
_LEAST_SIZE = 128


def is_copy_to_gpu(call: Call) -> bool:
    """Whether the host waits in a call until data of its memory are on the GPU."""
    op = call.op
    return call.syncs and bool(op.outputs) and op.outputs[0].device == "cuda" and _from_host(op)


def _from_host(op: Op) -> bool:
    return any(spec.device == "cpu" for spec in op.inputs)


def is_read(call: Call) -> bool:
    """Whether the host waits in a call for a value or a copy that need not be there at once."""
    op = call.op
    if not call.syncs:
        return False
    to_host = bool(op.outputs) and op.outputs[0].device == "cpu" and not _from_host(op)
    return op.base in _READS or (to_host and op.base in ("aten._to_copy", "aten.copy_"))


def waiting_lines(trace: Trace) -> Counter[str]:
    """The lines of code that read the GPU's values, and how often in a step."""
    return Counter(call.line or "an unknown line" for call in trace if is_read(call))


def without_reads(trace: Trace) -> Trace | None:
    """The step without reads of single values, and with copies to the host that do not wait."""
    edit, changed = Edit(trace), False
    for position, call in enumerate(trace.calls):
        if is_read(call):
            changed = True
            if call.op.base in _READS:
                edit.remove([position])
            else:
                edit.replace(position, replace(call, syncs=False))
    return edit.trace() if changed else None


def with_async_copies(trace: Trace) -> Trace | None:
    """The step with copies from pinned memory, which do not make the host wait."""
    edit, changed = Edit(trace), False
    for position, call in enumerate(trace.calls):
        if is_copy_to_gpu(call):
            changed = True
            kept = (pair for pair in call.op.attrs if pair[0] not in dict(_ASYNC))
            op = replace(call.op, attrs=(*kept, *_ASYNC))
            edit.replace(position, replace(call, op=op, syncs=False))
    return edit.trace() if changed else None


def with_padded_sizes(trace: Trace) -> Trace | None:
    """The step with vocabularies and widths that no matmul has to read unaligned."""
    odd = odd_sizes(trace)
    if not odd:
        return None
    sizes = {size: -(-size // _PADDED_TO) * _PADDED_TO for size in odd}
    specs: dict[TensorSpec, TensorSpec] = {}
    known: dict[Op, Op] = {}

    def padded(spec: TensorSpec) -> TensorSpec:
        if spec not in specs:
            specs[spec] = _padded(spec, sizes)
        return specs[spec]

    def op_of(op: Op) -> Op:
        if op not in known:
            inputs, outputs = (tuple(map(padded, each)) for each in (op.inputs, op.outputs))
            known[op] = Op(op.name, inputs, outputs, op.attrs)
        return known[op]

    grown = _grown(trace, padded)
    return replace(
        trace,
        calls=tuple(replace(call, op=op_of(call.op)) for call in trace.calls),
        values=tuple(replace(value, spec=padded(value.spec)) for value in trace.values),
        allocations=grown,
    )


def odd_sizes(trace: Trace) -> tuple[int, ...]:
    """The widths of weights in 16-bit and TF32 matmuls that are no multiples of eight."""
    return odd_widths(trace, _on_tensor_cores)


def odd_widths(trace: Trace, test: Callable[[Op], bool] = lambda _: True) -> tuple[int, ...]:
    """The widths of weights in some matmuls that are no multiples of eight, in order."""
    weights = {size for value in trace.values if value.parameter for size in value.spec.shape}
    found: set[int] = set()
    for op in trace.counts:
        if op.base in _MATMULS and test(op):
            found |= {size for spec in op.inputs for size in spec.shape} & weights
    return tuple(sorted(n for n in found if n >= _LEAST_SIZE and n % _ALIGNED))


def _on_tensor_cores(op: Op) -> bool:
    is_tf32 = op.attr("precision") == "tf32"
    return is_tf32 or any(spec.dtype in ("bfloat16", "float16") for spec in op.inputs)


def _padded(spec: TensorSpec, sizes: dict[int, int]) -> TensorSpec:
    shape = tuple(sizes.get(size, size) for size in spec.shape)
    if shape == spec.shape and spec.strides is None:
        return spec
    strides = spec.strides
    for old, new in sizes.items():
        if strides is not None:
            strides = tuple(s // old * new if s and s % old == 0 else s for s in strides)
    return replace(spec, shape=shape, strides=strides)


def _grown(trace: Trace, padded: Callable[[TensorSpec], TensorSpec]) -> tuple[Allocation, ...]:
    """The memory of the step, with that of padded tensors grown in proportion."""
    factors: dict[int, float] = {}
    for value in trace.values:
        if value.allocation is not None and value.view_of is None and value.spec.nbytes:
            factors[value.allocation] = padded(value.spec).nbytes / value.spec.nbytes
    return tuple(
        replace(memory, nbytes=round(memory.nbytes * factors.get(number, 1.0)))
        for number, memory in enumerate(trace.allocations)
    )


def with_eight_bit_states(trace: Trace) -> Trace | None:
    """The step with an optimizer that keeps its states in eight bits; None if it has none."""
    has_states = any(memory.role is Role.OPTIMIZER_STATE for memory in trace.allocations)
    return quantize_state(trace) if has_states else None


EDITS = {
    "fewer_waits": without_reads,
    "async_copies": with_async_copies,
    "padding": with_padded_sizes,
    "eight_bit_optimizer": with_eight_bit_states,
}
"""The changes that are made to a trace, by name; each gives None where it has nothing to change."""
