"""Collectives as calls of a trace."""

from __future__ import annotations

from wavecast.parallel.strategy import RankAxis
from wavecast.traces.step import Call, Op, Phase, TensorSpec


def exchange(
    name: str,
    source: TensorSpec,
    result: TensorSpec,
    axis: RankAxis,
    stream: int,
    phase: Phase,
    module: str = "",
) -> Call:
    """A collective among the ranks of an axis: `exchange("all_reduce", ...)`."""
    attrs = (("ranks", axis.size), ("stride", axis.stride))
    return Call(Op(f"nccl.{name}", (source,), (result,), attrs), phase, module, stream)


def all_reduce(
    tensor: TensorSpec, axis: RankAxis, stream: int, phase: Phase, module: str = ""
) -> Call:
    """The sum of a tensor over all ranks."""
    return exchange("all_reduce", tensor, tensor, axis, stream, phase, module)


def all_gather(
    shard: TensorSpec, axis: RankAxis, stream: int, phase: Phase, module: str = ""
) -> Call:
    """The shards of all ranks, joined."""
    return exchange("all_gather", shard, scaled(shard, axis.size), axis, stream, phase, module)


def reduce_scatter(
    whole: TensorSpec, axis: RankAxis, stream: int, phase: Phase, module: str = ""
) -> Call:
    """One shard of the sum of a tensor over all ranks."""
    return exchange("reduce_scatter", whole, shard_of(whole, axis), axis, stream, phase, module)


def scaled(tensor: TensorSpec, times: int) -> TensorSpec:
    """A flat tensor of so many times the elements."""
    return TensorSpec((tensor.numel * times,), tensor.dtype)


def shard_of(tensor: TensorSpec, axis: RankAxis) -> TensorSpec:
    """A flat tensor of one rank's share of the elements, rounded up."""
    return TensorSpec((-(-tensor.numel // axis.size),), tensor.dtype)


# The streams of a rank, and the calls that parallel steps insert.


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
