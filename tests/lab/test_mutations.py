"""The checks of the papers fail when an equation or a rule is changed: they can fail."""

from __future__ import annotations

import pytest

from lab.score import papers
from lab.score.papers import Mutation, Requirement
from wavecast.predictors import wave
from wavecast.predictors import wave as importer

pytest.importorskip("torch")

WITHOUT = {"MG-1", "HB-11", "HB-18", "TBD-3", "TBD-6"}
"""Requirements that state data or facts, and no equation or rule."""
EVERY = [
    pytest.param(requirement, mutation, id=f"{requirement.id} {mutation.what}")
    for requirement in papers.requirements()
    for mutation in requirement.mutations
]


@pytest.mark.parametrize(("one", "mutation"), EVERY)
def test_a_changed_formula_fails_a_check(
    one: Requirement, mutation: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert one.notices(mutation), f"no check of {one.id} notices: {mutation.what}"


def test_every_equation_and_rule_is_changed() -> None:
    assert {
        requirement.id for requirement in papers.requirements() if not requirement.mutations
    } == WITHOUT


def test_a_change_reaches_every_module_and_ends() -> None:
    original = wave.wave_ratio
    twice = Mutation("twice", f"{wave.__name__}:wave_ratio", "lambda *given: 2.0")
    with twice.applied():
        assert vars(importer)["wave_ratio"] is wave.wave_ratio is not original
    assert vars(importer)["wave_ratio"] is wave.wave_ratio is original
