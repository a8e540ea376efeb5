"""The check itself: the steps of a file of checks, predicted and compared with their baseline."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from wavecast.analysis.comparison import StepComparison, StepSummary, summary_of
from wavecast.campaigns.checks.baseline import Baseline, kept, read_baseline
from wavecast.campaigns.checks.config import (
    ChangedLines,
    CheckConfig,
    CheckedTarget,
    Tolerances,
    new_places,
)
from wavecast.campaigns.checks.verdicts import (
    ChoiceVerdict,
    Outcome,
    StepVerdict,
    exit_code,
    judge,
    judge_choices,
    overall,
)
from wavecast.errors import InvalidInput, WavecastError
from wavecast.frameworks import children
from wavecast.frameworks.pytorch.huggingface.options import ModelOptions
from wavecast.frameworks.pytorch.recording.user_lines import naming_all_lines
from wavecast.hardware.devices import device
from wavecast.planning.prices import price
from wavecast.results import Shown
from wavecast.steps.request import predict
from wavecast.targets.sources import Tracing, target_source
from wavecast.targets.targets import Trait, resolve, strategy_of

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
    resolved = resolve(
        target.target, target.batch, target.precision, ModelOptions.named(target.options)
    )
    gpus = [device(gpu) for gpu in target.gpus]
    traced: dict[str, Any] = {
        "assume": target.assume or None,
        "ranks": target.ranks,
        "compiled": target.compile,
    }
    if resolved.trace is not None and any(traced.values()):
        raise InvalidInput(
            f"{target.target} is a trace, so assume, ranks and compile would change nothing"
        )
    step = replace(resolved, name=target.name, **traced)
    with naming_all_lines():
        source = target_source(step, tracing)
        traces = source.families(gpus)
    # A measured step keeps its own host.
    issued_by = None if Trait.MEASURED in resolved.traits else host
    spread = target.parallel or (f"data={target.ranks}" if target.ranks else "")
    strategy = strategy_of(spread, target.target, resolved.options) if spread else None
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


# The code of another commit: what changed since, and the figures that its steps had.


MERGE_BASE = "merge-base"
"""The commit at which this branch left the main one."""
_MAIN = ("origin/HEAD", "origin/main", "origin/master", "main", "master")
_HUNK = re.compile(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@")


def commit_of(name: str) -> str:
    """The id of a commit by its name; `merge-base` is where this branch left the main one.

    Raises:
        InvalidInput: this is no repository of git, or has no such commit.
    """
    if name != MERGE_BASE:
        return _git("rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
    if diff_base := os.environ.get("CI_MERGE_REQUEST_DIFF_BASE_SHA"):  # GitLab
        return commit_of(diff_base)
    target = os.environ.get("GITHUB_BASE_REF")
    branches = [f"origin/{target}"] if target else _MAIN
    for branch in branches:
        if _tried("rev-parse", "--verify", "-q", branch):
            return _git("merge-base", "HEAD", branch)
    raise InvalidInput(
        f"there is no {' or '.join(branches)} here, so where this branch began is not known; fetch "
        "it (fetch-depth: 0 of actions/checkout), or name a commit: --against COMMIT"
    )


def last_commit_of(file: Path) -> str | None:
    """The commit that wrote a file last; None if none did, or without git."""
    return _tried("log", "-1", "--format=%H", "--", str(file)) or None


def folder_in_repository() -> str:
    """The present folder as seen from the top of its repository: `part/`; empty at the top."""
    return _tried("rev-parse", "--show-prefix") or ""


def changed_since(commit: str) -> ChangedLines:
    """The lines that changed since a commit, in files that are not yet committed, too."""
    lines: dict[str, list[range]] = {}
    file = ""
    for text in _git("diff", "--unified=0", "--relative", "--no-color", commit).splitlines():
        if text.startswith("+++ "):
            file = text[4:].removeprefix("b/")
        elif match := _HUNK.match(text):
            first, count = int(match[1]), int(match[2] or 1)
            lines.setdefault(file, []).append(range(first, first + count))
    new = _git("ls-files", "--others", "--exclude-standard").splitlines()
    return ChangedLines(commit, {**lines, **{name: [] for name in new}})


def baseline_at(commit: str, config: CheckConfig) -> Baseline:
    """The figures of the steps as the code of a commit has them, by the checks of now.

    The commit is checked out into a folder of its own, and its steps are traced there by another
    process. Steps that it does not have are left out.
    """
    with _checked_out(commit) as folder:
        file = folder / folder_in_repository() / _relative(config.path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(config.path.read_bytes())
        names = [target.name for target in config.targets]
        written = file.parent / _relative(config.baseline, config.path.parent)
        written.unlink(missing_ok=True)
        if _updates(file, folder, names):
            return read_baseline(written)
        baselines = [read_baseline(written) for name in names if _updates(file, folder, [name])]
        return baselines[-1] if baselines else Baseline({})


def _updates(config: Path, folder: Path, names: Sequence[str]) -> bool:
    """Whether steps could be traced into the baseline of a folder."""
    chosen = [part for name in names for part in ("--target", name)]
    done = subprocess.run(
        children.command("wavecast", "check", "--update", "--config", config.name, *chosen),
        cwd=config.parent,
        env=children.environment([str(folder), str(folder / "src"), *sys.path]),
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


@contextmanager
def _checked_out(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="wavecast-") as folder:
        place = Path(folder).resolve() / "code"
        _git("worktree", "add", "--detach", "--quiet", str(place), commit)
        try:
            yield place
        finally:
            _tried("worktree", "remove", "--force", str(place))


def _relative(path: Path, start: Path | None = None) -> Path:
    return Path(os.path.relpath(path, start or Path()))


def _git(*arguments: str) -> str:
    """What git prints.

    Raises:
        InvalidInput: git refuses; says why.
    """
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise InvalidInput("git is not installed; leave out --against") from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise InvalidInput(f"git {arguments[0]} does not work here: {said}") from None
    return done.stdout.strip()


def _tried(*arguments: str) -> str:
    """What git prints; nothing if it refuses."""
    try:
        return _git(*arguments)
    except InvalidInput:
        return ""
