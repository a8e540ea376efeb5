"""Ops that pass over memory: their columns, and the time that physics gives them."""

from __future__ import annotations

import pytest
from made import tensor

from wavecast.hardware.devices import device
from wavecast.ops import cost_of
from wavecast.ops.costs import COUNTED, SORTING, SORTING_FEW
from wavecast.predictors.learned import passes
from wavecast.predictors.learned.batch import is_masked, parts_of
from wavecast.predictors.learned.columns import (
    CASTS,
    STRIDES,
    VECTORS,
    StreamRow,
    columns_of,
)
from wavecast.predictors.learned.gpus import gpu_of
from wavecast.predictors.learned.streams import STREAM_PARAMETERS, stream_limits
from wavecast.traces.step import Op, Scalar, TensorSpec

THETA = {name: start for name, (start, _, _) in STREAM_PARAMETERS.items()}
"""The constants before any fit."""
BIG = (64, 2304, 768)


def stream_rows(op: Op) -> list[StreamRow]:
    rows = [part.row for part in parts_of(op) if isinstance(part.row, StreamRow)]
    assert len(rows) == len(parts_of(op))
    return rows


def stream_row(op: Op) -> StreamRow:
    (row,) = stream_rows(op)
    return row


def physics_s(op: Op, gpu: str = "h200-sxm") -> float:
    facts = gpu_of(device(gpu))
    assert facts is not None
    return float(stream_limits(columns_of(stream_rows(op)), facts, THETA).seconds().sum())


def added(left: TensorSpec, right: TensorSpec, out: TensorSpec) -> Op:
    return Op("aten.add.Tensor", (left, right), (out,))


half = tensor(*BIG, dtype="float16")
single = tensor(*BIG)
turned = TensorSpec(BIG, "float32", (BIG[1] * BIG[2], 1, BIG[1]))
last = TensorSpec((8, 64, 32, 32), "float32", (65536, 1, 2048, 64))


@pytest.mark.parametrize(
    ("op", "path"),
    [
        (added(single, single, single), VECTORS),
        (Op("aten.mul.Tensor", (last, last), (last,)), VECTORS),
        (Op("aten.clone", (last,), (last,)), VECTORS),
        (added(single, tensor(768), single), STRIDES),
        (added(single, turned, single), STRIDES),
        (Op("aten.clone", (turned,), (single,)), STRIDES),
        (Op("aten._to_copy", (half,), (single,)), STRIDES),
        (Op("aten._to_copy", (single,), (half,)), VECTORS),
        (added(single, half, single), CASTS),
        (Op("aten.clamp.Tensor", (half, tensor(), tensor()), (half,)), CASTS),
        (added(single, tensor(device="cpu"), single), VECTORS),
    ],
)
def test_kernels_reach_operands_by_vectors_one_by_one_or_with_casts(op: Op, path: float) -> None:
    assert stream_row(op).access == path


# Measured on our H200 (measurements/h200/population). Earlier models were 2 to 5 times too fast.
MEASURED = {
    "clamp by tensors of another type": (
        Op("aten.clamp.Tensor", (half, tensor(), tensor()), (half,)),
        455e-6,
    ),
    "layer norm of short rows": (
        Op(
            "aten.native_layer_norm",
            (tensor(48, 56, 56, 40), tensor(40), tensor(40)),
            (tensor(48, 56, 56, 40), tensor(48, 56, 56, 1), tensor(48, 56, 56, 1)),
            (("normalized_shape", (40,)),),
        ),
        226e-6,
    ),
    "interpolation of few places in many channels": (
        Op("aten.upsample_bilinear2d", (tensor(8, 1024, 7, 7),), (tensor(8, 1024, 14, 14),)),
        1497e-6,
    ),
}


@pytest.mark.parametrize("name", MEASURED)
def test_physics_alone_predicts_kernels_that_memory_does_not_limit(name: str) -> None:
    op, seconds = MEASURED[name]
    assert physics_s(op) == pytest.approx(seconds, rel=0.3)


def test_on_a_gpu_with_less_memory_for_each_sm_casts_are_hidden() -> None:
    cast, plain = added(single, half, single), added(single, single, single)
    assert physics_s(cast) > 1.3 * physics_s(plain)
    assert physics_s(cast, "t4") < 1.05 * physics_s(plain, "t4")


