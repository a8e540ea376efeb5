"""Ops, calls and GPUs of all kinds, for hypothesis to draw from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from made import copy_to_gpu, mm, tensor
from predictors.contract import RATES, with_rates

from wavecast.hardware.devices import Device, device
from wavecast.traces.step import Call, Kernel, Op, Phase

GPUS = [device(name) for name in ("k80", "v100-sxm-32gb", "t4", "a100-sxm-80gb", "h200-sxm")]
GPUS += [device(name) for name in ("rtx-4090", "mi300x", "b200-sxm")]

Maker = Callable[[int, int, int, str], Op]
"""Makes an op from a batch, two small sizes and a type."""
SAME_SIZE = (("stride", (1, 1)), ("padding", (1, 1)), ("dilation", (1, 1)))
"""A filter of 3 x 3 that leaves the size of images as it is."""


def _conv(b: int, c: int, n: int, dtype: str, groups: int = 1) -> Op:
    weight = tensor(c, max(c // groups, 1), 3, 3, dtype=dtype)
    image = tensor(b, c, n, n, dtype=dtype)
    return Op("aten.convolution", (image, weight), (image,), (("groups", groups), *SAME_SIZE))


def _conv_backward(b: int, c: int, n: int, dtype: str) -> Op:
    image, weight = tensor(b, c, n, n, dtype=dtype), tensor(c, c, 3, 3, dtype=dtype)
    attrs = (("groups", 1), ("output_mask", (True, True, False)), *SAME_SIZE)
    return Op("aten.convolution_backward", (image, image, weight), (image, weight), attrs)


def _attention(b: int, c: int, n: int, dtype: str) -> Op:
    heads = tensor(b, 4, n, c, dtype=dtype)
    lse = tensor(b, 4, n)
    attrs = (("dropout_p", 0.0), ("is_causal", True))
    name = "aten._scaled_dot_product_flash_attention"
    return Op(name, (heads, heads, heads), (heads, lse), attrs)


def _lstm(b: int, c: int, n: int, dtype: str) -> Op:
    states = tensor(1, b, c, dtype=dtype), tensor(1, b, c, dtype=dtype)
    weights = tuple(tensor(4 * c, c, dtype=dtype) for _ in range(2))
    attrs = (("mode", 2), ("hidden_size", c), ("num_layers", 1), ("bidirectional", False))
    sequence = tensor(n, b, c, dtype=dtype)
    return Op("aten._cudnn_rnn", (sequence, *weights, *states), (sequence, *states), attrs)


def _foreach(b: int, c: int, n: int, dtype: str) -> Op:
    many = tuple(tensor(b, c, dtype=dtype) for _ in range(n))
    return Op("aten._foreach_add_", many * 2, many)


def _adam(b: int, c: int, n: int, dtype: str) -> Op:
    many = tuple(tensor(b, c, dtype=dtype) for _ in range(n))
    return Op("aten._fused_adamw_", many * 4, many * 3)


def _bmm(b: int, c: int, n: int, dtype: str) -> Op:
    square = tensor(b, n, n, dtype=dtype)
    return Op("aten.bmm", (tensor(b, n, c, dtype=dtype), tensor(b, c, n, dtype=dtype)), (square,))


def _addmm(b: int, c: int, n: int, dtype: str) -> Op:
    operands = tensor(n, dtype=dtype), tensor(b, c, dtype=dtype), tensor(c, n, dtype=dtype)
    return Op("aten.addmm", operands, (tensor(b, n, dtype=dtype),))


def _norm(b: int, c: int, n: int, dtype: str) -> Op:
    image, channel = tensor(b, c, n, dtype=dtype), tensor(c)
    inputs = image, channel, channel
    return Op("aten.native_layer_norm", inputs, (image, tensor(b), tensor(b)))


def _same(name: str) -> Maker:
    def make(b: int, c: int, n: int, dtype: str) -> Op:
        whole = tensor(b, c, n, dtype=dtype)
        return Op(name, (whole,), (whole,))

    return make


def _embedding(b: int, c: int, n: int, dtype: str) -> Op:
    table, rows = tensor(1000, c, dtype=dtype), tensor(b, n, dtype="int64")
    return Op("aten.embedding", (table, rows), (tensor(b, n, c, dtype=dtype),))


def _add(b: int, c: int, n: int, dtype: str) -> Op:
    whole = tensor(b, c, n, dtype=dtype)
    return Op("aten.add.Tensor", (whole, whole), (whole,))


MAKERS: dict[str, Maker] = {
    "mm": lambda b, c, n, dtype: mm(b, c, n, dtype),
    "mm in tf32": lambda b, c, n, _: mm(b, c, n, precision="tf32"),
    "addmm": _addmm,
    "bmm": _bmm,
    "convolution": _conv,
    "depthwise": lambda b, c, n, dtype: _conv(b, c, n, dtype, groups=c),
    "convolution backward": _conv_backward,
    "attention": _attention,
    "lstm": _lstm,
    "relu": _same("aten.relu"),
    "add": _add,
    "softmax": _same("aten._softmax"),
    "layer norm": _norm,
    "sum": _same("aten.sum"),
    "embedding": _embedding,
    "clone": _same("aten.clone"),
    "fill": _same("aten.zero_"),
    "dropout": _same("aten.native_dropout"),
    "foreach": _foreach,
    "fused adam": _adam,
    "copy to the GPU": lambda b, c, n, _: copy_to_gpu(b, c, n),
}

sizes = st.integers(1, 4096)
small = st.integers(1, 64)
dtypes = st.sampled_from(["float32", "float16", "bfloat16", "float64", "float8_e4m3fn", "int8"])
gpus = st.sampled_from(GPUS)


@st.composite
def ops(draw: Any) -> Op:
    """An op of any kind, size and type; a third of them in float32, which all predictors know."""
    maker = MAKERS[draw(st.sampled_from(sorted(MAKERS)))]
    return maker(draw(sizes), draw(small), draw(small), draw(dtypes | st.just("float32")))


NOMINAL = [rate for rate in RATES if rate not in ("memory_bytes_per_s", "fp32_flops")]
"""The rates that a device file may leave out."""
changes = st.dictionaries(st.sampled_from(RATES), st.floats(0.1, 10), max_size=4)
gains = st.dictionaries(st.sampled_from(RATES), st.floats(1, 20), min_size=1)
losses = st.sets(st.sampled_from(NOMINAL), max_size=2)


@st.composite
def devices(draw: Any) -> Device:
    """A shipped GPU with some of its rates changed and some unknown."""
    gpu = with_rates(draw(gpus), draw(changes))
    lost: dict[str, Any] = dict.fromkeys(draw(losses))
    return dataclasses.replace(gpu, **lost)


KERNEL_NAMES = (
    *("sgemm_128x64_nn", "vectorized_elementwise_kernel", "fused_attention_kernel"),
    *("Memset (Device)", "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pinned)"),
    "ncclDevKernel_AllReduce_Sum_f32",
)
kernels = st.builds(
    Kernel,
    name=st.sampled_from(KERNEL_NAMES),
    seconds=st.just(0.0) | st.floats(1e-7, 1.0),
    grid=st.none() | st.tuples(st.integers(1, 1 << 16), st.just(1), st.just(1)),
    block=st.none() | st.tuples(st.sampled_from((32, 128, 256, 1024)), st.just(1), st.just(1)),
    registers=st.none() | st.integers(16, 255),
    shared_bytes=st.none() | st.integers(0, 48 << 10),
    flops=st.none() | st.floats(0, 1e12),
    dram_bytes=st.none() | st.floats(0, 1e9),
)
phases = st.sampled_from(list(Phase))


@st.composite
def calls(draw: Any) -> Call:
    """A measured call of any op; a profiler may know no shapes, or have seen no kernel."""
    op = draw(ops())
    if draw(st.booleans()):
        op = Op(op.name, (), ())
    return Call(op, draw(phases), kernels=tuple(draw(st.lists(kernels, max_size=3))))
