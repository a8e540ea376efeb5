"""Numbers as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A time in the unit that fits: 12.3 ms."""
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{three_digits(seconds / size)} {unit}"
    return f"{three_digits(seconds / 1e-6)} us"


def quantity(value: float, unit: str = "") -> str:
    """A large number with a prefix: 3.12 TFLOP."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{three_digits(value / size)} {prefix}{unit}".rstrip()
    return f"{three_digits(value)} {unit}".rstrip()


def memory(nbytes: float) -> str:
    """Bytes in binary units: 79.6 GiB."""
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= size:
            return f"{three_digits(nbytes / size)} {unit}"
    return f"{nbytes:.0f} B"


def three_digits(value: float) -> str:
    """A number with three digits that mean something: 1230, 123, 12.3, 1.23."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
