"""More steps of odd kinds for the third blind test: loops, sorting, few bits, rendering, sound."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lab.steps.jax_nets import keys_of
from lab.steps.jax_odd_nets import forward, layers_of, normal
from wavecast.suite.jax_models import JaxTraining, Tree, dense_init, make_training


def autoencoder(batch: int, inputs: int, width: int, code: int) -> JaxTraining:
    """A variational autoencoder with random numbers and dropout in each step."""

    def init(key: jax.Array) -> Tree:
        first, second = jax.random.split(key)
        return {
            "in": layers_of(first, (inputs, width, 2 * code)),
            "out": layers_of(second, (code, width, inputs)),
        }

    def loss(params: Tree, x: jax.Array) -> jax.Array:
        key = jax.random.key(x[0, 0].astype(jnp.int32))
        mean, spread = jnp.split(forward(params["in"], x, jax.nn.relu), 2, -1)
        z = mean + jnp.exp(spread / 2) * jax.random.normal(key, mean.shape)
        z = jnp.where(jax.random.bernoulli(key, 0.9, z.shape), z / 0.9, 0)
        out = forward(params["out"], z, jax.nn.relu)
        apart = 1 + spread - jnp.square(mean) - jnp.exp(spread)
        return jnp.mean(jax.nn.softplus(out) - x * out) - 0.5 * apart.mean()

    return make_training(init, normal(batch, inputs), loss)


def volume_autoencoder(batch: int, side: int, width: int, precision: Any) -> JaxTraining:
    """Convolutions in three dimensions, and transposed ones back."""
    numbers = ("NDHWC", "DHWIO", "NDHWC")

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        return {
            "down": dense_init(next(keys), 3, 3, 3, 8, width),
            "up": dense_init(next(keys), 2, 2, 2, width, 8),
        }

    def loss(params: Tree, data: jax.Array) -> jax.Array:
        x = data.astype(precision)
        down, up = (params[name].astype(precision) for name in ("down", "up"))
        h = lax.conv_general_dilated(x, down, (2, 2, 2), "SAME", dimension_numbers=numbers)
        y = lax.conv_transpose(jax.nn.relu(h), up, (2, 2, 2), "SAME", dimension_numbers=numbers)
        return jnp.square((y - x).astype(jnp.float32)).mean()

    return make_training(init, normal(batch, side, side, side, 8), loss)


def sorted_scores(batch: int, width: int, classes: int) -> JaxTraining:
    """A loss over sorted scores: sorts, the largest, running sums."""

    def loss(params: Tree, x: jax.Array) -> jax.Array:
        scores = forward(params, x)
        ordered = jnp.sort(scores, axis=-1)
        largest, _ = lax.top_k(scores, 32)
        area = jnp.cumsum(jax.nn.softmax(ordered), -1)
        return jnp.square(largest).mean() + area.mean() + jnp.median(scores, 0).mean()

    widths = (width, width, classes)
    return make_training(lambda key: layers_of(key, widths), normal(batch, width), loss)


def linear_recurrence(batch: int, length: int, width: int) -> JaxTraining:
    """A recurrence of complex numbers by an associative scan (LRU)."""

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        return {
            "rate": jax.random.uniform(next(keys), (2, width)),
            "in": dense_init(next(keys), width, width),
            "out": dense_init(next(keys), width, width),
        }

    def loss(params: Tree, x: jax.Array) -> jax.Array:
        u = (x @ params["in"]).astype(jnp.complex64)
        rate = jnp.exp(lax.complex(-jnp.exp(params["rate"][0]), params["rate"][1]))
        gates = jnp.broadcast_to(rate, u.shape)

        def joined(a: Tree, b: Tree) -> Tree:
            return a[0] * b[0], a[1] * b[0] + b[1]

        _, h = lax.associative_scan(joined, (gates, u), axis=1)
        return jnp.square(h.real @ params["out"]).mean()

    return make_training(init, normal(batch, length, width), loss)


def eight_bits(rows: int, width: int, depth: int) -> JaxTraining:
    """Matmuls of eight-bit floating-point numbers, forward."""

    def loss(params: Tree, data: jax.Array) -> jax.Array:
        x = data.astype(jnp.bfloat16)
        for w in params:
            small = (x.astype(jnp.float8_e4m3fn), w.astype(jnp.float8_e4m3fn))
            product = jnp.dot(*small, preferred_element_type=jnp.float32)
            x = x + jax.nn.gelu(product).astype(jnp.bfloat16)
        return jnp.square(x.astype(jnp.float32)).mean()

    return make_training(
        lambda key: layers_of(key, [width] * (depth + 1)), normal(rows, width), loss
    )


def adapters(rows: int, width: int, rank: int, depth: int) -> JaxTraining:
    """Adapters of low rank beside frozen weights of four bits."""

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        return [
            (dense_init(next(keys), width, rank), dense_init(next(keys), rank, width))
            for _ in range(depth)
        ]

    def batch_of(key: jax.Array) -> Tree:
        bits = jax.random.randint(key, (depth, width, width), -8, 8).astype(jnp.int4)
        return {"x": jax.random.normal(key, (rows, width)), "frozen": bits}

    def loss(params: Tree, data: Tree) -> jax.Array:
        x = data["x"].astype(jnp.bfloat16)
        for (a, b), bits in zip(params, data["frozen"], strict=True):
            wide = bits.astype(jnp.bfloat16) * jnp.bfloat16(width**-0.5 / 8)
            low = (x @ a.astype(x.dtype)) @ b.astype(x.dtype)
            x = jax.nn.gelu(x @ wide + low)
        return jnp.square(x.astype(jnp.float32)).mean()

    return make_training(init, batch_of, loss)


def rendered(rays: int, samples: int, width: int, depth: int) -> JaxTraining:
    """Colours along rays by a small network, and their sum behind each other (NeRF)."""

    def loss(params: Tree, data: jax.Array) -> jax.Array:
        depths = jnp.linspace(0.1, 4, samples)
        points = data[:, None, :3] + depths[:, None] * data[:, None, 3:]
        angles = points[..., None] * 2.0 ** jnp.arange(10)
        seen = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1).reshape(rays, samples, 60)
        out = forward(params, seen.astype(jnp.bfloat16), jax.nn.relu).astype(jnp.float32)
        thick = 1 - jnp.exp(-jax.nn.relu(out[..., 3]) * 0.1)
        free = jnp.cumprod(1 - thick + 1e-6, -1)
        return jnp.square((thick * free)[..., None] * jax.nn.sigmoid(out[..., :3])).mean()

    widths = (60, *[width] * depth, 4)
    return make_training(lambda key: layers_of(key, widths), normal(rays, 6), loss)


def differential_equation(batch: int, width: int, steps: int) -> JaxTraining:
    """A network as a differential equation, followed by Runge-Kutta steps in a scan."""

    def loss(params: Tree, x: jax.Array) -> jax.Array:
        def slope(y: jax.Array) -> jax.Array:
            return forward(params, y)

        def step(y: jax.Array, _: None) -> tuple[jax.Array, None]:
            one = slope(y)
            two = slope(y + 0.05 * one)
            three = slope(y + 0.05 * two)
            four = slope(y + 0.1 * three)
            return y + 0.1 / 6 * (one + 2 * two + 2 * three + four), None

        return jnp.square(lax.scan(jax.checkpoint(step), x, None, length=steps)[0]).mean()

    return make_training(lambda key: layers_of(key, [width] * 4), normal(batch, width), loss)


def aligned_speech(batch: int, frames: int, letters: int, width: int) -> JaxTraining:
    """A loss over all alignments of letters with frames (CTC), by a scan over frames."""

    def loss(params: Tree, data: Tree) -> jax.Array:
        said = jax.nn.log_softmax(forward(params, data["x"], jax.nn.relu))
        at = jnp.broadcast_to(data["y"][None], (frames, batch, letters))
        scores = jnp.take_along_axis(said, at, axis=-1)

        def frame(alpha: jax.Array, score: jax.Array) -> tuple[jax.Array, None]:
            moved = jnp.pad(alpha[:, :-1], ((0, 0), (1, 0)), constant_values=-1e9)
            return jnp.logaddexp(alpha, moved) + score, None

        first = jnp.full((batch, letters), -1e9).at[:, 0].set(0.0)
        return -lax.scan(frame, first, scores)[0][:, -1].mean()

    def batch_of(key: jax.Array) -> Tree:
        x = jax.random.normal(key, (frames, batch, 80))
        return {"x": x, "y": jax.random.randint(key, (batch, letters), 1, 64)}

    widths = (80, width, width, 64)
    return make_training(lambda key: layers_of(key, widths), batch_of, loss)


def fixed_point(batch: int, width: int, turns: int) -> JaxTraining:
    """A layer iterated towards its fixed point, with gradients of the last turns alone."""

    def loss(params: Tree, x: jax.Array) -> jax.Array:
        def turn(_: int, z: jax.Array) -> jax.Array:
            return jnp.tanh(0.5 * (z @ params[0]) + x @ params[1])

        settled = lax.stop_gradient(lax.fori_loop(0, turns, turn, jnp.zeros_like(x)))
        return jnp.square(turn(0, turn(0, settled))).mean()

    return make_training(lambda key: layers_of(key, [width] * 3), normal(batch, width), loss)
