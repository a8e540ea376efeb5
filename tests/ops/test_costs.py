"""Costs of ops, compared with hand-computed numbers, torch's FLOP counter, and general laws."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.ops import Cost, Kind, Unit, cost_of, executed_flops, kind, unit
from wavecast.ops.indexing import indexed_dims
from wavecast.ops.registry import formula_of
from wavecast.traces.step import Call, Op, Phase, Scalar, TensorSpec, Trace

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import flop_registry  # noqa: E402

# The first call of a torch op takes a while.
unhurried = settings(deadline=None)

F = torch.nn.functional
aten = torch.ops.aten


def f32(*shape: int, strides: tuple[int, ...] | None = None, device: str = "cuda") -> TensorSpec:
    return TensorSpec(shape, "float32", strides, device)


def i64(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "int64")


def op(name: str, inputs: Any = (), outputs: Any = (), **attrs: Scalar) -> Op:
    return Op(f"aten.{name}", tuple(inputs), tuple(outputs), tuple(attrs.items()))


def bnb(name: str, inputs: Any = (), outputs: Any = (), **attrs: Scalar) -> Op:
    return Op(f"bitsandbytes.{name}", tuple(inputs), tuple(outputs), tuple(attrs.items()))


def of(dtype: str, *shape: int) -> TensorSpec:
    return TensorSpec(shape, dtype)


def cost(name: str, inputs: Any = (), outputs: Any = (), **attrs: Scalar) -> Cost:
    op_cost = cost_of(op(name, inputs, outputs, **attrs))
    assert op_cost is not None
    return op_cost


# Hand-computed numbers


BY_HAND = {
    "a 4-bit weight": (
        bnb("dequantize_4bit", [of("uint8", 4096, 1), f32(128)], [of("bfloat16", 64, 128)]),
        Cost(2 * 8192, 4096 + 4 * 128, 2 * 8192),
    ),
    "a 4-bit weight into memory that exists": (
        bnb(
            "dequantize_4bit.out",
            [of("uint8", 4096, 1), f32(128), of("bfloat16", 64, 128)],
            [of("bfloat16", 64, 128)],
        ),
        Cost(2 * 8192, 4096 + 4 * 128, 2 * 8192),
    ),
    "8-bit scales of a 4-bit weight": (
        bnb("dequantize_blockwise", [of("uint8", 512), f32(2), f32(256)], [f32(512)]),
        Cost(2 * 512, 512 + 8 + 1024, 2048),
    ),
    "quantizing to 4 bits": (
        bnb("quantize_4bit", [of("bfloat16", 64, 128)], [of("uint8", 4096, 1), f32(128)]),
        Cost(10 * 8192, 2 * 8192, 4096 + 512),
    ),
    "a product with a packed weight": (
        bnb(
            "gemm_4bit",
            [of("bfloat16", 2, 3, 128), of("uint8", 4096, 1), f32(128)],
            [of("bfloat16", 2, 3, 64)],
            shapeB=(64, 128),
        ),
        Cost(2 * 6 * 128 * 64, 2 * 6 * 128 + 4096 + 512, 2 * 6 * 64),
    ),
    "a vector with a packed weight": (
        bnb(
            "gemv_4bit",
            [of("bfloat16", 1, 128), of("uint8", 4096, 1), f32(128), f32(16)],
            [of("bfloat16", 1, 64)],
            shapeB=(64, 128),
        ),
        Cost(2 * 128 * 64, 2 * 128 + 4096 + 512 + 64, 2 * 64),
    ),
    "a product of int8": (
        bnb("int8_linear_matmul", [of("int8", 6, 128), of("int8", 64, 128)], [of("int32", 6, 64)]),
        Cost(2 * 6 * 128 * 64, 128 * 70, 4 * 6 * 64),
    ),
    "an int8 product scaled to float16": (
        bnb("int8_mm_dequant", [of("int32", 6, 64), f32(6), f32(64)], [of("float16", 6, 64)]),
        Cost(4 * 384, 4 * (384 + 6 + 64), 2 * 384),
    ),
    "an int8 product scaled to bfloat16 is cast, and its bias is added": (
        bnb(
            "int8_mm_dequant",
            [of("int32", 6, 64), f32(6), f32(64), of("bfloat16", 64)],
            [of("bfloat16", 6, 64)],
        ),
        Cost(4 * 384, 4 * (384 + 6 + 64) + 2 * 64 + 2 * 768, 2 * 384 + 2 * 768),
    ),
    "Adam with 8-bit state": (
        bnb(
            "optimizer_update_8bit_blockwise",
            [
                *(of("bfloat16", 512), of("bfloat16", 512), of("uint8", 512), of("uint8", 512)),
                *(f32(256), f32(256), f32(2), f32(2)),
            ],
            [of("bfloat16", 512)],
        ),
        Cost(16 * 512, 2 * 1024 + 1024 + 2048 + 16, 1024 + 1024 + 2048 + 16),
    ),
    "elementwise": (
        op("add.Tensor", [f32(4, 8), f32(4, 8)], [f32(4, 8)], alpha=1),
        Cost(32, 256, 128),
    ),
    "in place": (op("relu_", [f32(4, 8)], [f32(4, 8)]), Cost(32, 128, 128)),
    "a broadcast dimension is read once": (
        op("mul.Tensor", [f32(4, 8), f32(4, 8, strides=(0, 1))], [f32(4, 8)]),
        Cost(32, 128 + 32, 128),
    ),
    "reduction": (op("sum.dim_IntList", [f32(4, 8)], [f32(4)], dim=(1,)), Cost(32, 128, 16)),
    "max of two tensors": (op("max.other", [f32(8), f32(8)], [f32(8)]), Cost(8, 64, 32)),
    "addmm": (
        op("addmm", [f32(6), f32(4, 5), f32(5, 6)], [f32(4, 6)]),
        Cost(2 * 4 * 5 * 6, 4 * (6 + 20 + 30), 4 * 24),
    ),
    "addmm that ignores self": (
        op("addmm", [f32(6), f32(4, 5), f32(5, 6)], [f32(4, 6)], beta=0),
        Cost(2 * 4 * 5 * 6, 4 * (20 + 30), 4 * 24),
    ),
    "grouped matmul, rows split": (
        op("_grouped_mm", [f32(10, 4), f32(3, 4, 6)], [f32(10, 6)]),
        Cost(2 * 10 * 4 * 6, 4 * (40 + 72), 4 * 60),
    ),
    "grouped matmul, columns split": (
        op("_grouped_mm", [f32(3, 10, 4), f32(4, 6)], [f32(10, 6)]),
        Cost(2 * 10 * 4 * 6, 4 * (120 + 24), 4 * 60),
    ),
    "grouped matmul, terms split": (
        op("_grouped_mm", [f32(10, 4), f32(4, 6)], [f32(3, 10, 6)]),
        Cost(2 * 10 * 4 * 6, 4 * (40 + 24), 4 * 180),
    ),
    "grouped matmul, a batch": (
        op("_grouped_mm", [f32(3, 10, 4), f32(3, 4, 6)], [f32(3, 10, 6)]),
        Cost(2 * 3 * 10 * 4 * 6, 4 * (120 + 72), 4 * 180),
    ),
    "matrix times vector": (op("mv", [f32(4, 5), f32(5)], [f32(4)]), Cost(40, 100, 16)),
    "batch norm reads its input twice in training": (
        op("cudnn_batch_norm", [f32(2, 3, 4), f32(3)], [f32(2, 3, 4), f32(3)], training=True),
        Cost(8 * 24, 2 * 96 + 12, 96 + 12),
    ),
    "and once in evaluation": (
        op("native_batch_norm", [f32(2, 3, 4), f32(3)], [f32(2, 3, 4)], training=False),
        Cost(8 * 24, 96 + 12, 96),
    ),
    "layer norm reads its input once": (
        op("native_layer_norm", [f32(2, 8), f32(8)], [f32(2, 8), f32(2), f32(2)]),
        Cost(8 * 16, 64 + 32, 64 + 16),
    ),
    "layer norm backward is two kernels": (
        op(
            "native_layer_norm_backward",
            [f32(2, 8), f32(2, 8), f32(2), f32(2), f32(8)],
            [f32(2, 8), f32(8), f32(8)],
            output_mask=(True, True, True),
        ),
        Cost(12 * 16, 2 * 128 + 16 + 32, 64 + 64),
    ),
    "softmax": (op("_softmax", [f32(2, 8)], [f32(2, 8)]), Cost(12 * 16, 64, 64)),
    "nll loss looks up one number per target": (
        op("nll_loss_forward", [f32(4, 100), i64(4)], [f32(), f32()]),
        Cost(8, 16 + 32, 8),
    ),
    "nll loss backward zeroes the gradient": (
        op("nll_loss_backward", [f32(), f32(4, 100), i64(4), f32()], [f32(4, 100)]),
        Cost(4, 4 + 32 + 4, 1600 + 16),
    ),
    "a reduced loss passes a tensor on": (
        op("mse_loss", [f32(8), f32(8)], [f32()], reduction=1),
        Cost(32, 64 + 32, 4 + 32),
    ),
    "an unreduced one does not": (
        op("mse_loss", [f32(8), f32(8)], [f32(8)], reduction=0),
        Cost(32, 64, 32),
    ),
    "embedding reads the rows it fetches": (
        op("embedding", [f32(1000, 8), i64(3)], [f32(3, 8)]),
        Cost(0, 96 + 24, 96),
    ),
    "a small table is read once": (
        op("embedding", [f32(2, 8), i64(30)], [f32(30, 8)]),
        Cost(0, 64 + 240, 960),
    ),
    "embedding backward fills the whole gradient": (
        op("embedding_dense_backward", [f32(3, 8), i64(3)], [f32(1000, 8)]),
        Cost(24, 96 + 24 + 96, 32000 + 96),
    ),
    "embedding bag": (
        op("_embedding_bag", [f32(1000, 8), i64(6), i64(2)], [f32(2, 8)]),
        Cost(48, 192 + 48 + 16, 64),
    ),
    "gather": (op("gather", [f32(4, 100), i64(4, 2)], [f32(4, 2)]), Cost(0, 32 + 64, 32)),
    "scatter in place": (
        op("scatter_.value", [f32(4, 100), i64(4, 2)], [f32(4, 100)], dim=1, value=1.0),
        Cost(0, 64, 32),
    ),
    "scatter_add copies first": (
        op("scatter_add", [f32(4, 100), i64(4, 2), f32(4, 2)], [f32(4, 100)], dim=1),
        Cost(8, 1600 + 64 + 32 + 32, 1600 + 32),
    ),
    "index_put of rows": (
        op("index_put_", [f32(100, 8), i64(3), f32()], [f32(100, 8)]),
        Cost(0, 24 + 4, 96),
    ),
    "slice backward": (op("slice_backward", [f32(2, 8)], [f32(4, 8)]), Cost(0, 64, 128 + 64)),
    "max pool": (
        op(
            "max_pool2d_with_indices",
            [f32(1, 2, 8, 8)],
            [f32(1, 2, 4, 4), i64(1, 2, 4, 4)],
            kernel_size=(3,),
        ),
        Cost(32 * 9, 512, 128 + 256),
    ),
    "max pool backward does not read the input": (
        op(
            "max_pool2d_with_indices_backward",
            [f32(1, 2, 4, 4), f32(1, 2, 8, 8), i64(1, 2, 4, 4)],
            [f32(1, 2, 8, 8)],
            kernel_size=(2, 2),
        ),
        Cost(128, 128 + 256, 512),
    ),
    "nearest": (op("upsample_nearest2d", [f32(1, 1, 2, 2)], [f32(1, 1, 4, 4)]), Cost(16, 16, 64)),
    "bilinear backward adds into zeros": (
        op("upsample_bilinear2d_backward", [f32(1, 1, 4, 4)], [f32(1, 1, 2, 2)]),
        Cost(320, 64 + 16, 16 + 16),
    ),
    "cat": (op("cat", [f32(2, 8), f32(3, 8)], [f32(5, 8)]), Cost(0, 160, 160)),
    "copy_ does not read its target": (op("copy_", [f32(8), f32(8)], [f32(8)]), Cost(0, 32, 32)),
    "fill": (op("zeros_like", [f32(8)], [f32(8)]), Cost(0, 0, 32)),
    "random": (op("uniform_", [f32(8)], [f32(8)]), Cost(80, 0, 32)),
    "dropout": (
        op("native_dropout", [f32(8)], [f32(8), TensorSpec((8,), "bool")], p=0.5),
        Cost(80, 32, 32 + 8),
    ),
    "view": (op("transpose.int", [f32(2, 8)], [f32(8, 2, strides=(1, 8))]), Cost(0, 0, 0)),
    "empty": (op("empty.memory_format", [], [f32(1000)]), Cost(0, 0, 0)),
    "host to device": (op("_to_copy", [f32(8, device="cpu")], [f32(8)]), Cost(0, 0, 32)),
    "device to host": (op("_to_copy", [f32(8)], [f32(8, device="cpu")]), Cost(0, 32, 0)),
    "pad": (op("constant_pad_nd", [f32(2, 2)], [f32(4, 4)], pad=(1, 1, 1, 1)), Cost(0, 16, 80)),
    "sort": (op("sort", [f32(8)], [f32(8), i64(8)]), Cost(24, 32, 32 + 64)),
    "fft": (
        op("_fft_r2c", [f32(2, 8)], [TensorSpec((2, 5), "complex64")], dim=(1,)),
        Cost(5 * 16 * 3 // 2, 64, 80),
    ),
    "foreach": (
        op("_foreach_add_.List", [f32(4), f32(6), f32(4), f32(6)], [f32(4), f32(6)]),
        Cost(10, 80, 40),
    ),
    "foreach norm": (op("_foreach_norm.Scalar", [f32(4), f32(6)], [f32(), f32()]), Cost(40, 40, 8)),
    "foreach copy": (
        op("_foreach_copy_", [f32(4), f32(6), f32(4), f32(6)], [f32(4), f32(6)]),
        Cost(0, 40, 40),
    ),
    "linear": (op("linear", [f32(2, 3, 4), f32(5, 4)], [f32(2, 3, 5)]), Cost(240, 176, 120)),
    "foreach matmul": (
        op("_foreach_mm", [f32(2, 3), f32(4, 5), f32(3, 6), f32(5, 7)], [f32(2, 6), f32(4, 7)]),
        Cost(2 * (36 + 140), 4 * (6 + 20 + 18 + 35), 4 * (12 + 28)),
    ),
    "distances": (
        op("_cdist_forward", [f32(4, 3), f32(5, 3)], [f32(4, 5)]),
        Cost(3 * 60, 4 * 27, 80),
    ),
    "gradient of distances": (
        op("_cdist_backward", [f32(4, 5), f32(4, 3), f32(5, 3), f32(4, 5)], [f32(4, 3)]),
        Cost(4 * 60, 4 * (20 + 12 + 15 + 20), 48),
    ),
    "triangular solve": (
        op("linalg_solve_triangular", [f32(2, 4, 4), f32(2, 4, 3)], [f32(2, 4, 3)]),
        Cost(2 * 16 * 3, 4 * (32 + 24), 96),
    ),
    "cholesky": (op("linalg_cholesky_ex", [f32(6, 6)], [f32(6, 6)]), Cost(72, 144, 144)),
    "inverse": (op("linalg_inv_ex", [f32(6, 6)], [f32(6, 6)]), Cost(432, 144, 144)),
    "transposed convolution of cuDNN": (
        op("cudnn_convolution_transpose", [f32(1, 2, 4), f32(2, 3, 2)], [f32(1, 3, 5)]),
        Cost(2 * 4 * 12, 4 * (8 + 12), 60),
    ),
    "embedding bag backward": (
        op("_embedding_bag_dense_backward", [f32(2, 8), i64(6), i64(6)], [f32(1000, 8)]),
        Cost(48, 64 + 96 + 192, 32000 + 192),
    ),
    "embedding bag weights backward": (
        op(
            "_embedding_bag_per_sample_weights_backward",
            [f32(2, 8), f32(1000, 8), i64(6), i64(2)],
            [f32(6)],
        ),
        Cost(96, 64 + 192 + 48 + 16, 24),
    ),
    "embedding renorm": (
        op("embedding_renorm_", [f32(1000, 8), i64(3)], [f32(1000, 8)], max_norm=1.0),
        Cost(72, 24 + 96, 96),
    ),
    "index_fill": (
        op("index_fill_.int_Scalar", [f32(10, 8), i64(2)], [f32(10, 8)], dim=0, value=0),
        Cost(0, 16, 64),
    ),
    "unfold backward": (
        op("unfold_backward", [f32(3, 4)], [f32(6)]),
        Cost(12, 48 + 24, 48),
    ),
    "slice_scatter": (
        op("slice_scatter", [f32(4, 8), f32(2, 8)], [f32(4, 8)], dim=0),
        Cost(0, 192, 128 + 64),
    ),
    "collective": (
        Op("_c10d_functional.all_reduce", (f32(8),), (f32(8),)),
        Cost(0, 32, 32),
    ),
    "group norm reads its input twice": (
        op("native_group_norm", [f32(2, 4, 8), f32(4)], [f32(2, 4, 8)]),
        Cost(8 * 64, 2 * 256 + 16, 256),
    ),
    "batch norm backward reads gradient and input twice": (
        op("native_batch_norm_backward", [f32(2, 3, 4), f32(2, 3, 4)], [f32(2, 3, 4)], train=True),
        Cost(12 * 24, 4 * 96, 96),
    ),
    "unscale": (
        op(
            "_amp_foreach_non_finite_check_and_unscale_",
            [f32(4), f32(6), f32(), f32()],
            [f32(4), f32(6), f32()],
        ),
        Cost(2 * 12, 48, 44),
    ),
    "fused adagrad": (
        op("_fused_adagrad_", [f32(4), f32(4), f32(4), f32()], [f32(4)] * 3),
        Cost(32, 52, 32),
    ),
    "binary cross entropy is five kernels": (
        op("binary_cross_entropy_with_logits", [f32(8), f32(8)], [f32()], reduction=1),
        Cost(14 * 8, 64 + 4 * 32, 4 + 4 * 32),
    ),
    "average pool backward": (
        op(
            "avg_pool2d_backward",
            [f32(1, 2, 4, 4), f32(1, 2, 8, 8)],
            [f32(1, 2, 8, 8)],
            kernel_size=(2, 2),
        ),
        Cost(32 * 4, 128, 512),
    ),
    "ctc backward": (
        op(
            "_ctc_loss_backward",
            [f32(2), f32(5, 2, 30), i64(2, 3), f32(2), f32(2, 5, 7)],
            [f32(5, 2, 30)],
        ),
        Cost(40 * 70, 8 + 1200 + 48 + 8 + 280 + 280, 1200 + 280),
    ),
    "ctc": (
        op("_ctc_loss", [f32(5, 2, 30), i64(2, 3)], [f32(2), f32(2, 5, 7)], blank=0),
        Cost(20 * 70, 70 * 4 + 48, 8 + 280),
    ),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_costs_are_those_computed_by_hand(case: str) -> None:
    which, expected = BY_HAND[case]
    assert cost_of(which) == expected


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_fused_adam_reads_everything_and_writes_gradients_only_when_unscaling(
    scaled: bool, amsgrad: bool
) -> None:
    shapes = [f32(10), f32(3, 4), f32()]
    lists = 5 if amsgrad else 4
    tensors = shapes * lists + [f32()] * len(shapes) + [f32()] * (2 if scaled else 0)
    update = cost("_fused_adamw_", tensors, shapes * lists, amsgrad=amsgrad, lr=1e-3)
    elements = 10 + 12 + 1
    assert update.flops == 16 * elements
    assert update.read_bytes == sum(t.nbytes for t in tensors)
    assert update.written_bytes == 4 * elements * (lists - 1 + scaled)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("single", [0, 1, 2, 3])
def test_fused_sgd_knows_its_lists_apart(momentum: float, single: int) -> None:
    shapes = [f32(10), f32(3, 4)]
    lists = 3 if momentum else 2
    overload = ".tensor_lr" if single % 2 else ""
    tensors = shapes * lists + [f32()] * single
    update = cost(f"_fused_sgd_{overload}", tensors, shapes, momentum=momentum)
    assert update.written_bytes == 4 * 22 * (lists - 1 + (single >= 2))


@pytest.mark.parametrize("mask", [(True, False, False), (False, True, True), (True, True, False)])
def test_convolution_backward_reads_what_each_wanted_gradient_needs(
    mask: tuple[bool, bool, bool],
) -> None:
    grad, image, weight = f32(2, 6, 8, 8), f32(2, 3, 8, 8), f32(6, 3, 3, 3)
    gradients = cost("convolution_backward", [grad, image, weight], [], output_mask=mask, groups=1)
    forward = 2 * 2 * 64 * 6 * 3 * 9
    needs = (
        grad.nbytes + weight.nbytes,
        grad.nbytes + image.nbytes,
        grad.nbytes,
    )
    assert gradients.flops == forward * (mask[0] + mask[1])
    assert gradients.read_bytes == sum(
        n for n, computed in zip(needs, mask, strict=True) if computed
    )


def test_groups_are_forgotten_by_torch_but_not_executed() -> None:
    tensors = [f32(1, 64, 8, 8), f32(1, 64, 8, 8), f32(64, 1, 3, 3)]
    depthwise = op("convolution_backward", tensors, output_mask=(True, True, False), groups=64)
    per_channel = 2 * 64 * 64 * 9
    costs = cost_of(depthwise)
    assert costs is not None
    assert costs.flops == per_channel + 64 * per_channel
    assert executed_flops(depthwise) == 2 * per_channel


# Recurrent networks


def rnn(mode: int, **changes: Any) -> Op:
    size: dict[str, Any] = {
        "input": (7, 3, 5),
        "hidden_size": 6,
        "proj_size": 0,
        "num_layers": 1,
        "bidirectional": False,
        "train": True,
        "weight_stride0": 4,
    } | changes
    shape = size.pop("input")
    name = size.pop("name", "_cudnn_rnn")
    layers = size["num_layers"] * (2 if size["bidirectional"] else 1)
    state = f32(layers, shape[1], size["hidden_size"])
    width = (2 if size["bidirectional"] else 1) * (size["proj_size"] or size["hidden_size"])
    outputs = [f32(*shape[:-1], width), state, state]
    return op(name, [f32(*shape), state, state], outputs, mode=mode, **size)


@unhurried
@given(
    st.integers(0, 3),
    st.integers(1, 4),
    st.booleans(),
    st.integers(1, 9),
    st.integers(2, 9),
    st.sampled_from([0, 1]),
)
def test_recurrent_flops_are_those_of_the_equivalent_linears(
    mode: int, layers: int, both: bool, features: int, hidden: int, projected: int
) -> None:
    kind_of_cell = {0: "RNN", 1: "RNN", 2: "LSTM", 3: "GRU"}[mode]
    extra = {"proj_size": projected} if mode == 2 else {}
    with torch.device("meta"):
        module = getattr(torch.nn, kind_of_cell)(
            features, hidden, layers, bidirectional=both, **extra
        )
    matrices = sum(p.numel() for n, p in module.named_parameters() if n.startswith("weight"))
    every = sum(p.numel() for p in module.parameters())
    size: dict[str, Any] = {
        "input": (7, 3, features),
        "hidden_size": hidden,
        "num_layers": layers,
        "bidirectional": both,
        **extra,
    }
    forward, backward = (
        cost_of(rnn(mode, **size, name=name)) for name in ("_cudnn_rnn", "_cudnn_rnn_backward")
    )
    assert forward is not None
    assert backward is not None
    assert forward.flops == 2 * 21 * matrices
    assert backward.flops == 2 * forward.flops
    assert backward.written_bytes >= 4 * every


def test_a_packed_batch_counts_its_tokens_and_frozen_weights_half_of_backward() -> None:
    padded, packed = cost_of(rnn(2)), cost_of(rnn(2, input=(21, 5)))
    assert padded is not None
    assert packed is not None
    assert padded.flops == packed.flops
    frozen = cost_of(rnn(2, name="_cudnn_rnn_backward", output_mask=(True, True, True, False)))
    assert frozen is not None
    assert frozen.flops == padded.flops


# Torch's FLOP counter


def spec_of(tensor: Any) -> TensorSpec:
    strides = None if tensor.is_contiguous() else tuple(tensor.stride())
    return TensorSpec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), strides)


def tensors_of(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [t for v in value for t in tensors_of(v)]
    return []


def op_of(func: Any, args: Any, kwargs: Any, out: Any) -> Op:
    """The Op of a call of a torch operator, as the recorder would write it."""
    named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    attrs = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in named.items()
        if value is not None and not tensors_of(value) and not isinstance(value, torch.dtype)
    }
    inputs = [spec_of(t) for value in named.values() for t in tensors_of(value)]
    outputs = [spec_of(t) for t in tensors_of(out)]
    return Op(
        f"aten.{func._overloadpacket.__name__}", tuple(inputs), tuple(outputs), (*attrs.items(),)
    )


class Counted(TorchDispatchMode):
    """Collects the ops that torch has a formula for, with torch's count of their FLOPs."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[tuple[Op, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket)
        if formula:
            self.ops.append((op_of(func, args, kwargs, out), formula(*args, **kwargs, out_val=out)))
        return out


