"""Attention over long sequences, by each of torch's kernels; `lab.collect.sweep attention`.

On Hopper, cuDNN's kernels have its instructions and FlashAttention 2 has those of Ampere. Which one
a step runs depends on its software, so both are measured at lengths of today's training.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from wavecast.frameworks.pytorch.drawn.network_layers import Layer, ShapeDraw, TooLarge, through

MOST_FLOP = 4e12
_KERNELS = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
)


def long_attended(draw: ShapeDraw) -> Layer:
    """Attention without a mask or causal, with as many heads of keys or fewer."""
    pick = draw.random
    length = pick.choice((512, 1024, 1024, 2048, 2048, 4096, 4096, 8192, 16_384))
    batch, heads = pick.choice((1, 1, 2, 4, 8, 16)), pick.choice((8, 12, 16, 16, 32, 32, 64))
    head, causal = pick.choice((64, 64, 80, 96, 128, 128, 128, 256)), pick.random() < 0.7
    of_keys = heads // pick.choice((1, 1, 4)) if heads % 4 == 0 else heads
    if 4.0 * batch * heads * length**2 * head > MOST_FLOP or draw.precision not in ("bf16", "fp16"):
        raise TooLarge
    q, k, v = (
        draw.tensor(batch, length, n * head).detach().view(batch, length, n, head)
        .transpose(1, 2).requires_grad_()
        for n in (heads, of_keys, of_keys)
    )  # fmt: skip
    run = partial(F.scaled_dot_product_attention, q, k, v, is_causal=causal)
    kernel = pick.choice(_KERNELS)

    def by_kernel() -> Any:
        with sdpa_kernel(kernel):
            return run(enable_gqa=of_keys < heads)

    return through(by_kernel, q, k, v)


ATTENTION: tuple[tuple[Callable[[ShapeDraw], Layer], int], ...] = ((long_attended, 1),)
"""Layers and the weights with which they are drawn."""
