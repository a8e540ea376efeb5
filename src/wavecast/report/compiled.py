"""What compiling a step would gain, GPU by GPU, as a table in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from wavecast.report.tables import from_rows, headed, notes, notes_by_gpu, table, titled
from wavecast.report.units import UNKNOWN, duration, memory
from wavecast.steps.prediction import Prediction


def gains(title: str, pairs: Sequence[tuple[Prediction, Prediction]]) -> RenderableType:
    """One row for each GPU, the greatest gain first.

    Args:
        title: what was predicted.
        pairs: the predictions of the step as written and compiled, on the same GPU.
    """
    rows = sorted(pairs, key=lambda pair: -gain(*pair))
    cells = [
        (
            eager.device.id,
            duration(eager.seconds),
            duration(compiled.seconds),
            f"{gain(eager, compiled):.2f}x",
            duration(eager.gpu_s),
            duration(compiled.gpu_s),
            _peak(eager),
            _peak(compiled),
        )
        for eager, compiled in rows
    ]
    names = ("eager", "compiled", "gain", "GPU busy", "compiled", "memory", "compiled")
    columns = from_rows(cells, "<GPU", *names)
    named = [(one.device.id, (*one.notes, *one.trace.notes)) for _, one in rows]
    title = headed(title, ((compiled.device.id, compiled.trace) for _, compiled in rows))
    return titled(title, table(columns), "", *notes(notes_by_gpu(named)))


def gain(eager: Prediction, compiled: Prediction) -> float:
    """How many times faster the compiled step is."""
    return eager.seconds / compiled.seconds


def _peak(prediction: Prediction) -> str:
    return UNKNOWN if prediction.memory is None else memory(prediction.memory.peak_bytes)
