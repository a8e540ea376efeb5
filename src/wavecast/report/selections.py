"""Choices of GPUs: the verdict in a sentence, and the candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType

from wavecast.planning.cost import TrainingPlan
from wavecast.planning.selection import SHARED_ERROR, Aim, Candidate, Limit, Selection
from wavecast.report.costs import long_range, money_range, plan_text
from wavecast.report.fields import Field, describe, output
from wavecast.report.prices import machine, seen
from wavecast.report.recipes import ANY_STEP, AskedStep, recipe, told
from wavecast.report.tables import Column, fitting, left_out, line, listed, remarks, table, titled
from wavecast.report.units import long_duration, money, of_capacity

_ADJECTIVES = {Aim.MONEY: "cheapest", Aim.TIME: "fastest", Aim.BOTH: "best of both"}
_LOST_SHOWN = 6


def verdict(selection: Selection) -> str:
    """The choice in a sentence."""
    best = selection.best
    if best is None or best.cost is None:
        if selection.beyond:
            nearest = selection.beyond[0]
            return f"Nothing keeps the limits. The nearest is {told(nearest)}."
        return "The training can run on none of these GPUs."
    word = _ADJECTIVES[selection.aim]
    sentence = f"The {word} is {told(best)}."
    if best.seconds.high is None:
        return f"{sentence} The prediction has no range, so it is not known how sure this is."
    if not selection.as_good:
        return sentence
    names = listed([one.name for one in selection.as_good])
    return f"{sentence} It cannot be told apart from {names}."


def choices(
    title: str,
    selection: Selection,
    plan: TrainingPlan,
    unit: str,
    width: int,
    shown: int = 10,
    asked: AskedStep = ANY_STEP,
) -> RenderableType:
    """The verdict, the best choices, and why the others lost."""
    rows = list(selection.ranked[:shown]) or list(selection.beyond[:shown])
    body: list[RenderableType] = [line(verdict(selection)), ""]
    names: set[str] = set()
    missing: list[str] = []
    if rows:
        every = choice_columns(rows, selection)
        kept = fitting(every, width)
        names, missing = {column.name for column in kept}, left_out(every, kept)
        body += [table(kept), ""]
    lines = [*missing, *choice_lines(selection, rows, names)]
    made = recipe(selection, asked)
    if made:
        body += [titled("the recipe", *map(line, made)), ""]
    return titled(f"{title}: {plan_text(plan, unit)}", *body, *remarks(lines))


def choice_columns(rows: Sequence[Candidate], selection: Selection) -> list[Column]:
    """The columns of a table of choices."""
    return CHOICES.columns([RankedChoice(one, one in selection.as_good) for one in rows])


@dataclass(frozen=True)
class RankedChoice:
    """A candidate among others."""

    candidate: Candidate
    as_good: bool
    """Whether it cannot be told apart from the best."""

    @property
    def mark(self) -> str:
        """`*` if no other choice is both faster and cheaper, `=` if it is as good as the best."""
        return ("*" if self.candidate.on_front else " ") + ("=" if self.as_good else "")

    @property
    def batch(self) -> str | None:
        """The batch on one GPU, and how often it is accumulated: `32 x 4`."""
        one = self.candidate
        if one.batch is None:
            return None
        micro = 1 if one.cost is None else one.cost.accumulated
        return str(one.batch) if micro == 1 else f"{one.batch} x {micro}"

    @property
    def memory(self) -> str | None:
        """The memory that one GPU needs, and what it has."""
        one = self.candidate
        if one.memory is None:
            return None
        sharded = ", sharded" if one.strategy is not None and one.strategy.shard else ""
        offloads = one.strategy is not None and one.strategy.offload != "none"
        host = ", optimizer on the host" if offloads else ""
        return of_capacity(one.memory.needed_bytes, one.device.memory_bytes) + sharded + host

    @property
    def limits(self) -> str:
        """What is known about the budget and the deadline, where they may be missed."""
        limits = {"budget": self.candidate.budget, "deadline": self.candidate.deadline}
        said = (_LIMITS[limit].format(name) for name, limit in limits.items())
        return ", ".join(filter(None, said))


_LIMITS = {
    Limit.KEPT: "",
    Limit.UNSURE: "may miss the {}",
    Limit.MISSED: "misses the {}",
    Limit.UNKNOWN: "no price for the {}",
}
CHOICES = describe(
    RankedChoice,
    Field("", "candidate.name", title="GPUs"),
    Field("", "mark", title=""),
    Field("", "candidate.seconds.value", title="time", text=long_duration, drawn=True),
    Field("", "candidate.seconds", title="range", rank=3, text=long_range),
    Field("", "candidate.cost.usd.value", title="cost", text=money),
    Field("", "candidate.cost.usd", title="range of cost", rank=3, text=money_range),
    Field("", "batch", title="batch", rank=4, left=False),
    Field("largest_batch", "candidate.largest_batch", title="largest", rank=6, text=str),
    Field("", "memory", title="memory", rank=2, left=True),
    Field("settings", "candidate.settings", title="settings", rank=2),
    Field("changes", "candidate.changes", meaning="The changes, by the names of advise."),
    Field("", "limits", title="limits", rank=1),
    Field("", "candidate.cost.offer.provider", title="at", left=True),
    Field("", "candidate.cost.offer", title="machine", rank=5, text=machine, left=True),
    Field("", "candidate.cost.offer", title="price of", rank=8, text=seen),
    Field("gpu", "candidate.device.id", meaning="The id of the GPU."),
    *(Field(name, f"candidate.{name}") for name in ("gpus", "batch", "strategy", "on_front")),
    Field("needed_bytes", "candidate.memory.needed_bytes"),
    Field("as_good_as_best", "as_good"),
    Field("budget", "candidate.budget", meaning="Whether the budget is kept."),
    Field("deadline", "candidate.deadline", meaning="Whether the deadline is kept."),
    Field("reason", "candidate.reason"),
    Field("training", "candidate.cost", meaning="The whole training; null if it cannot run there."),
)


_SELECTION = output(
    "The GPUs on which a training may run, best first.",
    Field("verdict", kind=str, meaning="The choice in a sentence."),
    Field("by", kind=Aim, meaning="What the choice is by."),
    Field("shared_error", kind=float, meaning="The correlation of the errors on two GPUs."),
    Field("ranked", kind=[RankedChoice], meaning="Those that keep the limits, best first."),
    Field("beyond_limits", kind=[RankedChoice], meaning="Those that miss a limit."),
    Field("impossible", kind=[RankedChoice], meaning="Those that cannot run it, with the reason."),
    Field("unverified", kind=[RankedChoice], meaning="Those whose generation was never measured."),
    Field("recipe", kind=[str], meaning="How to run the best, and the runner-up."),
)
CHOSEN = output(
    "The GPUs on which a training may run, best first.",
    Field("target", kind=str, meaning="What is trained."),
    Field("", "choice", kind=_SELECTION, inline=True),
)


def chosen_record(target: str, selection: Selection, asked: AskedStep = ANY_STEP) -> dict[str, Any]:
    """The choices for a target as plain data."""
    return CHOSEN.record({"target": target, "choice": chosen(selection, asked)})


def chosen(selection: Selection, asked: AskedStep = ANY_STEP) -> Mapping[str, Any]:
    """The choices with their verdict, by the keys of JSON."""
    groups = (selection.ranked, selection.beyond, selection.impossible, selection.unverified)
    rows = ([RankedChoice(one, one in selection.as_good) for one in group] for group in groups)
    names = ("ranked", "beyond_limits", "impossible", "unverified")
    said = {"verdict": verdict(selection), "by": selection.aim, "shared_error": SHARED_ERROR}
    made = {"recipe": recipe(selection, asked)}
    return said | dict(zip(names, rows, strict=True)) | made


describe(
    Selection,
    Field("", verdict, title="verdict"),
    Field("", "aim", title="by"),
    Field("", chosen, kind=_SELECTION, inline=True),
    parts="ranked",
)


def _alone(candidate: Candidate) -> RankedChoice:
    return RankedChoice(candidate, as_good=False)


describe(Candidate, Field("", _alone, inline=True), shown_as=_alone)


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
    lines += _unverified(selection.unverified)
    more = len(selection.ranked) - len(rows)
    if more > 0:
        lines.append(f"{more} more choices (--show {len(selection.ranked)})")
    if selection.ranked and selection.beyond:
        names_beyond = listed([one.name for one in selection.beyond])
        lines.append(f"beyond the limits: {names_beyond}")
    return [*lines, *_impossible(selection.impossible)]


def _unverified(candidates: Sequence[Candidate]) -> list[str]:
    """What is known of GPUs that do not take part."""
    if not candidates:
        return []
    names = listed([told(one) for one in candidates[:3]])
    reason = (
        "nothing was measured on GPUs of this vendor or generation (--unverified lets them win)"
    )
    return [f"not verified: {names}; {reason}"]


def _impossible(candidates: Sequence[Candidate]) -> list[str]:
    """Why some cannot be used: those that do not fit, and other reasons with their GPUs."""
    small = [one.name for one in candidates if one.reason.startswith("does not fit")]
    lines = [f"does not fit: {listed(small)}"] if small else []
    others: dict[str, list[str]] = {}
    for one in candidates:
        if not one.reason.startswith("does not fit"):
            others.setdefault(one.reason, []).append(one.name)
    return [*lines, *(f"{listed(n)}: {reason}" for reason, n in list(others.items())[:_LOST_SHOWN])]
