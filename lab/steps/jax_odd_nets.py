"""Training steps in plain JAX of odd kinds, for a third blind test: what few benchmarks have.

Ensembles by vmap, derivatives of derivatives, sparse matrices, Fourier layers, sorting, fp8 and
4-bit weights, loss scaling with a conditional, loops inside of losses, ragged matmuls.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lab.steps.jax_nets import keys_of, labelled
from wavecast.suite.jax_models import (
    BatchOf,
    JaxTraining,
    Tree,
    compute_type,
    cross_entropy,
    dense_init,
    make_training,
)


def normal(*shape: int) -> BatchOf:
    """A batch of normally distributed numbers."""
    return lambda key: jax.random.normal(key, shape)


def layers_of(key: jax.Array, widths: Sequence[int]) -> list[jax.Array]:
    """The weights of layers from one width to the next."""
    keys = keys_of(key)
    return [dense_init(next(keys), *pair) for pair in pairwise(widths)]


def forward(layers: Sequence[jax.Array], x: jax.Array, activation: Any = jnp.tanh) -> jax.Array:
    """What layers make of rows."""
    for w in layers[:-1]:
        x = activation(x @ w.astype(x.dtype))
    return x @ layers[-1].astype(x.dtype)


def ensemble(members: int, batch: int, widths: Sequence[int]) -> JaxTraining:
    """Members that are trained side by side by vmap."""

    def init(key: jax.Array) -> Tree:
        return jax.vmap(lambda one: layers_of(one, widths))(jax.random.split(key, members))

    def loss(params: Tree, data: Tree) -> jax.Array:
        one = lambda p: cross_entropy(forward(p, data["x"], jax.nn.relu), data["y"])  # noqa: E731
        return jax.vmap(one)(params).sum()

    return make_training(init, labelled((batch, widths[0]), widths[-1]), loss)


def physics(batch: int, inputs: int, width: int, depth: int) -> JaxTraining:
    """A network whose Laplacian is trained, as for partial differential equations."""

    def loss(params: Tree, points: jax.Array) -> jax.Array:
        def value(x: jax.Array) -> jax.Array:
            return forward(params, x)[0]

        def residual(x: jax.Array) -> jax.Array:
            return jnp.trace(jax.hessian(value)(x)) + jnp.sin(x).prod()

        return jnp.square(jax.vmap(residual)(points)).mean()

    widths = (inputs, *[width] * depth, 1)
    return make_training(lambda key: layers_of(key, widths), normal(batch, inputs), loss)


def meta_learner(tasks: int, shots: int, width: int, steps: int) -> JaxTraining:
    """Gradients through steps of gradient descent, for each of many tasks (MAML)."""

    def loss(params: Tree, data: Tree) -> jax.Array:
        def error(p: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
            return jnp.square(forward(p, x)[:, 0] - y).mean()

        def one(x: jax.Array, y: jax.Array) -> jax.Array:
            adapted = params
            for _ in range(steps):
                gradients = jax.grad(error)(adapted, x, y)
                adapted = jax.tree.map(lambda p, g: p - 0.1 * g, adapted, gradients)
            return error(adapted, x[::-1], y[::-1])

        return jax.vmap(one)(data["x"], data["y"]).mean()

    def batch_of(key: jax.Array) -> Tree:
        x = jax.random.normal(key, (tasks, shots, 32))
        return {"x": x, "y": x.sum(-1)}

    widths = (32, width, width, 1)
    return make_training(lambda key: layers_of(key, widths), batch_of, loss)


def sparse_net(nodes: int, edges: int, width: int, depth: int) -> JaxTraining:
    """A graph network by matmuls with a sparse matrix (BCOO)."""
    from jax.experimental import sparse

    def loss(params: Tree, data: Tree) -> jax.Array:
        matrix = sparse.BCOO((data["weights"], data["at"]), shape=(nodes, nodes))
        x = data["x"]
        for w in params:
            x = jax.nn.relu(matrix @ (x @ w))
        return jnp.square(x).mean()

    def batch_of(key: jax.Array) -> Tree:
        at = jax.random.randint(key, (edges, 2), 0, nodes)
        return {
            "x": jax.random.normal(key, (nodes, width)),
            "weights": jax.random.uniform(key, (edges,)),
            "at": at,
        }

    return make_training(lambda key: layers_of(key, [width] * (depth + 1)), batch_of, loss)


def fourier_operator(batch: int, side: int, width: int, modes: int, depth: int) -> JaxTraining:
    """Layers that multiply the low frequencies of images (Fourier neural operator)."""

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        return [
            {
                "parts": dense_init(next(keys), 2, width, width, modes, modes),
                "skip": dense_init(next(keys), width, width),
            }
            for _ in range(depth)
        ]

    def loss(params: Tree, x: jax.Array) -> jax.Array:
        for p in params:
            seen = jnp.fft.rfft2(x)
            weight = lax.complex(p["parts"][0], p["parts"][1])
            low = jnp.einsum("bixy,ioxy->boxy", seen[:, :, :modes, :modes], weight)
            kept = jnp.zeros_like(seen).at[:, :, :modes, :modes].set(low)
            skipped = jnp.einsum("bixy,io->boxy", x, p["skip"])
            x = jax.nn.gelu(jnp.fft.irfft2(kept, s=(side, side)) + skipped)
        return jnp.square(x).mean()

    return make_training(init, normal(batch, width, side, side), loss)


def policy_gradient(workers: int, horizon: int, width: int) -> JaxTraining:
    """A policy rolled out in a small world by scan, with advantages by a scan backwards."""

    def init(key: jax.Array) -> Tree:
        first, second = jax.random.split(key)
        return {
            "policy": layers_of(first, (8, width, 4)),
            "value": layers_of(second, (8, width, 1)),
        }

    def loss(params: Tree, data: Tree) -> jax.Array:
        def act(carry: Tree, noise: jax.Array) -> tuple[Tree, Tree]:
            logits = forward(params["policy"], carry)
            action = jnp.argmax(logits + noise, -1)
            moved = jnp.roll(carry, 1, -1).at[:, :4].add(0.1 * jax.nn.one_hot(action, 4))
            reward = -jnp.abs(moved).sum(-1)
            value = forward(params["value"], carry)[:, 0]
            chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
            return lax.stop_gradient(moved), (reward, value, chosen)

        _, (rewards, values, chosen) = lax.scan(act, data["x"], data["noise"])

        def back(carry: jax.Array, now: Tree) -> tuple[jax.Array, jax.Array]:
            total = now + 0.99 * carry
            return total, total

        _, returns = lax.scan(back, jnp.zeros(workers), rewards, reverse=True)
        advantages = lax.stop_gradient(returns - values)
        return jnp.square(returns - values).mean() - (chosen * advantages).mean()

    def batch_of(key: jax.Array) -> Tree:
        x = jax.random.normal(key, (workers, 8))
        return {"x": x, "noise": jax.random.gumbel(key, (horizon, workers, 4))}

    return make_training(init, batch_of, loss, optimizer="adamw")


def scaled_loss(batch: int, width: int, depth: int) -> JaxTraining:
    """float16 with a loss scale: the update is a branch that is taken if gradients are finite."""

    def make(key: jax.Array) -> tuple[Tree, Tree]:
        params = layers_of(key, [width] * (depth + 1))
        return {"params": params, "scale": jnp.float32(1024)}, jax.random.normal(
            key, (batch, width)
        )

    def step(state: Tree, x: jax.Array) -> tuple[Tree, jax.Array]:
        def loss(params: Tree) -> jax.Array:
            out = forward(params, x.astype(jnp.float16), jax.nn.silu)
            return jnp.square(out.astype(jnp.float32)).mean() * state["scale"]

        value, gradients = jax.value_and_grad(loss)(state["params"])
        finite = jnp.stack([jnp.isfinite(g).all() for g in gradients]).all()
        params = lax.cond(
            finite,
            lambda: jax.tree.map(
                lambda p, g: p - 1e-3 * g / state["scale"], state["params"], gradients
            ),
            lambda: state["params"],
        )
        scale = jnp.where(finite, state["scale"] * 1.001, state["scale"] / 2)
        return {"params": params, "scale": scale}, value

    return JaxTraining(jax.jit(step, donate_argnums=0), make)


def ragged_mixture(tokens: int, width: int, hidden: int, experts: int) -> JaxTraining:
    """A mixture of experts by ragged matmuls over sorted tokens."""

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        return {
            "router": dense_init(next(keys), width, experts),
            "up": dense_init(next(keys), experts, width, hidden),
            "down": dense_init(next(keys), experts, hidden, width),
        }

    def loss(params: Tree, data: jax.Array) -> jax.Array:
        x = data.astype(jnp.bfloat16)
        weights, chosen = lax.top_k(jax.nn.softmax(data @ params["router"]), 2)
        order = jnp.argsort(chosen.reshape(-1))
        sizes = jnp.bincount(chosen.reshape(-1), length=experts)
        rows = jnp.repeat(x, 2, 0)[order]
        hidden_rows = lax.ragged_dot(rows, params["up"].astype(x.dtype), sizes)
        out = lax.ragged_dot(jax.nn.silu(hidden_rows), params["down"].astype(x.dtype), sizes)
        out = jnp.zeros_like(out).at[order].set(out).reshape(tokens, 2, width)
        mixed = (out * weights[..., None].astype(x.dtype)).sum(1)
        return jnp.square(mixed.astype(jnp.float32)).mean()

    return make_training(init, normal(tokens, width), loss)


def triangles(batch: int, length: int, width: int, precision: str) -> JaxTraining:
    """Updates of pairs by triangles of other pairs, as in models of proteins."""

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        return {name: dense_init(next(keys), width, width) for name in ("a", "b", "gate", "out")}

    def loss(params: Tree, data: jax.Array) -> jax.Array:
        x = data.astype(compute_type(precision))
        p = jax.tree.map(lambda w: w.astype(x.dtype), params)
        for _ in range(2):
            left, right = jax.nn.sigmoid(x @ p["gate"]) * (x @ p["a"]), x @ p["b"]
            met = jnp.einsum("bikc,bjkc->bijc", left, right) * length**-0.5
            x = x + met @ p["out"]
            seen = jax.nn.softmax(jnp.einsum("bijc,bikc->bijk", x, x) * width**-0.5)
            x = x + jnp.einsum("bijk,bikc->bijc", seen, x)
        return jnp.square(x.astype(jnp.float32)).mean()

    return make_training(init, normal(batch, length, length, width), loss)


def accumulated(parts: int, batch: int, width: int, hidden: int) -> JaxTraining:
    """Gradients summed over parts of a batch by scan, then one update."""

    def loss(params: Tree, data: jax.Array) -> jax.Array:
        def error(p: Tree, x: jax.Array) -> jax.Array:
            out = forward(p, x.astype(jnp.bfloat16), jax.nn.gelu)
            return jnp.square(out.astype(jnp.float32)).mean()

        def one(total: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            return total + jax.checkpoint(error)(params, x), None

        return lax.scan(one, jnp.float32(0), data)[0]

    widths = (width, hidden, hidden, width)
    return make_training(lambda key: layers_of(key, widths), normal(parts, batch, width), loss)
