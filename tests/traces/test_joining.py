"""Several measurements of one step are joined into one trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from made import mm, relu

from wavecast.errors import InvalidInput
from wavecast.traces.joining import join
from wavecast.traces.step import Allocation, Call, Kernel, Measurement, Phase, Role, Trace

GEMM = Kernel("gemm", 3.0, (8, 1, 1), (128, 1, 1), start_s=0.0)
RELU = Kernel("relu", 1.0, (4, 1, 1), (64, 1, 1), start_s=3.0)


def piece(*kernels: Kernel, gpu: str = "Tesla T4", **whole: Any) -> Trace:
    ops = (mm(), relu(8))
    calls = tuple(
        Call(op, Phase.FORWARD, kernels=(kernel,)) for op, kernel in zip(ops, kernels, strict=False)
    )
    return Trace(calls, measurement=Measurement(gpu, **({"seconds": 5.0} | whole)))


def test_each_look_gives_what_it_knows() -> None:
    counted = replace(GEMM, seconds=9.0, flops=1e9, dram_bytes=1e6)
    memory = (Allocation(64, None, None, Role.PARAMETER),)
    kernels = piece(GEMM, RELU, seconds=5.0, gpu_s=4.0)
    counters = piece(counted, RELU, seconds=7.0, host_s=2.0, repeats=3)
    allocated = replace(piece(GEMM, RELU, seconds=6.0, cpu_s=1.0, cores=4), allocations=memory)
    joined = join([kernels, counters, replace(allocated, samples=8, unit="tokens")])
    [gemm] = joined.calls[0].kernels
    assert (gemm.seconds, gemm.flops, gemm.dram_bytes) == (3.0, 1e9, 1e6)
    assert joined.calls[1].kernels == (RELU,)
    assert joined.allocations == memory
    assert (joined.samples, joined.unit) == (8, "tokens")
    assert joined.measurement == Measurement(
        "Tesla T4", 6.0, gpu_s=4.0, host_s=2.0, cpu_s=1.0, cores=4, repeats=5
    )


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([], "nothing to join"),
        ([piece(GEMM, RELU), piece(GEMM, RELU, gpu="NVIDIA L4")], "two GPUs"),
        ([piece(GEMM, RELU), piece(GEMM, GEMM)], "they share 1 of 2 kernels"),
        ([piece(GEMM), replace(piece(GEMM), measurement=None)], "was traced without a GPU"),
    ],
    ids=["none", "another GPU", "another step", "not measured"],
)
def test_what_does_not_belong_together_is_refused(pieces: list[Trace], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        join(pieces)