def meta(*shape: int, dtype: Any = None, grad: bool = False) -> Any:
    return torch.empty(*shape, dtype=dtype, device="meta", requires_grad=grad)


def assert_equal_to_torch(counted: Counted, *names: str) -> None:
    assert {which.name for which, _ in counted.ops} >= {f"aten.{name}" for name in names}
    for which, flops in counted.ops:
        ours = cost_of(which)
        assert ours is not None
        assert ours.flops == flops, which


sizes = st.integers(1, 12)


@unhurried
@given(sizes, sizes, sizes, sizes)
def test_matrix_products_equal_torch(b: int, m: int, k: int, n: int) -> None:
    with Counted() as counted:
        torch.mm(meta(m, k), meta(k, n))
        torch.addmm(meta(n), meta(m, k), meta(k, n))
        torch.bmm(meta(b, m, k), meta(b, k, n))
        torch.baddbmm(meta(b, m, n), meta(b, m, k), meta(b, k, n))
    assert_equal_to_torch(counted, "mm", "addmm", "bmm", "baddbmm")


@unhurried
@given(sizes, sizes, sizes)
def test_scaled_products_equal_torch(m: int, k: int, n: int) -> None:
    fp8, scale = torch.float8_e4m3fn, meta(1)
    with Counted() as counted:
        a, b = meta(m * 16, k * 16, dtype=fp8), meta(n * 16, k * 16, dtype=fp8).t()
        aten._scaled_mm(a, b, scale, scale, out_dtype=torch.bfloat16)
    assert_equal_to_torch(counted, "_scaled_mm")
    assert unit(counted.ops[0][0]) is Unit.FP8_TENSOR


