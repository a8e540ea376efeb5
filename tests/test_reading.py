"""Files of unknown origin: whatever they are, a reader refuses them in one line and in bounds."""

from __future__ import annotations

import errno
import gzip
import json
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest

import wavecast
from wavecast import reading
from wavecast.campaigns.layer_times import read_rows, table_of
from wavecast.errors import InvalidInput
from wavecast.files import read_toml
from wavecast.frameworks.ncu import load
from wavecast.frameworks.pytorch.huggingface.configs import _read as read_config
from wavecast.predictors.mlp import Mlp
from wavecast.reading import Key, Quantity, Sources, time_s
from wavecast.runs.readers import opened_runs
from wavecast.runs.regression.complexities import Network
from wavecast.runs.regression.layer_times import read_caffe_time
from wavecast.runs.suite_results import read_results


def _runs_of(path: Path) -> None:
    with opened_runs(str(path), None, "training") as runs:
        list(runs)


READERS: dict[str, Callable[[Path], Any]] = {
    "trace": lambda path: wavecast.load_trace(path),
    "profile": lambda path: wavecast.read_kineto(path),
    "runs": lambda path: wavecast.read_runs(path, format="table"),
    "logs": lambda path: wavecast.read_runs(path, format="caffe", model="m", batch=1),
    "events": lambda path: wavecast.read_runs(path, format="tensorboard", model="m", batch=1),
    "trainer": lambda path: wavecast.read_runs(path, format="huggingface", model="m", batch=1),
    "source": _runs_of,
    "suite": read_results,
    "layers": read_rows,
    "layer times": lambda path: read_caffe_time(path, Network("n", (3, 8, 8), ()), 1),
    "counters": load,
    "settings": read_toml,
    "config": lambda path: read_config("m", path),
    "network": lambda path: Mlp.read([path]),
}
every_reader = pytest.mark.parametrize("name", READERS)


def refusal(name: str, path: Path) -> str:
    with pytest.raises(InvalidInput) as refused:
        READERS[name](path)
    message = str(refused.value)
    assert "\n" not in message
    assert len(message) < 600
    return message


@every_reader
def test_a_pipe_is_refused_and_never_waited_for(name: str, tmp_path: Path) -> None:
    path = tmp_path / "pipe.npz"
    os.mkfifo(path)
    path.with_suffix(".toml").write_text("")
    assert "pipe" in refusal(name, path)


@every_reader
def test_a_device_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "endless.npz"
    path.symlink_to("/dev/zero")
    path.with_suffix(".toml").write_text("")
    assert "device" in refusal(name, path)


@every_reader
def test_a_socket_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket has a hundred characters at most
    Path("s.toml").write_text("")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s.npz")
        assert "socket" in refusal(name, Path("s.npz"))


@every_reader
def test_a_path_with_a_zero_byte_is_refused(name: str) -> None:
    if name != "counters":  # made by ourselves from the name of a GPU
        refusal(name, Path("a\0b.npz"))


@every_reader
def test_an_error_while_reading_is_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "damaged.npz"
    path.write_bytes(b"x" * 100)
    path.with_suffix(".toml").write_text("")

    def fails(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(reading._BoundedFile, "_read_into", lambda *_: _refused(fails))
    assert "Input/output error" in refusal(name, path)


def _refused(fails: Callable[[], int]) -> int:
    try:
        return fails()
    except OSError as error:
        reading._refuse_system(error)


def test_an_error_of_the_disk_is_an_invalid_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def readinto(self, _: object) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        def close(self) -> None:
            pass

    path = tmp_path / "file"
    path.write_bytes(b"content")
    with reading.open_file(path, prefix="it ") as file:
        monkeypatch.setattr(file.raw, "_content", Failing())
        with pytest.raises(InvalidInput, match=r"it cannot be read \(Input/output error\)"):
            file.read()


@pytest.mark.parametrize(
    "name", ["suite", "layers", "settings", "config", "layer times", "counters"]
)
def test_an_endless_file_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "sparse.csv"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    refusal(name, path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" + "[]," * 3_000_000 + "[]]", "too many values"),
        ("[" + "{}," * 3_000_000 + "{}]", "too many values"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5000, "digits"),
        ('"\\ud800"', "surrogate"),
        ('{"\\udfff": 1}', "surrogate"),
        ("NaN", "NaN"),
        ("1e999", "too large"),
        (b"\xff", "UTF-8"),
        ('{"a": 1, "a": 2}', "twice"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_json_outside_of_the_budget_is_refused(text: str | bytes, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as refused:
        reading.parse_json(text, unique=True, prefix="it ")
    assert str(refused.value).startswith("it ")


@pytest.mark.parametrize("text", ['"\\\\ud800"', '"\\ud83d\\ude00"', '{"a": [1, 2.5, null, "ü"]}'])
def test_json_within_the_budget_is_read(text: str) -> None:
    assert reading.parse_json(text) == json.loads(text)


def test_a_key_with_many_dots_does_not_occupy_the_parser(tmp_path: Path) -> None:
    path = tmp_path / "device.toml"
    path.write_text(".".join("a" * 100_000) + " = 1")
    with pytest.raises(InvalidInput, match="200 dots"):
        read_toml(path)


def test_a_small_trace_of_many_values_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.trace"
    path.write_bytes(gzip.compress(b'{"trace":[' + b"[]," * 3_000_000 + b"[]]}"))
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("it was parsed"))
    with pytest.raises(InvalidInput, match="too many values"):
        wavecast.load_trace(path)


def test_a_table_of_empty_objects_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.json"
    path.write_text("[" + "{}," * 3_000_000 + "{}]")
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("it was parsed"))
    with pytest.raises(InvalidInput, match="too many values"):
        wavecast.read_runs(path)


def test_a_growing_table_is_not_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    os.mkfifo(path)
    with pytest.raises(InvalidInput, match="pipe"), table_of("bmm").growing(path, lambda _: None):
        pass


def test_a_row_with_a_field_beyond_the_limit_of_csv_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b",".join(name.encode() for name in table_of("bmm").columns) + b"\n")
    with path.open("ab") as file:
        file.write(b"1" * 200_000 + b"\n")
    with pytest.raises(InvalidInput, match="line 2"):
        read_rows(path)


