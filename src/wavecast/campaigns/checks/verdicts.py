"""The verdict on a step: which of its figures changed more than they may."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from wavecast.analysis.comparison import WORTH_A_ROW_S, PartChange, StepComparison, StepSummary
from wavecast.campaigns.checks.config import CodePlace, Tolerances
from wavecast.steps.prediction import TOO_MUCH


class Outcome(StrEnum):
    """What became of a figure, a step, or all of them."""

    WITHIN = "within tolerance"
    BETTER = "better"
    WORSE = "worse"
    CHANGED = "changed"
    """Neither better nor worse, but something to look at: another GPU is the best choice."""
    UNKNOWN = "cannot say"


FAILING = (Outcome.WORSE, Outcome.CHANGED)
"""The outcomes for which a check fails."""


@dataclass(frozen=True)
class Figure:
    """One figure of a step: what it was, what it is, and the verdict."""

    name: str
    before: float | None
    after: float | None
    tolerance: float | None
    """The share that it may change; for waits of the host, how many more there may be."""
    outcome: Outcome


@dataclass(frozen=True)
class StepVerdict:
    """The verdict on one step on one GPU."""

    target: str
    gpu: str
    comparison: StepComparison | None = None
    """The step in the baseline and the step now. None if one of them is not known."""
    figures: tuple[Figure, ...] = ()
    problem: str = ""
    """Why nothing can be said; empty if something can."""
    cause: str = ""
    """Where a change comes from: the step, Wavecast, or perhaps a library."""
    places: tuple[CodePlace, ...] = ()
    """The lines of code at which the step does more than before."""

    @property
    def outcome(self) -> Outcome:
        """The verdict on all figures together."""
        return Outcome.UNKNOWN if self.problem else overall(each.outcome for each in self.figures)

    def named(self, outcome: Outcome) -> tuple[str, ...]:
        """The names of the figures with this outcome."""
        return tuple(each.name for each in self.figures if each.outcome is outcome)


@dataclass(frozen=True)
class ChoiceVerdict:
    """The verdict on which of the GPUs of a target is the best."""

    target: str
    by: str
    """What the choice is by: "time" or "money"."""
    before: str
    """The id of the GPU that was the best; empty if none was."""
    after: str
    outcome: Outcome


def overall(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome of several: the most important one."""
    order = (Outcome.WORSE, Outcome.CHANGED, Outcome.UNKNOWN, Outcome.BETTER, Outcome.WITHIN)
    return min(outcomes, key=order.index, default=Outcome.WITHIN)


def judge(target: str, comparison: StepComparison, allowed: Tolerances) -> StepVerdict:
    """The verdict on a step that is in the baseline."""
    old, new = comparison.before, comparison.after
    if max(old.unpredicted_share, new.unpredicted_share) > TOO_MUCH:
        problem = f"more than {TOO_MUCH:.0%} of the step could not be predicted"
        return StepVerdict(target, new.gpu, comparison, problem=problem)
    figures = (
        _relative("time", old.seconds, new.seconds, allowed.time),
        _relative("memory", old.peak_bytes, new.peak_bytes, allowed.memory),
        _fits(old, new),
        _relative("GPU time", old.gpu_s, new.gpu_s, allowed.gpu),
        _relative("host time", old.host_s, new.host_s, allowed.host),
        _counted("waits", old.syncs, new.syncs, allowed.waits),
    )
    return StepVerdict(target, new.gpu, comparison, tuple(filter(None, figures)))


def _relative(
    name: str, before: float | None, after: float | None, tolerance: float | None
) -> Figure | None:
    """The verdict on a figure that may change by a share of itself; None if nobody asks."""
    if tolerance is None or (before is None and after is None):
        return None
    if before is None or after is None:
        return Figure(name, before, after, tolerance, Outcome.UNKNOWN)
    share = (after - before) / before if before else float(after > 0)
    beyond = abs(share) > tolerance
    outcome = (Outcome.WORSE if share > 0 else Outcome.BETTER) if beyond else Outcome.WITHIN
    return Figure(name, before, after, tolerance, outcome)


