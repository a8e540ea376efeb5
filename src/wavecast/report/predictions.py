"""Predicted steps as tables in a terminal."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from wavecast.hardware.device import Device
from wavecast.planning.choice import comparable
from wavecast.planning.prices import Price, PriceBook, price_book
from wavecast.predictors.base import Familiarity
from wavecast.predictors.published import published_setup
from wavecast.report.prices import hourly, price_lines, seen
from wavecast.report.tables import (
    ANY_WIDTH,
    Column,
    by_gpu,
    fitting,
    line,
    listed,
    notes,
    notes_by_gpu,
    remarks,
    table,
    titled,
    width_of,
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
    time_range,
)
from wavecast.steps.larger_batch import LargerBatch
from wavecast.steps.prediction import Prediction
from wavecast.steps.shares import Share
from wavecast.steps.unpredicted import TOO_MUCH, WORTH_A_WORD

_SOURCES = {
    "learned": "learned (physics and fitted models)",
    "attainable": "attainable (the share of the peak rates that measured ops reach)",
    "roofline": "roofline (the peak rates of the data sheet)",
    "mlp": "mlp (neural networks fitted to layer times)",
    "wave scaling": "wave scaling (from the measured kernels)",
}
"""The predictors by the names under which they answer, with a short explanation."""


def predictions(
    title: str,
    rows: Sequence[Prediction],
    width: int,
    setup: str | None = None,
    book: PriceBook | None = None,
) -> RenderableType:
    """One row for each GPU; a narrow terminal shows fewer columns.

    Args:
        title: what was predicted.
        rows: the predictions, in the order in which they are shown.
        width: columns of the terminal.
        setup: the published setup whose numbers were used.
        book: the prices. None for those of the setup, or today's.
    """
    groups, prices = _by_predictors(rows), book or price_book(setup)
    columns = _prediction_columns(rows, _marks(groups), prices)
    if any(_missed_much(row) for row in rows):
        columns.append(Column("not predicted", [_unpredicted(row) for row in rows], left=True))
    if any(row.memory is not None for row in rows):
        needed = fitting([column for column in columns if column.rank <= 1], ANY_WIDTH)
        place = 2 + _has_ranges(rows)
        columns.insert(place, _memory_column(rows, width - width_of(needed)))
    styles = ["" if _may_fit(row) else "dim" for row in rows]
    kept = fitting(columns, width)
    return titled(
        title,
        table(kept, styles),
        "",
        *_footnotes(rows, groups, {column.name for column in kept}, setup, prices),
        *notes(
            [
                *notes_by_gpu((row.device.id, row.notes) for row in rows),
                *dict.fromkeys(note for row in rows for note in row.trace.notes),
            ]
        ),
    )


def _prediction_columns(
    rows: Sequence[Prediction], marks: Mapping[int, str], book: PriceBook
) -> list[Column]:
    unit = rows[0].trace.unit
    named = [f"{row.device.id} {marks.get(index, '')}" for index, row in enumerate(rows)]
    offers = [book.cheapest(row.device.id) for row in rows]
    return [
        Column("GPU", [name.rstrip() for name in named], left=True),
        Column("step", [_step(row) for row in rows]),
        *_range_column(rows),
        Column(f"{unit}/s", [or_unknown(_rate(row), count) for row in rows], 1),
        Column("GPU busy", [_share_of_step(row, row.gpu_s) for row in rows], 5),
        Column("host busy", [_share_of_step(row, row.host_s) for row in rows], 6),
        Column("bound by", [row.bound_by for row in rows], 3, left=True),
        Column("$/h", [hourly(offer) for offer in offers], 4),
        Column(f"{unit}/$", [_per_dollar(*pair) for pair in zip(rows, offers, strict=True)], 2),
        Column("price of", [seen(offer) for offer in offers], 7),
    ]


def _step(prediction: Prediction) -> str:
    """The time of a step, which is a lower bound where much of it was not predicted."""
    at_least = "" if comparable(prediction) else "> "
    return f"{at_least}{duration(prediction.seconds)}"


def _range(prediction: Prediction) -> str:
    if not comparable(prediction):
        return UNKNOWN
    return time_range(prediction.low_s, prediction.high_s)


def _rate(prediction: Prediction) -> float | None:
    """The throughput; None where the step does not fit, or too little of it was predicted."""
    return prediction.throughput if comparable(prediction) and _may_fit(prediction) else None


def _missed_much(prediction: Prediction) -> bool:
    return prediction.unpredicted_share > WORTH_A_WORD


def _unpredicted(prediction: Prediction) -> str:
    """The share of a step that nobody could predict: `12% of its bytes`; empty where it is small.

    Where nothing at all could be predicted, the share is of its work.
    """
    if not _missed_much(prediction):
        return ""
    shares = prediction.unpredicted_shares
    share = prediction.unpredicted_share
    of = max(shares, key=shares.__getitem__) if share in shares.values() else "work"
    return f"{percent(share)} of its {of}"


def _has_ranges(rows: Sequence[Prediction]) -> bool:
    return any(row.low_s is not None for row in rows)


def _range_column(rows: Sequence[Prediction]) -> list[Column]:
    """The ranges of the times, if any prediction has one."""
    if not _has_ranges(rows):
        return []
    return [Column("range", [_range(row) for row in rows], 1)]


def _memory_column(rows: Sequence[Prediction], room: int) -> Column:
    """The memory that the step needs and the GPU has; where it does not fit, always shown."""
    cells, all_fit = [_memory_cell(row) for row in rows], all(_may_fit(row) for row in rows)
    if not all_fit and max(map(len, cells)) + 3 > room:
        cells = ["" if _may_fit(row) else "does not fit" for row in rows]
    return Column("memory", cells, 1 if all_fit else 0, left=True)


def _memory_cell(row: Prediction) -> str:
    if row.memory is None:
        return UNKNOWN
    needed, whole = row.memory.needed_bytes / (1 << 30), row.device.memory_bytes / (1 << 30)
    cell = f"{three_digits(needed)} of {whole:.0f} GiB"
    return cell if _may_fit(row) else f"{cell}, does not fit"


def shares(title: str, parts: Iterable[Share], total_s: float, limit: int = 15) -> RenderableType:
    """The parts of the GPU's time, longest first; parts beyond the limit are added up."""
    rows = list(parts)
    rest = rows[limit:]
    if len(rest) > 1:
        calls, seconds = sum(part.calls for part in rest), sum(part.gpu_s for part in rest)
        rows = [*rows[:limit], Share(f"{len(rest)} others", calls, seconds)]
    columns = [
        Column("", [part.name for part in rows], left=True, folds=True),
        Column("calls", [count(part.calls) for part in rows]),
        Column("GPU time", [duration(part.gpu_s) for part in rows]),
        Column("share", [percent(part.gpu_s / total_s if total_s else 0.0, 1) for part in rows]),
    ]
    return Group("", titled(title, table(columns)))