def norm(shape: tuple[int, ...], *, training: bool, channels_last: bool = False) -> Op:
    strides = (shape[1] * shape[2] * shape[3], 1, shape[3] * shape[1], shape[1])
    image = TensorSpec(shape, "float32", strides) if channels_last else tensor(*shape)
    weight = tensor(shape[1])
    attrs: tuple[tuple[str, Scalar], ...] = (("training", training),)
    return Op(
        "aten.native_batch_norm",
        (image, weight, weight, weight, weight),
        (image, weight, weight),
        attrs,
    )


def test_launches_are_counted() -> None:
    shape = (8, 64, 7, 7)
    many = COUNTED["aten.native_batch_norm"]
    own, last = (norm(shape, training=True, channels_last=there) for there in (False, True))
    assert sum(row.kernels for row in stream_rows(own)) == many
    assert sum(row.kernels for row in stream_rows(last)) == many + 1
    assert stream_row(norm(shape, training=False)).kernels == 1
    table, places = tensor(729, 12), tensor(38416, dtype="int64")
    for accumulates, kernels in ((True, SORTING), (False, 1)):
        given = (table, places, tensor(38416, 12))
        put = Op("aten.index_put", given, (table,), (("accumulate", accumulates),))
        assert stream_row(put).kernels == kernels
    few = Op("aten.index_put", (table, tensor(49, dtype="int64"), tensor(49, 12)), (table,),
             (("accumulate", True),))  # fmt: skip
    assert stream_row(few).kernels == SORTING_FEW
    assert physics_s(norm(shape, training=True)) > 2 * physics_s(norm(shape, training=False))


def test_gradients_of_embeddings_are_made_contiguous_first() -> None:
    def backward(gradient: TensorSpec) -> Op:
        lookups = tensor(64, 33, dtype="int64")
        return Op("aten.embedding_dense_backward", (gradient, lookups), (tensor(1000, 256),))

    plain = tensor(64, 33, 256)
    transposed = TensorSpec(plain.shape, plain.dtype, (33 * 256, 1, 33))
    copy, whole = parts_of(backward(transposed))
    assert (whole,) == parts_of(backward(plain))
    assert copy.row == stream_row(Op("aten.clone", (transposed,), (plain,)))


def resized(name: str, large: TensorSpec, small: TensorSpec) -> Op:
    """The gradient of an enlarged image."""
    return Op(f"aten.{name}_backward", (large,), (small,))


def test_additions_to_one_place_wait_for_each_other() -> None:
    half = {"dtype": "float16"}
    twice, eightfold = (
        stream_row(resized("upsample_bilinear2d", tensor(4, 8, 64, 64, **half), small))
        for small in (tensor(4, 8, 32, 32, **half), tensor(4, 8, 8, 8, **half))
    )
    assert eightfold.atomic_adds == pytest.approx(8 * twice.atomic_adds)
    single = stream_row(resized("upsample_bilinear2d", tensor(4, 8, 64, 64), tensor(4, 8, 8, 8)))
    assert single.atomic_adds == pytest.approx(passes.JOINED * eightfold.atomic_adds)


def test_states_of_a_scan_follow_each_other() -> None:
    short, long = (
        stream_row(Op("aten._ctc_loss.Tensor", (tensor(steps, 8, 32), tensor(8, 40)), (tensor(8),)))
        for steps in (100, 1500)
    )
    assert long.serial_elements == 15 * short.serial_elements > 0


def test_bicubic_interpolation_loops_over_planes() -> None:
    image, out = tensor(2, 16, 32, 32), tensor(2, 16, 64, 64)
    forward = stream_row(Op("aten.upsample_bicubic2d", (image,), (out,)))
    backward = stream_row(resized("upsample_bicubic2d", out, image))
    assert 0 < forward.serial_elements < backward.serial_elements
    half = resized("upsample_bicubic2d", *(tensor(*t.shape, dtype="float16") for t in (out, image)))
    assert stream_row(half).serial_elements > 4 * backward.serial_elements


def test_unfolding_launches_a_kernel_for_each_image() -> None:
    columns = tensor(96, 512, 256)
    assert stream_row(Op("aten.im2col", (tensor(96, 128, 32, 32),), (columns,))).kernels == 96
    folded = Op("aten.col2im", (columns,), (tensor(96, 128, 32, 32),))
    assert stream_row(folded).elements > 2 * columns.numel


