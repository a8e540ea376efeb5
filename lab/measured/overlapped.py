"""Steps whose tensor-parallel collectives run beside the products that they belong to.

Transformer Engine cuts a gather, or a reduce-scatter, and the product beside it into chunks, so
that chunks are sent while others are computed (NVIDIA's `tp_comm_overlap`, with userbuffers). Both
then take about as long as the longer one. The first and the last chunk are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wavecast.parallel.editing import COMPUTE, TRANSFERS
from wavecast.parallel.ranks import ModelPart, ParallelStep
from wavecast.parallel.spreading import backward_end
from wavecast.traces.step import Call, Trace

_PRODUCTS = ("aten.mm", "aten.addmm", "aten._scaled_mm")
_AROUND = 12
"""How many calls a collective may be from its product: casts and views are between them."""


def with_overlapped_tensor_ranks(step: ParallelStep) -> ParallelStep:
    """A spread step whose gathers and reduce-scatters of tensor ranks run beside products."""
    groups = tuple(replace(group, parts=tuple(map(_part, group.parts))) for group in step.groups)
    return replace(step, groups=groups)


def _part(part: ModelPart) -> ModelPart:
    last = _trace(part.last)
    return ModelPart(_trace(part.plain), last, backward_end(last))


def _trace(trace: Trace) -> Trace:
    calls: list[Call] = list(trace.calls)
    order = list(range(len(calls)))
    for position, call in enumerate(trace.calls):
        if call.stream != TRANSFERS:
            continue
        if call.op.name == "nccl.all_gather" and _waits(calls, position + 1, COMPUTE):
            product = _next_product(calls, range(position + 2, position + 2 + _AROUND), call)
            if product is not None:  # the product need not wait for the whole gather
                order.remove(position + 1)
                order.insert(order.index(product) + 1, position + 1)
        elif call.op.name == "nccl.reduce_scatter" and _waits(calls, position - 1, TRANSFERS):
            product = _next_product(calls, range(position - 2, position - 2 - _AROUND, -1), call)
            if product is not None:  # its first chunks are sent while others are computed
                for moved in (position - 1, position):
                    order.remove(moved)
                    order.insert(order.index(product), moved)
    return replace(trace, calls=tuple(calls[index] for index in order), allocations=())


def _waits(calls: Sequence[Call], position: int, stream: int) -> bool:
    """Whether a stream waits at a position."""
    if not 0 <= position < len(calls):
        return False
    call = calls[position]
    return call.op.name == "cuda.stream_wait" and call.stream == stream


def _next_product(calls: Sequence[Call], places: range, collective: Call) -> int | None:
    """The nearest product of the same pass, with no other collective between."""
    for place in places:
        if not 0 <= place < len(calls) or calls[place].phase is not collective.phase:
            return None
        if calls[place].op.base in _PRODUCTS:
            return place
        if calls[place].op.name.startswith("nccl."):
            return None
    return None
