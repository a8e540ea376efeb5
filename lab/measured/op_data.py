"""Single ops measured by others and by us: what the learned op models are fitted on.

Public tables are not part of the repository: give their folder. Our own are read from
measurements/h200: the traces of every campaign (`lab.measured.campaigns`) and the layers.

What is left out, and why (the READMEs of the data say more):
    calls that show the host that issued them instead of the GPU (NeuSight's short ones);
    NeuSight's P4 `linear` of the train split, at 0.18 of what the test split shows;
    GEMMs measured with weights in L2 that memory would have bound (aiconfigurator);
    DeepBench's rows of less than 20 us, recurrent steps of less than 60 us (its host's), its
    outliers, and "fp16" on P100, whose type is unclear;
    int8 and fp8; the traces with hardware counters, which replay kernels;
    the campaign `runs`, on which lab.score.run_models judges the per-layer models.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lab.measured import campaigns
from lab.measured import op_makers as make
from lab.measured.published_gpus import KERNELS, NEUSIGHT
from lab.places import H200
from wavecast import ops
from wavecast.campaigns.layer_times import read_rows
from wavecast.hardware.devices import device
from wavecast.ops import Kind
from wavecast.predictors.mlp.layers import Bmm, Conv2d, Layer, LayerStatus, Linear, Lstm
from wavecast.traces import overlap
from wavecast.traces.step import Op, Trace

if TYPE_CHECKING:
    import pandas as pd

OUR_GPU = "h200-sxm"
HELD_OUT = {"runs", "blind", "scaled", "iterations"}
"""Our campaigns and folders that no fit reads: models are judged by them."""
OUR_STEPS = "h200 steps"
"""The source of ops that our measured traces have."""
SEED = 0

NEUSIGHT_LEAST_MS = {"bmm": 0.15, "linear": 0.25, "conv": 0.4, "softmax": 0.2, "ln": 0.2}
NEUSIGHT_LEAST_OTHER_MS = 0.2
"""Three times what the smallest calls take, which is the host's part."""
NEUSIGHT_ROWS = {"bmm": 1200, "linear": 800, "conv": 1000, "softmax": 400, "ln": 400}
NEUSIGHT_ROWS_OTHER = 100
KERNELS_ROWS = 900
ATTENTION_ROWS = 700
ATTENTION_LEAST_MS = 0.1
"""vLLM writes its cache in the same run, which takes up to 0.03 ms."""
VIDUR = {"a100": "a100-sxm-80gb", "a40": "a40"}
VIDUR_ROWS = 600
VIDUR_LEAST_MS = 0.02
DEEPBENCH = {
    "GTX 1080 Ti": "gtx-1080-ti",
    "TITAN X Maxwell": "gtx-titan-x-maxwell",
    "TITAN X Pascal": "titan-x-pascal",
    "Tesla M40": "m40",
    "Tesla P100 PCIe 16GB": "p100-pcie-16gb",
    "Tesla V100 SXM2 16GB": "v100-sxm-16gb",
}
DEEPBENCH_LEAST_MS = 0.02
RNN_LEAST_STEP_MS = 0.06
"""cuDNN of 2017 left several launches per step to the host, 0.025 to 0.06 ms of them."""


@dataclass(frozen=True)
class OpRow:
    """Ops that were timed together (nearly always one), and where."""

    ops: tuple[Op, ...]
    gpu: str
    seconds: float
    source: str

    @property
    def kind(self) -> Kind:
        """Of the ops, which are of one kind."""
        found = ops.kind(self.ops[0])
        assert found is not None
        return found


def all_rows(folder: Path) -> list[OpRow]:
    """Everything, in a fixed order."""
    return [*public_rows(folder), *our_rows()]


