"""What the doctor found, as a table and as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType

from wavecast.doctor import Finding, State
from wavecast.report.tables import Column, line, table, titled

_STYLES = {State.BROKEN: "red", State.DOUBTFUL: "yellow", State.ABSENT: "dim"}


def examination(findings: Sequence[Finding], width: int) -> RenderableType:
    """One row for each thing, then what to do, and the verdict."""
    columns = [
        Column("", [each.what for each in findings], left=True),
        Column("", [str(each.state) for each in findings], left=True),
        Column("", [each.found for each in findings], left=True, folds=True),
    ]
    styles = [_STYLES.get(each.state, "") for each in findings]
    advice = [
        line(f"{each.what}: {each.advice}", _STYLES.get(each.state, ""))
        for each in sorted(findings, key=lambda each: _ORDER.index(each.state))
        if each.advice
    ]
    said = verdict(findings)
    return titled("wavecast doctor", table(columns, styles), "", *advice, "", line(said, "bold"))


_ORDER = (State.BROKEN, State.DOUBTFUL, State.ABSENT, State.GOOD)


def verdict(findings: Sequence[Finding]) -> str:
    """All findings in one sentence."""
    counted = {state: sum(each.state is state for each in findings) for state in State}
    if counted[State.BROKEN]:
        return f"{counted[State.BROKEN]} broken: repair that first"
    if counted[State.DOUBTFUL]:
        return f"Wavecast works here; {counted[State.DOUBTFUL]} to look at"
    return "Wavecast works here"


def examination_record(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings as plain data for JSON."""
    rows = [{**asdict(each), "state": str(each.state)} for each in findings]
    works = all(each.state is not State.BROKEN for each in findings)
    return {"works": works, "findings": [{**r, "advice": r["advice"] or None} for r in rows]}
