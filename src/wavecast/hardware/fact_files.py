"""Files of facts: TOML files in which each number may have a source."""

from __future__ import annotations

import difflib
import functools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from wavecast.errors import InvalidInput, UnknownName


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


def names(value: Any, where: str) -> tuple[str, ...]:
    """A check of a list of names, which may be empty."""
    if not isinstance(value, list) or not all(isinstance(a, str) and words_of(a) for a in value):
        raise InvalidInput(f"{where} must be a list of texts in quotes, not {value!r}")
    return tuple(value)


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
