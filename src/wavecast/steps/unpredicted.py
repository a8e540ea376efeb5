"""How much of a step's work is of ops that no predictor could answer.

Their GPU time is unknown and counts as 0, so the share of the step's bytes and FLOPs that is theirs
says how wrong its time may be. An op without a formula moves at least the bytes of its tensors. Of
a measured step the GPU time of each call is known too, and says it best.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from wavecast import ops
from wavecast.ops.registry import read
from wavecast.steps.op_times import Answers
from wavecast.steps.work import StepWork
from wavecast.traces.step import Call, Op

WORTH_A_WORD = 0.02
"""From this share on, tables say how much of a step was not predicted."""
TOO_MUCH = 0.2
"""Above this share, predictions are not compared with each other."""

Amounts = Mapping[str, NDArray[np.float64]]
"""How much each piece of work of a step does, by what is counted."""


def unpredicted_shares(work: StepWork, answers: Answers) -> dict[str, float]:
    """The share of ops without an answer in the step's work, by what is counted.

    A share is left out where the step has none of what is counted: a profiler file may record no
    shapes.
    """
    missing = np.array(
        [
            launches and answer is None
            for launches, answer in zip(work.launches, answers, strict=True)
        ]
    )
    if not missing.any():
        return {}
    shares = {}
    for name, amounts in _amounts(work).items():
        if total := float(amounts.sum()):
            shares[name] = float(amounts[missing].sum()) / total
    return shares


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
