"""Lines of code at which a step does more, and commits that are compared."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from made import call, mm, relu, trace
from shell import run

import wavecast
from wavecast.analysis.comparison import StepComparison, compare
from wavecast.campaigns.checks.checking import changed_since, commit_of
from wavecast.campaigns.checks.config import ChangedLines, new_places
from wavecast.errors import InvalidInput
from wavecast.traces.step import Call

BIG = 2048


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
