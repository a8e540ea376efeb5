"""Profiles of a step: one GPU, or several side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Group, RenderableType

from wavecast import ops
from wavecast.analysis.profile import KernelShare, Profile, profile_measured
from wavecast.errors import WavecastError
from wavecast.footprint.memory import TBD_KINDS
from wavecast.ops import Kind
from wavecast.predictors.retargeting import FamilyTraces
from wavecast.report import units
from wavecast.report.fields import Described, Field, columns, describe, output, plain, record, some
from wavecast.report.fields import columns as columns_of
from wavecast.report.html.details import Detailed, details_of
from wavecast.report.html.documents import Report, Section
from wavecast.report.html.markup import bullets, element, html_table, joined
from wavecast.report.html.reports import BOUNDS, figure_boxes, prediction_report, strong
from wavecast.report.results.caveats import counted_ops, shares
from wavecast.report.results.memory import AdvisedMemory
from wavecast.report.results.predictions import PREDICTED
from wavecast.report.tables import (
    Column,
    by_gpu,
    from_rows,
    headed,
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
    quantity,
    three_digits,
)
from wavecast.steps.player import of_measured
from wavecast.steps.prediction import TOO_MUCH, Prediction, Share
from wavecast.steps.request import origin_of
from wavecast.traces import file
from wavecast.traces.kernel_names import is_collective, is_copy, readable_name
from wavecast.traces.script import LoaderTime, Loading, OwnTime, ScriptLength, ScriptPart, ScriptRun
from wavecast.traces.step import Measurement, Phase, Role, Trace

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
    shares = [*_lost(profile), *_longest(profile)]
    return [text for share, text in sorted(shares, reverse=True) if share >= _WORTH_SAYING]


def _lost(profile: Profile) -> list[tuple[float, str]]:
    """Idle time by cause, and communication that nothing hides."""
    shares = []
    for cause, seconds in profile.idle_s.items():
        if cause == "communication" and not profile.measured:
            continue  # in a prediction it is the exposed communication
        share = seconds / profile.seconds
        words = _WAITS.get(cause, f"the GPU idles {{share}} of the step: {cause}")
        shares.append((share, words.format(share=percent(share)) + _place(profile, cause)))
    exposed = profile.exposed_s / profile.seconds
    shares.append((exposed, f"{percent(exposed)} of the step is exposed communication (NCCL)"))
    return shares


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
    shares = [(share, f"copies between host and GPU take {duration(copies_s)}")]
    computing = [k for k in profile.kernels if not is_copy(k.name) and not is_collective(k.name)]
    for kernel in computing[:1]:
        what = readable_name(kernel.name)
        used = "" if kernel.attained is None else f", at {percent(kernel.attained)} of its roofline"
        text = f"{what} takes {percent(kernel.share)} of the GPU's time{used}"
        shares.append((kernel.seconds / profile.seconds, text))
    return shares


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
    """One column for each GPU; later columns are compared with the first."""
    return titled(
        title,
        *_found(columns),
        table(profile_columns(columns)),
        "",
        *remarks(explanations(columns)),
        *notes([*_unpredicted(columns), *dict.fromkeys(n for p in columns for n in p.notes)]),
        *(_kernel_tables(profile, kernels, width) for profile in columns),
    )


def _found(columns: Sequence[Profile]) -> list[RenderableType]:
    """The findings of each profile, before its figures."""
    lines = [
        line(text if len(columns) == 1 else f"{profile.device.id}: {text}")
        for profile in columns
        for text in findings(profile)
    ]
    return [*lines, ""] if lines else []


def profile_columns(profiles: Sequence[Profile]) -> list[Column]:
    """The figures of each profile; from the second on with the ratio to the first."""
    first = profiles[0].device.id
    headings = [first]
    for profile in profiles[1:]:
        headings += [profile.device.id, f"/ {first}"]
    return labelled(list(_rows(profiles)), headings)


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
    report = prediction_report(title, predictions)
    first, *others = report.sections
    return replace(report, sections=(first, _utilisation_section(profiles), *others))


def measured_profile_report(title: str, profile: Profile, trace: Trace) -> Report:
    """The profile of a measured step."""
    name = f"{profile.device.id} (measured)"
    time, rate = duration(profile.seconds), profile.throughput
    figures = [("step", time, "no range")]
    figures += [] if rate is None else [("speed", count(rate), f"{profile.unit}/s")]
    bound = BOUNDS["gpu" if profile.gpu_utilisation > 0.9 else "host"]
    shown = details_of([Detailed("0-0", name, profile.device, of_measured(trace))])
    notes = Section("notes", "Notes", bullets(profile.notes)) if profile.notes else None
    return Report(
        title,
        joined(["One step takes about ", strong(time), f" on {name}; {bound}."]),
        (_utilisation_section([profile]), *shown.sections, *([notes] if notes else [])),
        figure_boxes(name, figures),
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


# Traced and measured steps: their calls, FLOPs, memory traffic and times.


_NAME = 60
"""Characters of an op's name; a longer one is cut."""
describe(
    ops.Totals,
    "kernels",
    Field("flops", "cost.flops", meaning="FLOPs as torch counts them; a multiply-add counts two."),
    "executed_flops",
    Field("bytes", "cost.bytes"),
    *map(Field, ("by_phase", "by_kind")),
    Field("unknown_ops", "unknown"),
)


