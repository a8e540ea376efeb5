"""Small functions that torch.compile makes one or a few kernels of, of random kinds and sizes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
MOST_BYTES = 4 << 30
WIDTHS = (16, 32, 49, 64, 96, 128, 197, 256, 320, 512, 768, 1000, 1024, 1280, 2048, 3072, 4096)
LONG_WIDTHS = (8192, 16_384, 32_000, 50_257)

Tensors = Sequence[Any]


@dataclass(frozen=True)
class Small:
    """A small function: its kind, its sizes (rows, width), and its type."""

    kind: str
    rows: int
    width: int
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.rows}x{self.width}-{self.dtype}"

    def tensors(self, device: str) -> list[Any]:
        """Its arguments."""
        made: list[Any] = INPUTS[self.kind](self.rows, self.width, TYPES[self.dtype], device)
        return made

    def __call__(self, tensors: Tensors) -> Any:
        return FUNCTIONS[self.kind](*tensors)


def drawn(seed: int, count: int) -> list[Small]:
    """A number of random functions, fixed by the seed."""
    chance = random.Random(seed)
    return [_draw(chance) for _ in range(count)]


def _draw(chance: random.Random) -> Small:
    kind = chance.choice(tuple(FUNCTIONS))
    dtype = chance.choice(tuple(TYPES))
    width = chance.choice(WIDTHS if chance.random() < 0.85 else LONG_WIDTHS)
    # Most kernels of real steps have 100 thousand to 100 million elements.
    low, high = (3.0, 9.0) if chance.random() < 0.15 else (4.5, 8.0)
    elements = 10 ** chance.uniform(low, high)
    item = 4 if dtype == "fp32" else 2
    elements = min(elements, MOST_BYTES / (item * 2))
    if kind in ("batch_norm", "channels_last_norm", "pool", "upsample", "group_norm"):
        width = chance.choice((32, 64, 96, 128, 256, 512))
    return Small(kind, max(round(elements / width), 1), width, dtype)


def _matrices(count: int) -> Callable[..., list[Any]]:
    def make(rows: int, width: int, dtype: Any, device: str) -> list[Any]:
        return [torch.randn(rows, width, dtype=dtype, device=device) for _ in range(count)]

    return make


def _with_rows(rows: int, width: int, dtype: Any, device: str) -> list[Any]:
    matrix = torch.randn(rows, width, dtype=dtype, device=device)
    return [matrix, *(torch.randn(width, device=device) for _ in range(2))]


def _images(rows: int, width: int, dtype: Any, device: str) -> list[Any]:
    """(images, channels, side, side) with `width` channels."""
    side = max(min(2 * round(math.sqrt(rows / 8) / 2), 128), 4)
    count = max(rows // side**2, 1)
    return [torch.randn(count, width, side, side, dtype=dtype, device=device)]


def _images_last(rows: int, width: int, dtype: Any, device: str) -> list[Any]:
    (image,) = _images(rows, width, dtype, device)
    return [image.contiguous(memory_format=torch.channels_last)]


def _lookups(rows: int, width: int, dtype: Any, device: str) -> list[Any]:
    table = torch.randn(30_000, width, dtype=dtype, device=device)
    return [table, torch.randint(0, 30_000, (rows,), device=device)]


def _additions(rows: int, width: int, dtype: Any, device: str) -> list[Any]:
    table = torch.zeros(30_000, width, device=device)
    places = torch.randint(0, 30_000, (rows,), device=device)
    return [table, places, torch.randn(rows, width, dtype=dtype, device=device)]


def _classes(rows: int, width: int, dtype: Any, device: str) -> list[Any]:
    logits = torch.randn(rows, width, dtype=dtype, device=device)
    return [logits, torch.randint(0, width, (rows,), device=device)]


def _heads(rows: int, width: int, dtype: Any, device: str) -> list[Any]:
    """(batch, length, heads, 64): what attention turns around."""
    heads = max(width // 64, 1)
    length = max(min(rows, 512), 1)
    return [torch.randn(max(rows // length, 1), length, heads, 64, dtype=dtype, device=device)]


def _lists(rows: int, width: int, dtype: Any, device: str) -> list[Any]:
    sizes = [max(rows * width // 24 // (1 + i % 4), 1) for i in range(12)]
    return [[torch.randn(n, device=device) for n in sizes] for _ in range(3)]


def _norm(x: Any, weight: Any, bias: Any) -> Any:
    return F.layer_norm(x, x.shape[-1:], weight.to(x.dtype), bias.to(x.dtype))


def _rms(x: Any, weight: Any, bias: Any) -> Any:
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6) * weight).to(x.dtype)


def _norm_gradients(x: Any, gradient: Any) -> Any:
    y, g = x.float(), gradient.float()
    centred = y - y.mean(-1, keepdim=True)
    inverse = torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
    normal = centred * inverse
    inner = g - g.mean(-1, keepdim=True) - normal * (g * normal).mean(-1, keepdim=True)
    return (inner * inverse).to(x.dtype), (g * normal).sum(0), g.sum(0)


def _batch_norm(x: Any) -> Any:
    return F.relu(F.batch_norm(x, None, None, training=True))


def _rotate(x: Any) -> Any:
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1) * 0.5 + x


def _update(p: list[Any], g: list[Any], m: list[Any]) -> Any:
    m = torch._foreach_lerp(m, g, 0.1)
    return torch._foreach_addcdiv(p, m, torch._foreach_add(torch._foreach_abs(g), 1e-8), -0.01)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "three": lambda a, b, c: (a * b + c, a - c),
    "gelu": lambda a: F.gelu(a),
    "swiglu": lambda a, b: F.silu(a) * b,
    "gelu_gradient": lambda a, b: torch.ops.aten.gelu_backward(a, b),
    "cast": lambda a: a.float() if a.dtype == torch.bfloat16 else a.bfloat16(),
    "bias": lambda a, w, b: F.relu(a + w) * b,
    "dropout": lambda a, b: F.dropout(a, 0.1) + b,
    "transpose": lambda a: a.t().contiguous(),
    "add_transposed": lambda a, b: a + (2 * b).reshape(b.shape[::-1]).t(),
    "heads": lambda x: x.transpose(1, 2).contiguous() * 2,
    "rotate": _rotate,
    "slices": lambda a: a[:, ::2] * a[:, 1::2] if a.shape[1] % 2 == 0 else a * 2,
    "joined": lambda a, b: torch.cat([a, b.exp()], 1),
    "softmax": lambda a: a.softmax(-1),
    "log_softmax": lambda a: a.float().log_softmax(-1),
    "layer_norm": _norm,
    "rms_norm": _rms,
    "norm_gradients": _norm_gradients,
    "row_sums": lambda a: a.float().sum(-1),
    "column_sums": lambda a: a.float().sum(0),
    "two_sums": lambda a, b: ((a * b).float().sum(0), a.float().sum(0)),
    "total": lambda a: a.float().square().sum(),
    "entropy": lambda a, t: F.cross_entropy(a.float(), t),
    "batch_norm": _batch_norm,
    "channels_last_norm": _batch_norm,
    "group_norm": lambda x: F.silu(F.group_norm(x, 8)),
    "pool": lambda x: F.max_pool2d(x, 2) + F.avg_pool2d(x, 2),
    "upsample": lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest") + 1,
    "lookup": lambda table, places: table[places] * 2,
    "additions": lambda table, places, x: table.index_add(0, places, x.float()),
    "lists": _update,
}
INPUTS: dict[str, Callable[..., list[Any]]] = {
    **dict.fromkeys(
        ("gelu", "cast", "transpose", "slices", "softmax", "log_softmax", "row_sums"), _matrices(1)
    ),
    **dict.fromkeys(("column_sums", "total"), _matrices(1)),
    **dict.fromkeys(
        ("add", "swiglu", "gelu_gradient", "dropout", "add_transposed", "joined"), _matrices(2)
    ),
    **dict.fromkeys(("norm_gradients", "two_sums"), _matrices(2)),
    "three": _matrices(3),
    **dict.fromkeys(("bias", "layer_norm", "rms_norm"), _with_rows),
    **dict.fromkeys(("batch_norm", "group_norm", "pool", "upsample"), _images),
    "channels_last_norm": _images_last,
    **dict.fromkeys(("heads", "rotate"), _heads),
    "lookup": _lookups,
    "additions": _additions,
    "entropy": _classes,
    "lists": _lists,
}