@unhurried
@given(
    st.integers(1, 3),
    st.booleans(),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 2),
    st.tuples(st.booleans(), st.booleans()),
)
def test_convolutions_equal_torch(
    dims: int,
    transposed: bool,
    groups: int,
    c_in: int,
    c_out: int,
    kernel: int,
    stride: int,
    dilation: int,
    computed: tuple[bool, bool],
) -> None:
    image = meta(2, groups * c_in, *[9] * dims, grad=computed[0])
    channels = (groups * c_in, c_out) if transposed else (groups * c_out, c_in)
    weight = meta(*channels, *[kernel] * dims, grad=computed[1])
    name = f"conv_transpose{dims}d" if transposed else f"conv{dims}d"
    settings_ = {"stride": stride, "padding": 1, "dilation": dilation, "groups": groups}
    with Counted() as counted:
        out = getattr(F, name)(image, weight, meta(groups * c_out), **settings_)
        if any(computed):
            out.sum().backward()
    names = ["convolution", "convolution_backward"] if any(computed) else ["convolution"]
    assert_equal_to_torch(counted, *names)


half = torch.bfloat16


@unhurried
@given(st.integers(1, 3), st.integers(1, 3), sizes, sizes, st.integers(1, 4), st.booleans())
def test_attention_equals_torch(
    b: int, heads: int, q_len: int, k_len: int, d: int, causal: bool
) -> None:
    q, k, v, grad = (meta(b, heads, n * 8, d * 8, dtype=half) for n in (q_len, k_len, k_len, q_len))
    lse, seed = meta(b, heads, q_len * 8), meta(2, dtype=torch.int64)
    with Counted() as counted:
        flash = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
        aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal)
        aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)
        tail = (q_len * 8, k_len * 8, 0.0, causal, seed, seed)
        aten._scaled_dot_product_flash_attention_backward(
            grad, q, k, v, flash[0], lse, None, None, *tail
        )
        aten._scaled_dot_product_efficient_attention_backward(
            grad, q, k, v, None, q, lse, seed, seed, 0.0, [True, True, True, False], causal
        )
        aten._scaled_dot_product_cudnn_attention_backward(
            grad, q, k, v, q, lse, seed, seed, None, None, None, q_len * 8, k_len * 8, 0.0, causal
        )
    assert len(counted.ops) == 6
    assert_equal_to_torch(counted)
    for which, flops in counted.ops:
        done = executed_flops(which)
        assert done is not None
        assert done <= flops if causal else done == flops


