"""Training steps in plain JAX: a loss, its gradients and an update, jitted, with donated state.

training = make_training(init, batch_of, loss, optimizer="adamw")
training.step, training.shapes()    # what `wavecast.trace_jax` takes
training.step(*training.arrays())   # what a GPU runs
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

Tree = Any
"""A pytree of arrays: dicts and lists of them."""
Init = Callable[[jax.Array], Tree]
BatchOf = Callable[[jax.Array], Tree]
Loss = Callable[[Tree, Tree], jax.Array]
Update = Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]


@dataclass(frozen=True)
class JaxTraining:
    """A jitted training step and a function that makes its arguments: the state and a batch."""

    step: Any
    make: Callable[[jax.Array], tuple[Tree, Tree]]

    def shapes(self) -> tuple[Tree, Tree]:
        """The arguments as shapes, which need no memory."""
        shapes: tuple[Tree, Tree] = jax.eval_shape(self.make, jax.random.key(0))
        return shapes

    def arrays(self) -> tuple[Tree, Tree]:
        """The arguments as arrays, made on the device."""
        arrays: tuple[Tree, Tree] = jax.jit(self.make)(jax.random.key(0))
        return arrays


def make_training(
    init: Init, batch_of: BatchOf, loss: Loss, *, optimizer: str = "adamw"
) -> JaxTraining:
    """The training of parameters on a batch.

    Args:
        init: the parameters, from a random key.
        batch_of: a batch, from a random key.
        loss: the loss of parameters on a batch.
        optimizer: one of `OPTIMIZERS`.
    """
    state_of, update = OPTIMIZERS[optimizer]

    def make(key: jax.Array) -> tuple[Tree, Tree]:
        params_key, batch_key = jax.random.split(key)
        params = init(params_key)
        state = {"params": params, "optimizer": state_of(params), "count": jnp.zeros((), jnp.int32)}
        return state, batch_of(batch_key)

    def step(state: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(state["params"], batch)
        with jax.named_scope("optimizer"):
            count = state["count"] + 1
            kept = {"count": count, **state["optimizer"]}
            params, kept = update(state["params"], gradients, kept)
        return {"params": params, "optimizer": kept, "count": count}, value

    return JaxTraining(jax.jit(step, donate_argnums=0), make)


def _zeros(params: Tree) -> Tree:
    return jax.tree.map(jnp.zeros_like, params)


def _adamw(params: Tree, gradients: Tree, state: Tree, decay: float = 0.01) -> tuple[Tree, Tree]:
    count = state["count"].astype(jnp.float32)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["second"], gradients)
    rate = 1e-3 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)

    def change(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        return p - rate * m / (jnp.sqrt(v) + 1e-8) - 1e-3 * decay * p

    return jax.tree.map(change, params, first, second), {"first": first, "second": second}


def _momentum(params: Tree, gradients: Tree, state: Tree) -> tuple[Tree, Tree]:
    trace = jax.tree.map(lambda m, g: 0.9 * m + g, state["trace"], gradients)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, trace), {"trace": trace}


def _sgd(params: Tree, gradients: Tree, state: Tree) -> tuple[Tree, Tree]:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), {}


OPTIMIZERS: dict[str, tuple[Callable[[Tree], Tree], Update]] = {
    "adamw": (lambda params: {"first": _zeros(params), "second": _zeros(params)}, _adamw),
    "momentum": (lambda params: {"trace": _zeros(params)}, _momentum),
    "sgd": (lambda params: {}, _sgd),
}
"""The state that an optimizer keeps, and its update: parameters, gradients, state -> new ones."""


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean cross-entropy of logits, taken in float32."""
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


def dense_init(key: jax.Array, *sizes: int) -> jax.Array:
    """A weight of these sizes, the last of them its outputs."""
    fan_in = 1
    for size in sizes[:-1]:
        fan_in *= size
    return jax.random.normal(key, sizes, jnp.float32) * fan_in**-0.5


def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    """Layer norm over the last dimension, in float32."""
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    variance = jnp.square(wide - mean).mean(-1, keepdims=True)
    return ((wide - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + bias).astype(x.dtype)


def compute_type(precision: str) -> Any:
    """The type of activations in a precision: float32, or bfloat16 with float32 parameters."""
    return jnp.bfloat16 if precision == "bf16" else jnp.float32
