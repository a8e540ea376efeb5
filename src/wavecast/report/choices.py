"""Choices of GPUs as tables, in a sentence, and as data for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType

from wavecast.planning.choosing import SHARED_ERROR, Aim, Candidate, Limit, Selection
from wavecast.planning.cost import TrainingPlan
from wavecast.report.costs import (
    cost_record,
    long_range,
    money_or_unknown,
    money_range,
    offer_name,
    plan_text,
)
from wavecast.report.parallel import strategy_record
from wavecast.report.prices import seen
from wavecast.report.tables import Column, fitting, line, listed, remarks, table, titled
from wavecast.report.units import UNKNOWN, long_duration, three_digits

_ADJECTIVES = {Aim.MONEY: "cheapest", Aim.TIME: "fastest", Aim.BOTH: "best of both"}
_LOST_SHOWN = 6


def verdict(selection: Selection) -> str:
    """The choice in a sentence."""
    best = selection.best
    if best is None or best.cost is None:
        if selection.beyond:
            nearest = selection.beyond[0]
            return f"Nothing keeps the limits. The nearest is {_told(nearest)}."
        return "The training can run on none of these GPUs."
    word = _ADJECTIVES[selection.aim]
    sentence = f"The {word} is {_told(best)}."
    if best.seconds.high is None:
        return f"{sentence} The prediction has no range, so it is not known how sure this is."
    if not selection.as_good:
        return sentence
    names = listed([one.name for one in selection.as_good])
    return f"{sentence} It cannot be told apart from {names}."


def _told(candidate: Candidate) -> str:
    """A choice with its time and money: `l4 at lambda: 3.2 h, $1.20 ($1.00 - $2.00)`."""
    cost = candidate.cost
    assert cost is not None
    where = "" if cost.offer is None else f" at {cost.offer.provider}"
    time = long_duration(cost.seconds.value)
    ranged = "" if cost.usd is None or cost.usd.low is None else f" ({money_range(cost.usd)})"
    return f"{candidate.name}{where}: {time}, {money_or_unknown(cost.usd)}{ranged}"


def choices(
    title: str,
    selection: Selection,
    plan: TrainingPlan,
    unit: str,
    width: int,
    shown: int = 10,
) -> RenderableType:
    """The verdict, the best choices, and why the others lost."""
    rows = list(selection.ranked[:shown]) or list(selection.beyond[:shown])
    body: list[RenderableType] = [line(verdict(selection)), ""]
    names: set[str] = set()
    if rows:
        columns = fitting(choice_columns(rows, selection), width)
        names = {column.name for column in columns}
        body += [table(columns), ""]
    return titled(
        f"{title}: {plan_text(plan, unit)}", *body, *remarks(choice_lines(selection, rows, names))
    )


def choice_columns(rows: Sequence[Candidate], selection: Selection) -> list[Column]:
    """The columns of a table of choices."""
    costs = [one.cost for one in rows]
    times = [one.seconds for one in rows]
    money = [None if cost is None else cost.usd for cost in costs]
    offers = [None if cost is None else cost.offer for cost in costs]
    return [
        Column("GPUs", [one.name for one in rows], left=True),
        Column("", [_mark(one, selection) for one in rows], left=True),
        Column("time", [long_duration(time.value) for time in times]),
        Column("range", [long_range(time) for time in times], 3),
        Column("cost", [money_or_unknown(usd) for usd in money]),
        Column("range of cost", [money_range(usd) for usd in money], 3),
        Column("batch", [_batch(one) for one in rows], 4),
        Column("largest", [str(one.largest_batch or UNKNOWN) for one in rows], 5),
        Column("memory", [_memory(one) for one in rows], 2, left=True),
        Column("limits", [_limits(one) for one in rows], 1, left=True),
        Column("offer", [offer_name(offer) for offer in offers], 7, left=True),
        Column("price of", [seen(offer) for offer in offers], 8),
    ]


def _mark(candidate: Candidate, selection: Selection) -> str:
    front = "*" if candidate.on_front else " "
    equal = "=" if candidate in selection.as_good else ""
    return front + equal


def _batch(candidate: Candidate) -> str:
    """The batch on one GPU, and how often it is accumulated: `32 x 4`."""
    if candidate.batch is None:
        return UNKNOWN
    micro = 1 if candidate.cost is None else candidate.cost.accumulated
    return str(candidate.batch) if micro == 1 else f"{candidate.batch} x {micro}"


def _memory(candidate: Candidate) -> str:
    if candidate.memory is None:
        return UNKNOWN
    needed = three_digits(candidate.memory.needed_bytes / (1 << 30))
    sharded = ", sharded" if candidate.strategy is not None and candidate.strategy.shard else ""
    return f"{needed} of {candidate.device.memory_bytes / (1 << 30):.0f} GiB{sharded}"


_WORDS = {
    Limit.KEPT: "",
    Limit.UNSURE: "may miss the {}",
    Limit.MISSED: "misses the {}",
    Limit.UNKNOWN: "no price for the {}",
}


def _limits(candidate: Candidate) -> str:
    told = (
        _WORDS[candidate.budget].format("budget"),
        _WORDS[candidate.deadline].format("deadline"),
    )
    return ", ".join(filter(None, told))


def choice_lines(selection: Selection, rows: Sequence[Candidate], names: set[str]) -> list[str]:
    """What is to be known of a table of choices; `names` are those of its columns."""
    lines = []
    if any(one.on_front for one in rows):
        lines.append("*: no other choice is both faster and cheaper")
    if selection.as_good:
        shared = f"{SHARED_ERROR:.0%} of the errors are taken as shared"
        lines.append(f"=: as good as the first, as far as the ranges tell ({shared})")
    if "largest" in names:
        lines.append("largest: the largest batch that fits, among doubles of the batch")
    if "batch" in names and any(((one.cost and one.cost.accumulated) or 1) > 1 for one in rows):
        lines.append("batch: samples of a micro-batch on one GPU x micro-batches in a step")
    more = len(selection.ranked) - len(rows)
    if more > 0:
        lines.append(f"{more} more choices (--show {len(selection.ranked)})")
    if selection.ranked and selection.beyond:
        names_beyond = listed([one.name for one in selection.beyond])
        lines.append(f"beyond the limits: {names_beyond}")
    return [*lines, *_impossible(selection.impossible)]


def _impossible(candidates: Sequence[Candidate]) -> list[str]:
    """Why some cannot be used: those that do not fit, and other reasons with their GPUs."""
    small = [one.name for one in candidates if one.reason.startswith("does not fit")]
    lines = [f"does not fit: {listed(small)}"] if small else []
    others: dict[str, list[str]] = {}
    for one in candidates:
        if not one.reason.startswith("does not fit"):
            others.setdefault(one.reason, []).append(one.name)
    return [*lines, *(f"{listed(n)}: {reason}" for reason, n in list(others.items())[:_LOST_SHOWN])]


def selection_record(selection: Selection) -> dict[str, Any]:
    """A choice as plain data."""
    return {
        "by": str(selection.aim),
        "verdict": verdict(selection),
        "shared_error": SHARED_ERROR,
        "ranked": [_candidate(one, selection) for one in selection.ranked],
        "beyond_limits": [_candidate(one, selection) for one in selection.beyond],
        "impossible": [_candidate(one, selection) for one in selection.impossible],
    }


def _candidate(one: Candidate, selection: Selection) -> dict[str, Any]:
    return {
        "gpu": one.device.id,
        "gpus": one.gpus,
        "batch": one.batch,
        "largest_batch": one.largest_batch,
        "strategy": None if one.strategy is None else strategy_record(one.strategy),
        "needed_bytes": None if one.memory is None else one.memory.needed_bytes,
        "on_front": one.on_front,
        "as_good_as_best": one in selection.as_good,
        "budget": str(one.budget),
        "deadline": str(one.deadline),
        "reason": one.reason,
        "training": None if one.cost is None else cost_record(one.cost),
    }