@unhurried
@given(st.integers(1, 4), st.integers(1, 3), sizes, sizes, st.integers(1, 4))
def test_packed_attention_equals_torch(
    sequences: int, heads: int, q_max: int, k_max: int, d: int
) -> None:
    q, k = (meta(sequences * n, heads, d * 8, dtype=half) for n in (q_max, k_max))
    ends = meta(sequences + 1, dtype=torch.int32)
    seed, lse = meta(2, dtype=torch.uint64), meta(heads, sequences * q_max)
    with Counted() as counted:
        aten._flash_attention_forward(q, k, k, ends, ends, q_max, k_max, 0.0, False, False)
        aten._flash_attention_backward(
            q, q, k, k, q, lse, ends, ends, q_max, k_max, 0.0, False, seed, seed
        )
        four = [t.unsqueeze(0) for t in (q, k, k)]
        aten._efficient_attention_forward(*four, None, ends, ends, q_max, k_max, 0.0, 0)
    names = "_flash_attention_forward", "_flash_attention_backward", "_efficient_attention_forward"
    assert_equal_to_torch(counted, *names)


def test_torch_swaps_length_and_heads_of_a_plain_batch_but_they_are_executed_right() -> None:
    with Counted() as counted:
        q = meta(2, 64, 4, 8, dtype=half)  # batch, length, heads, d
        aten._flash_attention_forward(q, q, q, None, None, 64, 64, 0.0, False, False)
    assert_equal_to_torch(counted, "_flash_attention_forward")
    assert executed_flops(counted.ops[0][0]) == 4 * 2 * 4 * 64 * 64 * 8


