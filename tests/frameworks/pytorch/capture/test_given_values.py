"""Values and sizes that the user gives for lines that depend on data, and loops on such values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks import Step, calls_of, forward, mlp, training

import wavecast
from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.pytorch.capture import capture
from wavecast.frameworks.pytorch.capture.values import assumptions as assumptions
from wavecast.frameworks.pytorch.capture.values.assumptions import GivenValues

FILE = "test_given_values.py"


def _line(function: Callable[..., Any], offset: int = 1) -> str:
    """The name of a line of a function, counted from its first line."""
    return f"{FILE}:{function.__code__.co_firstlineno + offset}"


def _seen(function: Callable[[Any], Any], given: Any, kind: str = "") -> tuple[list[Any], Any]:
    """What a function of a tensor returned in the recorded call, and the notes."""
    seen: list[Any] = []

    def run(x: Any) -> None:
        seen.append(function(x))

    trace = forward(run, (8, 8), assume={_line(function) + kind: given})
    return seen[len(seen) // 2 :], trace.notes


@pytest.mark.parametrize(
    ("given", "read"), [(0.5, 0.5), (3, 3.0), (True, 1.0), (float("inf"), float("inf"))]
)
def test_a_value_can_be_given(given: Any, read: float) -> None:
    def item(x: Any) -> Any:
        return x.sum().item()

    (value,), (note,) = _seen(item, given)
    assert value == read
    assert type(value) is float
    assert note.endswith(f"{_line(item)}; {given} was given")


def test_values_of_other_types_can_be_given() -> None:
    def whole(x: Any) -> Any:
        return int(x.argmax())

    def truth(x: Any) -> Any:
        return bool((x > 0).any())

    def array(x: Any) -> Any:
        return x.detach().cpu().numpy().tolist()

    assert _seen(whole, 5)[0] == [5]
    assert _seen(truth, True)[0] == [True]
    assert _seen(array, 0.25)[0] == [[[0.25] * 8] * 8]
    with pytest.raises(InvalidInput, match=r"0\.5 is given for .*, which needs a whole number"):
        _seen(whole, 0.5)


def test_values_are_read_in_order_and_the_last_one_again() -> None:
    def loop(x: Any) -> Any:
        return [x.sum().item() for _ in range(4)]

    (values,), (note,) = _seen(loop, [3, 2, 1])
    assert values == [3, 2, 1, 1]
    assert note.endswith("; 3, 2, 1 were given")


@pytest.mark.parametrize(
    "select",
    [
        lambda x: x[x[:, 0] > 0],
        lambda x: (x[:, 0] > 0).nonzero(),
        lambda x: F.one_hot(x.detach().topk(2).indices, 8).sum((0, 1)).nonzero(),
        lambda x: torch.masked_select(x, x > 0),
        lambda x: x.detach().unique(),
        lambda x: x[0].detach().long().bincount(),
        lambda x: x.repeat_interleave(x[:, 0].detach().long(), 0),
    ],
    ids=["mask", "nonzero", "experts", "masked_select", "unique", "bincount", "repeat_interleave"],
)
def test_the_number_of_rows_can_be_given(select: Callable[[Any], Any]) -> None:
    sizes: list[int] = []

    def run(x: Any) -> None:
        sizes.append(len(select(x)))

    trace = forward(run, (8, 8), assume={_line(select, 0): 3})
    assert sizes == [3, 3]
    assert [note.partition(": ")[2] for note in trace.notes] == ["3 was given"]


def test_more_rows_than_there_are_is_an_error() -> None:
    def mask(x: Any) -> Any:
        return x[x > 0]

    with pytest.raises(CaptureError, match=r"65 is given for .*; it is at most 64"):
        _seen(mask, 65)


def test_a_value_and_a_size_on_one_line_are_told_apart() -> None:
    def both(x: Any) -> Any:
        return x[x > 0].sum().item()

    with pytest.raises(InvalidInput, match=r"say which of them is given: .*:value or .*:size"):
        _seen(both, 2)
    assert len(_seen(both, 2, ":size")[1]) == 2
    (value,), notes = _seen(both, 2, ":value")
    assert value == 2.0
    assert [note.rpartition(" ")[2] for note in notes] == ["assumed", "given"]


def test_a_line_that_reads_nothing_is_an_error_that_lists_those_that_do() -> None:
    def item(x: Any) -> Any:
        return x.sum().item()

    place = _line(item)
    message = rf"for {FILE}:1, which reads nothing .* are at .*{place} \(value\)$"
    with pytest.raises(InvalidInput, match=message):
        forward(item, (8, 8), assume={f"{FILE}:1": 0.5, place: 1})
    with pytest.raises(InvalidInput, match="the step reads no value that is not known"):
        capture(training(mlp), assume={f"{FILE}:1": 0.5})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("train.py", 1, "'train.py' is not a line of code; write FILE:LINE"),
        (":3", 1, "is not a line of code"),
        ("train.py:x", 1, "is not a line of code"),
        ("train.py:3", "1", "'1' is given for train.py:3; give a number"),
        ("train.py:3", [], "give a number, True or False, or a list"),
    ],
)
def test_wrong_values_are_refused(key: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        GivenValues({key: value})


def test_a_file_is_named_by_its_last_parts() -> None:
    def item(x: Any) -> Any:
        return x.sum().item()

    for prefix in (
        "",
        "capture/",
        "./tests/frameworks/pytorch/capture/",
        f"{__file__[: -len(FILE)]}",
    ):
        assert forward(item, (8, 8), assume={prefix + _line(item): 0.5}).notes[0].endswith("given")
    with pytest.raises(InvalidInput):
        forward(item, (8, 8), assume={"elsewhere/" + _line(item): 0.5})


@pytest.fixture
def most_reads(monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a line may read in one call: here so few that a loop ends at once."""
    monkeypatch.setattr(assumptions, "MOST_READS", 1_000)
    return 1_000


