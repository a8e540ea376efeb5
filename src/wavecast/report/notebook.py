"""Results as notebooks show them, as plain data, as tables of pandas, and as pages."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from wavecast import ops
from wavecast.errors import InvalidInput, MissingExtra
from wavecast.footprint.memory import Memory
from wavecast.hardware.family_traces import FamilyTraces
from wavecast.planning.scaling import Scaling
from wavecast.report import comparisons, parallel, records
from wavecast.report.characters import one_line
from wavecast.report.html.documents import Report, document
from wavecast.report.html.memory_reports import memory_report
from wavecast.report.html.reports import parallel_report, prediction_report, scaling_report
from wavecast.report.units import count, duration, memory, or_unknown, percent, time_range
from wavecast.steps.comparison import StepComparison
from wavecast.steps.parallel_prediction import ParallelPrediction
from wavecast.steps.prediction import Prediction
from wavecast.steps.profile import Profile
from wavecast.traces.script import ScriptRun
from wavecast.traces.step import Trace

if TYPE_CHECKING:
    from pandas import DataFrame

Facts = list[tuple[str, str]]
Rows = list[dict[str, Any]]


class Form(NamedTuple):
    """The forms in which results of one type are shown."""

    facts: Callable[[Any], Facts]
    """The few lines that a notebook shows, each with a name."""
    record: Callable[[Any], Any]
    """All of it as plain data."""
    rows: Callable[[Any], Rows]
    """Its parts, one row each."""
    report: Callable[[Any], Report] | None = None
    """The page about it. None if there is none."""


def fragment(result: object) -> str:
    """A small table of HTML with the main figures of a result; nothing in it is loaded."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{_safe(name)}</th>"
        f"<td style='text-align:left'>{_safe(text)}</td></tr>"
        for name, text in _form(result).facts(result)
    )
    caption = f"<caption style='text-align:left'><b>{_safe(type(result).__name__)}</b></caption>"
    return f"<table>{caption}<tbody>{rows}</tbody></table>"


def record(result: object) -> dict[str, Any]:
    """A result as plain data."""
    data: dict[str, Any] = _form(result).record(result)
    return data


def frame(result: object) -> DataFrame:
    """The parts of a result as a table of pandas.

    Raises:
        MissingExtra: pandas is not installed.
    """
    try:
        import pandas
    except ModuleNotFoundError as error:
        if error.name != "pandas":
            raise
        raise MissingExtra("to_pandas needs pandas: pip install pandas") from error
    return pandas.DataFrame(_form(result).rows(result))


def page(result: object) -> str:
    """The page about a result.

    Raises:
        InvalidInput: there is none.
    """
    make = _form(result).report
    if make is None:
        known = [kind.__name__ for kind, form in _FORMS.items() if form.report is not None]
        raise InvalidInput(
            f"there is no page for a {type(result).__name__}; there is one for {', '.join(known)}"
        )
    return document(make(result))


def _form(result: object) -> Form:
    forms = (form for kind, form in _FORMS.items() if isinstance(result, kind))
    return next(forms, _PLAIN)


def _plain_facts(result: Any) -> Facts:
    return [(name.replace("_", " "), str(value)) for name, value in asdict(result).items()]


_PLAIN = Form(_plain_facts, asdict, lambda result: [asdict(result)])
"""The form of small results, field by field."""


def _safe(text: str) -> str:
    return html.escape(one_line(text))


def _trace_facts(trace: Trace) -> Facts:
    totals = ops.totals(trace)
    work = f"{totals.cost.flops / 1e12:.3g} TFLOP, {memory(totals.cost.bytes)} of traffic"
    measured = [("measured on", trace.measurement.gpu)] if trace.measurement else []
    return [
        ("calls", f"{count(len(trace))}, {count(totals.kernels)} of them launch kernels"),
        ("work", work),
        ("samples", "?" if trace.samples is None else f"{count(trace.samples)} {trace.unit}"),
        ("made by", trace.framework),
        *measured,
        *_notes(trace.notes),
    ]


def _trace_rows(trace: Trace) -> Rows:
    rows = []
    for call in trace:
        cost = ops.cost_of(call.op)
        rows.append(
            {
                "op": call.op.name,
                "kind": str(ops.kind(call.op) or ""),
                "phase": str(call.phase),
                "module": call.module,
                "source": call.line,
                "stream": call.stream,
                "syncs": call.syncs,
                "flops": None if cost is None else cost.flops,
                "bytes": None if cost is None else cost.bytes,
                "inputs": [tuple(tensor.shape) for tensor in call.op.inputs],
            }
        )
    return rows


def _family_facts(traces: FamilyTraces) -> Facts:
    return [("traces", str(len(traces.traces))), *_trace_facts(traces.traces[0])]


def _prediction_facts(step: Prediction) -> Facts:
    fits = {True: "fits", False: "does not fit", None: "memory unknown"}[step.fits]
    needed = "" if step.memory is None else f": {memory(step.memory.needed_bytes)}"
    missing = [("not predicted", ", ".join(step.unpredicted))] if step.unpredicted else []
    return [
        ("GPU", step.device.id),
        ("step", duration(step.seconds)),
        ("range", time_range(step.low_s, step.high_s)),
        (f"{step.trace.unit}/s", or_unknown(step.throughput, count)),
        ("bound by", step.bound_by),
        ("memory", f"{fits}{needed}"),
        *((f"{percent(s.gpu_s / (step.gpu_s or 1.0))} of GPU time", s.name) for s in _top(step)),
        *missing,
        *_notes((*step.notes, *step.trace.notes)),
    ]


