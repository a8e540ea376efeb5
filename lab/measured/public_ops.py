"""Single ops of public tables, as `OpRow`.

`public_rows` returns the rows that the learned op models are fitted on. `sampled_rows` returns
fewer and longer rows, for the shares of the roofline (`lab.fit.attainable`). The folder of the
tables is given with `--data` (docs/sources.md).

These rows are left out (docs/sources.md and the READMEs of the data say more):

- NeuSight's short calls, whose time is that of the host and not of the GPU;
- NeuSight's P4 `linear` of the train split, which runs at 0.18 of the rate of the test split;
- aiconfigurator's GEMMs whose weights stayed in L2, if they would otherwise be memory-bound;
- DeepBench's rows of less than 20 us, its recurrent layers with less than 60 us a time step (the
  host's time), its outliers, and "fp16" on P100, whose type is unclear;
- int8 and fp8.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.measured import op_makers as make
from lab.measured.op_makers import OpRow
from lab.measured.tables import (
    DEEPBENCH_NVIDIA,
    KERNELS,
    NEUSIGHT,
    NEUSIGHT_NVIDIA,
    VIDUR,
    read_frame,
)
from wavecast.hardware.devices import device
from wavecast.traces.step import Op

if TYPE_CHECKING:
    import pandas as pd

SEED = 0
SAMPLED_ROWS = 300
SAMPLED_LEAST_MS = 0.2
SAMPLED_OPS = ["bmm", "linear", "conv", "softmax", "ln", "add", "mul", "tanh", "relu", "gelu"]
SAMPLED_DEEPBENCH = [name for name in DEEPBENCH_NVIDIA if name != "TITAN X Maxwell"]
NEUSIGHT_LEAST_MS = {"bmm": 0.15, "linear": 0.25, "conv": 0.4, "softmax": 0.2, "ln": 0.2}
NEUSIGHT_LEAST_OTHER_MS = 0.2
"""NeuSight's shortest usable times: three times the smallest calls, whose time is the host's."""
NEUSIGHT_ROWS = {"bmm": 1200, "linear": 800, "conv": 1000, "softmax": 400, "ln": 400}
NEUSIGHT_ROWS_OTHER = 100
KERNELS_ROWS = 900
ATTENTION_ROWS = 700
ATTENTION_LEAST_MS = 0.1
"""The measured time includes writing vLLM's cache, up to 0.03 ms; shorter rows are left out."""
FLASH_2 = ("flash_attn", "flash_attn_fa2")
"""FlashAttention 2, by how the names of kernels end. FlashAttention 3 and 4 and TensorRT-LLM's have
the instructions of Hopper and Blackwell, as cuDNN's kernels, and count as these."""
VIDUR_ROWS = 600
VIDUR_LEAST_MS = 0.02
DEEPBENCH_LEAST_MS = 0.02
RNN_LEAST_STEP_MS = 0.06
"""In 2017 cuDNN launched several kernels a time step, which took the host 0.025 to 0.06 ms."""


def public_rows(folder: Path) -> list[OpRow]:
    """All ops that the learned op models are fitted on, in a fixed order."""
    return [
        *_neusight(folder / "neusight" / "ops.parquet"),
        *_gemm(folder / "kernels" / "gemm.parquet", "aiconfigurator"),
        *_gemm(folder / "kernels" / "gemm_replicate.parquet", "aiconfigurator again"),
        *_attention(folder / "kernels" / "attention.parquet"),
        *public_rows_of_vidur(folder),
        *_deepbench(folder / "deepbench" / "ops.parquet"),
    ]


def _sample(table: pd.DataFrame, by: list[str], rows: int) -> Iterator[Any]:
    """At most `rows` rows of each group, drawn with a fixed seed."""
    for _, part in table.groupby(by, observed=True, sort=True):
        yield from part.sample(min(len(part), rows), random_state=SEED).itertuples(index=False)


def _neusight(path: Path) -> Iterator[OpRow]:
    table = read_frame(path).astype({"gpu": str, "op": str, "split": str})
    table = table[table.gpu.isin(list(NEUSIGHT))]
    table = table[~((table.gpu == "P4") & (table.op == "linear") & (table.split == "train"))]
    for op, part in table.groupby("op", sort=True):
        part = part[part.latency_ms >= NEUSIGHT_LEAST_MS.get(str(op), NEUSIGHT_LEAST_OTHER_MS)]
        for row in _sample(part, ["gpu"], NEUSIGHT_ROWS.get(str(op), NEUSIGHT_ROWS_OTHER)):
            neusight_op = _neusight_op(str(op), row)
            yield OpRow((neusight_op,), NEUSIGHT[row.gpu], row.latency_ms * 1e-3, "neusight")


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


