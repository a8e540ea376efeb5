"""More networks in plain JAX: experts, recommenders, graphs, state spaces, sound and volumes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from lab.steps.jax_nets import keys_of, labelled, norm_init, tokens_of
from wavecast.suite.jax_models import (
    JaxTraining,
    Tree,
    causal_attention,
    compute_type,
    cross_entropy,
    dense_init,
    layer_norm,
    make_training,
)


def mixture(
    batch: int,
    sequence: int,
    width: int,
    layers: int,
    experts: int,
    precision: str,
    *,
    top: int = 2,
) -> JaxTraining:
    """A decoder whose MLPs are mixtures of experts with a capacity, dispatched by matmuls."""
    capacity = 2 * top * sequence // experts

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        blocks = [
            {
                "n1": norm_init(width),
                "n2": norm_init(width),
                "qkv": dense_init(next(keys), width, 3 * width),
                "o": dense_init(next(keys), width, width),
                "router": dense_init(next(keys), width, experts),
                "up": dense_init(next(keys), experts, width, 2 * width),
                "down": dense_init(next(keys), experts, 2 * width, width),
            }
            for _ in range(layers)
        ]
        return {
            "table": dense_init(next(keys), 16000, width),
            "blocks": blocks,
            "n": norm_init(width),
        }

    def experts_of(x: jax.Array, p: Tree) -> jax.Array:
        scores = jax.nn.softmax((x @ p["router"].astype(x.dtype)).astype(jnp.float32))
        weight, chosen = jax.lax.top_k(scores, top)
        hot = jax.nn.one_hot(chosen, experts).reshape(batch, sequence * top, experts)
        place = (jnp.cumsum(hot, axis=1) * hot - 1).reshape(batch, sequence, top, experts)
        slot = jax.nn.one_hot(place, capacity, dtype=x.dtype)
        dispatch = slot.sum(2)
        combine = (slot * weight[..., None, None].astype(x.dtype)).sum(2)
        given = jnp.einsum("bsec,bsd->becd", dispatch, x)
        hidden = jax.nn.gelu(jnp.einsum("becd,edf->becf", given, p["up"].astype(x.dtype)))
        out = jnp.einsum("becf,efd->becd", hidden, p["down"].astype(x.dtype))
        return jnp.einsum("bsec,becd->bsd", combine, out)

    def loss(params: Tree, data: Tree) -> jax.Array:
        x = params["table"][data["x"]].astype(compute_type(precision))
        for p in params["blocks"]:
            y = layer_norm(x, **p["n1"]) @ p["qkv"].astype(x.dtype)
            parts = (part.reshape(batch, sequence, -1, 64) for part in jnp.split(y, 3, -1))
            x = x + causal_attention(*parts).reshape(x.shape) @ p["o"].astype(x.dtype)
            x = x + experts_of(layer_norm(x, **p["n2"]), p)
        logits = layer_norm(x, **params["n"]) @ params["table"].astype(x.dtype).T
        return cross_entropy(logits, data["y"])

    return make_training(init, tokens_of(batch, sequence, 16000), loss)


def recommender(
    batch: int, tables: int, rows: int, width: int, precision: str, *, optimizer: str = "sgd"
) -> JaxTraining:
    """Embedding tables, an MLP of dense features and their dot products, as in DLRM."""

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        pairs = (tables + 1) * tables // 2 + width
        return {
            "tables": [dense_init(next(keys), rows, width) for _ in range(tables)],
            "bottom": [dense_init(next(keys), a, b) for a, b in ((64, 512), (512, width))],
            "top": [
                dense_init(next(keys), a, b) for a, b in ((pairs, 1024), (1024, 512), (512, 2))
            ],
        }

    def loss(params: Tree, data: Tree) -> jax.Array:
        dtype = compute_type(precision)
        x = data["x"].astype(dtype)
        for w in params["bottom"]:
            x = jax.nn.relu(x @ w.astype(dtype))
        rows_of = [t[data["index"][:, n]].astype(dtype) for n, t in enumerate(params["tables"])]
        features = jnp.stack([x, *rows_of], axis=1)
        dots = jnp.einsum("bid,bjd->bij", features, features)
        first, second = jnp.triu_indices(tables + 1, 1)
        x = jnp.concatenate([x, dots[:, first, second]], axis=1)
        for w in params["top"][:-1]:
            x = jax.nn.relu(x @ w.astype(dtype))
        return cross_entropy(x @ params["top"][-1].astype(dtype), data["y"])

    def batch_of(key: jax.Array) -> Tree:
        index = jax.random.randint(key, (batch, tables), 0, rows)
        return {**labelled((batch, 64), 2)(key), "index": index}

    return make_training(init, batch_of, loss, optimizer=optimizer)


def graph_net(nodes: int, edges: int, width: int, layers: int, precision: str) -> JaxTraining:
    """Messages along edges, summed at nodes: gathers and scatters."""

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        layer = [
            {"m": dense_init(next(keys), width, width), "u": dense_init(next(keys), width, width)}
            for _ in range(layers)
        ]
        return {"layers": layer, "head": dense_init(next(keys), width, 40)}

    def loss(params: Tree, data: Tree) -> jax.Array:
        x = data["x"].astype(compute_type(precision))
        for p in params["layers"]:
            message = jax.nn.relu(x[data["from"]] @ p["m"].astype(x.dtype))
            total = jax.ops.segment_sum(message, data["to"], nodes)
            x = jax.nn.relu(x + total @ p["u"].astype(x.dtype))
        return cross_entropy(x @ params["head"].astype(x.dtype), data["y"])

    def batch_of(key: jax.Array) -> Tree:
        ends = jax.random.randint(key, (2, edges), 0, nodes)
        return {**labelled((nodes, width), 40)(key), "from": ends[0], "to": ends[1]}

    return make_training(init, batch_of, loss)


def state_space(batch: int, sequence: int, width: int, layers: int, precision: str) -> JaxTraining:
    """Gated linear recurrences by an associative scan, with a short convolution."""

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        blocks = [
            {
                "n": norm_init(width),
                "in": dense_init(next(keys), width, 3 * width),
                "conv": dense_init(next(keys), 4, 1, width),
                "out": dense_init(next(keys), width, width),
            }
            for _ in range(layers)
        ]
        return {"table": dense_init(next(keys), 8000, width), "blocks": blocks}

    def combine(a: Any, b: Any) -> Any:
        return a[0] * b[0], b[0] * a[1] + b[1]

    def loss(params: Tree, data: Tree) -> jax.Array:
        x = params["table"][data["x"]].astype(compute_type(precision))
        for p in params["blocks"]:
            y = layer_norm(x, **p["n"]) @ p["in"].astype(x.dtype)
            given, decay, gate = jnp.split(y, 3, -1)
            given = jax.lax.conv_general_dilated(
                given,
                p["conv"].astype(x.dtype),
                (1,),
                [(3, 0)],
                dimension_numbers=("NHC", "HIO", "NHC"),
                feature_group_count=width,
            )
            pair = jax.nn.sigmoid(decay.astype(jnp.float32)), given.astype(jnp.float32)
            _, hidden = jax.lax.associative_scan(combine, pair, axis=1)
            y = hidden.astype(x.dtype) * jax.nn.silu(gate)
            x = x + y @ p["out"].astype(x.dtype)
        return cross_entropy(x @ params["table"].astype(x.dtype).T, data["y"])

    return make_training(init, tokens_of(batch, sequence, 8000), loss)


def sound_net(batch: int, length: int, width: int, layers: int, precision: str) -> JaxTraining:
    """Dilated convolutions along time with gates, as in WaveNet."""

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        blocks = [
            {
                "a": dense_init(next(keys), 3, width, 2 * width),
                "b": dense_init(next(keys), width, width),
            }
            for _ in range(layers)
        ]
        return {
            "stem": dense_init(next(keys), 1, width),
            "blocks": blocks,
            "head": dense_init(next(keys), width, 64),
        }

    def loss(params: Tree, data: Tree) -> jax.Array:
        x = data["x"].astype(compute_type(precision)) @ params["stem"].astype(
            compute_type(precision)
        )
        for number, p in enumerate(params["blocks"]):
            dilation = 2 ** (number % 6)
            y = jax.lax.conv_general_dilated(
                x,
                p["a"].astype(x.dtype),
                (1,),
                [(2 * dilation, 0)],
                rhs_dilation=(dilation,),
                dimension_numbers=("NHC", "HIO", "NHC"),
            )
            value, gate = jnp.split(y, 2, -1)
            x = x + (jnp.tanh(value) * jax.nn.sigmoid(gate)) @ p["b"].astype(x.dtype)
        return cross_entropy(x.mean(1) @ params["head"].astype(x.dtype), data["y"])

    return make_training(init, labelled((batch, length, 1), 64), loss)


def volume_net(batch: int, side: int, width: int, layers: int, precision: str) -> JaxTraining:
    """Convolutions in three dimensions with instance norm."""

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        sizes = [(2, width)] + [(width, width)] * (layers - 1)
        return {
            "layers": [dense_init(next(keys), 3, 3, 3, a, b) for a, b in sizes],
            "head": dense_init(next(keys), width, 4),
        }

    def loss(params: Tree, data: Tree) -> jax.Array:
        x = data["x"].astype(compute_type(precision))
        for weight in params["layers"]:
            x = jax.lax.conv_general_dilated(
                x,
                weight.astype(x.dtype),
                (1, 1, 1),
                "SAME",
                dimension_numbers=("NDHWC", "DHWIO", "NDHWC"),
            )
            wide = x.astype(jnp.float32)
            mean, variance = wide.mean((1, 2, 3), keepdims=True), wide.var((1, 2, 3), keepdims=True)
            x = jax.nn.leaky_relu((wide - mean) * jax.lax.rsqrt(variance + 1e-5)).astype(x.dtype)
        return cross_entropy(x.mean((1, 2, 3)) @ params["head"].astype(x.dtype), data["y"])

    return make_training(init, labelled((batch, side, side, side, 2), 4), loss)


def two_towers(batch: int, width: int, depth: int, precision: str) -> JaxTraining:
    """Two encoders and a contrastive loss over all pairs of the batch, as in CLIP."""

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        return {
            tower: [
                {"w": dense_init(next(keys), width, width), **norm_init(width)}
                for _ in range(depth)
            ]
            for tower in ("a", "b")
        }

    def encode(x: jax.Array, layers: Tree) -> jax.Array:
        for p in layers:
            x = x + jax.nn.gelu(layer_norm(x, p["scale"], p["bias"]) @ p["w"].astype(x.dtype))
        wide = x.astype(jnp.float32)
        return (wide / jnp.linalg.norm(wide, axis=-1, keepdims=True)).astype(x.dtype)

    def loss(params: Tree, data: Tree) -> jax.Array:
        x = data["x"].astype(compute_type(precision))
        scores = encode(x, params["a"]) @ encode(x[:, ::-1], params["b"]).T * 20
        same = jnp.arange(batch)
        return cross_entropy(scores, same) + cross_entropy(scores.T, same)

    return make_training(init, labelled((batch, width), 2), loss)
