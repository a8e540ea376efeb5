"""Typical layers of networks with random sizes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Random sizes of layers, and how a layer runs forward and backward.


DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
LARGEST = 2**28
"""The most elements of a tensor."""


@dataclass(frozen=True)
class ShapeDraw:
    """The random source of a layer's sizes, its precision and its layout."""

    random: random.Random
    precision: str
    layout: str
    device: str = "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the layer's tensors."""
        return DTYPES[self.precision]

    def usual(self, low: float, high: float) -> int:
        """A random size between two limits, uniform in the logarithm and mostly a round number."""
        size = low * (high / low) ** self.random.random()
        step = self.random.choice((1, 8, 8, 16, 32, 64))
        return max(int(size / step + 0.5) * step, 1, int(low))

    def tensor(self, *shape: int, grad: bool = True) -> Tensor:
        """A random tensor in the drawn dtype and layout."""
        if not 0 < torch.Size(shape).numel() <= LARGEST:
            raise TooLarge
        tensor = torch.randn(shape, device=self.device, dtype=self.dtype)
        if self.layout == "nhwc" and len(shape) == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor.requires_grad_(grad)


class TooLarge(Exception):
    """The drawn sizes make a layer that is too large; draw others."""


Layer = Callable[[], Any]
"""Runs the layer once, forward and backward."""


def through(forward: Callable[[], Any], *leaves: Tensor) -> Layer:
    """Runs the forward pass, then the backward pass from a random gradient of the output."""
    grads: list[Tensor] = []

    def run() -> None:
        out = forward()
        out = out[0] if isinstance(out, tuple) else out
        if not grads:
            grads.append(torch.randn_like(out) if out.dim() else torch.ones_like(out))
        out.backward(grads[0])
        for leaf in leaves:
            leaf.grad = None

    return run


MOST_FLOP = {"fp32": 1.5e11, "tf32": 6e11, "bf16": 1e12, "fp16": 1e12}
"""The most floating-point operations of a layer's forward pass, by precision."""


def _need(flop: float, draw: ShapeDraw) -> None:
    if not flop <= MOST_FLOP[draw.precision]:
        raise TooLarge


@dataclass(frozen=True)
class Filters:
    """The sizes of a convolution."""

    channels: int
    filters: int
    kernel: int
    stride: int = 1
    groups: int = 1
    dilation: int = 1
    dims: int = 2
    first: bool = False
    """Whether it is the first layer of a network, whose image needs no gradient."""
    up: bool = False
    """Whether it is transposed."""


def _filters(draw: ShapeDraw, form: str, side: int) -> tuple[Filters, int]:
    """The filters of a form, such as "depthwise", and the side of their image."""
    pick = draw.random
    most = 2048 if side <= 32 else 512
    channels, filters = draw.usual(16, most), draw.usual(16, most)
    if pick.random() < 0.5:
        filters = max(round(channels * pick.choice((0.25, 0.5, 1, 1, 1, 2, 4))), 1)
    kernel = pick.choices((3, 5, 7, 2, 4), (70, 12, 8, 4, 6))[0]
    plain = Filters(channels, filters, kernel, pick.choices((1, 2), (75, 25))[0])
    match form:
        case "point":
            return replace(plain, kernel=1), side
        case "grouped":
            width = pick.choice((4, 8, 16, 24, 32, 48, 64, 112))
            groups = max(round(channels / width), 2)
            return replace(
                plain, channels=groups * width, filters=groups * width, groups=groups
            ), side
        case "depthwise":
            return replace(plain, filters=channels, groups=channels), side
        case "stem":
            channels, filters = pick.choice((1, 3, 3, 3, 4)), pick.choice((16, 24, 32, 48, 64, 96))
            kernel, stride = pick.choice(((3, 2), (3, 1), (7, 2), (11, 4), (5, 1)))
            stem = Filters(channels, filters, kernel, stride, first=True)
            return stem, pick.choice((128, 160, 224, 299, 384))
        case "patch":
            kernel, channels = pick.choice((2, 4, 8, 14, 16)), pick.choice((3, 3, 64, 128, 256))
            patch = Filters(channels, filters, kernel, kernel, first=channels == 3)
            return patch, kernel * pick.choice((7, 14, 16, 28))
        case "up":
            kernel, stride = pick.choice(((4, 2), (2, 2), (3, 2)))
            return replace(plain, kernel=kernel, stride=stride, up=True), side
        case "1d" | "3d":
            few = replace(plain, channels=min(channels, 256), filters=min(filters, 256))
            return replace(few, dims=int(form[0])), min(side, 40) if form == "3d" else side * 16
    return replace(plain, dilation=pick.choices((1, 2), (95, 5))[0]), side


