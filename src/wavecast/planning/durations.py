"""Times as users write them: `48h`, `30min`, `90s`, `2d`."""

from __future__ import annotations

import re

from wavecast.errors import InvalidInput

_UNITS = {
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "m", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86400.0),
}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")


def seconds_of(text: str, option: str) -> float:
    """The seconds of a time such as `48h` or `1h30min`; a plain number counts seconds.

    Raises:
        InvalidInput: it is no time.
    """
    total, rest = 0.0, text.strip().lower()
    while rest:
        part = _PART.match(rest)
        if part is None or part[2] not in _UNITS or len(part[1]) > 15:
            break
        total += float(part[1]) * _UNITS[part[2]]
        rest = rest[part.end() :]
    if rest or not text.strip():
        raise InvalidInput(f"{option} is a time such as 48h, 30min or 90s, not {text!r}")
    return total
