"""Every command that takes a step has every option of a step, or a reason why it has it not."""

from __future__ import annotations

from dataclasses import fields

import typer.main

from wavecast.campaigns.checks.config import CheckedTarget
from wavecast.cli import app

MODEL = "--qlora"
"""Stands for all options of Hugging Face models and decoders, which come together."""
LENGTH = "--epochs"
"""Stands for all options of a whole training."""
PRICE = "--price"
"""Stands for all options about prices."""
OPTIONS = (
    *("--gpu", "--batch", "--precision", "--assume", "--compile", "--ranks", MODEL, "--parallel"),
    *("--host", "--host-factor", "--cuda-graph", LENGTH, PRICE, "--json"),
)

_NO_TIME = "it shows memory, and no time"
_TIMED = dict.fromkeys(("--host", "--host-factor", "--cuda-graph", LENGTH, PRICE), _NO_TIME)
_TRACED = "the steps are saved traces, which are fixed"
_RECORDED = "it makes the trace; the option is given where the trace is used"
_REAL = "the step runs on a real GPU, as its code says"
_MANY = "a step of several GPUs is not replayed as one CUDA graph"
_LINES = "lines of layers predict the time, not GPUs and their hosts"
_OF_LAYERS = dict.fromkeys(
    ("--gpu", "--parallel", "--host", "--host-factor", "--cuda-graph", LENGTH, PRICE), _LINES
)
WITHOUT: dict[str, dict[str, str]] = {
    "predict": {},
    "run": {MODEL: "the script says it itself"},
    "memory": _TIMED,
    "fits": _TIMED,
    "max-batch": _TIMED | {"--batch": "it is the answer; the search begins at --start"},
    "profile": dict.fromkeys((LENGTH, PRICE), "it shows one step"),
    "extrapolate": dict.fromkeys(
        ("--precision", "--assume", "--compile", "--ranks", MODEL), _TRACED
    )
    | dict.fromkeys(("--host-factor", "--cuda-graph", LENGTH, PRICE), "it shows one step")
    | {"--parallel": "the line is fitted to steps of one GPU"},
    "advise": {
        "--parallel": "changes are tried on one GPU",
        "--host-factor": "the host is named by --host",
        "--cuda-graph": "it is one of the changes that are tried",
        "--ranks": "changes are tried on one GPU",
        LENGTH: "it compares steps; choose says what a training takes",
    },
    "choose": {
        "--parallel": "it looks for the strategy; --gpus-up-to says how many GPUs",
        "--host-factor": "GPUs are compared with the same host, which --host names",
        "--cuda-graph": _MANY,
    },
    "scale": {
        "--ranks": "its number of GPUs grows, and that of the code's own ranks is fixed",
        "--host-factor": "the host is named by --host",
        "--cuda-graph": _MANY,
    },
    "parallelize": {
        "--batch": "it tries several, which --micro-batch names",
        "--ranks": "it looks for a strategy, and the code's own is fixed",
        "--parallel": "it looks for the strategy",
        "--host-factor": "the host is named by --host",
        "--cuda-graph": _MANY,
    },
    "compare": dict.fromkeys((LENGTH, PRICE), "it shows one step"),
    "trace": dict.fromkeys(
        ("--parallel", "--host", "--host-factor", "--cuda-graph", LENGTH, PRICE), _RECORDED
    ),
    "measure": dict.fromkeys(
        ("--gpu", "--assume", "--compile", "--ranks", "--parallel", "--host", "--host-factor"),
        _REAL,
    )
    | dict.fromkeys(("--cuda-graph", LENGTH, PRICE), _RECORDED),
    "layers predict": _OF_LAYERS
    | dict.fromkeys(("--compile", "--ranks"), "layers are timed as they were written, on one GPU"),
}
"""The commands that take a step; and by command and option the reason why it has it not."""
OTHERS = {
    "import": "it reads a file of torch.profiler",
    "iterate": "it is the part of measure that runs under ncu",
    "evaluate": "it compares measured traces with each other",
    "check": "the file of checks has a key for each option",
    "suite predict": "it predicts all models of the suite",
    "suite run": "it measures all models of the suite",
    "runs predict": "it predicts a run from past runs, and no step",
}
"""Other commands that have some of these options, or could be thought to take a step."""


def _commands() -> dict[str, set[str]]:
    """The options of all commands, by their names as they are typed."""
    found: dict[str, set[str]] = {}

    def visit(command: object, name: str) -> None:
        for inner, one in getattr(command, "commands", {}).items():
            visit(one, f"{name} {inner}".strip())
        if not hasattr(command, "commands"):
            params = getattr(command, "params", ())
            found[name] = {option for param in params for option in param.opts}

    visit(typer.main.get_command(app), "")
    return found


COMMANDS = _commands()


def test_every_command_that_takes_a_step_is_in_the_matrix() -> None:
    takes_a_step = {name for name, options in COMMANDS.items() if MODEL in options}
    assert takes_a_step <= {*WITHOUT, *OTHERS}
    assert {*WITHOUT, *OTHERS} <= set(COMMANDS)


def test_each_has_every_option_or_a_reason() -> None:
    wrong = [
        f"{command} {option}"
        for command, reasons in WITHOUT.items()
        for option in OPTIONS
        if (option in COMMANDS[command]) == (option in reasons)
    ]
    assert not wrong


def test_reasons_are_for_options_that_exist() -> None:
    assert {option for reasons in WITHOUT.values() for option in reasons} <= set(OPTIONS)


def test_groups_of_options_come_together() -> None:
    together = {
        MODEL: {"--task", "--seq", "--weights", "--lora", "--layers", "--hidden", "--experts"},
        LENGTH: {"--tokens", "--samples", "--iterations", "--dataset-samples", "--global-batch"},
        PRICE: {"--prices", "--providers", "--spot", "--buy"},
    }
    for command in WITHOUT:
        for one, others in together.items():
            if one in COMMANDS[command]:
                assert others <= COMMANDS[command], command


def test_the_file_of_checks_has_a_key_for_every_option_of_a_step() -> None:
    of_steps = ("batch", "precision", "assume", "compile", "ranks", "parallel")
    assert {"target", "gpus", "options", *of_steps} <= {
        field.name for field in fields(CheckedTarget)
    }
