"""Public steps recorded on our H200: how they are planned, measured, matched and shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import wavecast
from lab.collect import scaled
from lab.collect.scaled import Wanted, compact, measure, plan
from lab.fit.host import LEASES
from lab.measured import campaigns
from lab.measured.comparison import Scored, score
from lab.measured.op_data import HELD_OUT
from lab.measured.public_steps.case import Case, Traces
from lab.score import scaled_steps
from lab.score.scaled_steps import contenders, is_whole, recorded, table
from wavecast import Trace

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


def test_each_step_is_planned_once_and_steps_on_many_gpus_first() -> None:
    cases = [a_case("one", batch=batch) for batch in (1, 2, 3)]
    cases += [a_case("one", "l4", batch=2), a_case("one compiled", batch=9)]
    planned = list(plan(cases))
    assert planned[0].batch == 2
    assert sorted(step.batch for step in planned) == [1, 2, 3]
    assert {step.key for step in planned} == {Traces.key(case) for case in cases[:3]}


def test_sets_take_turns_and_families_within_them() -> None:
    cases = [a_case("large", model=model, batch=n) for model in "aab" for n in range(1, 5)]
    cases += [a_case("small", batch=n) for n in (1, 2)]
    planned = list(plan(cases))
    assert {step.set for step in planned[:2]} == {step.set for step in planned[2:4]}
    assert {step.set for step in planned[:2]} == {"large", "small"}
    large = [step.args[0] for step in planned if step.set == "large"]
    assert set(large[:2]) == set(large[2:4]) == {"a", "b"}


def test_a_planned_step_is_made_from_its_line() -> None:
    (wanted,) = plan([a_case("one", batch=7)])
    again = Wanted(**json.loads(json.dumps(asdict(wanted))))
    assert again.make()() == ("one", 7)


def test_a_step_that_is_no_call_of_a_function_cannot_be_planned() -> None:
    with pytest.raises(TypeError, match="cannot be planned"):
        list(plan([a_case("one", make_step=lambda: lambda: None)]))


def test_a_compact_trace_predicts_the_same() -> None:
    trace = DCGAN
    small = compact(trace)
    assert not small.allocations
    for gpu in ("t4", "h200-sxm"):
        whole, compacted = (wavecast.predict(t, gpu, host="reference") for t in (trace, small))
        assert compacted.seconds == pytest.approx(whole.seconds, rel=1e-3)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replaces the GPU; returns the steps that were measured."""
    ran: list[Any] = []

    def measured(step: Callable[[], Any], **protocol: Any) -> Trace:
        ran.append((step(), protocol))
        return DCGAN

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(wavecast, "measure", measured)
    return ran


def test_a_failure_does_not_stop_the_others_and_nothing_is_measured_twice(
    no_gpu: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = list(plan([a_case("broken"), a_case("one"), a_case("two")]))
    measure(tmp_path, 60.0, steps)
    names = {path.name.partition(".")[0] for path in tmp_path.iterdir()}
    assert names == {step.key for step in steps if step.set != "broken"}
    assert "no such layer" in capsys.readouterr().out
    measure(tmp_path, 60.0, steps)
    assert [model for (model, _), _ in no_gpu] in (["one", "two"], ["two", "one"])


def test_what_is_too_large_is_not_kept(
    no_gpu: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(scaled, "LARGEST_BYTES", 100)
    measure(tmp_path, 60.0, list(plan([a_case("one")])))
    assert len(no_gpu) == 1
    assert list(tmp_path.iterdir()) == []
    assert "too large" in capsys.readouterr().out


def test_measuring_ends_when_time_is_up(no_gpu: list[Any], tmp_path: Path) -> None:
    measure(tmp_path, -1.0, list(plan([a_case("one")])))
    assert no_gpu == []


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
