"""`wavecast check`: are the steps still as fast and as small as the baseline says?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

import wavecast
from wavecast.campaigns.checks.baseline import Baseline, read_baseline, write_baseline
from wavecast.campaigns.checks.checking import (
    CheckResult,
    Predicted,
    baseline_at,
    baseline_of,
    changed_since,
    check_all,
    commit_of,
    folder_in_repository,
    last_commit_of,
    predict_all,
)
from wavecast.campaigns.checks.config import ChangedLines, CheckConfig, find_config, read_config
from wavecast.cli.app import JsonOption, app
from wavecast.cli.output.screen import print_json, print_lines, show, waiting, width
from wavecast.cli.output.standard_output import keep_for_results
from wavecast.errors import InvalidInput
from wavecast.files import write_whole
from wavecast.report.results import comparisons as report
from wavecast.targets.targets import Target

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="The file of checks; wavecast.toml or pyproject.toml here."),
]
TargetOption = Annotated[
    list[str] | None,
    typer.Option("--target", "-t", help="Only this target of the file; repeat for more."),
]
UpdateOption = Annotated[
    bool, typer.Option("--update", help="Write the baseline with the figures of now.")
]
AgainstOption = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="COMMIT",
        help="Compare with the code of a commit instead of the baseline; merge-base is where this "
        "branch left the main one.",
    ),
]
AnnotateOption = Annotated[
    bool, typer.Option("--annotate", help="Also print annotations for GitHub, at lines of code.")
]
MarkdownOption = Annotated[
    Path | None,
    typer.Option(
        "--markdown",
        metavar="FILE",
        help='Also write the verdict as Markdown, such as to "$GITHUB_STEP_SUMMARY"; - prints it '
        "instead of tables.",
    ),
]


@app.command()
def check(
    config: ConfigOption = None,
    target: TargetOption = None,
    update: UpdateOption = False,
    against: AgainstOption = None,
    markdown: MarkdownOption = None,
    annotate: AnnotateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check that steps are as fast and as small as a committed baseline says.

    A file wavecast.toml names the steps, the GPUs and how much each figure may change. The exit
    code is 0 if all is within tolerance (or better), 1 if something got worse, and 2 if that
    cannot be said: after an error, or for a step that is not in the baseline.

    \b
    wavecast check --update            (write the baseline, and commit it)
    wavecast check
    wavecast check --against merge-base --annotate --markdown "$GITHUB_STEP_SUMMARY"
    """
    _refuse_beside_update(update, markdown, against, annotate)
    if annotate and as_json:
        raise InvalidInput("--json prints nothing but JSON; leave out --annotate")
    asked = read_config(find_config(Path()) if config is None else config)
    chosen = asked.only(target) if target else asked
    keep_for_results()
    before, changed = None, None
    if against is not None:
        before, changed = _at(against, chosen)
    # An update of all targets replaces the baseline, also one that cannot be read.
    elif not update or target:
        before = _baseline(asked, missing_is_fine=update)
    now = predict_all(chosen, wavecast.__version__, _tracing)
    if update:
        _update(chosen, now, before, whole=not target, as_json=as_json)
        return
    kept = before or Baseline({})
    if changed is None and (written := last_commit_of(asked.baseline)):
        changed = changed_since(written)
    result = check_all(chosen, now, kept, changed)
    software = {"baseline": kept.software, "now": now.software}
    _print(result, str(asked.baseline) if against is None else against, software, markdown, as_json)
    if annotate:
        print_lines(
            "".join(f"{text}\n" for text in report.annotated_lines(result, folder_in_repository()))
        )
    raise typer.Exit(result.exit_code)


def _refuse_beside_update(
    update: bool, markdown: Path | None, against: str | None, annotate: bool
) -> None:
    given = {"--markdown": markdown, "--against": against, "--annotate": annotate or None}
    for option, value in given.items():
        if update and value is not None:
            raise InvalidInput(
                f"--update writes the baseline and judges nothing; leave {option} out"
            )


def _at(against: str, config: CheckConfig) -> tuple[Baseline, ChangedLines]:
    """The steps as a commit has them, and the lines that changed since."""
    commit = commit_of(against)
    with waiting(f"tracing the steps of {commit[:8]}"):
        return baseline_at(commit, config), changed_since(commit)


def _baseline(config: CheckConfig, *, missing_is_fine: bool) -> Baseline | None:
    if config.baseline.exists():
        return read_baseline(config.baseline)
    if missing_is_fine:
        return None
    raise InvalidInput(
        f"there is no baseline {config.baseline} yet; write it with wavecast check --update, and "
        "commit it"
    )


@contextmanager
def _tracing(target: Target) -> Iterator[None]:
    with waiting(f"tracing {target.name}"):
        yield None


def _update(
    config: CheckConfig, now: Predicted, before: Baseline | None, *, whole: bool, as_json: bool
) -> None:
    baseline = baseline_of(now, config, before, whole=whole)
    write_baseline(baseline, config.baseline)
    if as_json:
        written = {"baseline": str(config.baseline), "targets": sorted(now.steps)}
        print_json(report.UPDATED.record(written))
    else:
        show(report.written(config.baseline, now.steps))


def _print(
    result: CheckResult,
    compared_with: str,
    software: Mapping[str, Mapping[str, str]],
    markdown: Path | None,
    as_json: bool,
) -> None:
    text = report.markdown(result, compared_with)
    if markdown is not None and str(markdown) != "-":
        write_whole(markdown, text)
    if as_json:
        checked = {"result": result, "baseline": compared_with, "software": software}
        print_json(report.CHECKED.record(checked))
    elif str(markdown) == "-":
        print_lines(text)
    else:
        show(report.check_result(result, width()))
