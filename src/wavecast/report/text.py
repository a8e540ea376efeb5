"""Results as tables in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from wavecast import ops
from wavecast.hardware.device import Device
from wavecast.planning.prices import price
from wavecast.report.record import nominal_facts
from wavecast.report.tables import Column, empty, fitting, table, width_of
from wavecast.report.units import count, duration, fact, memory, quantity
from wavecast.steps.prediction import Prediction, Share
from wavecast.traces.step import Phase, Role, Trace

_NOTES_SHOWN = 5
_NAMES_SHOWN = 4


def predictions(
    title: str, found: Sequence[Prediction], width: int, remarks: Iterable[str] = ()
) -> RenderableType:
    """One row per GPU; columns that do not fit the width are left out, the least needed first.

    Args:
        title: what was predicted.
        found: the predictions, in the order of the rows.
        width: columns of the terminal.
        remarks: what the reader should know besides, each in one line.
    """
    columns = _prediction_columns(found)
    if not all(_fits(p) for p in found):
        columns.append(_memory_column(found, width - width_of(fitting(columns, 10**6))))
    styles = ["" if _fits(p) else "dim" for p in found]
    return Group(
        Text(title, style="bold"),
        "",
        table(fitting(columns, width), styles),
        "",
        *_footnotes(found),
        *notes([*remarks, *dict.fromkeys(note for p in found for note in p.trace.notes)]),
    )


def _prediction_columns(found: Sequence[Prediction]) -> list[Column]:
    unit = found[0].trace.unit
    return [
        Column("GPU", [p.device.id for p in found], left=True),
        Column("step", [duration(p.seconds) for p in found]),
        Column("range", [f"{duration(p.low_s)} - {duration(p.high_s)}" for p in found], 4),
        Column(f"{unit}/s", [_rate(p) for p in found], 1),
        Column("GPU busy", [_share_of_step(p, p.gpu_s) for p in found], 3),
        Column("host busy", [_share_of_step(p, p.host_s) for p in found], 5),
        Column("bound by", [p.bound_by for p in found], 2, left=True),
        Column("$/h", [_price(p.device) for p in found], 3),
        Column(f"{unit}/$", [_per_dollar(p) for p in found], 2),
    ]


def _memory_column(found: Sequence[Prediction], room: int) -> Column:
    """Which GPUs are too small; in full where there is room."""
    in_full = [
        ""
        if p.memory is None or _fits(p)
        else f"does not fit: needs {memory(p.memory.needed_bytes)} of {memory(p.device.memory_bytes)}"
        for p in found
    ]
    if max(map(len, in_full)) + 3 <= room:
        return Column("memory", in_full, left=True)
    return Column("memory", [cell.partition(":")[0] for cell in in_full], left=True)


def shares(title: str, found: Iterable[Share], total_s: float, limit: int = 15) -> RenderableType:
    """Where the GPU's time goes, longest first; what is not listed is summed up."""
    parts = list(found)
    rest = parts[limit:]
    if len(rest) > 1:
        calls, seconds = sum(part.calls for part in rest), sum(part.gpu_s for part in rest)
        parts = [*parts[:limit], Share(f"{len(rest)} others", calls, seconds)]
    shown = empty()
    shown.add_column("", overflow="fold")
    for name in ("calls", "GPU time", "share"):
        shown.add_column(name, justify="right", no_wrap=True)
    for part in parts:
        share = part.gpu_s / total_s if total_s else 0.0
        shown.add_row(Text(part.name), count(part.calls), duration(part.gpu_s), f"{share:.1%}")
    return Group("", Text(title, style="bold"), "", shown)


def trace_summary(title: str, trace: Trace) -> RenderableType:
    """What a step does, by phase, and what of it has no formula."""
    totals = ops.totals(trace)
    shown = empty()
    for name in ("phase", "calls", "FLOPs", "memory traffic"):
        shown.add_column(name, justify="left" if name == "phase" else "right", no_wrap=True)
    for phase in Phase:
        calls = sum(call.phase is phase for call in trace)
        if calls:
            cost = totals.by_phase.get(phase, ops.Cost())
            shown.add_row(phase, count(calls), quantity(cost.flops, "FLOP"), memory(cost.bytes))
    cost = totals.cost
    shown.add_row("all", count(len(trace)), quantity(cost.flops, "FLOP"), memory(cost.bytes))
    weights = sum(a.nbytes for a in trace.allocations if a.role is Role.PARAMETER)
    lines = [
        f"{len(trace.counts)} distinct ops, {count(totals.kernels)} calls launch kernels; "
        f"weights {memory(weights)}; {trace.framework or 'framework unknown'}"
    ]
    if totals.unknown:
        lines.append("no formula for: " + _counted(totals.unknown))
    return Group(Text(title, style="bold"), "", shown, "", *map(Text, lines), *notes(trace.notes))


def devices(found: Sequence[Device], width: int) -> RenderableType:
    """One row per GPU with the facts that decide."""
    columns = [
        Column("name", [d.id for d in found], left=True),
        Column("architecture", [d.architecture for d in found], 2, left=True),
        Column("memory", [memory(d.memory_bytes) for d in found], 1),
        Column("bandwidth", [quantity(d.memory_bytes_per_s, "B/s") for d in found], 1),
        Column("FP32", [_flops(d.fp32_flops) for d in found], 1),
        Column("TF32", [_flops(d.tf32_tensor_flops) for d in found], 3),
        Column("FP16", [_flops(d.fp16_tensor_flops) for d in found], 2),
        Column("BF16", [_flops(d.bf16_tensor_flops) for d in found], 3),
        Column("SMs", ["?" if d.sm_count is None else str(d.sm_count) for d in found], 4),
        Column("TDP", ["?" if d.tdp_w is None else f"{d.tdp_w:.0f} W" for d in found], 4),
        Column("$/h", [_price(d) for d in found], 3),
    ]
    kept = fitting(columns, width)
    lines = [
        f"{count(len(found))} GPUs. Rates are dense FLOP/s; TF32, FP16 and BF16 on tensor cores. "
        "? is unknown or absent.",
        'All facts of one, with their sources: "wavecast devices NAME".',
    ]
    if len(kept) < len(columns):
        lines.append("A wider terminal shows more columns.")
    return Group(table(kept), "", *(Text(line, style="dim") for line in lines))


