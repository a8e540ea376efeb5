"""Layers of newer networks with random sizes, whose shapes common layers do not cover.

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

from wavecast.frameworks.pytorch.drawn.network_layers import (
    LARGEST,
    Layer,
    ShapeDraw,
    TooLarge,
    through,
)

# What people write out by hand: a norm, rotary positions, Newton and Schulz's iteration.


def orthogonal(matrix: Tensor, rounds: int = 5) -> Tensor:
    """The nearest orthogonal matrix, nearly, in bfloat16."""
    x = matrix.bfloat16()
    turned = x.shape[0] > x.shape[1]
    x = x.T if turned else x
    x = x / (x.norm() + 1e-7)
    for _ in range(rounds):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if turned else x


def scaled(x: Tensor, scale: Tensor) -> Tensor:
    """Root-mean-square norm, written out."""
    whole = x.float()
    whole = whole * torch.rsqrt(whole.pow(2).mean(-1, keepdim=True) + 1e-6)
    return scale * whole.to(x.dtype)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, as transformers writes them."""
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return x * cos + torch.cat((-second, first), -1) * sin


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
    """A 1 x 1 or plain convolution with the odd widths of mobile and segmentation networks."""
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


# Attention with masks of long sequences, groups with long kernels, images unfolded or resized, rows
# added to few places, lists of an optimizer's tensors, and losses over large vocabularies.


_LENGTHS = (64, 128, 196, 197, 256, 384, 512, 577, 768, 1024, 1024, 1500, 2048, 2048, 4096)
MOST_SCORES = 2**31
"""The most scores of an attention, over all sequences and heads."""


def masked(draw: ShapeDraw) -> Layer:
    """Attention with a mask, a bias or none, of as many heads for the keys or fewer."""
    pick = draw.random
    batch, heads = pick.choice((1, 2, 4, 4, 8, 16, 32)), pick.choice((4, 8, 12, 16, 16, 32))
    length, head = pick.choice(_LENGTHS), pick.choice((32, 64, 64, 80, 96, 128, 128))
    if batch * heads * length**2 > MOST_SCORES:
        raise TooLarge
    of_keys = heads // pick.choice((1, 1, 1, 2, 4))
    q = draw.tensor(batch, length, heads, head).detach().transpose(1, 2).requires_grad_()
    k, v = (
        draw.tensor(batch, length, of_keys, head).detach().transpose(1, 2).requires_grad_()
        for _ in range(2)
    )
    form = pick.choices(("causal", "none", "bool", "added", "bias"), (20, 10, 40, 20, 10))[0]
    shape = (batch if pick.random() < 0.7 else 1, heads if form == "bias" else 1, length, length)
    mask = None
    if form == "bool":
        seen = torch.rand(shape, device=draw.device) < 0.8
        mask = seen | torch.eye(length, dtype=torch.bool, device=draw.device)
    elif form in ("added", "bias"):
        mask = draw.tensor(*shape, grad=form == "bias" and pick.random() < 0.3)
    drop = pick.choice((0.0, 0.0, 0.1))
    run = partial(F.scaled_dot_product_attention, q, k, v, mask, drop, form == "causal")
    return through(partial(run, enable_gqa=of_keys < heads), q, k, v)


