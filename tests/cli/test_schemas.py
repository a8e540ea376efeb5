"""Every command that prints JSON has a schema, and prints what the schema says."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cli.json_samples import COMMANDS, pretend_a_machine, write_sample_files
from shell import run
from typer.main import get_command

from wavecast.cli import app
from wavecast.report.outputs import MARK, marked, schema_names, schema_text

pytest.importorskip("torch")
pytest.importorskip("sqlalchemy")
pytest.importorskip("scipy")


def json_commands() -> Iterator[str]:
    """The names of all commands that have the option --json."""
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", {})
        for path, each in (
            {name: command} | {f"{name} {word}": inner[word] for word in inner}
        ).items():
            if any("--json" in option.opts for option in each.params):
                yield path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("samples")
    write_sample_files(path)
    return path


@pytest.fixture
def samples(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    monkeypatch.delenv("WAVECAST_RUNS", raising=False)
    pretend_a_machine(monkeypatch)
    return folder


def schema(name: str) -> Any:
    return json.loads(schema_text(name))


def test_every_command_with_json_has_samples_and_a_schema() -> None:
    names = set(json_commands())
    assert set(COMMANDS) == names
    assert set(schema_names()) == {"-".join(name.split()) for name in names}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_what_its_schema_says(samples: Path, name: str) -> None:
    checker = jsonschema.Draft202012Validator(schema(name))
    for arguments in COMMANDS[name]:
        done = run(*name.split(), "--json", *shlex.split(arguments))
        printed = json.loads(done.out)
        checker.validate(printed)
        rows = printed if isinstance(printed, list) else [printed]
        assert rows, f"{name} {arguments} printed nothing"
        assert {row[MARK] for row in rows} == {schema(name)["title"]}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_schema_is_one_and_refuses_something(name: str) -> None:
    content = schema(name)
    jsonschema.Draft202012Validator.check_schema(content)
    assert re.fullmatch(r"wavecast/[a-z-]+/\d+", content["title"])
    assert content["title"].split("/")[1] == "-".join(name.split())
    assert content["description"].endswith(".")
    checker = jsonschema.Draft202012Validator(content)
    wrong_ones: list[Any] = [3, {}, [{}], {MARK: "other/1"}, [{MARK: content["title"]}]]
    for wrong in wrong_ones:
        assert not checker.is_valid(wrong), wrong


def test_the_command_prints_schemas_and_their_names() -> None:
    assert run("schema").out.split() == list(schema_names())
    assert json.loads(run("schema", "suite", "list").out) == schema("suite list")
    assert run("schema", "suite-list").out == run("schema", "suite", "list").out
    done = run("schema", "predic")
    assert done.code == 1
    assert "did you mean predict" in done.err


def test_values_of_unknown_commands_are_not_marked() -> None:
    assert marked({"a": 1}, "nobody") == {"a": 1}
    assert marked([{"a": 1}], "doctor")[0][MARK].startswith("wavecast/doctor/")
    assert marked("text", "doctor") == "text"
