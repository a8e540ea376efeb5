"""Text generation as a table: times of tokens, keys and values, and what fits."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from wavecast.report.fields import Field, columns, describe
from wavecast.report.tables import Column, fitting, remarks, table, titled
from wavecast.report.units import UNKNOWN, count
from wavecast.steps.generation import TextGeneration


def _fitting(one: TextGeneration) -> str:
    """The most sequences and their tokens: `118 x 2,048`."""
    if one.largest_batch is None:
        return UNKNOWN
    return f"{count(one.largest_batch)} x {count(one.context)}"


describe(
    TextGeneration,
    Field("gpu", "step.device.id", title="GPU", meaning="The id of the GPU."),
    Field("first_token_s", title="time to first token"),
    Field("token_s", title="time per token"),
    Field("tokens_per_s", title="tokens/s"),
    Field("sequences", title="sequences", rank=1),
    Field("context"),
    Field("cache_bytes", title="keys and values"),
    Field("", _fitting, title="most sequences x tokens", left=False),
    Field("largest_batch"),
)


def generation_columns(rows: Sequence[TextGeneration]) -> list[Column]:
    """The columns that say something of these steps."""
    kept = columns(rows)
    return [column for column in kept if any(cell != UNKNOWN for cell in column.cells)]


def generation(rows: Sequence[TextGeneration], width: int) -> RenderableType:
    """A table of steps of text generation."""
    kept = fitting(generation_columns(rows), width)
    return titled("text generation", table(kept), "", *remarks([meaning(rows)]))


def meaning(rows: Sequence[TextGeneration]) -> str:
    """What the columns mean."""
    told = "keys and values: those of all sequences, in the cache"
    if any(row.largest_batch is not None for row in rows):
        return f"{told}; most sequences x tokens: the largest batch of such sequences that fits"
    return f"{told}; what fits is said for few GPUs, not for compiled steps (wavecast max-batch)"
