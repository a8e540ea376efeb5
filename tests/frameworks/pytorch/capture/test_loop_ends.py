"""Loops that end by a value that nobody knows run to their bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from networks import calls_of, forward

from wavecast.frameworks.pytorch.capture.values.host_values import known_values

ROUNDS = 6
END = 5


def _truth(value: bool) -> Any:
    return torch.full((4,), value, device="cuda")


def for_and_break(ended: Callable[[], Any]) -> None:
    finished = _truth(False)
    for _ in range(ROUNDS):
        finished |= ended()
        if finished.all():
            break


def while_not_all(ended: Callable[[], Any]) -> None:
    finished, length = _truth(False), 0
    while not finished.all() and length < ROUNDS:
        finished, length = finished | ended(), length + 1


def while_any(ended: Callable[[], Any]) -> None:
    unfinished, length = _truth(True), 0
    while length < ROUNDS and unfinished.any().item():
        unfinished, length = unfinished & ~ended(), length + 1


def one_of_two_ends(ended: Callable[[], Any]) -> None:
    finished, length = _truth(False), 0
    while True:
        finished, length = finished.logical_or(ended()), length + 1
        if bool(torch.all(finished)) or length >= ROUNDS:
            break


def two_ends(ended: Callable[[], Any]) -> None:
    finished, length = _truth(False), 0
    while True:
        finished, length = finished | ended(), length + 1
        if finished.all():
            return
        elif length >= ROUNDS:
            break


def goes_on_in_a_branch(ended: Callable[[], Any]) -> None:
    finished = _truth(False)
    for _ in range(ROUNDS):
        finished = finished | ended()
        if not finished.all():
            continue
        else:
            break


def length_in_the_mask(ended: Callable[[], Any]) -> None:
    """As transformers does: that the length is reached is one of the reasons to be finished."""
    unfinished, length, is_over = torch.ones(4, dtype=torch.long, device="cuda"), 0, False
    while not is_over:
        length += 1
        unfinished = unfinished & ~(_truth(length >= ROUNDS) | ended())
        is_over = unfinished.max() == 0


@pytest.mark.parametrize(
    "loop",
    [
        for_and_break,
        while_not_all,
        while_any,
        one_of_two_ends,
        two_ends,
        goes_on_in_a_branch,
        length_in_the_mask,
    ],
)
def test_a_loop_runs_to_its_bound(loop: Callable[..., None]) -> None:
    trace = forward(lambda x: loop(lambda: x.argmax(-1) == END), (4, 8))
    assert len(calls_of(trace, "aten.argmax")) == ROUNDS
    assert any("was assumed" in note for note in trace.notes)


def test_a_note_says_that_a_loop_runs_to_its_bound() -> None:
    trace = forward(lambda x: for_and_break(lambda: x.argmax(-1) == END), (4, 8))
    assert trace.notes[0].endswith("False was assumed, so that a loop runs to its bound")


def test_a_loop_without_a_bound_ends_as_before() -> None:
    def wait(x: Any) -> None:
        finished = _truth(False)
        while not finished.all():
            finished = x.argmax(-1) == END

    trace = forward(wait, (4, 8))
    assert len(calls_of(trace, "aten.argmax")) == 1
    assert trace.notes[0].endswith("True was assumed")


def test_a_condition_outside_of_a_loop_is_as_before() -> None:
    seen = []

    def check(x: Any) -> None:
        for part in x.split(1):
            if (part > 0).all():
                seen.append(True)

    forward(check, (2, 8))
    assert all(seen)
    assert seen


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (lambda x, known: x & known(False), 0),
        (lambda x, known: known(False).logical_and(x), 0),
        (lambda x, known: x | known(True), 1),
        (lambda x, known: x.logical_or_(known(True)), 1),
        (lambda x, known: x.long() * known(False), 0),
        (lambda x, known: x | known(False), None),
        (lambda x, known: x & known(True), None),
        (lambda x, known: x.float() * known(False), None),  # infinity times 0 is no number
        (lambda x, known: x.long() | known(True).long(), None),
    ],
)
def test_one_known_argument_may_decide_the_result(function: Any, value: int | None) -> None:
    seen = []

    def run(x: Any) -> None:
        result = known_values(function(x > 0, _truth))
        seen.append(None if result is None else result.tolist())

    forward(run, (2, 4))
    assert seen[-1] == (None if value is None else [[value] * 4] * 2)


def test_a_decided_result_is_forgotten_when_it_is_written_to() -> None:
    def run(x: Any) -> None:
        decided = (x > 0) | _truth(True)
        assert decided.all()
        decided.copy_(x > 1)
        assert known_values(decided) is None

    forward(run, (2, 4))
