"""Lookups with places of many kinds; with `memory_layers` they are the sweep `memory`.

Rows, columns and pairs of places that are fetched, and whose gradients are added back: to few
places or many, in order or at random, with indices of their own or expanded ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from lab.steps import memory_layers as of_memory
from wavecast.frameworks.pytorch.drawn.network_layers import Layer, ShapeDraw, TooLarge, through

MOST = 2**27
"""The most elements of a tensor that a lookup reads or writes."""


def _table(draw: ShapeDraw, *shape: int) -> Tensor:
    """A table in the drawn precision, or in float32 as weights under autocast are."""
    return draw.tensor(*shape) if draw.random.random() < 0.5 else _whole(draw).tensor(*shape)


def _whole(draw: ShapeDraw) -> ShapeDraw:
    return replace(draw, precision="fp32")


def _log(draw: ShapeDraw, low: float, high: float) -> int:
    return int(low * (high / low) ** draw.random.random())


def rows(draw: ShapeDraw) -> Layer:
    """Rows of a matrix, fetched by their numbers or added to others."""
    pick = draw.random
    count, width = _log(draw, 64, 2e6), pick.choice(of_memory.WIDTHS[:-2])
    total = _log(draw, 2, 5e5) if pick.random() < 0.7 else count
    if max(count, total) * width > MOST or count > 50_000 * total:
        raise TooLarge
    x = _table(draw, total, width)
    where = torch.randint(0, total, (count,), device="cuda")
    if pick.random() < 0.3:
        where = where.sort().values
    added = torch.randn(count, width, device="cuda", dtype=x.dtype)
    forms: tuple[Layer, ...] = (
        *(through(lambda: x[where], x),) * 3,
        *(through(partial(x.index_select, 0, where), x),) * 2,
        lambda: torch.zeros_like(x).index_add_(0, where, added),
    )
    return pick.choice(forms)


def expanded(draw: ShapeDraw) -> Layer:
    """Rows that graph networks gather and scatter with an index expanded over the others' sizes."""
    pick = draw.random
    nodes, edges = _log(draw, 100, 3e5), _log(draw, 1000, 2e6)
    heads, width = pick.choice((1, 1, 2, 4, 8)), pick.choice((1, 8, 16, 32, 40, 64, 64, 128))
    inside = (heads, width) if pick.random() < 0.7 else (width,)
    if max(edges, nodes) * torch.Size(inside).numel() > MOST:
        raise TooLarge
    x, sent = draw.tensor(nodes, *inside), draw.tensor(edges, *inside, grad=False)
    where = torch.randint(0, nodes, (edges,), device="cuda")
    index = where.view(-1, *(1 for _ in inside)).expand_as(sent)
    empty = torch.zeros_like(x).detach()
    forms: tuple[Layer, ...] = (
        *(through(partial(x.gather, 0, index), x),) * 2,
        lambda: empty.clone().scatter_add_(0, index, sent),
        lambda: empty.clone().scatter_reduce_(0, index, sent, "amax", include_self=False),
        through(partial(x.index_select, 0, where), x),
    )
    return pick.choice(forms)


def own_index(draw: ShapeDraw) -> Layer:
    """Elements that each have an index: the score of a label, the best experts of a token."""
    pick = draw.random
    count, words = _log(draw, 64, 60_000), pick.choice((8, 64, 128, 1000, 4096, 32_000))
    if count * words > MOST // 2:
        raise TooLarge
    x, many = draw.tensor(count, words), pick.choice((1, 1, 2, 8, min(words, 64)))
    index = torch.randint(0, words, (count, many), device="cuda")
    label, first = index[:, 0].contiguous(), torch.arange(count, device="cuda")
    forms: tuple[Layer, ...] = (
        through(partial(x.gather, 1, index), x),
        through(partial(x.gather, 1, index), x),
        through(lambda: x[first, label], x),
    )
    return pick.choice(forms)


def pairs(draw: ShapeDraw) -> Layer:
    """Places of a square of each sample, as recommendation networks choose half of a product."""
    pick = draw.random
    batch, side = _log(draw, 64, 60_000), pick.choice((4, 8, 14, 27, 27, 32, 49, 64))
    if batch * side**2 > MOST // 2:
        raise TooLarge
    x = draw.tensor(batch, side, side)
    i, j = torch.tril_indices(side, side, -1, device="cuda")
    return through(lambda: x[:, i, j], x)


def biases(draw: ShapeDraw) -> Layer:
    """A table of biases, fetched for each pair of places of an image."""
    pick = draw.random
    side, heads = (
        pick.choice((4, 7, 7, 8, 12, 14, 14, 16, 24)),
        pick.choice((1, 3, 4, 6, 8, 12, 24)),
    )
    count = pick.choice((side**2, (2 * side - 1) ** 2))
    x = _table(draw, heads, count)
    where = torch.randint(0, count, (side**2, side**2), device="cuda")
    if pick.random() < 0.5:
        return through(lambda: x[:, where], x)
    y = _table(draw, count, heads)
    return through(lambda: y[where.view(-1)], y)


def placed(draw: ShapeDraw) -> Layer:
    """Rows that replace others, and places along a middle dimension."""
    pick = draw.random
    batch, length = pick.choice((1, 2, 4, 8, 16, 32, 64)), _log(draw, 16, 8192)
    width = pick.choice(of_memory.WIDTHS[3:28])
    if batch * length * width > MOST // 2:
        raise TooLarge
    kept = max(int(length * pick.choice((0.1, 0.25, 0.5, 0.75, 1.0))), 1)
    x, new = draw.tensor(batch, length, width), draw.tensor(batch, kept, width, grad=False)
    where = torch.randperm(length, device="cuda")[:kept]
    wide = where.view(1, -1, 1).expand_as(new)
    plain = x.detach()
    forms: tuple[Layer, ...] = (
        through(lambda: x[:, where], x),
        through(partial(x.index_select, 1, where), x),
        through(partial(x.gather, 1, wide), x),
        lambda: plain.clone().index_put_((torch.arange(batch, device="cuda")[:, None], where), new),
        lambda: plain.clone().scatter_(1, wide, new),
        lambda: plain.clone().index_copy_(1, where, new),
    )
    return pick.choice(forms)


MEMORY: tuple[tuple[Callable[[ShapeDraw], Layer], int], ...] = (
    *((of_memory.columns, 13), (of_memory.of_images, 9), (of_memory.short_rows, 8)),
    *((of_memory.long_rows, 7), (of_memory.softmaxes, 8), (of_memory.layer_norms, 4)),
    *((of_memory.batch_norms, 14), (of_memory.group_norms, 7), (of_memory.pooled, 5)),
    *((of_memory.resized, 13), (of_memory.lists, 3)),
    *((rows, 10), (expanded, 9), (own_index, 4), (pairs, 4), (biases, 5), (placed, 6)),
)
"""Layers and the weights with which they are drawn."""
