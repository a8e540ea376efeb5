"""Campaigns: what a start did, and where one stands."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence

from rich.console import RenderableType

from wavecast.campaigns.standing import CampaignRun, CampaignStatus, NodeWork
from wavecast.report.fields import Field, columns, describe, output
from wavecast.report.tables import line, remarks, shown, titled, warnings
from wavecast.report.units import long_duration

_MOST_FAILURES = 10


def _clock(seconds: float) -> str:
    then = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return then.strftime("%Y-%m-%d %H:%M:%S UTC")


describe(
    NodeWork,
    Field("node", title="node", meaning="The name of the machine, and of the node if it has some."),
    Field("done", title="results", text=str, meaning="How many results it gave."),
    Field("busy_s", title="busy", text=long_duration),
    Field("last_s", title="last result", text=_clock, left=True),
)
_KIND = Mapping[str, Sequence[int]]
describe(
    CampaignStatus,
    Field("name", meaning="The name of the campaign."),
    Field("verdict", lambda one: status_verdict(one), kind=str, meaning="How far it is."),
    Field("tasks", meaning="How many tasks it has."),
    Field("done", meaning="How many of them have a result."),
    Field("kinds", kind=_KIND),
    Field("nodes", meaning="What each node did."),
    Field("failed"),
    Field("attempts_failed"),
    Field("remaining_s"),
)
describe(
    CampaignRun,
    Field("name", meaning="The name of the campaign."),
    Field("verdict", lambda one: run_verdict(one), kind=str, meaning="What this start did."),
    Field("tasks", meaning="How many tasks it has."),
    *map(Field, ("done", "new", "failed", "unplaced", "lost")),
    Field("seconds", meaning="How long this start took."),
)
EXPORTED = output(
    "The files with the results of a campaign.",
    Field("campaign", kind=str, meaning="The name of the campaign."),
    Field("files", kind=Sequence[str], meaning="The files, one for each kind of task and GPU."),
)


def run_verdict(one: CampaignRun) -> str:
    """What a start did, in a sentence."""
    lost = f" Workers died {one.lost} times; their tasks ran again." if one.lost else ""
    return (
        f"{one.done} of {one.tasks} tasks have a result, {one.new} of them new, in "
        f"{long_duration(one.seconds)}.{lost}"
    )


def status_verdict(one: CampaignStatus) -> str:
    """How far a campaign is, in a sentence."""
    if one.done == one.tasks:
        return f"All {one.tasks} tasks have a result."
    rest = "" if one.remaining_s is None else f", about {long_duration(one.remaining_s)} left"
    return f"{one.done} of {one.tasks} tasks have a result{rest}."


def run_text(one: CampaignRun) -> RenderableType:
    """What a start did, and what is left."""
    left = [f"no worker has {gpu}: {number} tasks left" for gpu, number in one.unplaced.items()]
    return titled(
        one.name, line(run_verdict(one)), *warnings(left), *warnings(_failures(one.failed))
    )


def status_text(one: CampaignStatus, width: int) -> RenderableType:
    """How far a campaign is, and what each node did."""
    kinds = [f"{kind}: {done} of {total}" for kind, (done, total) in one.kinds.items()]
    if one.attempts_failed:
        kinds.append(f"attempts that failed or were lost: {one.attempts_failed}")
    parts = shown(columns(one.nodes), width) if one.nodes else []
    return titled(
        one.name,
        line(status_verdict(one)),
        "",
        *parts,
        *([""] if parts else []),
        *remarks(kinds),
        *warnings(_failures(one.failed)),
    )


def _failures(failed: Mapping[str, str]) -> list[str]:
    lines = [f"failed: {name}: {error}" for name, error in list(failed.items())[:_MOST_FAILURES]]
    more = len(failed) - len(lines)
    return [*lines, f"{more} more failed"] if more > 0 else lines