def convolution(draw: ShapeDraw) -> Layer:
    """A convolution: plain, 1 x 1, grouped, depthwise, stem, patches, transposed, 1-d or 3-d."""
    pick = draw.random
    weights = {"plain": 30, "point": 28, "grouped": 12, "depthwise": 14, "stem": 4, "patch": 3}
    weights |= {"up": 4, "1d": 3, "3d": 2}
    side = pick.choice((4, 7, 7, 8, 10, 14, 14, 16, 17, 20, 28, 28, 32, 35, 40, 56, 56, 64, 80))
    side = pick.choice((side, side, side, 2 * side, side + pick.randrange(3)))
    it, side = _filters(draw, pick.choices(list(weights), list(weights.values()))[0], side)
    side, batch = max(side, it.kernel * it.dilation), draw.usual(1, 256)
    image = draw.tensor(batch, it.channels, *(side,) * it.dims, grad=not it.first)
    shape = (it.channels, it.filters) if it.up else (it.filters, it.channels // it.groups)
    weight = draw.tensor(*shape, *(it.kernel,) * it.dims)
    bias = draw.tensor(it.filters) if pick.random() < 0.3 else None
    outside = (side * it.stride if it.up else side // it.stride) ** it.dims
    if not batch * it.filters * outside <= LARGEST:
        raise TooLarge
    _need(2.0 * batch * min(outside, side**it.dims) * weight.numel(), draw)
    padding = 0 if it.kernel == it.stride else it.dilation * (it.kernel // 2)
    leaves = (image, weight) if bias is None else (image, weight, bias)
    if it.up:
        run = partial(F.conv_transpose2d, image, weight, bias, it.stride, padding)
    else:
        plain = (F.conv1d, F.conv2d, F.conv3d)[it.dims - 1]
        run = partial(plain, image, weight, bias, it.stride, padding, it.dilation, it.groups)
    return through(run, *leaves)


def linear(draw: ShapeDraw) -> Layer:
    """A linear layer with or without bias, from few rows to many."""
    rows, inwards, out = draw.usual(8, 32768), draw.usual(16, 8192), draw.usual(16, 8192)
    if draw.random.random() < 0.08:
        out = draw.random.choice((1000, 21843, 30522, 32000, 50257))
    _need(2.0 * rows * inwards * out, draw)
    image, weight = draw.tensor(rows, inwards), draw.tensor(out, inwards)
    bias = draw.tensor(out) if draw.random.random() < 0.6 else None
    leaves = (image, weight) if bias is None else (image, weight, bias)
    if not rows * out <= LARGEST:
        raise TooLarge
    return through(partial(F.linear, image, weight, bias), *leaves)


def batched(draw: ShapeDraw) -> Layer:
    """A batched matmul, as in attention without a fused kernel."""
    batch, m, n, k = draw.usual(4, 1024), draw.usual(16, 1024), draw.usual(16, 1024), 0
    k = draw.random.choice((32, 64, 64, 80, 128, draw.usual(16, 1024)))
    _need(2.0 * batch * m * n * k, draw)
    if not batch * m * n <= LARGEST:
        raise TooLarge
    a, b = draw.tensor(batch, m, k), draw.tensor(batch, k, n)
    return through(partial(torch.bmm, a, b), a, b)


def attention(draw: ShapeDraw) -> Layer:
    """Attention with the kernel that torch chooses; a tenth of those not causal have a mask."""
    pick = draw.random
    batch, heads = draw.usual(1, 64), pick.choice((1, 4, 6, 8, 12, 12, 16, 16, 20, 24, 32))
    width = pick.choice((32, 40, 64, 64, 64, 80, 96, 128, 128))
    queries = pick.choice((16, 49, 64, 77, 128, 197, 256, 384, 512, 577, 1024, 2048, 4096))
    keys = queries if pick.random() < 0.85 else pick.choice((32, 77, 128, 512))
    causal = keys == queries and pick.random() < 0.4
    _need(4.0 * batch * heads * queries * keys * width, draw)
    q, k, v = (draw.tensor(batch, n, heads, width).transpose(1, 2) for n in (queries, keys, keys))
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    mask = None
    if not causal and pick.random() < 0.1:
        if not batch * queries * keys <= LARGEST:
            raise TooLarge
        mask = draw.tensor(batch, 1, queries, keys, grad=False)
    run = partial(F.scaled_dot_product_attention, q, k, v, mask, is_causal=causal)
    return through(run, q, k, v)


def recurrent(draw: ShapeDraw) -> Layer:
    """An LSTM, GRU or plain recurrent layer of cuDNN."""
    pick = draw.random
    cell = pick.choices((nn.LSTM, nn.GRU, nn.RNN), (60, 30, 10))[0]
    steps, batch = draw.usual(4, 300), draw.usual(2, 256)
    hidden = pick.choice((64, 128, 200, 256, 320, 512, 512, 650, 800, 1024, 1024, 1500, 2048))
    inputs = pick.choice((hidden, hidden, draw.usual(32, 2048)))
    layers, both = pick.choice((1, 1, 1, 2, 2, 3, 4)), pick.random() < 0.25
    _need(40.0 * steps * batch * hidden * (hidden + inputs) * layers * (1 + both), draw)
    dtype = torch.float16 if draw.precision == "bf16" else draw.dtype  # as under autocast
    net = cell(inputs, hidden, layers, bidirectional=both, device=draw.device, dtype=dtype)
    x = torch.randn(steps, batch, inputs, device=draw.device, dtype=dtype, requires_grad=True)
    return through(partial(net, x), x, *net.parameters())


def _image(draw: ShapeDraw) -> Tensor:
    side = draw.random.choice((7, 8, 14, 16, 17, 28, 32, 35, 56, 64, 112, 128))
    return draw.tensor(draw.usual(1, 256), draw.usual(16, 2048), side, side)


def _rows(draw: ShapeDraw, widest: float = 8192) -> Tensor:
    return draw.tensor(draw.usual(16, 65536), draw.usual(16, widest))


def norm(draw: ShapeDraw) -> Layer:
    """A batch, layer, group or RMS norm."""
    form = draw.random.choices(("batch", "layer", "group", "rms"), (45, 30, 17, 8))[0]
    scale = replace(draw, precision="fp32") if form == "batch" else draw
    if form in ("layer", "rms"):
        x = _rows(draw)
        weight, bias = draw.tensor(x.shape[1]), draw.tensor(x.shape[1])
        if form == "rms":
            return through(partial(F.rms_norm, x, (x.shape[1],), weight), x, weight)
        return through(partial(F.layer_norm, x, (x.shape[1],), weight, bias), x, weight, bias)
    x = _image(draw)
    weight, bias = scale.tensor(x.shape[1]), scale.tensor(x.shape[1])
    if form == "batch":
        mean, var = torch.zeros_like(weight), torch.ones_like(weight)
        run = partial(F.batch_norm, x, mean.detach(), var.detach(), weight, bias, training=True)
        return through(run, x, weight, bias)
    groups = next((n for n in (32, 16, 8, 4) if x.shape[1] % n == 0), 1)
    return through(partial(F.group_norm, x, groups, weight, bias), x, weight, bias)


def pooling(draw: ShapeDraw) -> Layer:
    """Max, mean or adaptive pooling, or upsampling."""
    x, pick = _image(draw), draw.random
    kernel, stride, padding = pick.choice(((2, 2, 0), (3, 2, 1), (3, 1, 1), (3, 2, 0), (5, 3, 0)))
    form = pick.choices(("max", "mean", "point", "resized"), (40, 30, 10, 20))[0]
    match form:
        case "max":
            run = partial(F.max_pool2d, x, kernel, stride, padding)
        case "mean":
            run = partial(F.avg_pool2d, x, kernel, stride, padding)
        case "point":
            run = partial(F.adaptive_avg_pool2d, x, pick.choice((1, 1, 7)))
        case _:
            if not 4 * x.numel() <= LARGEST:
                raise TooLarge
            mode = pick.choice(("nearest", "bilinear"))
            run = partial(F.interpolate, x, scale_factor=2, mode=mode)
    return through(run, x)


def lookup(draw: ShapeDraw) -> Layer:
    """An embedding, an embedding bag, index_select or index_add."""
    pick = draw.random
    table = replace(draw, precision="fp32").tensor(draw.usual(500, 2e6), draw.usual(16, 2048))
    count = draw.usual(64, 100_000)
    if not count * table.shape[1] <= LARGEST:
        raise TooLarge
    # Frequent words repeat: the square of a uniform number favours small indices.
    where = (torch.rand(count, device=draw.device) ** 2 * table.shape[0]).long()
    match pick.choice(("embedding", "embedding", "bag", "select", "add")):
        case "embedding":
            return through(partial(F.embedding, where, table), table)
        case "bag":
            bags = torch.arange(0, count, pick.choice((1, 1, 4, 20)), device=draw.device)
            return through(partial(F.embedding_bag, where, table, bags, mode="sum"), table)
        case "select":
            return through(partial(table.index_select, 0, where), table)
    new = replace(draw, precision="fp32").tensor(count, table.shape[1])
    return through(partial(table.index_add, 0, where, new), table, new)


def loss(draw: ShapeDraw) -> Layer:
    """A softmax, or the cross entropy of a classifier or language model."""
    rows, classes = draw.usual(16, 16384), draw.usual(10, 60_000)
    x = draw.tensor(rows, classes)
    if draw.random.random() < 0.5:
        return through(partial(torch.softmax, x, -1), x)
    right = torch.randint(classes, (rows,), device=draw.device)
    return through(partial(F.cross_entropy, x.float().detach().requires_grad_(), right))


def pointwise(draw: ShapeDraw) -> Layer:
    """An activation, sum, product, dropout, cast, transposing copy, concatenation or reduction."""
    pick = draw.random
    x = _image(draw) if pick.random() < 0.5 else _rows(draw, 65536)
    other = x.detach().clone().requires_grad_()
    single = (F.relu, F.gelu, F.silu, torch.tanh, torch.sigmoid, F.hardswish, torch.exp)
    layers: Sequence[Layer] = (
        through(partial(pick.choice(single), x), x),
        through(partial(torch.add, x, other), x, other),
        through(partial(torch.mul, x, other), x, other),
        through(partial(F.dropout, x, 0.1), x),
        through(partial(x.to, torch.float32 if draw.dtype != torch.float32 else torch.bfloat16), x),
        through(lambda: x.transpose(0, 1).contiguous(), x),
        through(lambda: torch.cat((x, other), 1), x, other),
        through(partial(x.sum, pick.choice((0, 1))), x),
        through(partial(x.mean, -1), x),
    )
    return pick.choice(layers)


def optimizer(draw: ShapeDraw) -> Layer:
    """An optimizer step over a list of parameters of many sizes."""
    pick = draw.random
    sizes = [draw.usual(16, 4e6) for _ in range(draw.usual(8, 300))]
    weights = [torch.randn(n, device=draw.device, requires_grad=True) for n in sizes]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    make = pick.choice(
        (
            partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
            partial(torch.optim.SGD, lr=1e-3, momentum=0.9, weight_decay=1e-4),
            partial(torch.optim.Adam, lr=1e-6),
            partial(torch.optim.AdamW, lr=1e-6),
            partial(torch.optim.AdamW, lr=1e-6, fused=True),
        )
    )
    return partial(make(weights).step)


LAYER_WEIGHTS = (
    *((convolution, 42), (linear, 13), (batched, 4), (attention, 6), (recurrent, 5), (norm, 9)),
    *((pooling, 6), (lookup, 5), (loss, 2), (pointwise, 7), (optimizer, 1)),
)
