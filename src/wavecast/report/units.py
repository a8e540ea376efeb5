"""Numbers as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A time in the unit that fits: 12.3 ms."""
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if _rounded(seconds / size) >= 1:
            return f"{three_digits(seconds / size)} {unit}"
    return f"{three_digits(seconds / 1e-6)} us"


def quantity(value: float, unit: str = "") -> str:
    """A large number with a prefix: 3.12 TFLOP."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if _rounded(value / size) >= 1:
            return f"{three_digits(value / size)} {prefix}{unit}"
    return f"{three_digits(value)} {unit}".rstrip()


def memory(nbytes: float) -> str:
    """Bytes in binary units: 79.6 GiB."""
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if _rounded(nbytes / size) >= 1:
            return f"{three_digits(nbytes / size)} {unit}"
    return f"{nbytes:.0f} B"


def count(value: float) -> str:
    """A number of things, thousands apart: 12,345; with three digits where there are few: 1.23."""
    if value != int(value) and value < 100:
        return three_digits(value)
    return f"{value:,.0f}"


def three_digits(value: float) -> str:
    """A number with three digits that mean something: 1230, 123, 12.3, 1.23."""
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def fact(name: str, value: float | tuple[int, int]) -> str:
    """A device's fact in the unit that its name ends with."""
    if isinstance(value, tuple):
        return ".".join(map(str, value))
    for ending, unit in (("_bytes_per_s", "B/s"), ("_hz", "Hz"), ("_flops", "FLOP/s")):
        if name.endswith(ending):
            return quantity(value, unit)
    if "_bytes" in name:
        return memory(value)
    return f"{value:g} W" if name.endswith("_w") else count(value)


def _rounded(value: float) -> float:
    """As three digits show it, so that 999.7 us is 1.00 ms."""
    return float(f"{value:.3g}")