def public_rows(folder: Path) -> list[OpRow]:
    """What others measured."""
    return [
        *_neusight(folder / "neusight" / "ops.parquet"),
        *_gemm(folder / "kernels" / "gemm.parquet", "aiconfigurator"),
        *_gemm(folder / "kernels" / "gemm_replicate.parquet", "aiconfigurator again"),
        *_attention(folder / "kernels" / "attention.parquet"),
        *_vidur_gemm(folder / "kernels" / "vidur_gemm.parquet"),
        *_vidur_ops(folder / "kernels" / "vidur_ops.parquet"),
        *_deepbench(folder / "deepbench" / "ops.parquet"),
    ]


def our_rows() -> list[OpRow]:
    """What we measured on the H200."""
    return [*_traced(), *_layers(H200 / "layers")]


def digest(rows: Sequence[OpRow]) -> str:
    """A hash of all that a fit sees."""
    found = hashlib.sha256()
    for row in rows:
        found.update(repr((row.ops, row.gpu, float(f"{row.seconds:.6g}"), row.source)).encode())
    return found.hexdigest()


def _parquet(path: Path) -> pd.DataFrame:
    """A published table; only who fits needs pandas."""
    import pandas

    return pandas.read_parquet(path)


def _sample(table: pd.DataFrame, by: list[str], rows: int) -> Iterator[Any]:
    """At most so many rows of each group, drawn with a fixed seed."""
    for _, part in table.groupby(by, observed=True, sort=True):
        yield from part.sample(min(len(part), rows), random_state=SEED).itertuples(index=False)


# NeuSight.


def _neusight(path: Path) -> Iterator[OpRow]:
    table = _parquet(path).astype({"gpu": str, "op": str, "split": str})
    table = table[table.gpu.isin(list(NEUSIGHT))]
    table = table[~((table.gpu == "P4") & (table.op == "linear") & (table.split == "train"))]
    for op, part in table.groupby("op", sort=True):
        part = part[part.latency_ms >= NEUSIGHT_LEAST_MS.get(str(op), NEUSIGHT_LEAST_OTHER_MS)]
        for row in _sample(part, ["gpu"], NEUSIGHT_ROWS.get(str(op), NEUSIGHT_ROWS_OTHER)):
            made = _neusight_op(str(op), row)
            yield OpRow((made,), NEUSIGHT[row.gpu], row.latency_ms * 1e-3, "neusight")


def _neusight_op(op: str, row: Any) -> Op:
    match op:
        case "bmm":
            return make.batched(row.b, row.m, row.n, row.k)
        case "linear":
            return make.linear(int(row.b * row.m), row.n, row.k)
        case "conv":
            image = int(row.b), int(row.c_in), int(row.in_size), int(row.in_size)
            weight = int(row.c_out), int(row.c_in), int(row.ksize), int(row.ksize)
            stride, pad = int(row.stride), int(row.pad)
            return make.convolution(image, weight, (stride, stride), (pad, pad), tuned=True)
        case "softmax":
            return make.softmax(row.b, row.h)
        case "ln":
            return make.layer_norm(row.b, row.h)
    if op in ("tanh", "relu", "gelu"):
        return make.elementwise(f"aten.{op}", 1, row.b, row.h)
    scalar = op.endswith("u")
    name = f"aten.{op.removesuffix('u')}.{'Tensor' if op[:3] != 'pow' else 'Tensor_Scalar'}"
    return make.elementwise(name, 1 if scalar else 2, row.b, row.h)


# aiconfigurator and vidur.