def _calls(trace: Trace) -> str:
    return f"{count(len(trace))}, {count(ops.totals(trace).kernels)} of them launch kernels"


def _work(trace: Trace) -> str:
    cost = ops.totals(trace).cost
    return f"{quantity(cost.flops, 'FLOP')}, {memory(cost.bytes)} of traffic"


def _samples(trace: Trace) -> str | None:
    return None if trace.samples is None else f"{count(trace.samples)} {trace.unit}"


def _distinct(trace: Trace) -> int:
    """Ops with different names, shapes or arguments."""
    return len(trace.counts)


describe(
    Trace,
    Field("", _calls, title="calls"),
    Field("", _work, title="work"),
    Field("", _samples, title="samples"),
    Field("calls", len, kind=int),
    Field("distinct_ops", _distinct),
    Field("", ops.totals, inline=True),
    *map(Field, ("samples", "unit")),
    Field("framework", title="made by"),
    Field("", "measurement.gpu", title="measured on", absent=""),
    *map(Field, ("capability", "notes", "measurement")),
)
describe(
    FamilyTraces,
    Field("", lambda family: len(family.traces), title="families of GPUs"),
    Field("", lambda family: _work(family.traces[0]), title="work"),
    "traces",
    parts="traces",
)


def traced_step(title: str, trace: Trace) -> RenderableType:
    """The calls, FLOPs and memory traffic of a step by phase, and the ops without a formula."""
    work = ops.totals(trace)
    calls = {phase: sum(call.phase is phase for call in trace) for phase in Phase}
    rows = [
        (str(phase), number, work.by_phase.get(phase, ops.Cost()))
        for phase, number in calls.items()
        if number
    ]
    rows.append(("all", len(trace), work.cost))
    cells = [
        (name, count(number), quantity(cost.flops, "FLOP"), memory(cost.bytes))
        for name, number, cost in rows
    ]
    columns = from_rows(cells, "<phase", "calls", "FLOPs", "memory traffic")
    weights = sum(a.nbytes for a in trace.allocations if a.role is Role.PARAMETER)
    lines = [
        f"{len(trace.counts)} distinct ops; {count(work.kernels)} calls launch kernels; "
        f"weights {memory(weights)}; {trace.framework or 'framework unknown'}"
    ]
    if work.unknown:
        lines.append(f"ops without a formula for FLOPs and bytes: {counted_ops(work.unknown)}")
    shown = headed(title, [("", trace)])
    return titled(shown, table(columns), "", *map(line, lines), *notes(trace.notes))


def measured_step(title: str, trace: Trace) -> RenderableType:
    """A measured step: what it shows, its times, how they were measured, and the longest ops."""
    kernels = [kernel for call in trace for kernel in call.kernels]
    measured = trace.measurement or Measurement("")
    rows = _times(measured, file.busy_s(kernels))
    columns = from_rows(rows, "<", "time", "<")
    lines = [
        f"{measured.gpu or 'GPU unknown'}; {trace.framework or 'framework unknown'}; "
        f"{measured.software or 'software unknown'}",
        f"{count(len(kernels))} kernels in {count(len(trace))} calls; {_repeats(measured)}",
        *_communication(trace),
    ]
    shown = [line(text, "bold") for text in _findings(title, trace)]
    return titled(
        title,
        *shown,
        *([""] if shown else []),
        table(columns),
        "",
        *remarks(lines),
        *notes(trace.notes),
        shares("GPU time by op", _by_op(trace), sum(k.seconds for k in kernels), limit=10),
    )


def _findings(title: str, trace: Trace) -> list[str]:
    """What the step shows, in sentences; nothing if it is not known on which GPU it ran."""
    try:
        device = origin_of(trace, None)
    except WavecastError:
        return []
    return findings(profile_measured(title, trace, device))


