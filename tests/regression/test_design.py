"""Designs of runs: compared with each other and with grids, and within their budget."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import BATCHES, BETAS, ITERATIONS, SPLITS, seconds

from wavecast.errors import InvalidInput
from wavecast.runs.regression.design import (
    Configuration,
    Criterion,
    Design,
    configurations,
    design,
    features,
)

BETA = BETAS["AlexNet-like"]


def space(
    batches: tuple[int, ...] = (8, 16, 32), iterations: tuple[int, ...] = (100, 200, 400)
) -> tuple[Configuration, ...]:
    return configurations(batches, iterations, lambda b, i: seconds(BETA, b, i))


def determinant(all_of: tuple[Configuration, ...], runs: tuple[Configuration, ...]) -> float:
    rows = features(all_of)[[all_of.index(run) for run in runs]]
    return float(np.linalg.det(rows.T @ rows))


def test_a_design_is_the_best_of_all_that_the_budget_holds() -> None:
    every = space()
    budget = 120.0
    chosen = design(every, budget)
    best = max(
        determinant(every, runs)
        for count in (5, 6, 7, 8, 9)
        for runs in combinations(every, count)
        if sum(run.cost_s for run in runs) <= budget
    )
    assert determinant(every, chosen.runs) == pytest.approx(best, rel=1e-9)
    assert chosen.cost_s <= budget


@pytest.mark.parametrize("count", SPLITS)
def test_at_the_cost_of_a_grid_a_design_spreads_less(count: int) -> None:
    every = space(BATCHES, ITERATIONS)
    batch, iterations = SPLITS[count]
    grid = tuple(run for run in every if run.batch <= batch and run.iterations <= iterations)
    budget = sum(run.cost_s for run in grid)
    rows = features(every)
    inverse = np.linalg.inv(
        rows[[every.index(run) for run in grid]].T @ rows[[every.index(run) for run in grid]]
    )
    spread = float(np.sqrt(np.einsum("ij,jk,ik->i", rows, inverse, rows)).mean())
    chosen = design(every, budget, most_runs=count)
    assert chosen.spread < {6: 0.6, 12: 0.7, 20: 0.85}[count] * spread
    assert len(chosen.runs) <= count


@pytest.mark.parametrize("criterion", Criterion)
@given(budget=st.floats(60, 400), repeats=st.integers(1, 3))
@settings(max_examples=8)
def test_designs_keep_their_budget_and_determine_the_fit(
    criterion: Criterion, budget: float, repeats: int
) -> None:
    every = space()
    chosen = design(every, budget, criterion=criterion, repeats=repeats)
    assert chosen.cost_s == pytest.approx(sum(run.cost_s for run in chosen.runs))
    assert chosen.cost_s <= budget * (1 + 1e-6)
    assert len(chosen.runs) >= 5
    assert max(chosen.runs.count(run) for run in chosen.runs) <= repeats
    assert 0 < chosen.efficiency <= 1 + 1e-3
    assert np.linalg.matrix_rank(features(every)[[every.index(run) for run in chosen.runs]]) == 4


def test_more_budget_never_spreads_more() -> None:
    spreads = [design(space(), budget, criterion="I").spread for budget in (70, 120, 300)]
    assert spreads == sorted(spreads, reverse=True)


def test_each_criterion_is_best_by_its_own_measure() -> None:
    every = space()
    designs = {criterion: design(every, 150.0, criterion=criterion) for criterion in Criterion}
    rows = features(every)

    def inverse(chosen: Design) -> np.ndarray:
        picked = rows[[every.index(run) for run in chosen.runs]]
        return np.asarray(np.linalg.inv(picked.T @ picked))

    def mean_variance(chosen: Design) -> float:
        return float(np.einsum("ij,jk,ik->i", rows, inverse(chosen), rows).mean())

    for other in Criterion:
        assert np.linalg.det(inverse(designs[Criterion.D])) <= 1.001 * np.linalg.det(
            inverse(designs[other])
        )
        assert np.trace(inverse(designs[Criterion.A])) <= 1.001 * np.trace(inverse(designs[other]))
        assert mean_variance(designs[Criterion.I]) <= 1.001 * mean_variance(designs[other])


def test_the_number_of_runs_can_be_limited() -> None:
    assert len(design(space(), 1000.0, most_runs=5).runs) == 5


def test_several_gpus_are_part_of_a_design() -> None:
    every = configurations((32, 64), (100, 200), lambda b, i: seconds(BETA, b, i), gpus=(1, 2, 4))
    chosen = design(every, 500.0)
    assert {run.gpus for run in chosen.runs} >= {1, 4}
    assert every[1].cost_s == pytest.approx(every[0].cost_s)


@pytest.mark.parametrize(
    ("batches", "budget", "most", "said"),
    [
        ((8, 16), 10.0, None, "need 5 runs, which take .* the budget is 10"),
        ((8, 16), 1000.0, 4, "need 5 runs"),
        ((8,), 1000.0, None, "two batches"),
    ],
)
def test_too_small_a_budget_is_refused_with_what_is_needed(
    batches: tuple[int, ...], budget: float, most: int | None, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        design(space(batches), budget, most_runs=most)


def test_a_space_too_large_or_wrong_is_refused() -> None:
    with pytest.raises(InvalidInput, match="500 at most"):
        design(space(tuple(range(1, 60)), tuple(range(1, 60))), 1e6)
    with pytest.raises(InvalidInput, match="not a time"):
        configurations((8,), (100,), lambda b, i: -1.0)
    with pytest.raises(InvalidInput, match="at least 1"):
        configurations((0,), (100,), lambda b, i: 1.0)
    with pytest.raises(InvalidInput, match="a criterion is D, A, I"):
        design(space(), 100.0, criterion="E")
