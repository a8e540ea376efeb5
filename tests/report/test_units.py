"""Numbers as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavecast.report.units import count, duration, memory, quantity, text, three_digits


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        (0, "0.00 us"),
        (1.234e-7, "0.12 us"),
        (12.34e-6, "12.3 us"),
        (0.9996e-3, "1.00 ms"),
        (0.1234, "123 ms"),
        (0.99996, "1.00 s"),
        (9.996, "10.0 s"),
        (99.96, "100 s"),
        (12345, "12345 s"),
    ],
)
def test_durations_have_three_digits_in_the_unit_that_fits(seconds: float, wanted: str) -> None:
    assert duration(seconds) == wanted


def test_quantities_and_memory_have_prefixes() -> None:
    assert quantity(3.123e12, "FLOP") == "3.12 TFLOP"
    assert quantity(999.9e9, "B/s") == "1.00 TB/s"
    assert quantity(12.5) == "12.5"
    assert quantity(125_000) == "125 k"
    assert memory(24 << 30) == "24.0 GiB"
    assert memory((1 << 20) - 1) == "1.00 MiB"
    assert memory(12) == "12 B"
    assert count(65536) == "65,536"
    assert count(1.234) == "1.23"
    assert count(0) == "0"


def test_facts_are_shown_in_the_unit_of_their_name() -> None:
    assert text("boost_clock_hz", 1.98e9) == "1.98 GHz"
    assert text("memory_bytes", 80 << 30) == "80.0 GiB"
    assert text("shared_bytes_per_sm", 228 << 10) == "228 KiB"
    assert text("pcie_bytes_per_s", 6.4e10) == "64.0 GB/s"
    assert text("bf16_tensor_flops", 9.9e14) == "990 TFLOP/s"
    assert text("tdp_w", 700.0) == "700 W"
    assert text("sm_count", 132) == "132"
    assert text("compute_capability", (9, 0)) == "9.0"


@given(st.floats(1e-9, 1e12))
def test_three_digits_are_near_the_number(value: float) -> None:
    assert float(three_digits(value)) == pytest.approx(value, rel=5.1e-3, abs=5.1e-3)