def device_facts(found: Device) -> RenderableType:
    """Every number of a GPU with its source."""
    shown = empty()
    shown.add_column("fact", no_wrap=True)
    shown.add_column("value", justify="right", no_wrap=True)
    shown.add_column("source", overflow="fold")
    for name, value in nominal_facts(found).items():
        shown.add_row(name, fact(name, value), Text(found.sources.get(name, "not given")))
    for name, measured in found.measured.items():
        shown.add_row(f"measured {name}", fact(name, measured.value), Text(measured.source))
    lines = [f"{found.vendor} {found.architecture}"]
    if found.aliases:
        lines.append("also called " + ", ".join(found.aliases))
    if (offer := price(found)) is not None:
        host = "" if offer.includes_host else ", without the machine around it"
        name = " ".join(filter(None, (offer.provider, offer.instance)))
        lines.append(f"{offer.usd_per_hour:.2f} $/h on demand{host} ({name}, {offer.date})")
    title = Text.assemble((found.name, "bold"), f" ({found.id})")
    return Group(title, *(Text(line, style="dim") for line in lines), "", shown)


def _fits(prediction: Prediction) -> bool:
    """Whether nothing speaks against it: profiler files do not say how much memory a step needs."""
    return prediction.fits is not False


def _footnotes(found: Sequence[Prediction]) -> list[Text]:
    lines = [Text(line, style="yellow") for line in _missing(found)]
    if not all(_fits(p) for p in found):
        needed = memory(max(p.memory.needed_bytes for p in found if p.memory is not None))
        lines.append(
            Text(
                f"does not fit: the process needs up to {needed}; wavecast memory says for what",
                style="yellow",
            )
        )
    if all(p.throughput is None for p in found):
        lines.append(Text("no throughput: how many samples a step takes is not known (--batch)"))
    offers = [offer for p in found if (offer := price(p.device)) is not None]
    if offers:
        newest = max(offer.date for offer in offers)
        lines.append(Text(f"$/h: cheapest on-demand offer known, USD per GPU, as of {newest}"))
    lines.append(
        Text(
            f"op times: {_sources(found)}; issued by the {found[0].host.name}; "
            + ("nine in ten steps lie in the range" if _calibrated(found) else "range uncalibrated")
        )
    )
    for line in lines:
        line.style = line.style or "dim"
    return lines


def _calibrated(found: Sequence[Prediction]) -> bool:
    """Whether ranges were held to measured steps: those of the learned models, from nothing."""
    return all(
        each.pace is None and any(share.name.startswith("learned") for share in each.sources())
        for each in found
    )


def _sources(found: Sequence[Prediction]) -> str:
    """Who answered, and for how much of the GPU's time where several did."""
    shares: dict[str, list[float]] = {}
    for each in found:
        for share in each.sources():
            shares.setdefault(share.name, []).append(share.gpu_s / (each.gpu_s or 1.0))
    if len(shares) < 2:
        return next(iter(shares), "nobody")

    def span(values: list[float]) -> str:
        low = min(values) if len(values) == len(found) else 0.0
        ends = dict.fromkeys((f"{100 * low:.0f}", f"{100 * max(values):.0f}"))
        return "-".join(ends) + "%"

    named = sorted(shares.items(), key=lambda item: -max(item[1]))
    return ", ".join(f"{name} {span(values)}" for name, values in named)


def _missing(found: Sequence[Prediction]) -> list[str]:
    """What could not be predicted, and where: GPUs differ in the units they have."""
    gpus: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for each in found:
        if each.unpredicted:
            gpus.setdefault(tuple(sorted(each.unpredicted.items())), []).append(each.device.id)
    return [
        f"not predicted{'' if len(names) == len(found) else f' on {_listed(names)}'}, "
        f"counted as 0: {_counted(dict(missing))}"
        for missing, names in gpus.items()
    ]


def notes(found: Sequence[str]) -> list[Text]:
    """What the reader should know, each in a line."""
    shown = [Text(f"note: {note}", style="yellow") for note in found[:_NOTES_SHOWN]]
    if len(found) > _NOTES_SHOWN:
        shown.append(Text(f"note: and {len(found) - _NOTES_SHOWN} more (--json has all)"))
    return shown


def _rate(prediction: Prediction) -> str:
    rate = prediction.throughput
    return "?" if rate is None else count(rate)


def _share_of_step(prediction: Prediction, seconds: float) -> str:
    return f"{seconds / prediction.seconds:.0%}" if prediction.seconds else "?"


def _price(device: Device) -> str:
    offer = price(device)
    return "?" if offer is None else f"{offer.usd_per_hour:.2f}"


def _per_dollar(prediction: Prediction) -> str:
    offer, rate = price(prediction.device), prediction.throughput
    if offer is None or rate is None:
        return "?"
    return quantity(offer.per_usd(rate))


def _flops(rate: float | None) -> str:
    return "?" if rate is None else quantity(rate)


def _counted(names: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({times}x)" for name, times in names.items())


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
