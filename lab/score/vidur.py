"""How well are the kernels of a text server predicted? Those that Vidur measured with vLLM.

    python -m lab score vidur --data FOLDER

Needs pandas and the public table kernels. Matmuls (fp16, forward only) of eight models, split over
up to eight tensor ranks, sums, and attention of chunks of prompts after a prefix, on A100 and A40.
The fit of the op models has 600 of the matmuls and 300 of the sums of each GPU (`public_ops`), so
rows are drawn from the others. Attention after a prefix is in no fit.

Left out: layer norms, rotary positions and gated activations, which are vLLM's own kernels;
embeddings, and everything below 20 us, where the resolution of 1 us counts. Attention of single
tokens is not in the table that we have. Collectives have a score of their own (`lab score
collectives`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from lab.measured import op_makers as make
from lab.measured.op_makers import OpRow
from lab.measured.public_ops import VIDUR_LEAST_MS, public_rows_of_vidur
from lab.measured.tables import VIDUR, read_frame
from lab.pages import heading
from lab.scores import ScoreTable
from wavecast.hardware.devices import device
from wavecast.predictors.learned.predictor import Learned
from wavecast.traces.step import Op, TensorSpec

ROWS = 400
"""Rows that are drawn of each kind of op and GPU."""
_PROJECTIONS = {
    "attn_pre_proj": "queries, keys and values",
    "attn_post_proj": "output of attention",
    "mlp_up_proj": "first matmul of the feed-forward layer",
    "mlp_down_proj": "second matmul of the feed-forward layer",
}


def rows(folder: Path) -> Iterator[tuple[str, OpRow]]:
    """Measured ops with what each is, none of which is in the fit."""
    fitted = {(row.ops, row.gpu) for row in public_rows_of_vidur(folder)}
    for what, row in (*_matmuls(folder), *_sums(folder), *_attention(folder)):
        if (row.ops, row.gpu) not in fitted:
            yield what, row


def _drawn(table: Any, by: Sequence[str]) -> Iterator[Any]:
    """At most `ROWS` rows of each group of a table, in a fixed order."""
    for _, group in table.groupby(list(by), sort=True):
        yield from group.sample(n=min(ROWS, len(group)), random_state=1).itertuples()


def _row(op: Op, row: Any) -> OpRow:
    return OpRow((op,), VIDUR[row.gpu], row.latency_ms * 1e-3, "vidur")


def _matmuls(folder: Path) -> Iterator[tuple[str, OpRow]]:
    table = read_frame(folder / "kernels" / "vidur_gemm.parquet").astype({"gpu": str, "op": str})
    table = table[table.latency_ms >= VIDUR_LEAST_MS]
    for row in _drawn(table, ("gpu", "op")):
        op = make.linear(row.m, row.k, row.n, "float16", bias=False)
        yield f"matmul: {_PROJECTIONS[row.op]}", _row(op, row)


def _sums(folder: Path) -> Iterator[tuple[str, OpRow]]:
    table = read_frame(folder / "kernels" / "vidur_ops.parquet").astype({"gpu": str, "op": str})
    table = table[(table.latency_ms >= VIDUR_LEAST_MS) & (table.op == "add")]
    for row in _drawn(table, ("gpu",)):
        op = make.elementwise("aten.add.Tensor", 2, row.num_tokens, row.hidden, dtype="float16")
        yield "sum", _row(op, row)


def _attention(folder: Path) -> Iterator[tuple[str, OpRow]]:
    table = read_frame(folder / "kernels" / "vidur_attention.parquet").astype({"gpu": str})
    table = table[table.latency_ms >= VIDUR_LEAST_MS]
    for row in _drawn(table, ("gpu",)):
        query = TensorSpec((row.batch, row.seq, row.heads, row.head_dim), "float16")
        pairs = TensorSpec(
            (row.batch, row.seq + row.kv_prefix, row.kv_heads, row.head_dim), "float16"
        )
        inputs, attrs = (query, pairs, pairs), (("is_causal", True),)
        op = Op("aten._flash_attention_forward", inputs, (query,), attrs)
        yield "attention of a chunk after a prefix", _row(op, row)


def tables(data: Path) -> Iterator[ScoreTable]:
    """The errors of each kind of kernel on each GPU."""
    learned, groups = Learned.shipped(), dict[tuple[str, str], list[tuple[float, bool]]]()
    for what, row in rows(data):
        estimate = learned.predict(row.ops[0], device(row.gpu))
        assert estimate is not None
        within = estimate.low_s <= row.seconds <= estimate.high_s
        groups.setdefault((what, row.gpu), []).append((estimate.seconds / row.seconds, within))
    lines = [*heading("op | GPU | rows | mean error | median | ratio | in range", "ll")]
    for (what, gpu), ratios in groups.items():
        errors = [abs(ratio - 1) for ratio, _ in ratios]
        middle = median(ratio for ratio, _ in ratios)
        inside = mean(within for _, within in ratios)
        lines.append(
            f"| {what} | {gpu} | {len(ratios)} | {mean(errors):.0%} | {median(errors):.0%} | "
            f"{middle:.2f} | {inside:.0%} |"
        )
    yield ScoreTable("\n".join(lines))
