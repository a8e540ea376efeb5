"""Files of facts: TOML files in which each number may have a source."""

from __future__ import annotations

import difflib
import functools
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from wavecast.errors import InvalidInput, UnknownName


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


# Matching the names that people write to known GPUs and clusters.


_SHOWN = 12
"""How many candidates a message lists."""


class Named(Protocol):
    """A known thing of hardware: a GPU or a cluster."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Its other names."""


Thing = TypeVar("Thing", bound=Named)
Keys = Callable[[Thing], Iterable[frozenset[str]]]

_BRANDS = frozenset(
    {"nvidia", "amd", "ati", "intel", "corporation", "geforce", "tesla", "instinct", "radeon"}
    | {"generation", "edition", "graphics", "card", "gpu"}
)


@functools.lru_cache(maxsize=4096)
def words_of(name: str) -> frozenset[str]:
    """The words that identify a device: "NVIDIA A100-SXM4-80GB" gives a100, sxm and 80gb."""
    text = name.lower().replace("pci-e", "pcie")
    text = re.sub(r"(geforce|quadro|tesla|titan|super|rtx|gtx|pcie|sxm\d?)", r" \1 ", text)
    text = re.sub(r"\b(rx|pro)(?=\d)", r"\1 ", text)
    text = re.sub(r"(?<=\d)(ti|xtx|xt|ada)\b", r" \1", text)
    # A socket's number follows from the GPU's generation, but V100 exists as SXM2 and SXM3.
    text = re.sub(r"\bsxm[2456]\b", "sxm", text)
    text = re.sub(r"\b(\d+) ?(gb|gib|g)\b", r"\1gb", text)
    return frozenset(re.findall(r"[a-z0-9]+", text)) - _BRANDS


def keys_of(thing: Named) -> list[frozenset[str]]:
    """The words of each name of a thing."""
    return [words_of(name) for name in (thing.id, thing.name, *thing.aliases)]


def the_one(name: str, things: Sequence[Thing], what: str, keys: Keys[Thing] = keys_of) -> Thing:
    """The thing of a name: the one with exactly its words, else with these words and others.

    Args:
        name: what the user wrote.
        things: the known things.
        what: what they are, "device" or "cluster", for messages.
        keys: the sets of words that are full names of a thing.

    Raises:
        UnknownName: the name fits none of them or several; the message names the candidates.
    """
    words = words_of(name)
    found = [one for one in things if words in keys(one)]
    if not found and words:
        found = [one for one in things if any(words <= key for key in keys(one))]
    if len(found) == 1:
        return found[0]
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        listed = _quoted(found[:_SHOWN])
        raise UnknownName(f'"{name}" fits several {what}s: {listed}{more}; say which')
    near = _nearest(name, things, keys)
    hint = f"did you mean {_quoted(near, ' or ')}? " if near else ""
    raise UnknownName(f'unknown {what} "{name}"; {hint}list them with "wavecast {what}s"')


_LONGEST_NAME = 200
"""The longest name that is compared with those of GPUs. A profile may hold any."""


def _nearest(name: str, things: Iterable[Thing], keys: Keys[Thing]) -> list[Thing]:
    """Up to five things with similar names, the most similar first."""
    wanted = "".join(sorted(words_of(name))) or name.lower()
    if len(wanted) > _LONGEST_NAME:  # the time to compare grows with the lengths of both
        return []

    def likeness(thing: Thing) -> float:
        joined = ("".join(sorted(key)) for key in keys(thing))
        single = (word for key in keys(thing) for word in key if any(c.isdigit() for c in word))
        return max(
            difflib.SequenceMatcher(None, wanted, text).ratio() for text in (*joined, *single)
        )

    scored = [(likeness(thing), thing) for thing in things]
    enough = max(0.6, max((score for score, _ in scored), default=0) - 0.15)
    best = sorted((pair for pair in scored if pair[0] >= enough), key=lambda pair: -pair[0])
    return [thing for _, thing in best[:5]]


def _quoted(things: Iterable[Named], separator: str = ", ") -> str:
    return separator.join(f'"{thing.id}"' for thing in things)
