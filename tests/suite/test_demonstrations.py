"""Small models of six domains learn their tasks; without learning they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from wavecast.suite import benchmark, benchmarks  # noqa: E402
from wavecast.suite.demonstrations import (  # noqa: E402
    DEMONSTRATIONS,
    EVERY,
    Demonstration,
    _best_path,
    _distance,
    train,
    train_to_quality,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("the_same_numbers_on_one_thread")]

BY_DOMAIN = {demonstration.domain: demonstration for demonstration in DEMONSTRATIONS}
every_demonstration = pytest.mark.parametrize(
    "demonstration", DEMONSTRATIONS, ids=lambda demonstration: demonstration.domain
)


def test_each_of_tbds_six_domains_has_a_training_of_one_of_its_models() -> None:
    tbds = {model.domain for model in benchmarks() if model.tags.tbd}
    assert set(BY_DOMAIN) == tbds
    assert len(DEMONSTRATIONS) == len(tbds) == 6
    for demonstration in DEMONSTRATIONS:
        assert benchmark(demonstration.model).domain == demonstration.domain
        assert benchmark(demonstration.model).tags.tbd


@every_demonstration
def test_it_reaches_the_quality_that_its_task_asks_for(demonstration: Demonstration) -> None:
    training = train(demonstration)
    assert training.learned
    assert training.before < 0.6 * training.needed


@every_demonstration
def test_without_a_learning_rate_nothing_is_learned(demonstration: Demonstration) -> None:
    # A few steps suffice: weights that never change are as bad after many.
    training = train(replace(demonstration, steps=3), learning_rate=0.0)
    assert not training.learned


def test_a_training_is_repeatable_and_leaves_torchs_generator_alone() -> None:
    short = replace(BY_DOMAIN["reinforcement learning"], steps=5)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    assert train(short) == train(short)
    assert torch.equal(torch.get_rng_state(), state)
    assert train(short).reached != train(short, seed=2).reached


def test_repeated_letters_count_once_unless_a_blank_is_between_them() -> None:
    path = torch.nn.functional.one_hot(torch.tensor([0, 1, 1, 0, 1, 2, 2, 0]), 3).float()
    assert _best_path(path) == [1, 1, 2]


@pytest.mark.parametrize(
    ("heard", "spelled", "distance"),
    [([], [1, 2], 2), ([1, 2], [], 2), ([1, 2, 3], [1, 3], 1), ([2, 1], [1, 2], 2), ([1], [1], 0)],
)
def test_the_distance_of_two_texts(heard: list[int], spelled: list[int], distance: int) -> None:
    assert _distance(heard, spelled) == distance


# Time to quality: predicted from a few steps, then trained until it is reached.


A3C = next(demonstration for demonstration in DEMONSTRATIONS if demonstration.model == "a3c")


def test_a_training_ends_when_it_is_good_enough() -> None:
    done = train_to_quality(A3C, seed=3)
    assert done.learned
    assert done.steps % EVERY == 5
    assert done.predicted_s == pytest.approx(
        done.startup_s + 45 * done.few_steps_s + 4 * done.test_s
    )
    assert done.usd is None
    priced = replace(done, usd_per_h=3.6)
    assert priced.usd == pytest.approx(done.seconds * 1e-3)
    assert priced.error == pytest.approx(done.predicted_s / done.seconds - 1)


def test_a_training_that_never_gets_there_is_given_up() -> None:
    done = train_to_quality(replace(A3C, needed=2.0), most_steps=30)
    assert not done.learned
    assert done.steps == 35
