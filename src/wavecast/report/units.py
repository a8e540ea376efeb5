"""Numbers as people read them: every unit that a table or page shows is written here."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial

UNKNOWN = "?"
"""The cell of a table whose value is not known."""


def duration(seconds: float) -> str:
    """A time in microseconds, milliseconds or seconds: `12.3 ms`."""
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if _rounded(seconds / size) >= 1:
            return f"{three_digits(seconds / size)} {unit}"
    return f"{three_digits(seconds / 1e-6)} us"


def long_duration(seconds: float) -> str:
    """A time of any length, up to days: `2.50 h`."""
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{three_digits(seconds / size)} {unit}"
    return duration(seconds)


def time_range(low_s: float | None, high_s: float | None) -> str:
    """A range of times: `268 ms - 425 ms`; `?` when it is not known."""
    return span(low_s, high_s, duration)


def quantity(value: float, unit: str = "") -> str:
    """A large number with a decimal prefix: `3.12 TFLOP`."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if _rounded(value / size) >= 1:
            return f"{three_digits(value / size)} {prefix}{unit}"
    return f"{three_digits(value)} {unit}".rstrip()


def memory(nbytes: float) -> str:
    """A number of bytes in binary units: `79.6 GiB`."""
    sizes = (
        (1 << 50, "PiB"),
        (1 << 40, "TiB"),
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
    )
    for size, unit in sizes:
        if _rounded(nbytes / size) >= 1:
            return f"{three_digits(nbytes / size)} {unit}"
    return f"{nbytes:.0f} B"


def of_capacity(nbytes: float, capacity: float) -> str:
    """A size beside that of what holds it: `20.4 of 24 GiB`."""
    return f"{three_digits(nbytes / (1 << 30))} of {capacity / (1 << 30):.0f} GiB"


def bytes_of_gib(gib: float) -> int:
    """The bytes of a number of GiB, as a user gives it."""
    return round(gib * (1 << 30))


def count(value: float) -> str:
    """A number of things with thousands separated, `12,345`; small fractions as `1.23`."""
    if value != int(value) and value < 100:
        return three_digits(value)
    return f"{value:,.0f}"


def runs(number: int) -> str:
    """A number of runs: `1 run`, `12,345 runs`."""
    return "1 run" if number == 1 else f"{number:,} runs"


def percent(share: float, digits: int = 0) -> str:
    """A share of 1 as a percentage: `42%`."""
    return f"{share:.{digits}%}"


def three_digits(value: float) -> str:
    """A number with three significant digits: `1230`, `123`, `12.3`, `1.23`."""
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def money(usd: float) -> str:
    """An amount in USD: `$0.0123`, `$12.30`, `$1,230`."""
    if usd >= 1000:
        return f"${usd:,.0f}"
    return f"${usd:.2f}" if usd >= 0.1 else f"${usd:.3g}"


def energy(kwh: float) -> str:
    """An amount of energy: `12.3 kWh`."""
    return f"{count(kwh) if kwh >= 1000 else three_digits(kwh)} kWh"


def span(low: float | None, high: float | None, show: Callable[[float], str]) -> str:
    """A range of values as `show` writes them, `$1.00 - $2.00`; `?` when it is not known."""
    return UNKNOWN if low is None or high is None else f"{show(low)} - {show(high)}"


_ENDINGS: dict[str, tuple[str, Callable[[float], str]]] = {
    "bytes_per_s": ("", partial(quantity, unit="B/s")),
    "_per_s": ("/s", count),
    "_bytes": ("", memory),
    "nbytes": ("", memory),
    "_hz": ("", partial(quantity, unit="Hz")),
    "_flops": ("", partial(quantity, unit="FLOP/s")),
    "flops": ("", partial(quantity, unit="FLOP")),
    "_w": ("", "{:g} W".format),
    "seconds": ("", duration),
    "_s": ("", duration),
    "_kwh": ("", energy),
    "usd": ("", money),
    "usd_per_hour": ("$/h", "{:.2f}".format),
    "share": ("", percent),
    "utilisation": ("", percent),
    "efficiency": ("", percent),
    "relative": ("", percent),
    "mape": ("", partial(percent, digits=1)),
}
"""How numbers are written, and what their headings end with, by the end of a name."""


def _unit(name: str) -> tuple[str, str, Callable[[float], str]]:
    """The end of a name that states a unit, and what `_ENDINGS` says about it."""
    for ending, (word, show) in _ENDINGS.items():
        if name.endswith(ending):
            return ending, word, show
    return "", "", memory if "_bytes" in name else count


def text(name: str, value: object) -> str:
    """A value in the unit that ends its name; `?` when it is not known."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _unit(name)[2](value)
    if isinstance(value, str | datetime.date):
        return str(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {text(name, part)}" for key, part in value.items())
    if isinstance(value, Iterable):
        parts = [text("", part) for part in value]
        return (".".join if name.endswith("capability") else ", ".join)(parts)
    return str(getattr(value, "id", "") or getattr(value, "name", "") or value)


def heading(name: str) -> str:
    """The heading of a field by its name, without the unit: `peak` for `peak_bytes`."""
    ending, word, _ = _unit(name)
    bare = name.removesuffix(ending) if "_" in ending else name
    return f"{bare.strip('_').replace('_', ' ')}{word}" or name


def or_unknown(value: float | None, show: Callable[[float], str]) -> str:
    """A value as `show` writes it, or `?` when it is not known."""
    return UNKNOWN if value is None else show(value)


def _rounded(value: float) -> float:
    """The value as three digits show it, so that 999.7 us becomes 1.00 ms."""
    return float(f"{value:.3g}")


# Text that is safe to show: characters that control a terminal are written as escapes.
#
# Names in files may hold escape sequences that move the cursor, change the title of the window or
# reverse the direction of writing. Shown as they are, they could hide or forge a result.


_UNSAFE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 except tab and newline, DEL, C1
    "\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff"  # surrogates: bytes of a path that are not UTF-8, or broken JSON
    "\U000e0000-\U000e007f"  # invisible tags
)
_CONTROL = re.compile(f"[{_UNSAFE}]")
_CONTROL_OR_LINE_END = re.compile(f"[\t\n{_UNSAFE}]")


def visible(text: str) -> str:
    r"""The text with control characters as escapes such as \x1b; tabs and newlines stay."""
    return _CONTROL.sub(_escape, text)


def one_line(text: str) -> str:
    r"""The text as one line: tabs and newlines become escapes as well, such as \n."""
    return _CONTROL_OR_LINE_END.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return repr(match[0])[1:-1]