def test_a_loop_on_a_value_that_never_changes_ends_with_its_line(most_reads: int) -> None:
    def converge(x: Any) -> None:
        while x.sum().item() > 1e-6:
            pass

    message = rf"reads a GPU value at .*{_line(converge)} more than {most_reads:,} times in one"
    with pytest.raises(CaptureError, match=message):
        forward(converge, (8, 8))
    trace = forward(converge, (8, 8), assume={_line(converge): [1, 1, 0]})
    assert len(calls_of(trace, "aten.sum")) == 3


@pytest.mark.usefixtures("most_reads")
def test_a_loop_on_a_size_ends_too() -> None:
    def shrink(x: Any) -> None:
        x = x.detach()
        while x.numel() > 10:
            x = x[x > 0]

    with pytest.raises(CaptureError, match=rf"unknown size at .*{_line(shrink, 3)} more than"):
        forward(shrink, (8, 8))


def test_many_reads_in_many_calls_are_no_loop(most_reads: int) -> None:
    reads = most_reads // 2 + 1

    def make_step() -> Step:
        x = torch.ones(1, device="cuda")
        return lambda: [x.sum().item() for _ in range(reads)]

    assert len(calls_of(capture(make_step), "aten.sum")) == reads


def test_what_a_scaler_reads_needs_no_value() -> None:
    def make_step() -> Step:
        model, scaler = mlp().cuda(), torch.amp.GradScaler("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(4, 8, device="cuda")

        def step() -> None:
            optimizer.zero_grad()
            scaler.scale(model(x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()

        return step

    assert capture(make_step).notes == ()


def test_the_public_functions_take_values() -> None:
    def make_step(batch: int = 4) -> Step:
        x = torch.randn(batch, 8, device="cuda", requires_grad=True)
        return lambda: (x * x.sum().item()).sum().backward()

    place = _line(make_step, 2)
    assert wavecast.trace(make_step, assume={place: 0.5}).notes[0].endswith("0.5 was given")
    with pytest.raises(InvalidInput, match="reads nothing"):
        wavecast.max_batch(make_step, "l4", assume={f"{FILE}:1": 0.5})
