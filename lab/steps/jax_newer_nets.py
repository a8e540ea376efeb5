"""Networks in plain JAX of kinds that the fit of XLA's kernels has not seen, for a blind test."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from lab.steps.jax_nets import attention_of, keys_of, labelled, norm_init, tokens_of
from wavecast.suite.jax_models import (
    JaxTraining,
    Tree,
    batch_norm,
    causal_attention,
    compute_type,
    convolve,
    cross_entropy,
    dense_init,
    layer_norm,
    lstm_layer,
    make_training,
)


def _normed(keys: Any, *sizes: int) -> Tree:
    return {"w": dense_init(next(keys), *sizes), "n": norm_init(sizes[-1])}


def mobile_net(
    batch: int, image: int, widths: tuple[int, ...], kernel: int, precision: str
) -> JaxTraining:
    """Inverted bottlenecks with depthwise convolutions and gates of channels, as in MobileNetV3."""

    def init(key: jax.Array) -> Tree:
        keys, before, blocks = keys_of(key), widths[0], []
        for width in widths:
            wide = 4 * before
            blocks.append(
                {
                    "up": _normed(keys, 1, 1, before, wide),
                    "dw": _normed(keys, kernel, kernel, 1, wide),
                    "squeeze": dense_init(next(keys), wide, wide // 4),
                    "excite": dense_init(next(keys), wide // 4, wide),
                    "down": _normed(keys, 1, 1, wide, width),
                }
            )
            before = width
        stem, head = _normed(keys, 3, 3, 3, widths[0]), dense_init(next(keys), before, 1000)
        return {"stem": stem, "blocks": blocks, "head": head}

    def loss(params: Tree, data: Tree) -> jax.Array:
        x = data["x"].astype(compute_type(precision))
        x = jax.nn.silu(batch_norm(convolve(x, params["stem"]["w"], 2), **params["stem"]["n"]))
        for number, p in enumerate(params["blocks"]):
            y = jax.nn.silu(batch_norm(convolve(x, p["up"]["w"]), **p["up"]["n"]))
            stride = 2 if number % 2 else 1
            y = convolve(y, p["dw"]["w"], stride, groups=y.shape[-1])
            y = jax.nn.silu(batch_norm(y, **p["dw"]["n"]))
            gate = jax.nn.relu(y.mean((1, 2)) @ p["squeeze"].astype(y.dtype))
            y = y * jax.nn.sigmoid(gate @ p["excite"].astype(y.dtype))[:, None, None]
            y = batch_norm(convolve(y, p["down"]["w"]), **p["down"]["n"])
            x = x + y if x.shape == y.shape else y
        return cross_entropy(x.mean((1, 2)) @ params["head"].astype(x.dtype), data["y"])

    shape = (batch, image, image, 3)
    return make_training(init, labelled(shape, 1000), loss, optimizer="momentum")


def staged_convnext(
    batch: int, image: int, widths: tuple[int, ...], blocks: int, precision: str
) -> JaxTraining:
    """Stages of 7x7 depthwise convolutions, halved in between, as in ConvNeXt."""

    def init(key: jax.Array) -> Tree:
        keys, before, stages = keys_of(key), 3, []
        for number, width in enumerate(widths):
            size = 2 if number else 4
            inside = [
                {
                    "dw": dense_init(next(keys), 7, 7, 1, width),
                    "n": norm_init(width),
                    "up": dense_init(next(keys), width, 4 * width),
                    "down": dense_init(next(keys), 4 * width, width),
                    "scale": jnp.full((width,), 1e-6),
                }
                for _ in range(blocks)
            ]
            stages.append(
                {"halve": dense_init(next(keys), size, size, before, width), "in": inside}
            )
            before = width
        return {"stages": stages, "head": dense_init(next(keys), before, 1000)}

    def loss(params: Tree, data: Tree) -> jax.Array:
        x = data["x"].astype(compute_type(precision))
        for stage in params["stages"]:
            x = convolve(x, stage["halve"], stage["halve"].shape[0], padding="VALID")
            for p in stage["in"]:
                y = layer_norm(convolve(x, p["dw"], groups=x.shape[-1]), **p["n"])
                y = jax.nn.gelu(y @ p["up"].astype(x.dtype)) @ p["down"].astype(x.dtype)
                x = x + y * p["scale"].astype(x.dtype)
        return cross_entropy(x.mean((1, 2)) @ params["head"].astype(x.dtype), data["y"])

    return make_training(init, labelled((batch, image, image, 3), 1000), loss)


def dense_net(batch: int, image: int, grown: int, layers: int, precision: str) -> JaxTraining:
    """Layers that read the results of all before them, as in DenseNet."""

    def init(key: jax.Array) -> Tree:
        keys, width, found = keys_of(key), 2 * grown, []
        for _ in range(layers):
            found.append(
                {
                    "n": norm_init(width),
                    "a": _normed(keys, 1, 1, width, 4 * grown),
                    "b": dense_init(next(keys), 3, 3, 4 * grown, grown),
                }
            )
            width += grown
        return {
            "stem": dense_init(next(keys), 3, 3, 3, 2 * grown),
            "layers": found,
            "head": dense_init(next(keys), width, 100),
        }

    def loss(params: Tree, data: Tree) -> jax.Array:
        x = convolve(data["x"].astype(compute_type(precision)), params["stem"])
        for p in params["layers"]:
            y = convolve(jax.nn.relu(batch_norm(x, **p["n"])), p["a"]["w"])
            y = convolve(jax.nn.relu(batch_norm(y, **p["a"]["n"])), p["b"])
            x = jnp.concatenate([x, y], -1)
        return cross_entropy(x.mean((1, 2)) @ params["head"].astype(x.dtype), data["y"])

    shape = (batch, image, image, 3)
    return make_training(init, labelled(shape, 100), loss, optimizer="momentum")


def _attended(x: jax.Array, context: jax.Array, p: Tree, heads: int, how: str) -> jax.Array:
    q = x @ p["q"].astype(x.dtype)
    k, v = jnp.split(context @ p["kv"].astype(x.dtype), 2, -1)
    q, k, v = (one.reshape(*one.shape[:2], heads, -1) for one in (q, k, v))
    return attention_of(q, k, v, how).reshape(x.shape) @ p["o"].astype(x.dtype)


def _attention_init(keys: Any, width: int) -> Tree:
    return {
        "n": norm_init(width),
        "q": dense_init(next(keys), width, width),
        "kv": dense_init(next(keys), width, 2 * width),
        "o": dense_init(next(keys), width, width),
    }


def _mlp_init(keys: Any, width: int) -> Tree:
    up, down = dense_init(next(keys), width, 4 * width), dense_init(next(keys), 4 * width, width)
    return {"n": norm_init(width), "up": up, "down": down}


def translator(
    batch: int, length: int, width: int, layers: int, heads: int, precision: str
) -> JaxTraining:
    """An encoder and a decoder that attends to it, as in the first transformer."""
    words = 16000

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        one = [
            {"self": _attention_init(keys, width), "mlp": _mlp_init(keys, width)}
            for _ in range(layers)
        ]
        two = [
            {
                "self": _attention_init(keys, width),
                "cross": _attention_init(keys, width),
                "mlp": _mlp_init(keys, width),
            }
            for _ in range(layers)
        ]
        return {"table": dense_init(next(keys), words, width), "encoder": one, "decoder": two}

    def mlp(x: jax.Array, p: Tree) -> jax.Array:
        y = jax.nn.relu(layer_norm(x, **p["n"]) @ p["up"].astype(x.dtype))
        return x + y @ p["down"].astype(x.dtype)

    def loss(params: Tree, data: Tree) -> jax.Array:
        table = params["table"].astype(compute_type(precision))
        x, y = table[data["x"]], table[jnp.roll(data["y"], 1, -1)]
        for p in params["encoder"]:
            given = layer_norm(x, **p["self"]["n"])
            x = mlp(x + _attended(given, given, p["self"], heads, "xla"), p["mlp"])
        for p in params["decoder"]:
            given = layer_norm(y, **p["self"]["n"])
            y = y + _attended(given, given, p["self"], heads, "plain")
            given = layer_norm(y, **p["cross"]["n"])
            y = mlp(y + _attended(given, x, p["cross"], heads, "xla"), p["mlp"])
        return cross_entropy(y @ table.T, data["y"])

    return make_training(init, tokens_of(batch, length, words), loss)


def masked_language_model(
    batch: int, length: int, width: int, layers: int, heads: int, precision: str
) -> JaxTraining:
    """An encoder of padded texts with dropout, norms last, as in BERT."""
    words = 30522

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        blocks = [
            {"attention": _attention_init(keys, width), "mlp": _mlp_init(keys, width)}
            for _ in range(layers)
        ]
        table, places = dense_init(next(keys), words, width), dense_init(next(keys), length, width)
        return {"table": table, "places": places, "blocks": blocks, "b": jnp.zeros((words,))}

    def dropped(x: jax.Array, number: int) -> jax.Array:
        kept = jax.random.bernoulli(jax.random.key(number), 0.9, x.shape)
        return jnp.where(kept, x / 0.9, 0).astype(x.dtype)

    def loss(params: Tree, data: Tree) -> jax.Array:
        dtype = compute_type(precision)
        x = params["table"].astype(dtype)[data["x"]] + params["places"].astype(dtype)
        seen = (data["x"] > 0)[:, None, None, :]
        for number, p in enumerate(params["blocks"]):
            a, m = p["attention"], p["mlp"]
            q, kv = x @ a["q"].astype(dtype), x @ a["kv"].astype(dtype)
            parts = (t.reshape(batch, length, heads, -1) for t in (q, *jnp.split(kv, 2, -1)))
            y = jax.nn.dot_product_attention(*parts, mask=seen, implementation="xla")
            y = y.reshape(x.shape) @ a["o"].astype(dtype)
            x = layer_norm(x + dropped(y, 2 * number), **a["n"])
            y = jax.nn.gelu(x @ m["up"].astype(dtype), approximate=False) @ m["down"].astype(dtype)
            x = layer_norm(x + dropped(y, 2 * number + 1), **m["n"])
        return cross_entropy(x @ params["table"].astype(dtype).T + params["b"], data["y"])

    return make_training(init, tokens_of(batch, length, words), loss)


def attending_lstm(
    batch: int, length: int, width: int, precision: str, *, words: int = 10000
) -> JaxTraining:
    """An LSTM that reads, one that writes, and attention between them."""

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        names = ("reader", "writer")
        return {
            "table": dense_init(next(keys), words, width),
            **{
                name: {
                    "input": dense_init(next(keys), width, 4 * width),
                    "hidden": dense_init(next(keys), width, 4 * width),
                    "bias": jnp.zeros((4 * width,)),
                }
                for name in names
            },
            "head": dense_init(next(keys), 2 * width, words),
        }

    def loss(params: Tree, data: Tree) -> jax.Array:
        table = params["table"].astype(compute_type(precision))
        read = lstm_layer(table[data["x"]].swapaxes(0, 1), params["reader"])
        write = lstm_layer(table[data["y"]].swapaxes(0, 1), params["writer"])
        scores = jnp.einsum("tbd,sbd->bts", write, read).astype(jnp.float32)
        found = jnp.einsum("bts,sbd->tbd", jax.nn.softmax(scores).astype(read.dtype), read)
        both = jnp.concatenate([write, found], -1)
        return cross_entropy(both @ params["head"].astype(both.dtype), data["y"].T)

    return make_training(init, tokens_of(batch, length, words), loss)


def diffusion_transformer(
    batch: int, tokens: int, width: int, layers: int, heads: int, precision: str
) -> JaxTraining:
    """Blocks whose norms are set by the time of the noise, as in DiT."""

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        blocks = [
            {
                "set": dense_init(next(keys), width, 6 * width),
                "attention": _attention_init(keys, width),
                "mlp": _mlp_init(keys, width),
            }
            for _ in range(layers)
        ]
        sizes = {"in": (16, width), "time": (128, width), "out": (width, 16)}
        return {"blocks": blocks} | {n: dense_init(next(keys), *s) for n, s in sizes.items()}

    def loss(params: Tree, data: Tree) -> jax.Array:
        clean = data["x"].astype(compute_type(precision))
        noise = jax.random.normal(jax.random.key(1), clean.shape, clean.dtype)
        angle = data["y"][:, None] * jnp.exp(-jnp.arange(64) / 8)
        time = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1).astype(clean.dtype)
        time = jax.nn.silu(time @ params["time"].astype(clean.dtype))
        x = (clean * 0.6 + noise * 0.8) @ params["in"].astype(clean.dtype)
        for p in params["blocks"]:
            parts = jnp.split((time @ p["set"].astype(x.dtype))[:, None], 6, -1)
            y = layer_norm(x, **p["attention"]["n"]) * (1 + parts[0]) + parts[1]
            x = x + parts[2] * _attended(y, y, p["attention"], heads, "xla")
            y = layer_norm(x, **p["mlp"]["n"]) * (1 + parts[3]) + parts[4]
            y = jax.nn.gelu(y @ p["mlp"]["up"].astype(x.dtype)) @ p["mlp"]["down"].astype(x.dtype)
            x = x + parts[5] * y
        out = x @ params["out"].astype(x.dtype)
        return jnp.mean(jnp.square((out - noise).astype(jnp.float32)))

    return make_training(init, labelled((batch, tokens, 16), 1000), loss)


def session_recommender(
    batch: int, length: int, items: int, width: int, layers: int, precision: str
) -> JaxTraining:
    """What a user looks at next, from what was looked at: causal attention over items."""

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        blocks = [
            {"attention": _attention_init(keys, width), "mlp": _mlp_init(keys, width)}
            for _ in range(layers)
        ]
        return {"items": dense_init(next(keys), items, width), "blocks": blocks}

    def loss(params: Tree, data: Tree) -> jax.Array:
        dtype = compute_type(precision)
        x = params["items"][data["x"]].astype(dtype)
        for p in params["blocks"]:
            a, m = p["attention"], p["mlp"]
            y = layer_norm(x, **a["n"])
            q, kv = y @ a["q"].astype(dtype), y @ a["kv"].astype(dtype)
            parts = (t.reshape(batch, length, 2, -1) for t in (q, *jnp.split(kv, 2, -1)))
            x = x + causal_attention(*parts).reshape(x.shape) @ a["o"].astype(dtype)
            y = jax.nn.relu(layer_norm(x, **m["n"]) @ m["up"].astype(dtype))
            x = x + y @ m["down"].astype(dtype)
        right = (x * params["items"][data["y"]].astype(dtype)).sum(-1)
        wrong = (x * params["items"][jnp.roll(data["y"], 1, 0)].astype(dtype)).sum(-1)
        return -jnp.mean(jax.nn.log_sigmoid((right - wrong).astype(jnp.float32)))

    return make_training(init, tokens_of(batch, length, items), loss)
