"""Collectives of tensor ranks that run beside products."""

from __future__ import annotations

from collections import Counter

from parallel_steps import small_gpt2_step

import wavecast
from lab.measured.overlapped import with_overlapped_tensor_ranks
from wavecast.hardware.hosts import REFERENCE_HOST
from wavecast.parallel.spreading import spread
from wavecast.parallel.strategy import Parallel
from wavecast.steps.parallel_prediction import ParallelSteps
from wavecast.steps.predicting import on_cluster

STRATEGY = Parallel(tensor=2, sequence=True)


def test_the_calls_are_the_same_and_products_do_not_wait() -> None:
    step = spread(small_gpt2_step(), STRATEGY)
    before = step.groups[0].parts[0].last
    after = with_overlapped_tensor_ranks(step).groups[0].parts[0].last
    assert Counter(call.op for call in after) == Counter(call.op for call in before)
    assert [c.op for c in after if c.stream == 0 and c.op.name.startswith("aten")] == [
        c.op for c in before if c.stream == 0 and c.op.name.startswith("aten")
    ]
    first = next(i for i, c in enumerate(after) if c.op.name == "nccl.all_gather")
    product = next(i for i in range(first, len(after)) if after.calls[i].op.base == "aten.addmm")
    between = [call.op.name for call in after.calls[first + 1 : product]]
    assert "cuda.stream_wait" not in between
    assert after.calls[product + 1].op.name == "cuda.stream_wait"


def test_the_step_is_not_slower() -> None:
    predictor = on_cluster(wavecast.device("h100-sxm-80gb"), STRATEGY)
    steps = ParallelSteps(small_gpt2_step(), predictor, REFERENCE_HOST.scaled(1e-3))
    step = steps.spread(STRATEGY)
    alone = steps.predict(step)
    beside = steps.predict(with_overlapped_tensor_ranks(step))
    assert beside.seconds < alone.seconds
    assert beside.exposed_s < alone.exposed_s
