"""Measurements, and what is made of them, as tables in a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from wavecast import ops
from wavecast.hardware.device import Device, Fact
from wavecast.hardware.host_files import HostFile
from wavecast.hardware.hosts import REFERENCE_HOST
from wavecast.ops import Kind
from wavecast.report import text
from wavecast.report.tables import Column, empty, fitting, table
from wavecast.report.units import count, duration, fact, three_digits
from wavecast.steps.larger_batch import LargerBatch
from wavecast.steps.prediction import Share
from wavecast.traces import overlap
from wavecast.traces.step import Measurement, Trace


def summary(title: str, trace: Trace) -> RenderableType:
    """A measured step: the whole, how well its parts explain it, and the longest ops."""
    kernels = [kernel for call in trace for kernel in call.kernels]
    busy_s = overlap.busy_s(kernels)
    measured = trace.measurement or Measurement("an unknown GPU")
    shown = empty()
    for name in ("", "time", ""):
        shown.add_column(name, justify="right" if name else "left", no_wrap=True)
    for row in _whole(measured, busy_s):
        shown.add_row(*map(Text, row))
    lines = [
        f"{measured.gpu or 'GPU unknown'}; {trace.framework or 'framework unknown'}; "
        f"{measured.software or 'software unknown'}",
        f"{count(len(kernels))} kernels in {count(len(trace))} calls; {_repeats(measured)}",
        *_communication(trace),
    ]
    return Group(
        Text(title, style="bold"),
        "",
        shown,
        "",
        *(Text(line, style="dim") for line in lines),
        *text.notes(trace.notes),
        text.shares("GPU time by op", _by_op(trace), sum(k.seconds for k in kernels), limit=10),
    )


def _whole(measured: Measurement, busy_s: float) -> list[tuple[str, str, str]]:
    rows = []
    if measured.seconds:
        how = "steady state" if measured.repeats > 1 else "one iteration"
        rows.append(("iteration", duration(measured.seconds), how))
    if measured.gpu_s is not None:
        share = f"{measured.gpu_s / measured.seconds:.0%} of it" if measured.seconds else ""
        rows.append(("GPU busy", duration(measured.gpu_s), share))
    if measured.host_s is not None:
        rows.append(("host, to issue it", duration(measured.host_s), "waiting not counted"))
    off = f"{busy_s / measured.gpu_s - 1:+.1%} of GPU busy" if measured.gpu_s else ""
    rows.append(("sum of parts", duration(busy_s), off))
    if measured.recorded_s and measured.seconds:
        times = f"{measured.recorded_s / measured.seconds:.1f} times as long"
        rows.append(("while recorded", duration(measured.recorded_s), times))
    return rows


def _repeats(measured: Measurement) -> str:
    if measured.repeats == 1:
        return "one iteration"
    return f"times are the median of {measured.repeats} iterations"


def _communication(trace: Trace) -> list[str]:
    hidden = [ops.kind(call.op) is Kind.COLLECTIVE for call in trace]
    total = sum(k.seconds for call, h in zip(trace, hidden, strict=True) if h for k in call.kernels)
    if not total:
        return []
    exposed = overlap.exposed_s(trace.calls, hidden)
    alone = sum(seconds for seconds, h in zip(exposed, hidden, strict=True) if h)
    return [f"communication: {duration(total)}, {duration(alone)} of it while nothing else ran"]


def _by_op(trace: Trace) -> list[Share]:
    calls: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for call in trace:
        if call.kernels:
            name = call.op.base if call.op.base.startswith("aten.") else call.op.name[:60]
            calls[name] = calls.get(name, 0) + 1
            seconds[name] = seconds.get(name, 0.0) + sum(k.seconds for k in call.kernels)
    return sorted((Share(n, calls[n], seconds[n]) for n in calls), key=lambda each: -each.gpu_s)


def calibration(known: Device, facts: Mapping[str, Fact]) -> RenderableType:
    """Measured facts next to the nominal ones."""
    shown = empty()
    for name in ("fact", "nominal", "measured", "share"):
        shown.add_column(name, justify="left" if name == "fact" else "right", no_wrap=True)
    for name, found in facts.items():
        nominal = getattr(known, name)
        share = "" if nominal is None else f"{found.value / nominal:.0%}"
        before = "?" if nominal is None else fact(name, nominal)
        shown.add_row(name, before, fact(name, found.value), share)
    return Group(Text(f"{known.name} ({known.id})", style="bold"), "", shown, "")


def host(found: HostFile) -> RenderableType:
    """What issuing costs a host, next to the reference."""
    shown = empty()
    for name in ("to issue", "reference", "here", "times"):
        shown.add_column(name, justify="left" if name == "to issue" else "right", no_wrap=True)
    for cost, title in _COSTS.items():
        mine, other = found.costs[cost], getattr(REFERENCE_HOST, cost)
        times = three_digits(mine / other) if other else "?"
        shown.add_row(title, duration(other), duration(mine), times)
    lines = [
        f"{found.software}; {found.source.removeprefix('wavecast calibrate, ')}",
        f"takes {three_digits(found.factor)} times as long as the reference host",
    ]
    dim = (Text(line, style="dim") for line in lines)
    return Group(Text(found.name, style="bold"), "", shown, "", *dim)


_COSTS = {
    "forward_s": "an op that Python calls",
    "autograd_s": "its record for the backward pass",
    "backward_s": "an op of the backward pass",
    "other_s": "an op on lists (optimizers)",
    "tensor_s": "each tensor of such an op",
    "view_s": "a view",
    "module_s": "a module",
    "convolution_s": "a convolution's plan",
    "kernel_s": "each further kernel of an op",
    "step_s": "a training step, beside its ops",
    "launch_s": "from issue to start, idle GPU",
    "sync_s": "from the end to the host",
    "graph_s": "a CUDA graph",
    "node_s": "each kernel of it",
}


def larger_batches(found: Mapping[Device, LargerBatch], unit: str, width: int) -> RenderableType:
    """The line through several batches, read at a larger one, on each GPU."""
    lines = list(found.values())
    columns = [
        Column("GPU", [device.id for device in found], left=True),
        Column("step", [duration(line.seconds) for line in lines]),
        Column("range", [f"{duration(x.low_s)} - {duration(x.high_s)}" for x in lines], 2),
        Column(f"{unit}/s", [count(line.throughput) for line in lines], 1),
        Column("fixed", [duration(max(line.fixed_s, 0.0)) for line in lines], 3),
        Column("per sample", [duration(max(line.per_sample_s, 0.0)) for line in lines], 4),
    ]
    first = lines[0]
    sizes = ", ".join(map(str, first.points))
    return Group(
        Text(f"a batch of {first.batch} {unit}, extrapolated from {sizes}", style="bold"),
        "",
        table(fitting(columns, width)),
        "",
        Text("range: 90% of the straight line's own uncertainty, not of the GPU's", style="dim"),
    )
