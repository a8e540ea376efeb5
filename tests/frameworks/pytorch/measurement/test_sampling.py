"""How many iterations of a step are sampled, on a GPU that is played by a clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

torch = pytest.importorskip("torch")

from wavecast.frameworks.pytorch.measurement import sampling  # noqa: E402


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    done: list[int] = []
    monkeypatch.setattr(sampling, "mark", lambda _: float(len(done)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    clock = "wavecast.frameworks.pytorch.measurement.sampling.time.perf_counter"
    monkeypatch.setattr(clock, lambda: float(len(done)))
    return done


def sampled(steps: list[int], limit_s: float, least: int, enough: int) -> int:
    def is_enough(seconds: Sequence[float]) -> bool:
        return len(seconds) >= enough

    seconds = sampling._iterations(lambda: steps.append(1), is_enough, limit_s, least)
    assert len(seconds) == len(steps)
    return len(seconds)


@pytest.mark.parametrize(
    ("limit_s", "least", "enough", "iterations"),
    [
        (25, 0, 0, 30),
        (25, 0, 200, 200),
        (25, 3000, 0, 3000),
        (25, 0, 10**9, sampling.MOST),
        (25, 3000, 10**9, 3000),
        (4500, 3000, 0, 3000),
    ],
    ids=["time", "enough", "thousands", "never enough", "thousands, never enough", "no more"],
)
def test_it_runs_for_its_time_and_for_as_many_iterations_as_asked(
    steps: list[int], limit_s: float, least: int, enough: int, iterations: int
) -> None:
    assert sampled(steps, limit_s, least, enough) == iterations
