"""Small changes to three models, each caught or rightly ignored by `wavecast check`."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from checks.changes import BETTER, CHANGES, IGNORED, SOURCE, WORSE, Change, table
from shell import Outcome, run
from typer.main import get_command

from wavecast.cli import app

pytest.importorskip("torch")

CODES = {WORSE: 1, BETTER: 0, IGNORED: 0}


def checked(folder: Path, source: str, *arguments: str) -> Outcome:
    for name in ("wavecast.toml", "wavecast-baseline.toml"):
        shutil.copy(SOURCE.parent / name, folder / name)
    (folder / SOURCE.name).write_text(source, encoding="utf-8")
    return run("check", "--config", folder / "wavecast.toml", *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.what)
def test_a_small_change_gets_the_verdict_that_it_deserves(change: Change, tmp_path: Path) -> None:
    done = checked(tmp_path, change.source(), "--target", change.target, "--json")
    record = json.loads(done.out)
    expected = change.found or change.verdict
    assert (record["outcome"], done.code) == (expected, CODES[expected]), done.out[:3000]
    if expected != IGNORED:
        named = {
            figure["name"]
            for step in record["steps"]
            for figure in step["figures"]
            if figure["outcome"] == expected
        }
        assert set(change.figures) <= named


def test_there_are_at_least_25_changes_of_three_models() -> None:
    assert len(CHANGES) >= 25
    assert {change.target for change in CHANGES} == {"vision", "language", "ranking"}
    assert {change.verdict for change in CHANGES} == {WORSE, BETTER, IGNORED}


def test_the_documents_show_this_table() -> None:
    page = (SOURCE.parents[2] / "docs" / "howto" / "check-in-ci.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- changes -->\n")[2].partition("\n<!-- /changes -->")[0]
    assert shown == table()
    wrong = sum(1 for change in CHANGES if change.found)
    assert f"{len(CHANGES)} small changes" in page
    words = {3: "Three", 4: "Four", 5: "Five"}
    assert f"{words[wrong]} of them were wrong" in page


@pytest.mark.parametrize("name", ["action.yml", "gitlab-ci.yml"])
def test_what_ci_runs_is_a_command_that_exists(name: str) -> None:
    if name == "action.yml":
        action = yaml.safe_load((SOURCE.parents[2] / name).read_text(encoding="utf-8"))
        script = action["runs"]["steps"][-1]["run"].replace('${AGAINST:+--against "$AGAINST"}', "")
        commands = [script.replace("\\\n", "")]
    else:
        commands = yaml.safe_load((SOURCE.parent / name).read_text(encoding="utf-8"))["wavecast"][
            "script"
        ]
    [command] = [line for line in commands if line.startswith("wavecast ")]
    word, *arguments = shlex.split(command)[1:]
    shown = get_command(app).commands[word]  # type: ignore[attr-defined]
    assert shown.make_context(word, arguments).params["markdown"] is not None


def test_the_action_takes_the_inputs_of_the_example() -> None:
    text = (SOURCE.parents[2] / "action.yml").read_text(encoding="utf-8")
    inputs = yaml.safe_load(text)["inputs"]
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(inputs)
    example = yaml.safe_load((SOURCE.parent / "github-actions.yml").read_text(encoding="utf-8"))
    assert set(example["jobs"]["check"]["steps"][-1]["with"]) <= set(inputs)
