"""The check itself: the steps of a file of checks, predicted and compared with their baseline."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

from wavecast.checks.baseline import Baseline, kept
from wavecast.checks.config import CheckConfig, CheckedTarget, Tolerances
from wavecast.checks.places import ChangedLines, new_places
from wavecast.checks.verdicts import (
    ChoiceVerdict,
    Outcome,
    StepVerdict,
    exit_code,
    judge,
    judge_choices,
    overall,
)
from wavecast.errors import InvalidInput, WavecastError
from wavecast.frameworks.pytorch.huggingface.options import ModelOptions
from wavecast.frameworks.pytorch.recording.user_lines import naming_all_lines
from wavecast.frameworks.step_source import Tracing, target_source
from wavecast.frameworks.strategies import strategy_of
from wavecast.frameworks.targets import resolve
from wavecast.hardware.devices import device
from wavecast.planning.prices import price
from wavecast.showing import Shown
from wavecast.steps.comparison import StepComparison
from wavecast.steps.request import predict
from wavecast.steps.summary import StepSummary, summary_of

_LIBRARIES = ("torch", "transformers", "diffusers", "peft", "timm", "lightning", "torchvision")
"""The libraries whose versions shape the ops of a step. They are named if a step imported them."""
WAVECAST = "wavecast"


@dataclass(frozen=True)
class Predicted:
    """The steps of a file of checks as they are now."""

    steps: Mapping[str, Mapping[str, StepSummary]]
    """By target and GPU, as a baseline keeps them. A target that failed has none."""
    problems: Mapping[str, str]
    """Why a target could not be predicted, by its name."""
    software: Mapping[str, str]
    usd_per_hour: Mapping[str, float]


@dataclass(frozen=True)
class CheckResult(Shown):
    """The verdicts on all steps, and what else a reader should know."""

    steps: tuple[StepVerdict, ...]
    choices: tuple[ChoiceVerdict, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The outcomes of all verdicts."""
        of_steps = (verdict.outcome for verdict in self.steps)
        return (*of_steps, *(verdict.outcome for verdict in self.choices))

    @property
    def outcome(self) -> Outcome:
        """The verdict on everything."""
        return overall(self.outcomes)

    @property
    def exit_code(self) -> int:
        """0 within tolerance (or better), 1 if a figure got worse, 2 if nobody can say."""
        return exit_code(self.outcomes)


def predict_all(config: CheckConfig, version: str, tracing: Tracing) -> Predicted:
    """The steps that a file of checks names, as they are now.

    Args:
        config: the file of checks.
        version: the version of Wavecast.
        tracing: what surrounds the tracing of a step, such as a line of progress.
    """
    steps: dict[str, dict[str, StepSummary]] = {}
    problems: dict[str, str] = {}
    for target in config.targets:
        try:
            steps[target.name] = _predict_target(target, config.host, tracing)
        except WavecastError as error:
            problems[target.name] = str(error)
    gpus = sorted({gpu for target in config.targets for gpu in target.gpus})
    offers = {gpu: price(gpu) for gpu in gpus}
    return Predicted(
        steps,
        problems,
        software=software(version),
        usd_per_hour={gpu: o.usd_per_hour for gpu, o in offers.items() if o is not None},
    )


def _predict_target(target: CheckedTarget, host: str, tracing: Tracing) -> dict[str, StepSummary]:
    wanted = resolve(
        target.target, target.batch, target.precision, ModelOptions.named(target.options)
    )
    gpus = [device(gpu) for gpu in target.gpus]
    traced: dict[str, Any] = {
        "assume": target.assume or None,
        "ranks": target.ranks,
        "compiled": target.compile,
    }
    if wanted.trace is not None and any(traced.values()):
        raise InvalidInput(
            f"{target.target} is a trace, so assume, ranks and compile would change nothing"
        )
    step = replace(wanted, name=target.name, **traced)
    with naming_all_lines():
        source = target_source(step, tracing)
        traces = source.families(gpus)
    issued_by = None if wanted.is_measured else host  # a measured step keeps its own host
    spread = target.parallel or (f"data={target.ranks}" if target.ranks else "")
    strategy = strategy_of(spread, target.target, wanted.options) if spread else None
    rows = [predict(traces, gpu, host=issued_by, parallel=strategy) for gpu in gpus]
    rows = [replace(row, largest=source.larger(row.device)) for row in rows]
    return {row.device.id: kept(summary_of(row)) for row in rows}


def software(version: str) -> dict[str, str]:
    """The version of Wavecast, and of the libraries that were imported to build steps."""
    versions = {WAVECAST: version}
    for name in _LIBRARIES:
        if name in sys.modules:
            try:
                versions[name] = metadata.version(name).partition("+")[0]
            except metadata.PackageNotFoundError:
                continue
    return versions


