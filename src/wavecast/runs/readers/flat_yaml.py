"""The outermost `name: value` lines of a YAML file, which is all that these logs need."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PAIR = re.compile(r"([\w./-]+):(.*)", re.ASCII)


def read_flat(lines: Iterable[str]) -> dict[str, str]:
    """The pairs at the outermost level, as text. Nested values and lists are ignored."""
    pairs = {}
    for line in lines:
        pair = _PAIR.fullmatch(line)
        value = pair[2].strip() if pair else ""
        if pair is None or not value or value[0] in "&*!|>[{#":
            continue
        if value[0] in "'\"" and value[-1] == value[0] and len(value) > 1:
            value = value[1:-1]
        pairs[pair[1]] = value
    return pairs