def larger_batches(
    rows: Mapping[Device, LargerBatch],
    unit: str,
    width: int,
    points: Sequence[Prediction] = (),
) -> RenderableType:
    """The step time at a larger batch, extrapolated on each GPU from predictions, the points."""
    lines = list(rows.values())
    columns = [
        Column("GPU", [device.id for device in rows], left=True),
        Column("step", [duration(line.seconds) for line in lines]),
        Column("range", [time_range(line.low_s, line.high_s) for line in lines], 2),
        Column(f"{unit}/s", [count(line.throughput) for line in lines], 1),
        Column("fixed part", [duration(max(line.fixed_s, 0.0)) for line in lines], 3),
        Column("per sample", [duration(max(line.per_sample_s, 0.0)) for line in lines], 4),
    ]
    first = lines[0]
    sizes = ", ".join(map(str, first.points))
    return titled(
        f"a batch of {first.batch} {unit}, extrapolated from batches of {sizes}",
        table(fitting(columns, width)),
        "",
        *_warnings([*_missing(points), *_not_ranked(points)]),
        *remarks(
            ["range: 90% range of the straight line; the error of each prediction is not in it"]
        ),
    )


def _may_fit(prediction: Prediction) -> bool:
    """Whether the step fits, or its memory is unknown: profiler files do not record it."""
    return prediction.fits is not False


def _footnotes(
    rows: Sequence[Prediction],
    groups: Sequence[Mapping[int, Prediction]],
    shown: Container[str],
    setup: str | None,
    book: PriceBook,
) -> list[Text]:
    """What is to be known of the columns that are shown."""
    lines = []
    if all(row.trace.samples is None for row in rows):
        lines.append("no throughput: how many samples a step takes is not known (give --batch)")
    if "$/h" in shown:
        lines += price_lines([book.cheapest(row.device.id) for row in rows], setup)
    lines += [
        *([] if setup is None else [_setup(setup, rows)]),
        *_sources(groups),
        _host(rows),
        *(_range_meanings(rows) if "range" in shown or not _has_ranges(rows) else ()),
    ]
    return [*_warnings(cautions(rows)), *remarks(lines)]


def cautions(rows: Sequence[Prediction]) -> list[str]:
    """What is wrong with predictions: ops without an answer, GPUs without rank or memory."""
    return [*_missing(rows), *_not_ranked(rows), *_too_small(rows)]


def methods(rows: Sequence[Prediction]) -> list[str]:
    """How predictions were made: the predictors, the host, and what the ranges mean."""
    return [*_sources(_by_predictors(rows)), _host(rows), *_range_meanings(rows)]


def _host(rows: Sequence[Prediction]) -> str:
    return f"host: {by_gpu((row.device.id, row.host.name) for row in rows)}"


def _setup(name: str, rows: Sequence[Prediction]) -> str:
    """The line about a published setup: which GPUs have the numbers of its paper."""
    gpus = published_setup(name).gpus
    others = [row.device.id for row in rows if row.device.id not in gpus]
    line = f"setup: {name}, with the clocks and bandwidths of its paper"
    return f"{line}; not in the paper: {', '.join(others)}" if others else line


def _warnings(lines: Iterable[str]) -> list[Text]:
    return [line(text, "yellow") for text in lines]


