"""The commands about memory."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from shell import run

pytest.importorskip("torch")

STEP = """
import torch
from torch import nn

def make_step(batch=4, precision="fp32"):
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    rows = torch.randn(batch, 256, device="cuda")

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            loss = model(rows).square().mean()
        loss.backward()
        optimizer.step()

    return step
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(STEP, encoding="utf-8")
    return f"{path}:make_step"


def test_memory_is_shown_by_kind_with_its_peak_explained(saved: Path) -> None:
    done = run("memory", saved, "--gpu", "t4", "--gpu", "mi300x")
    assert done.code == 0
    for part in (
        "activations",
        "workspace",
        "reserved",
        "fits",
        "largest tensors at the peak",
        "the peak is",
    ):
        assert part in done.out
    assert re.search(r"workspace +\S+ \w+ +\?", done.out), "unknown on an MI300X"


def test_without_a_gpu_workspaces_are_unknown(saved: Path) -> None:
    done = run("memory", saved)
    assert re.search(r"workspace +\?", done.out)
    assert "--gpu" in done.out


def test_the_json_has_the_numbers(saved: Path) -> None:
    [record] = json.loads(run("memory", saved, "--gpu", "t4", "--json", "--advice").out)
    assert record["gpu"] == "t4"
    assert record["fits"] is True
    assert record["process_bytes"] == record["reserved_bytes"] + record["context_bytes"]
    assert set(record["by_kind"]) >= {"weights", "activations", "workspace", "temporary"}
    assert record["peak"]["op"]
    assert all(change["saved_bytes"] > 0 for change in record["advice"])


def test_advice_traces_the_step_in_other_words(target: str) -> None:
    done = run("memory", target, "--batch", "65536", "--gpu", "t4", "--advice")
    assert done.code == 0
    assert "batch 32768, accumulated twice" in done.out
    assert "8-bit optimizer" in done.out


def test_advice_knows_that_segments_grow_already(target: str) -> None:
    asked = ("memory", target, "--batch", "65536", "--gpu", "t4", "--advice", "--json")
    [fixed] = json.loads(run(*asked).out)
    [growing] = json.loads(run(*asked, "--expandable-segments").out)
    assert "expandable segments" not in [change["name"] for change in growing["advice"]]
    assert growing["reserved_bytes"] != fixed["reserved_bytes"]
    for change in growing["advice"]:
        wanted = growing["reserved_bytes"] - change["saved_bytes"]
        assert change["reserved_bytes"] == wanted, "both are of growing segments"


def test_a_step_that_takes_no_precision_gets_the_other_advice(tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text(STEP.replace(', precision="fp32"', "").replace('precision == "bf16"', "False"))
    done = run("memory", f"{path}:make_step", "--batch", "65536", "--gpu", "t4", "--advice")
    assert done.code == 0
    assert "accumulated twice" in done.out
    assert "bfloat16" not in done.out


def test_the_page_stands_alone(saved: Path, tmp_path: Path) -> None:
    page = tmp_path / "memory.html"
    assert run("memory", saved, "--gpu", "t4", "--html", page).code == 0
    text = page.read_text(encoding="utf-8")
    assert text.count("<path") == 5
    assert ">peak " in text
    assert "://" not in text.replace("http://www.w3.org", "")
    refused = run("memory", saved, "--html", tmp_path / "none" / "memory.html")
    assert refused.code == 1


def test_every_gpu_is_asked_whether_it_fits(saved: Path) -> None:
    rows = json.loads(run("fits", saved, "--gpu", "all", "--json").out)
    assert len(rows) > 50
    assert all(row["fits"] for row in rows)
    shown = run("fits", saved, "--gpu", "t4", "--gpu", "l4").out
    assert shown.index("t4") < shown.index("l4"), "the smallest first"


def test_the_largest_batch_is_found(target: str) -> None:
    done = run("max-batch", target, "--gpu", "h200-sxm", "--limit-gib", "1", "--json")
    [record] = json.loads(done.out)
    assert record["gpu"] == "h200-sxm"
    assert record["batch"] > 50_000
    assert record["peak_bytes"] <= 1 << 30
    assert record["batch"] in record["traced"], "the answer was traced itself"


def test_a_trace_has_no_other_batch(saved: Path) -> None:
    done = run("max-batch", saved, "--gpu", "t4")
    assert done.code == 1
    assert "batch is fixed" in done.err


def test_measuring_needs_a_gpu(target: str) -> None:
    done = run("memory", target, "--measure")
    assert done.code == 1
    assert "needs a GPU" in done.err
