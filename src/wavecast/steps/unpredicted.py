"""How much of a step's work is of ops that no predictor could answer.

Their GPU time is unknown and counts as 0, so the share of the step's bytes and FLOPs that is theirs
says how wrong its time may be. An op without a formula moves at least the bytes of its tensors. Of
a measured step the GPU time of each call is known too, and says it best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from wavecast import ops
from wavecast.ops.registry import read
from wavecast.steps.timed_trace import TimedTrace
from wavecast.steps.work import StepWork
from wavecast.traces.step import Call, Op

WORTH_A_WORD = 0.02
"""From this share on, tables say how much of a step was not predicted."""
TOO_MUCH = 0.2
"""Above this share, predictions are not compared with each other."""

Amounts = Mapping[str, NDArray[np.float64]]
"""How much each piece of work of a step does, by what is counted."""


def unpredicted_calls(steps: Sequence[TimedTrace]) -> dict[str, int]:
    """The number of calls of each op without an answer, by op name."""
    calls: dict[str, int] = {}
    for timed in steps:
        rows = zip(timed.arrays.works, timed.arrays.counts.tolist(), _missing(timed), strict=True)
        for call, count, missing in rows:
            if missing:
                calls[call.op.name] = calls.get(call.op.name, 0) + count
    return calls


def unpredicted_shares(steps: Sequence[TimedTrace]) -> dict[str, float]:
    """The share of ops without an answer in the work of some traces, by what is counted.

    A share is left out where the step has none of what is counted: a profiler file may record no
    shapes.
    """
    missing = [np.array(_missing(timed)) for timed in steps]
    if not any(mask.any() for mask in missing):
        return {}
    amounts = [_amounts(timed.work) for timed in steps]
    shares = {}
    for name in amounts[0]:
        if total := sum(float(each[name].sum()) for each in amounts):
            pairs = zip(amounts, missing, strict=True)
            shares[name] = sum(float(each[name][mask].sum()) for each, mask in pairs) / total
    return shares


def _missing(timed: TimedTrace) -> list[bool]:
    """Whether each piece of work launches a kernel and has no answer."""
    pairs = zip(timed.work.launches, timed.answers, strict=True)
    return [launches and answer is None for launches, answer in pairs]


@lru_cache(maxsize=16)
def _amounts(work: StepWork) -> Amounts:
    """The bytes, FLOPs and measured seconds of each piece of work, over all of its calls."""
    arrays = work.arrays
    works = list(zip(arrays.works, work.launches, strict=True))

    def column(amount: list[float]) -> NDArray[np.float64]:
        return np.array(amount) * arrays.counts

    return {
        "bytes": column([_bytes(call.op) if launches else 0.0 for call, launches in works]),
        "FLOPs": column([ops.executed_flops(call.op) or 0.0 for call, _ in works]),
        "measured GPU time": column([_measured_s(call) for call, _ in works]),
    }


def _bytes(op: Op) -> float:
    cost = ops.cost_of(op)
    if cost is not None:
        return float(cost.bytes)
    return float(read((*op.inputs, *op.outputs))) if ops.has_shapes(op) else 0.0


def _measured_s(call: Call) -> float:
    return sum(kernel.seconds for kernel in call.kernels)