def _too_small(rows: Sequence[Prediction]) -> list[str]:
    too_small = [row.memory for row in rows if row.fits is False and row.memory is not None]
    if not too_small:
        return []
    needed = memory(max(step_memory.needed_bytes for step_memory in too_small))
    return [
        f"too little memory: the training process needs up to {needed}; "
        '"wavecast memory" shows what for'
    ]


def _range_meanings(rows: Sequence[Prediction]) -> list[str]:
    """How many measured steps lay in such ranges, and which GPUs have none."""
    ranged = [row for row in rows if row.held is not None]
    none = [row.device.id for row in rows if row.held is None]
    why = "no measured steps tell how far off such predictions are"
    if not ranged:
        return [f"no range: {why}"]
    known = [row.device.id for row in ranged if _is_known(row)]
    without = "its source" if len(known) == len(ranged) else "its GPU and source"
    if 0 < len(known) < len(ranged):
        without += f" ({listed(known)}: without its source)"
    share, by_set = _held(ranged)
    held = f"holds {share} of measured steps{by_set}, each judged without {without}"
    rest = [f"no range on {listed(none)}: {why}"] if none else []
    return [f"range: {held}", *rest]


def _is_known(row: Prediction) -> bool:
    """Whether steps of this very GPU or host made the range."""
    return row.familiarity is Familiarity.MEASURED or row.host.known


def _held(rows: Sequence[Prediction]) -> tuple[str, str]:
    """The share of measured steps in ranges like these: `90%`, ` (71 to 100% by set)`."""
    shares = [row.held for row in rows if row.held is not None]
    least, most = min(share.least for share in shares), max(share.most for share in shares)
    by_set = f" ({100 * least:.0f} to {100 * most:.0f}% by set)"
    return _percent_range([share.share for share in shares]), by_set


def _by_predictors(rows: Sequence[Prediction]) -> list[dict[int, Prediction]]:
    """The rows by the predictors that answered, the largest group first, each by its position."""
    groups: dict[frozenset[str], dict[int, Prediction]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(frozenset(share.name for share in row.sources()), {})[index] = row
    return sorted(groups.values(), key=len, reverse=True)


def _marks(groups: Sequence[Mapping[int, Prediction]]) -> dict[int, str]:
    """The mark of each row that others answered than most rows, by its position."""
    others = enumerate(groups[1:], start=1)
    return {index: f"[{number}]" for number, group in others for index in group}


def _sources(groups: Sequence[Mapping[int, Prediction]]) -> list[str]:
    """The predictors that answered on most GPUs, then those of the rows that are marked."""
    most, *others = (_predictors(list(group.values())) for group in groups)
    marked = (f"[{number}] op times: {other}" for number, other in enumerate(others, start=1))
    return [f"op times: {most}", *marked]


def _predictors(rows: Sequence[Prediction]) -> str:
    """The predictors of GPUs that have the same ones, with their shares of the GPU time."""
    shares: dict[str, list[float]] = {}
    for row in rows:
        for source in row.sources():
            shares.setdefault(source.name, []).append(source.gpu_s / (row.gpu_s or 1.0))
    if not shares:
        return "no predictor could answer"
    if len(shares) == 1:
        [name] = shares
        return _SOURCES.get(name, name)
    largest_first = sorted(shares.items(), key=lambda item: -max(item[1]))
    return ", ".join(f"{name} {_percent_range(values)}" for name, values in largest_first)


def _percent_range(shares: Sequence[float]) -> str:
    ends = dict.fromkeys(f"{100 * end:.0f}" for end in (min(shares), max(shares)))
    return "-".join(ends) + "%"


def _missing(rows: Sequence[Prediction]) -> list[str]:
    """The ops without a prediction, and the GPUs concerned: GPUs have different units."""
    gpus: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for row in rows:
        if row.unpredicted:
            gpus.setdefault(tuple(sorted(row.unpredicted.items())), []).append(row.device.id)
    return [
        f"ops without a prediction{'' if len(names) == len(rows) else f' on {listed(names)}'}, "
        f"counted as 0 s: {counted_ops(dict(missing))}"
        for missing, names in gpus.items()
    ]


def _not_ranked(rows: Sequence[Prediction]) -> list[str]:
    left_out = [row.device.id for row in rows if not comparable(row)]
    if not left_out:
        return []
    where = "" if len(left_out) == len(rows) else f" on {listed(left_out)}"
    return [
        f"not ranked{where}: the ops without a prediction are more than {percent(TOO_MUCH)} of the "
        "step, so its time is a lower bound and GPUs cannot be compared"
    ]


def counted_ops(calls: Mapping[str, int]) -> str:
    """Names of ops with their number of calls: `aten.mm (2 calls)`."""
    return ", ".join(
        f"{name} ({number} call{'' if number == 1 else 's'})" for name, number in calls.items()
    )


def _share_of_step(prediction: Prediction, seconds: float) -> str:
    return percent(seconds / prediction.seconds) if prediction.seconds else UNKNOWN


def _per_dollar(prediction: Prediction, offer: Price | None) -> str:
    rate = _rate(prediction)
    return UNKNOWN if offer is None or rate is None else quantity(offer.per_usd(rate))
