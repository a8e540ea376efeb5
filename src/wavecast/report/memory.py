"""The memory of a step as tables in a terminal, and as data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from wavecast.footprint.advice import Advice
from wavecast.footprint.kinds import KINDS
from wavecast.footprint.largest_batch import LargestBatch
from wavecast.footprint.memory import Memory
from wavecast.hardware.contexts import measured as measured_context
from wavecast.hardware.device import Device
from wavecast.report import text
from wavecast.report.tables import Column, fitting, table
from wavecast.report.units import memory

_LONGEST = 8
_DEPTH = 3


def memories(
    title: str,
    found: Sequence[Memory],
    advice: Sequence[Advice] = (),
    names: Sequence[str] = (),
    limit: int = _LONGEST,
) -> RenderableType:
    """Memory by kind and by module, side by side; the peak of the first one explained.

    Args:
        title: what it is of.
        found: on one GPU or several, or predicted and measured.
        advice: what would make it smaller.
        names: of the columns; the GPUs' if not given.
        limit: rows of each list.
    """
    first = found[0]
    heads = list(names) or [each.device.id if each.device else "any GPU" for each in found]
    return Group(
        Text(title, style="bold"),
        "",
        table([Column("", [name for name, _ in _rows(found)], left=True), *_columns(heads, found)]),
        "",
        *(Text(line, style="dim") for line in _explanations(first)),
        *text.notes(list(dict.fromkeys(note for each in found for note in each.trace.notes))),
        "",
        *_lists(first, limit),
        *_advised(advice),
    )


def _columns(heads: Sequence[str], found: Sequence[Memory]) -> list[Column]:
    rows = _rows(found)
    return [Column(head, [cells[i] for _, cells in rows]) for i, head in enumerate(heads)]


def _rows(found: Sequence[Memory]) -> list[tuple[str, list[str]]]:
    rows = [(kind, [_shown(each.by_kind[kind]) for each in found]) for kind in KINDS]
    rows.append(("allocated at the peak", [memory(each.peak_bytes) for each in found]))
    rows.append(("reserved", [memory(each.reserved_bytes) for each in found]))
    if any(each.device for each in found):
        rows.append(("context and libraries", [_shown(each.context_bytes) for each in found]))
        rows.append(("process", [_shown(each.process_bytes) for each in found]))
        rows.append(("GPU", [memory(e.device.memory_bytes) if e.device else "" for e in found]))
        rows.append(("fits", [_fits(each) for each in found]))
    return rows


def _fits(found: Memory) -> str:
    return {True: "yes", False: "no", None: ""}[found.fits]


def _shown(nbytes: int | None) -> str:
    return "?" if nbytes is None else memory(nbytes)


def _explanations(found: Memory) -> Iterable[str]:
    call = found.trace.calls[found.peak_call] if len(found.trace) else None
    if call is not None:
        where = f" of {call.module}" if call.module else ""
        yield f"the peak is in the {call.phase} pass, at {call.op.base}{where}"
    if found.device is None:
        yield "name a GPU (--gpu) for workspaces, the process and whether it fits"
        return
    known = measured_context()
    if found.context_bytes and found.device.compute_capability != known.capability:
        yield f"context and libraries: as measured on an {known.gpu}, more than smaller GPUs take"


def _lists(found: Memory, limit: int) -> Iterable[RenderableType]:
    held = found.held()[:limit]
    modules = list(found.by_module(_DEPTH).items())[:limit]
    yield Text("held at the peak", style="bold")
    yield ""
    yield table(
        [
            Column("", [memory(each.nbytes) for each in held]),
            Column("kind", [each.kind for each in held], left=True),
            Column("tensors", [str(each.count) for each in held]),
            Column("made by", [each.op or "before the step" for each in held], left=True),
            Column("module", [each.module or "-" for each in held], left=True),
        ]
    )
    yield ""
    yield Text("by module, at the peak", style="bold")
    yield ""
    yield table(
        [
            Column("", [memory(nbytes) for _, nbytes in modules]),
            Column("module", [name for name, _ in modules], left=True),
        ]
    )


def _advised(advice: Sequence[Advice]) -> Iterable[RenderableType]:
    if not advice:
        return
    yield ""
    yield Text("what would save memory", style="bold")
    yield ""
    yield table(
        [
            Column("", [each.name for each in advice], left=True),
            Column("saves", [memory(each.saved_bytes) for each in advice]),
            Column("reserved then", [memory(each.after.reserved_bytes) for each in advice]),
            Column("how", [each.how for each in advice], left=True),
        ]
    )


def fitting_gpus(title: str, found: Sequence[Memory], width: int) -> RenderableType:
    """One row for each GPU: whether the step fits."""
    rows = sorted(found, key=lambda e: (not e.fits, e.device.memory_bytes if e.device else 0))
    columns = [
        Column("GPU", [each.device.id if each.device else "" for each in rows], left=True),
        Column("fits", [_fits(each) for each in rows], left=True),
        Column("memory", [memory(e.device.memory_bytes) if e.device else "" for e in rows]),
        Column("process", [_shown(each.process_bytes or each.reserved_bytes) for each in rows]),
        Column("of it", [_share(each) for each in rows], 1),
        Column("workspace", [_shown(each.by_kind["workspace"]) for each in rows], 2),
    ]
    styles = ["" if each.fits else "dim" for each in rows]
    return Group(Text(title, style="bold"), "", table(fitting(columns, width), styles))


def _share(found: Memory) -> str:
    if found.device is None:
        return ""
    return f"{(found.process_bytes or found.reserved_bytes) / found.device.memory_bytes:.0%}"


def largest_batches(
    title: str, found: Sequence[tuple[Device, LargestBatch]], width: int
) -> RenderableType:
    """One row for each GPU: the largest batch."""
    columns = [
        Column("GPU", [device.id for device, _ in found], left=True),
        Column("largest batch", [str(each.batch) if each.batch else "none" for _, each in found]),
        Column("peak", [memory(each.peak_bytes) for _, each in found]),
        Column("for tensors", [memory(each.limit_bytes) for _, each in found], 1),
        Column("traced", [", ".join(map(str, each.traced)) for _, each in found], 2, left=True),
    ]
    return Group(Text(title, style="bold"), "", table(fitting(columns, width)))


def memory_record(found: Memory, advice: Sequence[Advice] = ()) -> dict[str, Any]:
    """The memory of a step as plain data; bytes, unknown is null."""
    call = found.trace.calls[found.peak_call]
    return {
        "gpu": found.device.id if found.device else None,
        "peak_bytes": found.peak_bytes,
        "reserved_bytes": found.reserved_bytes,
        "context_bytes": found.context_bytes,
        "process_bytes": found.process_bytes,
        "fits": found.fits,
        "by_kind": dict(found.by_kind),
        "by_module": dict(found.by_module(_DEPTH)),
        "peak": {"phase": str(call.phase), "op": call.op.base, "module": call.module},
        "held": [asdict(each) for each in found.held()],
        "advice": [
            {
                "name": each.name,
                "how": each.how,
                "saved_bytes": each.saved_bytes,
                "peak_bytes": each.after.peak_bytes,
                "reserved_bytes": each.after.reserved_bytes,
            }
            for each in advice
        ],
        "notes": list(found.trace.notes),
    }
