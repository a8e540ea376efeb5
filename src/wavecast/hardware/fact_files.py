"""Files of facts: TOML files in which each number may have a source."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from wavecast.errors import InvalidInput
from wavecast.hardware.names import words_of


class NumberRange(NamedTuple):
    """The unit of a number, and the range in which it must lie.

    The range catches values in a wrong unit (MHz, GB, Gb/s), the most common mistake.
    """

    unit: str
    low: float
    high: float
    whole: bool = False


def user_files(folder: Path, variable: str) -> tuple[Path, ...]:
    """The user's files of facts: those in a folder, then those that an environment variable names.

    A later file replaces an earlier one with the same id.
    """
    files = sorted(folder.glob("*.toml")) if folder.is_dir() else []
    # As in $PATH, the first entry wins.
    for entry in filter(None, reversed(os.environ.get(variable, "").split(os.pathsep))):
        path = Path(entry).expanduser()
        if not path.is_dir() and not path.is_file():
            raise InvalidInput(
                f"{variable} names {path}, which does not exist; it takes folders and .toml files"
            )
        files.extend(sorted(path.glob("*.toml")) if path.is_dir() else [path])
    return tuple(files)


def refuse_unknown(
    table: Mapping[str, Any], allowed: Iterable[str], what: str, where: str = ""
) -> None:
    """Raise InvalidInput for a key that is none of those allowed; names the nearest."""
    allowed = tuple(allowed)
    for key in table:
        if key not in allowed:
            near = difflib.get_close_matches(key, allowed, n=1)
            hint = f'did you mean "{near[0]}"?' if near else f"known are {', '.join(allowed)}"
            raise InvalidInput(f"{where}{key} is not a key of {what}; {hint}")


def text_of(table: Mapping[str, Any], key: str) -> str:
    """The text of a key, which must be there."""
    if key not in table:
        raise InvalidInput(f"{key} is missing")
    text = table[key]
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(f"{key} must be a text in quotes, not {text!r}")
    return text


def table_of(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The table of a key; an empty one if there is none."""
    inner = table.get(key, {})
    if not isinstance(inner, dict):
        raise InvalidInput(f"{key} must be a table, written [{key}], not {inner!r}")
    return inner


def names_of(table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """The list of names of a key; an empty one if there is none."""
    names = table.get(key, [])
    if not isinstance(names, list) or not all(isinstance(a, str) and words_of(a) for a in names):
        raise InvalidInput(f"{key} must be a list of texts in quotes, not {names!r}")
    return tuple(names)


def value_and_source(raw: object, where: str, what: str, need_source: bool) -> tuple[object, str]:
    """The value and source of ``{ value = 1.0, source = "..." }``; a bare value has no source."""
    if not isinstance(raw, dict):
        raw = {"value": raw}
    refuse_unknown(raw, ("value", "source"), what, f"{where}.")
    if "value" not in raw:
        raise InvalidInput(f"{where} has no value")
    source = raw.get("source", "")
    if not isinstance(source, str):
        raise InvalidInput(f"{where}.source must be a text in quotes, not {source!r}")
    if need_source and not source.strip():
        raise InvalidInput(f"{where} has no source")
    return raw["value"], source


def number_of(value: object, unit: NumberRange, where: str) -> float:
    """A number that lies in the range of its unit; an int where the unit is a count."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"{where} must be a number, not {value!r}")
    if not 0 < value < math.inf:
        raise InvalidInput(f"{where} must be a positive number, not {value}")
    if not unit.low <= value <= unit.high:
        raise InvalidInput(
            f"{where} = {value} is outside {unit.low:g} to {unit.high:g}: the unit is {unit.unit}"
        )
    if not unit.whole:
        return float(value)
    if value != int(value):
        raise InvalidInput(f"{where} must be a whole number, not {value}")
    return int(value)


def slug(stem: str, what: str = "device") -> str:
    """The id that follows from the name of a file of facts."""
    slug = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if not slug:
        raise InvalidInput(f"the file's name is the {what}'s id and needs a letter or a digit")
    return slug
