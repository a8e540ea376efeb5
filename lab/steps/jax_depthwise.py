"""Depthwise convolutions of many sizes in JAX, several in a step: which kernel does cuDNN have?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lab.steps.jax_nets import keys_of
from wavecast.suite.jax_models import (
    JaxTraining,
    Tree,
    compute_type,
    convolve,
    dense_init,
    make_training,
)


class Depthwise(NamedTuple):
    """A convolution of each channel by itself."""

    batch: int
    image: int
    width: int
    kernel: int
    precision: str = "bf16"
    stride: int = 1


_IMAGES, _WIDTHS = (14, 20, 28, 32, 40, 56), (96, 384, 192, 256)
SWEEP = [
    *(
        Depthwise(32, image, _WIDTHS[(n + at + more) % 4], kernel)
        for n, kernel in enumerate((3, 5, 7))
        for at, image in enumerate(_IMAGES)
        for more in (0, 2)
    ),
    *(Depthwise(32, image, 192, kernel, "fp32") for kernel in (3, 7) for image in (14, 28, 32, 40)),
    *(Depthwise(32, image, 192, kernel) for kernel in (9, 11) for image in (28, 32)),
    *(Depthwise(32, image, 192, kernel, stride=2) for kernel in (3, 5, 7) for image in (28, 56)),
    *(Depthwise(batch, 32, 192, 7) for batch in (8, 48, 128)),
    *(Depthwise(batch, 40, 256, 7) for batch in (8, 64)),
    Depthwise(48, 64, 128, 7),
]
"""The convolutions that are measured."""


def image_of(size: Depthwise) -> tuple[int, ...]:
    """The shape of the images."""
    return size.batch, size.image, size.image, size.width


def depthwise_step(sizes: Sequence[Depthwise]) -> JaxTraining:
    """A step that runs convolutions side by side, forward and for the gradients of weights.

    With a stride, it takes the gradients of images too: these run kernels of their own, where
    those without a stride are forward convolutions again.
    """

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        weights = [dense_init(next(keys), s.kernel, s.kernel, 1, s.width) for s in sizes]
        return {"w": weights, "added": [jnp.ones(image_of(s)) for s in sizes if s.stride > 1]}

    def loss(params: Tree, data: Tree) -> jax.Array:
        total, added = jnp.zeros(()), iter(params["added"])
        for size, weight, x in zip(sizes, params["w"], data["x"], strict=True):
            if size.stride > 1:
                x = x + next(added).astype(x.dtype)
            y = convolve(x, weight, size.stride, groups=size.width)
            total += jnp.square(y.astype(jnp.float32)).mean()
        return total

    def batch_of(key: jax.Array) -> Tree:
        return {"x": [jnp.ones(image_of(s), compute_type(s.precision)) for s in sizes]}

    return make_training(init, batch_of, loss, optimizer="sgd")
