"""Predicted steps as tables in a terminal."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from wavecast.planning.prices import PriceBook, price_book
from wavecast.predictors.published import published_setup
from wavecast.report.caveats import (
    by_predictors,
    cautions,
    host_lines,
    marks_of,
    predictor_lines,
    range_meanings,
)
from wavecast.report.fields import columns
from wavecast.report.priced_steps import PricedStep, offer_for
from wavecast.report.prices import price_lines
from wavecast.report.tables import (
    ANY_WIDTH,
    Column,
    fitting,
    headed,
    left_out,
    notes,
    notes_by_gpu,
    remarks,
    table,
    titled,
    warnings,
    width_of,
)
from wavecast.steps.prediction import Prediction


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
    groups, prices = by_predictors(rows), book or price_book(setup)
    marks = marks_of(groups)
    steps = [
        PricedStep(row, offer_for(row, prices), mark=marks.get(index, ""))
        for index, row in enumerate(rows)
    ]
    every = _columns(steps, width)
    styles = ["" if step.may_fit else "dim" for step in steps]
    kept = fitting(every, width)
    return titled(
        headed(title, ((row.device.id, row.trace) for row in rows)),
        table(kept, styles),
        "",
        *remarks(left_out(every, kept)),
        *_footnotes(rows, groups, {column.name for column in kept}, setup, prices),
        *notes(
            [
                *notes_by_gpu((row.device.id, row.notes) for row in rows),
                *dict.fromkeys(note for row in rows for note in row.trace.notes),
            ]
        ),
    )


def _columns(steps: Sequence[PricedStep], width: int) -> list[Column]:
    """The columns of a table; where a step does not fit, that is shown at every width."""
    made = {c.name: c for c in columns(steps)}
    if not any(step.unpredicted for step in steps):
        del made["not predicted"]
    memory, others = made["memory"], [c for c in made.values() if c.name != "memory"]
    if not all(step.may_fit for step in steps):
        room = width - width_of(fitting([c for c in others if c.rank <= 1], ANY_WIDTH))
        cells = memory.cells
        if max(map(len, cells)) + 3 > room:
            cells = ["" if step.may_fit else "does not fit" for step in steps]
        made["memory"] = Column("memory", cells, left=True)
    return list(made.values())


def _setup(name: str, rows: Sequence[Prediction]) -> str:
    """The line about a published setup: which GPUs have the numbers of its paper."""
    gpus = published_setup(name).gpus
    others = [row.device.id for row in rows if row.device.id not in gpus]
    line = (
        f"setup: {name}, with the clocks and bandwidths of its paper; its networks also answer for "
        "layers larger than those that they were fitted on"
    )
    return f"{line}; not in the paper: {', '.join(others)}" if others else line


def _footnotes(
    rows: Sequence[Prediction],
    groups: Sequence[Mapping[int, Prediction]],
    shown: Container[str],
    setup: str | None,
    book: PriceBook,
) -> list[Text]:
    """What is to be known of the columns that are shown."""
    lines, has_ranges = [], any(row.low_s is not None for row in rows)
    if all(row.trace.samples is None for row in rows):
        lines.append("no throughput: how many samples a step takes is not known (give --batch)")
    if "$/h" in shown:
        lines += price_lines([book.cheapest(row.device.id) for row in rows], setup)
    lines += [
        *([] if setup is None else [_setup(setup, rows)]),
        *predictor_lines(groups),
        *host_lines(rows),
        *(range_meanings(rows) if "range" in shown or not has_ranges else ()),
    ]
    return [*warnings(cautions(rows)), *remarks(lines)]