def _times(measured: Measurement, busy_s: float) -> list[tuple[str, str, str]]:
    """The times of a measured step, each with its name and a remark."""
    rows = []
    if measured.seconds:
        how = "steady state" if measured.repeats > 1 else "one iteration"
        rows.append(("iteration", duration(measured.seconds), how))
    if measured.gpu_s is not None:
        share = measured.gpu_s / measured.seconds if measured.seconds else None
        remark = "" if share is None else f"{percent(min(share, 1.0))} of the iteration"
        remark += "; this step was longer than the median one" if (share or 0.0) > 1 else ""
        rows.append(("GPU busy", duration(measured.gpu_s), remark))
    if measured.host_s is not None:
        remark = "time to issue the step, waiting not counted"
        rows.append(("host busy", duration(measured.host_s), remark))
    off = f"{busy_s / measured.gpu_s - 1:+.1%} from GPU busy" if measured.gpu_s else ""
    rows.append(("sum of the kernels", duration(busy_s), off))
    if measured.recorded_s and measured.seconds:
        times = f"{measured.recorded_s / measured.seconds:.1f} times as long"
        rows.append(("iteration while recorded", duration(measured.recorded_s), times))
    return rows


def _repeats(measured: Measurement) -> str:
    if measured.repeats == 1:
        return "one iteration"
    return f"times are the median of {measured.repeats} iterations"


def _communication(trace: Trace) -> list[str]:
    collective = [ops.kind(call.op) is Kind.COLLECTIVE for call in trace]
    pairs = list(zip(trace, collective, strict=True))
    total = sum(
        kernel.seconds for call, is_collective in pairs if is_collective for kernel in call.kernels
    )
    if not total:
        return []
    exposed = file.exposed_s(trace.calls, collective)
    alone = sum(
        seconds for seconds, is_collective in zip(exposed, collective, strict=True) if is_collective
    )
    return [f"communication: {duration(total)}, {duration(alone)} of it while nothing else ran"]


def _by_op(trace: Trace) -> list[Share]:
    calls: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for call in trace:
        if call.kernels:
            is_known = call.op.base.startswith("aten.")
            name = call.op.base if is_known else readable_name(call.op.name)[:_NAME]
            calls[name] = calls.get(name, 0) + 1
            seconds[name] = seconds.get(name, 0.0) + sum(k.seconds for k in call.kernels)
    by_op = (Share(name, calls[name], seconds[name]) for name in calls)
    return sorted(by_op, key=lambda share: -share.gpu_s)


# The run of a training script: which step was traced, and what ran outside of it.


describe(
    ScriptPart,
    Field("name", title="outside of the step"),
    Field("calls", title="calls"),
    Field("flops", title="FLOPs"),
)
describe(
    Loading,
    Field("seconds", title="one batch"),
    Field("batches", title="batches of a step"),
    Field("workers", title="workers"),
    Field("step_s", title="a step's batches"),
    Field("timed"),
)
describe(
    LoaderTime,
    Field("seconds", title="a batch every"),
    Field("cpu_s", title="CPU time"),
    Field("batches", title="batches"),
    Field("workers", title="workers"),
    Field("cores", title="cores"),
)
describe(OwnTime, Field("seconds", title="own Python"), Field("line", title="at"))
describe(
    ScriptLength,
    Field("source", title="source"),
    Field("epochs", title="epochs"),
    Field("batches", title="batches of an epoch"),
    Field("steps", title="steps"),
)
_NAMES = (
    *("line", "step", "steps", "equal", "choice", "once", "holds", "left_out", "loading"),
    *("own_time", "length", "confined"),
)
_SCRIPT = Described(ScriptRun, some(Field("name", "script"), *_NAMES))
"""The fields of a script's run without those of its trace."""
describe(
    ScriptRun,
    Field("name", "script", title="script"),
    Field("", "summary", title="step"),
    *_NAMES,
    "trace",
    parts="once",
)


_WEAKER = (
    "this kernel cannot confine the script (Linux 6.2 can): Python's functions on files were "
    "redirected, but programs and libraries in C may have written files"
)

RESULT = output(
    "The step of a script, and its prediction, its memory (--memory) or its work.",
    Field("script", kind=_SCRIPT, meaning="The script, and which of its steps was traced."),
    Field("", "predicted", kind=PREDICTED, inline=True, optional=True),
    Field("memory", kind=[AdvisedMemory], optional=True, meaning="The memory on each GPU."),
    Field("", "trace", kind=Trace, inline=True, optional=True),
)


def result_record(run: ScriptRun, **result: Any) -> dict[str, Any]:
    """The run of a script as plain data, with what was predicted of its step."""
    return RESULT.record({"script": _SCRIPT.record(run), **result})


