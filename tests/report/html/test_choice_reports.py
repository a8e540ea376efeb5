"""The page about a choice of GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import step

import wavecast
from wavecast.planning.cost import TrainingPlan, training_cost
from wavecast.planning.selection import Aim, Candidate, Selection, select
from wavecast.report.html.documents import document
from wavecast.report.results.selections import choice_chart, choice_report

PLAN = TrainingPlan(iterations=1e9)
GPUS = ("h100-sxm-80gb", "a100-sxm-80gb", "a10", "t4")


def _candidates() -> list[Candidate]:
    made = []
    for gpu in GPUS:
        cost = training_cost(wavecast.predict(step(), gpu), PLAN, wavecast.price(gpu))
        made.append(Candidate(wavecast.device(gpu), 1, 32, cost=cost))
    return made


def _page(selection: Selection, **limits: float) -> str:
    pair = limits.get("budget"), limits.get("deadline")
    return document(choice_report("two layers", selection, PLAN, "samples", pair))


def test_a_choice_is_a_page_with_its_reasons() -> None:
    lost = Candidate(wavecast.device("t4"), 8, 32, reason="does not fit: <b>")
    selection = select([*_candidates(), lost], Aim.MONEY)
    assert selection.best is not None
    page = _page(selection)
    assert f"The cheapest is <strong>{selection.best.name}</strong>" in page
    assert "does not fit: 8 x t4" in page.lower()
    assert "<b>" not in page
    assert page.count('class="dot') == len(GPUS)


def test_limits_are_drawn_where_they_are_in_the_chart() -> None:
    selection = select(_candidates(), Aim.BOTH)
    money = [one.usd.value for one in selection.ranked]
    budget = (min(money) * max(money)) ** 0.5
    assert "budget $" in _page(selection, budget=budget)
    assert "budget $" not in _page(selection, budget=1e12)
    times = [one.seconds.value for one in selection.ranked]
    assert "deadline " in _page(selection, deadline=max(times))


def test_without_prices_there_is_no_chart() -> None:
    unpriced = []
    for one in _candidates():
        assert one.cost is not None
        unpriced.append(replace(one, cost=replace(one.cost, usd=None, offer=None)))
    assert choice_chart(select(unpriced, Aim.TIME)) == ""
    assert "The fastest is" in _page(select(unpriced, Aim.TIME))


def test_nothing_that_keeps_the_limits_is_said() -> None:
    assert "Nothing keeps the limits" in _page(select(_candidates(), Aim.MONEY, 1e-9))
    none = [replace(one, cost=None, reason="does not fit") for one in _candidates()]
    assert "can run on none" in _page(select(none, Aim.MONEY))


@pytest.mark.parametrize("aim", list(Aim))
def test_ranges_are_in_the_chart(aim: Aim) -> None:
    assert "whisker" in choice_chart(select(_candidates(), aim))
