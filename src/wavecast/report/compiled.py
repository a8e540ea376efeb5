"""What compiling a step would gain, GPU by GPU, as a table in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from wavecast.report.tables import Column, notes, notes_by_gpu, table, titled
from wavecast.report.units import UNKNOWN, duration, memory
from wavecast.steps.prediction import Prediction


def gains(title: str, pairs: Sequence[tuple[Prediction, Prediction]]) -> RenderableType:
    """One row for each GPU, the greatest gain first.

    Args:
        title: what was predicted.
        pairs: the predictions of the step as written and compiled, on the same GPU.
    """
    rows = sorted(pairs, key=lambda pair: -gain(*pair))
    columns = [
        Column("GPU", [eager.device.id for eager, _ in rows], left=True),
        Column("eager", [duration(eager.seconds) for eager, _ in rows]),
        Column("compiled", [duration(compiled.seconds) for _, compiled in rows]),
        Column("gain", [f"{gain(*pair):.2f}x" for pair in rows]),
        Column("GPU busy", [duration(eager.gpu_s) for eager, _ in rows]),
        Column("compiled", [duration(compiled.gpu_s) for _, compiled in rows]),
        Column("memory", [_peak(eager) for eager, _ in rows]),
        Column("compiled", [_peak(compiled) for _, compiled in rows]),
    ]
    named = [(one.device.id, (*one.notes, *one.trace.notes)) for _, one in rows]
    return titled(title, table(columns), "", *notes(notes_by_gpu(named)))


def gain(eager: Prediction, compiled: Prediction) -> float:
    """How many times faster the compiled step is."""
    return eager.seconds / compiled.seconds


def _peak(prediction: Prediction) -> str:
    return UNKNOWN if prediction.memory is None else memory(prediction.memory.peak_bytes)
