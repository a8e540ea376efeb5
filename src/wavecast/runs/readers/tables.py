"""Tables of runs as CSV, JSON or JSON Lines, such as `wavecast runs export` writes.

Each row or object is a run. Columns have the names of `Run`'s fields or of `ALIASES`. One wrong row
refuses the whole file. Repeated rows count once.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput, prefixed
from wavecast.runs.readers.text import (
    Doubts,
    number_of,
    parse_json,
    read_lines,
    read_whole,
    whole_of,
)
from wavecast.runs.readers.timing import Given
from wavecast.runs.run import COLUMNS, TEXTS, WHOLE, Run, check

ALIASES = {
    **{"model_name": "model", "network": "model", "net": "model"},
    **{"batch_size": "batch", "global_batch_size": "batch", "global_batch": "batch"},
    **{"iters": "iterations", "steps": "iterations", "num_iterations": "iterations"},
    **dict.fromkeys(("time_s", "seconds_s", "duration_s", "runtime_s"), "seconds"),
    **{"total_seconds": "total_s", "overall_s": "total_s", "all_iterations": "total_iterations"},
    **{"gpu_name": "gpu", "device": "gpu", "n_gpus": "gpus", "num_gpus": "gpus"},
}
REQUIRED = ("model", "batch", "iterations", "seconds")
_MOST_BYTES = 256 << 20
_MOST_REMEMBERED = 1_000_000
"""How many rows are remembered to find repeated ones, so that memory stays bounded."""
_LINES = (".jsonl", ".ndjson")
_VALUES = attrgetter(*(name for name in COLUMNS if name != "source"))


def recognises(path: Path, head: bytes) -> bool:
    """Whether a file begins like a table with the columns of runs."""
    text = head.decode(errors="replace").removeprefix("\ufeff")
    if text.lstrip()[:1] in ("{", "["):
        return all(f'"{name}"' in text for name in ("iterations", "seconds"))
    names = _names(text.split("\n", 1)[0].rstrip("\r"))
    return {"iterations", "seconds"} <= set(names)


def read(path: Path, given: Given, doubts: Doubts) -> Iterator[Run]:
    """The runs of a table, one by one."""
    facts = given.known()
    seen: set[int] = set()
    for line, values in _rows(path, doubts):
        run = _run(path, line, values, facts)
        key = hash(_VALUES(run))  # takes a tenth of the memory of the values
        if key in seen:
            doubts.tell(f"line {line}", "repeats an earlier run, which counts once")
            continue
        if len(seen) >= _MOST_REMEMBERED:
            seen.clear()
        seen.add(key)
        yield run


def _rows(path: Path, doubts: Doubts) -> Iterator[tuple[int, dict[str, Any]]]:
    if path.suffix.lower() in _LINES:
        return _json_lines(path, doubts)
    if path.suffix.lower() == ".json":
        return _json_items(path, doubts)
    return _csv_rows(path, doubts)


def _csv_rows(path: Path, doubts: Doubts) -> Iterator[tuple[int, dict[str, Any]]]:
    lines = (line + "\n" for _, line in read_lines(path, doubts, strict=True))
    head = next(lines, None)
    if head is None:
        raise InvalidInput(f"{path}: is empty")
    names = _names(head.rstrip("\n"))
    if twice := {name for name in names if names.count(name) > 1}:
        raise InvalidInput(f"{path}: line 1 has the same column twice: {', '.join(sorted(twice))}")
    _tell_unknown(names, doubts)
    rows = csv.reader(lines, delimiter=_delimiter(head), strict=True)
    try:
        for row in rows:
            line = rows.line_num + 1
            if not row:
                continue
            if len(row) != len(names):
                raise InvalidInput(
                    f"{path}: line {line} has {len(row)} values, but line 1 has {len(names)}"
                )
            yield line, dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise InvalidInput(f"{path}: line {rows.line_num + 1}: is not CSV: {error}") from None


def _json_lines(path: Path, doubts: Doubts) -> Iterator[tuple[int, dict[str, Any]]]:
    reported: set[str] = set()
    for line, text in read_lines(path, doubts, strict=True):
        if text.strip():
            values = parse_json(text, f"{path}: line {line}")
            yield line, _named(path, line, values, doubts, reported)


def _json_items(path: Path, doubts: Doubts) -> Iterator[tuple[int, dict[str, Any]]]:
    text = read_whole(path, _MOST_BYTES)
    if not isinstance(parse_json(text, str(path)), list):
        raise InvalidInput(f"{path}: is not a list of runs; save one object per line as FILE.jsonl")
    reported: set[str] = set()
    for line, values in _items(text, text.index("[")):
        yield line, _named(path, line, values, doubts, reported)


def _items(text: str, start: int) -> Iterator[tuple[int, Any]]:
    """The items of a list in valid JSON that begins at `start`, each with its line number."""
    decoder = json.JSONDecoder()
    line, counted, place = 1, 0, start + 1
    while True:
        while text[place] in " \t\r\n,":
            place += 1
        if text[place] == "]":
            return
        line += text.count("\n", counted, place)
        counted = place
        value, place = decoder.raw_decode(text, place)
        yield line, value


def _named(
    path: Path, line: int, values: object, doubts: Doubts, reported: set[str]
) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise InvalidInput(f"{path}: line {line} is not an object with the values of a run")
    named = {_name(name): value for name, value in values.items()}
    if len(named) < len(values):
        raise InvalidInput(f"{path}: line {line} has the same value under two names")
    _tell_unknown(named.keys() - reported, doubts, line)
    reported |= named.keys()
    return named


def _run(path: Path, line: int, values: dict[str, Any], given: dict[str, Any]) -> Run:
    place = f"{path}: line {line}"
    fields = dict(given)
    for name in COLUMNS:
        if name not in fields and (value := values.get(name)) not in (None, ""):
            fields[name] = _value(place, name, value)
    if missing := [name for name in REQUIRED if name not in fields]:
        raise InvalidInput(f"{place}: does not say {' and '.join(missing)}")
    fields.setdefault("source", f"{path}:{line}")
    with prefixed(f"{place}: "):
        return check(Run(**fields))


def _value(place: str, name: str, value: Any) -> Any:
    if name in TEXTS:
        if not isinstance(value, str):
            raise InvalidInput(f"{place}: {name} is {ascii(value)[:60]}, but must be text")
        return value.strip()
    number = whole_of(value) if name in WHOLE else number_of(value)
    if number is None:
        kind = "a whole number" if name in WHOLE else "a finite number"
        raise InvalidInput(f"{place}: {name} is {ascii(value)[:60]}, but must be {kind}")
    return number


def _tell_unknown(names: Iterable[str], doubts: Doubts, line: int = 1) -> None:
    if unknown := sorted(set(names) - set(COLUMNS) - {""}):
        doubts.tell(
            f"line {line}",
            f"unknown columns are left out: {', '.join(unknown)[:200]}",
        )


def _names(head: str) -> list[str]:
    try:
        return [_name(name) for name in next(csv.reader([head], delimiter=_delimiter(head)), [])]
    except csv.Error:
        return []


def _name(name: str) -> str:
    plain = name.strip().lower().replace(" ", "_")
    return ALIASES.get(plain, plain)


def _delimiter(head: str) -> str:
    return max(",;\t", key=head.count)
