"""A script of JAX whose steps call several jitted functions, as `wavecast run` follows it.

python -m lab.steps.jax_functions wide --steps 200      prints seconds of a step, and the peak
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

KINDS = {
    "wide": {"layers": 3, "width": 4096, "batch": 4096, "parts": 1},
    "deep": {"layers": 60, "width": 256, "batch": 64, "parts": 1},
    "middle": {"layers": 12, "width": 1024, "batch": 2048, "parts": 1},
    "accumulated": {"layers": 4, "width": 2048, "batch": 2048, "parts": 4},
}
"""Networks of fully connected layers, and in how many parts their gradients are summed."""


def loss_fn(params: list[Any], x: Any, y: Any) -> Any:
    """The mean square of what is missing."""
    h = x.astype(jnp.bfloat16)
    for w, b in params:
        h = jax.nn.relu(h @ w.astype(h.dtype) + b.astype(h.dtype))
    return jnp.square(h.astype(jnp.float32) - y).mean()


gradients = jax.jit(jax.value_and_grad(loss_fn))


@jax.jit  # type: ignore[untyped-decorator]
def add(one: Any, other: Any) -> Any:
    """The sum of two gradients."""
    return jax.tree.map(jnp.add, one, other)


@jax.jit  # type: ignore[untyped-decorator]
def update(state: Any, grads: Any) -> Any:
    """One step of Adam."""
    params, first, second = state
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grads)
    params = jax.tree.map(
        lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), params, first, second
    )
    return params, first, second


def main() -> None:
    """Train with made-up data, and print how long a step took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    kind = KINDS[options.kind]
    width, batch = kind["width"], kind["batch"]
    keys = jax.random.split(jax.random.key(0), kind["layers"])
    params = [(jax.random.normal(k, (width, width)) * width**-0.5, jnp.zeros(width)) for k in keys]
    zeros = [(jnp.zeros((width, width)), jnp.zeros(width)) for _ in keys]
    state = (params, zeros, zeros)
    rng = np.random.default_rng(0)
    data = [
        tuple(jax.device_put(rng.random((batch, width), "float32")) for _ in "xy")
        for _ in range(2 * kind["parts"])
    ]
    begin = 0.0
    for step in range(options.steps):
        if step == options.steps // 2:
            jax.block_until_ready(state)
            begin = time.perf_counter()
        total = None
        for part in range(kind["parts"]):
            x, y = data[(step % 2) * kind["parts"] + part]
            _, grads = gradients(state[0], x, y)
            total = grads if total is None else add(total, grads)
        state = update(state, total)
    jax.block_until_ready(state)
    seconds = (time.perf_counter() - begin) / (options.steps - options.steps // 2)
    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    print(json.dumps({"kind": options.kind, "seconds": seconds, "peak_bytes": peak}), flush=True)


if __name__ == "__main__":
    main()
