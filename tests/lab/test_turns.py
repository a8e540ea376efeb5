"""Tasks prepare at the same time and are measured one at a time."""

from __future__ import annotations

import os
import time
from collections import deque
from itertools import pairwise
from pathlib import Path

from lab.collect.turns import Turn, Turns, in_new_process


def _spans(folder: Path) -> list[tuple[float, float]]:
    texts = [path.read_text() for path in folder.glob("*.span")]
    return sorted((float(begin), float(end)) for begin, end in map(str.split, texts))


def test_turns_do_not_overlap_and_failures_are_kept(tmp_path: Path) -> None:
    def work(turn: Turn) -> str:
        kind, name = turn.task.split()
        if kind == "raise":
            raise ValueError("no such step")
        if kind == "die":
            os._exit(3)
        for number in range(2):
            with turn.taken():
                begin = time.monotonic()
                time.sleep(0.03)
                (tmp_path / f"{name}-{number}.span").write_text(f"{begin} {time.monotonic()}")
        return f"measured {name}"

    tasks = deque(["step a", "step b", "raise c", "die d", "step e"])
    turns = Turns(work, tmp_path, tasks, 3, time.monotonic() + 60)
    assert turns.run() == []
    assert sorted(turns.done) == ["step a", "step b", "step e"]
    assert sorted(turns.failures) == ["die d", "raise c"]
    assert "no such step" in turns.failures["raise c"]
    spans = _spans(tmp_path)
    assert len(spans) == 6
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


def test_tasks_that_are_not_ready_in_time_are_named(tmp_path: Path) -> None:
    def work(turn: Turn) -> str:
        time.sleep(60)
        return turn.task

    turns = Turns(work, tmp_path, deque(["step a", "step b"]), 1, time.monotonic() + 4.2)
    assert turns.run() == ["step a", "step b"]


def test_a_task_may_be_a_command(tmp_path: Path) -> None:
    code = (
        "import sys; from lab.collect.turns import Turn; "
        "turn = Turn(sys.argv[1], int(sys.argv[-1])); turn.wait(); turn.say(done=sys.argv[2])"
    )
    turns = Turns(in_new_process("-c", code), tmp_path, deque(["a b"]), 1, time.monotonic() + 60)
    assert turns.run() == []
    assert turns.done == ["a b"]
