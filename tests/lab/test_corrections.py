"""What measured ops teach: the shipped scales, and how the score chooses what a user measures."""

from __future__ import annotations

import pytest

from lab.fit.corrections import spreads
from lab.measured import campaigns
from lab.score.corrections import GPU, chosen, error, model_of, sweeps, without_trees
from wavecast.files import shipped_toml
from wavecast.predictors.corrected import Corrected
from wavecast.predictors.learned.predictor import Learned


@pytest.mark.slow
def test_the_shipped_scales_are_those_of_the_swept_layers() -> None:
    assert shipped_toml("models/corrections.toml")["scales"] == spreads()


def test_the_model_of_a_step_teaches_nothing_about_it() -> None:
    suite = {f"{name}-b{batch}-fp32": object() for name in "abcd" for batch in (1, 2)}
    for seed in range(5):
        given = chosen(suite, 3, "b", seed)  # type: ignore[arg-type]
        keys = {key for key, trace in suite.items() if trace in given}
        assert {model_of(key) for key in keys} == {"a", "c", "d"}


def test_a_sweep_brings_a_step_of_convolutions_nearer() -> None:
    bare = without_trees(Learned.shipped())
    trace = campaigns.traces("suite")["inception-v3-b32-bf16"]
    own = sweeps(["newer"], bare)[1]
    assert 0 < len(own.swept) <= 5000
    before, after = error(trace, bare), error(trace, Corrected(bare, {GPU: own}))
    assert abs(after) < abs(before)
