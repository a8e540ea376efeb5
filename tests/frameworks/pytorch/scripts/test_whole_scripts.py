"""Scripts of users and of installed packages: each runs unchanged and gives the step by hand."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from pathlib import Path

import pytest
import torch
from shell import run

import wavecast
from lab.places import DOCS
from lab.steps.scripts import CASES, ScriptCase, prepare

GPU = "a100-sxm-80gb"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the data that the scripts read."""
    # Libraries that scripts import switch this off for the whole process.
    switch = torch.distributions.Distribution
    monkeypatch.setattr(switch, "_validate_args", True)
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    return tmp_path


def test_there_are_at_least_twenty() -> None:
    assert len(CASES) == len({case.name for case in CASES}) >= 20
    assert all(case.script.is_file() for case in CASES)


def test_the_tests_that_the_page_of_the_corpus_names_exist() -> None:
    page = (DOCS / "appendix" / "scripts.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    code = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*.py"))
    assert named <= set(re.findall(r"def (test_\w+)", code))
    assert named


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_script_gives_the_step_written_by_hand(
    case: ScriptCase, folder: Path, request: pytest.FixtureRequest
) -> None:
    for package in case.needs:
        pytest.importorskip(package)
    if "pytorch_lightning" in case.needs:
        request.getfixturevalue("lightning")
    # It turns the checks of distributions off, so a script without packages must not see it.
    if case.needs and importlib.util.find_spec("bitsandbytes"):
        importlib.import_module("bitsandbytes")
    before = sorted(folder.rglob("*"))
    done = run("run", "--gpu", GPU, "--json", case.script, *case.arguments)
    assert done.code == 0, done.err
    assert sorted(folder.rglob("*")) == before
    record = json.loads(done.out)
    assert len(record["script"]["equal"]) > 1
    [predicted] = record["predictions"]
    by_hand = wavecast.predict(wavecast.trace(case.make_step, gpu=GPU), GPU)
    assert predicted["seconds"] == pytest.approx(by_hand.seconds, rel=0.01)
    assert predicted["gpu_s"] == pytest.approx(by_hand.gpu_s, rel=0.01)
    assert by_hand.memory is not None
    if "evaluation" in case.like:  # steps that evaluate need more, and memory is the largest step's
        assert predicted["peak_bytes"] > by_hand.memory.peak_bytes
    else:
        assert predicted["peak_bytes"] == pytest.approx(by_hand.memory.peak_bytes, rel=0.2)
