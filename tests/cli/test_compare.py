"""`wavecast compare`."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
from made import call, mm, relu, trace
from shell import WIDTHS, run, shown

import wavecast
from wavecast.analysis.comparison import compare
from wavecast.cli.options.steps import StepOptions
from wavecast.report.results.comparisons import comparisons
from wavecast.targets.targets import Target, Trait

BIG = 2048
command = import_module("wavecast.cli.steps.compare")  # its name is that of the function, too


@pytest.fixture
def steps(tmp_path: Path) -> tuple[Path, Path]:
    before, after = tmp_path / "before.json.gz", tmp_path / "after.json.gz"
    trace(call(mm(BIG, BIG, BIG), module="net.0"), call(relu(BIG, BIG))).save(before)
    trace(call(mm(BIG, BIG, 2 * BIG), module="net.0"), samples=8).save(after)
    return before, after


def test_two_traces_are_compared_on_each_gpu(steps: tuple[Path, Path]) -> None:
    page = steps[0].with_name("page.html")
    done = run("compare", *steps, "--gpu", "l4", "--gpu", "t4", "--html", page)
    assert done.code == 0
    text = page.read_text(encoding="utf-8")
    assert "On t4 B takes" in text
    assert ">aten.relu</th>" in text
    lines = done.out.splitlines()
    assert lines[:2] == ["A: before.json.gz", "B: after.json.gz"]
    assert "l4" in lines
    assert "t4" in lines
    assert any(
        text.startswith("aten.relu") and "gone" in text and "1 -> 0" in text for text in lines
    )
    assert any(text.startswith("net.0") and "+" in text for text in lines)


def test_its_numbers_are_in_the_json(steps: tuple[Path, Path]) -> None:
    record = json.loads(run("compare", *steps, "--gpu", "l4", "--json").out)
    [row] = record["comparisons"]
    assert row["gpu"] == "l4"
    assert row["time_ratio"] == pytest.approx(row["after"]["seconds"] / row["before"]["seconds"])
    assert {part["name"] for part in row["ops"]} == {"aten.mm", "aten.relu"}
    assert row["memory_ratio"] is None


@pytest.mark.slow
def test_a_function_is_compared_with_itself_in_another_precision(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = run("compare", "no-such-model", "no-such-model", "--gpu", "l4")
    assert done.code == 1
    assert "no-such-model" in done.err
    done = run("compare", "resnet50", "resnet50", "-b", 2, "--batch-b", 4, "--gpu", "l4")
    assert done.code == 0
    assert "A: resnet50, batch 2, fp32" in done.out
    assert "B: resnet50, batch 4, fp32" in done.out


@pytest.mark.parametrize("as_json", [True, False])
def test_steps_of_torch_stand_beside_jax_as_written_and_compiled(
    as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {
        ("net", False): trace(call(mm(BIG, BIG, 2 * BIG)), samples=4),
        ("net", True): trace(call(mm(BIG, BIG, BIG)), samples=4),
        ("jax:net", False): trace(call(mm(BIG, BIG, BIG)), samples=8),
    }

    class Source:
        largest = None

        def __init__(self, target: Target) -> None:
            self.trace = made[target.text, bool(target.compiled)]

        def families(self, _: object) -> object:
            return self.trace

    monkeypatch.setattr(command, "step_source", Source)
    monkeypatch.setattr(command, "with_largest", lambda rows, _: list(rows))
    monkeypatch.setattr(
        StepOptions,
        "target",
        lambda _, text, **__: Target(
            text, text=text, kind=Trait.JAX if "jax" in text else Trait.NONE
        ),
    )
    page = tmp_path / "page.html"
    more = ("--json",) if as_json else ("--html", page)
    done = run("compare", "net", "jax:net", "--compile", "both", "--gpu", "l4", *more)
    assert done.code == 0, done.err
    if as_json:
        record = json.loads(done.out)
        assert record["targets"] == ["net", "net, compiled", "jax:net"]
        [row] = record["gpus"]
        eager, compiled, other = (step["seconds"] for step in row["steps"])
        assert eager > compiled == pytest.approx(other)
        assert row["fastest"] == "jax:net"  # in the time of a sample
    else:
        assert "C: jax:net" in done.out
        assert "On l4, jax:net is the fastest." in page.read_text(encoding="utf-8")


def test_all_gpus_are_refused(steps: tuple[Path, Path]) -> None:
    done = run("compare", *steps, "--gpu", "all")
    assert done.code == 1
    assert "name some" in done.err


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_fit_the_terminal(steps: tuple[Path, Path], width: int) -> None:
    old, new = (wavecast.predict(wavecast.load_trace(path), "l4") for path in steps)
    text = shown(comparisons("A", "B", [compare(old, new)], width), width)
    assert "step" in text
    assert all(len(each) <= width for each in text.splitlines())
