"""Traces that load with fields bent; `python -m tests.fuzz --structure` is the long run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from fuzz import bending, campaign, judgement
from fuzz.drawn_steps import bent_steps, drawn_steps
from fuzz.judgement import ACCEPTED, BAD, FAULTS, RAW, REFUSED, Input
from fuzz.questions import QUESTIONS, ask_memory, ask_parallel, ask_predict, sound, steps
from fuzz.readers import BadResult, Reader
from fuzz.traced_steps import CORPUS, traced_steps
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import wavecast
from wavecast.errors import WavecastError
from wavecast.traces.step import Trace

SHORT, LONG = 2, 8
"""How many inputs of each question are tried, and how many where there is time."""

every_question = pytest.mark.parametrize(
    "question", QUESTIONS, ids=lambda question: question.name.replace(" ", "-")
)
quick = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def what_is_needed() -> None:
    for name in ("torch", "fastapi", "pandas"):
        pytest.importorskip(name)


def _faults(question: Reader, inputs: int, place: Path) -> list[tuple[str, object]]:
    block = campaign.Block(0, 0, inputs)
    with judgement.watched():
        return [
            (f"{question.name}:{number}", verdict)
            for number, verdict, *_ in campaign.judged(block, [question], 0, place)
            if verdict.kind in FAULTS
        ]


@every_question
def test_a_bent_step_is_answered_or_refused(question: Reader, tmp_path: Path) -> None:
    assert _faults(question, SHORT, tmp_path) == []


@pytest.mark.slow
@every_question
def test_many_bent_steps_are_answered_or_refused(question: Reader, tmp_path: Path) -> None:
    assert _faults(question, LONG, tmp_path) == []


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.json.gz")), ids=lambda path: path.name)
def test_what_broke_once_does_not_break_again(path: Path, tmp_path: Path) -> None:
    asked = path.name.rpartition("-")[0].replace("-", " ")
    (question,) = (one for one in QUESTIONS if one.name == f"{asked} of a step")
    (seed,) = (s for s in steps() if s.parts[s.main].content == path.read_bytes())
    with judgement.watched():
        for number in range(2):
            unchanged = Input(question.name, number, seed, "", b"")
            assert judgement.within_time(question, unchanged, tmp_path).kind not in FAULTS


@quick
@given(bent_steps(), st.sampled_from((ask_predict, ask_parallel, ask_memory)), st.integers(0, 99))
def test_a_drawn_step_is_answered_or_refused(trace: Trace, ask: object, number: int) -> None:
    refused: WavecastError | None = None
    try:
        ask(trace, Random(number), Path())  # type: ignore[operator]
    except WavecastError as error:
        refused = error
    assert refused is None or len(str(refused).splitlines()) == 1


@quick
@given(drawn_steps())
def test_a_drawn_step_that_is_not_bent_is_sharded(trace: Trace) -> None:
    assert wavecast.predict(trace, "l4").unpredicted == {}
    assert wavecast.memory(trace, "l4").fits
    spread = wavecast.predict(trace, "l4", parallel=wavecast.Parallel(data=2, shard=3))
    assert spread.gpus == 2


@pytest.mark.parametrize("name", sorted(traced_steps()))
def test_a_bent_step_loads(name: str, tmp_path: Path) -> None:
    path = tmp_path / "step.json.gz"
    loaded = 0
    for number in range(12):
        trace = bending.bent(traced_steps()[name], Random(number))
        assert trace == bending.bent(traced_steps()[name], Random(number))
        path.write_bytes(bending.written(trace))
        try:
            loaded += wavecast.load_trace(path) is not None
        except WavecastError:
            continue
    assert loaded >= 10


@pytest.mark.parametrize("bend", bending.BENDS, ids=lambda bend: bend.__name__.strip("_"))
def test_every_bend_changes_something(bend: bending.Bend) -> None:
    step = traced_steps()["measured"]
    assert any(bend(step, Random(number)) != step for number in range(20))


def test_a_question_that_fails_is_a_fault(tmp_path: Path) -> None:
    def fails(path: Path, number: int) -> None:
        raise (KeyError("x"), BadResult("negative: -1"), wavecast.InvalidInput("no"))[number]

    question = replace(QUESTIONS[0], use=fails)
    kinds = [
        judgement.judge(question, judgement.make_input(question, number), tmp_path).kind
        for number in range(3)
    ]
    assert kinds == [RAW, BAD, REFUSED]
    assert ACCEPTED not in kinds


@pytest.mark.parametrize(
    "record",
    [
        {"seconds": -1.0},
        {"idle_s": [1.0, -1.0]},
        {"seconds": 1.0, "low_s": 2.0, "high_s": 3.0},
        {"peak_bytes": 2, "reserved_bytes": 1},
        {"rows": [{"share": 1.5}]},
        {"throughput": float("inf")},
    ],
)
def test_a_number_that_cannot_be_is_seen(record: dict[str, object]) -> None:
    with pytest.raises(BadResult):
        sound(record, "result")