def attention(*masks: TensorSpec, backward: bool = False) -> Op:
    q = tensor(4, 8, 64, 64, dtype="bfloat16")
    if not backward:
        return Op("aten._scaled_dot_product_cudnn_attention", (q, q, q, *masks), (q,))
    sums, seed = tensor(4, 8, 64, 1), tensor(dtype="int64")
    given = (q, q, q, q, q, sums, seed, seed, *masks)
    return Op("aten._scaled_dot_product_cudnn_attention_backward", given, (q, q, q))


def test_a_mask_is_seen_in_both_passes() -> None:
    mask = tensor(4, 1, 64, 64, dtype="bfloat16")
    for backward in (False, True):
        assert is_masked(attention(mask, backward=backward))
        assert not is_masked(attention(backward=backward))


def test_a_norm_that_only_applies_its_statistics_has_a_block_for_each_plane() -> None:
    """256 images of 2,048 planes of 7 x 7 took 317 us on our H200 in cuDNN's kernel."""
    shape = (256, 2048, 7, 7)
    own = norm(shape, training=False)
    cudnn = Op("aten.cudnn_batch_norm", own.inputs, own.outputs, own.attrs)
    assert stream_row(cudnn).blocks == 256 * 2048
    assert stream_row(own).blocks == 256 * 1024
    assert not any(row.blocks for row in stream_rows(norm(shape, training=True)))
    assert stream_row(norm(shape, training=False, channels_last=True)).blocks == 0
    assert physics_s(cudnn) == pytest.approx(317e-6, rel=0.15)


def test_own_norms_in_channels_last_convert_each_element() -> None:
    shape = (110, 552, 64, 64)
    last, own = (norm(shape, training=True, channels_last=there) for there in (True, False))
    assert {row.access for row in stream_rows(last)} == {CASTS}
    assert {row.access for row in stream_rows(own)} == {VECTORS}


def test_own_norms_compute_statistics_and_then_apply_them() -> None:
    """8 images of 1,024 and 2,048 channels took 142 and 277 us in 16 bits on our H200."""
    for channels, microseconds in ((1024, 142), (2048, 277)):
        whole = tensor(8, channels, 64, 64, dtype="bfloat16")
        op = Op("aten.native_batch_norm", (whole, tensor(channels)), (whole,), ())
        first, second = stream_rows(op)
        assert first.loop_blocks == channels
        assert not second.loop_blocks
        assert physics_s(op) == pytest.approx(microseconds * 1e-6, rel=0.3)


def test_many_rows_are_divided_among_blocks() -> None:
    def backward(rows: int) -> Op:
        rows_of_norm, statistic = tensor(rows, 96), tensor(rows, 1)
        given = (rows_of_norm, rows_of_norm, statistic, statistic, tensor(96), tensor(96))
        attrs: tuple[tuple[str, Scalar], ...] = (("normalized_shape", (96,)),)
        return Op(
            "aten.native_layer_norm_backward", given, (rows_of_norm, tensor(96), tensor(96)), attrs
        )

    fewer, more = stream_row(backward(60_000)), stream_row(backward(70_000))
    assert fewer.rows == 2 * 60_000
    assert more.rows < 70_000


def test_a_softmax_with_hidden_rows_is_four_kernels() -> None:
    scores = tensor(8, 16, 1024, 1024)
    safe = Op("aten._safe_softmax", (scores,), (scores,), (("dim", -1),))
    rows = [part.row for part in parts_of(safe) if isinstance(part.row, StreamRow)]
    assert len(rows) == 4
    whole = cost_of(safe)
    assert whole is not None
    moved = sum(row.read_bytes + row.written_bytes for row in rows)
    assert moved == pytest.approx(whole.bytes, rel=0.01)


def test_planes_of_one_point_share_a_line() -> None:
    def enlarged(size: int) -> StreamRow:
        image, out = tensor(16, 384, size, size), tensor(16, 384, 8, 8)
        return stream_row(Op("aten.upsample_bilinear2d", (image,), (out,)))

    assert 4 * enlarged(1).serial_elements < enlarged(7).serial_elements


@pytest.mark.parametrize(("width", "reads"), [(1024, 1), (1025, 2)])
def test_short_rows_of_a_softmax_are_read_once(width: int, reads: int) -> None:
    scores = tensor(4096, width, dtype="float32")
    row = stream_row(Op("aten._softmax", (scores,), (scores,), (("dim", -1),)))
    assert row.read_bytes + row.reread_bytes == reads * scores.nbytes
