"""Steps in JAX that show one thing in many sizes: how matmuls are tuned, what a call costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lab.steps.jax_nets import keys_of
from wavecast.suite.jax_models import JaxTraining, Tree, compute_type, dense_init, make_training


class DenseLayer(NamedTuple):
    """A layer: its matmul and those of its two gradients."""

    rows: int
    inputs: int
    outputs: int
    precision: str = "bf16"
    after: str = "none"
    """What follows the matmul: "none", "relu" or "gelu", both with a bias."""


_AFTER = ("none", "gelu", "relu")
_SIZES = (
    (256, 1024, 1024),
    (512, 512, 2048),
    (640, 4096, 4096),
    (1024, 1024, 4096),
    (1536, 1536, 1536),
    (2048, 256, 1024),
    (2048, 2048, 5632),
    (3072, 640, 640),
    (4096, 512, 512),
    (4096, 2048, 2048),
    (6144, 1024, 1024),
    (6144, 384, 1536),
    (8192, 4096, 1024),
    (12288, 768, 3072),
    (16384, 512, 512),
    (16384, 1280, 1280),
    (25088, 256, 1024),
    (32768, 96, 384),
)
LAYERS = [
    *(DenseLayer(*size, "bf16", _AFTER[n % 3]) for n, size in enumerate(_SIZES)),
    *(DenseLayer(*size, "fp32", _AFTER[n % 3]) for n, size in enumerate(_SIZES[::2])),
]
"""The layers that are measured."""


def dense_step(layers: Sequence[DenseLayer]) -> JaxTraining:
    """A step that runs layers side by side, forward and for all gradients."""

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        return [
            {
                "first": dense_init(next(keys), 64, one.inputs),
                "w": dense_init(next(keys), one.inputs, one.outputs),
                "b": jnp.zeros((one.outputs,)),
            }
            for one in layers
        ]

    def loss(params: Tree, data: Tree) -> jax.Array:
        total = jnp.zeros(())
        for layer, p, given in zip(layers, params, data["x"], strict=True):
            x = jax.nn.relu(given @ p["first"].astype(given.dtype))
            y = x @ p["w"].astype(x.dtype)
            if layer.after != "none":
                y = getattr(jax.nn, layer.after)(y + p["b"].astype(y.dtype))
            total += jnp.square(y.astype(jnp.float32)).mean()
        return total

    def batch_of(key: jax.Array) -> Tree:
        return {"x": [jnp.ones((one.rows, 64), compute_type(one.precision)) for one in layers]}

    return make_training(init, batch_of, loss, optimizer="sgd")


def host_step(leaves: int, kernels: int, loops: int = 0) -> JaxTraining:
    """A step of little work: many arrays, many small kernels, or a loop of some."""

    def center(x: jax.Array, count: int) -> jax.Array:
        for number in range(count):
            x = jnp.tanh(x - x.mean(number % 2, keepdims=True))
        return x

    def init(key: jax.Array) -> Tree:
        return [jnp.ones((64, 64)) for _ in range(leaves)]

    def loss(params: Tree, data: Tree) -> jax.Array:
        def body(x: jax.Array, _: Any) -> tuple[jax.Array, None]:
            return center(x, 4), None

        x = center(data["x"], kernels)
        x = jax.lax.scan(body, x, None, length=loops)[0] if loops else x
        return sum((jnp.square(x + p).mean() for p in params), jnp.zeros(()))

    return make_training(init, lambda key: {"x": jnp.ones((64, 64))}, loss, optimizer="sgd")
