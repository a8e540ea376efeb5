"""Traced and measured steps: their calls, FLOPs, memory traffic and times."""

from __future__ import annotations

from rich.console import RenderableType

from wavecast import ops
from wavecast.analysis.profile import profile_measured
from wavecast.errors import WavecastError
from wavecast.ops import Kind
from wavecast.predictors.retargeting import FamilyTraces
from wavecast.report.caveats import counted_ops, shares
from wavecast.report.fields import Field, describe
from wavecast.report.profiles import findings
from wavecast.report.tables import from_rows, headed, line, notes, remarks, table, titled
from wavecast.report.units import count, duration, memory, percent, quantity
from wavecast.steps.prediction import Share
from wavecast.steps.request import origin_of
from wavecast.traces import file
from wavecast.traces.kernel_names import readable_name
from wavecast.traces.step import Measurement, Phase, Role, Trace

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
    found = [line(text, "bold") for text in _findings(title, trace)]
    return titled(
        title,
        *found,
        *([""] if found else []),
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
