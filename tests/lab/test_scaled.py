"""Public steps recorded on our H200: how they are planned, measured, matched and shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import wavecast
from lab.fit.host import LEASES
from lab.measured import campaigns
from lab.measured.comparison import Scored, score
from lab.measured.op_data import HELD_OUT
from lab.measured.public_steps.case import Case, Traces
from lab.score import scaled_steps
from lab.score.scaled_steps import contenders, is_whole, recorded, table

DCGAN = campaigns.traces("habitat")["dcgan-b64"]


def make_step(model: str, batch: int) -> Callable[[], Any]:
    if model == "broken":
        raise RuntimeError("no such layer")
    return lambda: (model, batch)


def a_case(name: str, gpu: str = "t4", model: str = "", batch: int = 1, **more: Any) -> Case:
    return Case(
        **{
            "set": name,
            "gpu": gpu,
            "model": model or name,
            "family": model or name,
            "precision": "fp32",
            "batch": batch,
            "layout": "",
            "measured_s": 1.0,
            "make_step": partial(make_step, model or name, batch),
            **more,
        }
    )


def test_no_fit_reads_them() -> None:
    assert scaled_steps.CAMPAIGN in HELD_OUT
    assert scaled_steps.CAMPAIGN not in LEASES


def test_cases_are_matched_by_their_step_and_never_scaled_to_the_origin() -> None:
    trace = DCGAN
    here = [a_case("one"), a_case("one", "l4"), a_case("one", "h200-sxm"), a_case("one", batch=2)]
    recordings = {Traces.key(here[0]): trace}
    matched = [case for case, _ in recorded([(case, trace) for case in here], recordings)]
    assert matched == here[:2]


def test_a_recording_without_updates_is_not_the_step() -> None:
    trace = DCGAN
    part = replace(trace, calls=trace.calls[: len(trace.calls) * 8 // 10], allocations=())
    assert is_whole(trace, trace)
    assert not is_whole(part, trace)
    assert list(recorded([(a_case("one"), trace)], {Traces.key(a_case("one")): part})) == []


def test_the_host_is_the_reference_host(tmp_path: Path) -> None:
    trace = DCGAN
    (row,) = score([(a_case("one"), trace)], contenders()[1:], host=scaled_steps.HOST)
    assert row.seconds == wavecast.predict(trace, "t4", host="reference").seconds
    assert sum(row.kinds_s.values()) > 0


def test_the_table_has_every_contender_on_the_recorded_steps_alone() -> None:
    def row(contender: str, seconds: float, batch: int = 1) -> Scored:
        case = a_case("one", batch=batch)
        return Scored(case, contender, seconds, seconds, 2.0, seconds, 0.0, "gpu", {})

    rows = [row("learned", 0.9), row("learned", 9.0, batch=2), row(scaled_steps.SHIPPED, 1.2)]
    lines = table(rows).splitlines()
    assert lines[-2:] == [
        "| one, learned | 1 | 10% | 10% | -10% | 10% | 100% |",
        "| one, scaled | 1 | 20% | 20% | +20% | 20% | 0% |",
    ]
    assert table(rows[:2]) == ""
