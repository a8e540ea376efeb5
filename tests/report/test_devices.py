"""GPUs as tables that fit every terminal."""

from __future__ import annotations

import pytest
from shell import WIDTHS, shown

import wavecast
from wavecast.hardware.devices import device
from wavecast.report.results import devices as report


@pytest.mark.parametrize("width", WIDTHS)
def test_devices_fit_every_terminal(width: int) -> None:
    lines = shown(report.devices(wavecast.devices(), width), width).splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    assert ("the terminal is too narrow: " in " ".join(lines)) == (width < 123)


@pytest.mark.parametrize("width", WIDTHS)
def test_all_facts_of_a_device_are_shown_at_every_width(width: int) -> None:
    gpu = device("h200-sxm")
    lines = shown(report.device_facts(gpu), width).splitlines()
    assert max(map(len, lines)) <= width
    for name in (*gpu.sources, *(f"measured {name}" for name in gpu.measured)):
        assert any(line.startswith(f"{name} ") for line in lines), name
