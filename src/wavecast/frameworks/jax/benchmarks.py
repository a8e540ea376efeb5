"""The models of the suite that are written in JAX: `jax:resnet50`, `jax:gpt2`, `jax:lstm`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wavecast.errors import InvalidInput, UnknownName, needing_extra

PRECISIONS = ("fp32", "tf32", "bf16")
"""JAX rounds the operands of float32 matmuls to TF32 on GPUs that have it, so two are the same."""


@dataclass(frozen=True)
class JaxBenchmark:
    """A model in JAX: how many samples a batch has, and what its throughput counts."""

    name: str
    default_batch: int
    unit: str = "samples"
    units_per_sample: int = 1


BENCHMARKS = {
    one.name: one
    for one in (
        JaxBenchmark("resnet50", 64),
        JaxBenchmark("gpt2", 8, "tokens", 1024),
        JaxBenchmark("lstm", 64, "tokens", 256),
    )
}


def jax_benchmark(name: str, batch: int | None, precision: str | None) -> dict[str, Any]:
    """The fields of the target `jax:NAME`.

    Raises:
        UnknownName: there is no such model in JAX.
    """
    if name not in BENCHMARKS:
        listed = ", ".join(f"jax:{known}" for known in BENCHMARKS)
        raise UnknownName(f"no model in JAX is called {name!r}; there are {listed}")
    if precision not in (None, *PRECISIONS):
        raise InvalidInput(f"jax:{name} has no {precision}; known: {', '.join(PRECISIONS)}")
    model = BENCHMARKS[name]
    size, chosen = batch or model.default_batch, precision or "fp32"
    return {
        "name": f"jax:{name}, batch {size}, {chosen}",
        "make_step": _maker(name, size, chosen),
        "samples": size * model.units_per_sample,
        "unit": model.unit,
        "text": f"jax:{name}",
        "batch": size,
        "precision": chosen,
        "jax": True,
    }


def _maker(name: str, batch: int, precision: str) -> Callable[[], Any]:
    def make_step() -> Any:
        with needing_extra(f"jax:{name}"):
            from wavecast.suite import jax_models
        return getattr(jax_models, name)(batch, precision)

    return make_step
