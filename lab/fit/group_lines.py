"""The lines of the card of the learned op models that give the errors and ranges of each group."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence

from lab.places import MODELS


def old_lines() -> list[str]:
    """The lines of the groups on the card that ships today."""
    path = MODELS / "learned.toml"
    if not path.exists():
        return ['"other" = { low = 0.5, high = 2.0 }']
    assert tomllib.loads(path.read_text())["groups"]
    groups = path.read_text().partition("[groups]\n")[2].partition("\n\n")[0]
    return groups.strip().split("\n")


def renewed(lines: Sequence[str]) -> list[str]:
    """The lines of the groups on the card that ships today, with these in place of theirs."""
    by_group = {line.partition(" = ")[0]: line for line in (*old_lines(), *lines)}
    last = by_group.pop('"other"')
    return [*(by_group[group] for group in sorted(by_group)), last]