def test_a_line_of_many_blanks_takes_no_square_of_their_number() -> None:
    from wavecast.runs.readers.text import read_flat

    line = "name: x" + " " * 500_000 + "y"
    assert read_flat([line, "batch:  '8'  "]) == {"name": line[6:], "batch": "8"}


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "\ud800", "missing"])
def test_a_name_that_no_file_can_have_is_that_of_nothing(name: str, tmp_path: Path) -> None:
    assert reading.kind_of(tmp_path / name) is None


def test_the_kind_of_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    kinds = [reading.kind_of(path) for path in (tmp_path, tmp_path / "file", tmp_path / "pipe")]
    assert kinds == ["folder", "file", "other"]


# Settings as the dataclasses that declare them.


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Thing:
    name: str
    size: Annotated[int, Quantity("bytes", 10, 1e6, whole=True)]
    begin_s: Annotated[float, time_s, Key("begin")] = 0.0
    colour: Colour | None = None
    is_new: bool = False
    counts: tuple[int, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    day: date | None = None


THING = {"name": "a", "size": 64}


def test_a_table_becomes_what_its_dataclass_declares() -> None:
    more = {"begin": "1h30min", "colour": "blue", "is_new": True, "counts": [1, 2]}
    more |= {"shares": {"x": 0.5}, "day": date(2026, 1, 2)}
    thing = reading.read_record(Thing, THING | more, "a thing")
    assert thing == Thing("a", 64, 5400.0, Colour.BLUE, True, (1, 2), {"x": 0.5}, date(2026, 1, 2))
    assert reading.read_record(Thing, {"size": 64}, "a thing", name="b") == Thing("b", 64)
    with pytest.raises(InvalidInput, match="name is not a key of a thing"):
        reading.read_record(Thing, THING, "a thing", name="b")


def test_facts_have_sources_which_are_kept_by_their_keys() -> None:
    facts = Sources(needed=True, by_key={})
    table = {key: {"value": value, "source": "a sheet"} for key, value in THING.items()}
    assert reading.read_record(Thing, table, "a thing", "part.", facts=facts) == Thing("a", 64)
    assert facts.by_key == {"part.name": "a sheet", "part.size": "a sheet"}
    with pytest.raises(InvalidInput, match=r"part\.name has no source"):
        reading.read_record(Thing, THING, "a thing", "part.", facts=facts)
    bare = Sources(needed=False, by_key={})
    assert reading.read_record(Thing, THING, "a thing", facts=bare) == Thing("a", 64)
    for fact, why in (
        ({"source": "x"}, "has no value"),
        ({"value": 1, "source": 4}, "source must be a text"),
        ({"value": 1, "unit": "B"}, "unit is not a key"),
    ):
        with pytest.raises(InvalidInput, match=f"size.{why}"):
            reading.read_record(Thing, THING | {"size": fact}, "a thing", facts=bare)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"nmae": "a"}, 'part.nmae is not a key of a thing; did you mean "name"?'),
        ({"weight": 3}, "part.weight is not a key of a thing; known are name, size, begin"),
        ({"name": None}, "part.name must be a text in quotes, not None"),
        ({"name": " "}, "part.name must be a text in quotes, not ' '"),
        ({"size": "3"}, "part.size must be a number, not '3'"),
        ({"size": True}, "part.size must be a number, not True"),
        ({"size": 0}, "part.size must be a positive number, not 0"),
        ({"size": float("nan")}, "part.size must be a positive number, not nan"),
        ({"size": 9}, "part.size = 9 is outside 10 to 1e+06: the unit is bytes"),
        ({"size": 64.5}, "part.size must be a whole number, not 64.5"),
        ({"begin": "soon"}, "part.begin is a time such as 48h, 30min or 90s, not 'soon'"),
        ({"begin": -1}, "part.begin must be at least 0, not -1"),
        ({"colour": "green"}, "part.colour is 'green'; it is one of red, blue"),
        ({"is_new": 1}, "part.is_new must be true or false, not 1"),
        ({"counts": []}, "part.counts must be a list of values, not []"),
        ({"counts": [0]}, "part.counts must be a whole number from 1 to 100000, not 0"),
        ({"shares": 3}, "part.shares must be a table, written [part.shares], not 3"),
        ({"shares": {"x": "y"}}, "part.shares.x must be a number, not 'y'"),
        ({"day": "2026-01-02"}, "part.day must be a date such as 2026-08-22, not '2026-01-02'"),
    ],
)
def test_what_a_table_may_not_say_is_refused_with_its_key(change: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        reading.read_record(Thing, THING | change, "a thing", "part.")
    assert str(refused.value).startswith(why)


def test_what_a_table_must_say_is_asked_for() -> None:
    with pytest.raises(InvalidInput, match=r"part\.size is missing"):
        reading.read_record(Thing, {"name": "a"}, "a thing", "part.")
    with pytest.raises(InvalidInput, match=r"things\[2\] must be a table, written \[\[things\]\]"):
        reading.read_record(Thing, 3, "a thing", "things[2].")
