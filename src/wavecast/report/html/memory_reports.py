"""Pages about the memory of a step."""

from __future__ import annotations

from collections.abc import Sequence

from wavecast.footprint.advice import Advice
from wavecast.footprint.memory import Memory
from wavecast.report.fields import columns
from wavecast.report.html import memory_charts
from wavecast.report.html.documents import Report, Section
from wavecast.report.html.markup import Html, bullets, element, joined, table
from wavecast.report.tables import headed
from wavecast.report.units import memory


def memory_report(title: str, memories: Sequence[Memory], advice: Sequence[Advice] = ()) -> Report:
    """The memory of one step on some GPUs, or on none in particular; advice is of the first."""
    sections = [
        Section(f"memory-{index}", _title(needed), _part(needed, () if index else advice))
        for index, needed in enumerate(memories)
    ]
    notes = [*memories[0].trace.notes, *(note for needed in memories for note in needed.notes)]
    if notes:
        sections.append(Section("notes", "Notes", bullets(dict.fromkeys(notes))))
    named = ((one.device.id if one.device else "", one.trace) for one in memories)
    return Report(headed(title, named), _verdict(memories), tuple(sections))


def _title(needed: Memory) -> str:
    return f"Memory on {needed.device.id}" if needed.device else "Memory"


def _part(needed: Memory, advice: Sequence[Advice]) -> Html:
    parts = memory_charts.memory_parts(needed)
    if advice:
        caption = "Changes that would save memory"
        parts += [element("h3", caption), table(columns(advice), caption=caption)]
    return joined(parts)


def _verdict(memories: Sequence[Memory]) -> Html:
    first = memories[0]
    if first.device is None:
        size = memory(first.reserved_bytes)
        return joined(["The step needs ", element("strong", size), " beside CUDA's context."])
    fitting = [needed.device.id for needed in memories if needed.device and needed.fits]
    size = memory(max(needed.needed_bytes for needed in memories))
    if any(needed.fits is None for needed in memories):
        missing = " and ".join(first.unrecorded)
        return joined(
            ["It needs ", element("strong", f"more than {size}"), f": {missing} unknown."]
        )
    if len(fitting) == len(memories):
        where = fitting[0] if len(fitting) == 1 else f"all {len(fitting)} GPUs"
        return joined(["It ", element("strong", "fits"), f" on {where}: it needs up to {size}."])
    if not fitting:
        return joined(["It ", element("strong", "does not fit"), f": it needs up to {size}."])
    return joined(
        ["It ", element("strong", f"fits on {', '.join(fitting)}"), ", not on the others."]
    )
