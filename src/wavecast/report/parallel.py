"""Steps on several GPUs: predictions, searches and scaling, as tables and as data for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from rich.console import RenderableType

from wavecast.footprint.memory import Memory
from wavecast.parallel.strategy import Parallel
from wavecast.planning.layouts import Layout
from wavecast.planning.prices import PriceBook, price_book
from wavecast.planning.scaling import KNEE, Scaling
from wavecast.report.tables import Column, by_gpu, fitting, notes, remarks, table, titled
from wavecast.report.units import (
    count,
    duration,
    memory,
    or_unknown,
    percent,
    quantity,
    time_range,
)
from wavecast.steps.parallel_prediction import ParallelPrediction

Row = tuple[ParallelPrediction, Memory | None]
"""A prediction, and the memory of its fullest rank."""

_LOST_SHOWN = 8


def strategy_text(strategy: Parallel) -> str:
    """A strategy in a few words: "data 8, shard 3, tensor 4"."""
    shown = []
    for field in fields(strategy):
        value = getattr(strategy, field.name)
        if value != field.default and field.name not in ("tensor_plan", "cluster", "nodes"):
            name = field.name.replace("_", " ")
            shown.append(name if value is True else f"{name} {value}")
    return ", ".join(shown) or "one GPU"


def predictions(title: str, rows: Sequence[Row], width: int) -> RenderableType:
    """One row for each GPU model, all with the same strategy."""
    first = rows[0][0]
    steps = [prediction for prediction, _ in rows]
    unit = first.trace.unit
    columns = [
        Column("GPUs", [f"{step.gpus} x {step.device.id}" for step in steps], left=True),
        Column("step", [duration(step.seconds) for step in steps]),
        Column("range", [time_range(step.low_s, step.high_s) for step in steps], 4),
        Column(f"{unit}/s", [or_unknown(step.throughput, count) for step in steps], 1),
        Column("efficiency", [percent(step.efficiency) for step in steps]),
        Column("exposed communication", [_share(step, step.exposed_s) for step in steps], 3),
        Column("bubble", [_share(step, step.idle_s) for step in steps], 5),
        Column("memory", [_memory(needed) for _, needed in rows], 2, left=True),
        Column("cluster", [step.cluster.id for step in steps], 6, left=True),
    ]
    told = [
        f"one optimizer step: {strategy_text(first.strategy)}",
        "efficiency: speed per GPU, relative to one GPU that runs the same micro-batches alone",
        f"host: {by_gpu((step.device.id, step.host.name) for step in steps)}",
    ]
    missing = sorted({share.name for step in steps for share in step.unpredicted})
    if missing:
        told.append(f"not predicted, counted as 0: {', '.join(missing[:4])}")
    return titled(
        title,
        table(fitting(columns, width)),
        "",
        *remarks(told),
        *notes([*dict.fromkeys(note for step in steps for note in step.notes), *first.trace.notes]),
    )


def _share(step: ParallelPrediction, seconds: float) -> str:
    return percent(seconds / step.seconds)


def _memory(needed: Memory | None) -> str:
    if needed is None:
        return "unknown"
    return memory(needed.needed_bytes) + ("" if needed.fits else ", does not fit")


def layouts(title: str, found: Sequence[Layout], width: int, shown: int = 10) -> RenderableType:
    """The best strategies of a search, and why some of the others lost."""
    working = [layout for layout in found if layout.prediction is not None][:shown]
    body = [table(fitting(layout_columns(working), width))] if working else ["no strategy fits"]
    return titled(title, *body, "", *remarks(lost_layouts(found)))


def layout_columns(working: Sequence[Layout]) -> list[Column]:
    """The columns of a table of strategies that can be used."""
    return [
        Column("strategy", [strategy_text(layout.strategy) for layout in working], left=True),
        Column("micro-batch", [str(layout.micro_batch) for layout in working], 4),
        Column("step", [duration(layout.seconds or 0.0) for layout in working]),
        Column("range", [_layout_range(layout) for layout in working], 5),
        Column("memory", [_memory(layout.memory) for layout in working], 2),
        Column("loses time with", [layout.reason for layout in working], 3, left=True),
    ]


def lost_layouts(found: Sequence[Layout]) -> list[str]:
    """How many strategies cannot be used, and why."""
    lost = [layout for layout in found if layout.prediction is None]
    reasons: dict[str, list[str]] = {}
    for layout in lost:
        reasons.setdefault(layout.reason, []).append(strategy_text(layout.strategy))
    told = [f"{len(found)} strategies tried, {len(lost)} cannot be used"]
    for reason, names in list(reasons.items())[:_LOST_SHOWN]:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        told.append(f"{names[0]}{more}: {reason}")
    hosts = dict.fromkeys(layout.prediction.host.name for layout in found if layout.prediction)
    return [*told, *(f"host: {host}" for host in hosts)]


def _layout_range(layout: Layout) -> str:
    step = layout.prediction
    return "" if step is None else time_range(step.low_s, step.high_s)


def scaling(
    title: str, curve: Scaling, width: int, book: PriceBook | None = None
) -> RenderableType:
    """Speed, efficiency and price over the number of GPUs."""
    columns = fitting(scaling_columns(curve, book), width)
    return titled(title, table(columns), "", *remarks(scaling_remarks(curve)))


def scaling_columns(curve: Scaling, book: PriceBook | None = None) -> list[Column]:
    """The columns of a table of speeds by number of GPUs; with today's prices if none are given."""
    book = book or price_book()
    points = curve.points
    unit = points[0].prediction.trace.unit
    steps = [point.prediction for point in points]
    marks = [" <- knee" if point.gpus == curve.knee else "" for point in points]
    return [
        Column("GPUs", [str(point.gpus) for point in points]),
        Column("step", [duration(step.seconds) for step in steps]),
        Column(f"{unit}/s", [or_unknown(step.throughput, count) for step in steps]),
        Column(
            "speed per GPU",
            [percent(p.relative) + mark for p, mark in zip(points, marks, strict=True)],
            left=True,
        ),
        Column("exposed communication", [_share(step, step.exposed_s) for step in steps], 3),
        Column("machines", [_machines(step) for step in steps], 4),
        Column(f"{unit}/$", [or_unknown(_per_dollar(step, book), quantity) for step in steps], 2),
    ]