def _top(step: Prediction) -> Sequence[Any]:
    return step.by_op()[:3]


def _prediction_rows(step: Prediction) -> Rows:
    table = step.timetable
    columns = (table.issued_s, table.issue_s, table.begin_s, table.gpu_s)
    rows = zip(step.trace, *(column.tolist() for column in columns), strict=True)
    return [
        {
            "op": call.op.name,
            "kind": str(ops.kind(call.op) or ""),
            "phase": str(call.phase),
            "module": call.module,
            "source": call.line,
            "issued_s": issued_s,
            "issue_s": issue_s,
            "begin_s": begin_s,
            "gpu_s": gpu_s,
        }
        for call, issued_s, issue_s, begin_s, gpu_s in rows
    ]


def _parallel_facts(step: ParallelPrediction) -> Facts:
    return [
        ("GPUs", f"{step.gpus} x {step.device.id}"),
        ("strategy", parallel.strategy_text(step.strategy)),
        ("step", duration(step.seconds)),
        ("range", time_range(step.low_s, step.high_s)),
        (f"{step.trace.unit}/s", or_unknown(step.throughput, count)),
        ("efficiency", percent(step.efficiency)),
        *_notes(step.notes),
    ]


def _memory_facts(needed: Memory) -> Facts:
    fits = {True: "yes", False: "no", None: "name a GPU"}[needed.fits]
    kinds = {kind: nbytes for kind, nbytes in needed.by_kind.items() if nbytes}
    return [
        ("GPU", needed.device.id if needed.device else "any"),
        ("fits", fits),
        ("allocated at the peak", memory(needed.peak_bytes)),
        ("reserved", memory(needed.reserved_bytes)),
        ("needed", memory(needed.needed_bytes)),
        *((kind, memory(nbytes)) for kind, nbytes in kinds.items()),
        *_notes(needed.notes),
    ]


def _profile_facts(step: Profile) -> Facts:
    return [
        ("GPU", step.device.id),
        ("step", duration(step.seconds)),
        ("GPU utilisation", percent(step.gpu_utilisation)),
        *((f"{name} utilisation", percent(share)) for name, share in step.utilisation.items()),
        *((f"{percent(one.share)} of GPU time", one.name) for one in step.kernels[:3]),
    ]


def _scaling_facts(curve: Scaling) -> Facts:
    return [
        (f"{point.gpus} GPUs", f"{duration(point.prediction.seconds)}, {percent(point.relative)}")
        for point in curve.points
    ]


def _scaling_rows(curve: Scaling) -> Rows:
    return [
        {
            "gpus": point.gpus,
            "seconds": point.prediction.seconds,
            "low_s": point.prediction.low_s,
            "high_s": point.prediction.high_s,
            "throughput": point.prediction.throughput,
            "relative": point.relative,
        }
        for point in curve.points
    ]


def _comparison_facts(change: StepComparison) -> Facts:
    before, after = change.before, change.after
    ratio = f"{duration(before.seconds)} to {duration(after.seconds)} ({change.time_ratio:.2f} x)"
    parts = [
        (part.name, f"{duration(part.before_s)} to {duration(part.after_s)}")
        for part in change.ops[:5]
    ]
    return [("step", ratio), *parts, *(("remark", text) for text in change.remarks)]


def _comparison_rows(change: StepComparison) -> Rows:
    return [asdict(part) for part in change.ops]


def _script_facts(run: ScriptRun) -> Facts:
    return [("script", run.script), ("step", run.summary), *_trace_facts(run.trace)]


def _notes(notes: Sequence[str]) -> Facts:
    return [("note", note) for note in dict.fromkeys(notes)]


_FORMS: dict[type, Form] = {
    Prediction: Form(
        _prediction_facts,
        records.prediction,
        _prediction_rows,
        lambda step: prediction_report(f"step on {step.device.id}", [step]),
    ),
    ParallelPrediction: Form(
        _parallel_facts,
        lambda step: parallel.record(step, None),
        lambda step: [asdict(stage) for stage in step.stages],
        lambda step: parallel_report(f"step on {step.gpus} x {step.device.id}", [(step, None)]),
    ),
    Memory: Form(
        _memory_facts,
        records.memory,
        lambda needed: [asdict(group) for group in needed.held()],
        lambda needed: memory_report("memory of the step", [needed]),
    ),
    Scaling: Form(
        _scaling_facts,
        parallel.scaling_record,
        _scaling_rows,
        lambda curve: scaling_report("scaling", curve),
    ),
    Profile: Form(
        _profile_facts,
        records.profile,
        lambda step: [asdict(kernel) for kernel in step.kernels],
    ),
    StepComparison: Form(_comparison_facts, comparisons.comparison_record, _comparison_rows),
    Trace: Form(_trace_facts, records.trace, _trace_rows),
    FamilyTraces: Form(
        _family_facts,
        lambda traces: {"traces": [records.trace(trace) for trace in traces.traces]},
        lambda traces: _trace_rows(traces.traces[0]),
    ),
    ScriptRun: Form(
        _script_facts,
        lambda run: {**records.script_run(run), "trace": records.trace(run.trace)},
        lambda run: _trace_rows(run.trace),
    ),
}
