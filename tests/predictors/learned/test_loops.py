"""Kernels whose threads loop over values: grids as torch launched them, times as we measured."""

from __future__ import annotations

import math

import numpy as np
import pytest
from made import tensor

from wavecast.hardware.devices import device
from wavecast.predictors.learned.batch import parts_of
from wavecast.predictors.learned.columns import StreamRow, columns_of
from wavecast.predictors.learned.gpus import gpu_of
from wavecast.predictors.learned.loop_kernels import loop_of
from wavecast.predictors.learned.streams import STREAM_PARAMETERS, stream_limits
from wavecast.traces.step import Op, TensorSpec


def last(*shape: int, dtype: str = "float32") -> TensorSpec:
    """An image in channels-last."""
    n, c, h, w = shape
    return TensorSpec((n, c, h, w), dtype, (c * h * w, 1, w * c, c))


def summed(whole: TensorSpec, *dims: int, name: str = "aten.sum.dim_IntList") -> Op:
    kept = [1 if i in dims else n for i, n in enumerate(whole.shape)]
    attrs = (("dim", dims), ("keepdim", True))
    return Op(name, (whole,), (tensor(*kept, dtype=whole.dtype),), attrs)


def softmax(whole: TensorSpec, dim: int) -> Op:
    return Op(
        "aten._softmax", (whole,), (tensor(*whole.shape, dtype=whole.dtype),), (("dim", dim),)
    )


def enlarged(name: str, large: TensorSpec, small: TensorSpec) -> Op:
    return Op(f"aten.upsample_{name}2d_backward", (large,), (small,))


def added(*target: int, indices: tuple[int, ...], values: tuple[int, ...]) -> Op:
    numbers = (tensor(*indices, dtype="int64"),) * (len(target) - len(values) + len(indices))
    whole = tensor(*target)
    return Op(
        "aten.index_put", (whole, *numbers, tensor(*values)), (whole,), (("accumulate", True),)
    )


def seconds(op: Op) -> float:
    """The time on our H200, by physics alone with its first guesses."""
    gpu = gpu_of(device("h200-sxm"))
    assert gpu is not None
    theta = {name: start for name, (start, _, _) in STREAM_PARAMETERS.items()}
    rows = [part.row for part in parts_of(op)]
    assert all(isinstance(row, StreamRow) for row in rows)
    return float(np.sum(stream_limits(columns_of(rows), gpu, theta).seconds()))


@pytest.mark.parametrize(
    ("op", "blocks", "threads"),
    [
        (summed(tensor(100_000, 4, 64), 2), 25_000, 512),
        (summed(tensor(3136, 448, dtype="bfloat16"), 0), 4, 128),
        (summed(tensor(64, 240, 14, 14, dtype="float16"), 2, 3, name="aten.mean.dim"), 480, 512),
        (summed(TensorSpec((16, 12, 256, 64), "float16", (196_608, 16_384, 1, 256)), 0), 384, 512),
        (softmax(tensor(16, 12, 785, 19, dtype="float16"), -2), 192, 608),
        (softmax(tensor(8, 1, 197, 24, dtype="float16"), -2), 8, 768),
        (added(15_921, 27, 27, indices=(351,), values=(15_921, 351)), 88 * 15_921, 128),
    ],
)
def test_torch_launched_these_blocks(op: Op, blocks: int, threads: int) -> None:
    thread_loop = loop_of(op)
    assert thread_loop is not None
    assert (thread_loop.blocks, thread_loop.threads) == (blocks, threads)


def test_a_sum_with_idle_threads_is_ragged() -> None:
    ragged, even = (loop_of(summed(tensor(50_000, n), 0)) for n in (152, 128))
    assert ragged is not None
    assert even is not None
    assert ragged.ragged
    assert not even.ragged
    assert seconds(summed(tensor(50_000, 152), 0)) > 1.4 * seconds(summed(tensor(50_000, 128), 0))


MEASURED = {
    "rows of a narrow matrix": (summed(tensor(50_192, 152, dtype="bfloat16"), 0), 92),
    "rows of an even matrix": (summed(tensor(50_176, 128, dtype="bfloat16"), 0), 53),
    "short rows": (summed(tensor(1_099_987, 4, 64), 2), 1034),
    "shorter rows": (summed(tensor(1_099_987, 1, 40), 2), 261),
    "few rows": (summed(tensor(800, 152, dtype="float16"), 0), 14),
    "channels of images": (summed(tensor(64, 64, 224, 224, dtype="bfloat16"), 0, 2, 3), 333),
    "softmax of tokens": (softmax(tensor(16, 12, 785, 19, dtype="float16"), -2), 31),
    "softmax of rows": (softmax(tensor(7616, 320), 0), 5789),
    "pairs of each sample": (added(15_921, 27, 27, indices=(351,), values=(15_921, 351)), 1138),
    "bilinear, to points": (enlarged("bilinear", tensor(16, 512, 56, 56), tensor(16, 512, 1, 1)),
                            42_500),
    "bilinear, twice": (enlarged("bilinear", tensor(32, 640, 56, 56), tensor(32, 640, 28, 28)),
                        731),
    "nearest, to points": (enlarged("nearest", tensor(8, 40, 64, 64), tensor(8, 40, 1, 1)), 1992),
    "nearest, channels-last": (enlarged("nearest", last(8, 19, 128, 128), last(8, 19, 7, 7)), 59),
}  # fmt: skip
"""Ops of our H200 and their microseconds."""


@pytest.mark.parametrize("name", MEASURED)
def test_physics_alone_predicts_kernels_that_loop(name: str) -> None:
    op, microseconds = MEASURED[name]
    assert abs(math.log(seconds(op) / (microseconds * 1e-6))) < math.log(2)


def test_an_image_that_keeps_its_size_is_copied() -> None:
    """[4, 768, 64, 64] took 39 us; as a resized one it would take 150."""
    same = enlarged("bilinear", tensor(4, 768, 64, 64), tensor(4, 768, 64, 64))
    assert seconds(same) < 60e-6


def test_a_strided_operand_is_copied_first() -> None:
    scores = TensorSpec((2, 16, 4096, 100), "float16", (6_553_600, 100, 1600, 1))
    assert len(parts_of(softmax(scores, -2))) == 2
    pooled = enlarged("bilinear", last(8, 256, 64, 64), tensor(8, 256, 1, 1))
    assert len(parts_of(pooled)) == 2
    assert 9e-3 < seconds(pooled) < 36e-3  # 17.9 ms
