"""Messages of errors: one line, of a length that can be read."""

from __future__ import annotations

import pickle

import pytest

from wavecast.errors import (
    CaptureError,
    DoubtfulInput,
    InvalidInput,
    UnknownName,
    WavecastError,
    missing_requirement,
)


@pytest.mark.parametrize("kind", [WavecastError, InvalidInput, UnknownName, CaptureError])
def test_what_is_quoted_from_a_file_does_not_make_a_message_long(kind: type[WavecastError]) -> None:
    error = kind(f"x.toml: the key {'x' * 20_000} is unknown; remove it")
    assert str(error).startswith("x.toml: the key xxx")
    assert str(error).endswith("xxx is unknown; remove it")
    assert len(str(error)) < 400


def test_a_message_of_many_words_is_cut_in_the_middle() -> None:
    error = InvalidInput("x.toml: " + "{}, " * 20_000 + "is no number")
    assert len(str(error)) < 800
    assert str(error).endswith("is no number")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\u2028"])
def test_a_message_is_one_line(end: str) -> None:
    assert str(InvalidInput(f"x.log: {end.join('ab')} is no model")) == "x.log: a b is no model"


def test_a_message_of_usual_length_is_unchanged() -> None:
    message = f"/folder/{'long-name/' * 20}x.json: is not JSON;  two blanks stay"
    assert str(InvalidInput(message)) == message


def test_an_error_reaches_another_process_as_it_is() -> None:
    error = pickle.loads(pickle.dumps(InvalidInput("no")))
    assert (type(error), str(error)) == (InvalidInput, "no")


@pytest.mark.parametrize("kind", [InvalidInput, DoubtfulInput])
def test_a_message_cannot_control_a_terminal(kind: type[Exception]) -> None:
    assert str(kind("x.log: a\x1b[2Jb\u202e is no model")) == "x.log: a\\x1b[2Jb\\u202e is no model"


def test_a_package_that_is_always_needed_is_named() -> None:
    assert "needs numpy" in str(missing_requirement(ModuleNotFoundError("no", name="numpy")))
    assert missing_requirement(ModuleNotFoundError("no", name="torch")) is None
    assert missing_requirement(ImportError("no", name="numpy")) is None