def long_kernel(draw: ShapeDraw) -> Layer:
    """A convolution in groups over a sequence, as speech networks have for positions."""
    pick = draw.random
    batch, width = pick.choice((2, 4, 8, 12, 16, 24, 32)), pick.choice((512, 768, 768, 1024, 1280))
    kernel, groups = pick.choice((19, 31, 48, 64, 95, 128, 128, 128)), pick.choice((8, 16, 16, 16))
    x = draw.tensor(batch, width, pick.choice((49, 99, 199, 249, 299, 374, 499, 749, 999)))
    weight = draw.tensor(width, width // groups, kernel)
    return through(partial(F.conv1d, x, weight, None, 1, kernel // 2, 1, groups), x, weight)


def unfolded(draw: ShapeDraw) -> Layer:
    """An image unfolded into columns or folded from them, as mobile transformers have."""
    pick = draw.random
    batch, side = pick.choice((2, 4, 8, 16, 32, 64, 96)), pick.choice((8, 14, 16, 28, 32, 56))
    width, size = pick.choice((32, 64, 128, 192, 256, 384)), pick.choice((2, 2, 3, 4, 7))
    stride = size if side % size == 0 else 1
    columns = width * size**2 * ((side - size) // stride + 1) ** 2
    if batch * columns > LARGEST // 2:
        raise TooLarge
    x = draw.tensor(batch, width, side, side)
    if pick.random() < 0.6:
        return through(partial(F.unfold, x, size, stride=stride), x)
    y = F.unfold(x, size, stride=stride).detach().requires_grad_()
    return through(partial(F.fold, y, side, size, stride=stride), y)


def resized(draw: ShapeDraw) -> Layer:
    """A resized image, larger or smaller, also of a few points."""
    pick = draw.random
    batch, side = pick.choice((1, 2, 4, 8, 16, 32)), pick.choice((1, 2, 3, 7, 14, 16, 28, 32, 64))
    width, factor = pick.choice((32, 64, 128, 256, 384, 512)), pick.choice((0.5, 2, 2, 4, 8))
    size = max(int(side * factor), 1)
    if batch * width * max(size, side) ** 2 > LARGEST // 2:
        raise TooLarge
    mode = pick.choice(("bilinear", "bilinear", "bicubic", "nearest"))
    corners = {} if mode == "nearest" else {"align_corners": pick.random() < 0.3}
    x = draw.tensor(batch, width, side, side)
    return through(partial(F.interpolate, x, size=size, mode=mode, **corners), x)


def gathered(draw: ShapeDraw) -> Layer:
    """Rows fetched from a table, whose gradients are added to few places or many."""
    pick = draw.random
    rows, width = (
        pick.choice((4, 8, 32, 128, 2000, 50_000)),
        pick.choice((32, 128, 768, 2048, 4096)),
    )
    count = pick.choice((512, 2048, 4096, 16_384, 65_536))
    if count * width > LARGEST // 2:
        raise TooLarge
    table, sent = draw.tensor(rows, width), draw.tensor(count, width)
    where = torch.randint(0, rows, (count,), device=draw.device)
    empty = torch.zeros_like(table).detach()
    forms: tuple[Layer, ...] = (
        through(lambda: table[where], table),
        through(lambda: table.index_select(0, where), table),
        through(partial(F.embedding, where, table), table),
        through(lambda: empty.clone().index_add_(0, where, sent), sent),
        through(lambda: empty.clone().index_put_((where,), sent, accumulate=True), sent),
    )
    return pick.choice(forms)


def scored(draw: ShapeDraw) -> Layer:
    """A loss over a vocabulary, in the network's precision or in float32."""
    pick = draw.random
    tokens, words = (
        pick.choice((512, 1024, 2048, 4096, 8192, 16_384)),
        pick.choice((32, 1000, 21_841, 30_522, 32_000, 50_257, 128_256, 151_936)),
    )
    if tokens * words > LARGEST:
        raise TooLarge
    whole = draw if pick.random() < 0.3 else replace(draw, precision="fp32")
    x, goal = whole.tensor(tokens, words), torch.randint(0, words, (tokens,), device=draw.device)
    return through(partial(F.cross_entropy, x, goal), x)


def normed(draw: ShapeDraw) -> Layer:
    """A batch norm of an image or of features."""
    pick = draw.random
    side = pick.choice((1, 7, 7, 14, 14, 28, 56, 56, 112))
    widths = (24, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)
    channels = pick.choice([c for c in widths if c * side <= 15_000])
    batch = pick.choice((8, 16, 32, 64, 64, 96, 128))
    if batch * channels * side**2 > LARGEST // 2:
        raise TooLarge
    x = draw.tensor(batch, channels, side, side)
    whole = replace(draw, precision="fp32")
    weight, bias = whole.tensor(channels), whole.tensor(channels)
    mean, var = torch.zeros_like(weight).detach(), torch.ones_like(weight).detach()
    run = partial(F.batch_norm, x, mean, var, weight, bias, training=True)
    return through(run, x, weight, bias)


def updated(draw: ShapeDraw) -> Layer:
    """An optimizer's update of a list of tensors of mixed sizes."""
    pick = draw.random
    width, layers = pick.choice((192, 384, 512, 768, 1024, 2048)), pick.choice((2, 4, 6, 12, 24))
    shapes = ((width,), (width,), (3 * width, width), (4 * width, width), (width, 4 * width))
    if 11 * width**2 * layers > LARGEST:
        raise TooLarge
    dtype = draw.dtype if pick.random() < 0.3 else torch.float32
    tensors = [torch.randn(shape, device=draw.device, dtype=dtype) for shape in shapes * layers]
    for tensor in tensors:
        tensor.requires_grad_().grad = torch.randn_like(tensor)
    optimizers = (
        partial(torch.optim.AdamW, fused=True), partial(torch.optim.AdamW, foreach=True),
        partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True),
    )  # fmt: skip
    optimizer = pick.choice(optimizers)(tensors)

    def run() -> None:
        if clip:
            torch.nn.utils.clip_grad_norm_(tensors, 1.0)
        optimizer.step()

    clip = pick.random() < 0.4
    return run


ODD: tuple[tuple[Callable[[ShapeDraw], Layer], int], ...] = (
    *((masked, 30), (long_kernel, 14), (unfolded, 8), (resized, 12), (gathered, 12)),
    *((scored, 8), (normed, 8), (updated, 8)),
)
"""Layers and the weights with which they are drawn."""


# Layers of speech and segmentation networks: convolutions over sounds, resized images, patches,
# attention with a mask over sequences of odd lengths, and connectionist classification.


_SPEECH_LENGTHS = (99, 149, 249, 250, 299, 399, 499, 500, 749, 1500)


def wave(draw: ShapeDraw) -> Layer:
    """The first convolutions of a speech network, over the raw wave or the one before."""
    pick = draw.random
    batch, width = pick.choice((2, 4, 8, 12, 16, 24)), pick.choice((128, 256, 512, 512))
    if pick.random() < 0.4:
        samples, kernel, stride = pick.choice((16_000, 80_000, 160_000, 240_000)), 10, 5
        x, weight = draw.tensor(batch, 1, samples, grad=False), draw.tensor(width, 1, kernel)
        return through(partial(F.conv1d, x, weight, None, stride), weight)
    length = pick.choice((999, 1999, 3999, 7999, 15_999, 31_999))
    if batch * width * length > LARGEST // 2:
        raise TooLarge
    kernel = pick.choice((3, 3, 2))
    x, weight = draw.tensor(batch, width, length), draw.tensor(width, width, kernel)
    return through(partial(F.conv1d, x, weight, None, 2), x, weight)


def positions(draw: ShapeDraw) -> Layer:
    """A convolution in groups with a long kernel, which gives positions."""
    pick = draw.random
    batch, width = pick.choice((2, 4, 8, 12, 16, 24)), pick.choice((256, 384, 512, 768, 768, 1024))
    kernel, groups = pick.choice((19, 32, 64, 95, 128, 128)), pick.choice((4, 8, 16, 16))
    x = draw.tensor(batch, width, pick.choice(_SPEECH_LENGTHS))
    weight = draw.tensor(width, width // groups, kernel)
    return through(partial(F.conv1d, x, weight, None, 1, kernel // 2, 1, groups), x, weight)


def depthwise_sound(draw: ShapeDraw) -> Layer:
    """A depthwise convolution of a conformer."""
    pick = draw.random
    width, kernel = pick.choice((144, 256, 384, 512, 768, 1024)), pick.choice((3, 4, 9, 15, 31, 31))
    x = draw.tensor(pick.choice((2, 4, 8, 16, 24, 32)), width, pick.choice(_SPEECH_LENGTHS))
    weight = draw.tensor(width, 1, kernel)
    return through(partial(F.conv1d, x, weight, None, 1, kernel // 2, 1, width), x, weight)


def pointwise_sound(draw: ShapeDraw) -> Layer:
    """A convolution of one element, over a sequence as it is or a transposed one."""
    pick = draw.random
    widths = (144, 256, 384, 512, 768, 1024, 1536)
    batch, width, filters = (
        pick.choice((2, 4, 8, 16, 24, 32)),
        pick.choice(widths),
        pick.choice(widths),
    )
    length = pick.choice(_SPEECH_LENGTHS)
    x = draw.tensor(batch, width, length)
    if pick.random() < 0.5:
        x = draw.tensor(batch, length, width).detach().transpose(1, 2).requires_grad_()
    weight = draw.tensor(filters, width, 1)
    return through(partial(F.conv1d, x, weight), x, weight)


def resized_stages(draw: ShapeDraw) -> Layer:
    """An image that is resized, as between the stages of a segmentation network."""
    pick = draw.random
    batch, side = pick.choice((2, 4, 8, 16, 32)), pick.choice((1, 2, 3, 6, 7, 8, 14, 16, 32, 64))
    width, factor = pick.choice((32, 64, 128, 150, 256, 384, 512)), pick.choice((2, 2, 4, 8))
    if batch * width * (side * factor) ** 2 > LARGEST // 2:
        raise TooLarge
    mode = pick.choice(("bilinear", "bilinear", "nearest"))
    corners = {} if mode == "nearest" else {"align_corners": pick.random() < 0.2}
    x = draw.tensor(batch, width, side, side)
    return through(partial(F.interpolate, x, size=side * factor, mode=mode, **corners), x)


def patches(draw: ShapeDraw) -> Layer:
    """Patches of images and videos: convolutions that do not overlap."""
    pick = draw.random
    width, size = pick.choice((64, 96, 192, 384, 768, 1024)), pick.choice((4, 8, 14, 16, 16, 32))
    if pick.random() < 0.5:
        batch, frames = pick.choice((1, 2, 4, 8, 16)), pick.choice((8, 16))
        x = draw.tensor(batch, 3, frames, 224, 224, grad=False)
        weight = draw.tensor(width, 3, 2, max(size, 8), max(size, 8))
        return through(partial(F.conv3d, x, weight, None, weight.shape[2:]), weight)
    x = draw.tensor(pick.choice((8, 16, 32, 64, 128, 192)), 3, 224, 224, grad=False)
    weight = draw.tensor(width, 3, size, size)
    return through(partial(F.conv2d, x, weight, None, size), weight)


def masked_speech(draw: ShapeDraw) -> Layer:
    """Attention with a mask or a bias over sequences of odd lengths."""
    pick = draw.random
    batch, heads = pick.choice((2, 4, 8, 16, 24)), pick.choice((4, 6, 8, 12, 16))
    length, head = pick.choice((64, 128, 197, 256, 299, 499, 512, 749)), pick.choice((32, 64, 64))
    q, k, v = (draw.tensor(batch, heads, length, head) for _ in range(3))
    bias = draw.tensor(*pick.choice(((batch, 1), (batch, heads), (1, 1))), length, length,
                       grad=False)  # fmt: skip
    drop = pick.choice((0.0, 0.1))
    return through(
        lambda: F.scaled_dot_product_attention(q, k, v, bias, dropout_p=drop), q, k, v
    )  # fmt: skip


def transcribed(draw: ShapeDraw) -> Layer:
    """The loss of connectionist temporal classification."""
    pick = draw.random
    batch, length, labels = pick.choice((2, 8, 16, 24)), pick.choice(_SPEECH_LENGTHS), 32
    x = torch.randn(length, batch, labels, device=draw.device).requires_grad_()
    goal = torch.randint(1, labels, (batch, 40), device=draw.device)
    long, short = (torch.full((batch,), n, device=draw.device) for n in (length, 40))
    return through(lambda: F.ctc_loss(x.log_softmax(-1), goal, long, short, reduction="none"), x)


SOUNDS: tuple[tuple[Callable[[ShapeDraw], Layer], int], ...] = (
    *(
        (wave, 10),
        (positions, 16),
        (depthwise_sound, 8),
        (pointwise_sound, 18),
        (resized_stages, 18),
    ),
    *((patches, 10), (masked_speech, 14), (transcribed, 4)),
)
"""Layers and the weights with which they are drawn."""
