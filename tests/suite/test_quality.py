"""Time to quality: predicted from a few steps, then trained until it is reached."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wavecast.suite.demonstrations import DEMONSTRATIONS, EVERY, train_to_quality

A3C = next(one for one in DEMONSTRATIONS if one.model == "a3c")


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
