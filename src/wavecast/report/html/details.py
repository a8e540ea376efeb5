"""The details of a few candidates: where time and memory go on each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any

from wavecast.report.html import breakdown, memory_charts, roofline_charts, timetable_charts
from wavecast.report.html.axes import bar
from wavecast.report.html.breakdown import Names
from wavecast.report.html.colors import kind_key
from wavecast.report.html.compared import ComparedStep
from wavecast.report.html.documents import Section, Subject
from wavecast.report.html.markup import Html, element, folded, joined
from wavecast.report.units import duration, percent
from wavecast.steps.timetable import Timetable

MOST = 6
"""How many candidates have details: more would make the page too large."""
_MOST_SPANS = 110_000
"""How many spans the timelines of a page hold together; the first timeline is always there."""


@dataclass(frozen=True)
class Detailed:
    """A candidate, or one of its ranks, with its timetable."""

    identity: str
    name: str
    candidate: ComparedStep
    moments: Timetable


@dataclass(frozen=True)
class Details:
    """The sections with details, and the data that their script needs."""

    sections: tuple[Section, ...]
    subjects: tuple[Subject, ...]
    names: tuple[str, ...]


def details(candidates: Sequence[ComparedStep]) -> Details:
    """Where time and memory go, for the first of the candidates."""
    chosen = [
        Detailed(f"{index}-{rank}", ", ".join(filter(None, (one.name, label))), one, moments)
        for index, one in enumerate(candidates[:MOST])
        for rank, (label, moments) in enumerate(one.timetables().items())
    ]
    if not chosen:
        return Details((), (), ())
    names = Names()
    subjects: list[Subject] = []
    left = _MOST_SPANS
    for one in chosen:
        data: dict[str, Any] = {"tree": breakdown.module_tree(one.moments, names), "timeline": None}
        spans = timetable_charts.spans_of(one.moments)
        if spans <= left or not subjects:
            data["timeline"] = timetable_charts.timeline(one.moments, names)
            left -= spans
        subjects.append(Subject(one.identity, one.name, data))
    return Details(tuple(_sections(chosen, subjects)), tuple(subjects), tuple(names.listed()))


def _sections(chosen: Sequence[Detailed], subjects: Sequence[Subject]) -> list[Section]:
    made = [
        Section(
            "time",
            "Where the time goes",
            each(chosen, _time),
            "The GPU's time by kind of op, then by module. Choose a module to see what is in it.",
            "time",
        ),
        Section(
            "timeline",
            "Host, compute and communication over one step",
            joined(starmap(_timeline, zip(chosen, subjects, strict=True))),
            "One step in the steady state of many. Drag to move; click, then scroll to zoom.",
            "timeline",
        ),
    ]
    if any(one.candidate.memory is not None for one in chosen):
        is_shared = any(one.candidate.gpus > 1 for one in chosen)
        whose = "the fullest GPU's" if is_shared else "the GPU's"
        lead = f"What {whose} memory holds at the fullest moment, and over the step."
        made.append(Section("memory", "Memory", each(chosen, _memory), lead, "memory"))
    made.append(
        Section(
            "roofline",
            "How near the ops are to the GPU's limits",
            each(chosen, _roofline),
            "Under the sloping roof memory traffic is the limit, under the flat ones arithmetic.",
            "roofline",
        )
    )
    return made


def subject_part(identity: str, name: str, *content: Html) -> Html:
    """A part of a section that is about one subject; the script shows one of them at a time."""
    heading = element("h3", name)
    return element("div", heading, *content, class_="subject", data_subject=identity)


def each(chosen: Sequence[Detailed], draw: Callable[[Detailed], Html]) -> Html:
    """What a section shows of each."""
    return joined(subject_part(one.identity, one.name, draw(one)) for one in chosen)


def _time(one: Detailed) -> Html:
    return joined(
        [
            busy_bars(one.moments),
            breakdown.op_kinds(one.moments),
            element("h4", "By module"),
            breakdown.icicle(one.identity),
            folded("Modules as a table", breakdown.modules(one.moments)),
            folded("Longest ops as a table", breakdown.longest_ops(one.moments)),
        ]
    )


def busy_bars(moments: Timetable) -> Html:
    """How much of the step the GPU and the host are busy."""
    computing = [call.stream == 0 for call in moments.calls]
    rows = [
        ("GPU computes", float(moments.gpu_s[computing].sum()), "c0"),
        ("GPU communicates", float(moments.gpu_s[[not one for one in computing]].sum()), "c11"),
        ("host issues ops", float(moments.issue_s.sum()), "c4"),
    ]
    parts = []
    for name, seconds, class_ in rows:
        if seconds:
            share = seconds / moments.seconds
            text = f"{percent(share)} ({duration(seconds)})"
            drawn = bar([(min(share, 1.0), class_, text), (1.0, "free", "")], f"{name}: {text}")
            words = element("span", name), drawn, element("span", text, class_="number")
            parts.append(element("div", *words, class_="meter"))
    return element("div", *parts, class_="meters")


def _timeline(one: Detailed, subject: Subject) -> Html:
    if subject.data["timeline"] is not None:
        drawn = timetable_charts.timeline_place(one.identity)
    else:
        text = "This timeline was left out to keep the page small: ask for fewer GPUs."
        drawn = element("p", text)
    drawn = joined([drawn, kind_key(breakdown.used_kinds(one.moments))])
    calls = folded("Longest calls as a table", timetable_charts.longest_calls(one.moments))
    return subject_part(one.identity, one.name, drawn, calls)


def _memory(one: Detailed) -> Html:
    needed = one.candidate.memory
    if needed is None:
        return element("p", "The memory of this step is not known: its trace has no allocations.")
    return joined(memory_charts.memory_parts(needed, one.moments))


def _roofline(one: Detailed) -> Html:
    gpu = one.candidate.device
    return joined(
        [
            roofline_charts.roofline(one.moments, gpu),
            folded("The points as a table", roofline_charts.roofline_table(one.moments, gpu)),
        ]
    )
