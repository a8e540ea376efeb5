"""The streams of a rank, and the calls that parallel steps insert."""

from __future__ import annotations

from wavecast.traces.step import Call, Op, Phase, TensorSpec

COMPUTE, GATHERS, REDUCTIONS, TRANSFERS, OFFLOAD = range(5)
"""The streams of a rank: kernels, gathers of weights, reductions of gradients, sends, and what is
copied to the host and done there."""


def flat(nbytes: int, dtype: str = "bfloat16") -> TensorSpec:
    """A flat tensor of so many bytes."""
    size = {"float32": 4, "bfloat16": 2, "float16": 2}.get(dtype, 1)
    return TensorSpec((-(-nbytes // size),), dtype)


def wait(stream: int, on: int, phase: Phase, module: str = "") -> Call:
    """A call with which one stream waits for what was issued to another."""
    op = Op("cuda.stream_wait", (), (), (("stream", on),))
    return Call(op, phase, module, stream)


def kernel(name: str, source: TensorSpec, result: TensorSpec, phase: Phase, module: str) -> Call:
    """A kernel on the compute stream that reads one tensor and writes another."""
    return Call(Op(name, (source,), (result,)), phase, module)
