"""Where warm-up ends (TBD-4), on synthetic runs."""

from __future__ import annotations

import random
import statistics

import pytest

from wavecast.errors import InvalidInput
from wavecast.runs.run import is_enough, settled_from, settles, stable_from


def run(seed: int, noise: float, iterations: int = 1200) -> tuple[list[float], int]:
    """Iterations with warm-up at 0.2 and tuning at 0.7 of the throughput, and where they end."""
    draw = random.Random(seed)
    warm, tuned = draw.randrange(20, 200), draw.randrange(50, 400)
    seconds = []
    for index in range(iterations):
        speed = 0.2 if index < warm else 0.7 if index < warm + tuned else 1.0
        seconds.append(1 / (speed * max(0.2, draw.gauss(1, noise))))
    return seconds, warm + tuned


@pytest.mark.parametrize(("noise", "latest", "worst"), [(0.02, 30, 0.0035), (0.05, 60, 0.0092)])
def test_the_sample_begins_after_the_last_change_and_not_much_later(
    noise: float, latest: int, worst: float
) -> None:
    for seed in range(40):
        seconds, change = run(seed, noise)
        start = stable_from(seconds)
        assert change <= start <= change + latest
        throughput = statistics.mean(1 / time for time in seconds[start:])
        assert throughput == pytest.approx(1, rel=worst)


def test_a_run_without_warm_up_is_stable_from_its_start() -> None:
    assert stable_from([0.1] * 300) == 0


@pytest.mark.parametrize("warm", [1, 5, 20, 24, 25, 26, 40])
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05])
def test_a_warm_up_shorter_than_half_a_window_is_dropped_too(warm: int, noise: float) -> None:
    for seed in range(10):
        draw = random.Random(seed)
        seconds = [max(0.5, draw.gauss(1, noise)) * (3 if n < warm else 1) for n in range(300)]
        assert warm <= stable_from(seconds) <= warm + 60


def test_noise_alone_is_no_warm_up() -> None:
    for seed in range(40):
        draw = random.Random(seed)
        assert stable_from([draw.gauss(1, 0.03) for _ in range(300)]) == 0


def test_of_a_short_run_the_first_iteration_is_dropped_if_it_is_slow() -> None:
    assert settled_from([5.0] + [1.0] * 40) == 1
    assert settled_from([1.0] * 41) == 0


def test_noise_that_hides_the_end_of_warm_up_is_refused() -> None:
    seconds, _ = run(1, 0.10)
    with pytest.raises(InvalidInput, match="scatter by"):
        stable_from(seconds)


def test_too_few_iterations_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"299 iterations are too few .* at least 300"):
        stable_from([0.1] * 299)


def test_a_run_that_never_settles_is_refused() -> None:
    with pytest.raises(InvalidInput, match="do not become stable"):
        stable_from([0.2] * 560 + [0.1] * 40)


def test_a_run_that_drifts_is_refused() -> None:
    with pytest.raises(InvalidInput, match="scatter by"):
        stable_from([0.1 + 0.001 * index for index in range(600)])


def test_a_short_run_is_enough_once_fifty_of_its_iterations_are_stable() -> None:
    warm, steady = [3.0] * 10, [1.0] * 45
    assert not is_enough(warm + steady)
    assert is_enough(warm + steady + [1.0] * 15)


def test_of_a_run_too_noisy_to_tell_the_last_two_thirds_count() -> None:
    noisy = [1.0, 1.5] * 30
    assert settled_from(noisy) == 20
    assert not is_enough(noisy)
    assert is_enough([1.0, 1.5] * 38)


def test_a_run_settles_if_the_end_of_its_warm_up_is_found() -> None:
    assert settles([5.0] + [1.0] * 40)
    assert not settles([0.1 + 0.001 * index for index in range(600)])  # it drifts to the end
    assert not settles([1.0, 1.5] * 30)  # and this one scatters
