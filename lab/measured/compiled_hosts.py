"""The host's side of compiled steps, as it was measured on our H200.

In `steps.jsonl.gz` and `blind.jsonl.gz` a profiler had run in most processes before a step was
timed, and what a profiler leaves behind slows the host (lab/notes). `host.jsonl.gz` was made
without one.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import cache

from lab.measured.compiled import Row, by_name, lines

GPU_BOUND = 0.9
"""If the GPU is busy for this share of an iteration, the host's time makes no difference."""
FRESH = (
    "hf-gpt2-bf16 resnet50-bf16-last hf-bert-bf16 resnet18-fp32 hand-gpt-bf16 "
    "mobilenet-v2-bf16-last hf-llama-bf16-weights unet-bf16 hf-vit-bf16 convnext-bf16-last"
).split()
"""The first step of each of the ten processes of `steps.jsonl.gz`: compiled, it was timed before a
profiler ran."""


@dataclass(frozen=True)
class Timing:
    """What the iteration of a step took, compiled or eager."""

    step: str
    family: str
    mode: str
    seconds: float
    """The wall time. The geometric mean, if it was measured more than once."""
    busy_s: float
    """The time in which the GPU was busy."""
    is_clean: bool
    """Whether no profiler can have slowed it."""

    @property
    def is_host_bound(self) -> bool:
        """Whether the GPU waited for the host."""
        return self.busy_s < GPU_BOUND * self.seconds


@cache
def profiled() -> dict[str, Row]:
    """The steps with their kernels, by name."""
    return by_name()


@cache
def unprofiled() -> dict[str, Row]:
    """The steps that were timed without a profiler, by name."""
    return {row["step"]: row for row in lines("host") if "step" in row}


@cache
def pieces() -> dict[str, Row]:
    """Small pieces of code that were timed without a profiler, by name."""
    return {row["part"]: row for row in lines("host") if "part" in row}


def timing(name: str, how: str) -> Timing:
    """The iteration of a step ("compiled" or "eager"), from all measurements that can be trusted.

    If there is none, from the one after a profiler.
    """
    row = profiled()[name]
    half = row[how]
    clean_s = []
    if name in unprofiled():
        clean_s.append(float(unprofiled()[name][how]["wall_s"]))
    is_fresh = how == "compiled" and name in FRESH
    if is_fresh or half["busy_s"] >= GPU_BOUND * half["wall_s"]:
        clean_s.append(float(half["wall_s"]))
    seconds = statistics.geometric_mean(clean_s) if clean_s else float(half["wall_s"])
    return Timing(
        name, row["family"], row["mode"], seconds, float(half["busy_s"]), is_clean=bool(clean_s)
    )


def unslowed() -> dict[str, Row]:
    """The steps with their kernels, by name; compiled iterations as no profiler slowed them."""
    return {
        name: row | {"compiled": row["compiled"] | {"wall_s": timing(name, "compiled").seconds}}
        for name, row in profiled().items()
    }
