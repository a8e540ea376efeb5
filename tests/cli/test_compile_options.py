"""`--compile`, and `--compile both` in its three spellings."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import wavecast
from wavecast.cli import app

STEP = """
import torch

def make_step():
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 8))
    model.cuda()
    x = torch.randn(64, 256, device="cuda")
    return lambda: model(x).sum().backward()
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    file = tmp_path / "step.py"
    file.write_text(STEP)
    return f"{file}:make_step"


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout


def test_trace_of_a_compiled_step_has_fused_kernels(target: str, tmp_path: Path) -> None:
    saved = tmp_path / "compiled.json.gz"
    code, shown = run("trace", target, "--compile", "--out", str(saved))
    assert code == 0
    assert "make_step, compiled" in shown
    assert any(call.op.name.startswith("inductor.") for call in wavecast.load_trace(saved))


@pytest.mark.parametrize("option", [("--compile", "both"), ("--compile=both",)])
def test_both_are_shown_side_by_side(target: str, option: tuple[str, ...]) -> None:
    code, shown = run("predict", target, "--gpu", "l4", *option, "--json")
    assert code == 0
    record = json.loads(shown)
    eager, compiled = (record[name]["predictions"][0] for name in ("eager", "compiled"))
    assert eager["gpu"] == compiled["gpu"] == "l4"


def test_the_table_has_the_gain(target: str) -> None:
    code, shown = run("predict", target, "--gpu", "l4", "--compile-both")
    assert code == 0
    assert "gain" in shown
    assert "x  " in shown


def test_a_saved_trace_cannot_be_compiled_later(target: str, tmp_path: Path) -> None:
    saved = tmp_path / "step.json.gz"
    assert run("trace", target, "--out", str(saved))[0] == 0
    result = CliRunner().invoke(app, ["predict", str(saved), "--gpu", "l4", "--compile"])
    assert result.exit_code == 1
    assert "give --compile when the step is traced" in result.output


@pytest.mark.parametrize("command", [("predict",), ("memory",)])
def test_the_title_says_what_could_not_be_compiled(target: str, command: tuple[str, ...]) -> None:
    eager = "could not be compiled: see the notes"
    gpus = ("--gpu", "l4", "--gpu", "p100-pcie-16gb", "--gpu", "p4")
    old = f" (on p100-pcie-16gb, p4: {eager})"
    for chosen, text in ((gpus[:2], ""), (gpus[2:4], f" ({eager})"), (gpus, old)):
        code, shown = run(*command, target, "--compile", *chosen)
        assert code == 0
        assert shown.splitlines()[0].endswith(f"make_step, compiled{text}")


BAD = """
import numpy as np
import torch

class Bad(torch.nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        print(end="")
        y = y / (1.0 + y.abs().max().item())
        y = y * float(np.asarray(y.detach().cpu()).mean())
        if y.sum() > 0:
            y = y * 2
        return y

def make_step():
    model = torch.compile(Bad(64, 64).cuda())
    x = torch.randn(32, 64, device="cuda")
    return lambda: model(x).sum().backward()
"""
BREAKS = {8: "print", 9: "item", 10: "a value is read", 11: "a branch depends"}
"""The lines of this file that break a graph, and a part of each reason."""


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_every_graph_break_is_listed(tmp_path: Path, form: tuple[str, ...]) -> None:
    file = tmp_path / "bad.py"
    file.write_text(BAD)
    code, shown = run("predict", f"{file}:make_step", "--gpu", "l4", *form)
    assert code == 0
    shown = " ".join(shown.split())
    for line, reason in BREAKS.items():
        assert re.search(rf"graph break at \S*bad\.py:{line}: [^:]*{reason}", shown), (line, shown)
