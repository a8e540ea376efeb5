"""Profiles fit every terminal, and the names of ops stay readable."""

from __future__ import annotations

import pytest
from made import step
from shell import WIDTHS, shown

from wavecast.report import profiles as report
from wavecast.steps.profile import profile_predicted
from wavecast.steps.request import predict


@pytest.mark.parametrize("width", WIDTHS)
def test_names_of_ops_are_on_one_line_at_every_width(width: int) -> None:
    profiles = [profile_predicted("step", predict(step(), gpu)) for gpu in ("t4", "l4")]
    out = shown(report.profiles("step", profiles, width), width)
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= width
    assert "aten._to_copy " in out
    assert "host: " in out
