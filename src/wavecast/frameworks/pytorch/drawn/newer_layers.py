"""Layers of newer networks with random sizes, where predictions were off.

Grouped, depthwise, dilated and 3-d convolutions, norms in channels-last, bags of embeddings,
message passing, recurrent layers in TF32, and what people write out by hand: rotary positions,
norms, soft-capped scores and Newton-Schulz iterations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavecast.frameworks.pytorch.drawn.drawing import LARGEST, Layer, ShapeDraw, TooLarge, through
from wavecast.frameworks.pytorch.drawn.written_out import orthogonal, rotated, scaled

MOST_FLOP = 2e11


def _few(flop: float) -> None:
    if flop > MOST_FLOP:
        raise TooLarge


def _convolved(
    draw: ShapeDraw, batch: int, channels: int, filters: int, side: int, kernel: int,
    stride: int = 1, groups: int = 1, dilation: int = 1,
) -> Layer:  # fmt: skip
    outside = -(-side // stride)
    _few(2.0 * batch * outside**2 * filters * channels / groups * kernel**2)
    if batch * max(channels * side**2, filters * outside**2) > LARGEST // 2:
        raise TooLarge
    image = draw.tensor(batch, channels, side, side)
    weight = draw.tensor(filters, channels // groups, kernel, kernel)
    padding = dilation * (kernel // 2)
    run = partial(F.conv2d, image, weight, None, stride, padding, dilation, groups)
    return through(run, image, weight)


def depthwise(draw: ShapeDraw) -> Layer:
    """A depthwise convolution of mobile networks, of ConvNeXt or of a mixing transformer."""
    pick = draw.random
    side = pick.choice((7, 8, 14, 14, 16, 28, 28, 32, 56, 56, 64, 112))
    widths = (32, 40, 64, 80, 96, 112, 144, 160, 192, 240, 256, 320, 384, 480, 512, 640, 672, 768,
              960, 1024, 1152, 1536, 1824, 2048)  # fmt: skip
    channels = pick.choice([width for width in widths if width * side <= 12_000])
    kernel = pick.choices((3, 5, 7, 9), (50, 22, 23, 5))[0]
    stride = 2 if side >= 14 and pick.random() < 0.15 else 1
    batch = pick.choice((4, 8, 16, 32, 32, 64, 64, 128))
    return _convolved(draw, batch, channels, channels, side, kernel, stride, channels)


def grouped(draw: ShapeDraw) -> Layer:
    """A grouped convolution of ResNeXt or RegNet."""
    pick = draw.random
    side = pick.choice((7, 7, 14, 14, 28, 28, 56, 56, 112))
    width = pick.choice((4, 8, 8, 16, 16, 24, 24, 32, 40, 48, 56, 64, 112, 168))
    counts = [n for n in (2, 4, 6, 8, 9, 12, 16, 18, 27, 32, 32, 48, 64) if n * width <= 2560]
    count = pick.choice([n for n in counts if n * width * side <= 30_000] or [2])
    stride = 2 if side >= 14 and pick.random() < 0.2 else 1
    channels, batch = count * width, pick.choice((4, 8, 16, 32, 32, 64, 64, 128))
    return _convolved(draw, batch, channels, channels, side, 3, stride, count)


def dilated(draw: ShapeDraw) -> Layer:
    """A dilated convolution of a segmentation network."""
    pick = draw.random
    side, kernel = pick.choice((28, 32, 33, 40, 56, 64, 65)), 3
    rate = pick.choice((2, 2, 4, 4, 6, 12, 18, 24, 36))
    channels = pick.choice((64, 128, 256, 256, 512, 512, 960, 1024, 2048))
    filters = pick.choice((channels, 256, 512)) if channels >= 256 else channels
    groups = 1
    if pick.random() < 0.2:
        filters = groups = channels
    return _convolved(
        draw, pick.choice((1, 2, 4, 8, 8, 16)), channels, filters, side, kernel, 1, groups, rate
    )


def pointwise_convolution(draw: ShapeDraw) -> Layer:
    """A 1 x 1 or plain convolution of such networks, with their odd widths."""
    pick = draw.random
    side = pick.choice((7, 14, 14, 28, 28, 56, 56, 112))
    widths = [w for w in (24, 40, 48, 64, 96, 112, 160, 192, 232, 256, 320, 384, 448, 512, 784, 896,
                          1024, 1152, 1536, 2016, 2048) if w * side <= 30_000]  # fmt: skip
    channels, filters = pick.choice(widths), pick.choice(widths)
    batch = pick.choice((8, 16, 32, 32, 64, 128))
    return _convolved(draw, batch, channels, filters, side, pick.choice((1, 1, 1, 3)))


def video(draw: ShapeDraw) -> Layer:
    """A 3-d convolution, whole or factored into space and time."""
    pick = draw.random
    kernel = pick.choice(((1, 3, 3), (3, 1, 1), (3, 1, 1), (3, 3, 3), (1, 1, 1)))
    frames, side = pick.choice((4, 8, 8, 16, 16)), pick.choice((7, 14, 28, 28, 56, 56, 112))
    channels = pick.choice([c for c in (45, 64, 64, 128, 144, 230, 256, 288, 460, 512, 576, 921)
                            if c * side <= 9000])  # fmt: skip
    filters = pick.choice((channels, channels, 64, 128, 144, 230, 256))
    batch, stride = pick.choice((1, 2, 4, 8, 16)), pick.choice((1, 1, 1, 2))
    size = kernel[0] * kernel[1] * kernel[2]
    _few(2.0 * batch * frames * side**2 * channels * filters * size / stride**3)
    if batch * frames * side**2 * max(channels, filters) > LARGEST // 2:
        raise TooLarge
    image = draw.tensor(batch, channels, frames, side, side)
    weight = draw.tensor(filters, channels, *kernel)
    padding = tuple(k // 2 for k in kernel)
    strides = tuple(stride if k > 1 else 1 for k in kernel)
    return through(partial(F.conv3d, image, weight, None, strides, padding), image, weight)


def sound(draw: ShapeDraw) -> Layer:
    """A 1-d convolution of a speech network: strided, or depthwise with a long kernel."""
    pick = draw.random
    batch, channels = pick.choice((4, 8, 16, 32)), pick.choice((80, 144, 256, 384, 512, 512, 768))
    if pick.random() < 0.5:
        length, kernel = pick.choice((100, 250, 400, 800)), pick.choice((9, 15, 31, 31))
        image, weight = draw.tensor(batch, channels, length), draw.tensor(channels, 1, kernel)
        run = partial(F.conv1d, image, weight, None, 1, kernel // 2, 1, channels)
        return through(run, image, weight)
    length, (kernel, stride) = pick.choice((400, 1600, 3200)), pick.choice(((3, 2), (2, 2), (3, 1)))
    image, weight = draw.tensor(batch, channels, length), draw.tensor(channels, channels, kernel)
    _few(2.0 * batch * length / stride * channels**2 * kernel)
    return through(partial(F.conv1d, image, weight, None, stride, 1), image, weight)


def image_norm(draw: ShapeDraw) -> Layer:
    """A group, batch or layer norm of an image, or a global response norm."""
    pick = draw.random
    side = pick.choice((7, 8, 14, 16, 28, 32, 32, 56, 64, 64, 128))
    channels = pick.choice([c for c in (32, 64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1280)
                            if c * side <= 33_000])  # fmt: skip
    x = draw.tensor(pick.choice((1, 2, 4, 8, 16, 32, 64)), channels, side, side)
    form = pick.choices(("group", "batch", "layer", "response"), (50, 20, 15, 15))[0]
    same = replace(draw, precision="fp32") if form == "batch" or pick.random() < 0.6 else draw
    weight, bias = same.tensor(channels), same.tensor(channels)
    if form == "group":
        whole = x if same is draw else x.float().detach().requires_grad_()
        groups = pick.choice([n for n in (8, 16, 32, 32) if channels % n == 0])
        return through(partial(F.group_norm, whole, groups, weight, bias), whole, weight, bias)
    if form == "batch":
        mean, var = torch.zeros_like(weight).detach(), torch.ones_like(weight).detach()
        run = partial(F.batch_norm, x, mean, var, weight, bias, training=True)
        return through(run, x, weight, bias)
    if form == "response":
        return through(lambda: _response(x.permute(0, 2, 3, 1), weight, bias), x, weight, bias)
    whole = x if same is draw else x.float().detach().requires_grad_()
    return through(lambda: _last_norm(whole, weight, bias), whole, weight, bias)


def _response(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    size = torch.linalg.vector_norm(x, ord=2, dim=(1, 2), keepdim=True)
    return weight * (x * (size / (size.mean(-1, keepdim=True) + 1e-6))) + bias + x


def _last_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    y = F.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],), weight, bias)
    return y.permute(0, 3, 1, 2)


def bags(draw: ShapeDraw) -> Layer:
    """A bag of embeddings, as recommenders have many."""
    pick = draw.random
    rows, width = (
        pick.choice((1000, 10_000, 100_000, 1_000_000)),
        pick.choice((16, 32, 64, 64, 128)),
    )
    table = replace(draw, precision="fp32").tensor(rows, width)
    count, each = pick.choice((256, 2048, 4096, 8192, 32_768)), pick.choice((1, 1, 2, 5, 10, 30))
    where = (torch.rand(count, each, device=draw.device) ** pick.choice((1, 2)) * rows).long()
    mode = pick.choice(("sum", "sum", "mean"))
    if pick.random() < 0.5:
        return through(partial(F.embedding_bag, where, table, mode=mode), table)
    starts = torch.arange(0, count * each, each, device=draw.device)
    return through(partial(F.embedding_bag, where.flatten(), table, starts, mode=mode), table)


def edges(draw: ShapeDraw) -> Layer:
    """Messages along the edges of a graph: gathered, or added up where they arrive."""
    pick = draw.random
    nodes, width = pick.choice((2000, 10_000, 50_000, 170_000)), pick.choice((16, 32, 64, 128, 256))
    count = int(nodes * pick.choice((2, 5, 7, 14, 30)))
    if count * width > LARGEST // 2:
        raise TooLarge
    x, sent = draw.tensor(nodes, width), draw.tensor(count, width)
    where = torch.randint(0, nodes, (count,), device=draw.device)
    if pick.random() < 0.5:
        where = where.sort().values
    wide = where[:, None].expand(-1, width)
    empty = torch.zeros_like(x).detach()
    forms: tuple[Layer, ...] = (
        through(lambda: empty.clone().index_add_(0, where, sent), sent),
        through(lambda: x[where], x),
        through(lambda: x.index_select(0, where), x),
        through(lambda: empty.scatter_add(0, wide, sent), sent),
        through(lambda: x.gather(0, wide), x),
        through(lambda: empty.scatter_reduce(0, wide, sent, "amax", include_self=False), sent),
    )
    return pick.choice(forms)


def recurrence(draw: ShapeDraw) -> Layer:
    """An LSTM or GRU of usual sizes."""
    pick = draw.random
    cell = pick.choice((nn.LSTM, nn.LSTM, nn.GRU))
    hidden = pick.choice((128, 256, 512, 512, 650, 1024, 1024, 1500))
    steps, batch = pick.choice((20, 35, 50, 64, 100, 128)), pick.choice((8, 20, 32, 64, 64, 128))
    layers, both = pick.choice((1, 1, 2, 2, 3)), pick.random() < 0.25
    inputs = pick.choice((hidden, hidden, 80, 256))
    dtype = torch.float16 if draw.precision == "bf16" else draw.dtype
    net = cell(inputs, hidden, layers, bidirectional=both, device=draw.device, dtype=dtype)
    x = torch.randn(steps, batch, inputs, device=draw.device, dtype=dtype, requires_grad=True)
    return through(partial(net, x), x, *net.parameters())


def written_out(draw: ShapeDraw) -> Layer:
    """Rotary positions, a norm or soft-capped scores, as people write them out."""
    pick = draw.random
    batch, heads = pick.choice((1, 2, 4, 8, 16)), pick.choice((4, 8, 12, 16, 32))
    length, head = pick.choice((128, 256, 512, 1024, 2048)), pick.choice((64, 64, 128))
    form = pick.choice(("rotary", "rotary", "norm", "capped", "scores", "gated"))
    if form == "norm":
        x = draw.tensor(batch, length, pick.choice((512, 768, 1024, 2048, 4096)))
        weight = draw.tensor(x.shape[-1])
        return through(partial(scaled, x, weight), x, weight)
    if form == "gated":
        x = draw.tensor(batch, length, pick.choice((1024, 2816, 4096, 5632)))
        y = x.detach().clone().requires_grad_()
        return through(lambda: F.silu(x) * y, x, y)
    if form in ("capped", "scores"):
        shape = (batch, heads, length, length) if form == "scores" else (batch, length, 32_000)
        if torch.Size(shape).numel() > LARGEST:
            raise TooLarge
        x = draw.tensor(*shape)
        if form == "capped":
            return through(lambda: 30.0 * torch.tanh(x / 30.0), x)
        mask = draw.tensor(length, length, grad=False)
        return through(lambda: torch.softmax((x * 0.125 + mask).float(), -1).to(x.dtype), x)
    if batch * heads * length * head > LARGEST // 4:
        raise TooLarge
    x = draw.tensor(batch, length, heads, head).detach().transpose(1, 2).requires_grad_()
    cos, sin = (draw.tensor(length, head, grad=False) for _ in range(2))
    return through(partial(rotated, x, cos, sin), x)


def newton_schulz(draw: ShapeDraw) -> Layer:
    """Newton-Schulz iterations of one matrix, without a gradient."""
    pick = draw.random
    sizes = (128, 256, 512, 768, 1024, 1536, 2048, 2816, 3072, 4096)
    matrix = torch.randn(
        pick.choice(sizes), pick.choice(sizes), device=draw.device, dtype=draw.dtype
    )
    return partial(orthogonal, matrix, 2)


def windows(draw: ShapeDraw) -> Layer:
    """Windows of an image as Swin cuts them, with attention's bias, or a resized image."""
    pick = draw.random
    batch, side = pick.choice((2, 4, 8, 16, 32)), pick.choice((14, 28, 56, 64))
    width, window = pick.choice((64, 96, 128, 192, 384)), 7 if side % 7 == 0 else 8
    if pick.random() < 0.5:
        x = draw.tensor(batch, side, side, width)
        count = side // window
        cut = (batch, count, window, count, window, width)
        return through(lambda: x.view(cut).permute(0, 1, 3, 2, 4, 5).contiguous(), x)
    x = draw.tensor(batch, width, side, side)
    size = side * pick.choice((2, 4)) if width < 300 else 2 * side
    run = partial(F.interpolate, x, size=size, mode="bilinear", align_corners=False)
    return through(run, x)


NEWER: tuple[tuple[Callable[[ShapeDraw], Layer], int], ...] = (
    *((depthwise, 17), (grouped, 15), (pointwise_convolution, 9), (dilated, 7), (video, 5)),
    *((sound, 4), (image_norm, 12), (bags, 6), (edges, 8), (recurrence, 4), (written_out, 8)),
    *((newton_schulz, 3), (windows, 4)),
)
"""Layers and the weights with which they are drawn."""