def _gemm(path: Path, source: str) -> Iterator[OpRow]:
    table = _parquet(path).astype({"gpu": str, "dtype": str})
    table = table[(table.dtype == "bf16") & (table.latency_ms >= 0.004)]
    gpus = {name: device(gpu) for name, gpu in KERNELS.items()}
    flop_s = (
        2.0
        * table.m
        * table.n
        * table.k
        / table.gpu.map({name: gpu.bf16_tensor_flops for name, gpu in gpus.items()})
    )
    moved = 2.0 * (table.m * table.k + table.n * table.k + table.m * table.n)
    byte_s = moved / table.gpu.map({name: gpu.memory_bytes_per_s for name, gpu in gpus.items()})
    warm = 12.0 * table.n * table.k <= table.gpu.map(
        {name: float(gpu.l2_bytes or 0) for name, gpu in gpus.items()}
    )
    table = table[~(warm & (byte_s > 0.5 * flop_s))]
    # Decoding has m = 1 to 16, which training hardly has: no more than a quarter of the rows.
    few = table.m <= 16
    for part, rows in ((table[few], KERNELS_ROWS // 4), (table[~few], KERNELS_ROWS * 3 // 4)):
        for row in _sample(part, ["gpu"], rows):
            op = make.linear(row.m, row.k, row.n, "bfloat16", bias=False)
            yield OpRow((op,), KERNELS[row.gpu], row.latency_ms * 1e-3, source)


def _attention(path: Path) -> Iterator[OpRow]:
    table = _parquet(path).astype({"gpu": str})
    table = table[(table.heads == table.kv_heads) & (table.latency_ms >= ATTENTION_LEAST_MS)]
    for row in _sample(table, ["gpu", "causal"], ATTENTION_ROWS):
        op = make.attention(row.batch, row.heads, row.seq, row.head_dim, causal=bool(row.causal))
        yield OpRow((op,), KERNELS[row.gpu], row.latency_ms * 1e-3, "aiconfigurator")


def _vidur_gemm(path: Path) -> Iterator[OpRow]:
    table = _parquet(path).astype({"gpu": str})
    for row in _sample(table[table.latency_ms >= VIDUR_LEAST_MS], ["gpu"], VIDUR_ROWS):
        op = make.linear(row.m, row.k, row.n, "float16", bias=False)
        yield OpRow((op,), VIDUR[row.gpu], row.latency_ms * 1e-3, "vidur")


def _vidur_ops(path: Path) -> Iterator[OpRow]:
    """Sums and layer norms; rotary embeddings and gated activations are vLLM's own kernels."""
    table = _parquet(path).astype({"gpu": str, "op": str})
    table = table[(table.latency_ms >= VIDUR_LEAST_MS) & table.op.isin(["add"])]
    for row in _sample(table, ["gpu", "op"], VIDUR_ROWS // 2):
        op = make.elementwise("aten.add.Tensor", 2, row.num_tokens, row.hidden, dtype="float16")
        yield OpRow((op,), VIDUR[row.gpu], row.latency_ms * 1e-3, "vidur")


# DeepBench.


def _deepbench(path: Path) -> Iterator[OpRow]:
    table = _parquet(path).astype({"gpu": str, "input_type": str, "kind": str})
    bad = table.qc.fillna("").astype(str).str.contains("coarse|cross_gpu_outlier")
    table = table[table.gpu.isin(list(DEEPBENCH)) & ~bad]
    table = table[(table.latency_ms >= DEEPBENCH_LEAST_MS) & (table.suite == "train")]
    half = (table.input_type == "fp16") & table.tensor_core.fillna(False).astype(bool)
    table = table[(table.input_type == "fp32") | half]
    makers = {"gemm": _deepbench_gemm, "conv": _deepbench_conv, "rnn": _deepbench_rnn}
    for row in table[table.kind.isin(list(makers))].to_dict("records"):
        dtype = "float16" if row["input_type"] == "fp16" else "float32"
        if row["kind"] == "rnn" and row["latency_ms"] < RNN_LEAST_STEP_MS * row["timesteps"]:
            continue
        op = makers[row["kind"]](row, dtype)
        yield OpRow((op,), DEEPBENCH[row["gpu"]], row["latency_ms"] * 1e-3, "deepbench")


def _deepbench_gemm(row: dict[str, Any], dtype: str) -> Op:
    m, n, k = (int(row[name]) for name in ("m", "n", "k"))
    ta, tb = (str(row[name]) in ("True", "T", "1", "1.0") for name in ("trans_a", "trans_b"))
    return make.product(m, k, n, dtype, ta=ta, tb=tb)


def _deepbench_conv(row: dict[str, Any], dtype: str) -> Op:
    image = tuple(int(row[name]) for name in ("batch", "c", "h", "w"))
    weight = tuple(int(row[name]) for name in ("filters", "c", "filter_h", "filter_w"))
    stride, padding = ((int(row[f"{name}_h"]), int(row[f"{name}_w"])) for name in ("stride", "pad"))
    wanted = {"fw": None, "bw_input": (True, False), "bw_weight": (False, True)}[row["pass"]]
    # Of float32 the fastest algorithm was published, of float16 a fixed one.
    tuned = dtype == "float32"
    return make.convolution(image, weight, stride, padding, dtype, wanted, tuned=tuned)  # type: ignore[arg-type]


def _deepbench_rnn(row: dict[str, Any], dtype: str) -> Op:
    """The product with the input was skipped: an input of width 1. Weight gradients are apart."""
    mode = {"vanilla": 0, "lstm": 2, "gru": 3}[str(row["cell"]).lower()]
    steps, batch, hidden = (int(row[name]) for name in ("timesteps", "batch", "hidden"))
    if row["pass"] == "bw_weight":  # one product over all steps
        gates = {0: 1, 2: 4, 3: 3}[mode] * hidden
        return make.product(gates, steps * batch, hidden, dtype, ta=True)
    wanted = None if row["pass"] == "fw" else (True, False)
    return make.recurrent(mode, steps, batch, 1, hidden, dtype=dtype, wanted=wanted)


# Our own.


def fitted_traces() -> Iterator[tuple[str, str, Trace]]:
    """The campaign, the key and the trace of every trace that a fit may read."""
    for name in campaigns.names():
        if name not in HELD_OUT:
            for key, trace in campaigns.traces(name).items():
                yield name, key, trace


def _traced() -> Iterator[OpRow]:
    """The distinct ops of all measured steps, each with the median of its calls' times.

    Kernels of one call may overlap: cuDNN has several streams for recurrent layers and for groups.
    """
    found: dict[tuple[str, Op], list[float]] = defaultdict(list)
    for _, key, trace in fitted_traces():
        if "counters" in key:
            continue
        gpu = device(trace.measurement.gpu).id if trace.measurement else OUR_GPU
        for call in trace:
            seconds = overlap.busy_s(call.kernels)
            if seconds > 0 and ops.launches(call.op) and ops.cost_of(call.op) is not None:
                found[gpu, call.op].append(seconds)
    for (gpu, op), times in found.items():
        yield OpRow((op,), gpu, float(np.median(times)), OUR_STEPS)


def _layers(folder: Path) -> Iterator[OpRow]:
    for path in sorted(folder.glob("*.csv")):
        for row in read_rows(path):
            if row.time.status is not LayerStatus.OK:
                continue
            for backward, seconds in ((False, row.time.forward_s), (True, row.time.backward_s)):
                if seconds:
                    yield OpRow(_layer_ops(row.layer, backward), row.gpu, seconds, "h200 layers")


def _layer_ops(layer: Layer, backward: bool) -> tuple[Op, ...]:
    match layer:
        case Linear(bias, batch, inwards, out):
            if backward:
                return make.linear_backward(batch, inwards, out)
            return (make.linear(batch, inwards, out, bias=bias),)
        case Bmm(batch, left, middle, right):
            made = make.batched_backward if backward else make.batched
            found = made(batch, left, middle, right)
            return found if isinstance(found, tuple) else (found,)
        case Conv2d():
            image = layer.batch, layer.in_channels, layer.image, layer.image
            weight = layer.out_channels, layer.in_channels, layer.kernel, layer.kernel
            stride, padding = (layer.stride,) * 2, (layer.padding,) * 2
            wanted = (True, True) if backward else None
            return (
                make.convolution(
                    image, weight, stride, padding, wanted=wanted, bias=bool(layer.bias)
                ),
            )
        case Lstm():
            return (
                make.recurrent(
                    2,
                    layer.sequence,
                    layer.batch,
                    layer.inputs,
                    layer.hidden,
                    layer.layers,
                    bidirectional=bool(layer.bidirectional),
                    bias=bool(layer.bias),
                    wanted=(True, True) if backward else None,
                ),
            )
    raise AssertionError(layer)