def _counted(name: str, before: int, after: int, tolerance: float | None) -> Figure | None:
    if tolerance is None:
        return None
    beyond = abs(after - before) > tolerance
    outcome = (Outcome.WORSE if after > before else Outcome.BETTER) if beyond else Outcome.WITHIN
    return Figure(name, before, after, tolerance, outcome)


def _fits(before: StepSummary, after: StepSummary) -> Figure | None:
    """The verdict on whether the step fits, where that changed."""
    if before.fits is None or after.fits is None or before.fits == after.fits:
        return None
    outcome = Outcome.BETTER if after.fits else Outcome.WORSE
    return Figure("fits", before.fits, after.fits, None, outcome)


def judge_choices(
    target: str,
    before: Mapping[str, StepSummary],
    after: Mapping[str, StepSummary],
    usd_per_hour: Mapping[str, float],
    tolerance: float | None,
) -> tuple[ChoiceVerdict, ...]:
    """The verdicts on which GPU is the fastest for a target, and which the cheapest for a step.

    Args:
        target: the name of the target.
        before: the steps of the baseline, by GPU.
        after: the steps of now, by GPU.
        usd_per_hour: the prices of the baseline, by GPU. With today's prices, the choice could
            change although the step did not.
        tolerance: how much better another GPU must be to count; None if nobody asks.
    """
    gpus = [gpu for gpu in after if gpu in before]
    if tolerance is None or len(gpus) < 2:
        return ()
    verdicts = []
    for by, rates in (("time", dict.fromkeys(gpus, 1.0)), ("money", usd_per_hour)):
        old, new = ({gpu: steps[gpu] for gpu in gpus} for steps in (before, after))
        chosen, now = best_gpu(old, rates), best_gpu(new, rates)
        if not chosen and not now:
            continue
        changed = _is_beaten(chosen, now, new, rates, tolerance)
        outcome = Outcome.CHANGED if changed else Outcome.WITHIN
        verdicts.append(ChoiceVerdict(target, by, chosen, now, outcome))
    return tuple(verdicts)


def best_gpu(steps: Mapping[str, StepSummary], rates: Mapping[str, float]) -> str:
    """The GPU on which a step costs least: its time times a rate; empty if it fits on none."""
    able = [gpu for gpu in steps if is_able(steps[gpu]) and gpu in rates]
    return min(able, key=lambda gpu: steps[gpu].seconds * rates[gpu], default="")


def is_able(step: StepSummary) -> bool:
    """Whether a GPU can be chosen for a step: it fits, and enough of it was predicted."""
    return step.fits is not False and step.unpredicted_share <= TOO_MUCH


def _is_beaten(
    chosen: str,
    now: str,
    steps: Mapping[str, StepSummary],
    rates: Mapping[str, float],
    tolerance: float,
) -> bool:
    """Whether the GPU that was the best is now worse than another by more than the tolerance."""
    if chosen == now:
        return False
    if not chosen or not now or not is_able(steps[chosen]):
        return True
    cost, best = (steps[gpu].seconds * rates[gpu] for gpu in (chosen, now))
    return cost > best * (1 + tolerance)


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """0 if all is within tolerance or better, 1 if a figure got worse, 2 if nobody can say."""
    verdict = overall(outcomes)
    return 1 if verdict in FAILING else 2 if verdict is Outcome.UNKNOWN else 0


# A verdict in plain lines of text, for tools that have no tables.


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
        tolerance = figure.tolerance
        share = f"{100 * tolerance:g}%" if figure.name in _SCALES else f"{tolerance:.2g}"
        notes.append(f"{share} allowed")
    verdict = "" if figure.outcome is Outcome.WITHIN else f": {figure.outcome}"
    said = f" ({', '.join(notes)})" if notes else ""
    return f"{figure.name} {before} -> {after}{said}{verdict}"


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
