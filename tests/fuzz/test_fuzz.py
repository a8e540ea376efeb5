"""A short run of the fuzzers; `python -m tests.fuzz` is the long one (docs/concepts/trust.md)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from drawn_traces import traces
from fuzz import campaign, forms, guided, judgement
from fuzz.judgement import ACCEPTED, BAD, FAULTS, HANG, LARGE, RAW, REFUSED, Input
from fuzz.readers import READERS, BadResult, Reader, positive, use_trace
from fuzz.seeds import Seed
from fuzz.strategies import odd_profiles, odd_steps
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from over_all import over

import wavecast
from wavecast.errors import InvalidInput, WavecastError

INPUTS = 120
"""How many inputs of each reader are tried."""

every_reader = pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)


OF_FILES = [reader for reader in READERS if reader.name != "ncu table"]
"""The readers that open files themselves; the table of ncu comes from a process."""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("sqlalchemy")
    torch.set_num_threads(1)


@every_reader
def test_every_seed_is_accepted(reader: Reader, tmp_path: Path) -> None:
    with judgement.watched():
        for number, seed in enumerate(reader.seeds()):
            unchanged = Input(reader.name, 6 * number + 1, seed, "", b"")
            assert judgement.within_time(reader, unchanged, tmp_path).kind == ACCEPTED
            judgement.empty(tmp_path)


@every_reader
def test_no_input_gets_further_than_a_refusal_or_a_good_result(
    reader: Reader, tmp_path: Path
) -> None:
    faults = []
    with judgement.watched():
        block = campaign.Block(0, 1, INPUTS)
        for number, verdict, *_ in campaign.judged(block, [reader], 0, tmp_path):
            if verdict.kind in FAULTS:
                faults.append((f"{reader.name}:{number}", verdict))
    assert faults == []


def _folder(place: Path) -> Path:
    place.mkdir()
    return place


def _pipe(place: Path) -> Path:
    os.mkfifo(place)
    return place


def _loop(place: Path) -> Path:
    place.symlink_to(place)
    return place


def _endless(place: Path) -> Path:
    place.symlink_to("/dev/zero")
    return place


def _empty(place: Path) -> Path:
    place.write_bytes(b"")
    return place


def _blanks(place: Path) -> Path:
    place.write_bytes(b"\n" * (1 << 20))
    return place


ODD_PLACES: dict[str, Callable[[Path], Path]] = {
    "folder": _folder,
    "pipe": _pipe,
    "loop": _loop,
    "endless": _endless,
    "empty": _empty,
    "blanks": _blanks,
    "missing": lambda place: place,
    "zero byte": lambda place: place.with_name("a\0b" + place.suffix),
    "long name": lambda place: place.with_name("a" * 300 + place.suffix),
    "surrogate": lambda place: place.with_name("\udcff" + place.suffix),
}


@over("odd", ODD_PLACES)
@pytest.mark.parametrize("reader", OF_FILES, ids=lambda reader: reader.name)
def test_a_path_that_is_no_file_is_refused(reader: Reader, odd: str, tmp_path: Path) -> None:
    seed = reader.seeds()[0]
    tmp_path = tmp_path / odd
    tmp_path.mkdir()
    path = ODD_PLACES[odd](tmp_path / seed.main)
    beside = Input(reader.name, 1, Seed({"beside": seed.parts[seed.main]}), "", b"")
    used = replace(reader, use=lambda _, number: reader.use(path, number))
    with judgement.watched():
        verdict = judgement.within_time(used, beside, tmp_path)
    assert verdict.kind not in FAULTS, verdict


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(odd_steps(), traces()), st.integers(0, 9))
def test_a_drawn_trace_is_predicted_or_refused(trace: wavecast.Trace, number: int) -> None:
    refused: WavecastError | None = None
    try:
        use_trace(trace, number)
    except WavecastError as error:
        refused = error
    assert refused is None or len(str(refused).splitlines()) == 1


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(odd_profiles(), st.integers(0, 9))
def test_a_drawn_profile_is_predicted_or_refused(
    tmp_path: Path, profile: bytes, number: int
) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(profile)
    refused: WavecastError | None = None
    try:
        use_trace(wavecast.read_kineto(path), number)
    except WavecastError as error:
        refused = error
    assert refused is None or len(str(refused).splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidInput("no"), REFUSED),
        (InvalidInput("..."), RAW),
        (ValueError("no"), RAW),
        (MemoryError(), LARGE),
        (judgement.Hang(), HANG),
        (BadResult("seconds"), BAD),
    ],
)
def test_a_fault_is_seen(error: BaseException, kind: str, tmp_path: Path) -> None:
    def use(path: Path, number: int) -> None:
        raise error

    if error.args[:1] == ("...",):
        error.args = ("x" * 2000,)  # our own errors shorten what they are given
    reader = replace(READERS[-1], use=use)
    assert judgement.judge(reader, judgement.make_input(reader, 1), tmp_path).kind == kind


def test_a_loop_without_end_is_a_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judgement, "LONGEST_S", 1)

    def use(path: Path, number: int) -> None:
        while True:
            pass

    reader = replace(READERS[-1], use=use)
    with judgement.watched():
        verdict = judgement.within_time(reader, judgement.make_input(reader, 1), tmp_path)
    assert verdict.kind == HANG


def test_a_large_list_is_too_much_memory(tmp_path: Path) -> None:
    def use(path: Path, number: int) -> None:
        bytearray(2 * judgement.MOST_BYTES)

    reader = replace(READERS[-1], use=use)
    with judgement.watched():
        verdict = judgement.within_time(reader, judgement.make_input(reader, 1), tmp_path)
    assert verdict.kind == LARGE


@pytest.mark.parametrize(
    "times", [(0.0, None, None), (float("nan"), None, None), (1.0, 2.0, 3.0), (1.0, 0.5, 0.9)]
)
def test_a_time_that_cannot_be_is_bad(times: tuple[float, float | None, float | None]) -> None:
    with pytest.raises(BadResult):
        positive(*times, "seconds")


def test_an_input_is_made_again_from_its_number() -> None:
    for reader in READERS[:5]:
        first, second = (judgement.make_input(reader, 7, 3) for _ in range(2))
        assert first.content == second.content
        assert first.content != judgement.make_input(reader, 8, 3).content


def test_most_inputs_of_a_trace_have_a_right_checksum(tmp_path: Path) -> None:
    (reader,) = (reader for reader in READERS if reader.name == "trace")
    altered = 0
    for number in range(60):
        path = tmp_path / "step.json.gz"
        path.write_bytes(judgement.make_input(reader, number).content)
        try:
            wavecast.load_trace(path)
        except InvalidInput as error:
            altered += "checksum" in str(error)
    assert altered < 15


def test_a_campaign_counts_every_input_and_keeps_what_failed(tmp_path: Path) -> None:
    def use(path: Path, number: int) -> None:
        if number % 50 == 3:
            raise KeyError(number)

    (reader,) = (reader for reader in READERS if reader.name == "ncu table")
    begun = campaign.Campaign(
        [replace(reader, use=use)], 0, tmp_path, [campaign.Tally()], campaign.blocks(100, [reader])
    )
    begun.run_here(tmp_path)
    assert begun.tallies[0].inputs == 100
    assert begun.tallies[0].counts[RAW] == 2
    assert len(list(tmp_path.glob("ncu-table-0-*"))) == 2
    assert "| ncu table | 100 | 98 | 0 | 2 | 0 | 0 | 0 |" in campaign.table(begun)


def test_a_smaller_input_has_the_same_fault(tmp_path: Path) -> None:
    def use(path: Path, number: int) -> None:
        if b"gemm" in path.read_bytes():
            raise KeyError("gemm")

    (reader,) = (reader for reader in READERS if reader.name == "ncu table")
    reader = replace(reader, use=use)
    seed = reader.seeds()[0]
    unchanged = Input(reader.name, 1, seed, seed.main, seed.parts[seed.main].content)
    with judgement.watched():
        fault = judgement.within_time(reader, unchanged, tmp_path)
        least = judgement.smaller(reader, unchanged, fault, tmp_path)
    assert fault.kind == RAW
    assert least.content == b"gemm"


def test_half_of_the_guided_changes_are_those_of_the_form(tmp_path: Path) -> None:
    (reader,) = (reader for reader in READERS if reader.name == "trace")
    content = reader.seeds()[0].parts["step.json.gz"].content
    change = guided._changes(reader, lambda data, longest: b"libFuzzer's")
    changed = [change(content, 1 << 20, number) for number in range(40)]
    assert 10 < changed.count(b"libFuzzer's") < 30
    # A form that cannot be read is left to libFuzzer.
    assert {change(b"no trace", 1 << 20, number) for number in range(40)} >= {b"libFuzzer's"}


def test_the_blocks_of_a_campaign_have_all_its_inputs() -> None:
    made = campaign.blocks(100_000, READERS)
    assert sum(block.end - block.begin for block in made) == 100_000
    assert {block.reader for block in made} == set(range(len(READERS)))


def test_every_op_of_the_registry_may_be_drawn() -> None:
    assert "aten.convolution" in forms.op_names()