def attention(name: str, q_len: int, k_len: int, **attrs: Scalar) -> Op:
    """One head, width 1: two FLOPs per pair for scores, two for the output."""
    order = (1, 1, q_len, 1), (1, 1, k_len, 1)
    if name == "_flash_attention_forward":
        order = (1, q_len, 1, 1), (1, k_len, 1, 1)
    q, k = (TensorSpec(shape, "float16") for shape in order)
    return op(name, [q, k, k], [q], **attrs)


@unhurried
@given(st.integers(1, 9), st.integers(1, 9), st.integers(-1, 9), st.integers(-1, 9), st.booleans())
def test_executed_attention_counts_the_pairs_that_the_mask_leaves(
    q_len: int, k_len: int, left: int, right: int, causal: bool
) -> None:
    def attended(i: int, j: int, diagonal: int, left: int, right: int) -> bool:
        return (left < 0 or j >= i + diagonal - left) and (right < 0 or j <= i + diagonal + right)

    pairs = [(i, j) for i in range(q_len) for j in range(k_len)]
    flash = attention(
        "_flash_attention_forward",
        q_len,
        k_len,
        is_causal=causal,
        window_size_left=left,
        window_size_right=right,
    )
    bottom = k_len - q_len
    limit = 0 if causal else right
    assert executed_flops(flash) == 4 * sum(attended(i, j, bottom, left, limit) for i, j in pairs)
    name = "_scaled_dot_product_efficient_attention"
    top_left = attention(name, q_len, k_len, is_causal=True)
    assert executed_flops(top_left) == 4 * sum(j <= i for i, j in pairs)


