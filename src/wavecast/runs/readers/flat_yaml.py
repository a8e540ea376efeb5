"""The flat part of a YAML file: `name: value` lines, which is all that trackers' files need."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PAIR = re.compile(r"([\w./-]+):\s*(.*?)\s*", re.ASCII)


def read_flat(lines: Iterable[str]) -> dict[str, str]:
    """The pairs at the outermost level, as text; nested ones and lists are passed over."""
    found = {}
    for line in lines:
        pair = _PAIR.fullmatch(line)
        if pair is None or not pair[2] or pair[2][0] in "&*!|>[{#":
            continue
        value = pair[2]
        if value[0] in "'\"" and value[-1] == value[0] and len(value) > 1:
            value = value[1:-1]
        found[pair[1]] = value
    return found
