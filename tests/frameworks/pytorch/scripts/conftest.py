"""Scripts that tests write into an empty folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from wavecast.frameworks.pytorch.scripts.program import Program
from wavecast.frameworks.pytorch.scripts.runner import run
from wavecast.frameworks.pytorch.scripts.watching import Watcher
from wavecast.frameworks.script_results import RunOptions
from wavecast.traces.script import ScriptRun

MakeScript = Callable[..., Path]

HEAD = """
import sys
import torch
from torch import nn
model = nn.Linear(32, 8).cuda()
optimizer = torch.optim.Adam(model.parameters())
def update(rows=4):
    optimizer.zero_grad()
    model(torch.randn(rows, 32).cuda()).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeScript:
    """Writes a script into the current folder, which is otherwise empty."""
    monkeypatch.chdir(tmp_path)

    def make(body: str, head: str = HEAD, name: str = "train.py") -> Path:
        Path(name).write_text(head + body)
        return Path(name)

    return make


@pytest.fixture
def run_here() -> Callable[..., ScriptRun]:
    """Runs a script or module in this process, where its parts can be replaced and looked at."""

    def nothing(*_: object) -> None:
        pass

    def run_script(name: Path | str, *, is_module: bool = False) -> ScriptRun:
        watcher = Watcher(str(name), None, nothing, nothing, nothing)
        return run(Program(str(name), is_module=is_module), watcher, None, RunOptions())

    return run_script
