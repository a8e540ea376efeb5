"""Numbers as people read them: every unit that a table or page shows is written here."""

from __future__ import annotations

from collections.abc import Callable

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
    if low_s is None or high_s is None:
        return UNKNOWN
    return f"{duration(low_s)} - {duration(high_s)}"


def quantity(value: float, unit: str = "") -> str:
    """A large number with a decimal prefix: `3.12 TFLOP`."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if _rounded(value / size) >= 1:
            return f"{three_digits(value / size)} {prefix}{unit}"
    return f"{three_digits(value)} {unit}".rstrip()


def memory(nbytes: float) -> str:
    """A number of bytes in binary units: `79.6 GiB`."""
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if _rounded(nbytes / size) >= 1:
            return f"{three_digits(nbytes / size)} {unit}"
    return f"{nbytes:.0f} B"


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


def fact(name: str, value: float | tuple[int, int]) -> str:
    """The value of a device's fact, in the unit that the fact's name ends with."""
    if isinstance(value, tuple):
        return ".".join(map(str, value))
    for ending, unit in (("_bytes_per_s", "B/s"), ("_hz", "Hz"), ("_flops", "FLOP/s")):
        if name.endswith(ending):
            return quantity(value, unit)
    if "_bytes" in name:
        return memory(value)
    return f"{value:g} W" if name.endswith("_w") else count(value)


def or_unknown(value: float | None, show: Callable[[float], str]) -> str:
    """A value as `show` writes it, or `?` when it is not known."""
    return UNKNOWN if value is None else show(value)


def _rounded(value: float) -> float:
    """The value as three digits show it, so that 999.7 us becomes 1.00 ms."""
    return float(f"{value:.3g}")
