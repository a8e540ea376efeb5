"""Tensor-parallel collectives that run beside matmuls."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from parallel_steps import small_gpt2_step

from wavecast.parallel.spreading import spread
from wavecast.parallel.strategy import Parallel

STRATEGY = Parallel(tensor=2, sequence=True)
OVERLAPPED = replace(STRATEGY, overlap_tensor=True)


def test_the_calls_are_the_same_and_matmuls_do_not_wait() -> None:
    before, after = (
        spread(small_gpt2_step(), strategy).groups[0].parts[0].last
        for strategy in (STRATEGY, OVERLAPPED)
    )
    assert Counter(call.op for call in after) == Counter(call.op for call in before)
    assert [c.op for c in after if c.stream == 0 and c.op.name.startswith("aten")] == [
        c.op for c in before if c.stream == 0 and c.op.name.startswith("aten")
    ]
    first = next(i for i, c in enumerate(after) if c.op.name == "nccl.all_gather")
    matmul = next(i for i in range(first, len(after)) if after.calls[i].op.base == "aten.addmm")
    between = [call.op.name for call in after.calls[first + 1 : matmul]]
    assert "cuda.stream_wait" not in between
    assert after.calls[matmul + 1].op.name == "cuda.stream_wait"