def scaling_remarks(curve: Scaling) -> list[str]:
    """What a curve of speeds is about, and where more GPUs no longer pay."""
    step = curve.points[0].prediction
    kind = "strong" if curve.is_strong else "weak"
    told = [f"{kind} scaling of {strategy_text(step.strategy)} on {step.cluster.id}"]
    told.append(f"host: {step.host.name}")
    if curve.knee is not None:
        told.append(f"beyond {curve.knee} GPUs each has less than {KNEE:.0%} of the first's speed")
    return told


def _machines(step: ParallelPrediction) -> str:
    return str(-(-step.gpus // step.cluster.gpus_per_node))


def _per_dollar(step: ParallelPrediction, book: PriceBook) -> float | None:
    """Samples per dollar, with machines that hold as many GPUs as the cluster's do."""
    together = min(step.gpus, step.cluster.gpus_per_node)
    offer = book.cheapest(step.device.id, step.gpus, together=together)
    if offer is None or step.throughput is None:
        return None
    return step.throughput * 3600 / offer.usd_per_hour_of(step.gpus)


def record(step: ParallelPrediction, needed: Memory | None) -> dict[str, Any]:
    """A prediction as plain data."""
    return {
        "gpu": step.device.id,
        "gpus": step.gpus,
        "cluster": step.cluster.id,
        "host": step.host.name,
        "strategy": strategy_record(step.strategy),
        "seconds": step.seconds,
        "low_s": step.low_s,
        "high_s": step.high_s,
        "throughput": step.throughput,
        "unit": step.trace.unit,
        "efficiency": step.efficiency,
        "exposed_s": step.exposed_s,
        "idle_s": step.idle_s,
        "waiting_s": step.waiting_s,
        "stages": [asdict(stage) for stage in step.stages],
        "memory_bytes": None if needed is None else needed.needed_bytes,
        "fits": None if needed is None else needed.fits,
        "unpredicted": {share.name: share.calls for share in step.unpredicted},
        "notes": [*step.notes, *step.trace.notes],
    }


def strategy_record(strategy: Parallel) -> dict[str, Any]:
    """A strategy as plain data."""
    record = {field.name: getattr(strategy, field.name) for field in fields(strategy)}
    return record | {"tensor_plan": dict(strategy.tensor_plan or {}) or None}


def layout_record(layout: Layout) -> dict[str, Any]:
    """One strategy of a search as plain data."""
    step = layout.prediction
    return {
        "strategy": strategy_record(layout.strategy),
        "micro_batch": layout.micro_batch,
        "reason": layout.reason,
        "memory_bytes": None if layout.memory is None else layout.memory.needed_bytes,
        "prediction": None if step is None else record(step, layout.memory),
    }


def scaling_record(curve: Scaling, book: PriceBook | None = None) -> dict[str, Any]:
    """A scaling curve as plain data; with today's prices if none are given."""
    prices = book or price_book()
    return {
        "scaling": "strong" if curve.is_strong else "weak",
        "knee": curve.knee,
        "points": [
            {
                "relative": point.relative,
                "throughput_per_usd": _per_dollar(point.prediction, prices),
                **record(point.prediction, None),
            }
            for point in curve.points
        ],
    }