def _gemm(path: Path, source: str) -> Iterator[OpRow]:
    table = read_frame(path).astype({"gpu": str, "dtype": str})
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
    # Decoding has m = 1 to 16, which is rare in training: at most a quarter of the rows.
    few = table.m <= 16
    for part, rows in ((table[few], KERNELS_ROWS // 4), (table[~few], KERNELS_ROWS * 3 // 4)):
        for row in _sample(part, ["gpu"], rows):
            op = make.linear(row.m, row.k, row.n, "bfloat16", bias=False)
            yield OpRow((op,), KERNELS[row.gpu], row.latency_ms * 1e-3, source)


def _attention(path: Path) -> Iterator[OpRow]:
    table = read_frame(path).astype({"gpu": str})
    table = table[(table.heads == table.kv_heads) & (table.latency_ms >= ATTENTION_LEAST_MS)]
    for row in _sample(table, ["gpu", "causal"], ATTENTION_ROWS):
        yield _attention_row(row)


def _attention_row(row: Any) -> OpRow:
    sizes = (row.batch, row.heads, row.seq, row.head_dim)
    kernel = "flash" if str(row.kernel).endswith(FLASH_2) else "cudnn"
    op = make.attention(*sizes, causal=bool(row.causal), kernel=kernel)
    return OpRow((op,), KERNELS[row.gpu], row.latency_ms * 1e-3, "aiconfigurator")


def public_rows_of_vidur(folder: Path) -> list[OpRow]:
    """The ops of Vidur that the learned op models are fitted on."""
    return [
        *_vidur_gemm(folder / "kernels" / "vidur_gemm.parquet"),
        *_vidur_ops(folder / "kernels" / "vidur_ops.parquet"),
    ]


def _vidur_gemm(path: Path) -> Iterator[OpRow]:
    table = read_frame(path).astype({"gpu": str})
    for row in _sample(table[table.latency_ms >= VIDUR_LEAST_MS], ["gpu"], VIDUR_ROWS):
        op = make.linear(row.m, row.k, row.n, "float16", bias=False)
        yield OpRow((op,), VIDUR[row.gpu], row.latency_ms * 1e-3, "vidur")


def _vidur_ops(path: Path) -> Iterator[OpRow]:
    """Sums only: rotary embeddings and gated activations are vLLM's own kernels."""
    table = read_frame(path).astype({"gpu": str, "op": str})
    table = table[(table.latency_ms >= VIDUR_LEAST_MS) & table.op.isin(["add"])]
    for row in _sample(table, ["gpu", "op"], VIDUR_ROWS // 2):
        op = make.elementwise("aten.add.Tensor", 2, row.num_tokens, row.hidden, dtype="float16")
        yield OpRow((op,), VIDUR[row.gpu], row.latency_ms * 1e-3, "vidur")


def _deepbench(path: Path) -> Iterator[OpRow]:
    table = read_frame(path).astype({"gpu": str, "input_type": str, "kind": str})
    bad = table.qc.fillna("").astype(str).str.contains("coarse|cross_gpu_outlier")
    table = table[table.gpu.isin(list(DEEPBENCH_NVIDIA)) & ~bad]
    table = table[(table.latency_ms >= DEEPBENCH_LEAST_MS) & (table.suite == "train")]
    half = (table.input_type == "fp16") & table.tensor_core.fillna(False).astype(bool)
    table = table[(table.input_type == "fp32") | half]
    makers = {"gemm": _deepbench_gemm, "conv": _deepbench_conv, "rnn": _deepbench_rnn}
    for row in table[table.kind.isin(list(makers))].to_dict("records"):
        dtype = "float16" if row["input_type"] == "fp16" else "float32"
        if row["kind"] == "rnn" and row["latency_ms"] < RNN_LEAST_STEP_MS * row["timesteps"]:
            continue
        op = makers[row["kind"]](row, dtype)
        yield OpRow((op,), DEEPBENCH_NVIDIA[row["gpu"]], row["latency_ms"] * 1e-3, "deepbench")


def _deepbench_gemm(row: dict[str, Any], dtype: str) -> Op:
    m, n, k = (int(row[name]) for name in ("m", "n", "k"))
    ta, tb = (str(row[name]) in ("True", "T", "1", "1.0") for name in ("trans_a", "trans_b"))
    return make.product(m, k, n, dtype, ta=ta, tb=tb)


def _deepbench_conv(row: dict[str, Any], dtype: str) -> Op:
    image = tuple(int(row[name]) for name in ("batch", "c", "h", "w"))
    weight = tuple(int(row[name]) for name in ("filters", "c", "filter_h", "filter_w"))
    stride, padding = ((int(row[f"{name}_h"]), int(row[f"{name}_w"])) for name in ("stride", "pad"))
    output_mask = {"fw": None, "bw_input": (True, False), "bw_weight": (False, True)}[row["pass"]]
    # For float32 the fastest algorithm was published, for float16 a fixed one.
    tuned = dtype == "float32"
    return make.convolution(image, weight, stride, padding, dtype, output_mask, tuned=tuned)  # type: ignore[arg-type]


def _deepbench_rnn(row: dict[str, Any], dtype: str) -> Op:
    """DeepBench skips the product with the input, hence an input of width 1. The gradient of the
    weights is a separate row."""
    mode = {"vanilla": 0, "lstm": 2, "gru": 3}[str(row["cell"]).lower()]
    steps, batch, hidden = (int(row[name]) for name in ("timesteps", "batch", "hidden"))
    if row["pass"] == "bw_weight":  # one product over all steps
        gates = {0: 1, 2: 4, 3: 3}[mode] * hidden
        return make.product(gates, steps * batch, hidden, dtype, ta=True)
    output_mask = None if row["pass"] == "fw" else (True, False)
    return make.recurrent(mode, steps, batch, 1, hidden, dtype=dtype, output_mask=output_mask)


# Fewer and longer rows, for the shares of the roofline.


def sampled_rows(folder: Path) -> Iterator[OpRow]:
    """At most `SAMPLED_ROWS` ops of each GPU and kind that took at least `SAMPLED_LEAST_MS`."""
    yield from _sampled_neusight(folder / "neusight" / "ops.parquet")
    yield from _sampled_gemm(folder / "kernels" / "gemm.parquet")
    yield from _sampled_attention(folder / "kernels" / "attention.parquet")
    yield from _sampled_convolutions(folder / "deepbench" / "ops.parquet")


def _long(path: Path) -> pd.DataFrame:
    table = read_frame(path).astype({"gpu": str})
    return table[table.latency_ms >= SAMPLED_LEAST_MS]


def _sampled_neusight(path: Path) -> Iterator[OpRow]:
    table = _long(path).astype({"op": str})
    table = table[table.gpu.isin(list(NEUSIGHT_NVIDIA)) & table.op.isin(SAMPLED_OPS)]
    for row in _sample(table, ["gpu", "op"], SAMPLED_ROWS):
        if row.op == "linear":
            op = make.product(int(row.b * row.m), int(row.n), int(row.k))
        else:
            op = _neusight_op(row.op, row)
        yield OpRow((op,), NEUSIGHT_NVIDIA[row.gpu], row.latency_ms * 1e-3, "neusight")


def _sampled_gemm(path: Path) -> Iterator[OpRow]:
    table = _long(path)
    for row in _sample(table[table.dtype == "bf16"], ["gpu"], SAMPLED_ROWS):
        op = make.product(row.m, row.k, row.n, "bfloat16")
        yield OpRow((op,), KERNELS[row.gpu], row.latency_ms * 1e-3, "aiconfigurator")


def _sampled_attention(path: Path) -> Iterator[OpRow]:
    table = _long(path)
    for row in _sample(table[table.heads == table.kv_heads], ["gpu"], SAMPLED_ROWS):
        yield _attention_row(row)


def _sampled_convolutions(path: Path) -> Iterator[OpRow]:
    table = _long(path)
    table = table[(table.kind == "conv") & table.gpu.isin(SAMPLED_DEEPBENCH)]
    half = (table.input_type == "fp16") & (table.tensor_core == True)  # noqa: E712
    table = table[(table.input_type == "fp32") | half]
    for row in _sample(table, ["gpu", "input_type", "pass"], SAMPLED_ROWS):
        values = dict(zip(table.columns, row, strict=True))
        dtype = "float16" if values["input_type"] == "fp16" else "float32"
        op = _deepbench_conv(values, dtype)
        yield OpRow((op,), DEEPBENCH_NVIDIA[values["gpu"]], row.latency_ms * 1e-3, "deepbench")
