"""What the doctor found, as a table and as data."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from wavecast.doctor import Finding, State
from wavecast.report.fields import Field, columns, describe, output
from wavecast.report.tables import line, table, titled

_STYLES = {State.BROKEN: "red", State.DOUBTFUL: "yellow", State.ABSENT: "dim"}
_ORDER = (State.BROKEN, State.DOUBTFUL, State.ABSENT, State.GOOD)

describe(
    Finding,
    Field("what", title=""),
    Field("state", title=""),
    Field("found", title="", folds=True),
    Field("advice", blank=True),
)


EXAMINATION = output(
    "What was found on this machine.",
    Field("works", kind=bool, meaning="Whether nothing must be repaired before Wavecast works."),
    Field("findings", kind=Sequence[Finding], meaning="Each thing that was looked at."),
)


def examination(findings: Sequence[Finding], width: int) -> RenderableType:
    """One row for each thing, then what to do, and the verdict."""
    styles = [_STYLES.get(each.state, "") for each in findings]
    advice = [
        line(f"{each.what}: {each.advice}", _STYLES.get(each.state, ""))
        for each in sorted(findings, key=lambda each: _ORDER.index(each.state))
        if each.advice
    ]
    rows, said = table(columns(findings), styles), verdict(findings)
    return titled("wavecast doctor", rows, "", *advice, "", line(said, "bold"))


def verdict(findings: Sequence[Finding]) -> str:
    """All findings in one sentence."""
    counted = {state: sum(each.state is state for each in findings) for state in State}
    if counted[State.BROKEN]:
        return f"{counted[State.BROKEN]} broken: repair that first"
    if counted[State.DOUBTFUL]:
        return f"Wavecast works here; {counted[State.DOUBTFUL]} to look at"
    return "Wavecast works here"
