"""Models of the suite in plain JAX: ResNet-50, GPT-2 and an LSTM language model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

_NHWC = ("NHWC", "HWIO", "NHWC")


def convolve(
    x: jax.Array, weight: jax.Array, stride: int = 1, groups: int = 1, padding: str = "SAME"
) -> jax.Array:
    """A 2D convolution in NHWC, with the weight in the type of the activations."""
    return jax.lax.conv_general_dilated(
        x,
        weight.astype(x.dtype),
        (stride, stride),
        padding,
        dimension_numbers=_NHWC,
        feature_group_count=groups,
    )


def batch_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    """Batch norm with the statistics of the batch, in float32."""
    wide = x.astype(jnp.float32)
    mean = wide.mean((0, 1, 2))
    variance = jnp.square(wide).mean((0, 1, 2)) - jnp.square(mean)
    return ((wide - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + bias).astype(x.dtype)


def _norm_init(width: int) -> Tree:
    return {"scale": jnp.ones((width,)), "bias": jnp.zeros((width,))}


def resnet50(batch: int, precision: str, *, image: int = 224) -> JaxTraining:
    """ResNet-50 (He et al., 2015) on images in NHWC, with momentum."""
    stages = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))

    def init(key: jax.Array) -> Tree:
        keys = iter(jax.random.split(key, 64))
        params: Tree = {"stem": dense_init(next(keys), 7, 7, 3, 64), "stem_norm": _norm_init(64)}
        blocks, width_in = [], 64
        for count, width, _ in stages:
            for position in range(count):
                block = {
                    "conv1": dense_init(next(keys), 1, 1, width_in, width),
                    "conv2": dense_init(next(keys), 3, 3, width, width),
                    "conv3": dense_init(next(keys), 1, 1, width, 4 * width),
                    **{f"norm{n}": _norm_init(w) for n, w in enumerate((width, width, 4 * width))},
                }
                if position == 0:
                    block["shortcut"] = dense_init(next(keys), 1, 1, width_in, 4 * width)
                    block["shortcut_norm"] = _norm_init(4 * width)
                blocks.append(block)
                width_in = 4 * width
        head = {"weight": dense_init(next(keys), 2048, 1000), "bias": jnp.zeros((1000,))}
        return {**params, "blocks": blocks, "head": head}

    def block_of(x: jax.Array, p: Tree, stride: int) -> jax.Array:
        shortcut = x
        if "shortcut" in p:
            shortcut = batch_norm(convolve(x, p["shortcut"], stride), **p["shortcut_norm"])
        x = jax.nn.relu(batch_norm(convolve(x, p["conv1"]), **p["norm0"]))
        x = jax.nn.relu(batch_norm(convolve(x, p["conv2"], stride), **p["norm1"]))
        x = batch_norm(convolve(x, p["conv3"]), **p["norm2"])
        return jax.nn.relu(x + shortcut)

    def loss(params: Tree, data: Tree) -> jax.Array:
        x = data["image"].astype(compute_type(precision))
        with jax.named_scope("stem"):
            x = jax.nn.relu(batch_norm(convolve(x, params["stem"], 2), **params["stem_norm"]))
            window = (1, 3, 3, 1), (1, 2, 2, 1), "SAME"
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, *window)
        strides = [s if n == 0 else 1 for count, _, s in stages for n in range(count)]
        for number, (p, stride) in enumerate(zip(params["blocks"], strides, strict=True)):
            with jax.named_scope(f"blocks.{number}"):
                x = block_of(x, p, stride)
        with jax.named_scope("head"):
            pooled = x.mean((1, 2))
            weight = params["head"]["weight"].astype(pooled.dtype)
            return cross_entropy(pooled @ weight + params["head"]["bias"], data["label"])

    def batch_of(key: jax.Array) -> Tree:
        images = jax.random.normal(key, (batch, image, image, 3))
        return {"image": images, "label": jax.random.randint(key, (batch,), 0, 1000)}

    return make_training(init, batch_of, loss, optimizer="momentum")


def _gpt_block(keys: Any, width: int) -> Tree:
    sizes = {"qkv": (width, 3 * width), "out": (width, width)}
    sizes |= {"up": (width, 4 * width), "down": (4 * width, width)}
    weights = {name: dense_init(next(keys), *size) for name, size in sizes.items()}
    biases = {f"{name}_bias": jnp.zeros(size[1:]) for name, size in sizes.items()}
    return {"norm1": _norm_init(width), "norm2": _norm_init(width), **weights, **biases}


def gpt2(
    batch: int,
    precision: str,
    *,
    sequence: int = 1024,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    vocabulary: int = 50257,
) -> JaxTraining:
    """GPT-2 small (Radford et al., 2019): layers written out, attention in plain JAX, AdamW."""

    def init(key: jax.Array) -> Tree:
        keys = iter(jax.random.split(key, 4 * layers + 2))
        blocks = [_gpt_block(keys, width) for _ in range(layers)]
        tokens = dense_init(next(keys), vocabulary, width)
        positions = dense_init(next(keys), sequence, width)
        return {
            "tokens": tokens,
            "positions": positions,
            "blocks": blocks,
            "norm": _norm_init(width),
        }

    def linear(x: jax.Array, p: Tree, name: str) -> jax.Array:
        return x @ p[name].astype(x.dtype) + p[f"{name}_bias"].astype(x.dtype)

    def attend(x: jax.Array, p: Tree) -> jax.Array:
        shape = (*x.shape[:2], heads, width // heads)
        q, k, v = (part.reshape(shape) for part in jnp.split(linear(x, p, "qkv"), 3, axis=-1))
        return linear(causal_attention(q, k, v).reshape(x.shape), p, "out")

    def loss(params: Tree, data: Tree) -> jax.Array:
        dtype = compute_type(precision)
        with jax.named_scope("embedding"):
            x = (params["tokens"][data["tokens"]] + params["positions"]).astype(dtype)
        for number, p in enumerate(params["blocks"]):
            with jax.named_scope(f"blocks.{number}"):
                with jax.named_scope("attention"):
                    x = x + attend(layer_norm(x, **p["norm1"]), p)
                with jax.named_scope("mlp"):
                    hidden = jax.nn.gelu(linear(layer_norm(x, **p["norm2"]), p, "up"))
                    x = x + linear(hidden, p, "down")
        with jax.named_scope("head"):
            logits = layer_norm(x, **params["norm"]) @ params["tokens"].astype(dtype).T
            return cross_entropy(logits, data["labels"])

    def batch_of(key: jax.Array) -> Tree:
        tokens = jax.random.randint(key, (batch, sequence + 1), 0, vocabulary)
        return {"tokens": tokens[:, :-1], "labels": tokens[:, 1:]}

    return make_training(init, batch_of, loss)


def causal_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention of (batch, sequence, heads, width), with its scores in memory."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(mask, scores.astype(jnp.float32), -1e9))
    return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(q.dtype), v)


def lstm(
    batch: int,
    precision: str,
    *,
    sequence: int = 256,
    width: int = 1024,
    layers: int = 2,
    vocabulary: int = 10000,
) -> JaxTraining:
    """An LSTM language model (Zaremba et al., 2014): a scan over time for each layer, AdamW."""

    def init(key: jax.Array) -> Tree:
        keys = iter(jax.random.split(key, 2 * layers + 2))
        cells = [
            {
                "input": dense_init(next(keys), width, 4 * width),
                "hidden": dense_init(next(keys), width, 4 * width),
                "bias": jnp.zeros((4 * width,)),
            }
            for _ in range(layers)
        ]
        table, head = (
            dense_init(next(keys), vocabulary, width),
            dense_init(next(keys), width, vocabulary),
        )
        return {"table": table, "cells": cells, "head": head}

    def loss(params: Tree, data: Tree) -> jax.Array:
        dtype = compute_type(precision)
        x = params["table"][data["tokens"]].astype(dtype).swapaxes(0, 1)
        for number, p in enumerate(params["cells"]):
            with jax.named_scope(f"cells.{number}"):
                x = lstm_layer(x, p)
        with jax.named_scope("head"):
            logits = x @ params["head"].astype(dtype)
            return cross_entropy(logits, data["labels"].T)

    def batch_of(key: jax.Array) -> Tree:
        tokens = jax.random.randint(key, (batch, sequence + 1), 0, vocabulary)
        return {"tokens": tokens[:, :-1], "labels": tokens[:, 1:]}

    return make_training(init, batch_of, loss)


def lstm_layer(x: jax.Array, p: Tree) -> jax.Array:
    """One layer of an LSTM over (time, batch, width)."""
    gates_in = x @ p["input"].astype(x.dtype) + p["bias"].astype(x.dtype)
    weight = p["hidden"].astype(x.dtype)

    def cell(state: tuple[jax.Array, jax.Array], gates: jax.Array) -> Any:
        hidden, memory = state
        i, f, g, o = jnp.split(gates + hidden @ weight, 4, axis=-1)
        memory = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(memory)
        return (hidden, memory), hidden

    zeros = jnp.zeros((x.shape[1], weight.shape[0]), x.dtype)
    _, outputs = jax.lax.scan(cell, (zeros, zeros), gates_in)
    return outputs


# Training steps in plain JAX: a loss, its gradients and an update, jitted, with donated state.


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
    """The training of parameters on a batch, with a loss and one of `OPTIMIZERS`; a random key
    gives the parameters, another the batch."""
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
