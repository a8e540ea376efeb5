"""Memory tables fit every terminal, and no cell is cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import step
from shell import WIDTHS, shown

from wavecast.footprint.advice import advise
from wavecast.footprint.memory import memory
from wavecast.report.results import memory as report
from wavecast.traces.step import Trace


def with_long_names() -> Trace:
    """A step whose modules have long names."""
    made = step()
    calls = tuple(
        replace(call, module=f"encoder.layers.17.attention.{call.module}") for call in made.calls
    )
    return replace(made, calls=calls)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_cell_of_a_memory_table_is_cut(width: int) -> None:
    step_memory = memory(with_long_names(), "l4")
    out = shown(report.memories("step", [step_memory], width, advise(step_memory)), width)
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= width
    assert "activations" in out
    assert "whole process" in out


def test_gpus_on_which_a_step_does_not_fit_come_last_in_the_table() -> None:
    memories = [memory(step(state_bytes=100 << 20), gpu) for gpu in ("t4", "l4", "gtx-980")]
    out = shown(report.fitting_gpus("step", memories, 80))
    assert out.index("\nl4 ") < out.index("\ngtx-980 ") < out.index("\nt4 ")
