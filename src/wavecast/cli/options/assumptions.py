"""The option `--assume`: what a traced step reads from the GPU, by line of code."""

from __future__ import annotations

from typing import Annotated

import typer

from wavecast.errors import InvalidInput

AssumeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--assume",
        metavar="FILE:LINE=VALUE",
        help="The value that a line of your code reads from the GPU, or the number of rows of a "
        "result whose size depends on data; repeat for more lines. VALUE is a number, true or "
        "false, or several with commas, which are read in order.",
    ),
]

_WORDS = {"true": True, "false": False}


def given_values(assume: list[str]) -> dict[str, list[bool | float]]:
    """The values of `--assume`, by line of code."""
    values: dict[str, list[bool | float]] = {}
    for text in assume:
        line, separator, numbers = text.rpartition("=")
        if not separator:
            raise InvalidInput(f"--assume {text} has no value; write FILE:LINE=VALUE")
        if line in values:
            raise InvalidInput(f"--assume gives values for {line} twice; separate them by commas")
        values[line] = [_number(number, text) for number in numbers.split(",")]
    return values


def _number(number: str, text: str) -> bool | float:
    word = number.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    try:
        return int(word)
    except ValueError:
        pass
    try:
        return float(word)
    except ValueError as error:
        raise InvalidInput(
            f"--assume {text}: {number!r} is no number; write a number, true or false"
        ) from error