def test_every_formula_of_torch_has_one_of_ours() -> None:
    # An op of the CPU. Torch's formula expects another signature, so it cannot be called.
    exempt = {"aten._slow_conv2d_forward"}
    names = {str(packet) for packet in flop_registry}
    assert {name for name in names - exempt if formula_of(name) is None} == set()


# Coverage of torch


def pointwise_names() -> set[str]:
    names = set()
    for qualified in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = qualified.partition("::")
        name, _, overload = rest.partition(".")
        if namespace != "aten" or "out" in overload:
            continue
        packet = getattr(torch.ops.aten, name)
        if torch.Tag.pointwise in getattr(packet, overload or "default").tags:
            names.add(f"aten.{rest}")
    return names


# Pointwise ops of new torch versions that are left out on purpose.
EXEMPT: set[str] = set()


def test_every_pointwise_op_of_torch_is_known() -> None:
    names = pointwise_names()
    assert len(names) > 300
    assert {name for name in names - EXEMPT if kind(Op(name, (), ())) is None} == set()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten.mm", Kind.MATMUL),
        ("aten.add_.Tensor", Kind.ELEMENTWISE),
        ("aten.max", Kind.REDUCTION),
        ("aten.max.dim", Kind.REDUCTION),
        ("aten.max.other", Kind.ELEMENTWISE),
        ("aten.bernoulli", Kind.RANDOM),
        ("aten.copy_", Kind.COPY),
        ("aten.t", Kind.VIEW),
        ("cuda.synchronize", Kind.SYNC),
        ("_c10d_functional.all_reduce", Kind.COLLECTIVE),
        ("aten._linalg_svd", Kind.LINEAR_ALGEBRA),
        ("mylib.spin", None),
    ],
)
def test_kinds(name: str, expected: Kind | None) -> None:
    assert kind(Op(name, (), ())) is expected


