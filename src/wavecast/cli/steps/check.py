"""`wavecast check`: are the steps still as fast and as small as the baseline says?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

import wavecast
from wavecast.checks.baseline import Baseline, read_baseline, write_baseline
from wavecast.checks.checking import CheckResult, Predicted, baseline_of, check_all, predict_all
from wavecast.checks.config import CheckConfig, find_config, read_config
from wavecast.cli.app import JsonOption, app
from wavecast.cli.output.screen import print_json, print_lines, show, waiting, width
from wavecast.cli.output.standard_output import keep_for_results
from wavecast.errors import InvalidInput
from wavecast.files import write_whole
from wavecast.frameworks.targets import Target
from wavecast.report import checks as report

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
    markdown: MarkdownOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that steps are as fast and as small as a committed baseline says.

    A file wavecast.toml names the steps, the GPUs and how much each figure may change. The exit
    code is 0 if all is within tolerance (or better), 1 if something got worse, and 2 if that
    cannot be said: after an error, or for a step that is not in the baseline.

    \b
    wavecast check --update            (write the baseline, and commit it)
    wavecast check
    wavecast check --markdown "$GITHUB_STEP_SUMMARY"
    """
    if update and markdown is not None:
        raise InvalidInput("--update writes the baseline and judges nothing; leave --markdown out")
    asked = read_config(find_config(Path()) if config is None else config)
    wanted = asked.only(target) if target else asked
    # An update of all targets replaces the baseline, also one that cannot be read.
    before = None if update and not target else _baseline(asked, missing_is_fine=update)
    keep_for_results()
    now = predict_all(wanted, wavecast.__version__, _tracing)
    if update:
        _update(wanted, now, before, whole=not target, as_json=as_json)
        return
    kept = before or Baseline({})
    result = check_all(wanted, now, kept)
    _print(result, asked, kept, now, markdown, as_json)
    raise typer.Exit(result.exit_code)


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
    config: CheckConfig,
    before: Baseline,
    now: Predicted,
    markdown: Path | None,
    as_json: bool,
) -> None:
    text = report.markdown(result, config.baseline)
    if markdown is not None and str(markdown) != "-":
        write_whole(markdown, text)
    if as_json:
        software = {"baseline": before.software, "now": now.software}
        checked = {"result": result, "baseline": str(config.baseline), "software": software}
        print_json(report.CHECKED.record(checked))
    elif str(markdown) == "-":
        print_lines(text)
    else:
        show(report.check_result(result, width()))
