"""Profiles of a step: one GPU, or several side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Group, RenderableType

from wavecast.analysis.profile import KernelShare, Profile
from wavecast.footprint.memory import TBD_KINDS
from wavecast.report.caveats import counted_ops
from wavecast.report.fields import Field, columns, describe, plain, record
from wavecast.report.fields import columns as columns_of
from wavecast.report.html.comparison import ComparedStep, tiles, verdict
from wavecast.report.html.details import details
from wavecast.report.html.documents import Report, Section
from wavecast.report.html.markup import bullets, element, html_table, joined
from wavecast.report.html.reports import prediction_report
from wavecast.report.tables import (
    Column,
    by_gpu,
    labelled,
    line,
    notes,
    remarks,
    shown,
    table,
    titled,
)
from wavecast.report.units import (
    UNKNOWN,
    count,
    duration,
    memory,
    or_unknown,
    percent,
    three_digits,
)
from wavecast.steps.player import of_measured
from wavecast.steps.prediction import TOO_MUCH, Prediction
from wavecast.traces.kernel_names import is_collective, is_copy, readable_name
from wavecast.traces.step import Trace

# What a profile shows, in sentences: where the time of a step is lost, the most first.


_WORTH_SAYING = 0.05
"""The least share of the step of which a sentence speaks."""
_WAITS = {
    "host": "the GPU idles {share} of the step waiting for the host",
    "synchronisation": "the GPU idles {share} of the step because the host waited for it before",
    "communication": "the GPU idles {share} of the step beside communication",
    "input": "the GPU idles {share} of the step waiting for its input",
    "pipeline bubble": "{share} of the step is the pipeline's bubble",
    "slowest rank": "{share} of the step is waiting for the slowest rank",
}


def findings(profile: Profile) -> list[str]:
    """What a profile shows, the largest share of the step first."""
    if not profile.seconds:
        return []
    found = [*_lost(profile), *_longest(profile)]
    return [text for share, text in sorted(found, reverse=True) if share >= _WORTH_SAYING]


def _lost(profile: Profile) -> list[tuple[float, str]]:
    """Idle time by cause, and communication that nothing hides."""
    found = []
    for cause, seconds in profile.idle_s.items():
        if cause == "communication" and not profile.measured:
            continue  # in a prediction it is the exposed communication
        share = seconds / profile.seconds
        words = _WAITS.get(cause, f"the GPU idles {{share}} of the step: {cause}")
        found.append((share, words.format(share=percent(share)) + _place(profile, cause)))
    exposed = profile.exposed_s / profile.seconds
    found.append((exposed, f"{percent(exposed)} of the step is exposed communication (NCCL)"))
    return found


def _place(profile: Profile, cause: str) -> str:
    if cause not in profile.idle_at:
        return ""
    place, share = profile.idle_at[cause]
    return f", most at {place} ({percent(share)} of it)"


def _longest(profile: Profile) -> list[tuple[float, str]]:
    """The longest kernel, and copies between host and GPU."""
    copies_s = sum(
        kernel.seconds
        for kernel in profile.kernels
        if is_copy(kernel.name) and ("HtoD" in kernel.name or "DtoH" in kernel.name)
    )
    share = copies_s / profile.seconds
    found = [(share, f"copies between host and GPU take {duration(copies_s)}")]
    computing = [k for k in profile.kernels if not is_copy(k.name) and not is_collective(k.name)]
    for kernel in computing[:1]:
        what = readable_name(kernel.name)
        used = "" if kernel.attained is None else f", at {percent(kernel.attained)} of its roofline"
        text = f"{what} takes {percent(kernel.share)} of the GPU's time{used}"
        found.append((kernel.seconds / profile.seconds, text))
    return found


KERNELS = 5
"""How many kernels a table lists."""
_LONGEST_NAME = 60
_ALL = 0.995
"""From this share of the GPU's time on, FLOPs count as known for all of it."""


def _short(name: str) -> str:
    name = readable_name(name)
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."


def _tenths(share: float | None) -> str:
    return or_unknown(share, lambda value: percent(value, 1))


describe(
    KernelShare,
    Field("name", title="", text=_short, folds=True),
    Field("runs", title="runs", rank=4),
    Field("seconds", title="time", drawn=True),
    Field("share", title="share", rank=1, text=_tenths),
    Field("utilisation", title="utilisation", rank=2, text=_tenths),
    Field("intensity", title="FLOP/B", rank=5, text=three_digits),
    Field("attained", title="of roofline", rank=3, text=_tenths),
    Field("bound_by", title="bound by", rank=2, left=False),
)


