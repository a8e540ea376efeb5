"""Networks in plain JAX, of many kinds, each a `JaxTraining`: the same code on a GPU and traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

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
    make_training,
)


def keys_of(key: jax.Array, count: int = 256) -> Any:
    """Random keys, one after the other."""
    return iter(jax.random.split(key, count))


def norm_init(width: int) -> Tree:
    return {"scale": jnp.ones((width,)), "bias": jnp.zeros((width,))}


def labelled(shape: tuple[int, ...], classes: int) -> Callable[[jax.Array], Tree]:
    def batch_of(key: jax.Array) -> Tree:
        labels = jax.random.randint(key, shape[:1], 0, classes)
        return {"x": jax.random.normal(key, shape), "y": labels}

    return batch_of


def tokens_of(batch: int, sequence: int, vocabulary: int) -> Callable[[jax.Array], Tree]:
    def batch_of(key: jax.Array) -> Tree:
        tokens = jax.random.randint(key, (batch, sequence + 1), 0, vocabulary)
        return {"x": tokens[:, :-1], "y": tokens[:, 1:]}

    return batch_of


def mlp(
    batch: int,
    width: int,
    depth: int,
    precision: str,
    *,
    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu,
    normed: bool = False,
    dropout: float = 0.0,
    optimizer: str = "adamw",
) -> JaxTraining:
    """Dense layers of one width, with or without layer norm and dropout."""

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        layers = [
            {
                "w": dense_init(next(keys), width, width),
                "b": jnp.zeros((width,)),
                **norm_init(width),
            }
            for _ in range(depth)
        ]
        return {"layers": layers, "head": dense_init(next(keys), width, 1000)}

    def loss(params: Tree, data: Tree) -> jax.Array:
        x = data["x"].astype(compute_type(precision))
        for number, p in enumerate(params["layers"]):
            x = activation(x @ p["w"].astype(x.dtype) + p["b"].astype(x.dtype))
            x = layer_norm(x, p["scale"], p["bias"]) if normed else x
            if dropout:
                kept = jax.random.bernoulli(jax.random.key(number), 1 - dropout, x.shape)
                x = jnp.where(kept, x / (1 - dropout), 0)
        return cross_entropy(x @ params["head"].astype(x.dtype), data["y"])

    return make_training(init, labelled((batch, width), 1000), loss, optimizer=optimizer)


def group_norm(x: jax.Array, scale: jax.Array, bias: jax.Array, groups: int = 8) -> jax.Array:
    """Group norm over space and the channels of a group, in float32."""
    wide = x.astype(jnp.float32).reshape(*x.shape[:-1], groups, -1)
    mean = wide.mean((1, 2, 4), keepdims=True)
    variance = wide.var((1, 2, 4), keepdims=True)
    normed = ((wide - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape)
    return (normed * scale + bias).astype(x.dtype)


NORMS = {"batch": batch_norm, "group": group_norm, "layer": layer_norm}


def basic_resnet(
    batch: int,
    image: int,
    widths: tuple[int, ...],
    blocks: int,
    precision: str,
    *,
    norm: str = "batch",
    optimizer: str = "momentum",
) -> JaxTraining:
    """A residual network of basic blocks, one stage for each width."""
    apply_norm = NORMS[norm]

    def init(key: jax.Array) -> Tree:
        keys, width_in, stages = keys_of(key), widths[0], []
        for width in widths:
            for _ in range(blocks):
                stages.append(
                    {
                        "a": dense_init(next(keys), 3, 3, width_in, width),
                        "na": norm_init(width),
                        "b": dense_init(next(keys), 3, 3, width, width),
                        "nb": norm_init(width),
                        "s": dense_init(next(keys), 1, 1, width_in, width),
                    }
                )
                width_in = width
        stem, head = (
            dense_init(next(keys), 3, 3, 3, widths[0]),
            dense_init(next(keys), widths[-1], 100),
        )
        return {"stem": stem, "blocks": stages, "head": head}

    def loss(params: Tree, data: Tree) -> jax.Array:
        x = convolve(data["x"].astype(compute_type(precision)), params["stem"])
        for number, p in enumerate(params["blocks"]):
            first = number % blocks == 0
            stride = 2 if first and number else 1
            shortcut = convolve(x, p["s"], stride) if first else x
            x = jax.nn.relu(apply_norm(convolve(x, p["a"], stride), **p["na"]))
            x = jax.nn.relu(apply_norm(convolve(x, p["b"]), **p["nb"]) + shortcut)
        return cross_entropy(x.mean((1, 2)) @ params["head"].astype(x.dtype), data["y"])

    return make_training(init, labelled((batch, image, image, 3), 100), loss, optimizer=optimizer)


def plain_convnet(
    batch: int, image: int, widths: tuple[int, ...], precision: str, *, optimizer: str = "momentum"
) -> JaxTraining:
    """Convolutions with bias and max pooling, then dense layers, as in VGG."""

    def init(key: jax.Array) -> Tree:
        keys, width_in, layers = keys_of(key), 3, []
        for width in widths:
            weight = dense_init(next(keys), 3, 3, width_in, width)
            layers.append({"w": weight, "b": jnp.zeros((width,))})
            width_in = width
        flat = (image // 2 ** len(widths)) ** 2 * widths[-1]
        return {
            "layers": layers,
            "fc": dense_init(next(keys), flat, 1024),
            "head": dense_init(next(keys), 1024, 100),
        }

    def loss(params: Tree, data: Tree) -> jax.Array:
        x = data["x"].astype(compute_type(precision))
        for p in params["layers"]:
            x = jax.nn.relu(convolve(x, p["w"]) + p["b"].astype(x.dtype))
            window = (1, 2, 2, 1)
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")
        x = jax.nn.relu(x.reshape(batch, -1) @ params["fc"].astype(x.dtype))
        return cross_entropy(x @ params["head"].astype(x.dtype), data["y"])

    return make_training(init, labelled((batch, image, image, 3), 100), loss, optimizer=optimizer)


def depthwise_net(
    batch: int, image: int, width: int, depth: int, precision: str, *, kernel: int = 7
) -> JaxTraining:
    """Depthwise convolutions, layer norm and pointwise layers, as in ConvNeXt."""

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        blocks = [
            {
                "dw": dense_init(next(keys), kernel, kernel, 1, width),
                "n": norm_init(width),
                "up": dense_init(next(keys), width, 4 * width),
                "down": dense_init(next(keys), 4 * width, width),
            }
            for _ in range(depth)
        ]
        return {
            "stem": dense_init(next(keys), 4, 4, 3, width),
            "blocks": blocks,
            "head": dense_init(next(keys), width, 100),
        }

    def loss(params: Tree, data: Tree) -> jax.Array:
        x = convolve(data["x"].astype(compute_type(precision)), params["stem"], 4, padding="VALID")
        for p in params["blocks"]:
            y = layer_norm(convolve(x, p["dw"], groups=width), **p["n"])
            x = x + jax.nn.gelu(y @ p["up"].astype(x.dtype)) @ p["down"].astype(x.dtype)
        return cross_entropy(x.mean((1, 2)) @ params["head"].astype(x.dtype), data["y"])

    return make_training(init, labelled((batch, image, image, 3), 100), loss)


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """RMS norm over the last dimension, in float32."""
    wide = x.astype(jnp.float32)
    size = jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-6)
    return (wide * size * scale).astype(x.dtype)


def _rotated(x: jax.Array) -> jax.Array:
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] / 10000 ** (jnp.arange(half) / half)
    cos, sin = jnp.cos(angle)[:, None].astype(x.dtype), jnp.sin(angle)[:, None].astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attention_of(q: jax.Array, k: jax.Array, v: jax.Array, how: str) -> jax.Array:
    """Attention by cuDNN, causal in plain JAX, or of all tokens with all by XLA."""
    if how == "cudnn":
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
    if how == "plain":
        return causal_attention(q, k, v)
    return jax.nn.dot_product_attention(q, k, v, implementation="xla")  # every token sees all


def llama(
    batch: int,
    sequence: int,
    width: int,
    layers: int,
    heads: int,
    precision: str,
    *,
    vocabulary: int = 32000,
    attention: str = "plain",
    scanned: bool = False,
    remat: bool = False,
) -> JaxTraining:
    """A decoder with RMS norm, rotary positions and gated MLPs, layers written out or scanned."""
    hidden = (8 * width // 3 + 127) // 128 * 128

    def block_init(key: jax.Array) -> Tree:
        keys = keys_of(key, 8)
        sizes = dict.fromkeys("qkvo", (width, width)) | {"down": (hidden, width)}
        sizes |= {"gate": (width, hidden), "up": (width, hidden)}
        weights = {name: dense_init(next(keys), *size) for name, size in sizes.items()}
        return {"n1": jnp.ones((width,)), "n2": jnp.ones((width,)), **weights}

    def init(key: jax.Array) -> Tree:
        first, second, third = jax.random.split(key, 3)
        keys = jax.random.split(first, layers)
        blocks = jax.vmap(block_init)(keys) if scanned else [block_init(k) for k in keys]
        table = dense_init(second, vocabulary, width)
        return {
            "table": table,
            "blocks": blocks,
            "n": jnp.ones((width,)),
            "head": dense_init(third, width, vocabulary),
        }

    def block(x: jax.Array, p: Tree) -> jax.Array:
        y = rms_norm(x, p["n1"])
        shape = (*x.shape[:2], heads, width // heads)
        q, k, v = ((y @ p[name].astype(y.dtype)).reshape(shape) for name in "qkv")
        y = attention_of(_rotated(q), _rotated(k), v, attention).reshape(x.shape)
        x = x + y @ p["o"].astype(x.dtype)
        y = rms_norm(x, p["n2"])
        gated = jax.nn.silu(y @ p["gate"].astype(y.dtype)) * (y @ p["up"].astype(y.dtype))
        return x + gated @ p["down"].astype(x.dtype)

    def loss(params: Tree, data: Tree) -> jax.Array:
        x = params["table"][data["x"]].astype(compute_type(precision))
        run = jax.checkpoint(block) if remat else block
        if scanned:
            x, _ = jax.lax.scan(lambda x, p: (run(x, p), None), x, params["blocks"])
        else:
            for number, p in enumerate(params["blocks"]):
                with jax.named_scope(f"blocks.{number}"):
                    x = run(x, p)
        return cross_entropy(rms_norm(x, params["n"]) @ params["head"].astype(x.dtype), data["y"])

    return make_training(init, tokens_of(batch, sequence, vocabulary), loss)


def encoder(
    batch: int,
    image: int,
    patch: int,
    width: int,
    layers: int,
    heads: int,
    precision: str,
    *,
    attention: str = "xla",
    dropout: float = 0.0,
    optimizer: str = "adamw",
) -> JaxTraining:
    """A vision transformer: patches, layer norm, biases, attention of all with all, GELU."""

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        blocks = [
            {
                "n1": norm_init(width),
                "n2": norm_init(width),
                "qkv": dense_init(next(keys), width, 3 * width),
                "qkv_b": jnp.zeros((3 * width,)),
                "o": dense_init(next(keys), width, width),
                "up": dense_init(next(keys), width, 4 * width),
                "up_b": jnp.zeros((4 * width,)),
                "down": dense_init(next(keys), 4 * width, width),
                "down_b": jnp.zeros((width,)),
            }
            for _ in range(layers)
        ]
        stem, count = dense_init(next(keys), patch, patch, 3, width), (image // patch) ** 2
        return {
            "stem": stem,
            "pos": dense_init(next(keys), count, width),
            "blocks": blocks,
            "head": dense_init(next(keys), width, 1000),
        }

    def dropped(x: jax.Array, number: int) -> jax.Array:
        if not dropout:
            return x
        return jnp.where(jax.random.bernoulli(jax.random.key(number), 1 - dropout, x.shape), x, 0)

    def loss(params: Tree, data: Tree) -> jax.Array:
        x = convolve(
            data["x"].astype(compute_type(precision)), params["stem"], patch, padding="VALID"
        )
        x = x.reshape(batch, -1, width) + params["pos"].astype(x.dtype)
        for number, p in enumerate(params["blocks"]):
            y = layer_norm(x, **p["n1"]) @ p["qkv"].astype(x.dtype) + p["qkv_b"].astype(x.dtype)
            q, k, v = (t.reshape(batch, -1, heads, width // heads) for t in jnp.split(y, 3, -1))
            y = attention_of(q, k, v, attention).reshape(x.shape) @ p["o"].astype(x.dtype)
            x = x + dropped(y, 2 * number)
            y = layer_norm(x, **p["n2"]) @ p["up"].astype(x.dtype) + p["up_b"].astype(x.dtype)
            y = jax.nn.gelu(y) @ p["down"].astype(x.dtype) + p["down_b"].astype(x.dtype)
            x = x + dropped(y, 2 * number + 1)
        return cross_entropy(x.mean(1) @ params["head"].astype(x.dtype), data["y"])

    return make_training(init, labelled((batch, image, image, 3), 1000), loss, optimizer=optimizer)


def mixer(batch: int, tokens: int, width: int, layers: int, precision: str) -> JaxTraining:
    """MLPs over tokens and over channels, as in MLP-Mixer."""

    def init(key: jax.Array) -> Tree:
        keys = keys_of(key)
        blocks = [
            {
                "n1": norm_init(width),
                "n2": norm_init(width),
                "t1": dense_init(next(keys), tokens, 2 * tokens),
                "t2": dense_init(next(keys), 2 * tokens, tokens),
                "c1": dense_init(next(keys), width, 4 * width),
                "c2": dense_init(next(keys), 4 * width, width),
            }
            for _ in range(layers)
        ]
        return {"blocks": blocks, "head": dense_init(next(keys), width, 1000)}

    def loss(params: Tree, data: Tree) -> jax.Array:
        x = data["x"].astype(compute_type(precision))
        for p in params["blocks"]:
            y = layer_norm(x, **p["n1"]).swapaxes(1, 2)
            y = jax.nn.gelu(y @ p["t1"].astype(x.dtype)) @ p["t2"].astype(x.dtype)
            x = x + y.swapaxes(1, 2)
            y = layer_norm(x, **p["n2"])
            x = x + jax.nn.gelu(y @ p["c1"].astype(x.dtype)) @ p["c2"].astype(x.dtype)
        return cross_entropy(x.mean(1) @ params["head"].astype(x.dtype), data["y"])

    return make_training(init, labelled((batch, tokens, width), 1000), loss)
