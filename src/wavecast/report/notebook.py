"""Results as notebooks show them, as plain data, as tables of pandas, and as pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from wavecast import ops
from wavecast.errors import InvalidInput, MissingExtra
from wavecast.report import fields
from wavecast.report.fields import Described, columns, described, presented, record
from wavecast.report.html.documents import Report, document
from wavecast.report.html.markup import Html, element, joined
from wavecast.report.tables import Column
from wavecast.report.units import UNKNOWN
from wavecast.traces.step import Call, Trace

if TYPE_CHECKING:
    from pandas import DataFrame

_PARTS_SHOWN = 8
_LISTED = 100
_LONGEST = 300
"""Characters of a fact; a longer one is cut."""
_CELL = "padding:2px 10px;text-align:"
"""The style of a cell. There are no colors, so that it is read on light and on dark pages."""


def fragment(result: object) -> str:
    """The main figures of a result as a small table of HTML, and its largest parts."""
    shown = presented(result)
    own = described(type(shown))
    rows = [
        element("tr", _head(name, meaning), element("td", text, style=f"{_CELL}left"))
        for name, meaning, text in _facts(own, shown)
    ]
    name = type(result).__name__
    facts = _table(name, element("tbody", *rows))
    return joined([facts, _parts(result)])


def listing(results: Sequence[object]) -> str:
    """Several results of one type as a table of HTML, one row each."""
    kept = _known(columns(results[:_LISTED]))
    more = len(results) - _LISTED
    name = type(results[0]).__name__
    under = element("p", f"and {more} more") if more > 0 else Html()
    caption = f"{len(results)} x {name}"
    shown = _grid(caption, kept, _meanings(results[0]), _lengths(results[:_LISTED]))
    return joined([shown, under])


def _known(every: Sequence[Column]) -> list[Column]:
    """The columns that say something; all, if none does."""
    kept = [c for c in every if any(cell not in ("", UNKNOWN) for cell in c.cells)]
    return kept or list(every)


def _facts(own: Described, shown: Any) -> Iterable[tuple[str, str, str]]:
    """The titled fields of a result that are known, with their meanings; then its notes."""
    meanings = _meanings(shown)
    for column in _known(own.columns([shown])):
        [text] = column.cells
        cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
        yield column.name, meanings.get(column.name, ""), cut
    step = getattr(shown, "step", shown)
    if missing := getattr(step, "unpredicted", ()):
        yield "counted as 0 s", "Ops without a prediction.", ", ".join(missing)
    notes = (*getattr(step, "notes", ()), *getattr(getattr(step, "trace", None), "notes", ()))
    yield from (("note", "", note) for note in dict.fromkeys(notes))


def _meanings(result: Any) -> dict[str, str]:
    """What the columns of a result mean, by their headings."""
    own = described(type(presented(result)))
    titled = [field for field in own.fields if field.title]
    return {
        field.title or "": fields.meaning_of(field.name, field.declared(own.kind))
        for field in titled
    }


def _parts(result: Any) -> Html:
    """A table of the parts of a result, such as the kernels of a profile; nothing without them."""
    parts = parts_of(result)
    if not parts:
        return Html()
    kept = _known(columns(parts[:_PARTS_SHOWN]))
    name = described(type(result)).parts.replace("_", " ")
    first = parts[:_PARTS_SHOWN]
    return _grid(f"{name}: {len(parts)}", kept, _meanings(parts[0]), _lengths(first))


def _lengths(rows: Sequence[Any]) -> list[float]:
    """The lengths of the bars that are drawn for rows, 0 to 1; none without a field for them."""
    shown = [presented(row) for row in rows]
    drawn = next((item for item in described(type(shown[0])).fields if item.drawn), None)
    values = [0.0 if drawn is None else float(drawn.value(item) or 0.0) for item in shown]
    longest = max(values)
    return [value / longest for value in values] if longest > 0 and len(rows) > 1 else []


def parts_of(result: Any) -> list[Any]:
    """The parts of a result that `describe` names; none if it names none."""
    name = described(type(result)).parts
    shown = presented(result)
    parts = getattr(result if hasattr(result, name) else shown, name) if name else ()
    return list(parts() if callable(parts) else parts)


def _grid(
    caption: str, shown: Sequence[Column], meanings: dict[str, str], lengths: Sequence[float]
) -> Html:
    """A table, with a bar at the end of each row where there are lengths for them."""
    heads = [_head(column.name, meanings.get(column.name, ""), column.left) for column in shown]
    heads += [_head("", "")] if lengths else []
    rows = [
        element("tr", *(_cell(column, row) for column in shown), *map(_bar, lengths[row : row + 1]))
        for row in range(len(shown[0].cells))
    ]
    body = element("thead", element("tr", *heads)), element("tbody", *rows)
    return _table(caption, *body)


def _table(caption: str, *content: Html) -> Html:
    name = element("caption", element("b", caption), style="text-align:left;caption-side:top")
    return element("table", name, *content, style="border-collapse:collapse")


def _head(name: str, meaning: str, left: bool = True) -> Html:
    side = f"{_CELL}{'left' if left else 'right'}"
    return element("th", name, style=side, title=meaning or None)


def _cell(column: Column, row: int) -> Html:
    side = f"{_CELL}{'left' if column.left else 'right'}"
    return element("td", column.cells[row], style=side)


def _bar(length: float) -> Html:
    style = f"background:#5b8ff0;height:.7em;border-radius:2px;width:{100 * length:.0f}%"
    return element("td", element("div", style=style), style=f"{_CELL}left;min-width:9em")


def frame(result: object) -> DataFrame:
    """The parts of a result as a table of pandas; the calls of a trace or a prediction.

    Raises:
        MissingExtra: pandas is not installed.
    """
    try:
        import pandas
    except ModuleNotFoundError as error:
        if error.name != "pandas":
            raise
        raise MissingExtra("to_pandas needs pandas: pip install pandas") from error
    rows = _ROWS.get(type(result).__name__)
    if rows is not None:
        return pandas.DataFrame(rows(result))
    return pandas.DataFrame(list(map(record, parts_of(result))) or [record(result)])


def _call(call: Call) -> dict[str, Any]:
    return {
        "op": call.op.name,
        "kind": str(ops.kind(call.op) or ""),
        "phase": str(call.phase),
        "module": call.module,
        "source": call.line,
    }


def _trace_rows(trace: Trace) -> list[dict[str, Any]]:
    rows = []
    for call in trace:
        cost = ops.cost_of(call.op)
        rows.append(
            _call(call)
            | {
                "stream": call.stream,
                "syncs": call.syncs,
                "flops": None if cost is None else cost.flops,
                "bytes": None if cost is None else cost.bytes,
                "inputs": [tuple(tensor.shape) for tensor in call.op.inputs],
            }
        )
    return rows


def _prediction_rows(step: Any) -> list[dict[str, Any]]:
    """The calls with their times; on several GPUs, the pipeline stages."""
    if step.parallel is not None:
        return list(map(record, step.stages))
    table = step.timetable
    times = {name: getattr(table, name).tolist() for name in _TIMES}
    return [
        _call(call) | {name: times[name][index] for name in _TIMES}
        for index, call in enumerate(step.trace)
    ]


_TIMES = ("issued_s", "issue_s", "begin_s", "gpu_s")
_ROWS: dict[str, Callable[[Any], list[dict[str, Any]]]] = {
    "Trace": _trace_rows,
    "FamilyTraces": lambda traces: _trace_rows(traces.traces[0]),
    "ScriptRun": lambda run: _trace_rows(run.trace),
    "Prediction": _prediction_rows,
}
"""The rows of results whose rows in pandas are not the parts that a notebook shows."""


def page(result: Any) -> str:
    """The page about a result.

    Raises:
        InvalidInput: there is none.
    """
    from wavecast.report.html.reports import prediction_report, scaling_report
    from wavecast.report.results.memory import memory_report

    pages: dict[str, Callable[[], Report]] = {
        "Prediction": lambda: prediction_report(f"step on {result.name}", [result]),
        "Memory": lambda: memory_report("memory of the step", [result]),
        "Scaling": lambda: scaling_report("scaling", result),
    }
    name = type(result).__name__
    if name not in pages:
        raise InvalidInput(f"there is no page for a {name}; there is one for {', '.join(pages)}")
    return document(pages[name]())
