"""TBD's observations on results of the suite."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from wavecast.report.fields import Field, describe, output
from wavecast.report.tables import line, listed, titled
from wavecast.report.units import UNKNOWN
from wavecast.runs.suite_observations import Observation
from wavecast.runs.suite_results import SuiteResult


def count_of(seen: Observation) -> str:
    """In how many cases an observation holds: `45 of 46`."""
    total = len(seen.agreeing) + len(seen.others)
    return f"{len(seen.agreeing)} of {total}" if total else UNKNOWN


describe(
    Observation,
    Field("number", title="no.", text=str),
    Field("claim", title="observation of 2018", folds=True),
    Field("", count_of, title="holds in"),
    Field("figure", title="here", rank=1, folds=True),
    Field("printed", title="TBD (P4000)", rank=2, folds=True),
    *map(Field, ("holds", "share", "agreeing", "others")),
)
OBSERVED = output(
    "TBD's observations on results of the suite.",
    Field("gpus", kind=Sequence[str], meaning="The GPUs that the results are of."),
    Field("observations", kind=Sequence[Observation], meaning="All twelve, in TBD's order."),
    Field("results", kind=Sequence[SuiteResult], meaning="The results."),
)


def observations(title: str, seen: Sequence[Observation]) -> RenderableType:
    """Each observation: in how many cases it holds, the figures here, and what TBD prints."""
    parts: list[RenderableType] = []
    for one in seen:
        parts += ["", line(f"{one.number}. {one.claim}: {_verdict(one)}", "bold")]
        parts += [line(f"   here: {one.figure}"), line(f"   TBD:  {one.printed}")]
        if one.agreeing and one.others:
            parts.append(line(f"   not in {listed(one.others)}"))
    return titled(title, *parts)


def _verdict(seen: Observation) -> str:
    if seen.holds is None:
        return "not judged"
    return f"holds in {count_of(seen)}"
