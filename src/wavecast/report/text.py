"""Results as tables in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from wavecast import ops
from wavecast.devices import Device
from wavecast.prediction import Prediction, Share
from wavecast.prices import price
from wavecast.report.units import duration, memory, quantity, three_digits
from wavecast.trace import Phase, Role, Trace

_NOTES_SHOWN = 5


def predictions(title: str, found: Sequence[Prediction], width: int) -> RenderableType:
    """One row per GPU; columns that do not fit the width are left out, the least needed first."""
    unit = found[0].trace.unit
    columns: list[tuple[int, str, list[str]]] = [
        (0, "GPU", [p.device.id for p in found]),
        (0, "step", [duration(p.seconds) for p in found]),
        (4, "range", [f"{duration(p.low_s)} - {duration(p.high_s)}" for p in found]),
        (1, f"{unit}/s", [_rate(p) for p in found]),
        (3, "GPU busy", [_share_of_step(p, p.gpu_s) for p in found]),
        (5, "host", [_share_of_step(p, p.host_s) for p in found]),
        (2, "bound by", [p.bound_by for p in found]),
        (3, "$/h", [_price(p.device) for p in found]),
        (2, f"{unit}/$", [_per_dollar(p) for p in found]),
    ]
    while len(columns) > 2 and _width(columns) > width:
        columns.remove(max(columns, key=lambda column: column[0]))
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    for _, name, _ in columns:
        table.add_column(name, justify="left" if name in ("GPU", "bound by") else "right", no_wrap=True)
    for row in zip(*(cells for _, _, cells in columns), strict=True):
        table.add_row(*row)
    return Group(table, *_footnotes(found))


def shares(title: str, found: Iterable[Share], total_s: float, limit: int = 15) -> RenderableType:
    """Where the GPU's time goes, longest first."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    table.add_column("", overflow="fold")
    for name in ("calls", "GPU time", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    for share in list(found)[:limit]:
        part = share.gpu_s / total_s if total_s else 0.0
        table.add_row(share.name, str(share.calls), duration(share.gpu_s), f"{part:.1%}")
    return table


def trace_summary(title: str, trace: Trace) -> RenderableType:
    """What a step does, by phase, and what of it has no formula."""
    totals = ops.totals(trace)
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    for name in ("phase", "calls", "FLOPs", "memory traffic"):
        table.add_column(name, justify="left" if name == "phase" else "right", no_wrap=True)
    for phase in Phase:
        calls = sum(call.phase is phase for call in trace)
        if calls:
            cost = totals.by_phase.get(phase, ops.Cost())
            table.add_row(phase, str(calls), quantity(cost.flops, "FLOP"), memory(cost.bytes))
    cost = totals.cost
    table.add_row("all", str(len(trace)), quantity(cost.flops, "FLOP"), memory(cost.bytes))
    weights = sum(a.nbytes for a in trace.allocations if a.role is Role.PARAMETER)
    lines = [
        f"{len(trace.counts)} distinct ops, {totals.kernels} launch kernels; "
        f"weights {memory(weights)}; {trace.framework}"
    ]
    if totals.unknown:
        lines.append("no formula for: " + _counted(totals.unknown))
    return Group(table, *map(Text, lines), *_notes(trace))


def devices(found: Sequence[Device], width: int) -> RenderableType:
    """One row per GPU with the facts that decide."""
    columns: list[tuple[int, str, list[str]]] = [
        (0, "name", [d.id for d in found]),
        (2, "architecture", [d.architecture for d in found]),
        (1, "memory", [memory(d.memory_bytes) for d in found]),
        (1, "bandwidth", [quantity(d.memory_bytes_per_s, "B/s") for d in found]),
        (1, "FP32", [_flops(d.fp32_flops) for d in found]),
        (3, "TF32", [_flops(d.tf32_tensor_flops) for d in found]),
        (2, "FP16", [_flops(d.fp16_tensor_flops) for d in found]),
        (3, "BF16", [_flops(d.bf16_tensor_flops) for d in found]),
        (4, "SMs", ["?" if d.sm_count is None else str(d.sm_count) for d in found]),
        (4, "TDP", ["?" if d.tdp_w is None else f"{d.tdp_w:.0f} W" for d in found]),
        (3, "$/h", [_price(d) for d in found]),
    ]
    while len(columns) > 2 and _width(columns) > width:
        columns.remove(max(columns, key=lambda column: column[0]))
    table = Table(box=box.SIMPLE_HEAD)
    for _, name, _ in columns:
        table.add_column(name, justify="left" if name in ("name", "architecture") else "right", no_wrap=True)
    for row in zip(*(cells for _, _, cells in columns), strict=True):
        table.add_row(*row)
    note = Text(f"{len(found)} GPUs; rates dense, FLOP/s; tensor cores for TF32, FP16, BF16; ? unknown")
    return Group(table, note)


def device_facts(found: Device) -> RenderableType:
    """Every number of a GPU with its source."""
    table = Table(
        title=f"{found.name} ({found.id})", title_justify="left", box=box.SIMPLE_HEAD, title_style="bold"
    )
    table.add_column("fact", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("source", overflow="fold")
    for name, source in found.sources.items():
        value = getattr(found, name)
        shown = ".".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}"
        table.add_row(name, shown, source)
    for name, fact in found.measured.items():
        table.add_row(f"measured {name}", f"{fact.value:g}", fact.source)
    return table


def _footnotes(found: Sequence[Prediction]) -> list[Text]:
    lines = []
    missing: dict[str, int] = {}
    for prediction in found:
        missing |= prediction.unpredicted
    if missing:
        lines.append(Text(f"not predicted, counted as 0: {_counted(missing)}", style="yellow"))
    offers = [offer for p in found if (offer := price(p.device)) is not None]
    if offers:
        newest = max(offer.date for offer in offers)
        lines.append(
            Text(f"$/h: cheapest on-demand offer known, USD per GPU, as of {newest}", style="dim")
        )
    by = ", ".join(sorted({share.name for p in found for share in p.sources()}))
    lines.append(
        Text(f"op times: {by}; issued by the {found[0].host.name}; ranges are not yet calibrated", style="dim")
    )
    return lines + _notes(found[0].trace)


def _notes(trace: Trace) -> list[Text]:
    shown = [Text(f"note: {note}", style="yellow") for note in trace.notes[:_NOTES_SHOWN]]
    if len(trace.notes) > _NOTES_SHOWN:
        shown.append(Text(f"note: and {len(trace.notes) - _NOTES_SHOWN} more (--json has all)"))
    return shown


def _width(columns: list[tuple[int, str, list[str]]]) -> int:
    return sum(max(map(len, (name, *cells))) + 3 for _, name, cells in columns)


def _rate(prediction: Prediction) -> str:
    rate = prediction.throughput
    return "?" if rate is None else three_digits(rate)


def _share_of_step(prediction: Prediction, seconds: float) -> str:
    return f"{seconds / prediction.seconds:.0%}" if prediction.seconds else "?"


def _price(device: Device) -> str:
    offer = price(device)
    return "?" if offer is None else f"{offer.usd_per_hour:.2f}"


def _per_dollar(prediction: Prediction) -> str:
    offer, rate = price(prediction.device), prediction.throughput
    if offer is None or rate is None:
        return "?"
    return quantity(rate * 3600 / offer.usd_per_hour)


def _flops(rate: float | None) -> str:
    return "?" if rate is None else quantity(rate)


def _counted(names: dict[str, int] | object) -> str:
    counts = dict(names)  # type: ignore[call-overload]
    return ", ".join(f"{name} ({count}x)" for name, count in counts.items())