def _units(profile: Profile) -> Mapping[str, float] | None:
    """The utilisation of FP32 and tensor cores, from 0 to 1. None when no FLOPs are known."""
    known = profile.known_share >= _ALL or any(profile.utilisation.values())
    return profile.utilisation if known else None


describe(
    Profile,
    "name",
    Field("gpu", "device.id", title="GPU"),
    "measured",
    Field("seconds", title="step"),
    *map(Field, ("gpu_s", "host_s")),
    Field("host", "issued_by", blank=True),
    Field("throughput_per_s", "throughput", title="throughput"),
    "unit",
    Field("gpu_utilisation", title="GPU utilisation"),
    Field("utilisation", _units, title="FP32 and tensor-core utilisation"),
    *map(Field, ("cpu_utilisation", "idle_s", "memory_bytes", "known_share", "counted_share")),
    *map(Field, ("kernels", "wasteful", "unpredicted_share", "notes", "exposed_s")),
    Field("findings", findings, kind=[str], meaning="What it shows, in sentences."),
    parts="kernels",
)


def profile_record(profile: Profile, kernels: int | None = None) -> dict[str, Any]:
    """A profile as plain data; `kernels` is how many to list, None for all."""
    if kernels is None:
        return record(profile)
    few = {"kernels": profile.kernels[:kernels], "wasteful": profile.wasteful(kernels)}
    return record(profile) | {name: plain(rows) for name, rows in few.items()}


def profiles(
    title: str, columns: Sequence[Profile], width: int, kernels: int = KERNELS
) -> RenderableType:
    """One column for each GPU; later columns are compared with the first.

    Args:
        title: what the step is.
        columns: the profiles of one step, each on another GPU.
        width: columns of the terminal.
        kernels: how many kernels to list.
    """
    return titled(
        title,
        *_found(columns),
        table(profile_columns(columns)),
        "",
        *remarks(explanations(columns)),
        *notes([*_unpredicted(columns), *_notes(columns)]),
        *(_kernel_tables(profile, kernels, width) for profile in columns),
    )


def _found(columns: Sequence[Profile]) -> list[RenderableType]:
    """The findings of each profile, before its figures."""
    told = [
        line(text if len(columns) == 1 else f"{profile.device.id}: {text}")
        for profile in columns
        for text in findings(profile)
    ]
    return [*told, ""] if told else []


def profile_columns(profiles: Sequence[Profile]) -> list[Column]:
    """The figures of each profile; from the second on with the ratio to the first."""
    first = profiles[0].device.id
    headings = [first]
    for profile in profiles[1:]:
        headings += [profile.device.id, f"/ {first}"]
    return labelled(list(_rows(profiles)), headings)


def _notes(columns: Sequence[Profile]) -> list[str]:
    return list(dict.fromkeys(note for profile in columns for note in profile.notes))


def _unpredicted(columns: Sequence[Profile]) -> list[str]:
    """The ops without a prediction, on each GPU on which there are some."""
    return [
        f"ops without a prediction on {profile.device.id}, counted as 0 s: "
        f"{counted_ops(profile.unpredicted)}; they are {percent(profile.unpredicted_share)} of its "
        f"work{_incomparable(profile)}"
        for profile in columns
        if profile.unpredicted
    ]


def _incomparable(profile: Profile) -> str:
    much = profile.unpredicted_share > TOO_MUCH
    return ", so its time is a lower bound and GPUs cannot be compared" if much else ""


def _rows(columns: Sequence[Profile]) -> Iterable[tuple[str, list[str]]]:
    first = columns[0]
    rank = all(p.unpredicted_share <= TOO_MUCH for p in columns)
    yield "step", _compared([p.seconds for p in columns], duration, rank)
    if first.throughput is not None:
        yield f"{first.unit}/s", _compared([p.throughput or 0.0 for p in columns], count, rank)
    yield "GPU utilisation", _spaced([percent(p.gpu_utilisation) for p in columns])
    for name, unit in (("FP32", "fp32"), ("tensor-core", "tensor")):
        yield f"{name} utilisation", _spaced([_utilisation(p, unit) for p in columns])
    if any(p.cpu_utilisation is not None for p in columns):
        yield "CPU utilisation", _spaced([_tenths(p.cpu_utilisation) for p in columns])
    for cause in dict.fromkeys(cause for p in columns for cause, s in p.idle_s.items() if s):
        idle = [p.idle_s.get(cause, 0.0) / p.seconds for p in columns]
        yield f"GPU idle: {cause}", _spaced([_tenths(share) for share in idle])
    for kind in TBD_KINDS:
        if any(p.memory_bytes.get(kind) for p in columns):
            yield kind, _spaced([or_unknown(p.memory_bytes.get(kind), memory) for p in columns])


