"""Each op run again alone: how often, on what, and what the step notices of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from made import mm, relu

from wavecast.frameworks.pytorch.measurement import iteration
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.structure import Structure
from wavecast.traces.step import Call, Kernel, Phase, Trace


class Counting:
    """A timer that runs a function three times and says how often it ran."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, run: Callable[[], Any]) -> float:
        for _ in range(3):
            run()
            self.runs += 1
        return 0.5


def rerun(step: Callable[[], Any]) -> tuple[Any, Counting]:
    counting = Counting()
    with iteration.RerunMode(OpRecorder(Structure()), counting):
        return step(), counting


def test_every_op_runs_again_alone() -> None:
    x = torch.ones(4)
    _, counting = rerun(lambda: (x + 1).relu())
    assert counting.runs == 2 * 3


def test_an_op_that_writes_to_its_input_writes_once() -> None:
    x, parts = torch.zeros(4), [torch.zeros(2), torch.zeros(2)]

    def step() -> None:
        x.add_(1)
        torch._foreach_add_(parts, 1)

    _, counting = rerun(step)
    assert counting.runs == 2 * 3
    assert x.tolist() == [1.0] * 4
    assert [part.tolist() for part in parts] == [[1.0, 1.0]] * 2


def test_the_step_draws_the_same_random_numbers() -> None:
    x = torch.ones(1000)
    torch.manual_seed(0)
    expected = torch.nn.functional.dropout(x)
    torch.manual_seed(0)
    drawn, counting = rerun(lambda: torch.nn.functional.dropout(x))
    assert counting.runs > 0
    assert torch.equal(drawn, expected)


def test_the_runs_for_warm_up_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def timer(run: Callable[[], Any], repeats: int, issue_s: float) -> float:
        runs.append(f"timed {repeats}")
        return 2.0

    monkeypatch.setattr(iteration, "timer_on", lambda device: timer)
    assert iteration.timer(3, 3)(lambda: runs.append("run")) == 2.0
    assert runs == ["run"] * 3 + ["timed 3"]


def made(*kernels: float) -> Call:
    named = tuple(Kernel(f"k{n}", seconds, start_s=n) for n, seconds in enumerate(kernels))
    return Call(mm(), Phase.FORWARD, kernels=named)


def test_kernels_share_the_time_of_their_op_alone() -> None:
    view = Call(relu(), Phase.FORWARD)
    trace = Trace(calls=(made(1.0, 3.0), view, made(1.0)))
    alone = (made(8.0), view)
    timed = iteration.with_times_alone(trace, alone)
    assert [[k.seconds for k in call.kernels] for call in timed.calls] == [[2.0, 6.0], [], [1.0]]
    assert [k.start_s for call in timed.calls for k in call.kernels] == [None, None, 0]


def test_times_of_other_ops_are_not_taken() -> None:
    trace = Trace(calls=(made(1.0),))
    other = replace(made(8.0), op=relu())
    kept = iteration.with_times_alone(trace, (other,))
    assert kept.calls == trace.calls
    assert "iterations differ in their ops" in kept.notes[0]
