"""The option --assume: values that a traced step reads from the GPU, and steps that are checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shell import run

STEPS = """import torch

def make_step(batch=4):
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(batch, 8, device="cuda")

    def step():
        optimizer.zero_grad()
        loss = model(x[x[:, 0] > 0]).sum()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step

def endless():
    x = torch.ones(8, device="cuda")

    def step():
        while x.sum().item() > 0:
            pass

    return step

def forward_only(batch=4):
    model = torch.nn.Linear(8, 8).cuda()
    x = torch.randn(batch, 8, device="cuda")
    return lambda: model(x)

def empty():
    model = torch.nn.Linear(8, 8).cuda()
    x = torch.randn(0, 8, device="cuda")
    return lambda: model(x).sum().backward()

def untrained():
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 8, device="cuda")

    def step():
        model(x)
        optimizer.step()

    return step
"""
ROWS, VALUE = "assumed.py:10=2", "assumed.py:13=0.5"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the steps, where the commands run."""
    monkeypatch.chdir(tmp_path)
    Path("assumed.py").write_text(STEPS, encoding="utf-8")


@pytest.mark.parametrize(
    "command",
    [
        ("predict", "--gpu", "l4"),
        ("memory",),
        ("trace",),
        ("profile", "--gpu", "l4"),
    ],
    ids=lambda command: command[0],
)
def test_the_notes_name_the_values_that_were_given(command: tuple[str, ...]) -> None:
    done = run(
        *(command[0], "assumed.py:make_step", *command[1:]), "--assume", ROWS, "--assume", VALUE
    )
    assert (done.code, done.err) == (0, "")
    text = " ".join(done.out.split())
    assert "the size of a result at assumed.py:10: 2 was given" in text
    assert "reads a GPU value at assumed.py:13; 0.5 was given" in text


def test_the_rows_that_are_given_are_those_of_the_trace() -> None:
    done = run("trace", "assumed.py:make_step", "-o", "step.json.gz", "--assume", ROWS)
    assert done.code == 0
    done = run("memory", "step.json.gz", "--json")
    assert "2 was given" in json.dumps(json.loads(done.out))


@pytest.mark.parametrize("command", ["fits", "max-batch"])
def test_other_commands_use_the_values(command: str) -> None:
    fine = run(command, "assumed.py:make_step", "--gpu", "l4", "--assume", ROWS)
    wrong = run(command, "assumed.py:make_step", "--gpu", "l4", "--assume", "assumed.py:1=2")
    assert fine.code == 0, fine.err
    assert wrong.code == (2 if command == "fits" else 1)  # fits answers "no" with 1
    assert "which reads nothing" in wrong.err


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        ("make_step --assume assumed.py:1=2", 1, "assumed.py:10 (size), assumed.py:13 (value)"),
        ("make_step --assume assumed.py:13", 1, "write FILE:LINE=VALUE"),
        ("make_step --assume assumed.py:13=x", 1, "'x' is no number"),
        ("make_step --assume assumed.py=1", 1, "is not a line of code"),
        ("make_step --assume assumed.py:10=1.5", 1, "which needs a whole number"),
        ("make_step --assume assumed.py:10=9", 1, "it is at most 4"),
        (f"make_step --assume {ROWS} --assume {ROWS}", 1, "twice"),
        ("endless", 1, "more than 10,000 times in one call"),
        ("endless --assume assumed.py:21=1,0", 0, ""),
        ("empty", 1, "without elements"),
        ("untrained", 1, "has no gradient for any of its parameters"),
    ],
)
def test_what_cannot_be_meant_is_refused(command: str, code: int, says: str) -> None:
    target, *options = command.split()
    done = run("predict", f"assumed.py:{target}", "--gpu", "l4", *options)
    assert done.code == code
    assert says in " ".join(done.err.split())


def test_what_may_be_meant_is_noted_in_the_table() -> None:
    done = run("predict", "assumed.py:forward_only", "--gpu", "l4")
    assert done.code == 0
    assert "in training mode but has no backward pass" in " ".join(done.out.split())


def test_a_trace_and_a_measurement_take_no_values(saved: Path) -> None:
    done = run("predict", saved, "--gpu", "l4", "--assume", VALUE)
    assert (done.code, "whose assumed values are fixed" in done.err) == (1, True)
    done = run("profile", saved, "--assume", VALUE)
    assert (done.code, "name a GPU" in done.err) == (1, True)