# Laws


names_of_streams = st.sampled_from(
    ["add.Tensor", "gelu", "_softmax", "cat", "clone", "mul_.Tensor"]
)


@unhurried
@given(names_of_streams, st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(0, 3))
def test_costs_are_not_negative_and_grow_with_size(name: str, shape: list[int], axis: int) -> None:
    bigger = list(shape)
    bigger[axis % len(shape)] += 1
    small = cost(name, [f32(*shape)] * 2, [f32(*shape)])
    large = cost(name, [f32(*bigger)] * 2, [f32(*bigger)])
    assert 0 <= small.flops <= large.flops
    assert 0 <= small.read_bytes <= large.read_bytes
    assert 0 <= small.written_bytes <= large.written_bytes


numbers = st.integers(0, 10**18)
costs = st.builds(Cost, numbers, numbers, numbers)


def test_registering_twice_raises_and_changes_nothing() -> None:
    with pytest.raises(InvalidInput, match=r"aten\.mm is registered twice"):
        ops.cost("aten.mm", kind=Kind.COPY)(lambda op: Cost())
    assert kind(Op("aten.mm", (), ())) is Kind.MATMUL


def test_an_op_can_be_registered_after_it_was_asked_for() -> None:
    mine = Op("mylib.fused", (f32(8),), (f32(8),))
    assert cost_of(mine) is None
    ops.cost("mylib.fused", kind=Kind.ELEMENTWISE)(lambda op: Cost(1, 2, 3))
    assert cost_of(mine) == Cost(1, 2, 3)


# Units


