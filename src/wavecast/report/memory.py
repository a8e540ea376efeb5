"""The memory of a step: by kind, at its peak, whether it fits, and the largest batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import RenderableType

from wavecast.footprint.advice import Advice
from wavecast.footprint.kinds import KINDS
from wavecast.footprint.largest_batch import LargestBatch
from wavecast.footprint.memory import Held, Memory
from wavecast.footprint.replay import RESERVE
from wavecast.hardware.contexts import measured as measured_context
from wavecast.hardware.device import Device
from wavecast.report.fields import Described, Field, columns, describe, some
from wavecast.report.tables import (
    from_rows,
    headed,
    labelled,
    notes,
    notes_by_gpu,
    remarks,
    shown,
    table,
    titled,
)
from wavecast.report.units import memory, or_unknown, percent, text
from wavecast.traces.step import Phase

MODULE_DEPTH = 3
"""How many levels of module names memory is grouped by."""

BEFORE_THE_STEP = "before the step"
"""The entry under "made by" for a tensor that was made before the step."""
KEPT_FREE = f"fits: {percent(RESERVE, 1)} of what is left to the framework's allocator is kept free"
"""How close to its limit a GPU may be filled."""
_ROWS = 8


@dataclass(frozen=True)
class PeakCall:
    """The call during which most memory is allocated."""

    phase: Phase
    """The phase of the step."""
    op: str
    """The name of the op."""
    module: str
    """The module that calls it."""


def peak(needed: Memory) -> PeakCall:
    """The call during which most memory is allocated."""
    call = needed.trace.calls[needed.peak_call]
    return PeakCall(call.phase, call.op.base, call.module)


def by_module(needed: Memory) -> Mapping[str, int]:
    """The bytes at the peak by module, largest first."""
    return needed.by_module(MODULE_DEPTH)


def _all_notes(needed: Memory) -> Sequence[str]:
    """What a reader should know, in whole sentences."""
    return (*needed.trace.notes, *needed.notes)


def _share(needed: Memory) -> float | None:
    return needed.needed_bytes / needed.device.memory_bytes if needed.device else None


describe(
    Held,
    Field("nbytes", title="memory", drawn=True),
    Field("kind", title="kind"),
    Field("count", title="tensors", rank=2, text=str),
    Field("", lambda group: group.op or BEFORE_THE_STEP, title="made by", rank=1),
    Field("", lambda group: group.module or "-", title="module", folds=True),
    *map(Field, ("module", "op")),
)
MEMORY = describe(
    Memory,
    Field("gpu", "device.id", title="GPU", absent="any"),
    Field("fits", title="fits", absent="name a GPU"),
    Field("peak_bytes", title="allocated at the peak"),
    Field("reserved_bytes", title="reserved"),
    Field("needed_bytes", title="needed"),
    Field("by_kind", title="by kind", rank=1, text=lambda kinds: _largest(kinds)),
    *map(Field, ("context_bytes", "process_bytes")),
    Field("by_module", by_module),
    Field("peak", peak),
    "held",
    Field("notes", _all_notes),
    parts="held",
)
FITS = Described(
    Memory,
    some(
        Field("gpu", "device.id", title="GPU", absent=""),
        Field("fits", title="fits", absent=""),
        Field("memory_bytes", "device.memory_bytes", title="GPU memory", absent=""),
        Field("needed_bytes", title="needed"),
        Field("", _share, title="share", rank=1, text=percent, absent=""),
        Field("", lambda m: m.by_kind["workspace"], title="workspace", rank=2, text=memory),
        *("process_bytes", "reserved_bytes", "peak_bytes", "notes"),
    ),
)
"""Whether a step fits on a GPU, with the sizes that decide it."""


def _largest(kinds: Mapping[str, int | None]) -> str:
    """The kinds of memory that there are, with their sizes."""
    return text("_bytes", {kind: nbytes for kind, nbytes in kinds.items() if nbytes})


describe(
    Advice,
    Field("name", title="change"),
    Field("saved_bytes", title="saves"),
    Field("", "after.reserved_bytes", title="then reserved", rank=1),
    Field("how", title="how", folds=True),
    Field("peak_bytes", "after.peak_bytes", meaning="The peak of allocated memory then."),
    Field("reserved_bytes", "after.reserved_bytes", meaning="What the allocator reserves then."),
)


@dataclass(frozen=True)
class AdvisedMemory:
    """The memory of a step on one GPU, and changes that would make it smaller."""

    target: str
    """What the step is, with its sizes."""
    memory: Memory
    advice: Sequence[Advice] = ()
    """Changes that would save memory, the largest saving first."""


describe(AdvisedMemory, "target", Field("", "memory", inline=True), "advice")


@dataclass(frozen=True)
class GpuLargestBatch:
    """The largest batch that fits on one GPU."""

    target: str
    """What the step is, with its sizes."""
    gpu: str
    largest: LargestBatch


def _listed(batches: Sequence[int]) -> str:
    return ", ".join(map(str, batches))


describe(
    LargestBatch,
    Field("batch", title="largest batch"),
    Field("too_large", title="too large"),
    Field("peak_bytes", title="allocated at the peak"),
    Field("limit_bytes", title="available"),
    Field("traced", title="batches tried", text=_listed),
)
LARGEST = describe(
    GpuLargestBatch,
    "target",
    Field("gpu", title="GPU"),
    Field("", "largest.batch", title="largest batch", text=lambda batch: str(batch or "none")),
    Field("", "largest.peak_bytes", title="allocated at the peak"),
    Field("", "largest.limit_bytes", title="available", rank=1),
    Field("", "largest.traced", title="batches tried", rank=2, text=_listed, left=True),
    Field("", "largest", inline=True),
)


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
        headed(title, zip(names, (m.trace for m in columns), strict=True)),
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
        capacities = [m.device.memory_bytes if m.device else None for m in columns]
        rows.append(("memory of the GPU", ["" if c is None else memory(c) for c in capacities]))
        rows.append(
            (
                "fits",
                [
                    or_unknown(m.fits, lambda fits: text("", fits)) if m.device else ""
                    for m in columns
                ],
            )
        )
    return rows


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
    modules = list(by_module(step_memory).items())[:_ROWS]
    cells = [(memory(nbytes), name) for name, nbytes in modules]
    held = columns(step_memory.held()[:_ROWS]) if step_memory.held() else []
    yield titled("largest tensors at the peak", *shown(held, width))
    yield ""
    largest = table(from_rows(cells, "memory", "<module..."))
    yield titled("largest modules at the peak", largest)


def _advised(advice: Sequence[Advice], width: int) -> Iterable[RenderableType]:
    if advice:
        yield ""
        yield titled("changes that would save memory", *shown(columns(advice), width))


def fitting_gpus(title: str, memories: Sequence[Memory], width: int) -> RenderableType:
    """One row for each GPU: whether the step fits, and how much of the GPU it needs."""
    rows = sorted(
        memories, key=lambda m: (m.fits is False, m.device.memory_bytes if m.device else 0)
    )
    styles = ["dim" if m.fits is False else "" for m in rows]
    lines = [
        "needed: memory of the whole training process, with CUDA's context and libraries",
        KEPT_FREE,
    ]
    under = shown(FITS.columns(rows), width, lines, styles)
    return titled(title, *under, *notes(_gpu_notes(rows)))


def batches_by_gpu(
    target: str, answers: Iterable[tuple[Device, LargestBatch]]
) -> list[GpuLargestBatch]:
    """The largest batch of each GPU, under its id."""
    return [GpuLargestBatch(target, gpu.id, largest) for gpu, largest in answers]


def largest_batches(
    title: str, answers: Sequence[tuple[Device, LargestBatch]], width: int
) -> RenderableType:
    """One row for each GPU: the largest batch that fits."""
    lines = [
        "available: memory that CUDA's context and libraries leave to the framework's allocator"
    ]
    return titled(title, *shown(columns(batches_by_gpu(title, answers)), width, lines))


def advised(
    target: str, memories: Sequence[Memory], advice: Sequence[Advice] = ()
) -> list[AdvisedMemory]:
    """The memory of a step on each GPU; the advice is about the first."""
    return [AdvisedMemory(target, one, () if n else advice) for n, one in enumerate(memories)]