def baseline_of(
    predicted: Predicted, config: CheckConfig, before: Baseline | None, *, whole: bool
) -> Baseline:
    """The baseline that holds the steps as they are now.

    Args:
        predicted: the steps of now.
        config: the file of checks.
        before: the baseline so far. None if there is none.
        whole: whether targets that were not predicted leave the baseline.

    Raises:
        InvalidInput: a target could not be predicted.
    """
    for name, problem in predicted.problems.items():
        raise InvalidInput(f"the baseline was not written: {name}: {problem}")
    steps = {} if whole or before is None else dict(before.steps)
    prices = {} if whole or before is None else dict(before.usd_per_hour)
    return Baseline(
        steps=steps | dict(predicted.steps),
        software=predicted.software,
        host=config.host,
        usd_per_hour=prices | dict(predicted.usd_per_hour),
    )


def check_all(
    config: CheckConfig,
    predicted: Predicted,
    baseline: Baseline,
    changed: ChangedLines | None = None,
) -> CheckResult:
    """The verdicts on the steps of a file of checks.

    Args:
        config: the file of checks.
        predicted: the steps as they are.
        baseline: the steps as they were.
        changed: the lines of code that changed since. None if that is not known.
    """
    steps: list[StepVerdict] = []
    choices: list[ChoiceVerdict] = []
    for target in config.targets:
        before = baseline.steps.get(target.name, {})
        after = predicted.steps.get(target.name, {})
        for gpu in target.gpus:
            verdict = _verdict(target, gpu, predicted, baseline)
            if verdict.comparison is not None and verdict.outcome is not Outcome.WITHIN:
                places = new_places(verdict.comparison, changed)
                verdict = replace(verdict, places=places)
            steps.append(verdict)
        choices += judge_choices(
            target.name, before, after, baseline.usd_per_hour, target.tolerances.choice
        )
    return CheckResult(tuple(steps), tuple(choices), _remarks(config, predicted, baseline))


def _verdict(
    target: CheckedTarget, gpu: str, predicted: Predicted, baseline: Baseline
) -> StepVerdict:
    problem = predicted.problems.get(target.name)
    if problem is not None:
        return StepVerdict(target.name, gpu, problem=problem)
    before = baseline.steps.get(target.name, {}).get(gpu)
    now = predicted.steps[target.name][gpu]
    versions = baseline.software, predicted.software
    return compare_step(target.name, gpu, before, now, target.tolerances, versions)


def compare_step(
    target: str,
    gpu: str,
    before: StepSummary | None,
    now: StepSummary,
    allowed: Tolerances,
    versions: tuple[Mapping[str, str], Mapping[str, str]],
) -> StepVerdict:
    """The verdict on one step on one GPU.

    Args:
        target: the name of the target.
        gpu: the id of the GPU.
        before: the step of the baseline. None if it is not there.
        now: the step as it is.
        allowed: how much its figures may change.
        versions: the software of the baseline, and that of now.
    """
    if before is None:
        problem = "is not in the baseline; add it with --update"
        return StepVerdict(target, gpu, problem=problem)
    comparison = StepComparison(before, now)
    verdict = judge(target, comparison, allowed)
    if verdict.outcome is Outcome.WITHIN:
        return verdict
    return replace(verdict, cause=_cause(comparison, *versions))


def _cause(comparison: StepComparison, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Where a change comes from, as far as versions and ops tell."""
    changed = version_changes(before, after)
    ours = [text for text in changed if text.startswith(f"{WAVECAST} ")]
    others = [text for text in changed if text not in ours]
    if comparison.is_same_step:
        why = ours[0] if ours else "its models or data changed, although its version did not"
        return f"the step is the same op for op, so the change comes from Wavecast: {why}"
    if others:
        return (
            f"the ops of the step changed, and so did {', '.join(others)}; check the old code with "
            "the new version to tell which of them it was"
        )
    return "the ops of the step changed"


def version_changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """What changed among the versions of two moments: `torch 2.11.0 -> 2.13.0`."""
    names = [name for name in before if name in after and before[name] != after[name]]
    return [f"{name} {before[name]} -> {after[name]}" for name in sorted(names)]


def _remarks(config: CheckConfig, predicted: Predicted, baseline: Baseline) -> tuple[str, ...]:
    remarks = []
    if changed := version_changes(baseline.software, predicted.software):
        remarks.append(f"versions since the baseline: {', '.join(changed)}")
    if baseline.host not in ("", config.host):  # an old step that failed has none
        remarks.append(f"the host of the baseline was {baseline.host}, now it is {config.host}")
    named = {(target.name, gpu) for target in config.targets for gpu in target.gpus}
    stale = [
        f"{target} on {gpu}"
        for target, steps in baseline.steps.items()
        if target in {name for name, _ in named}
        for gpu in steps
        if (target, gpu) not in named
    ]
    if stale:
        remarks.append(f"no longer checked: {', '.join(stale)}; --update removes them")
    return tuple(remarks)
