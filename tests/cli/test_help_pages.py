"""The help: predict comes first, every command is in a group, and a shell completes names."""

from __future__ import annotations

import re

import pytest
from shell import run, run_process
from typer.main import get_command

from wavecast.cli import app
from wavecast.cli.commands import COMMANDS


def sections(text: str) -> dict[str, list[str]]:
    """The first words of the lines under each heading."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if heading := re.match(r"^(\S.*):$", line):
            found[heading[1]] = []
        elif found and (entry := re.match(r"^  (\S+)", line)):
            list(found.values())[-1].append(entry[1])
    return found


def test_commands_are_listed_with_their_first_lines() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    listed = {name: line for lines in COMMANDS.values() for name, line in lines.items()}
    assert listed == {
        name: " ".join(command.help.split("\n\n")[0].split())
        for name, command in commands.items()
        if not command.hidden
    }
    shown = sections(run("--help").out)
    assert {title: list(lines) for title, lines in COMMANDS.items()} == {
        title: names for title, names in shown.items() if title != "Options"
    }


def test_the_help_loads_no_command() -> None:
    python = "import atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr))"
    modules = run_process("--help", python=python).err.split()
    assert "wavecast.cli.app" in modules
    assert sum(name.startswith("wavecast") for name in modules) < 20
    assert not {"numpy", "torch"} & set(modules)


def test_options_stand_under_the_headings_of_their_groups() -> None:
    shown = sections(run("predict", "--help").out)
    assert "--epochs" in shown["A whole training"]
    assert "--price" in shown["Prices"]
    assert "--epochs" not in shown["Options"]
    assert "TARGET" in shown["Arguments"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("wavecast pre", {"predict"}),
        ("wavecast predict --gpu h100", {"h100-nvl-94gb", "h100-pcie-80gb", "h100-sxm-80gb"}),
        ("wavecast choose resnet5", {"resnet50"}),
    ],
)
def test_a_shell_completes_commands_gpus_and_models(words: str, expected: set[str]) -> None:
    done = run_process(
        python="sys.argv[0] = 'wavecast'",
        COMP_WORDS=words,
        COMP_CWORD=str(len(words.split()) - 1),
        _WAVECAST_COMPLETE="complete_bash",
    )
    assert set(done.out.split()) == expected
