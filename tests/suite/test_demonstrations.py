"""Small models of six domains learn their tasks; without learning they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from wavecast.suite import benchmark, benchmarks  # noqa: E402
from wavecast.suite.demonstrations import (  # noqa: E402
    DEMONSTRATIONS,
    Demonstration,
    _best_path,
    _distance,
    train,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("the_same_numbers_on_one_thread")]

BY_DOMAIN = {demonstration.domain: demonstration for demonstration in DEMONSTRATIONS}
QUICK = ("machine translation", "speech recognition", "reinforcement learning")
quick = pytest.mark.parametrize("domain", QUICK)


def test_each_of_tbds_six_domains_has_a_training_of_one_of_its_models() -> None:
    tbds = {model.domain for model in benchmarks() if model.tags.tbd}
    assert set(BY_DOMAIN) == tbds
    assert len(DEMONSTRATIONS) == len(tbds) == 6
    for demonstration in DEMONSTRATIONS:
        assert benchmark(demonstration.model).domain == demonstration.domain
        assert benchmark(demonstration.model).tags.tbd


@quick
def test_it_reaches_the_quality_that_its_task_asks_for(domain: str) -> None:
    training = train(BY_DOMAIN[domain])
    assert training.learned
    assert training.before < 0.5 * training.needed


@pytest.mark.parametrize("demonstration", DEMONSTRATIONS, ids=lambda one: one.domain)
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
