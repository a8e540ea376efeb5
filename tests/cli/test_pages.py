"""The options that write pages and timelines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shell import run


def test_a_prediction_is_written_as_a_page_and_as_a_timeline(saved: Path, tmp_path: Path) -> None:
    page, chrome = tmp_path / "report.html", tmp_path / "step.json"
    files = ("--html", page, "--chrome-trace", chrome)
    done = run("predict", saved, "--gpu", "t4", "--gpu", "l4", "--iterations", "1e6", *files)
    assert done.code == 0, done.err
    assert "t4" in done.out, "the table is printed as well"
    text = page.read_text(encoding="utf-8")
    assert "is the fastest of 2" in text
    assert "; the whole training takes " in text
    assert ">range of cost</button>" in text, "the whole training has a table"
    events = json.loads(chrome.read_text(encoding="utf-8"))["traceEvents"]
    assert {event["pid"] for event in events} == {1, 2}


def test_json_and_a_page_go_together(saved: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = run("predict", saved, "--gpu", "t4", "--html", page, "--json")
    assert json.loads(done.out)["predictions"][0]["gpu"] == "t4"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_profile_is_written_as_a_page(saved: Path, tmp_path: Path) -> None:
    page = tmp_path / "profile.html"
    assert run("profile", saved, "--gpu", "t4", "--html", page).code == 0
    assert "How well the GPU is used" in page.read_text(encoding="utf-8")


def test_a_bad_place_is_refused_before_anything_is_traced(tmp_path: Path) -> None:
    page = tmp_path / "none" / "page.html"
    done = run("predict", "resnet50", "--gpu", "t4", "--html", page)
    assert done.code == 1
    assert "make it first" in done.err


def test_several_gpus_are_written_as_pages(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from parallel_steps import small_gpt2_step

    step = tmp_path / "gpt2.json.gz"
    small_gpt2_step().save(step)
    page, chrome = tmp_path / "page.html", tmp_path / "chrome.json"
    files = ("--html", page, "--chrome-trace", chrome)
    done = run("predict", step, "--gpu", "h100-sxm-80gb", "--parallel", "data=4", *files)
    assert done.code == 0, done.err
    assert "4 x h100-sxm-80gb" in page.read_text(encoding="utf-8")
    assert "communication" in chrome.read_text(encoding="utf-8")
    done = run(
        "scale", step, "--gpu", "h100-sxm-80gb", "--up-to", "4", "--samples", "1e9", "--html", page
    )
    assert done.code == 0, done.err
    text = page.read_text(encoding="utf-8")
    assert "of perfect scaling" in text
    assert "The whole training" in text
