"""Overlap of tensor-parallel collectives with the matmuls beside them, as in Transformer Engine.

An all-gather, or a reduce-scatter, and the matmul beside it are cut into chunks, so that chunks are
sent while others are computed (NVIDIA's `tp_comm_overlap`, with userbuffers). Both then take about
as long as the longer one. The first and the last chunk are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from wavecast.parallel.editing import COMPUTE, TRANSFERS
from wavecast.traces.editing import Edit
from wavecast.traces.step import Call, Trace

_MATMULS = ("aten.mm", "aten.addmm", "aten._scaled_mm")
_AROUND = 12
"""How many calls a collective may be from its matmul: casts and views are between them."""


def with_overlap(trace: Trace) -> Trace:
    """A rank's step whose all-gathers and reduce-scatters run beside the matmuls next to them."""
    calls, edit = trace.calls, Edit(trace)
    for position, call in enumerate(calls):
        if call.stream != TRANSFERS:
            continue
        if call.op.name == "nccl.all_gather" and _waits(calls, position + 1, COMPUTE):
            matmul = _next_matmul(calls, range(position + 2, position + 2 + _AROUND), call)
            if matmul is not None:  # it need not wait for the whole gather
                edit.move(position + 1, matmul + 1)
        elif call.op.name == "nccl.reduce_scatter" and _waits(calls, position - 1, TRANSFERS):
            matmul = _next_matmul(calls, range(position - 2, position - 2 - _AROUND, -1), call)
            if matmul is not None:  # its first chunks are sent while others are computed
                edit.move(position - 1, matmul)
                edit.move(position, matmul)
    return edit.trace()


def _waits(calls: Sequence[Call], position: int, stream: int) -> bool:
    """Whether a stream waits at a position."""
    if not 0 <= position < len(calls):
        return False
    call = calls[position]
    return call.op.name == "cuda.stream_wait" and call.stream == stream


def _next_matmul(calls: Sequence[Call], places: range, collective: Call) -> int | None:
    """The nearest matmul of the same pass, with no other collective between."""
    for place in places:
        if not 0 <= place < len(calls) or calls[place].phase is not collective.phase:
            return None
        if calls[place].op.base in _MATMULS:
            return place
        if calls[place].op.name.startswith("nccl."):
            return None
    return None