def _compared(values: Sequence[float], show: Callable[[float], str], rank: bool) -> list[str]:
    """Each value; from the second on followed by its ratio to the first, if they may be ranked."""
    first, *others = values
    cells = [show(first)]
    for value in others:
        cells += [show(value), three_digits(value / first) if first and rank else UNKNOWN]
    return cells


def _spaced(cells: Sequence[str]) -> list[str]:
    """The cells; from the second on followed by an empty one in place of a ratio."""
    first, *others = cells
    return [first, *(part for cell in others for part in (cell, ""))]


def _utilisation(profile: Profile, unit: str) -> str:
    """The utilisation of a unit; a lower bound where the FLOPs of some kernels are unknown."""
    if _units(profile) is None:
        return UNKNOWN
    at_least = "at least " if profile.known_share < _ALL else ""
    return f"{at_least}{_tenths(profile.utilisation[unit])}"


def explanations(columns: Sequence[Profile]) -> Iterable[str]:
    """What the figures of profiles mean."""
    first = columns[0]
    hosts = by_gpu((profile.device.id, profile.issued_by) for profile in columns)
    yield "measured" if first.measured else f"predicted; host: {hosts}"
    yield "FP32 and tensor-core utilisation: share of peak FLOP/s while the GPU is busy"
    if any(seconds for profile in columns for seconds in profile.idle_s.values()):
        yield "GPU idle: share of the step in which the GPU waits, by cause"
    if first.counted_share:
        yield f"FLOPs were counted by the hardware for {percent(first.counted_share)} of GPU time"
    if first.known_share < _ALL:
        yield f"FLOPs are known for {percent(first.known_share)} of GPU time"
    if any(first.memory_bytes.values()):
        unseen = "" if first.memory_bytes["workspace"] else "; workspaces are not known"
        yield f"memory: the peak of each kind, which may be at different times{unseen}"
        yield "dynamic memory: optimizer state, temporary tensors, half-precision weight copies"


def _kernel_tables(profile: Profile, limit: int, width: int) -> RenderableType:
    parts: list[RenderableType] = []
    what = "kernels" if profile.measured else "ops"
    for title, rows in (
        (f"longest {what}", profile.kernels[:limit]),
        (f"long {what} with a utilisation below average", profile.wasteful(limit)),
    ):
        if rows:
            parts += ["", titled(f"{profile.device.id}: {title}", *shown(columns(rows), width))]
    return Group(*parts)


# Pages about profiles: how well a step uses the GPU, and which kernels take the time.


_KERNELS = 20


def predicted_profile_report(
    title: str, profiles: Sequence[Profile], predictions: Sequence[Prediction]
) -> Report:
    """Profiles of a predicted step: the report of its predictions, with utilisation."""
    made = prediction_report(title, predictions)
    first, *others = made.sections
    return replace(made, sections=(first, _utilisation_section(profiles), *others))


def measured_profile_report(title: str, profile: Profile, trace: Trace) -> Report:
    """The profile of a measured step."""
    candidate = ComparedStep(
        name=f"{profile.device.id} (measured)",
        device=profile.device,
        seconds=profile.seconds,
        low_s=None,
        high_s=None,
        throughput=profile.throughput,
        unit=profile.unit,
        offer=None,
        memory=None,
        bound_by="gpu" if profile.gpu_utilisation > 0.9 else "host",
        is_comparable=True,
        timetables=lambda: {"": of_measured(trace)},
    )
    shown = details([candidate])
    notes = Section("notes", "Notes", bullets(profile.notes)) if profile.notes else None
    return Report(
        title,
        verdict([candidate]),
        (_utilisation_section([profile]), *shown.sections, *([notes] if notes else [])),
        tiles(candidate),
        shown.subjects,
        shown.names,
    )


def _utilisation_section(profiles: Sequence[Profile]) -> Section:
    """How well the GPU is used, and the kernels or ops that take most time."""
    parts = [html_table(profile_columns(profiles), caption="How well the GPU is used")]
    for profile in profiles:
        what = "kernels" if profile.measured else "ops"
        heading = f"Longest {what} on {profile.device.id}"
        columns = columns_of(profile.kernels[:_KERNELS])
        parts += [element("h3", heading), html_table(columns, caption=heading)]
    lead = " ".join(f"{line[:1].upper()}{line[1:]}." for line in explanations(profiles))
    return Section("utilisation", "How well the GPU is used", joined(parts), lead, "utilisation")
