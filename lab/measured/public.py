"""Single ops measured by others, as (op, GPU, seconds): what the README of each folder describes.

Not part of the package or the repository: give the folder of the data to the fit. Only long
runs are used, since short ones measured the host that issued them, and a few hundred per GPU and
kind, drawn with a fixed seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from lab.measured import op_makers as make
from lab.measured.published_gpus import KERNELS, NEUSIGHT_NVIDIA
from wavecast.traces.step import Op

Row = tuple[Op, str, float]

SAMPLE = 300
LEAST_MS = 0.2

_DEEPBENCH = {
    "GTX 1080 Ti": "gtx-1080-ti",
    "TITAN X Pascal": "titan-x-pascal",
    "Tesla M40": "m40",
    "Tesla P100 PCIe 16GB": "p100-pcie-16gb",
    "Tesla V100 SXM2 16GB": "v100-sxm-16gb",
}


def rows(folder: Path) -> Iterator[Row]:
    """All ops that are used."""
    yield from _neusight(folder / "neusight" / "ops.parquet")
    yield from _gemm(folder / "kernels" / "gemm.parquet")
    yield from _attention(folder / "kernels" / "attention.parquet")
    yield from _convolutions(folder / "deepbench" / "ops.parquet")


def _sample(table: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    table = table[table.latency_ms >= LEAST_MS]
    return table.groupby(by, group_keys=False)[table.columns].apply(
        lambda part: part.sample(min(len(part), SAMPLE), random_state=0)
    )


def _neusight(path: Path) -> Iterator[Row]:
    table = pd.read_parquet(path)
    table = table[table.gpu.isin(list(NEUSIGHT_NVIDIA))]
    makers = {"bmm": _bmm, "linear": _linear, "conv": _conv2d, "softmax": _softmax, "ln": _norm}
    makers |= dict.fromkeys(("add", "mul", "tanh", "relu", "gelu"), _elementwise)
    table = table[table.op.isin(list(makers))].astype({"gpu": str, "op": str})
    for row in _sample(table, ["gpu", "op"]).itertuples():
        yield makers[row.op](row), NEUSIGHT_NVIDIA[row.gpu], row.latency_ms * 1e-3


def _gemm(path: Path) -> Iterator[Row]:
    table = pd.read_parquet(path)
    table = table[table.dtype == "bf16"].astype({"gpu": str})
    for row in _sample(table, ["gpu"]).itertuples():
        op = make.product(row.m, row.k, row.n, "bfloat16")
        yield op, KERNELS[row.gpu], row.latency_ms * 1e-3


def _attention(path: Path) -> Iterator[Row]:
    table = pd.read_parquet(path).astype({"gpu": str})
    for row in _sample(table[table.heads == table.kv_heads], ["gpu"]).itertuples():
        op = make.attention(row.batch, row.heads, row.seq, row.head_dim, causal=bool(row.causal))
        yield op, KERNELS[row.gpu], row.latency_ms * 1e-3


def _convolutions(path: Path) -> Iterator[Row]:
    table = pd.read_parquet(path)
    table = table[(table.kind == "conv") & table.gpu.isin(list(_DEEPBENCH))]
    half = (table.input_type == "fp16") & (table.tensor_core == True)  # noqa: E712
    table = table[(table.input_type == "fp32") | half].astype({"gpu": str})
    for row in _sample(table, ["gpu", "input_type", "pass"]).itertuples(index=False):
        values = row._asdict() | {"direction": row[table.columns.get_loc("pass")]}
        yield _deepbench_conv(values), _DEEPBENCH[row.gpu], row.latency_ms * 1e-3


def _deepbench_conv(row: dict[str, Any]) -> Op:
    direction = row["direction"]
    return make.convolution(
        (row["batch"], row["c"], row["h"], row["w"]),
        (row["filters"], row["c"], row["filter_h"], row["filter_w"]),
        (row["stride_h"], row["stride_w"]),
        (row["pad_h"], row["pad_w"]),
        "float16" if row["input_type"] == "fp16" else "float32",
        None if direction == "fw" else (direction == "bw_input", direction == "bw_weight"),
    )


def _linear(row: Any) -> Op:
    return make.product(int(row.b * row.m), int(row.n), int(row.k))


def _bmm(row: Any) -> Op:
    return make.batched(row.b, row.m, row.n, row.k)


def _conv2d(row: Any) -> Op:
    side, kernel = int(row.in_size), int(row.ksize)
    return make.convolution(
        (int(row.b), int(row.c_in), side, side),
        (int(row.c_out), int(row.c_in), kernel, kernel),
        (int(row.stride), int(row.stride)),
        (int(row.pad), int(row.pad)),
    )


def _elementwise(row: Any) -> Op:
    two = row.op in ("add", "mul")
    name = f"aten.{row.op}.Tensor" if two else f"aten.{row.op}"
    return make.elementwise(name, 2 if two else 1, row.b, row.h)


def _softmax(row: Any) -> Op:
    return make.softmax(row.b, row.h)


def _norm(row: Any) -> Op:
    return make.layer_norm(row.b, row.h)
