"""The option `--ranks`: steps whose own code is parallel."""

from __future__ import annotations

from pathlib import Path

import pytest
from shell import run

SCRIPT = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def make_step():
    dist.init_process_group("nccl")
    model = DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 64, device="cuda")

    def step():
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    return step
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the step, where the commands run."""
    monkeypatch.chdir(tmp_path)
    Path("spread.py").write_text(SCRIPT, encoding="utf-8")


def test_predict_uses_the_collectives_of_the_code_on_so_many_gpus() -> None:
    done = run("predict", "spread.py:make_step", "--ranks", 4, "--gpu", "h100-sxm-80gb")
    assert done.code == 0
    assert "4 x h100-sxm-80gb" in done.out
    assert "the collectives are those of the step's own code" in done.out


def test_a_saved_trace_of_ranks_needs_the_gpus_named() -> None:
    done = run("trace", "spread.py:make_step", "--ranks", 4, "-o", "rank.json.gz")
    assert done.code == 0
    refused = run("predict", "rank.json.gz", "--gpu", "l4")
    assert refused.code != 0
    assert "--parallel data=4" in refused.err
    assert run("predict", "rank.json.gz", "--gpu", "l4", "--parallel", "data=4").code == 0
    twice = run("predict", "rank.json.gz", "--gpu", "l4", "--ranks", 4)
    assert twice.code != 0
    assert "whose ranks are fixed" in twice.err


def test_memory_is_that_of_one_rank() -> None:
    done = run("memory", "spread.py:make_step", "--ranks", 4, "--gpu", "l4")
    assert done.code == 0
    assert "gradients" in done.out


def test_without_the_option_the_line_is_named_and_the_option() -> None:
    done = run("trace", "spread.py:make_step")
    assert done.code != 0
    assert "spread.py:8" in done.err
    assert "--ranks 8" in done.err


TRAINING = """
step = make_step()
for _ in range(9):
    step()
"""


def test_a_script_for_torchrun_is_predicted_as_one_of_its_ranks() -> None:
    Path("train.py").write_text(SCRIPT + TRAINING, encoding="utf-8")
    done = run("run", "--gpu", "h100-sxm-80gb", "--ranks", 4, "--json", "train.py")
    assert done.code == 0, done.err
    assert '"predictions"' in done.out
    assert (
        "cannot be used with --parallel or --ranks"
        in run(*("run", "--gpu", "l4", "--ranks", 4, "--by", "op", "train.py")).err
    )
