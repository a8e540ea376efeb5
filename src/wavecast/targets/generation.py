"""Steps of text generation, beside what fits: the cache of keys and values, the largest batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from wavecast.analysis.generation import TextGeneration
from wavecast.frameworks.pytorch.huggingface.recipes import INFERENCE, recipe_of
from wavecast.hardware.devices import Device
from wavecast.steps.prediction import Prediction
from wavecast.targets.sources import StepSource
from wavecast.targets.targets import Target
from wavecast.targets.tracing import largest_traced_batch

_MOST_SEARCHED = 4
"""The largest batch is looked for on so many GPUs; it takes some traces on each.

It is not looked for where compiling makes traces slow.
"""


def is_generation(target: Target) -> bool:
    """Whether a target reads prompts or makes tokens, and trains nothing."""
    return target.options.task in INFERENCE


def generations(
    target: Target, source: StepSource, rows: Sequence[Prediction]
) -> tuple[TextGeneration, ...]:
    """The steps of a target that generates text, with what fits on their GPUs.

    Args:
        target: the target, with the task prefill or decode.
        source: its traces.
        rows: its predictions on some GPUs.
    """
    from wavecast.frameworks.pytorch.huggingface.inference import cache_bytes

    recipe = recipe_of(
        target.text.removeprefix("hf:"), target.batch, target.precision, target.options
    )
    needed = cache_bytes(recipe)
    is_searched = len(rows) <= _MOST_SEARCHED and not target.compiled

    def largest(gpu: Device) -> int | None:
        if not is_searched:
            return None
        return largest_traced_batch(partial(source.on, gpu), gpu, start=recipe.batch).batch

    decodes, context = recipe.task.name == "decode", recipe.sequence or 1
    return tuple(
        TextGeneration(row, decodes, recipe.batch, context, needed, largest(row.device))
        for row in rows
    )
