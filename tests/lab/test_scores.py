"""Pages of the documents have the tables that the commands of `lab score` make."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

import pytest

from lab import pages
from lab.score import blind_torch
from lab.scores import SCORES, ScoreTable

QUICK = (
    *("blind", "blind_tests", "front_door", "multi_gpu", "recipes", "revisited", "run_grid"),
    *("summary", "tbd_machines", "unchanged_scripts"),
)
"""Commands that take seconds, and are given nothing."""
SLOW = ("half_precision", "grouped")


def _on_pages(tables: Iterable[ScoreTable]) -> bool:
    return all(
        pages.section(table.page, table.mark) == table.on_the_page for table in tables if table.page
    )


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_the_pages_have_what_the_command_makes(name: str) -> None:
    score = SCORES[name]
    module, _, function = score.tables.partition(":")
    assert _on_pages(getattr(import_module(f"lab.score.{module}"), function)())


@pytest.mark.parametrize("name", blind_torch.NAMES)
def test_the_page_shows_each_blind_test_of_torch(name: str) -> None:
    assert _on_pages(blind_torch.tables([name]))


@pytest.mark.parametrize("name", SCORES)
def test_every_score_is_made_by_a_function(name: str) -> None:
    module, _, function = SCORES[name].tables.partition(":")
    assert callable(getattr(import_module(f"lab.score.{module}"), function))
