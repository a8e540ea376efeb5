"""A small transformer's training step, traced once, for the tests of parallel steps."""

from __future__ import annotations

from functools import cache

from small_models import SMALL

from wavecast.frameworks.pytorch.capture import capture
from wavecast.suite import benchmark
from wavecast.traces.step import Trace


@cache
def small_gpt2_step(layers: int = 2) -> Trace:
    """The step of a GPT-2 of a few narrow layers, with two samples."""
    gpt2 = benchmark("gpt2")
    sizes = {**SMALL["gpt2"], "layers": layers}
    return capture(lambda: gpt2.make_step(2, "fp32", device="cuda", **sizes), samples=2)
