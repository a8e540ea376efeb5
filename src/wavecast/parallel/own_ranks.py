"""How a step's own parallel code is spread, read from the collectives of one of its ranks."""

from __future__ import annotations

from math import prod

from wavecast.parallel.strategy import Parallel
from wavecast.traces.step import Call, Phase, Trace

_REDUCE = frozenset({"nccl.all_reduce", "nccl.reduce_scatter", "nccl.reduce"})
_SHARE_WORK = _REDUCE | {"nccl.all_to_all"}
"""Collectives that, in a forward pass, join what ranks computed of the same samples."""


def own_strategy(trace: Trace, ranks: int) -> Parallel:
    """How many of the ranks of a step's own parallel code have samples of their own.

    Ranks that reduce each other's gradients are data-parallel, unless they also share the work of
    the forward pass, as tensor-parallel ranks do. The rest of the ranks shares each sample, and is
    counted as tensor-parallel.

    Args:
        trace: the step of one rank.
        ranks: how many ranks there are.
    """
    sharing = {
        _group(call)
        for call in trace
        if call.phase is Phase.FORWARD and call.op.name in _SHARE_WORK and _elements(call) > 1
    }
    reducing = {
        _group(call)
        for call in trace
        if call.phase is not Phase.FORWARD and call.op.name in _REDUCE and _elements(call) > 1
    } - sharing
    data = prod(size for size, _ in reducing) if reducing else ranks // _product(sharing)
    if not 1 <= data <= ranks or ranks % data:
        data = ranks
    scattered = any(
        call.op.name == "nccl.reduce_scatter" and _group(call) in reducing for call in trace
    )
    return Parallel(data=data, tensor=ranks // data, shard=3 if scattered and data > 1 else 0)


def _group(call: Call) -> tuple[int, int]:
    """The ranks of a collective: how many, and how far apart."""
    size, stride = (call.op.attr(name, 1) for name in ("ranks", "stride"))
    assert isinstance(size, int)
    assert isinstance(stride, int)
    return size, stride


def _product(groups: set[tuple[int, int]]) -> int:
    return prod(size for size, _ in groups)


def _elements(call: Call) -> int:
    return sum(spec.numel for spec in call.op.inputs)
