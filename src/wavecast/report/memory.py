"""The memory of a step as tables in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import RenderableType

from wavecast.footprint.advice import Advice
from wavecast.footprint.kinds import KINDS
from wavecast.footprint.largest_batch import LargestBatch
from wavecast.footprint.limits import RESERVE
from wavecast.footprint.memory import Memory
from wavecast.hardware.contexts import measured as measured_context
from wavecast.hardware.device import Device
from wavecast.report.records import MODULE_DEPTH
from wavecast.report.tables import (
    Column,
    fitting,
    labelled,
    notes,
    notes_by_gpu,
    remarks,
    table,
    titled,
)
from wavecast.report.units import memory, or_unknown, percent

BEFORE_THE_STEP = "before the step"
"""The entry under "made by" for a tensor that was made before the step."""
KEPT_FREE = f"fits: {percent(RESERVE, 1)} of what is left to PyTorch's allocator is kept free"
"""How close to its limit a GPU may be filled."""
_ROWS = 8


def memories(
    title: str,
    columns: Sequence[Memory],
    width: int,
    advice: Sequence[Advice] = (),
    headings: Sequence[str] = (),
) -> RenderableType:
    """Memory by kind, one column for each GPU, and the peak of the first column in detail.

    Args:
        title: what the step is.
        columns: one memory for each GPU, or a predicted and a measured one.
        width: columns of the terminal.
        advice: changes that would make it smaller.
        headings: one for each column; the names of the GPUs if not given.
    """
    first = columns[0]
    names = list(headings) or [m.device.id if m.device else "any GPU" for m in columns]
    return titled(
        title,
        table(labelled(_rows(columns), names)),
        "",
        *remarks(_explanations(first)),
        *notes(
            [
                *_gpu_notes(columns),
                *dict.fromkeys(note for m in columns for note in m.trace.notes),
            ]
        ),
        "",
        *_peak(first, width),
        *_advised(advice, width),
    )


def _gpu_notes(memories: Sequence[Memory]) -> list[str]:
    return notes_by_gpu((m.device.id if m.device else "any GPU", m.notes) for m in memories)


def _rows(columns: Sequence[Memory]) -> list[tuple[str, list[str]]]:
    rows = [
        (kind, [or_unknown(m.by_kind[kind], memory) for m in columns])
        for kind in KINDS
        # Only autocast copies weights, so that most steps have none.
        if kind != "weight copies" or any(m.by_kind[kind] for m in columns)
    ]
    rows.append(("allocated at the peak", [memory(m.peak_bytes) for m in columns]))
    rows.append(("reserved by the allocator", [memory(m.reserved_bytes) for m in columns]))
    if any(m.device for m in columns):
        contexts = [or_unknown(m.context_bytes, memory) for m in columns]
        rows.append(("CUDA context and libraries", contexts))
        rows.append(("whole process", [or_unknown(m.process_bytes, memory) for m in columns]))
        rows.append(("memory of the GPU", [_capacity(m) for m in columns]))
        rows.append(("fits", [_fits(m) for m in columns]))
    return rows


def _capacity(step_memory: Memory) -> str:
    return memory(step_memory.device.memory_bytes) if step_memory.device else ""


def _fits(step_memory: Memory) -> str:
    return {True: "yes", False: "no", None: ""}[step_memory.fits]


def _explanations(step_memory: Memory) -> Iterable[str]:
    if len(step_memory.trace):
        call = step_memory.trace.calls[step_memory.peak_call]
        where = f" of {call.module}" if call.module else ""
        yield f"the peak is in the {call.phase} pass, at {call.op.base}{where}"
    if step_memory.device is None:
        yield "name a GPU (--gpu) to see workspaces, the whole process, and whether it fits"
        return
    context = measured_context()
    if step_memory.context_bytes and step_memory.device.compute_capability != context.capability:
        yield (
            f"CUDA context and libraries: as measured on an {context.gpu}; "
            "smaller GPUs need less of it"
        )


def _peak(step_memory: Memory, width: int) -> Iterable[RenderableType]:
    """The largest groups of tensors, and the largest modules, at the peak."""
    groups = step_memory.held()[:_ROWS]
    modules = list(step_memory.by_module(MODULE_DEPTH).items())[:_ROWS]
    columns = [
        Column("memory", [memory(group.nbytes) for group in groups]),
        Column("kind", [group.kind for group in groups], left=True),
        Column("tensors", [str(group.count) for group in groups], 2),
        Column("made by", [group.op or BEFORE_THE_STEP for group in groups], 1, left=True),
        Column("module", [group.module or "-" for group in groups], left=True, folds=True),
    ]
    yield titled("largest tensors at the peak", table(fitting(columns, width)))
    yield ""
    yield titled(
        "largest modules at the peak",
        table(
            [
                Column("memory", [memory(nbytes) for _, nbytes in modules]),
                Column("module", [name for name, _ in modules], left=True, folds=True),
            ]
        ),
    )


def _advised(advice: Sequence[Advice], width: int) -> Iterable[RenderableType]:
    if not advice:
        return
    columns = [
        Column("change", [change.name for change in advice], left=True),
        Column("saves", [memory(change.saved_bytes) for change in advice]),
        Column("then reserved", [memory(change.after.reserved_bytes) for change in advice], 1),
        Column("how", [change.how for change in advice], left=True, folds=True),
    ]
    yield ""
    yield titled("changes that would save memory", table(fitting(columns, width)))


def fitting_gpus(title: str, memories: Sequence[Memory], width: int) -> RenderableType:
    """One row for each GPU: whether the step fits, and how much of the GPU it needs."""
    rows = sorted(memories, key=lambda m: (not m.fits, m.device.memory_bytes if m.device else 0))
    columns = [
        Column("GPU", [m.device.id if m.device else "" for m in rows], left=True),
        Column("fits", [_fits(m) for m in rows], left=True),
        Column("GPU memory", [_capacity(m) for m in rows]),
        Column("needed", [memory(m.needed_bytes) for m in rows]),
        Column("share", [_share(m) for m in rows], 1),
        Column("workspace", [or_unknown(m.by_kind["workspace"], memory) for m in rows], 2),
    ]
    styles = ["" if m.fits else "dim" for m in rows]
    lines = [
        "needed: memory of the whole training process, with CUDA's context and libraries",
        KEPT_FREE,
    ]
    return titled(
        title,
        table(fitting(columns, width), styles),
        "",
        *remarks(lines),
        *notes(_gpu_notes(rows)),
    )


def _share(step_memory: Memory) -> str:
    if step_memory.device is None:
        return ""
    return percent(step_memory.needed_bytes / step_memory.device.memory_bytes)


def largest_batches(
    title: str, answers: Sequence[tuple[Device, LargestBatch]], width: int
) -> RenderableType:
    """One row for each GPU: the largest batch that fits."""
    largest = [answer for _, answer in answers]
    columns = [
        Column("GPU", [gpu.id for gpu, _ in answers], left=True),
        Column("largest batch", [str(a.batch) if a.batch else "none" for a in largest]),
        Column("allocated at the peak", [memory(a.peak_bytes) for a in largest]),
        Column("available", [memory(a.limit_bytes) for a in largest], 1),
        Column("batches tried", [", ".join(map(str, a.traced)) for a in largest], 2, left=True),
    ]
    lines = ["available: memory that CUDA's context and libraries leave to PyTorch's allocator"]
    return titled(title, table(fitting(columns, width)), "", *remarks(lines))
