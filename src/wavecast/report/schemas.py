"""The JSON schemas of what commands print with `--json`, and the mark that names them.

A schema has the name of its command. Its version grows when a key goes away or means something
else; new keys may come at any time.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from wavecast.errors import UnknownName
from wavecast.files import shipped

MARK = "schema"
"""The key that names the schema, in an object or in each object of a list."""
_SUFFIX = ".schema.json"


def schema_names() -> tuple[str, ...]:
    """The names of all schemas: those of commands, with `-` for blanks."""
    files = shipped("schemas").glob(f"*{_SUFFIX}")
    return tuple(sorted(path.name.removesuffix(_SUFFIX) for path in files))


def schema_text(name: str) -> str:
    """The schema of a command, as it ships.

    Raises:
        UnknownName: no command of this name prints JSON.
    """
    wanted = "-".join(name.split())
    names = schema_names()
    if wanted not in names:
        near = difflib.get_close_matches(wanted, names, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
        raise UnknownName(f"there is no schema {name!r}; {hint}")
    return shipped(f"schemas/{wanted}{_SUFFIX}").read_text(encoding="utf-8")


@cache
def mark_of(name: str) -> str | None:
    """What the output of a command says about its schema: "wavecast/predict/1"."""
    if name not in schema_names():
        return None
    return str(json.loads(schema_text(name))["title"])


def marked(value: Any, name: str) -> Any:
    """The output of a command, with the name and version of its schema."""
    mark = mark_of(name)
    if mark is None:
        return value
    if isinstance(value, Mapping):
        return {MARK: mark, **value}
    if isinstance(value, list):
        return [{MARK: mark, **row} if isinstance(row, Mapping) else row for row in value]
    return value
