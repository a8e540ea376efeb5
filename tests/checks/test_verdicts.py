"""Verdicts on figures, on steps and on the choice of a GPU."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made import call, mm, relu, trace
from shell import run

import wavecast
from wavecast.analysis.comparison import StepComparison, StepSummary, compare, summary_of
from wavecast.campaigns.checks.checking import changed_since, commit_of
from wavecast.campaigns.checks.config import ChangedLines, Tolerances, new_places
from wavecast.campaigns.checks.verdicts import (
    Outcome,
    StepVerdict,
    best_gpu,
    exit_code,
    explained,
    judge,
    judge_choices,
    overall,
)
from wavecast.errors import InvalidInput
from wavecast.traces.step import Call

STEP = StepSummary(
    gpu="l4",
    seconds=0.1,
    gpu_s=0.1,
    host_s=0.05,
    bound_by="gpu",
    kernels=10,
    syncs=1,
    needed_bytes=2000,
    peak_bytes=1000,
    fits=True,
)


USUAL = Tolerances()


def judged(allowed: Tolerances = USUAL, **now: Any) -> dict[str, Outcome]:
    after = replace(STEP, **now)
    verdict = judge("mine", StepComparison(STEP, after), allowed)
    return {figure.name: figure.outcome for figure in verdict.figures}


def test_an_equal_step_is_within_tolerance() -> None:
    assert set(judged(Tolerances(0, 0, 0, 0, 0, 0)).values()) == {Outcome.WITHIN}


@pytest.mark.parametrize(
    ("figure", "now", "outcome"),
    [
        ("time", {"seconds": 0.1019}, Outcome.WITHIN),
        ("time", {"seconds": 0.1021}, Outcome.WORSE),
        ("time", {"seconds": 0.0979}, Outcome.BETTER),
        ("memory", {"peak_bytes": 1021}, Outcome.WORSE),
        ("memory", {"peak_bytes": 1019, "needed_bytes": 9000}, Outcome.WITHIN),
        ("memory", {"peak_bytes": None}, Outcome.UNKNOWN),
        ("GPU time", {"gpu_s": 0.106}, Outcome.WORSE),
        ("host time", {"host_s": 0.056}, Outcome.WORSE),
        ("host time", {"host_s": 0.054}, Outcome.WITHIN),
        ("waits", {"syncs": 2}, Outcome.WORSE),
        ("waits", {"syncs": 0}, Outcome.BETTER),
        ("fits", {"fits": False}, Outcome.WORSE),
    ],
)
def test_a_figure_is_judged_by_its_tolerance(
    figure: str, now: dict[str, Any], outcome: Outcome
) -> None:
    assert judged(**now)[figure] is outcome


def test_a_figure_that_nobody_asks_for_is_left_out() -> None:
    assert "host time" not in judged(Tolerances(host=None), host_s=9.0)
    assert "fits" not in judged()


def test_a_step_that_was_hardly_predicted_gets_no_verdict() -> None:
    verdict = judge(
        "mine", StepComparison(STEP, replace(STEP, unpredicted_share=0.5)), Tolerances()
    )
    assert verdict.outcome is Outcome.UNKNOWN
    assert "20%" in verdict.problem


@pytest.mark.parametrize(
    ("outcomes", "whole", "code"),
    [
        ((), Outcome.WITHIN, 0),
        ((Outcome.WITHIN, Outcome.BETTER), Outcome.BETTER, 0),
        ((Outcome.BETTER, Outcome.UNKNOWN), Outcome.UNKNOWN, 2),
        ((Outcome.UNKNOWN, Outcome.CHANGED), Outcome.CHANGED, 1),
        ((Outcome.UNKNOWN, Outcome.WORSE), Outcome.WORSE, 1),
    ],
)
def test_the_worst_outcome_decides(
    outcomes: tuple[Outcome, ...], whole: Outcome, code: int
) -> None:
    assert overall(outcomes) is whole
    assert exit_code(outcomes) == code


PRICES = {"l4": 0.4, "h100": 2.0}


def steps(l4_s: float, h100_s: float, **others: Any) -> dict[str, StepSummary]:
    small = replace(STEP, seconds=l4_s, **others)
    return {"l4": small, "h100": replace(STEP, gpu="h100", seconds=h100_s)}


def test_the_fastest_and_the_cheapest_gpu_are_found() -> None:
    assert best_gpu(steps(0.3, 0.1), {"l4": 1.0, "h100": 1.0}) == "h100"
    assert best_gpu(steps(0.3, 0.1), PRICES) == "l4"
    assert best_gpu(steps(0.3, 0.1, fits=False), PRICES) == "h100"
    assert best_gpu(steps(0.3, 0.1), {}) == ""


def test_a_choice_changes_only_if_another_gpu_is_better_by_more_than_the_tolerance() -> None:
    before = steps(0.4, 0.1)  # by money: 0.16 on the L4, 0.20 on the H100
    choices = judge_choices("mine", before, steps(0.505, 0.1), PRICES, 0.02)
    assert [(row.by, row.after, row.outcome) for row in choices] == [
        ("time", "h100", Outcome.WITHIN),
        ("money", "h100", Outcome.WITHIN),  # 1% cheaper: both can be chosen
    ]
    [_, money] = judge_choices("mine", before, steps(0.6, 0.1), PRICES, 0.02)
    assert (money.before, money.after, money.outcome) == ("l4", "h100", Outcome.CHANGED)
    [_, money] = judge_choices("mine", before, steps(0.4, 0.1, fits=False), PRICES, 0.02)
    assert money.outcome is Outcome.CHANGED


def test_there_is_no_choice_without_two_gpus() -> None:
    one = {"l4": STEP}
    assert judge_choices("mine", one, one, PRICES, 0.02) == ()
    assert judge_choices("mine", steps(1, 1), steps(1, 1), PRICES, None) == ()


# Verdicts as plain lines of text.


BIG = 2048


def summary(*, wide: bool = False, waits: bool = False) -> StepSummary:
    product = mm(BIG, BIG, BIG * (2 if wide else 1))
    calls = call(product, module="net.0", syncs=waits), call(relu(BIG, BIG), module="net.1")
    return summary_of(wavecast.predict(trace(*calls), "l4", host="reference"))


def test_a_slower_step_is_explained_by_op_and_module() -> None:
    verdict = judge("mine", StepComparison(summary(), summary(wide=True, waits=True)), Tolerances())
    text = explained(replace(verdict, cause="the ops of the step changed"))
    first, *lines = text.splitlines()
    assert first == "mine on l4: worse"
    assert any(line.startswith("  time ") and "2% allowed): worse" in line for line in lines)
    assert "  waits 0 -> 1 (0 allowed): worse" in lines
    assert any(line.startswith("    aten.mm: +") and line.endswith("(1 calls)") for line in lines)
    assert any(line.startswith("    net.0: +") for line in lines)
    assert lines[-1] == "  the ops of the step changed"


def test_an_equal_step_has_its_figures_only() -> None:
    text = explained(judge("mine", StepComparison(summary(), summary()), Tolerances()))
    assert text.startswith("mine on l4: within tolerance\n  time ")
    assert "->" not in text


def test_a_step_that_no_longer_fits_and_an_unknown_memory_are_named() -> None:
    before, after = (
        replace(summary(), fits=True, peak_bytes=3 << 20),
        replace(summary(), fits=False),
    )
    text = explained(judge("mine", StepComparison(before, after), Tolerances()))
    assert "  fits true -> false: worse" in text
    assert "  memory 3 MiB -> unknown (2% allowed): cannot say" in text


def test_a_problem_is_all_there_is_to_say() -> None:
    assert explained(StepVerdict("mine", "l4", problem="no")) == "mine on l4: no"


# Lines of code at which a step does more, and commits that are compared.


def at(line: str, made: Call, *, syncs: bool = False) -> Call:
    return Call(made.op, made.phase, made.module, made.stream, syncs=syncs, line=line)


def git(*arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_BASE_REF", "CI_MERGE_REQUEST_DIFF_BASE_SHA"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "wavecast.toml").write_text(
        'gpus = ["t4"]\n[targets.mine]\ntarget = "step.json.gz"\n', encoding="utf-8"
    )
    (tmp_path / "train.py").write_text("a\nb\nc\n", encoding="utf-8")
    trace(call(mm(BIG, BIG, BIG))).save(tmp_path / "step.json.gz")
    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-qm", "base")
    git("checkout", "-qb", "work")
    return tmp_path


def comparison() -> StepComparison:
    before = trace(at("train.py:1", call(mm(BIG, BIG, BIG))))
    more = [at("train.py:2", call(relu(BIG, BIG)), syncs=True), at("x.py:9", call(relu(BIG, BIG)))]
    steps = (before, trace(*before.calls, *more))
    return compare(*(wavecast.predict(step, "t4") for step in steps))


def test_new_ops_and_waits_are_named_at_their_lines() -> None:
    found = [(place.file, place.line, place.op) for place in new_places(comparison())]
    assert found == [
        ("train.py", 2, "waits"),
        ("train.py", 2, "aten.relu"),
        ("x.py", 9, "aten.relu"),
    ]
    changed = ChangedLines("base", {"x.py": [], "train.py": [range(7, 9)]})
    found = [(place.file, place.line, place.op) for place in new_places(comparison(), changed)]
    assert found == [("train.py", 2, "waits"), ("x.py", 9, "aten.relu")]


def test_lines_that_changed_since_a_commit_are_found(repository: Path) -> None:
    (repository / "train.py").write_text("a\nnew\nb\nc\nd\n", encoding="utf-8")
    (repository / "fresh.py").write_text("x\n", encoding="utf-8")
    changed = changed_since(commit_of("merge-base"))
    assert [line for line in range(1, 6) if changed.has("train.py", line)] == [2, 5]
    assert changed.has("fresh.py", 1)
    assert not changed.has("other.py", 1)
    with pytest.raises(InvalidInput, match="does not work here"):
        commit_of("no-such-commit")


def test_a_branch_is_compared_with_where_it_began(repository: Path) -> None:
    slower = at("train.py:2", call(mm(BIG, BIG, 2 * BIG), module="a%b"))
    trace(slower).save(repository / "step.json.gz")
    (repository / "train.py").write_text("a\nnew\nc\n", encoding="utf-8")
    done = run("check", "--against", "merge-base", "--annotate")
    assert done.code == 1, done.err
    told = [line for line in done.out.splitlines() if line.startswith("::")]
    assert [line.partition(" ")[0] for line in told] == ["::warning", "::error"]
    assert "file=train.py,line=2,title=Wavecast::mine: aten.mm is called here once" in told[0]
    assert re.fullmatch(r"::error title=Wavecast::mine on t4 got worse: time[\w ,]*", told[1])
    places = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True, check=True)
    assert len(places.stdout.splitlines()) == 1, "what was checked out is gone"
    assert run("check", "--update", "--against", "main").code == 2
