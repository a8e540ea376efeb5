"""The result of a script, which the script itself may have written."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made import step
from rich.console import Console

from wavecast.errors import InvalidInput
from wavecast.frameworks.script_results import Failure, read_result, write_result
from wavecast.report.results.profiles import result_record, script_run
from wavecast.traces.script import (
    LoaderTime,
    Loading,
    OwnTime,
    ScriptLength,
    ScriptPart,
    ScriptRun,
    UnevenSteps,
)

WRONG: tuple[Any, ...] = (
    None,
    True,
    -1,
    2.5,
    1e400,
    1 << 80,
    "x",
    "",
    [],
    ["x"],
    {},
    {"x": 1},
    [[1]],
    "\ud800",
)
"""Values that most fields cannot have."""


@pytest.fixture
def run() -> ScriptRun:
    """A run that has all that one can have."""
    trace = step()
    return ScriptRun(
        script="train.py",
        trace=trace,
        line="train.py:7",
        step=3,
        steps=3,
        equal=(2, 3),
        choice="steps 2 and 3 are equal",
        once=(ScriptPart("set-up", 5, 1e9),),
        holds="1 backward pass",
        left_out=("evaluation",),
        loading=Loading(0.01, 1, 2, LoaderTime(0.01, 0.02, 30, 2, 8)),
        own_time=OwnTime(0.1, "train.py:9"),
        length=ScriptLength("epochs at train.py:5", epochs=3, batches=100, steps=300),
        largest=dataclasses.replace(trace, samples=5),
        cycle=trace,
        cycle_steps=2,
        uneven=(UnevenSteps(0, 1, 1),),
    )


def test_what_is_written_is_read(run: ScriptRun, tmp_path: Path) -> None:
    assert read_result(tmp_path) is None
    write_result(run, tmp_path)
    assert read_result(tmp_path) == run
    write_result(Failure("CaptureError", "no", "Traceback", 3), tmp_path)
    failure = read_result(tmp_path)
    assert isinstance(failure, Failure)
    assert str(failure.raised()) == "no"


def test_a_text_of_any_length_is_shortened(tmp_path: Path) -> None:
    write_result(Failure("CaptureError", "\U0001f600" * 10_000_000), tmp_path)
    failure = read_result(tmp_path)
    assert isinstance(failure, Failure)
    assert len(failure.message) < 1 << 16


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values in plain data."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Plain data with another value at a place; `...` removes it."""
    if not path:
        return new
    copy = value.copy()
    if new is ... and len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def test_a_forged_result_is_refused_or_can_be_shown(run: ScriptRun, tmp_path: Path) -> None:
    write_result(run, tmp_path)
    file = tmp_path / "result.json"
    right = json.loads(file.read_text())
    console, refused = Console(quiet=True), 0
    for path in places(right):
        for wrong in (*WRONG, ...) if path else WRONG:
            file.write_text(json.dumps(replaced(right, path, wrong)))
            try:
                forged = read_result(tmp_path)
            except InvalidInput:
                refused += 1
                continue
            assert isinstance(forged, ScriptRun)
            console.print(script_run(forged))
            json.dumps(result_record(forged), allow_nan=False)
    assert refused > 500


@pytest.mark.parametrize("places", [[(0, 0)], [(0, 1 << 60)], [(1, 2), (0, 1)], [(0, 2), (1, 2)]])
def test_uneven_steps_are_parts_of_the_cycle(
    places: list[tuple[int, int]], run: ScriptRun, tmp_path: Path
) -> None:
    forged = tuple(UnevenSteps(begin, end, 1) for begin, end in places)
    write_result(dataclasses.replace(run, uneven=forged), tmp_path)
    with pytest.raises(InvalidInput, match="steps that the cycle does not have"):
        read_result(tmp_path)


@pytest.mark.parametrize("name", ["result.json", "trace.json.gz"])
def test_a_link_is_not_followed(name: str, run: ScriptRun, tmp_path: Path) -> None:
    write_result(run, tmp_path)
    (tmp_path / name).rename(tmp_path / "elsewhere")
    (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidInput, match="it is a link"):
        read_result(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(InvalidInput, match="it is a link"):
        read_result(tmp_path)
