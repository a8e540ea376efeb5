"""`wavecast check`, on saved traces: exit codes, updates, formats, and where changes come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made import call, mm, relu, step, trace
from shell import Outcome, run

from wavecast.traces.step import Trace

BIG = 2048
CONFIG = """
gpus = ["l4", "t4"]
[targets.mine]
target = "step.json.gz"
"""
SLOW = trace(call(mm(BIG, BIG, 2 * BIG), module="net.0"), call(relu(BIG, BIG), module="net.1"))
USUAL = trace(call(mm(BIG, BIG, BIG), module="net.0"), call(relu(BIG, BIG), module="net.1"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wavecast.toml").write_text(CONFIG, encoding="utf-8")
    USUAL.save(tmp_path / "step.json.gz")
    assert run("check", "--update").code == 0
    return tmp_path


def after(project: Path, changed: Trace, *arguments: str) -> Outcome:
    changed.save(project / "step.json.gz")
    return run("check", *arguments)


def test_an_unchanged_step_passes_twice_with_equal_output(project: Path) -> None:
    first, second = run("check"), run("check")
    assert (first.code, first.out) == (0, second.out)
    assert first.out.endswith("all 2 within tolerance\n")
    kept = (project / "wavecast-baseline.toml").read_bytes()
    assert run("check", "--update").code == 0
    assert (project / "wavecast-baseline.toml").read_bytes() == kept


def test_a_slower_step_fails_and_says_where(project: Path) -> None:
    done = after(project, SLOW)
    assert done.code == 1
    assert "worse: time, GPU time" in done.out
    assert "net.0" in done.out
    assert "aten.mm" in done.out
    assert "the ops of the step changed" in done.out
    assert done.out.endswith("2 of 2 got worse than the tolerance allows\n")


def test_a_better_step_passes_and_asks_for_an_update(project: Path) -> None:
    assert after(project, SLOW, "--update").code == 0
    done = after(project, USUAL)
    assert done.code == 0
    assert "2 of 2 got better: wavecast check --update keeps that" in done.out


def test_markdown_and_json_say_the_same(project: Path) -> None:
    done = after(project, SLOW, "--markdown", "summary.md", "--json")
    record = json.loads(done.out)
    assert (record["outcome"], record["exit_code"], done.code) == ("worse", 1, 1)
    assert {row["gpu"] for row in record["steps"]} == {"l4", "t4"}
    text = (project / "summary.md").read_text(encoding="utf-8")
    assert text.startswith("### Wavecast: 2 of 2 got worse")
    assert "| mine | l4 |" in text
    assert run("check", "--markdown", "-").out == text


def test_names_cannot_break_the_markdown(project: Path) -> None:
    name = "net.<img src=x>|`*_"
    odd = trace(call(mm(BIG, BIG, 2 * BIG), module=name))
    text = after(project, odd, "--markdown", "-").out
    assert "<img" not in text
    assert r"\|\`\*\_" in text


def test_a_missing_baseline_or_config_cannot_be_judged(project: Path) -> None:
    (project / "wavecast-baseline.toml").unlink()
    done = run("check")
    assert (done.code, done.out) == (2, "")
    assert "wavecast check --update" in done.err
    (project / "wavecast.toml").unlink()
    assert run("check").code == 2


def test_a_new_target_or_gpu_cannot_be_judged(project: Path) -> None:
    config = project / "wavecast.toml"
    config.write_text(CONFIG.replace('"t4"]', '"t4", "a10"]'), encoding="utf-8")
    done = run("check")
    assert done.code == 2
    assert "cannot say: is not in the baseline" in done.out
    assert "nothing can be said about 1 of 3" in done.out


def test_a_target_that_cannot_be_read_leaves_the_others_judged(project: Path) -> None:
    config = project / "wavecast.toml"
    config.write_text(CONFIG + '[targets.lost]\ntarget = "lost.json.gz"\n', encoding="utf-8")
    done = run("check")
    assert done.code == 2
    assert "within tolerance" in done.out
    assert "lost.json.gz" in done.out
    before = (project / "wavecast-baseline.toml").read_bytes()
    done = run("check", "--update")
    assert done.code == 2
    assert "the baseline was not written: lost:" in done.err
    assert (project / "wavecast-baseline.toml").read_bytes() == before
    assert run("check", "--target", "mine").code == 0
    assert run("check", "--target", "nobody").code == 2


def test_updating_one_target_keeps_the_others(project: Path) -> None:
    config = project / "wavecast.toml"
    config.write_text(CONFIG + '[targets.more]\ntarget = "more.json.gz"\n', encoding="utf-8")
    step().save(project / "more.json.gz")
    assert run("check", "--update", "--target", "more").code == 0
    assert run("check").code == 0
    config.write_text(CONFIG.replace(', "t4"', ""), encoding="utf-8")
    done = run("check")
    assert done.code == 0
    assert "no longer checked: mine on t4; --update removes them" in done.out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('wavecast = "', "wavecast 0.0.9 -> "),
        ("", "its models or data changed, although its version did not"),
    ],
)
def test_a_change_of_wavecast_itself_is_told_from_one_of_the_step(
    project: Path, line: str, says: str
) -> None:
    path = project / "wavecast-baseline.toml"
    text = path.read_text(encoding="utf-8")
    changed = text.replace("step_ms = ", "step_ms = 9")  # as another version would have predicted
    if line:
        start = changed.index(line) + len(line)
        changed = changed[:start] + "0.0.9" + changed[changed.index('"', start) :]
    path.write_text(changed, encoding="utf-8")
    done = run("check")
    assert "the step is the same op for op, so the change comes from Wavecast" in done.out
    assert says in done.out


def test_another_torch_is_named_beside_changed_ops(project: Path) -> None:
    import torch

    path = project / "wavecast-baseline.toml"
    text = path.read_text(encoding="utf-8")
    version = torch.__version__.partition("+")[0]
    path.write_text(text.replace(f'torch = "{version}"', 'torch = "2.9.0"'), encoding="utf-8")
    if 'torch = "2.9.0"' not in path.read_text(encoding="utf-8"):
        text = text.replace("[software]\n", '[software]\ntorch = "2.9.0"\n')
        path.write_text(text, encoding="utf-8")
    done = after(project, SLOW)
    assert done.code == 1
    assert f"and so did torch 2.9.0 -> {version}; check the old code" in done.out


def test_an_update_judges_nothing(project: Path) -> None:
    done = run("check", "--update", "--markdown", "-")
    assert done.code == 2
    assert "leave --markdown out" in done.err
