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

from training.published_gpus import KERNELS, NEUSIGHT_NVIDIA
from wavecast.trace import Op, TensorSpec

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
        op = _mm(int(row.m), int(row.k), int(row.n), "bfloat16")
        yield op, KERNELS[row.gpu], row.latency_ms * 1e-3


def _attention(path: Path) -> Iterator[Row]:
    table = pd.read_parquet(path).astype({"gpu": str})
    for row in _sample(table[table.heads == table.kv_heads], ["gpu"]).itertuples():
        shape = (int(row.batch), int(row.heads), int(row.seq), int(row.head_dim))
        tensor = TensorSpec(shape, "bfloat16")
        op = Op(
            "aten._scaled_dot_product_flash_attention",
            (tensor, tensor, tensor),
            (tensor, TensorSpec(shape[:3], "float32")),
            (("dropout_p", 0.0), ("is_causal", bool(row.causal))),
        )
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
    dtype = "float16" if row["input_type"] == "fp16" else "float32"
    source = TensorSpec((row["batch"], row["c"], row["h"], row["w"]), dtype)
    weight = TensorSpec((row["filters"], row["c"], row["filter_h"], row["filter_w"]), dtype)
    out = TensorSpec((row["batch"], row["filters"], row["out_h"], row["out_w"]), dtype)
    shared = (
        ("stride", (row["stride_h"], row["stride_w"])),
        ("padding", (row["pad_h"], row["pad_w"])),
        ("dilation", (1, 1)),
        ("transposed", False),
        ("groups", 1),
    )
    if row["direction"] == "fw":
        return Op("aten.convolution", (source, weight), (out,), shared)
    inwards = row["direction"] == "bw_input"
    return Op(
        "aten.convolution_backward",
        (out, source, weight),
        (source if inwards else weight,),
        (*shared, ("output_mask", (inwards, not inwards, False))),
    )


def _mm(m: int, k: int, n: int, dtype: str) -> Op:
    specs = [TensorSpec(shape, dtype) for shape in ((m, k), (k, n), (m, n))]
    return Op("aten.mm", tuple(specs[:2]), (specs[2],), (("precision", "ieee"),))


def _linear(row: Any) -> Op:
    return _mm(int(row.b * row.m), int(row.n), int(row.k), "float32")


def _bmm(row: Any) -> Op:
    b, m, n, k = (int(v) for v in (row.b, row.m, row.n, row.k))
    a, c, out = (TensorSpec(shape, "float32") for shape in ((b, m, n), (b, n, k), (b, m, k)))
    return Op("aten.bmm", (a, c), (out,), (("precision", "ieee"),))


def _conv2d(row: Any) -> Op:
    size, kernel, stride, pad = (int(v) for v in (row.in_size, row.ksize, row.stride, row.pad))
    reached = (size + 2 * pad - kernel) // stride + 1
    return Op(
        "aten.convolution",
        (
            TensorSpec((int(row.b), int(row.c_in), size, size), "float32"),
            TensorSpec((int(row.c_out), int(row.c_in), kernel, kernel), "float32"),
        ),
        (TensorSpec((int(row.b), int(row.c_out), reached, reached), "float32"),),
        (
            ("stride", (stride, stride)),
            ("padding", (pad, pad)),
            ("dilation", (1, 1)),
            ("transposed", False),
            ("groups", 1),
            ("precision", "ieee"),
        ),
    )


def _rows(row: Any) -> TensorSpec:
    return TensorSpec((int(row.b), int(row.h)), "float32")


def _elementwise(row: Any) -> Op:
    tensor = _rows(row)
    name = {"add": "aten.add.Tensor", "mul": "aten.mul.Tensor"}.get(row.op, f"aten.{row.op}")
    return Op(name, (tensor, tensor) if row.op in ("add", "mul") else (tensor,), (tensor,))


def _softmax(row: Any) -> Op:
    return Op("aten._softmax", (_rows(row),), (_rows(row),), (("dim", 1),))


def _norm(row: Any) -> Op:
    tensor, weight = _rows(row), TensorSpec((int(row.h),), "float32")
    statistics = TensorSpec((int(row.b), 1), "float32")
    return Op(
        "aten.native_layer_norm",
        (tensor, weight, weight),
        (tensor, statistics, statistics),
        (("normalized_shape", (int(row.h),)), ("eps", 1e-5)),
    )
