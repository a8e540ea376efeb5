"""A verdict in plain lines of text, for tools that have no tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wavecast.checks.verdicts import Figure, Outcome, StepVerdict
from wavecast.steps.comparison import WORTH_A_ROW_S, PartChange

_PARTS = 5
"""How many ops and modules are named."""


def explained(verdict: StepVerdict) -> str:
    """The verdict on a step, its figures, and what changed most."""
    return "\n".join(_lines(verdict))


def _lines(verdict: StepVerdict) -> Iterator[str]:
    yield f"{verdict.target} on {verdict.gpu}: {verdict.problem or verdict.outcome}"
    yield from (f"  {_figure(figure)}" for figure in verdict.figures)
    if verdict.comparison is None or verdict.outcome is Outcome.WITHIN:
        return
    change = verdict.comparison
    for what, parts in (("ops", change.ops), ("modules", change.modules)):
        yield from _parts(what, [part for part in parts if abs(part.delta_s) >= WORTH_A_ROW_S])
    yield from (f"  {place.file}:{place.line}: {place.text}" for place in verdict.places)
    said = [*change.remarks, verdict.cause]
    yield from (f"  {text}" for text in said if text)


def _figure(figure: Figure) -> str:
    """One figure in its fixed unit: `time 42.81 ms -> 48.25 ms (+12.7%, 2% allowed): worse`."""
    before, after = (_value(figure.name, value) for value in (figure.before, figure.after))
    if before == after:
        return f"{figure.name} {after}"
    notes = []
    if figure.before and figure.after is not None and figure.name in _SCALES:
        notes.append(f"{figure.after / figure.before - 1:+.1%}")
    if figure.tolerance is not None:
        share = figure.name in _SCALES
        notes.append(f"{figure.tolerance:.2g} allowed" if not share else _allowed(figure.tolerance))
    verdict = "" if figure.outcome is Outcome.WITHIN else f": {figure.outcome}"
    said = f" ({', '.join(notes)})" if notes else ""
    return f"{figure.name} {before} -> {after}{said}{verdict}"


def _allowed(share: float) -> str:
    return f"{100 * share:g}% allowed"


_SCALES = {
    "time": (1e3, "ms"),
    "GPU time": (1e3, "ms"),
    "host time": (1e3, "ms"),
    "memory": (1 / (1 << 20), "MiB"),
}


def _value(name: str, value: float | None) -> str:
    if value is None:
        return "unknown"
    if name not in _SCALES:
        return f"{value:g}" if name == "waits" else str(bool(value)).lower()
    factor, unit = _SCALES[name]
    return f"{value * factor:.4g} {unit}"


def _parts(what: str, parts: Sequence[PartChange]) -> Iterator[str]:
    if not parts:
        return
    yield f"  {what} whose GPU time changed most:"
    for part in parts[:_PARTS]:
        calls = f"{part.calls_after} calls"
        if part.calls_before != part.calls_after:
            calls = f"{part.calls_before} -> {calls}"
        yield f"    {part.name}: {part.delta_s * 1e3:+.3g} ms ({calls})"
    if len(parts) > _PARTS:
        yield f"    and {len(parts) - _PARTS} more"