def script_run(
    run: ScriptRun, fastest: Prediction | None = None, cores: int | None = None
) -> RenderableType:
    """Which step was traced and why, what it has, and what is not in it.

    Args:
        run: the run.
        fastest: the prediction of the shortest step. None if none was predicted.
        cores: the cores of the machine that will load the data. None for those of this one.
    """
    first, *further = found_step(run)
    parts: list[RenderableType] = [line(first, "bold"), *map(line, further)]
    if not run.confined:
        parts.append(line(_WEAKER, "yellow"))
    if run.loading is not None:
        loading = run.loading if cores is None else run.loading.on_cores(cores)
        style = "yellow" if _is_slow(loading, fastest) else ""
        parts.append(line(_loading(loading, fastest), style))
    if run.own_time is not None:
        is_slow = fastest is not None and run.own_time.seconds > fastest.seconds
        parts.append(line(_own_time(run.own_time, is_slow), "yellow" if is_slow else ""))
    parts.append("")
    return Group(*parts, table(columns(run.once)), "") if run.once else Group(*parts)


def found_step(run: ScriptRun) -> list[str]:
    """Which step of a script was found and why, and what it has, as lines of text."""
    holds = headed(run.holds, [("", run.trace)])
    lines = [f"{run.script}: {run.summary}", f"one step: {holds}"]
    lines += [f"left out: {text}" for text in run.left_out]
    if run.length is not None:
        lines.append(f"{_length(run.length)}; {run.steps} of them ran here")
    if run.largest is not None:
        lines.append("memory: that of the step that needs most of those that ran")
    return lines


def in_total(run: ScriptRun, *, averaged: bool) -> list[str]:
    """What the time of a whole training has of steps that differ, or has not.

    Args:
        run: the run.
        averaged: whether that time is the mean of all steps after which the steps come again.
    """
    if averaged:
        return [f"the time is that of {run.cycle_steps} steps in turn, of which one is shown above"]
    parts = [part.name for part in run.once if part.name.startswith("evaluation")]
    return [f"not in the time: {text}" for text in (*run.left_out, *parts)]


def _length(length: ScriptLength) -> str:
    """How long the script trains, and where it says so."""
    parts = []
    if length.epochs is not None:
        parts.append(f"{length.epochs:g} epochs")
    if length.batches is not None:
        parts.append(f"{units.count(length.batches)} batches in an epoch")
    if length.steps is not None:
        parts.append(f"{units.count(length.steps)} steps in all")
    return f"length: {', '.join(parts)} ({length.source})"


def _is_slow(loading: Loading, fastest: Prediction | None) -> bool:
    return fastest is not None and loading.step_s > fastest.seconds


def _loading(loading: Loading, fastest: Prediction | None) -> str:
    """How long loading took, and whether the GPU would wait for it."""
    if loading.timed is not None:
        return _timed(loading, loading.timed, fastest)
    took = (
        f"loading: a batch took {units.duration(loading.seconds)} here, while tracing, in one "
        "process"
    )
    if loading.workers:
        took += f"; with the script's {loading.workers} workers, one is ready every "
        took += units.duration(loading.seconds / loading.workers)
    if _is_slow(loading, fastest):
        return f"{took}: longer than the predicted step, so the GPU may wait for data"
    return f"{took} (not a part of the predicted step)"


def _own_time(own: OwnTime, is_slow: bool) -> str:
    """How long the script's own Python took, and whether the GPU would wait for it."""
    took = (
        f"own code: Python between ops took {units.duration(own.seconds)} of a step here, most of "
        f"it at {own.line}"
    )
    if is_slow:
        return f"{took}: longer than the predicted step, so the GPU may wait for it"
    return f"{took} (not a part of the predicted step)"


def _timed(loading: Loading, timed: LoaderTime, fastest: Prediction | None) -> str:
    """How fast the loader is with its workers, and whether that is enough."""
    who = f"{timed.workers} workers" if timed.workers else "the training process itself"
    took = (
        f"loading: {who} on {timed.cores} cores have a batch ready every "
        f"{units.duration(timed.seconds)} ({units.duration(timed.cpu_s)} of CPU time)"
    )
    if fastest is None:
        return took
    step_s, waits = fastest.seconds, bool(fastest.trace.arrays.syncs)
    needed = f"{took}; the fastest GPU needs one every {units.duration(step_s / loading.batches)}"
    iteration_s = loading.iteration_s(step_s, fastest.host_s, waits=waits)
    if iteration_s <= step_s:
        return f"{needed}, so it does not wait for data"
    enough = math.ceil(timed.cpu_s * loading.batches / step_s)
    many = f"{enough} {'worker' if enough == 1 else 'workers'} on as many cores would be enough"
    if not timed.workers:
        needed += ", and the training process issues no ops while it loads"
    return f"{needed}, so an iteration takes {units.duration(iteration_s)}; {many}"
