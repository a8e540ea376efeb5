"""The page about the papers is made from its records, and what it shows is so."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from lab.score import papers
from lab.score.papers import Check, Requirement

COUNTS = {"PL": 12, "E2E": 9, "MG": 6, "HB": 19, "TBD": 9}
"""How many requirements each paper has."""
ALL = list(papers.requirements())
QUICK = [
    pytest.param(check, id=f"{one.id}-{index}")
    for one in ALL
    for index, check in enumerate(one.checks)
    if not check.slow and check.kind != "gpu"
]


def test_every_requirement_has_its_record_in_order() -> None:
    numbered = [f"{name}-{n}" for name, count in COUNTS.items() for n in range(1, count + 1)]
    assert [one.id for one in ALL] == numbered


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.id)
def test_a_record_says_everything_and_shows_something(one: Requirement) -> None:
    assert all((one.paper, one.ours, one.title)), "what the paper says, and what we give"
    assert one.differs or one.status in ("exact", "holds"), "what differs, and why"
    quick = [check for check in one.checks if check.kind != "gpu" and not check.slow]
    assert quick, "a check that computes its figure in every run of the tests"
    for check in one.checks:
        assert check.prints or check.kind == "gpu", "a check must be able to fail"
    assert one.missing == [], "pages and tests that it names"


@pytest.mark.parametrize("check", QUICK)
def test_what_the_page_shows_is_so(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("COLUMNS", "200")
    assert check.failures() == []


def test_the_page_is_made_from_the_records() -> None:
    assert papers.PAGE.read_text(encoding="utf-8") == papers.rendered(), (
        "run python -m lab score papers"
    )


def test_links_of_the_page_lead_to_its_headings() -> None:
    page = papers.rendered()
    headings = {
        re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", line.removeprefix("### ").lower()))
        for line in page.splitlines()
        if line.startswith("### ")
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", page)) == headings
    assert len(headings) == sum(COUNTS.values())


def test_a_check_that_fails_says_what_is_missing() -> None:
    assert Check("python", "print(6 * 7)", ("42",)).failures() == []
    assert Check("python", "print(6 * 7)", ("42", "43")).failures() == ["43"]
    assert Check("run", "wavecast devices t4", ("Turing", "Volta")).failures() == ["Volta"]
    named = ("README.md", "docs/no-such-page.md"), ("tests/lab/test_papers.py::test_none_such",)
    one = replace(ALL[0], pages=named[0], tests=named[1])
    assert one.missing == ["docs/no-such-page.md", "tests/lab/test_papers.py::test_none_such"]
    assert Check("gpu", "wavecast measure resnet50").failures() == []
