"""How slow the host of a source must have been."""

from __future__ import annotations

import pytest

from lab.score.sources_hosts import FACTORS, HostedStep, best_factor, left_out, reasons


def _step(gpus: int, host_s: float, gpu_s: float, slow: float) -> HostedStep:
    """A step that takes the longer of host and GPU, measured with a slower host."""
    times = tuple(max(host_s * factor, gpu_s) for factor in FACTORS)
    return HostedStep(gpus, "TP", max(host_s * slow, gpu_s), times)


STEPS = [_step(gpus, host, 1.0, 1.4) for gpus in (2, 4, 8) for host in (0.1, 2.0, 3.0)]


def test_what_holds_a_step_up_is_told_apart() -> None:
    free, bound, _ = STEPS[:3]
    assert free.share == 0.0
    assert bound.share == pytest.approx(1.0)
    assert bound.needed == pytest.approx(1.4)
    lines = "\n".join(reasons(STEPS))
    assert "| the GPU holds them up | 3 | 1.00 |" in lines
    assert "| the host holds them up | 6 | 1.40 | 1.40 (1.40 to 1.40) |" in lines


def test_the_factor_comes_from_other_numbers_of_gpus() -> None:
    assert best_factor(STEPS) == pytest.approx(1.4)
    other = [*STEPS[:6], *(_step(8, 2.0, 1.0, 2.0) for _ in range(3))]
    line = next(line for line in left_out(other) if line.startswith("| 8 |"))
    assert line == "| 8 | 3 | 1.40 | 30.0% | 50.0% |"
