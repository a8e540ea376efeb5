"""Networks in plain JAX with loops over time, and one that removes noise."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from lab.steps.jax_nets import attention_of, group_norm, keys_of, labelled, norm_init, tokens_of
from wavecast.suite.jax_models import (
    JaxTraining,
    Tree,
    compute_type,
    convolve,
    cross_entropy,
    dense_init,
    lstm_layer,
    make_training,
)


def recurrent(
    batch: int,
    sequence: int,
    width: int,
    layers: int,
    precision: str,
    *,
    cell: str = "lstm",
    vocabulary: int = 8000,
    optimizer: str = "adamw",
) -> JaxTraining:
    """A language model of LSTM or GRU layers, each a scan over time."""
    gates = 4 if cell == "lstm" else 3

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        cells = [
            {
                "input": dense_init(next(keys), width, gates * width),
                "hidden": dense_init(next(keys), width, gates * width),
                "bias": jnp.zeros((gates * width,)),
            }
            for _ in range(layers)
        ]
        return {
            "table": dense_init(next(keys), vocabulary, width),
            "cells": cells,
            "head": dense_init(next(keys), width, vocabulary),
        }

    def gru_layer(x: jax.Array, p: Tree) -> jax.Array:
        gates_in = x @ p["input"].astype(x.dtype) + p["bias"].astype(x.dtype)
        weight = p["hidden"].astype(x.dtype)

        def one(hidden: jax.Array, given: jax.Array) -> Any:
            a, b, c = jnp.split(given, 3, axis=-1)
            r, z, n = jnp.split(hidden @ weight, 3, axis=-1)
            reset, kept = jax.nn.sigmoid(a + r), jax.nn.sigmoid(b + z)
            hidden = kept * hidden + (1 - kept) * jnp.tanh(c + reset * n)
            return hidden, hidden

        return jax.lax.scan(one, jnp.zeros((x.shape[1], width), x.dtype), gates_in)[1]

    def loss(params: Tree, data: Tree) -> jax.Array:
        x = params["table"][data["x"]].astype(compute_type(precision)).swapaxes(0, 1)
        for p in params["cells"]:
            x = lstm_layer(x, p) if cell == "lstm" else gru_layer(x, p)
        return cross_entropy(x @ params["head"].astype(x.dtype), data["y"].T)

    return make_training(init, tokens_of(batch, sequence, vocabulary), loss, optimizer=optimizer)


def _block_init(keys: Any, width_in: int, width: int) -> Tree:
    return {
        "n1": norm_init(width_in),
        "a": dense_init(next(keys), 3, 3, width_in, width),
        "t": dense_init(next(keys), 128, width),
        "n2": norm_init(width),
        "b": dense_init(next(keys), 3, 3, width, width),
        "s": dense_init(next(keys), 1, 1, width_in, width),
    }


def _block(x: jax.Array, time: jax.Array, p: Tree) -> jax.Array:
    y = convolve(jax.nn.silu(group_norm(x, **p["n1"])), p["a"])
    y = y + (time @ p["t"].astype(x.dtype))[:, None, None]
    y = convolve(jax.nn.silu(group_norm(y, **p["n2"])), p["b"])
    return y + convolve(x, p["s"])


def denoiser(
    batch: int, image: int, widths: tuple[int, ...], precision: str, *, attended: bool = True
) -> JaxTraining:
    """A U-Net that predicts noise: group norm, SiLU, time embedding, attention in the middle."""

    def init(key: jax.Array) -> Tree:
        keys, width_in, down = keys_of(key), widths[0], []
        for width in widths:
            down.append(_block_init(keys, width_in, width))
            width_in = width
        up, deep = [], widths[-1]
        for width in reversed(widths):
            up.append(_block_init(keys, width_in + width, width))
            width_in = width
        return {
            "stem": dense_init(next(keys), 3, 3, 4, widths[0]),
            "down": down,
            "qkv": dense_init(next(keys), deep, 3 * deep),
            "o": dense_init(next(keys), deep, deep),
            "up": up,
            "head": dense_init(next(keys), 3, 3, widths[0], 4),
        }

    def loss(params: Tree, data: Tree) -> jax.Array:
        clean = data["x"].astype(compute_type(precision))
        noise = jax.random.normal(jax.random.key(1), clean.shape, clean.dtype)
        angle = data["y"][:, None] * jnp.exp(-jnp.arange(64) / 8)
        time = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1).astype(clean.dtype)
        x = convolve(clean * 0.7 + noise * 0.7, params["stem"])
        kept = []
        for p in params["down"]:
            x = _block(x, time, p)
            kept.append(x)
            x = jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
        if attended:
            flat = x.reshape(batch, -1, 4, x.shape[-1] // 4)
            q, k, v = jnp.split(
                (x.reshape(batch, -1, x.shape[-1]) @ params["qkv"].astype(x.dtype)), 3, -1
            )
            q, k, v = (part.reshape(flat.shape) for part in (q, k, v))
            y = attention_of(q, k, v, "xla").reshape(batch, -1, x.shape[-1])
            x = x + (y @ params["o"].astype(x.dtype)).reshape(x.shape)
        for p in params["up"]:
            x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
            x = _block(jnp.concatenate([x, kept.pop()], -1), time, p)
        out = convolve(x, params["head"])
        return jnp.mean(jnp.square((out - noise).astype(jnp.float32)))

    return make_training(init, labelled((batch, image, image, 4), 1000), loss)