@pytest.mark.parametrize(
    ("name", "dtype", "attrs", "expected"),
    [
        ("mm", "float16", {}, Unit.FP16_TENSOR),
        ("mm", "bfloat16", {}, Unit.BF16_TENSOR),
        ("mm", "float32", {"precision": "tf32"}, Unit.TF32_TENSOR),
        ("mm", "float32", {"precision": "ieee"}, Unit.FP32),
        ("mm", "float64", {}, Unit.FP64),
        ("_int_mm", "int8", {}, Unit.INT8_TENSOR),
        ("add.Tensor", "bfloat16", {}, Unit.FP32),
        ("add.Tensor", "float64", {}, Unit.FP64),
        ("_cudnn_rnn", "float16", {}, Unit.FP16_TENSOR),
    ],
)
def test_units(name: str, dtype: str, attrs: dict[str, Scalar], expected: Unit) -> None:
    tensor = TensorSpec((8, 8), dtype)
    assert unit(op(name, [tensor, tensor], [tensor], **attrs)) is expected


def test_a_depthwise_convolution_has_no_matrix_product() -> None:
    image, weight = TensorSpec((1, 64, 8, 8), "float16"), TensorSpec((64, 1, 3, 3), "float16")
    full = TensorSpec((64, 64, 3, 3), "float16")
    assert unit(op("convolution", [image, weight], [image], groups=64)) is Unit.FP32
    assert unit(op("convolution", [image, full], [image], groups=1)) is Unit.FP16_TENSOR


@pytest.mark.parametrize("name", ["addmm", "baddbmm"])
def test_a_sum_in_float32_leaves_a_product_on_the_tensor_cores(name: str) -> None:
    factor, total = TensorSpec((64, 64), "bfloat16"), TensorSpec((64, 64), "float32")
    assert unit(op(name, [total, factor, factor], [total])) is Unit.BF16_TENSOR


def test_fallbacks_end_at_float32_or_nowhere() -> None:
    assert ops.fallbacks(Unit.FP16_TENSOR) == (Unit.FP16, Unit.FP32)
    assert ops.fallbacks(Unit.BF16_TENSOR) == ops.fallbacks(Unit.TF32_TENSOR) == (Unit.FP32,)
    assert ops.fallbacks(Unit.FP8_TENSOR) == ops.fallbacks(Unit.FP32) == ()


# Steps


def test_totals_sum_by_phase_and_kind_and_name_what_is_unknown() -> None:
    product = op("mm", [f32(4, 5), f32(5, 6)], [f32(4, 6)])
    calls = (
        Call(product, Phase.FORWARD),
        Call(op("t", [f32(4, 5)], [f32(5, 4)]), Phase.FORWARD),
        Call(product, Phase.BACKWARD),
        Call(product, Phase.BACKWARD),
        Call(op("_foreach_zero_", [f32(9)], [f32(9)]), Phase.OPTIMIZER),
        Call(Op("mylib.spin", (f32(4, 4),), (i64(4),)), Phase.FORWARD),
        Call(op("_linalg_svd", [f32(4, 4)], [f32(4, 4)]), Phase.FORWARD),
        Call(Op("cuda.synchronize", (), ()), Phase.OTHER),
    )
    totals = ops.totals(Trace(calls))
    each_cost = Cost(240, 4 * (20 + 30), 4 * 24)
    assert totals.by_phase[Phase.FORWARD] == each_cost
    assert totals.by_phase[Phase.BACKWARD] == each_cost * 2
    assert totals.by_kind[Kind.MATMUL] == each_cost * 3
    assert totals.by_kind[Kind.OPTIMIZER] == Cost(0, 0, 36)
    assert totals.cost == each_cost * 3 + Cost(0, 0, 36)
    assert totals.executed_flops == 720
    assert totals.unknown == {"mylib.spin": 1, "aten._linalg_svd": 1}
    assert totals.kernels == 6


def test_nothing_is_launched_for_views_waits_the_host_or_no_elements() -> None:
    assert ops.launches(op("add.Tensor", [f32(4)], [f32(4)]))
    assert not ops.launches(op("view", [f32(4)], [f32(4)]))
    assert not ops.launches(Op("cuda.synchronize", (), ()))
    assert not ops.launches(op("add.Tensor", [f32(4, device="cpu")], [f32(4, device="cpu")]))
    assert not ops.launches(op("add.Tensor", [f32(0)], [f32(0)]))


@pytest.mark.parametrize(
    ("target", "indices", "values", "dims"),
    [
        ((8, 2048), [(4096,)], (4096, 2048), slice(0, 1)),
        ((4, 196), [(49, 196)], (4, 49, 196), slice(1, 2)),
        ((512, 27, 27), [(351,), (351,)], (512, 351), slice(1, 3)),
        ((100, 8), [(3,)], (), None),
    ],
)
def test_values_tell_the_dimensions_of_indices(
    target: tuple[int, ...],
    indices: list[tuple[int, ...]],
    values: tuple[int, ...],
    dims: slice | None,
) -> None:
    given = [f32(*target), *(i64(*shape) for shape in indices), f32(*values)]
    assert indexed_dims(op("index_put", given, [f32(*target)])) == dims


def test_whoever_asks_for_a_cost_has_the_formulas_of_every_file() -> None:
    code = "import sys, wavecast.ops; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    files = {file.stem for file in Path(ops.__file__).parent.glob("*.py")} - {"__init__"}
    assert {f"wavecast.ops.{name}" for name in files} <= set(run.stdout.split())
